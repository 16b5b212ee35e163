//! The first process of the rig's host: brings the host up, runs the plan's
//! commands, reports each line and exit, powers off.
//!
//! Owner: process 1. States: bringing up, running commands one by one, powering
//! off; it never returns, because the kernel panics when process 1 ends. Threads
//! share only the report, which is behind a mutex.
//!
//! Called with a word it is an ordinary command of a plan instead (see
//! [`probe`]), so that the rig needs no other program to be tested.

mod bring_up;
mod keys;
mod probe;
mod report;
mod steps;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use rig_wire::{Event, SETUP_PATH, Setup};

use report::Report;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("kvm-probe") => probe::run(),
        Some("kvm-churn") => probe::churn(),
        _ if std::process::id() == 1 => serve(),
        other => {
            eprintln!("Unknown word {other:?}: expected kvm-probe or kvm-churn");
            ExitCode::from(2)
        }
    }
}

/// Runs the plan. Without a report port there is nobody to tell but the console.
fn serve() -> ! {
    if let Err(error) = bring_up::lay_out() {
        eprintln!("rig-init: {error}");
        bring_up::power_off();
    }
    match Report::open() {
        Ok(report) => {
            let report = Arc::new(report);
            if let Err(message) = run_plan(&report) {
                report.send(&Event::Fault { message });
            }
            report.drain();
        }
        Err(error) => eprintln!("rig-init: {error}"),
    }
    bring_up::power_off()
}

fn run_plan(report: &Arc<Report>) -> Result<(), String> {
    let text = std::fs::read_to_string(SETUP_PATH)
        .map_err(|error| format!("Cannot read {SETUP_PATH}: {error}"))?;
    let setup: Setup = serde_json::from_str(&text)
        .map_err(|error| format!("Cannot parse {SETUP_PATH}: {error}"))?;
    watch_the_clock(report, setup.limit_s);
    for module in &setup.modules {
        bring_up::load_module(module).map_err(|error| error.to_string())?;
    }
    // Held until power-off: letting go would patch the kernel's code once more.
    let _held = if setup.hold_static_keys {
        Some(keys::HeldKeys::take().map_err(|error| format!("Cannot hold the keys: {error}"))?)
    } else {
        None
    };
    bring_up::bring_up_pcpus().map_err(|error| error.to_string())?;
    report.send(&bring_up::ready());
    for (step, command) in setup.steps.iter().enumerate() {
        steps::run(report, step, command);
    }
    report.send(&Event::Done);
    Ok(())
}

/// Ends the machine when its time is up, whatever the plan is doing then.
fn watch_the_clock(report: &Arc<Report>, limit_s: u64) {
    let report = Arc::clone(report);
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(limit_s));
        report.send(&Event::Fault { message: format!("The time limit of {limit_s} s is over") });
        report.drain();
        bring_up::power_off()
    });
}
