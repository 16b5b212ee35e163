//! The agent as an ordinary process of this machine: its workloads pass, and fail as
//! soon as the flush is left out.
//!
//! No shared state; each test starts the program itself. Nothing is timed: the counts
//! end the phases.

use std::process::{Command, Output};

use pvtlb_agent::job::{Kind, Workload};
use pvtlb_agent::pages::ViolationKind;
use pvtlb_agent::wire::{Event, Outcome, Verdict};

fn run(job: &str) -> (Output, Vec<Event>) {
    let mut agent = Command::new(env!("CARGO_BIN_EXE_pvtlb-agent"));
    let output = agent.args(["run", job]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let find = |line| Event::find(line).unwrap_or_else(|| panic!("Not an event: {line}"));
    let events = text.lines().map(find).collect();
    (output, events)
}

fn phases(events: &[Event]) -> Vec<(Workload, Kind, usize, &Outcome)> {
    let mut phases = Vec::new();
    for event in events {
        if let Event::Phase { phase, outcome, .. } = event {
            phases.push((phase.workload, phase.kind, phase.workers, outcome));
        }
    }
    phases
}

/// Counts only, so that a slow machine runs the same.
const SMALL: &str = "ms=60000,count=200,pages=4,trace=off,workers=1+3";

#[test]
fn no_workload_finds_a_violation_on_this_machine() {
    let (output, events) = run(SMALL);
    let phases = phases(&events);
    assert_eq!(phases.len(), 5 * 2 * 2 * 2);
    for (workload, kind, workers, outcome) in phases {
        let what = format!("{workload:?} {kind:?} {workers}: {outcome:?}");
        assert_eq!(outcome.verdict, Verdict::Pass, "{what}");
        assert_eq!(outcome.counts.flushes, 200 * workers as u64, "{what}");
        assert!(outcome.counts.checks > 200, "{what}");
        let shared = workers > 1 && (kind == Kind::Threads || workload == Workload::File);
        assert_eq!(outcome.counts.foreign_checks > 0, shared, "{what}");
        let refuses = matches!(workload, Workload::Unmap | Workload::Mprotect);
        assert_eq!(outcome.counts.denied > 0, refuses, "{what}");
    }
    assert!(matches!(events.first(), Some(Event::Hello { .. })), "{events:?}");
    assert!(matches!(events.last(), Some(Event::Done { verdict: Verdict::Pass, .. })));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_flush_that_is_left_out_is_found_in_every_workload() {
    let (output, events) = run(&format!("{SMALL},count=20,sabotage=on"));
    let phases = phases(&events);
    assert_eq!(phases.len(), 5 * 2 * 2 * 2);
    for (workload, kind, workers, outcome) in phases {
        let what = format!("{workload:?} {kind:?} {workers}: {outcome:?}");
        assert_eq!(outcome.verdict, Verdict::Fail, "{what}");
        assert!(outcome.faults.is_empty(), "{what}");
        assert!(outcome.counts.violations >= 20, "{what}");
        let first = &outcome.records[0];
        let kind = match workload {
            Workload::Mprotect => ViolationKind::StaleWrite,
            _ => ViolationKind::StaleRead,
        };
        assert_eq!(first.kind, kind, "{what}");
        assert!(first.flush >= 1 && first.address != 0, "{what}");
        assert_ne!(first.seen, Some(first.expected), "{what}");
    }
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn workers_that_only_read_see_the_one_that_changes() {
    let (_, events) = run(&format!("{SMALL},workers=3,initiators=1,kind=threads"));
    for (workload, _, _, outcome) in phases(&events) {
        assert_eq!(outcome.verdict, Verdict::Pass, "{workload:?} {outcome:?}");
        assert_eq!(outcome.counts.flushes, 200, "{workload:?}");
        assert!(outcome.counts.foreign_checks > 0, "{workload:?}");
    }
}

#[test]
fn a_bad_job_is_told_as_a_fault() {
    let (output, events) = run("workload=fly");
    assert_eq!(output.status.code(), Some(2));
    assert!(
        matches!(&events[..], [Event::Fault { message }] if message.contains("fly")),
        "{events:?}"
    );
}

#[test]
fn a_worker_that_dies_fails_its_phase_and_is_named() {
    let job = pvtlb_agent::job::Job::parse("workload=file,kind=processes,workers=1,pin=off");
    let phase = &job.unwrap().phases(1)[0];
    let outcome = pvtlb_agent::sweep::run_phase(phase, &[0], std::path::Path::new("false"));
    assert_eq!(outcome.verdict, Verdict::Fail);
    assert!(outcome.faults[0].contains("Worker 0"), "{:?}", outcome.faults);
}
