//! Runs every step that a change must pass, then says what each came to.
//!
//! Owner: one [`Report`] on the stack of [`run`]. A failed step does not stop the
//! rest, so that one run shows everything that is wrong; the run then fails as a
//! whole, and its last line counts the tests of all steps.

mod tally;

use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::{show, target_dir};
use tally::Tally;

/// The bare-metal guest: its own workspace, so cargo has to be sent there.
const GUEST: &str = "guest-tests/stress";

/// What a step came to.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Pass,
    Fail(String),
    Skip(String),
}

/// The steps so far, and the tests in them.
#[derive(Default)]
struct Report {
    steps: Vec<(&'static str, Outcome, Duration)>,
    tests: Tally,
}

impl Report {
    fn step(&mut self, name: &'static str, work: impl FnOnce(&mut Tally) -> Outcome) {
        show(format_args!("\n==> {name}"));
        let start = Instant::now();
        let outcome = work(&mut self.tests);
        let took = start.elapsed();
        show(format_args!("==> {}", line(name, &outcome, took)));
        self.steps.push((name, outcome, took));
    }

    fn passed(&self) -> bool {
        let failed = self.steps.iter().any(|(_, outcome, _)| matches!(outcome, Outcome::Fail(_)));
        // A run in which nothing was tested shows nothing.
        !failed && self.tests.failed == 0 && self.tests.passed > 0
    }
}

fn line(name: &str, outcome: &Outcome, took: Duration) -> String {
    let (word, why) = match outcome {
        Outcome::Pass => ("PASS", ""),
        Outcome::Fail(why) => ("FAIL", why.as_str()),
        Outcome::Skip(why) => ("SKIP", why.as_str()),
    };
    format!("{word} {name:<14} {:>6.1} s  {why}", took.as_secs_f64()).trim_end().to_string()
}

/// Runs all steps on the workspace at `root`; true if none failed.
pub(crate) fn run(root: &Path) -> bool {
    let ci = std::env::var("CI").is_ok_and(|value| value == "true" || value == "1");
    let guest = root.join(GUEST);
    let mut report = Report::default();
    report.step("fmt", |_| plain(cargo(root, &["fmt", "--all", "--check"])));
    report.step("fmt guest", |_| in_guest(&guest, &["fmt", "--check"]));
    report.step("clippy", |_| {
        let args = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
        plain(cargo(root, &args))
    });
    report.step("clippy guest", |_| {
        in_guest(&guest, &["clippy", "--release", "--", "-D", "warnings"])
    });
    report.step("tidy", |_| match crate::tidy::run(root) {
        true => Outcome::Pass,
        false => Outcome::Fail("see the findings above".into()),
    });
    report.step("docs", |_| {
        let mut doc = cargo(root, &["doc", "--workspace", "--no-deps"]);
        doc.env("RUSTDOCFLAGS", "-D warnings");
        plain(doc)
    });
    report.step("licences", |_| licences(root));
    report.step("tests", |tests| {
        let args = ["test", "--workspace", "--no-fail-fast", "--", "--show-output"];
        let mut test = cargo(root, &args);
        if ci {
            test.env("PVTLB_REQUIRE_KVM", "1");
        }
        counted(test, io::stdout(), tests, ci)
    });
    report.step("loom", |tests| counted(loom(root), io::stdout(), tests, ci));
    summary(&report)
}

fn summary(report: &Report) -> bool {
    show("\n==> summary");
    for (name, outcome, took) in &report.steps {
        show(line(name, outcome, *took));
    }
    let passed = report.passed();
    let total: Duration = report.steps.iter().map(|(.., took)| *took).sum();
    let word = if passed { "PASS" } else { "FAIL" };
    show(format_args!("{word} in {:.0} s", total.as_secs_f64()));
    show(&report.tests);
    passed
}

fn cargo(folder: &Path, args: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(folder).args(args);
    command
}

fn plain(mut command: Command) -> Outcome {
    match command.status() {
        Ok(status) if status.success() => Outcome::Pass,
        Ok(status) => Outcome::Fail(format!("{status}")),
        Err(error) => Outcome::Fail(format!("{command:?} could not be started: {error}")),
    }
}

/// Run from the guest's own folder, where cargo finds the flags it is built with.
fn in_guest(guest: &Path, args: &[&str]) -> Outcome {
    if !guest.join("Cargo.toml").exists() {
        return Outcome::Skip(format!("{GUEST} is not there yet"));
    }
    plain(cargo(guest, args))
}

fn licences(root: &Path) -> Outcome {
    let mut probe = cargo(root, &["deny", "--version"]);
    let installed = probe.stdout(Stdio::null()).stderr(Stdio::null()).status();
    match installed {
        Ok(status) if status.success() => {
            plain(cargo(root, &["deny", "check", "licenses", "bans", "sources"]))
        }
        _ => Outcome::Skip("needs cargo-deny: cargo install cargo-deny --locked".into()),
    }
}

/// Loom replaces the atomics of the whole crate, hence the flag and a target
/// folder of its own; without optimisation it explores too slowly.
fn loom(root: &Path) -> Command {
    let mut flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    flags.push_str(" --cfg loom");
    let args = ["test", "-p", "pv-tlb", "--release", "--test", "loom_*"];
    let mut command = cargo(root, &args);
    command.env("RUSTFLAGS", flags.trim_start()).env("CARGO_TARGET_DIR", target_dir().join("loom"));
    command
}

/// Runs a test command, lets its output through and counts what it says.
fn counted(mut command: Command, out: impl Write, tests: &mut Tally, ci: bool) -> Outcome {
    let mut ours = Tally::default();
    let outcome = match tee(&mut command, out, &mut ours) {
        Ok(true) if ci && ours.no_kvm > 0 => {
            Outcome::Fail(format!("{} tests said SKIP, which CI does not accept", ours.no_kvm))
        }
        Ok(true) => Outcome::Pass,
        Ok(false) => Outcome::Fail(format!("{} tests failed", ours.failed)),
        Err(error) => Outcome::Fail(format!("{command:?} could not be run: {error}")),
    };
    tests.add(&ours);
    outcome
}

fn tee(command: &mut Command, mut out: impl Write, tests: &mut Tally) -> io::Result<bool> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).split(b'\n') {
            let line = line?;
            tests.take(&String::from_utf8_lossy(&line));
            // A reader that went away does not stop the tests.
            let _ = out.write_all(&line).and_then(|()| out.write_all(b"\n"));
        }
    }
    Ok(child.wait()?.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(outcomes: Vec<Outcome>, passed: u64, failed: u64) -> Report {
        let steps = outcomes.into_iter().map(|o| ("step", o, Duration::ZERO)).collect();
        Report { steps, tests: Tally { passed, failed, ..Tally::default() } }
    }

    #[test]
    fn one_failed_step_fails_the_run_and_a_skipped_one_does_not() {
        assert!(report(vec![Outcome::Pass, Outcome::Skip("x".into())], 1, 0).passed());
        assert!(!report(vec![Outcome::Pass, Outcome::Fail("x".into())], 1, 0).passed());
    }

    #[test]
    fn a_run_without_a_passed_test_or_with_a_failed_one_is_not_a_success() {
        assert!(!report(vec![Outcome::Pass], 0, 0).passed());
        assert!(!report(vec![Outcome::Pass], 5, 1).passed());
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_skip_is_a_failure_in_ci_only_and_never_counts_as_passed() {
        let said = "echo 'SKIP a: no KVM'; echo 'test result: ok. 2 passed; 0 failed; 1 ignored;'";
        for ci in [false, true] {
            let mut tests = Tally::default();
            let outcome = counted(shell(said), io::sink(), &mut tests, ci);
            assert_eq!(matches!(outcome, Outcome::Fail(_)), ci);
            assert_eq!(tests.to_string(), "1 passed, 0 failed, 2 skipped");
        }
    }

    #[test]
    fn a_command_that_fails_or_does_not_exist_is_a_failed_step() {
        let mut tests = Tally::default();
        assert!(matches!(
            counted(shell("exit 1"), io::sink(), &mut tests, false),
            Outcome::Fail(_)
        ));
        assert!(matches!(plain(shell("exit 3")), Outcome::Fail(_)));
        assert!(matches!(plain(Command::new("no-such-program-here")), Outcome::Fail(_)));
        assert_eq!(plain(shell("true")), Outcome::Pass);
    }
}
