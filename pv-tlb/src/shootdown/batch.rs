//! Many small changes, one flush: what Linux does when reclaim unmaps pages of many
//! processes (`arch_tlbbatch_flush`).
//!
//! Owner: the initiator, on its stack. Each change raises its mm's generation and
//! adds the mm's mask; the flush asks every target to catch up with whatever it has
//! loaded, so the request carries no mm, no range and no generation.

use core::sync::atomic::Ordering::SeqCst;

use super::{MmId, Platform, Request, Shootdown, Word, local, targets, transport};
use crate::addr::{Gva, PageCount};
use crate::cpuset::CpuSet;

/// Changes made and not yet flushed.
#[derive(Debug, Default)]
#[must_use = "nothing is flushed before `flush`"]
pub struct Batch {
    vcpus: CpuSet,
}

impl Batch {
    /// Adds a change to `mm` whose page-table stores come before the call.
    pub fn add<P: Platform>(&mut self, p: &P, mm: MmId) {
        // As in `Shootdown::begin`.
        p.fetch_add(Word::MmGen(mm), 1, SeqCst);
        p.fence(SeqCst);
        self.vcpus = self.vcpus.or(&targets::mask(p, mm));
    }

    /// Makes every vCPU forget what the changes outdated; returns when that holds.
    /// Always by interrupts: no target is asked for more than it has loaded.
    pub fn flush<P: Platform>(self, p: &P, rules: &Shootdown) {
        let request = Request { mm: None, start: Gva(0), pages: PageCount(0), generation: 0 };
        p.fence(SeqCst);
        let others = targets::awake(p, &self.vcpus.without(p.me()));
        transport::send(p, &request, &others);
        rules.masked(p, || local::catch_up(p, rules.gen_read, &request));
        transport::wait(p);
    }
}
