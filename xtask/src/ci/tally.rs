//! Counts tests from what the test programs print.
//!
//! Plain counters, owned by the step that runs the tests. Two kinds of lines
//! matter: libtest's `test result:` and a line `SKIP <name>: <reason>` of a test
//! that needs KVM and has none. The second comes from a test that libtest calls
//! passed, so it is taken off there.

use std::fmt;

/// Tests of one or more runs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Called passed by libtest, those that said SKIP included.
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) ignored: u64,
    /// Tests that said SKIP.
    pub(super) no_kvm: u64,
}

impl Tally {
    /// Takes one line of output.
    pub(super) fn take(&mut self, line: &str) {
        let line = line.trim();
        if line.starts_with("SKIP ") {
            self.no_kvm += 1;
        }
        let Some(counts) = line.strip_prefix("test result:") else {
            return;
        };
        for part in counts.split(['.', ';']) {
            if let Some((Ok(count), word)) =
                part.trim().split_once(' ').map(|(n, w)| (n.parse(), w))
            {
                self.count(count, word);
            }
        }
    }

    fn count(&mut self, tests: u64, word: &str) {
        match word {
            "passed" => self.passed += tests,
            "failed" => self.failed += tests,
            "ignored" => self.ignored += tests,
            _ => {}
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.no_kvm += other.no_kvm;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let passed = self.passed.saturating_sub(self.no_kvm);
        let skipped = self.ignored + self.no_kvm;
        write!(f, "{passed} passed, {} failed, {skipped} skipped", self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(output: &str) -> Tally {
        let mut tally = Tally::default();
        output.lines().for_each(|line| tally.take(line));
        tally
    }

    #[test]
    fn results_of_several_programs_are_summed() {
        let output = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; \
                      finished in 0.30s\nnoise\n\
                      test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 4 filtered out";
        assert_eq!(tally(output), Tally { passed: 15, failed: 2, ignored: 1, no_kvm: 0 });
    }

    #[test]
    fn a_test_that_said_skip_is_not_counted_as_passed() {
        let output = "SKIP boots: /dev/kvm is not there\ntest result: ok. 2 passed; 0 failed;";
        assert_eq!(tally(output).to_string(), "1 passed, 0 failed, 1 skipped");
    }

    #[test]
    fn other_lines_that_speak_of_tests_are_not_counted() {
        assert_eq!(tally("test a ... ok\n5 passed\nno SKIP here\nSKIPPED"), Tally::default());
    }
}
