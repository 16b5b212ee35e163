//! The reader's duty, and the record of what it finds.
//!
//! A reader loads the floor of a page, then reads the page. Whatever the floor says
//! was promised before, so the read may be newer, never older; a word that is not a
//! stamp of this page means that the frame had been freed. Owner of all state: the
//! executing vCPU.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use pv_tlb::abi::stress::{RECORDS, ViolationKind, Workload};
use pv_tlb::shootdown::MmId;

use super::layout::{Page, World};
use crate::params::{add, report, workload};
use crate::programs::now;
use crate::{access, vcpu};

/// Reads between two looks at the clock.
const READS_AT_ONCE: u32 = 8;

/// Reads the pages of one mm in turn.
pub(crate) struct Reader {
    world: &'static World,
    mm: MmId,
    next: usize,
    /// In the mprotect workload: the last value this vCPU tried to write.
    written: Option<u64>,
}

impl Reader {
    /// A reader of `mm`, which this vCPU must have loaded whenever it reads.
    pub(crate) fn new(world: &'static World, mm: MmId) -> Self {
        let written = (workload() == Workload::Mprotect).then_some(0);
        Self { world, mm, next: 0, written }
    }

    /// The mm it reads.
    pub(crate) fn mm(&self) -> MmId {
        self.mm
    }

    /// Checks pages for `ticks` of the time stamp counter, or longer if accesses are
    /// denied, which takes a trap each.
    pub(crate) fn read_for(&mut self, ticks: u64) {
        let start = now();
        while now().saturating_sub(start) < ticks {
            self.read_some(READS_AT_ONCE);
        }
    }

    /// Checks `count` pages.
    pub(crate) fn read_some(&mut self, count: u32) {
        let pages = self.world.count_in(self.mm);
        if pages == 0 {
            return core::hint::spin_loop();
        }
        for _ in 0..count {
            let page = self.world.page_in(self.mm, self.next);
            self.next = if self.next + 1 < pages { self.next + 1 } else { 0 };
            check(page);
            if let Some(last) = &mut self.written {
                *last += 1;
                scribble(page, *last);
            }
        }
    }
}

/// Reads `page` through the mapping and judges what comes back.
pub(crate) fn check(page: &Page) {
    // Partner: `Page::promise`.
    let floor = page.floor.load(Acquire);
    let Some(seen) = access::read(page.address) else {
        return add(&report().denied, 1);
    };
    add(&report().checks, 1);
    if !page.is_mine(seen) {
        violation(ViolationKind::FreedFrame, page, 0, floor, seen);
    } else if seen < floor {
        violation(ViolationKind::StaleRead, page, 0, floor, seen);
    }
}

/// Tries to write this vCPU's own word of `page`; denied while it is read-only.
pub(crate) fn scribble(page: &Page, value: u64) {
    let counter = match access::write(page.address + word_of(vcpu::me()) as u64 * 8, value) {
        true => &report().checks,
        false => &report().denied,
    };
    add(counter, 1);
}

/// The word of a page that `vcpu` writes; word 0 is the stamp.
pub(crate) fn word_of(vcpu: u32) -> usize {
    vcpu as usize + 1
}

/// Counts a violation, and keeps the first few in full.
pub(crate) fn violation(kind: ViolationKind, page: &Page, word: usize, expected: u64, seen: u64) {
    let report = report();
    let count = report.violations.load(Relaxed);
    report.violations.store(count + 1, Relaxed);
    let Some(record) = usize::try_from(count).ok().filter(|n| *n < RECORDS) else { return };
    let record = &report.records[record];
    record.kind.store(kind as u32, Relaxed);
    record.owner.store(page.owner, Relaxed);
    record.address.store(page.address + word as u64 * 8, Relaxed);
    record.expected.store(expected, Relaxed);
    record.seen.store(seen, Relaxed);
    record.flush.store(page.flush.load(Relaxed), Relaxed);
    record.tsc.store(now(), Relaxed);
}
