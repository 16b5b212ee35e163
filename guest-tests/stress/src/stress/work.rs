//! What an initiator does to its pages, and the two ways to do it wrong.
//!
//! Owner of all state: the initiator. Order in every workload: store the entry,
//! flush, then promise the new floor, then poison the old frame and take it for
//! reuse. The negative controls keep that order and leave the flush out (`none`) or
//! do not wait for it (`late`): what may only follow the flush then precedes it.

use core::sync::atomic::Ordering::{Relaxed, Release};

use pv_tlb::abi::stress::{MAX_VCPUS, Strategy, ViolationKind, Workload};
use pv_tlb::addr::{Gva, PageCount};
use pv_tlb::cpuset::CpuSet;
use pv_tlb::shootdown::Change;

use super::layout::{POISON, Page, World, read_frame, write_frame};
use super::verify::{Reader, check, scribble, violation, word_of};
use crate::machine::{Machine, rules};
use crate::paging::{READ_ONLY, READ_WRITE};
use crate::params::{add, params, report, report_of, strategy, workload};
use crate::programs::{now, record};
use crate::vcpu;

/// Every so many shootdowns all pages are unmapped at once instead of one.
const RUNS: u64 = 16;
/// Every so many shootdowns the initiator tries a forbidden write itself.
const OWN_WRITES: u64 = 8;
/// Reads between taking a right away and looking for writes.
const READS_WHILE_READ_ONLY: u32 = 16;
/// How long `late` waits for a target to look, in milliseconds.
const WINDOW_MS: u64 = 20;

/// The state of one initiator.
pub(crate) struct Initiator {
    pages: &'static [Page],
    spares: &'static [core::sync::atomic::AtomicU64],
    workload: Workload,
    strategy: Strategy,
    pages_in_mm: u64,
    next_page: usize,
    next_spare: usize,
}

impl Initiator {
    /// The executing vCPU as an initiator.
    pub(crate) fn new(world: &'static World) -> Self {
        let pages = world.pages_of(vcpu::me());
        Self {
            pages,
            spares: world.spares_of(vcpu::me()),
            workload: workload(),
            strategy: strategy(),
            pages_in_mm: world.count_in(pages[0].mm) as u64,
            next_page: 0,
            next_spare: 0,
        }
    }

    /// Shootdowns done so far.
    pub(crate) fn shootdowns(&self) -> u64 {
        report().shootdowns.load(Relaxed)
    }

    /// One shootdown by the workload. `reader` is this vCPU's, for the mm it has
    /// loaded, which need not be the pages' own.
    pub(crate) fn work(&mut self, reader: &mut Reader) {
        match self.workload {
            Workload::Remap => self.remap(reader),
            Workload::Unmap => self.unmap(reader),
            Workload::Mprotect => self.protect(reader),
        }
    }

    /// Replaces the frame of a page.
    fn remap(&mut self, reader: &mut Reader) {
        let page = &self.next_pages(1)[0];
        let (old, stamp) = (page.frame.load(Relaxed), page.stamp.load(Relaxed) + 1);
        self.map_spare(page, stamp);
        self.shoot(core::slice::from_ref(page), reader, |flush| {
            page.promise(stamp, flush);
            write_frame(old, 0, POISON);
        });
        self.look_at(page, reader);
    }

    /// Takes pages away, frees their frames, and maps others.
    fn unmap(&mut self, reader: &mut Reader) {
        let run = if self.shootdowns() % RUNS == RUNS - 1 { self.pages.len() } else { 1 };
        let pages = self.next_pages(run);
        for page in pages {
            page.entry.store(0, Release);
        }
        self.shoot(pages, reader, |flush| {
            for page in pages {
                // No stamp is allowed now; the next one to be mapped is the first.
                page.promise(page.stamp.load(Relaxed) + 1, flush);
                write_frame(page.frame.load(Relaxed), 0, POISON);
            }
        });
        for page in pages {
            self.map_spare(page, page.stamp.load(Relaxed) + 1);
            self.look_at(page, reader);
        }
    }

    /// Takes the right to write away and sees whether anybody writes all the same.
    fn protect(&mut self, reader: &mut Reader) {
        let page = &self.next_pages(1)[0];
        let frame = page.frame.load(Relaxed);
        page.entry.store(frame | READ_ONLY, Release);
        let mut before = [0; MAX_VCPUS as usize];
        let vcpus = params().vcpus;
        self.shoot(core::slice::from_ref(page), reader, |flush| {
            page.flush.store(flush, Relaxed);
            for vcpu in 0..vcpus {
                before[vcpu as usize] = read_frame(frame, word_of(vcpu));
            }
        });
        reader.read_some(READS_WHILE_READ_ONLY);
        if self.shootdowns().is_multiple_of(OWN_WRITES) && reader.mm() == page.mm {
            scribble(page, now());
        }
        for vcpu in 0..vcpus {
            let (word, before) = (word_of(vcpu), before[vcpu as usize]);
            let after = read_frame(frame, word);
            if after != before {
                violation(ViolationKind::StaleWrite, page, word, before, after);
            }
        }
        // Giving a right back needs no flush.
        page.entry.store(frame | READ_WRITE, Release);
    }

    /// Flushes `pages`, which lie side by side, and then does what only a flush
    /// allows: `freed` gets the number of this flush.
    fn shoot(&mut self, pages: &[Page], reader: &mut Reader, freed: impl FnOnce(u64)) {
        let change = Change {
            mm: pages[0].mm,
            start: Gva(pages[0].address),
            pages: PageCount(pages.len() as u64),
            freed_tables: false,
        };
        let number = self.shootdowns() + 1;
        let rules = rules();
        let stolen_before = vcpu::stolen_ns();
        let start = now();
        let mut ticks = 0;
        match self.strategy {
            Strategy::None => freed(number),
            Strategy::Late => {
                let begun = rules.begin(&Machine, &change);
                freed(number);
                self.let_them_look(begun.targets(), reader);
                rules.finish(&Machine, begun);
                ticks = now().saturating_sub(start);
            }
            _ => {
                rules.flush(&Machine, &change);
                ticks = now().saturating_sub(start);
                freed(number);
            }
        }
        let stolen_ns = vcpu::stolen_ns().saturating_sub(stolen_before);
        let stolen_ticks = stolen_ns.saturating_mul(params().tsc_khz) / 1_000_000;
        let report = report();
        record(&report.latency, ticks);
        record(&report.latency_b, ticks.saturating_sub(stolen_ticks));
        add(&report.sum_ticks, ticks);
        report.max_ticks.store(report.max_ticks.load(Relaxed).max(ticks), Relaxed);
        report.shootdowns.store(number, Relaxed);
    }

    /// Keeps the window of `late` open until a target has read every page, or some
    /// time has passed.
    fn let_them_look(&self, targets: &CpuSet, reader: &mut Reader) {
        let Some(target) = targets.iter().next() else { return };
        let looks = || {
            let report = report_of(target.0);
            report.checks.load(Relaxed) + report.denied.load(Relaxed)
        };
        let enough = looks() + 2 * self.pages_in_mm;
        let end = now() + WINDOW_MS * params().tsc_khz;
        while looks() < enough && now() < end {
            reader.read_some(1);
        }
    }

    /// The initiator's own view of what it changed, if it has the mm loaded.
    fn look_at(&self, page: &Page, reader: &Reader) {
        if reader.mm() == page.mm {
            check(page);
        }
    }

    /// The next `count` pages in turn, 1 or all.
    fn next_pages(&mut self, count: usize) -> &'static [Page] {
        let first = if count == 1 { self.next_page } else { 0 };
        self.next_page = (first + count) % self.pages.len();
        &self.pages[first..first + count]
    }

    /// Maps the spare frame whose turn it is, stamped; the old frame takes its place.
    fn map_spare(&mut self, page: &Page, stamp: u64) {
        let spare = &self.spares[self.next_spare];
        self.next_spare = (self.next_spare + 1) % self.spares.len();
        let new = spare.load(Relaxed);
        write_frame(new, 0, stamp);
        page.entry.store(new | READ_WRITE, Release);
        spare.store(page.frame.load(Relaxed), Relaxed);
        page.frame.store(new, Relaxed);
        page.stamp.store(stamp, Relaxed);
    }
}
