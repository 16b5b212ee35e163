//! A sweep as tables for people and as KTAP for test tools.

use std::fmt::Write as _;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use pvtlb_api::Verdict;
use pvtlb_api::stress::{Control, Latency, Step, StressReport, Violation};

/// Violations shown in full; all are counted and all are in the JSON report.
const SHOWN: usize = 6;

/// A count with thousands separated.
#[must_use]
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A latency with three digits and its unit.
#[must_use]
pub fn duration(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    let decimals = match value {
        0.0..10.0 => 2,
        10.0..100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {unit}")
}

/// A table without lines. Columns are aligned left or right by the letters of
/// `align` (l, r); its last letter stands for all further columns.
#[must_use]
pub fn table(align: &str, header: &[String], rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(header);
    for row in rows {
        table.add_row(row);
    }
    let last = align.chars().next_back();
    let letters = align.chars().chain(std::iter::repeat_with(|| last.unwrap_or('l')));
    for (column, letter) in table.column_iter_mut().zip(letters) {
        let side = if letter == 'r' { CellAlignment::Right } else { CellAlignment::Left };
        column.set_cell_alignment(side);
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}

/// The whole report for a person.
#[must_use]
pub fn text(report: &StressReport) -> String {
    let mut out = String::new();
    let s = &report.settings;
    let _ = writeln!(
        out,
        "Workload {}, {} rounds of {} s per step, {} pCPUs, {} (kernel {})\n",
        s.workload, s.rounds, s.seconds, report.host.pcpus, report.host.kvm, report.host.kernel
    );
    if !report.steps.is_empty() {
        let _ = writeln!(
            out,
            "Shootdowns per second (median of rounds) and ratio to ipi\n{}\n",
            rates(&report.steps)
        );
        let _ = writeln!(
            out,
            "Initiator latency: median / 99th percentile / longest\n{}\n",
            latencies(&report.steps)
        );
        let _ = writeln!(
            out,
            "Per shootdown: IPIs, exits to the monitor; then what each verified\n{}\n",
            guests(&report.steps)
        );
        if let Some(text) = monitor(&report.steps) {
            let _ = writeln!(
                out,
                "Doorbell in the monitor: targets per flush by what made them certain\n{text}\n"
            );
        }
    }
    for control in &report.controls {
        let _ = writeln!(out, "{}", control_line(control));
    }
    let all: Vec<_> =
        report.steps.iter().flat_map(|s| s.violations.iter().map(move |v| (s, v))).collect();
    for (step, violation) in all.iter().take(SHOWN) {
        let _ = writeln!(out, "{} at {} vCPUs: {}", step.mode, step.vcpus, story(violation));
    }
    if all.len() > SHOWN {
        let _ = writeln!(out, "… and {} more in the JSON report", all.len() - SHOWN);
    }
    let _ = writeln!(out, "{}: {}", report.verdict.word(), report.reason);
    out
}

/// The modes of the steps, in the order of their first row.
fn modes(steps: &[Step]) -> Vec<&str> {
    let mut modes = Vec::new();
    for step in steps {
        if !modes.contains(&step.mode.as_str()) {
            modes.push(&step.mode);
        }
    }
    modes
}

/// vCPU counts down, modes across; `cell` gives a mode's columns.
fn grid(steps: &[Step], columns: &[&str], cell: impl Fn(&Step) -> Vec<String>) -> String {
    let modes = modes(steps);
    let mut header = vec!["vCPUs".to_owned()];
    for mode in &modes {
        for column in columns {
            header.push(if column.is_empty() { (*mode).to_owned() } else { (*column).to_owned() });
        }
    }
    let mut rows: Vec<(u32, Option<u32>)> = steps.iter().map(key).collect();
    rows.dedup();
    let row = |wanted: &(u32, Option<u32>)| {
        let mut row = vec![label(*wanted)];
        for mode in &modes {
            match steps.iter().find(|s| key(s) == *wanted && s.mode == *mode) {
                Some(step) => row.extend(cell(step)),
                None => row.extend(columns.iter().map(|_| "-".to_owned())),
            }
        }
        row
    };
    table("r", &header, &rows.iter().map(row).collect::<Vec<_>>())
}

/// What tells a step's row from others.
fn key(step: &Step) -> (u32, Option<u32>) {
    (step.vcpus, step.targets)
}

fn label((vcpus, targets): (u32, Option<u32>)) -> String {
    targets.map_or_else(|| vcpus.to_string(), |targets| format!("{vcpus}, {targets} targets"))
}

fn ratio(step: &Step) -> String {
    step.ratio_to_ipi.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}x"))
}

fn rates(steps: &[Step]) -> String {
    grid(steps, &["", "ratio"], |step| {
        vec![thousands(step.shootdowns_per_second.round() as u64), ratio(step)]
    })
}

fn three(latency: &Latency) -> String {
    format!(
        "{} / {} / {}",
        duration(latency.p50_ns),
        duration(latency.p99_ns),
        duration(latency.max_ns)
    )
}

fn latencies(steps: &[Step]) -> String {
    grid(steps, &[""], |step| vec![three(&step.latency)])
}

fn per(total: u64, shootdowns: u64) -> String {
    if shootdowns == 0 {
        "-".to_owned()
    } else {
        format!("{:.2}", total as f64 / shootdowns as f64)
    }
}

fn guests(steps: &[Step]) -> String {
    let header = [
        "mode",
        "vCPUs",
        "shootdowns",
        "IPIs",
        "port exits",
        "kick exits",
        "p99 unstolen",
        "checks",
        "violations",
    ];
    let rows = steps.iter().map(|s| {
        vec![
            s.mode.clone(),
            label(key(s)),
            thousands(s.guest.shootdowns),
            per(s.guest.ipis_sent, s.guest.shootdowns),
            per(s.monitor.port_exits, s.guest.shootdowns),
            per(s.monitor.kick_exits, s.guest.shootdowns),
            duration(s.latency_unstolen.p99_ns),
            thousands(s.guest.checks),
            thousands(s.guest.violations),
        ]
    });
    table("lr", &header.map(str::to_owned), &rows.collect::<Vec<_>>())
}

fn monitor(steps: &[Step]) -> Option<String> {
    let header = [
        "mode",
        "vCPUs",
        "flushes",
        "kicked",
        "coalesced",
        "in host",
        "idle",
        "preempted",
        "membarrier",
        "ack",
        "wait median",
        "wait p99",
    ];
    let used = steps.iter().filter(|s| s.monitor.doorbells > 0);
    let rows: Vec<Vec<String>> = used
        .map(|s| {
            let m = &s.monitor;
            let each = |n: u64| per(n, m.doorbells);
            vec![
                s.mode.clone(),
                label(key(s)),
                thousands(m.doorbells),
                each(m.kicked),
                each(m.coalesced),
                each(m.deferred_in_host),
                each(m.deferred_idle),
                each(m.deferred_preempted),
                each(m.by_membarrier),
                each(m.by_ack),
                duration(m.wait.p50_ns),
                duration(m.wait.p99_ns),
            ]
        })
        .collect();
    (!rows.is_empty()).then(|| table("lr", &header.map(str::to_owned), &rows))
}

fn control_line(control: &Control) -> String {
    let what = match (&control.reason, &control.example) {
        (Some(reason), _) => reason.clone(),
        (None, Some(example)) => format!(
            "caught {} times in {} shootdowns; the first: {}",
            thousands(control.violations),
            thousands(control.shootdowns),
            story(example)
        ),
        (None, None) => format!("caught {} times", thousands(control.violations)),
    };
    format!("{} control {}: {what}", control.verdict.word(), control.mode)
}

/// A violation as a sentence.
fn story(violation: &Violation) -> String {
    format!(
        "{} by vCPU {} at {:#x}: saw stamp {}, but flush {} of vCPU {} had returned and allows {} at least",
        violation.kind,
        violation.vcpu,
        violation.address,
        violation.seen,
        violation.flush,
        violation.owner,
        violation.expected
    )
}

/// The report as KTAP version 1 (Linux `Documentation/dev-tools/ktap.rst`).
#[must_use]
pub fn ktap(report: &StressReport) -> String {
    let mut out = String::from("KTAP version 1\n");
    let _ = writeln!(out, "1..{}", report.controls.len() + report.steps.len());
    let mut number = 0;
    let mut line = |ok: bool, name: String, note: String| {
        number += 1;
        let word = if ok { "ok" } else { "not ok" };
        let _ = writeln!(out, "{word} {number} {name}{note}");
    };
    for control in &report.controls {
        let name = format!("control_{}", control.mode);
        let reason = control.reason.as_deref().unwrap_or_default();
        match control.verdict {
            Verdict::Skip => line(true, name, format!(" # SKIP {reason}")),
            // A control passes as a test by failing as a strategy.
            Verdict::Xfail | Verdict::Pass => {
                line(true, name, format!(" # {} violations caught", control.violations));
            }
            Verdict::Fail => line(false, name, format!(" # {reason}")),
        }
    }
    for step in &report.steps {
        let targets = step.targets.map(|n| format!("_{n}_targets")).unwrap_or_default();
        let name = format!("{}_{}_vcpus{targets}", step.mode, step.vcpus);
        let note = format!(
            " # {} violations in {} shootdowns",
            step.guest.violations, step.guest.shootdowns
        );
        line(step.guest.violations == 0, name, note);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_with_separators_and_units() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(duration(999), "999 ns");
        assert_eq!(duration(1_500), "1.50 us");
        assert_eq!(duration(28_075_000), "28.1 ms");
        assert_eq!(duration(123_000), "123 us");
        assert_eq!(duration(2_000_000_000), "2.00 s");
    }

    #[test]
    fn tables_align_numbers_right_and_end_without_spaces() {
        let header = ["a".to_owned(), "bb".to_owned()];
        let rows = [vec!["x".to_owned(), "1".to_owned()], vec!["y".to_owned(), "100".to_owned()]];
        let text = table("lr", &header, &rows);
        assert!(text.lines().all(|line| line == line.trim_end()), "{text:?}");
        assert!(text.lines().nth(1).is_some_and(|line| line.ends_with("  1")), "{text}");
    }
}
