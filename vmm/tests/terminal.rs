//! The terminal: raw while a guest has it, as before afterwards, whatever ended the
//! run; and what is typed reaches the guest.

mod support;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};
use support::{Scratch, elf, kvm};

/// A terminal: the side a person has, and the side a program has.
fn terminal() -> (OwnedFd, File) {
    let person = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("openpt");
    grantpt(&person).expect("grantpt");
    unlockpt(&person).expect("unlockpt");
    let name = ptsname(&person, Vec::new()).expect("ptsname");
    let name = name.to_str().expect("utf-8").to_owned();
    let program = OpenOptions::new().read(true).write(true).open(name).expect("open");
    (person, program)
}

fn is_raw(terminal: &File) -> bool {
    !tcgetattr(terminal).expect("tcgetattr").local_modes.contains(LocalModes::ICANON)
}

/// Starts a guest that never ends, on `terminal`, and waits until it has it.
fn start(terminal: &File) -> Child {
    let child = Command::new(env!("CARGO_BIN_EXE_pvtlb"))
        .args(["run", "--program", "silent", "--cpus", "1"])
        .stdin(Stdio::from(terminal.try_clone().expect("clone")))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("start");
    let start = Instant::now();
    while !is_raw(terminal) {
        assert!(start.elapsed() < Duration::from_secs(30), "the terminal never became raw");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

#[test]
fn the_terminal_is_restored_after_a_signal() {
    if kvm("terminal_signal").is_none() {
        return;
    }
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let (_person, program) = terminal();
        let mut child = start(&program);
        let pid = Pid::from_child(&child);
        kill_process(pid, signal).expect("kill");
        assert_eq!(child.wait().expect("wait").code(), Some(code));
        assert!(!is_raw(&program), "the terminal stayed raw after {signal:?}");
    }
}

#[test]
fn the_escape_sequence_leaves_the_console_and_restores_the_terminal() {
    if kvm("terminal_escape").is_none() {
        return;
    }
    let (person, program) = terminal();
    let mut child = start(&program);
    File::from(person.try_clone().expect("clone")).write_all(b"abc\x01x").expect("type");
    assert_eq!(child.wait().expect("wait").code(), Some(130));
    assert!(!is_raw(&program));
}

#[test]
fn what_is_typed_reaches_the_guest() {
    if kvm("terminal_input").is_none() {
        return;
    }
    // Waits for a byte on COM1, sends it back, and reports PASS.
    let code = [
        0x66, 0xba, 0xfd, 0x03, 0xec, 0xa8, 0x01, 0x74, 0xf7, 0x66, 0xba, 0xf8, 0x03, 0xec, 0xee,
        0xb8, 0x53, 0x53, 0x41, 0x50, 0x66, 0xba, 0x00, 0x05, 0xef, 0xf4,
    ];
    let kernel = Scratch::file("echo", &elf(&code));
    let mut child = Command::new(env!("CARGO_BIN_EXE_pvtlb"))
        .args(["run", "--cpus", "1", "--timeout", "20s", "--kernel"])
        .arg(kernel.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start");
    child.stdin.take().expect("stdin").write_all(b"Z").expect("type");
    let output = child.wait_with_output().expect("wait");
    assert_eq!(output.status.code(), Some(0), "{}", support::stderr(&output));
    assert_eq!(output.stdout, b"Z");
}
