//! Process 1: mounts the kernel's file systems, has the job done by a child, and ends
//! the machine whatever became of it.
//!
//! Owner: process 1, from its only thread. States: mounting, watching the child,
//! ending. The job runs in a process of its own, so that a panic, an abort, a signal or
//! a hang there leaves somebody to report it and to pull the plug.

use std::fs::{File, OpenOptions, create_dir_all, read_to_string};
use std::io;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, reboot};
use rustix::termios::{OptionalActions, tcdrain, tcgetattr, tcsetattr};

use crate::evidence::uptime_ms;
use crate::job::{Ending, Orders};
use crate::wire::Event;

const FILE_SYSTEMS: [(&str, &str); 5] = [
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("debugfs", "/sys/kernel/debug"),
    ("tracefs", "/sys/kernel/tracing"),
];

/// The agent's word for doing a job.
pub const RUN: &str = "run";

/// How often the child is looked at.
const TICK: Duration = Duration::from_millis(10);

/// The life of process 1.
pub fn serve() -> ! {
    // Even a mistake here must not leave the machine running.
    let ending = catch_unwind(AssertUnwindSafe(do_job)).unwrap_or(Ending::PowerOff);
    let how = match ending {
        Ending::PowerOff => RebootCommand::PowerOff,
        Ending::Reboot => RebootCommand::Restart,
    };
    if let Err(error) = reboot(how) {
        eprintln!("pvtlb-agent cannot end the machine: {error}");
    }
    // Process 1 must not return; its end is a kernel panic, the last way out.
    std::process::abort()
}

fn do_job() -> Ending {
    let not_mounted = mount_all();
    let orders = Orders::parse(&read_to_string("/proc/cmdline").unwrap_or_default());
    let port = orders.out.as_deref().map(open_port);
    let (mut out, complaint) = match port {
        None => (console(), None),
        Some(Ok(port)) => (Ok(port), None),
        Some(Err(message)) => (console(), Some(message)),
    };
    let mut tell = |event: Event| {
        let sent = out
            .as_mut()
            .map_err(|error| error.to_string())
            .and_then(|out| event.send(out).map_err(|error| error.to_string()));
        if let Err(error) = sent {
            eprintln!("pvtlb-agent cannot report {event:?}: {error}");
        }
    };
    tell(Event::Start { uptime_ms: uptime_ms(), not_mounted });
    if let Some(message) = complaint {
        tell(Event::Fault { message });
    }
    let ended = match &out {
        Ok(out) => run_child(&orders, out),
        Err(error) => Err(format!("There is no console: {error}")),
    };
    if let (Err(message), Ok(out)) = (ended, &mut out) {
        // As above: the machine ends, reported or not.
        let _ = Event::Fault { message }.send(out);
    }
    if let Ok(out) = &out {
        // Ending the machine loses what is queued. A pipe has no queue to drain.
        let _ = tcdrain(out);
    }
    orders.ending
}

/// Mounts what can be mounted; returns what cannot.
fn mount_all() -> Vec<String> {
    let mut failures = Vec::new();
    for (kind, target) in FILE_SYSTEMS {
        // A folder that cannot be made fails its mount, which is reported.
        let _ = create_dir_all(target);
        if let Err(error) = mount(kind, target, kind, MountFlags::empty(), None) {
            failures.push(format!("{kind} on {target}: {error}"));
        }
    }
    failures
}

/// Opens the port for results, and stops the terminal layer from changing bytes.
fn open_port(path: &str) -> Result<File, String> {
    let open = || -> io::Result<File> {
        let port = OpenOptions::new().read(true).write(true).open(path)?;
        let mut settings = tcgetattr(&port)?;
        settings.make_raw();
        tcsetattr(&port, OptionalActions::Now, &settings)?;
        Ok(port)
    };
    open().map_err(|error| format!("Cannot open {path} for results: {error}"))
}

/// What the kernel gave process 1 as its standard output.
fn console() -> io::Result<File> {
    Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?))
}

/// Does the job in a process of its own; an error if that did not end by itself.
fn run_child(orders: &Orders, out: &File) -> Result<(), String> {
    let start = || -> io::Result<Child> {
        Command::new(std::env::current_exe()?)
            .args([RUN, &orders.job])
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .spawn()
    };
    let mut child = start().map_err(|error| format!("Cannot start the job: {error}"))?;
    let limit = Duration::from_secs(orders.limit_s);
    match watch(&mut child, limit) {
        Ok(Some(status)) if status.code().is_some_and(|code| code <= 1) => Ok(()),
        Ok(Some(status)) => Err(format!("The job ended with {status}")),
        Ok(None) => Err(format!("The job was not done after {} s", orders.limit_s)),
        Err(error) => Err(format!("Cannot wait for the job: {error}")),
    }
}

/// How `child` ended; `None`, and it is killed, if it did not within `limit`.
fn watch(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() >= limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(TICK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_does_not_end_is_killed_at_the_limit() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        assert_eq!(watch(&mut child, Duration::from_millis(1)).unwrap(), None);
        assert!(child.try_wait().unwrap().is_some());
    }

    #[test]
    fn the_way_a_child_ends_is_passed_on() {
        let mut child = Command::new("sh").args(["-c", "kill -SEGV $$"]).spawn().unwrap();
        let status = watch(&mut child, Duration::from_secs(60)).unwrap().unwrap();
        assert_eq!(status.code(), None);
    }
}
