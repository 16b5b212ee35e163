//! Flushes by the machine's own broadcast (AMD INVLPGB and TLBSYNC), for address
//! spaces that many vCPUs use.
//!
//! A broadcast names an address space by its tag, so the mm needs one tag on every
//! vCPU: a global slot, given once and kept until the mm dies. Linux's policy: an mm
//! gets one when a flush finds more than three vCPUs that use it.
//!
//! States of an mm: local (no global slot; flushed by interrupts, see the parent),
//! in transition (it has a global slot, but some vCPU may still run it under a slot
//! of its own), global. The first flush that finds no such vCPU ends the transition.
//!
//! Order: the transition flag is stored before the slot is published, so that who
//! flushes by broadcast knows that it may not be enough. A vCPU moves to the global
//! slot without a flush: entries of that slot are always current, and those left in
//! its own slot are dropped when the slot is used again, by their generation.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::active_cpu::Broadcast;
use super::local::{OwnSlots, Slots};
use super::{
    Change, HardwareWord, INIT_MM, MAX_SLOTS, MmId, Platform, Request, SWITCHING, Shootdown, Word,
    local, targets, transport,
};
use crate::addr::{Gva, PAGE_BYTES};
use crate::id::VcpuId;

/// Most global slots: what one word of bits can keep account of. (Hardware has 4,088
/// PCIDs to spare; few mms are ever used by many vCPUs at once.)
pub const MAX_GLOBAL_SLOTS: u8 = 64;

/// Linux's choice for [`Invlpgb::more_than`].
pub const LINUX_MORE_THAN: u32 = 3;

/// The rules of a guest whose hardware broadcasts.
#[derive(Clone, Copy, Debug)]
pub struct Invlpgb {
    /// How mms without a global slot are flushed.
    pub local: Shootdown,
    /// An mm gets a global slot when more vCPUs than this use it.
    pub more_than: u32,
    /// Global slots that exist, at most [`MAX_GLOBAL_SLOTS`]; the first is
    /// [`MAX_SLOTS`].
    pub global_slots: u8,
    /// Zen 5 erratum 1718: one wait may not be enough.
    pub sync_twice: bool,
}

fn word(word: HardwareWord) -> Word {
    Word::Hardware(word)
}

/// The mm's global slot.
fn global_slot<P: Platform>(p: &P, mm: MmId) -> Option<u8> {
    // Partner: the store in `promote`.
    p.load(word(HardwareWord::GlobalSlot(mm)), Acquire).checked_sub(1).map(|slot| slot as u8)
}

/// The mm's global slot if it has one, else one of the vCPU's own.
struct GlobalFirst;

impl Slots for GlobalFirst {
    // Both come after the vCPU is seen switching or awake, and a fence: who ends the
    // transition waits for a vCPU that switches, and counts one that is lazy.
    fn choose<P: Platform>(&self, p: &P, mm: MmId, newest: u64) -> (u8, bool) {
        match global_slot(p, mm) {
            Some(slot) => (slot, false),
            None => OwnSlots.choose(p, mm, newest),
        }
    }

    fn resume<P: Platform>(&self, p: &P, mm: MmId) {
        match global_slot(p, mm) {
            Some(slot) => use_slot(p, mm, slot),
            None => OwnSlots.resume(p, mm),
        }
    }
}

/// Moves the loaded mm to its global slot.
fn use_slot<P: Platform>(p: &P, mm: MmId, slot: u8) {
    let loaded = Word::LoadedSlot(p.me());
    if p.load(loaded, Relaxed) != u64::from(slot) {
        p.load_mm(mm, slot, false);
        // Partner: `runs_elsewhere`. Late news costs an interrupt, no more.
        p.store(loaded, u64::from(slot), Release);
    }
}

/// True if `target` may run `mm` under another slot than `slot`.
fn runs_elsewhere<P: Platform>(p: &P, target: VcpuId, mm: MmId, slot: u8) -> bool {
    // Partner: the stores in `local::switch`, the slot's before the mm's.
    loop {
        match p.load(Word::LoadedMm(target), Acquire) {
            SWITCHING => p.relax(),
            loaded => {
                return loaded == u64::from(mm.0)
                    && p.load(Word::LoadedSlot(target), Acquire) != u64::from(slot);
            }
        }
    }
}

impl Invlpgb {
    /// Makes every vCPU forget what `change` outdated; returns when that holds. The
    /// page-table stores come before the call.
    pub fn flush<P: Broadcast>(&self, p: &P, change: &Change) {
        let request = self.local.raise(p, change);
        if let Some(slot) = global_slot(p, change.mm) {
            self.broadcast(p, change.mm, &request, slot);
            return;
        }
        let targets = targets::select(p, change.mm, change.freed_tables);
        transport::send(p, &request, &targets);
        if local::uses(p, change.mm) {
            self.masked(p, || self.catch_up(p, &request));
        }
        transport::wait(p);
        if !targets.is_empty() && in_use(p, change.mm) > self.more_than {
            self.promote(p, change.mm);
        }
    }

    /// Makes `next` the address space of this vCPU; ends laziness.
    pub fn switch_mm<P: Broadcast>(&self, p: &P, next: MmId) {
        self.masked(p, || local::switch(p, next, &GlobalFirst));
    }

    /// See [`Shootdown::on_interrupt`].
    pub fn on_interrupt<P: Broadcast>(&self, p: &P) {
        // Own word, as in `Shootdown`.
        while p.load(Word::Masked(p.me()), Relaxed) == 0 && transport::any_pending(p) {
            self.local.hold(p);
            transport::serve(p, |request| self.catch_up(p, request));
            self.local.release(p);
        }
    }

    /// Takes the global slot from an mm that nobody has loaded or will load again.
    /// Its entries stay cached, and so the slot stays taken until all are dropped.
    pub fn forget<P: Broadcast>(&self, p: &P, mm: MmId) {
        let Some(slot) = global_slot(p, mm) else { return };
        lock(p);
        let dead = word(HardwareWord::GlobalDead);
        p.store(dead, p.load(dead, Relaxed) | 1 << (slot - MAX_SLOTS), Relaxed);
        p.store(word(HardwareWord::GlobalSlot(mm)), 0, Relaxed);
        unlock(p);
    }

    fn masked<P: Broadcast>(&self, p: &P, critical: impl FnOnce()) {
        self.local.hold(p);
        critical();
        self.local.release(p);
        self.on_interrupt(p);
    }

    /// As [`local::catch_up`], after a look whether the mm has moved.
    fn catch_up<P: Broadcast>(&self, p: &P, request: &Request) {
        let loaded = MmId(p.load(Word::LoadedMm(p.me()), Relaxed) as u32);
        let is_meant = request.mm.is_none_or(|mm| mm == loaded) && loaded != INIT_MM;
        match global_slot(p, loaded).filter(|_| is_meant) {
            Some(slot) => use_slot(p, loaded, slot),
            None => local::catch_up(p, self.local.gen_read, request),
        }
    }

    /// The flush of an mm that has a global slot.
    fn broadcast<P: Broadcast>(&self, p: &P, mm: MmId, request: &Request, slot: u8) {
        // A wait covers the broadcasts of the pCPU it is executed on.
        p.pin(true);
        match request.pages.0 {
            0 => p.broadcast(Some(slot), None),
            pages => {
                for page in 0..pages {
                    let address = Gva(request.start.0.wrapping_add(page * PAGE_BYTES));
                    p.broadcast(Some(slot), Some(address));
                }
            }
        }
        // Partner: the compare-and-swap in `promote`.
        if p.load(word(HardwareWord::InTransition(mm)), Acquire) != 0 {
            self.finish_transition(p, mm, request, slot);
        }
        self.sync(p);
        p.pin(false);
    }

    fn sync<P: Broadcast>(&self, p: &P) {
        p.sync();
        if self.sync_twice {
            p.sync();
        }
    }

    /// Interrupts those that may run the mm under a slot of their own, or ends the
    /// transition if there are none.
    fn finish_transition<P: Broadcast>(&self, p: &P, mm: MmId, request: &Request, slot: u8) {
        self.masked(p, || self.catch_up(p, request));
        let others = targets::mask(p, mm).without(p.me());
        if others.iter().any(|target| runs_elsewhere(p, target, mm, slot)) {
            transport::send(p, request, &others);
            transport::wait(p);
        } else {
            // Partner: the load in `broadcast`. Whoever loads the mm from now on
            // reads the slot.
            p.store(word(HardwareWord::InTransition(mm)), 0, Release);
        }
    }

    /// Gives the mm a global slot, if one is left.
    fn promote<P: Broadcast>(&self, p: &P, mm: MmId) {
        lock(p);
        let global = word(HardwareWord::GlobalSlot(mm));
        if p.load(global, Relaxed) == 0
            && let Some(free) = self.take_free(p)
        {
            // Partner: the load in `broadcast`. Before the slot is published.
            p.store(word(HardwareWord::InTransition(mm)), 1, Release);
            // Partner: `global_slot`.
            p.store(global, u64::from(MAX_SLOTS + free) + 1, Release);
        }
        unlock(p);
    }

    /// A slot without cached entries; the caller has the lock.
    fn take_free<P: Broadcast>(&self, p: &P) -> Option<u8> {
        let taken_word = word(HardwareWord::GlobalTaken);
        let mut taken = p.load(taken_word, Relaxed);
        let next = p.load(word(HardwareWord::GlobalNext), Relaxed) as u8;
        let free = |taken: u64, from: u8| (from..self.global_slots).find(|i| taken >> i & 1 == 0);
        let found = free(taken, next).or_else(|| {
            // Rollover: slots of dead mms come back once nobody caches their entries.
            p.pin(true);
            p.broadcast(None, None);
            self.sync(p);
            p.pin(false);
            taken &= !p.swap(word(HardwareWord::GlobalDead), 0, Relaxed);
            free(taken, 0)
        });
        if let Some(slot) = found {
            taken |= 1 << slot;
            p.store(word(HardwareWord::GlobalNext), u64::from(slot) + 1, Relaxed);
        }
        p.store(taken_word, taken, Relaxed);
        found
    }
}

/// vCPUs that use the mm.
fn in_use<P: Platform>(p: &P, mm: MmId) -> u32 {
    targets::select(p, mm, false).len() + u32::from(local::uses(p, mm))
}

/// Takes the allocator. Never from an interrupt, which would wait for itself.
fn lock<P: Platform>(p: &P) {
    // Partner: the store in `unlock`.
    while p.compare_exchange(word(HardwareWord::GlobalLock), 0, 1).is_err() {
        p.relax();
    }
}

fn unlock<P: Platform>(p: &P) {
    p.store(word(HardwareWord::GlobalLock), 0, Release);
}
