//! Runs one command of the plan within its time limit and reports what it prints.
//!
//! Owner: process 1 owns the child; two reader threads own its outputs and end when
//! the last writer has closed them. States of a command: running, ended, killed at
//! its limit. A command is its own process group, so that a kill reaches all of it.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rig_wire::{Command, Ending, Event, MAX_FILE_BYTES, Stream};

use crate::report::Report;

/// How often a running command is looked at.
const POLL: Duration = Duration::from_millis(5);
/// Longer output lines are cut into pieces of so many bytes.
const MAX_LINE_BYTES: u64 = 64 << 10;

/// Runs `command` to its end and reports it as step number `step`.
pub(crate) fn run(report: &Report, step: usize, command: &Command) {
    report.send(&Event::Started { step });
    let started = Instant::now();
    let ending = match spawn(command) {
        Ok(child) => follow(report, step, child, Duration::from_secs(command.timeout_s)),
        Err(reason) => Ending::NotStarted { reason },
    };
    let elapsed_ms = started.elapsed().as_millis().try_into().unwrap_or(u64::MAX);
    for path in &command.collect {
        report.send(&bring_back(step, path));
    }
    report.send(&Event::Exited { step, ending, elapsed_ms });
}

fn spawn(command: &Command) -> Result<Child, String> {
    let (program, arguments) = command.argv.split_first().ok_or("The command is empty")?;
    std::process::Command::new(program)
        .args(arguments)
        .env_clear()
        .env("PATH", "/bin")
        .env("HOME", "/")
        .env("RUST_BACKTRACE", "1")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("Cannot start {program}: {error}"))
}

fn follow(report: &Report, step: usize, mut child: Child, limit: Duration) -> Ending {
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    std::thread::scope(|scope| {
        scope.spawn(|| forward(report, step, Stream::Stdout, stdout));
        scope.spawn(|| forward(report, step, Stream::Stderr, stderr));
        let waited = wait(&mut child, limit);
        // Whatever the command left running still holds its outputs open and would
        // keep the readers from ending.
        let killed = kill_group(&child);
        if waited.as_ref().is_ok_and(Option::is_none) {
            // The kill is certain, so this ends; the status is that of the kill.
            let _ = child.wait();
        }
        match (waited, killed) {
            (Ok(Some(status)), _) => ending_of(status),
            (Ok(None), Ok(())) => Ending::TimedOut,
            (Ok(None), Err(reason)) | (Err(reason), _) => Ending::NotStarted { reason },
        }
    })
}

/// The status, or nothing if the limit passed first.
fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>, String> {
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(Some(status)),
            Ok(None) if Instant::now() >= deadline => return Ok(None),
            Ok(None) => std::thread::sleep(POLL),
            Err(error) => return Err(format!("Cannot wait for the command: {error}")),
        }
    }
}

fn kill_group(child: &Child) -> Result<(), String> {
    let group = i32::try_from(child.id()).map_err(|_| format!("Bad process id {}", child.id()))?;
    match killpg(Pid::from_raw(group), Signal::SIGKILL) {
        // No member is left.
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(error) => Err(format!("Cannot kill the process group {group}: {error}")),
    }
}

fn ending_of(status: ExitStatus) -> Ending {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ending::Code { code },
        (None, Some(signal)) => Ending::Signal { signal },
        (None, None) => Ending::NotStarted { reason: format!("Unknown status {status}") },
    }
}

fn forward(report: &Report, step: usize, stream: Stream, output: Option<impl Read>) {
    let Some(output) = output else { return };
    let mut reader = BufReader::new(output);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        match reader.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut bytes) {
            Ok(0) => return,
            Ok(_) => {
                let line = String::from_utf8_lossy(&bytes);
                let line = line.trim_end_matches(['\n', '\r']).to_owned();
                report.send(&Event::Output { step, stream, line });
            }
            Err(error) => {
                let line = format!("rig-init: the output broke off: {error}");
                report.send(&Event::Output { step, stream, line });
                return;
            }
        }
    }
}

fn bring_back(step: usize, path: &str) -> Event {
    let missing = |reason: String| Event::FileMissing { step, path: path.to_owned(), reason };
    let mut bytes = Vec::new();
    let read = File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
        .map(|length| length as u64);
    match read {
        Ok(length) if length > MAX_FILE_BYTES => {
            missing(format!("It is larger than {MAX_FILE_BYTES} bytes"))
        }
        Ok(_) => Event::File {
            step,
            path: path.to_owned(),
            text: String::from_utf8_lossy(&bytes).into_owned(),
        },
        Err(error) => missing(error.to_string()),
    }
}
