//! What a run of a plan showed: events go in, verdicts come out.
//!
//! Owner: the thread that follows the host. States of a step: waiting, running,
//! ended. A step that has not ended when the host has is a failure, because a rig
//! that loses steps would otherwise look like one that passes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rig_wire::{Ending, Event, Stream};
use serde::{Serialize, Serializer};

use super::plan::{Plan, Step};
use super::qemu::HostEnd;

/// PASS or FAIL; a rig that cannot run at all has no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum Verdict {
    /// Everything was as expected.
    Pass,
    /// Something was not.
    Fail,
}

/// One run of a plan.
#[derive(Debug, Serialize)]
pub(super) struct Record {
    /// The plan's name.
    pub(super) plan: String,
    /// PASS if every step passed and the host powered off by itself.
    pub(super) verdict: Verdict,
    /// The host's kernel, as it says itself.
    pub(super) release: Option<String>,
    /// The host's online pCPUs.
    pub(super) pcpus: Option<usize>,
    /// From QEMU's start until the host was ready for the first command.
    pub(super) boot_ms: Option<u64>,
    /// From QEMU's start to its end.
    pub(super) total_ms: u64,
    /// What went wrong with the host, if anything.
    pub(super) host_failure: Option<String>,
    /// The steps in the plan's order.
    pub(super) steps: Vec<StepRecord>,
}

/// One step of a run.
#[derive(Debug, Serialize)]
pub(super) struct StepRecord {
    /// The step's name.
    pub(super) name: String,
    /// Program and arguments.
    pub(super) run: Vec<String>,
    /// Its verdict.
    pub(super) verdict: Verdict,
    /// Every reason for a FAIL.
    pub(super) failures: Vec<String>,
    /// How the command ended; nothing if it did not.
    pub(super) ending: Option<Ending>,
    /// The command's time on the host's clock.
    pub(super) elapsed_ms: Option<u64>,
    /// Lines of its standard output.
    #[serde(serialize_with = "joined")]
    pub(super) stdout: Vec<String>,
    /// Lines of its standard error.
    #[serde(serialize_with = "joined")]
    pub(super) stderr: Vec<String>,
    /// Files brought back, by their path on the host.
    pub(super) files: BTreeMap<String, String>,
}

fn joined<S: Serializer>(lines: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&lines.join("\n"))
}

/// A run that is going on.
#[derive(Debug)]
pub(super) struct Recorder<'a> {
    plan: &'a Plan,
    started: Instant,
    record: Record,
    faults: Vec<String>,
}

impl<'a> Recorder<'a> {
    /// Starts the clock.
    pub(super) fn new(plan: &'a Plan) -> Self {
        let record = Record {
            plan: plan.name.clone(),
            verdict: Verdict::Fail,
            release: None,
            pcpus: None,
            boot_ms: None,
            total_ms: 0,
            host_failure: None,
            steps: plan.steps.iter().map(StepRecord::waiting).collect(),
        };
        Self { plan, started: Instant::now(), record, faults: Vec::new() }
    }

    /// Time since QEMU's start.
    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Takes one event. Returns the index of a step that has ended with it.
    pub(super) fn see(&mut self, event: Event) -> Option<usize> {
        match event {
            Event::Ready { release, pcpus, .. } => {
                self.record.boot_ms = Some(milliseconds(self.elapsed()));
                self.record.release = Some(release);
                self.record.pcpus = Some(pcpus);
                if pcpus != self.plan.pcpus as usize {
                    let wanted = self.plan.pcpus;
                    self.faults.push(format!("the host has {pcpus} pCPUs, expected {wanted}"));
                }
            }
            Event::Output { step, stream, line } => {
                if let Some(step) = self.step(step) {
                    match stream {
                        Stream::Stdout => step.stdout.push(line),
                        Stream::Stderr => step.stderr.push(line),
                    }
                }
            }
            Event::File { step, path, text } => {
                if let Some(step) = self.step(step) {
                    step.files.insert(path, text);
                }
            }
            Event::FileMissing { step, path, reason } => {
                if let Some(step) = self.step(step) {
                    step.failures.push(format!("no file {path}: {reason}"));
                }
            }
            Event::Exited { step: index, ending, elapsed_ms } => {
                let wanted = self.plan.steps.get(index)?;
                self.step(index)?.end(wanted, ending, elapsed_ms);
                return Some(index);
            }
            Event::Fault { message } => self.faults.push(message),
            Event::Started { .. } | Event::Done => {}
        }
        None
    }

    /// An event about a step that the plan does not have is the rig's own fault.
    fn step(&mut self, index: usize) -> Option<&mut StepRecord> {
        if index >= self.record.steps.len() {
            self.faults.push(format!("the host reported step {index}, which the plan lacks"));
        }
        self.record.steps.get_mut(index)
    }

    /// What is known so far.
    pub(super) fn so_far(&self) -> &Record {
        &self.record
    }

    /// Closes the record when the host has ended.
    pub(super) fn finish(mut self, end: &HostEnd) -> Record {
        match end {
            HostEnd::PoweredOff => {}
            HostEnd::StillOn => self.faults.push("the host did not power off".into()),
            HostEnd::Gone(why) => {
                self.faults.push(format!("the host was gone before it was done: {why}"));
            }
            HostEnd::TimedOut => {
                let seconds = self.elapsed().as_secs();
                self.faults.push(format!("the host was not done after {seconds} s"));
            }
            HostEnd::Garbled(line) => {
                self.faults.push(format!("the host sent a line that is no report: {line:?}"));
            }
        }
        let mut record = self.record;
        record.total_ms = milliseconds(self.started.elapsed());
        for step in record.steps.iter_mut().filter(|step| step.ending.is_none()) {
            step.failures.push("it had not ended when the host had".into());
        }
        record.host_failure = (!self.faults.is_empty()).then(|| self.faults.join("; "));
        let passed = record.steps.iter().all(|step| step.verdict == Verdict::Pass);
        if passed && record.host_failure.is_none() {
            record.verdict = Verdict::Pass;
        }
        record
    }
}

impl StepRecord {
    fn waiting(step: &Step) -> Self {
        Self {
            name: step.name.clone(),
            run: step.run.clone(),
            verdict: Verdict::Fail,
            failures: Vec::new(),
            ending: None,
            elapsed_ms: None,
            stdout: Vec::new(),
            stderr: Vec::new(),
            files: BTreeMap::new(),
        }
    }

    fn end(&mut self, wanted: &Step, ending: Ending, elapsed_ms: u64) {
        match &ending {
            Ending::Code { code } if wanted.expect.contains(code) => {}
            Ending::Code { code } => {
                self.failures.push(format!("exit code {code}, expected {:?}", wanted.expect));
            }
            Ending::Signal { signal } => self.failures.push(format!("killed by signal {signal}")),
            Ending::TimedOut => {
                self.failures.push(format!("not done after its {} s", wanted.timeout_s));
            }
            Ending::NotStarted { reason } => self.failures.push(reason.clone()),
        }
        for text in &wanted.prints {
            if !self.stdout.iter().any(|line| line.contains(text)) {
                self.failures.push(format!("did not print {text:?}"));
            }
        }
        if self.failures.is_empty() {
            self.verdict = Verdict::Pass;
        }
        self.ending = Some(ending);
        self.elapsed_ms = Some(elapsed_ms);
    }
}

fn milliseconds(time: Duration) -> u64 {
    time.as_millis().try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "record/tests.rs"]
mod tests;
