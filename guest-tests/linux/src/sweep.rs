//! Runs the phases of a job one by one, each with its evidence, and says what each
//! came to.
//!
//! Owner: the sweep owns files, threads and processes of the phase that runs, and waits
//! for all of them before the next. A worker that is a process gets its order as one
//! JSON argument and answers with one JSON line.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::ScopedJoinHandle;

use serde::{Deserialize, Serialize};

use crate::evidence::{Machine, Snapshot, Trace, online_vcpus};
use crate::job::{Job, Kind, Phase, Workload};
use crate::memory::{PAGE_BYTES, memory_file};
use crate::pages::Promises;
use crate::wire::{Counts, Event, Latency, Outcome, RECORDS, Verdict};
use crate::worker::{self, Ground, Tally};

/// The agent's word for a worker process.
pub const WORKER: &str = "worker";

/// What a worker process needs to know.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    phase: Phase,
    index: usize,
    vcpu: Option<usize>,
    /// The parent's open files, by way of /proc.
    promises: PathBuf,
    data: Option<PathBuf>,
}

/// The files of a phase.
struct Files {
    promises: File,
    data: Option<File>,
}

impl Files {
    fn new(phase: &Phase) -> io::Result<Self> {
        let data = (phase.workload == Workload::File)
            .then(|| memory_file(phase.pages() * PAGE_BYTES))
            .transpose()?;
        Ok(Self { promises: memory_file(Promises::file_bytes(phase.pages()))?, data })
    }
}

/// Runs all phases of `job` and tells `out` about each. `program` is the agent itself,
/// to be started as a worker. Fails if `out` does.
pub fn run(job: &Job, program: &Path, out: &mut impl Write) -> io::Result<Verdict> {
    let trace = match job.trace {
        true => Trace::start().map_err(|error| error.to_string()),
        false => Err("trace=off".to_owned()),
    };
    let machine = Machine::read(trace.as_ref().err().cloned());
    let trace = trace.ok();
    let version = env!("CARGO_PKG_VERSION").to_owned();
    Event::Hello { version, machine, job: job.clone() }.send(out)?;
    let vcpus = online_vcpus();
    let (mut phases, mut failed, mut violations) = (0, 0, 0);
    for phase in job.phases(vcpus.len()) {
        let before = Snapshot::take(trace.as_ref());
        let outcome = run_phase(&phase, &vcpus, program);
        let evidence = Snapshot::take(trace.as_ref()).since(&before);
        phases += 1;
        failed += u64::from(outcome.verdict == Verdict::Fail);
        violations += outcome.counts.violations;
        Event::Phase { phase, outcome, evidence }.send(out)?;
    }
    let verdict = if phases > 0 && failed == 0 { Verdict::Pass } else { Verdict::Fail };
    Event::Done { verdict, phases, violations }.send(out)?;
    Ok(verdict)
}

/// Runs one phase. `vcpus` are those that are online.
pub fn run_phase(phase: &Phase, vcpus: &[usize], program: &Path) -> Outcome {
    let seat = |index: usize| phase.pinned.then(|| vcpus[index % vcpus.len()]);
    let tallies = match (Files::new(phase), phase.kind) {
        (Err(error), _) => vec![Err(format!("Cannot prepare the phase: {error}"))],
        (Ok(files), Kind::Threads) => threads(phase, files, seat),
        (Ok(files), Kind::Processes) => processes(phase, &files, seat, program),
    };
    sum_up(tallies)
}

/// A worker that is a thread.
type Running<'scope> = ScopedJoinHandle<'scope, io::Result<Tally>>;

fn threads(
    phase: &Phase,
    files: Files,
    seat: impl Fn(usize) -> Option<usize>,
) -> Vec<Result<Tally, String>> {
    let ground = match Ground::new(phase, &files.promises, files.data) {
        Ok(ground) => ground,
        Err(error) => return vec![Err(format!("Cannot map the pages: {error}"))],
    };
    std::thread::scope(|scope| {
        let ground = &ground;
        let start = |index| {
            let vcpu = seat(index);
            std::thread::Builder::new()
                .spawn_scoped(scope, move || worker::run(ground, index, vcpu))
        };
        let running: Vec<_> = (0..phase.workers).map(start).collect();
        let end = |(index, thread): (usize, io::Result<Running<'_>>)| {
            let thread = thread.map_err(|error| format!("Cannot start worker {index}: {error}"))?;
            let ended = thread.join().map_err(|_| format!("Worker {index} panicked"))?;
            ended.map_err(|error| format!("Worker {index}: {error}"))
        };
        running.into_iter().enumerate().map(end).collect()
    })
}

fn processes(
    phase: &Phase,
    files: &Files,
    seat: impl Fn(usize) -> Option<usize>,
    program: &Path,
) -> Vec<Result<Tally, String>> {
    let path = |file: &File| {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()))
    };
    let start = |index| -> io::Result<Child> {
        let order = Order {
            phase: phase.clone(),
            index,
            vcpu: seat(index),
            promises: path(&files.promises),
            data: files.data.as_ref().map(path),
        };
        Command::new(program)
            .arg(WORKER)
            .arg(serde_json::to_string(&order)?)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
    };
    let running: Vec<_> = (0..phase.workers).map(start).collect();
    let end = |(index, child): (usize, io::Result<Child>)| {
        let child = child.map_err(|error| format!("Cannot start worker {index}: {error}"))?;
        answer(child).map_err(|error| format!("Worker {index}: {error}"))
    };
    running.into_iter().enumerate().map(end).collect()
}

/// What a worker process answered.
fn answer(child: Child) -> io::Result<Tally> {
    let output = child.wait_with_output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!("its process ended with {}", output.status)));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The life of a worker process: does what `order` says and answers on `out`.
pub fn serve_order(order: &str, out: &mut impl Write) -> io::Result<()> {
    let order: Order = serde_json::from_str(order)?;
    let open = |path: &PathBuf| OpenOptions::new().read(true).write(true).open(path);
    let data = order.data.as_ref().map(open).transpose()?;
    let ground = Ground::new(&order.phase, &open(&order.promises)?, data)?;
    let tally = worker::run(&ground, order.index, order.vcpu)?;
    serde_json::to_writer(&mut *out, &tally)?;
    out.flush()
}

fn sum_up(tallies: Vec<Result<Tally, String>>) -> Outcome {
    let mut counts = Counts::default();
    let (mut records, mut faults, mut latencies) = (Vec::new(), Vec::new(), Vec::new());
    let mut wall_ns = 0;
    for tally in tallies {
        match tally {
            Ok(tally) => {
                counts.add(&tally.counts);
                records.extend(tally.records);
                latencies.extend(tally.latencies);
                wall_ns = wall_ns.max(tally.elapsed_ns);
            }
            Err(fault) => faults.push(fault),
        }
    }
    records.truncate(RECORDS);
    let ran = counts.flushes > 0 && counts.checks > 0;
    let pass = ran && counts.violations == 0 && faults.is_empty();
    let verdict = if pass { Verdict::Pass } else { Verdict::Fail };
    Outcome { verdict, counts, latency: latency(&latencies), wall_ns, records, faults }
}

fn latency(recorded: &[(u64, u64)]) -> Latency {
    let mut all = worker::latencies();
    for (ns, count) in recorded {
        all.saturating_record_n(*ns, *count);
    }
    if all.is_empty() {
        return Latency::default();
    }
    Latency {
        mean_ns: all.mean() as u64,
        p50_ns: all.value_at_quantile(0.5),
        p99_ns: all.value_at_quantile(0.99),
        max_ns: all.max(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(flushes: u64, checks: u64, violations: u64) -> Result<Tally, String> {
        let counts = Counts { flushes, checks, violations, ..Counts::default() };
        Ok(Tally { counts, latencies: vec![(1000, flushes)], ..Tally::default() })
    }

    #[test]
    fn a_phase_passes_only_if_something_was_flushed_checked_and_never_wrong() {
        let verdict = |tallies| sum_up(tallies).verdict;
        assert_eq!(verdict(vec![tally(1, 1, 0), tally(0, 5, 0)]), Verdict::Pass);
        assert_eq!(verdict(vec![]), Verdict::Fail);
        assert_eq!(verdict(vec![tally(0, 1, 0)]), Verdict::Fail);
        assert_eq!(verdict(vec![tally(1, 0, 0)]), Verdict::Fail);
        assert_eq!(verdict(vec![tally(1, 1, 0), tally(1, 1, 1)]), Verdict::Fail);
        assert_eq!(verdict(vec![tally(1, 1, 0), Err("died".into())]), Verdict::Fail);
    }

    #[test]
    fn latencies_of_all_workers_come_together() {
        let latency = latency(&[(1000, 98), (5000, 1), (9000, 1)]);
        assert!((1000..1010).contains(&latency.p50_ns), "{latency:?}");
        assert!(latency.p99_ns >= 5000 && latency.max_ns >= 9000, "{latency:?}");
    }
}
