//! One worker of a phase: changes its pages by system calls that must flush, and reads
//! everybody's pages all the while.
//!
//! Owner of all state here: the worker; what it shares lies in [`Ground`]. States of a
//! worker: preparing its pages, waiting for the others, initiating, reading until the
//! last initiator is done. Order of every change: say that the page changes, make the
//! system call, promise the new floor, only then write the next stamp.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use serde::{Deserialize, Serialize};

use crate::job::{Phase, Workload};
use crate::memory::{Arena, ProbeSlot};
use crate::pages::{Promises, State, Violation, ViolationKind, first_stamp};
use crate::wire::{Counts, RECORDS};

/// Reads between two looks at the clock.
const CHUNK: usize = 32;
/// Every so many changes all pages of an initiator are changed by one call.
const RUNS: u64 = 16;
/// How long workers wait for each other beyond the phase's own length. Only a worker
/// that died lets it run out.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest system call that is told from longer ones.
const MAX_LATENCY_NS: u64 = 60_000_000_000;

/// The pages of a phase, as one address space sees them.
pub struct Ground {
    phase: Phase,
    promises: Promises,
    arena: Arena,
}

impl Ground {
    /// Maps the promises, and the pages: those of `data`, or private ones.
    pub fn new(phase: &Phase, promises: &File, data: Option<File>) -> io::Result<Self> {
        let pages = phase.pages();
        let arena = match data {
            Some(file) => Arena::shared(file, pages)?,
            None => Arena::anonymous(pages)?,
        };
        Ok(Self { phase: phase.clone(), promises: Promises::new(promises, pages)?, arena })
    }

    /// True if pages are holes for a while, so that only the kernel may touch them.
    fn has_holes(&self) -> bool {
        self.phase.workload == Workload::Unmap
    }
}

/// What a worker has to tell.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Its counts.
    pub counts: Counts,
    /// Length of its system calls: ns and how many took that long.
    pub latencies: Vec<(u64, u64)>,
    /// Its first violations.
    pub records: Vec<Violation>,
    /// How long it initiated or read.
    pub elapsed_ns: u64,
}

/// Does the work of worker `index`, on `vcpu` only if one is given.
pub fn run(ground: &Ground, index: usize, vcpu: Option<usize>) -> io::Result<Tally> {
    if let Some(vcpu) = vcpu {
        stay_on(vcpu)?;
    }
    let mut worker = Worker::new(ground, index)?;
    worker.prepare();
    ground.promises.arrive();
    let workers = ground.phase.workers as u64;
    worker.read_until(Instant::now(), |promises| promises.arrived() >= workers)?;
    let start = Instant::now();
    if index < ground.phase.initiators {
        // Said even after an error: the others shall not wait for nothing.
        let done = worker.initiate(start);
        ground.promises.finish();
        done?;
    }
    let initiators = ground.phase.initiators as u64;
    worker.read_until(start, |promises| promises.finished() >= initiators)?;
    Ok(worker.end(start))
}

fn stay_on(vcpu: usize) -> io::Result<()> {
    if vcpu >= CpuSet::MAX_CPU {
        let text = format!("vCPU {vcpu}, expected below {}", CpuSet::MAX_CPU);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let mut only = CpuSet::new();
    only.set(vcpu);
    Ok(sched_setaffinity(None, &only)?)
}

struct Worker<'a> {
    ground: &'a Ground,
    index: usize,
    slot: ProbeSlot,
    /// Own pages, and those it may read.
    own: Range<usize>,
    visible: Range<usize>,
    /// By own page: the newest stamp.
    stamps: Vec<u64>,
    next_own: usize,
    next_read: usize,
    /// In the mprotect workload: the last value it tried to write.
    written: u64,
    latency: Histogram<u64>,
    tally: Tally,
}

impl<'a> Worker<'a> {
    fn new(ground: &'a Ground, index: usize) -> io::Result<Self> {
        let phase = &ground.phase;
        let own = match index < phase.initiators {
            true => index * phase.pages_each..(index + 1) * phase.pages_each,
            false => 0..0,
        };
        let visible = if phase.shares_pages() { 0..phase.pages() } else { own.clone() };
        Ok(Self {
            ground,
            index,
            slot: ProbeSlot::new()?,
            stamps: own.clone().map(first_stamp).collect(),
            next_own: own.start,
            next_read: visible.start,
            own,
            visible,
            written: 0,
            latency: latencies(),
            tally: Tally::default(),
        })
    }

    /// Writes the first stamps.
    fn prepare(&mut self) {
        for page in self.own.clone() {
            self.ground.promises.of(page).promise(self.stamp(page), 0);
            self.settle(page);
        }
    }

    /// Changes pages until the time or the count is up.
    fn initiate(&mut self, start: Instant) -> io::Result<()> {
        let length = Duration::from_millis(self.ground.phase.ms);
        let count = self.ground.phase.count;
        while start.elapsed() < length && self.tally.counts.flushes < count {
            let run = self.next_run();
            match self.ground.phase.workload {
                Workload::Mprotect => self.protect(run)?,
                _ => self.renew(run)?,
            }
            self.read_some(CHUNK)?;
        }
        Ok(())
    }

    /// Takes the frames of `run` away and writes new stamps.
    fn renew(&mut self, run: Range<usize>) -> io::Result<()> {
        let (arena, promises) = (&self.ground.arena, &self.ground.promises);
        run.clone().for_each(|page| promises.of(page).change());
        match self.ground.phase.workload {
            Workload::Madvise => self.flush(|| arena.discard(run.clone()))?,
            Workload::Remap => self.flush(|| arena.replace(run.clone()))?,
            Workload::Unmap => self.flush(|| arena.unmap(run.clone()))?,
            Workload::File => self.flush(|| arena.punch(run.clone()))?,
            Workload::Mprotect => unreachable!("mprotect keeps its frames"),
        }
        for page in run.clone() {
            let promise = promises.of(page);
            promise.promise(self.stamp(page) + 1, self.tally.counts.flushes);
            promise.settle(State::Empty(self.stamp(page)));
        }
        run.clone().try_for_each(|page| self.check(page))?;
        self.read_some(CHUNK / 4)?;
        run.clone().for_each(|page| promises.of(page).change());
        if self.ground.has_holes() && !self.ground.phase.sabotage {
            arena.map(run.clone())?;
        }
        for page in run {
            self.stamps[page - self.own.start] += 1;
            self.settle(page);
            self.check(page)?;
        }
        Ok(())
    }

    /// Takes the right to write `run` away and sees whether anybody writes all the same.
    fn protect(&mut self, run: Range<usize>) -> io::Result<()> {
        let arena = &self.ground.arena;
        self.flush(|| arena.protect(run.clone(), false))?;
        for page in run.clone() {
            self.ground.promises.of(page).promise(self.stamp(page), self.tally.counts.flushes);
        }
        // Stores of other vCPUs that were on their way came before the call returned.
        let words: Vec<_> = run
            .clone()
            .flat_map(|page| self.writers().map(move |writer| (page, writer)))
            .map(|(page, writer)| (page, writer, arena.load(page, word_of(writer))))
            .collect();
        self.read_some(CHUNK / 4)?;
        self.scribble(run.start)?;
        for (page, writer, before) in words {
            let after = arena.load(page, word_of(writer));
            self.tally.counts.checks += 1;
            self.tally.counts.foreign_checks += u64::from(writer != self.index);
            if after != before {
                let kind = ViolationKind::StaleWrite;
                self.violation(kind, page, word_of(writer), before, Some(after));
            }
        }
        if self.ground.phase.sabotage { Ok(()) } else { arena.protect(run, true) }
    }

    /// Makes the system call, and takes its time; sabotage leaves it out.
    fn flush(&mut self, call: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let start = Instant::now();
        if !self.ground.phase.sabotage {
            call()?;
        }
        self.latency.saturating_record(start.elapsed().as_nanos() as u64);
        self.tally.counts.flushes += 1;
        Ok(())
    }

    /// Reads until `enough`; `since` begins the patience.
    fn read_until(&mut self, since: Instant, enough: impl Fn(&Promises) -> bool) -> io::Result<()> {
        let limit = Duration::from_millis(self.ground.phase.ms) + PATIENCE;
        while !enough(&self.ground.promises) {
            if since.elapsed() > limit {
                let text = format!("Waited {} s for other workers", limit.as_secs());
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            self.read_some(CHUNK)?;
            // With more workers than vCPUs the awaited one may have none.
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Reads, or tries to write, the next `count` pages in turn.
    fn read_some(&mut self, count: usize) -> io::Result<()> {
        for _ in 0..count.min(2 * self.visible.len()) {
            let page = self.next_read;
            self.next_read =
                if page + 1 < self.visible.end { page + 1 } else { self.visible.start };
            match self.ground.phase.workload {
                Workload::Mprotect => self.scribble(page)?,
                _ => self.check(page)?,
            }
        }
        Ok(())
    }

    /// Reads the stamp of `page` and judges it.
    fn check(&mut self, page: usize) -> io::Result<()> {
        let (arena, holes) = (&self.ground.arena, self.ground.has_holes());
        let promise = self.ground.promises.of(page);
        let (seen, floor, wrong) = promise.look(holes, || match holes {
            true => arena.probe_load(page, 0, &self.slot),
            false => Ok(Some(arena.load(page, 0))),
        })?;
        self.tally.counts.checks += 1;
        self.tally.counts.foreign_checks += u64::from(!self.own.contains(&page));
        self.tally.counts.denied += u64::from(seen.is_none());
        if let Some(kind) = wrong {
            self.violation(kind, page, 0, floor, seen);
        }
        Ok(())
    }

    /// Tries to write this worker's word of `page`.
    fn scribble(&mut self, page: usize) -> io::Result<()> {
        self.written += 1;
        let word = word_of(self.index);
        let done = self.ground.arena.probe_store(page, word, self.written, &self.slot)?;
        self.tally.counts.denied += u64::from(!done);
        Ok(())
    }

    fn violation(
        &mut self,
        kind: ViolationKind,
        page: usize,
        word: usize,
        expected: u64,
        seen: Option<u64>,
    ) {
        self.tally.counts.violations += 1;
        if self.tally.records.len() == RECORDS {
            return;
        }
        self.tally.records.push(Violation {
            kind,
            address: self.ground.arena.address(page, word) as u64,
            owner: page / self.ground.phase.pages_each,
            reader: word.checked_sub(1).unwrap_or(self.index),
            vcpu: sched_getcpu(),
            expected,
            seen,
            flush: self.ground.promises.of(page).flush(),
        });
    }

    /// The next own page, or now and then all of them.
    fn next_run(&mut self) -> Range<usize> {
        if self.tally.counts.flushes % RUNS == RUNS - 1 {
            return self.own.clone();
        }
        let page = self.next_own;
        self.next_own = if page + 1 < self.own.end { page + 1 } else { self.own.start };
        page..page + 1
    }

    /// Workers that write into this worker's pages.
    fn writers(&self) -> Range<usize> {
        match self.ground.phase.shares_pages() {
            true => 0..self.ground.phase.workers,
            false => self.index..self.index + 1,
        }
    }

    fn stamp(&self, page: usize) -> u64 {
        self.stamps[page - self.own.start]
    }

    /// Writes the page's stamp and says so.
    fn settle(&self, page: usize) {
        let stamp = self.stamp(page);
        self.ground.arena.store(page, 0, stamp);
        self.ground.promises.of(page).settle(State::Holds(stamp));
    }

    fn end(mut self, start: Instant) -> Tally {
        let recorded = self.latency.iter_recorded();
        self.tally.latencies =
            recorded.map(|step| (step.value_iterated_to(), step.count_at_value())).collect();
        self.tally.elapsed_ns = start.elapsed().as_nanos() as u64;
        self.tally
    }
}

/// An empty histogram of system calls, in ns.
pub(crate) fn latencies() -> Histogram<u64> {
    Histogram::new_with_max(MAX_LATENCY_NS, 2).expect("Constant bounds")
}

/// The word of a page that `worker` writes; word 0 is the stamp.
fn word_of(worker: usize) -> usize {
    worker + 1
}
