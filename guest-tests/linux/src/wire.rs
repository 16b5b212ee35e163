//! The lines that the agent prints: a fixed prefix, then one JSON object.
//!
//! No state. A console carries the kernel's messages too, so a reader looks for the
//! prefix anywhere in a line; see docs/agent.md.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use crate::evidence::{Delta, Machine};
use crate::job::{Job, Phase};
use crate::pages::Violation;

/// What every line begins with.
pub const PREFIX: &str = "pvtlb-agent: ";

/// Violations of a phase that are reported in full; the count has them all.
pub const RECORDS: usize = 16;

/// What a phase or a job came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// Pages changed, reads were checked, none was wrong.
    Pass,
    /// A violation, or a phase that could not be run to its end.
    Fail,
}

/// Counts of a phase, or of one worker in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// System calls that had to flush.
    pub flushes: u64,
    /// Reads, or looks at words that must not change, that were judged.
    pub checks: u64,
    /// Of these, made by a worker that does not own the page.
    pub foreign_checks: u64,
    /// Accesses refused while a page was a hole or read-only.
    pub denied: u64,
    /// Judged wrong.
    pub violations: u64,
}

impl Counts {
    /// Adds another worker's.
    pub fn add(&mut self, other: &Self) {
        self.flushes += other.flushes;
        self.checks += other.checks;
        self.foreign_checks += other.foreign_checks;
        self.denied += other.denied;
        self.violations += other.violations;
    }
}

/// How long the flushing system calls took, in ns. Zero if there were none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// Mean.
    pub mean_ns: u64,
    /// Half took no longer.
    pub p50_ns: u64,
    /// 99 of 100 took no longer.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// What a phase came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Its verdict.
    pub verdict: Verdict,
    /// All workers' counts.
    pub counts: Counts,
    /// Of the system calls.
    pub latency: Latency,
    /// From the first start to the last end.
    pub wall_ns: u64,
    /// The first violations.
    pub records: Vec<Violation>,
    /// Workers that could not go on, each with its reason.
    pub faults: Vec<String>,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// The first process runs. The time is the kernel's, since its start.
    Start {
        /// Milliseconds since the kernel started.
        uptime_ms: u64,
        /// File systems that could not be mounted, each with its reason.
        not_mounted: Vec<String>,
    },
    /// The job begins.
    Hello {
        /// Version of the agent.
        version: String,
        /// What it runs on.
        machine: Machine,
        /// What it will run.
        job: Job,
    },
    /// A phase is over.
    Phase {
        /// What was run.
        phase: Phase,
        /// What it came to.
        outcome: Outcome,
        /// What the kernel counted meanwhile.
        evidence: Delta,
    },
    /// Something is broken, but not a promise.
    Fault {
        /// What.
        message: String,
    },
    /// The job is over.
    Done {
        /// PASS if there were phases and all passed.
        verdict: Verdict,
        /// Phases that were run.
        phases: u64,
        /// Violations in all of them.
        violations: u64,
    },
}

impl Event {
    /// The event as one line.
    pub fn line(&self) -> serde_json::Result<String> {
        Ok(format!("{PREFIX}{}\n", serde_json::to_string(self)?))
    }

    /// Writes the line by one call, so that it stays in one piece.
    pub fn send(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(self.line()?.as_bytes())?;
        out.flush()
    }

    /// The event in a line of a console; `None` if there is none, or half of one.
    pub fn find(line: &str) -> Option<Self> {
        let (_, json) = line.split_once(PREFIX)?;
        serde_json::from_str(json.trim_end()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_found_behind_what_the_kernel_had_begun_to_print() {
        let event = Event::Done { verdict: Verdict::Pass, phases: 3, violations: 0 };
        let line = event.line().unwrap();
        assert!(line.starts_with(PREFIX) && line.ends_with("}\n"), "{line}");
        assert_eq!(line.matches('\n').count(), 1);
        assert_eq!(Event::find(&format!("[   1.2] usb {}\r", line.trim())), Some(event));
        assert_eq!(Event::find("[   1.2] usb"), None);
        assert_eq!(Event::find(&line[..line.len() / 2]), None);
    }
}
