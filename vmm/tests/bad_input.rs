//! Every mistake has its message, which names the value and what was expected, and
//! its exit code. No test here may hang, and none may panic.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::Duration;

use support::{Scratch, elf, kvm, pvtlb, stderr};

fn refused(args: &[&str], code: i32, parts: &[&str]) {
    let output = pvtlb(args);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
    for part in parts {
        assert!(text.contains(part), "{args:?}: {part:?} is not in: {text}");
    }
    assert!(!text.contains("panicked"), "{text}");
}

#[test]
fn a_missing_device_is_told_from_a_forbidden_and_a_wrong_one() {
    refused(&["--kvm", "/nonexistent/kvm", "doctor"], 3, &["/nonexistent/kvm", "does not exist"]);
    refused(&["--kvm", "/dev/null", "doctor"], 3, &["/dev/null"]);
    let file = Scratch::file("forbidden", b"");
    let path = file.path().to_str().expect("utf-8");
    let mut mode = fs::metadata(path).expect("metadata").permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0);
    fs::set_permissions(path, mode).expect("chmod");
    // Root may open anything, so the tool is run as nobody where that is possible.
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .args([env!("CARGO_BIN_EXE_pvtlb"), "--kvm", path, "doctor"])
        .output();
    match output {
        Ok(output) if !stderr(&output).contains("setpriv:") => {
            assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
            assert!(stderr(&output).contains("No permission"), "{}", stderr(&output));
        }
        _ => refused(&["--kvm", path, "doctor"], 3, &[path]),
    }
}

#[test]
fn wrong_flags_are_usage_errors_that_name_the_value() {
    refused(&["stress", "--modes", "ipx"], 2, &["ipx", "expected one of ipi"]);
    refused(&["stress", "--modes", "rar"], 2, &["rar", "not there yet"]);
    refused(&["stress", "--cpus", "0"], 2, &["0 is too few"]);
    refused(&["stress", "--cpus", "x"], 2, &["\"x\""]);
    refused(&["stress", "--seconds", "1e9"], 2, &["1e9", "0.001 to 3600"]);
    refused(&["stress", "--completion", "maybe"], 2, &["maybe", "auto, ack"]);
    refused(&["stress", "--workload", "w"], 2, &["\"w\"", "remap, unmap, mprotect"]);
    refused(&["run", "--memory", "64X"], 2, &["64X", "64M"]);
    refused(&["run", "--pv-tlb", "magic"], 2, &["magic", "doorbell"]);
    refused(&["run", "--timeout", "5"], 2, &["\"5\"", "5s"]);
    refused(&["frobnicate"], 2, &["frobnicate"]);
}

#[test]
fn what_only_the_host_can_judge_is_refused_as_well() {
    if kvm("bad_input_host").is_none() {
        return;
    }
    refused(&["run", "--cpus", "4096"], 2, &["4096 vCPUs", "1 to"]);
    refused(&["run", "--memory", "4K"], 2, &["4096 bytes", "out of range"]);
    refused(&["run", "--memory", "8000000G"], 2, &["out of range"]);
    refused(&["run", "--memory", "16777217"], 2, &["16777217", "multiple of 4096"]);
    refused(&["run", "--pin", "0:4095"], 2, &["pCPU 4095", "expected one of"]);
    refused(&["run", "--pin", "7:0"], 2, &["vCPU 7", "less than 2"]);
    refused(&["run", "--pin", "zero"], 2, &["\"zero\""]);
    refused(&["run", "--pcpus", "4095"], 2, &["4095 pCPUs"]);
    refused(&["run", "--serial", "fax"], 2, &["\"fax\"", "file=PATH"]);
    refused(&["run", "--serial", "file=/nonexistent/x"], 2, &["/nonexistent/x", "because"]);
    refused(&["run", "--pv-tlb", "rar"], 3, &["rar", "not there yet"]);
    refused(&["run", "--cpus", "256"], 2, &["256 vCPUs", "1 to 255", "x2apic"]);
    let small = ["run", "--cpus", "255", "--memory", "16M", "--timeout", "60s"];
    refused(&small, 2, &["too small", "--memory"]);
}

#[test]
fn a_kernel_that_cannot_be_started_is_refused_by_its_fault() {
    if kvm("bad_input_kernel").is_none() {
        return;
    }
    let run = |name: &str, bytes: &[u8], parts: &[&str]| {
        let file = Scratch::file(name, bytes);
        let path = file.path().to_str().expect("utf-8").to_owned();
        refused(&["run", "--timeout", "5s", "--kernel", &path], 2, parts);
    };
    refused(&["run", "--kernel", "/nonexistent/vmlinux"], 2, &["/nonexistent/vmlinux", "because"]);
    refused(&["run", "--kernel", "/"], 2, &["Cannot read the kernel /"]);
    run("empty", b"", &["not a 64-bit"]);
    run("text", b"#!/bin/sh\n", &["begins with [23 21 2f 62]"]);
    let good = elf(&[0xf4; 64]);
    run("truncated", &good[..good.len() - 1], &["truncated"]);
    let mut entry = good.clone();
    entry[24..32].copy_from_slice(&0x30_0000_u64.to_le_bytes());
    run("entry", &entry, &["Entry 0x300000"]);
    let mut low = good.clone();
    low[88..96].copy_from_slice(&0x1000_u64.to_le_bytes());
    run("low", &low, &["begins below"]);
    let mut two = good.clone();
    two[56] = 9;
    run("headers", &two, &["truncated", "program header 2"]);
}

#[test]
fn a_guest_that_fails_is_reported_with_its_reason() {
    if kvm("bad_input_guest").is_none() {
        return;
    }
    let program = |name: &str, code: i32, parts: &[&str]| {
        refused(&["run", "--serial", "off", "--timeout", "5s", "--program", name], code, parts);
    };
    program("triple-fault", 4, &["triple fault on v"]);
    program("silent", 4, &["did not report within 5s"]);
    program("page-fault", 4, &["vector 14", "cr2"]);
    // No instruction 0f 04 exists; without an IDT the fault escalates.
    let file = Scratch::file("undefined", &elf(&[0x0f, 0x04]));
    let path = file.path().to_str().expect("utf-8");
    refused(&["run", "--cpus", "1", "--kernel", path, "--timeout", "5s"], 4, &["v0"]);
}

#[test]
fn a_verdict_that_is_none_is_refused() {
    if kvm("bad_input_verdict").is_none() {
        return;
    }
    // mov eax, 7; mov dx, 0x500; out dx, eax; hlt.
    let code = [0xb8, 7, 0, 0, 0, 0x66, 0xba, 0x00, 0x05, 0xef, 0xf4];
    let file = Scratch::file("verdict", &elf(&code));
    let path = file.path().to_str().expect("utf-8");
    refused(&["run", "--cpus", "1", "--kernel", path], 4, &["ended with 0x7"]);
}

#[test]
fn garbage_at_the_doorbell_gets_a_status_and_the_guest_goes_on() {
    if kvm("garbage").is_none() {
        return;
    }
    let args = ["run", "--program", "garbage", "--pv-tlb", "doorbell", "--timeout", "20s"];
    let output = pvtlb(&args);
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn a_vcpu_that_misses_the_deadline_is_named() {
    if kvm("deadline").is_none() {
        return;
    }
    // On one pCPU no other thread can ack while the initiator runs, and a switch
    // takes longer than this deadline.
    let args = [
        "stress",
        "--cpus",
        "4",
        "--pcpus",
        "1",
        "--modes",
        "doorbell@ack",
        "--deadline",
        "1us",
        "--seconds",
        "1",
        "--rounds",
        "1",
        "--no-controls",
    ];
    refused(&args, 6, &["did not answer flush", "vCPU", "within 1µs"]);
}

#[test]
fn an_output_file_that_cannot_be_made_is_refused_before_the_sweep() {
    if kvm("output").is_none() {
        return;
    }
    refused(&["stress", "--json", "/nonexistent/r.json"], 7, &["/nonexistent/r.json"]);
}

#[test]
fn a_closed_output_ends_the_run_quietly() {
    if kvm("closed_output").is_none() {
        return;
    }
    let mut child = Command::new(env!("CARGO_BIN_EXE_pvtlb"))
        .args(["stress", "--cpus", "1", "--modes", "ipi", "--rounds", "1", "--seconds", "0.05"])
        .arg("--no-controls")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("wait");
    assert_eq!(output.status.code(), Some(141), "{}", stderr(&output));
    assert!(output.stderr.is_empty(), "{}", stderr(&output));
}

#[test]
fn sigint_in_a_sweep_keeps_what_was_measured() {
    if kvm("sigint").is_none() {
        return;
    }
    let json = Scratch::file("partial.json", b"");
    let path = json.path().to_str().expect("utf-8");
    let mut child = Command::new(env!("CARGO_BIN_EXE_pvtlb"))
        .args(["stress", "--cpus", "1,2", "--modes", "ipi", "--rounds", "500"])
        .args(["--seconds", "0.05", "--no-controls", "--json", path])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start");
    std::thread::sleep(Duration::from_secs(3));
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(killed.expect("kill").success());
    let mut lines = String::new();
    BufReader::new(child.stdout.take().expect("stdout")).read_to_string(&mut lines).expect("read");
    let status = child.wait().expect("wait");
    assert_eq!(status.code(), Some(130), "{lines}");
    assert!(lines.contains("Shootdowns per second"), "{lines}");
    let report: serde_json::Value =
        serde_json::from_slice(&fs::read(path).expect("report")).expect("valid JSON");
    assert_eq!(report["interrupted"], true);
    assert!(report["steps"][0]["guest"]["shootdowns"].as_u64().is_some_and(|n| n > 0));
}

#[test]
fn the_guest_console_reaches_standard_output_and_a_file() {
    if kvm("console").is_none() {
        return;
    }
    // mov al, 'A'; mov dx, 0x3f8; out dx, al; then PASS on the debug-exit port.
    let mut code = vec![0xb0, b'A', 0x66, 0xba, 0xf8, 0x03, 0xee];
    code.extend_from_slice(&[0xb8, 0x53, 0x53, 0x41, 0x50, 0x66, 0xba, 0x00, 0x05, 0xef, 0xf4]);
    let kernel = Scratch::file("console", &elf(&code));
    let kernel = kernel.path().to_str().expect("utf-8");
    let output = pvtlb(&["run", "--cpus", "1", "--kernel", kernel]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(output.stdout.lines().next().and_then(Result::ok).as_deref(), Some("A"));
    let log = Scratch::file("console.log", b"");
    let target = format!("file={}", log.path().display());
    let output = pvtlb(&["run", "--cpus", "1", "--kernel", kernel, "--serial", &target]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(fs::read(log.path()).expect("log"), b"A");
}
