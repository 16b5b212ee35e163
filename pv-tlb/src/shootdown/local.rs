//! What a vCPU knows of its own TLB: the slots, their generations, the mm loaded.
//!
//! Owner: the vCPU itself, always with requests held back (see `masked` in the
//! parent), so that its own interrupt never meets it half way. Others read only
//! `LoadedMm` and `Lazy`, and set or clear bits of masks.
//!
//! States of `LoadedMm`: an mm, or [`SWITCHING`]. Invariants, named as in Linux's
//! comments restated: X1, each entry of a slot was loaded from page tables at least
//! as new as the slot's generation; X3, a vCPU that runs an mm is in its mask; X4,
//! no two slots hold one mm.
//!
//! Order: a switch makes itself visible (`SWITCHING`, mask bit, not lazy), fences,
//! and only then reads the generation. An initiator raises the generation, fences,
//! and only then looks. So one of the two sees the other: either the initiator
//! picks this vCPU, or this vCPU reads the new generation.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use super::{Event, GenRead, INIT_MM, MmId, Platform, Request, SWITCHING, Word, place};
use crate::addr::{Gva, PAGE_BYTES};

/// True if this vCPU has `mm` loaded and is not lazy.
pub(super) fn uses<P: Platform>(p: &P, mm: MmId) -> bool {
    let me = p.me();
    // Own words.
    p.load(Word::LoadedMm(me), Relaxed) == u64::from(mm.0) && p.load(Word::Lazy(me), Relaxed) == 0
}

/// The initiator's own share: a vCPU without the mm is safe by the generation.
pub(super) fn catch_up_if_loaded<P: Platform>(
    p: &P,
    gen_read: GenRead,
    mm: MmId,
    request: &Request,
) {
    if uses(p, mm) {
        catch_up(p, gen_read, request);
    }
}

/// Brings this vCPU's TLB up to what `request` needs. First match ends.
pub(super) fn catch_up<P: Platform>(p: &P, gen_read: GenRead, request: &Request) {
    let me = p.me();
    let raw = p.load(Word::LoadedMm(me), Relaxed);
    let loaded = MmId(raw as u32);
    // Partner, here and below: the increment in `begin`. Acquire, so that walks
    // after the flush see every page-table store up to this generation.
    let newest = || p.load(Word::MmGen(loaded), Acquire);
    let early = (gen_read == GenRead::First).then(newest);
    if let Some(mm) = request.mm.filter(|mm| *mm != loaded) {
        let (word, bit) = place(me);
        // Partner: the mask read in `targets`. A later switch sets the bit again
        // and reads the generation after that.
        p.fetch_and(Word::MmMask(mm, word), !bit, AcqRel);
        return;
    }
    if loaded == INIT_MM {
        return;
    }
    if p.load(Word::Lazy(me), Relaxed) != 0 {
        // Runs nothing of it: leaving the mm is cheaper than keeping up with it.
        switch(p, INIT_MM, &OwnSlots);
        return;
    }
    let slot = p.load(Word::LoadedSlot(me), Relaxed) as u8;
    let here = p.load(Word::SlotGen(me, slot), Relaxed);
    // A request that brings no generation proves nothing: without the first test a
    // batch would always look served (0 is never above `here`).
    if early.is_none() && request.generation != 0 && request.generation <= here {
        return;
    }
    let newest = early.unwrap_or_else(newest);
    if newest == here {
        return;
    }
    // The range alone is enough only if it is exactly what is missing.
    let one_behind = request.generation == here + 1 && request.generation == newest;
    if request.pages.0 != 0 && one_behind {
        for page in 0..request.pages.0 {
            p.invalidate_page(Gva(request.start.0.wrapping_add(page * PAGE_BYTES)));
        }
    } else {
        p.invalidate_context();
    }
    // `newest` was read before the flush, so X1 holds.
    p.store(Word::SlotGen(me, slot), newest, Relaxed);
}

/// Where a switch takes its slot from.
pub(super) trait Slots {
    /// The slot for `mm` and whether its entries must go, given the mm's generation.
    fn choose<P: Platform>(&self, p: &P, mm: MmId, newest: u64) -> (u8, bool);

    /// What is due when the vCPU takes up `mm` again without having left it.
    fn resume<P: Platform>(&self, p: &P, mm: MmId);
}

/// Slots that each vCPU gives out for itself.
pub(super) struct OwnSlots;

/// Loads `next`. The caller holds requests back.
pub(super) fn switch<P: Platform>(p: &P, next: MmId, slots: &impl Slots) {
    let me = p.me();
    let was_lazy = p.swap(Word::Lazy(me), 0, AcqRel) != 0;
    if p.load(Word::LoadedMm(me), Relaxed) == u64::from(next.0) {
        if was_lazy {
            p.fence(SeqCst);
            slots.resume(p, next);
        }
        return;
    }
    // Partner: `targets::select`, which reads this before `Lazy`.
    p.store(Word::LoadedMm(me), SWITCHING, Release);
    if next != INIT_MM {
        let (word, bit) = place(me);
        p.fetch_or(Word::MmMask(next, word), bit, AcqRel);
    }
    p.fence(SeqCst);
    let newest = p.load(Word::MmGen(next), Acquire);
    let (slot, flush) = slots.choose(p, next, newest);
    if flush {
        p.store(Word::SlotMm(me, slot), u64::from(next.0) + 1, Relaxed);
        p.store(Word::SlotGen(me, slot), newest, Relaxed);
    }
    p.load_mm(next, slot, flush);
    p.store(Word::LoadedSlot(me), u64::from(slot), Relaxed);
    p.store(Word::LoadedMm(me), u64::from(next.0), Release);
    p.count(Event::Switched, 1);
}

impl Slots for OwnSlots {
    fn choose<P: Platform>(&self, p: &P, mm: MmId, newest: u64) -> (u8, bool) {
        let me = p.me();
        let slots = p.slots();
        if slots == 1 {
            return (0, true);
        }
        let holds = |slot: &u8| p.load(Word::SlotMm(me, *slot), Relaxed) == u64::from(mm.0) + 1;
        if let Some(slot) = (0..slots).find(holds) {
            return (slot, p.load(Word::SlotGen(me, slot), Relaxed) < newest);
        }
        let slot = p.load(Word::NextSlot(me), Relaxed) as u8 % slots;
        p.store(Word::NextSlot(me), u64::from((slot + 1) % slots), Relaxed);
        (slot, true)
    }

    /// The mm never left the slot, but flushes passed this vCPU by while it was lazy.
    fn resume<P: Platform>(&self, p: &P, mm: MmId) {
        let me = p.me();
        let newest = p.load(Word::MmGen(mm), Acquire);
        let slot = p.load(Word::LoadedSlot(me), Relaxed) as u8;
        if p.load(Word::SlotGen(me, slot), Relaxed) != newest {
            p.store(Word::SlotGen(me, slot), newest, Relaxed);
            p.load_mm(mm, slot, true);
        }
    }
}

/// Stops hearing of the mm's flushes until the next [`switch`].
pub(super) fn enter_lazy<P: Platform>(p: &P) {
    let me = p.me();
    if p.load(Word::LoadedMm(me), Relaxed) != u64::from(INIT_MM.0) {
        // Partner: `targets::select`. Late news costs an interrupt, no more.
        p.store(Word::Lazy(me), 1, Release);
    }
}
