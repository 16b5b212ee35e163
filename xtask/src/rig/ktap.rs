//! A record as KTAP, the kernel's test format.
//!
//! No state.

use super::record::{Record, StepRecord, Verdict};

/// So many last lines of a failed step's outputs are shown.
const SHOWN_LINES: usize = 15;

/// The head of a document with one line per step and one for the host itself.
pub(super) fn head(steps: usize) -> String {
    format!("KTAP version 1\n1..{}\n", steps + 1)
}

/// The result line of step number `index`, with diagnostics if it failed.
pub(super) fn step(index: usize, step: &StepRecord) -> String {
    let mut text = line(index + 1, step.verdict, &step.name);
    if step.verdict == Verdict::Fail {
        for failure in &step.failures {
            text += &diagnostic(failure);
        }
        for (name, lines) in [("stdout", &step.stdout), ("stderr", &step.stderr)] {
            for line in &lines[lines.len().saturating_sub(SHOWN_LINES)..] {
                text += &diagnostic(&format!("{name}: {line}"));
            }
        }
    }
    text
}

/// The result line of the host.
pub(super) fn host(record: &Record) -> String {
    let verdict = if record.host_failure.is_none() { Verdict::Pass } else { Verdict::Fail };
    let mut text = line(record.steps.len() + 1, verdict, "host_powers_off");
    if let Some(failure) = &record.host_failure {
        text += &diagnostic(failure);
    }
    text
}

/// The whole document.
pub(super) fn document(record: &Record) -> String {
    let mut text = head(record.steps.len());
    for (index, one) in record.steps.iter().enumerate() {
        text += &step(index, one);
    }
    text + &host(record)
}

fn line(number: usize, verdict: Verdict, name: &str) -> String {
    let word = match verdict {
        Verdict::Pass => "ok",
        Verdict::Fail => "not ok",
    };
    format!("{word} {number} {name}\n")
}

fn diagnostic(text: &str) -> String {
    text.lines().map(|line| format!("# {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn record(host_failure: Option<&str>) -> Record {
        let passed = StepRecord {
            name: "good".into(),
            run: Vec::new(),
            verdict: Verdict::Pass,
            failures: Vec::new(),
            ending: None,
            elapsed_ms: None,
            stdout: vec!["hidden".into()],
            stderr: Vec::new(),
            files: BTreeMap::new(),
        };
        let failed = StepRecord {
            name: "bad".into(),
            run: Vec::new(),
            verdict: Verdict::Fail,
            failures: vec!["one\ntwo".into()],
            ending: None,
            elapsed_ms: None,
            stdout: (0..100).map(|number| number.to_string()).collect(),
            stderr: vec!["why".into()],
            files: BTreeMap::new(),
        };
        Record {
            plan: "test".into(),
            verdict: Verdict::Fail,
            release: None,
            pcpus: None,
            boot_ms: None,
            total_ms: 1,
            host_failure: host_failure.map(str::to_owned),
            steps: vec![passed, failed],
        }
    }

    #[test]
    fn every_step_and_the_host_have_a_line_of_the_plan() {
        let text = document(&record(None));
        assert!(text.starts_with("KTAP version 1\n1..3\nok 1 good\nnot ok 2 bad\n"), "{text}");
        assert!(text.ends_with("ok 3 host_powers_off\n"), "{text}");
    }

    #[test]
    fn a_failed_step_shows_reasons_and_last_lines_as_comments() {
        let text = document(&record(Some("gone")));
        assert!(text.contains("# one\n# two\n"), "{text}");
        assert!(text.contains("# stdout: 99\n# stderr: why\n"), "{text}");
        assert!(!text.contains("# stdout: 84\n") && !text.contains("hidden"), "{text}");
        assert!(text.contains("not ok 3 host_powers_off\n# gone\n"), "{text}");
    }
}
