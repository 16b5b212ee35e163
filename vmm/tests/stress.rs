//! The sweep end to end on real KVM: what is promised holds for every strategy,
//! workload, APIC and completion rule; what breaks the promise is caught.

mod support;

use serde_json::Value;
use support::{Scratch, kvm, pvtlb, stderr};

/// Runs a sweep and returns its JSON report.
fn sweep(name: &str, args: &[&str], code: i32) -> Value {
    let json = Scratch::file(name, b"");
    let path = json.path().to_str().expect("utf-8");
    let common = ["stress", "--rounds", "1", "--seconds", "0.3", "--json", path];
    let output = pvtlb(&[&common, args].concat());
    assert_eq!(output.status.code(), Some(code), "{args:?}: {}", stderr(&output));
    serde_json::from_slice(&std::fs::read(path).expect("report")).expect("valid JSON")
}

fn counts<'a>(report: &'a Value, count: &'a str) -> impl Iterator<Item = u64> + 'a {
    let steps = report["steps"].as_array().expect("steps");
    steps.iter().map(move |step| step["guest"][count].as_u64().expect(count))
}

/// Every step flushed and nobody saw anything stale.
fn holds(report: &Value, steps: usize) {
    assert_eq!(report["verdict"], "PASS", "{report:#}");
    assert_eq!(report["steps"].as_array().map(Vec::len), Some(steps));
    assert!(counts(report, "shootdowns").all(|n| n > 0), "{report:#}");
    assert!(counts(report, "checks").all(|n| n > 0), "{report:#}");
    assert!(counts(report, "violations").all(|n| n == 0), "{report:#}");
}

#[test]
fn every_strategy_keeps_its_promise_and_both_controls_are_caught() {
    if kvm("stress_strategies").is_none() {
        return;
    }
    let report = sweep("strategies", &["--cpus", "1,2,4"], 0);
    holds(&report, 15);
    let controls = report["controls"].as_array().expect("controls");
    assert_eq!(controls.len(), 2);
    for control in controls {
        assert_eq!(control["verdict"], "XFAIL", "{control:#}");
        let example = &control["example"];
        assert!(example["address"].as_u64().is_some_and(|a| a != 0), "{control:#}");
        assert!(example["flush"].as_u64().is_some_and(|n| n > 0), "{control:#}");
    }
}

#[test]
fn every_workload_holds_with_several_address_spaces() {
    if kvm("stress_workloads").is_none() {
        return;
    }
    for workload in ["remap", "unmap", "mprotect"] {
        let args = [
            "--cpus",
            "2,4",
            "--modes",
            "ipi,doorbell",
            "--workload",
            workload,
            "--address-spaces",
            "3",
            "--no-controls",
        ];
        let report = sweep(workload, &args, 0);
        holds(&report, 4);
        assert!(counts(&report, "switches").all(|n| n > 0), "vCPUs change address space");
    }
}

#[test]
fn every_completion_rule_holds_overcommitted() {
    if kvm("stress_rules").is_none() {
        return;
    }
    let modes = "doorbell@auto,doorbell@ack,doorbell@preempted,doorbell@membarrier";
    let args = ["--cpus", "4", "--pcpus", "1", "--modes", modes, "--no-controls"];
    let report = sweep("rules", &args, 0);
    holds(&report, 4);
    let monitor = |i: usize, count: &str| report["steps"][i]["monitor"][count].as_u64();
    assert_eq!(monitor(1, "by_membarrier"), Some(0), "ack waits for everybody");
    assert_eq!(monitor(3, "by_ack"), Some(0), "membarrier waits for nobody");
}

#[test]
fn the_x2apic_and_algorithms_at_cpl_0_hold_as_well() {
    if kvm("stress_apic").is_none() {
        return;
    }
    let x2apic = ["--cpus", "2", "--modes", "ipi", "--apic", "x2apic", "--no-controls"];
    holds(&sweep("x2apic", &x2apic, 0), 1);
    let cpl0 = ["--cpus", "2", "--modes", "ipi", "--algorithm-cpl", "0", "--no-controls"];
    holds(&sweep("cpl0", &cpl0, 0), 1);
}

#[test]
fn without_a_second_pcpu_the_controls_are_skipped_and_said_to_be() {
    if kvm("stress_one_pcpu").is_none() {
        return;
    }
    let report = sweep("one_pcpu", &["--cpus", "2", "--pcpus", "1", "--modes", "ipi"], 0);
    for control in report["controls"].as_array().expect("controls") {
        assert_eq!(control["verdict"], "SKIP");
        assert!(control["reason"].as_str().is_some_and(|r| r.contains("two pCPUs")));
    }
}

#[test]
fn sixty_four_vcpus_complete_a_step() {
    if kvm("stress_64").is_none() {
        return;
    }
    let args = ["--cpus", "64", "--modes", "doorbell", "--no-controls"];
    let report = sweep("64", &args, 0);
    holds(&report, 1);
    assert_eq!(report["steps"][0]["vcpus"], 64);
}

#[test]
fn ktap_has_a_plan_and_a_line_for_each_result() {
    if kvm("stress_ktap").is_none() {
        return;
    }
    let args = ["stress", "--ktap", "--cpus", "2", "--modes", "ipi", "--rounds", "1"];
    let output = pvtlb(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).expect("utf-8");
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("KTAP version 1"));
    assert_eq!(lines.next(), Some("1..3"));
    for (i, line) in lines.enumerate() {
        assert!(line.starts_with(&format!("ok {} ", i + 1)), "{line}");
    }
}

#[test]
fn the_exit_cost_program_times_both_kinds_of_exit() {
    if kvm("exit_cost").is_none() {
        return;
    }
    let output = pvtlb(&["run", "--program", "exit-cost", "--pv-tlb", "doorbell"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).expect("utf-8");
    for row in ["bare port", "doorbell", "ratio"] {
        assert!(text.lines().any(|line| line.trim_start().starts_with(row)), "{text}");
    }
}

#[test]
fn doctor_proves_a_way_to_flush_and_shows_that_the_controls_fail() {
    if kvm("doctor").is_none() {
        return;
    }
    let output = pvtlb(&["doctor", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("valid JSON");
    let modes = report["modes"].as_array().expect("modes");
    assert!(modes.iter().any(|m| m["mode"] == "doorbell" && m["works"] == true), "{report:#}");
    let ways = report["entry_flush"].as_array().expect("ways");
    assert!(ways.iter().any(|w| w["conclusion"] == "proved"));
    assert!(ways.iter().filter(|w| w["control"] == true).all(|w| w["conclusion"] != "proved"));
}
