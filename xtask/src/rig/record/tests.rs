//! Verdicts over hand-written reports.

use super::*;

fn step(name: &str) -> Step {
    Step {
        name: name.into(),
        run: vec!["x".into()],
        expect: vec![0],
        prints: Vec::new(),
        collect: Vec::new(),
        timeout_s: 7,
    }
}

fn plan(steps: Vec<Step>) -> Plan {
    Plan {
        name: "test".into(),
        description: String::new(),
        kernel: String::new(),
        guest_kernels: Vec::new(),
        binaries: Vec::new(),
        pcpus: 2,
        memory_mib: 64,
        timeout_s: 60,
        steps,
    }
}

fn exited(step: usize, code: i32) -> Event {
    Event::Exited { step, ending: Ending::Code { code }, elapsed_ms: 5 }
}

fn record(plan: &Plan, events: impl IntoIterator<Item = Event>, end: &HostEnd) -> Record {
    let mut recorder = Recorder::new(plan);
    for event in events {
        recorder.see(event);
    }
    recorder.finish(end)
}

#[test]
fn a_run_passes_if_every_step_does_and_the_host_powers_off() {
    let plan = plan(vec![step("a"), step("b")]);
    let record = record(&plan, [exited(0, 0), exited(1, 0)], &HostEnd::PoweredOff);
    assert_eq!(record.verdict, Verdict::Pass);
    assert_eq!(record.host_failure, None);
}

#[test]
fn a_step_that_never_ended_fails_the_run() {
    let plan = plan(vec![step("a"), step("b")]);
    let record = record(&plan, [exited(0, 0)], &HostEnd::PoweredOff);
    assert_eq!(record.verdict, Verdict::Fail);
    assert_eq!(record.steps[0].verdict, Verdict::Pass);
    assert_eq!(record.steps[1].verdict, Verdict::Fail);
}

#[test]
fn a_host_that_ends_in_any_other_way_fails_the_run() {
    let plan = plan(vec![step("a")]);
    for end in [
        HostEnd::StillOn,
        HostEnd::Gone("signal 6".into()),
        HostEnd::TimedOut,
        HostEnd::Garbled("Oops".into()),
    ] {
        let record = record(&plan, [exited(0, 0)], &end);
        assert_eq!(record.verdict, Verdict::Fail, "{end:?}");
        assert!(record.host_failure.is_some(), "{end:?}");
    }
}

#[test]
fn a_fault_of_the_host_fails_a_run_whose_steps_pass() {
    let plan = plan(vec![step("a")]);
    let fault = Event::Fault { message: "no modules".into() };
    let record = record(&plan, [exited(0, 0), fault], &HostEnd::PoweredOff);
    assert_eq!(record.verdict, Verdict::Fail);
    assert_eq!(record.host_failure.as_deref(), Some("no modules"));
}

#[test]
fn another_exit_code_than_expected_says_both() {
    let plan = plan(vec![Step { expect: vec![3], ..step("a") }]);
    let passed = record(&plan, [exited(0, 3)], &HostEnd::PoweredOff);
    assert_eq!(passed.verdict, Verdict::Pass);
    let failed = record(&plan, [exited(0, 0)], &HostEnd::PoweredOff);
    assert_eq!(failed.steps[0].failures, ["exit code 0, expected [3]"]);
}

#[test]
fn a_text_must_stand_in_standard_output_not_in_standard_error() {
    let plan = plan(vec![Step { prints: vec!["PASS".into()], ..step("a") }]);
    let line = |stream| Event::Output { step: 0, stream, line: "all PASS".into() };
    let right = record(&plan, [line(Stream::Stdout), exited(0, 0)], &HostEnd::PoweredOff);
    assert_eq!(right.verdict, Verdict::Pass);
    let wrong = record(&plan, [line(Stream::Stderr), exited(0, 0)], &HostEnd::PoweredOff);
    assert_eq!(wrong.steps[0].failures, ["did not print \"PASS\""]);
}

#[test]
fn a_file_that_did_not_come_back_fails_its_step() {
    let plan = plan(vec![step("a")]);
    let missing = Event::FileMissing { step: 0, path: "/out/x".into(), reason: "not there".into() };
    let record = record(&plan, [missing, exited(0, 0)], &HostEnd::PoweredOff);
    assert_eq!(record.steps[0].verdict, Verdict::Fail);
}

#[test]
fn signals_limits_and_missing_programs_fail_their_step() {
    let plan = plan(vec![step("a")]);
    for ending in [
        Ending::Signal { signal: 11 },
        Ending::TimedOut,
        Ending::NotStarted { reason: "no x".into() },
    ] {
        let event = Event::Exited { step: 0, ending: ending.clone(), elapsed_ms: 1 };
        let record = record(&plan, [event], &HostEnd::PoweredOff);
        assert_eq!(record.steps[0].verdict, Verdict::Fail, "{ending:?}");
        assert_eq!(record.steps[0].failures.len(), 1, "{ending:?}");
    }
}

#[test]
fn a_step_that_the_plan_lacks_is_a_fault() {
    let plan = plan(vec![step("a")]);
    let line = Event::Output { step: 9, stream: Stream::Stdout, line: String::new() };
    let record = record(&plan, [exited(0, 0), line], &HostEnd::PoweredOff);
    assert!(record.host_failure.unwrap().contains("step 9"));
}

#[test]
fn a_host_with_another_number_of_pcpus_fails_the_run() {
    let plan = plan(vec![step("a")]);
    let ready = |pcpus| Event::Ready { release: "6.12".into(), pcpus, uptime_ms: 1 };
    let right = record(&plan, [ready(2), exited(0, 0)], &HostEnd::PoweredOff);
    assert_eq!(right.verdict, Verdict::Pass);
    let wrong = record(&plan, [ready(1), exited(0, 0)], &HostEnd::PoweredOff);
    assert!(wrong.host_failure.unwrap().contains("1 pCPUs, expected 2"));
}
