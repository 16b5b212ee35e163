//! Flushes by remote action requests (Intel RAR): the target's microcode drops the
//! translations and no code of the guest runs there.
//!
//! A sender owns one payload at a time, arms one byte of each target's action vector,
//! and sends a request; a target that gets one looks through its whole vector and
//! serves every armed byte. States of a byte: done, armed by the payload's owner,
//! done again (or failed) by the target. The payload changes only under its lock and
//! while no byte of it is armed.
//!
//! [`Sending::Shared`] adds an owner for each target, who has taken on sending the
//! next request; others who armed a byte meanwhile wait for that request. Order: the
//! owner sends after it has taken ownership and never waits in between, so whoever
//! sees an owner will see a request that was sent later, or ownership given up; and
//! a waiter therefore has to look at the owner again and again, not once.
//!
//! An mm has one slot on all vCPUs. Requests go to the mm's mask, so the slot is
//! current only on vCPUs in it: who is not sets its bit and loads with a flush.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use super::{Change, DropSlot, HardwareWord, MmId, Platform, Word, place, targets};
use crate::addr::{Gva, PAGE_BYTES};
use crate::cpuset::CpuSet;
use crate::id::VcpuId;

/// The byte of a payload that was carried out, or was never armed.
pub const DONE: u64 = 0x00;
/// The byte of a payload that waits for the target.
pub const ARMED: u64 = 0x01;
/// The byte of a payload that the target could not carry out.
pub const FAILED: u64 = 0x80;

/// What a machine with remote action requests adds.
pub trait ActionRequests: DropSlot {
    /// Sends a request to each target, which then looks through its action vector.
    fn request_action(&self, targets: &CpuSet);
}

/// Who sends requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// Every sender, to all its targets.
    Always,
    /// At each target one sender for all that have armed a byte there.
    Shared,
}

/// The rules of one guest.
#[derive(Clone, Copy, Debug)]
pub struct Rar {
    /// Number of payloads (Sapphire Rapids: 64).
    pub payloads: u8,
    /// Who sends requests.
    pub sending: Sending,
}

fn word(word: HardwareWord) -> Word {
    Word::Hardware(word)
}

fn action(target: VcpuId, payload: u8) -> Word {
    word(HardwareWord::Action(target, payload))
}

/// Makes `next` the address space of this vCPU, in the slot it has everywhere.
pub fn switch_mm<P: Platform>(p: &P, next: MmId, slot: u8) {
    let me = p.me();
    let (mask_word, bit) = place(me);
    // Own bit, which only this vCPU sets.
    let is_member = p.load(Word::MmMask(next, mask_word), Relaxed) & bit != 0;
    if !is_member {
        // Partner: the mask read in `flush`. Before the load, so that a walk which the
        // sender does not know of comes after this bit and sees the new tables.
        p.fetch_or(Word::MmMask(next, mask_word), bit, AcqRel);
        p.fence(SeqCst);
    }
    p.store(Word::LoadedMm(me), u64::from(next.0), Relaxed);
    p.load_mm(next, slot, !is_member);
}

impl Rar {
    /// Makes every vCPU forget what `change` outdated, and returns when that holds
    /// except on the vCPUs returned, which reported failure: they have to be told in
    /// another way. The page-table stores come before the call, and it must not come
    /// from an interrupt, since that could wait for a payload of its own vCPU.
    #[must_use]
    pub fn flush<P: ActionRequests>(&self, p: &P, change: &Change, slot: u8) -> CpuSet {
        // The increment is only wanted as a barrier between the tables and the mask;
        // partner: the fence in `switch_mm`.
        p.fetch_add(Word::MmGen(change.mm), 1, SeqCst);
        p.fence(SeqCst);
        let targets = targets::mask(p, change.mm).without(p.me());
        // Sapphire Rapids does not flush itself for a request to itself.
        drop_here(p, change, slot);
        if targets.is_empty() {
            return CpuSet::EMPTY;
        }
        let payload = (p.me().0 % u32::from(self.payloads)) as u8;
        lock(p, payload);
        self.fill(p, payload, change, slot);
        for target in &targets {
            // Partner: the target's scan. The payload comes first, by Release.
            p.store(action(target, payload), ARMED, Release);
        }
        let failed = match self.sending {
            Sending::Always => send_to_all(p, payload, &targets),
            Sending::Shared => send_shared(p, payload, targets),
        };
        // Partner: `lock`.
        p.store(word(HardwareWord::PayloadLock(payload)), 0, Release);
        failed
    }

    fn fill<P: Platform>(&self, p: &P, payload: u8, change: &Change, slot: u8) {
        p.store(word(HardwareWord::PayloadSlot(payload)), u64::from(slot), Relaxed);
        p.store(word(HardwareWord::PayloadStart(payload)), change.start.0, Relaxed);
        p.store(word(HardwareWord::PayloadPages(payload)), change.pages.0, Relaxed);
    }
}

fn drop_here<P: DropSlot>(p: &P, change: &Change, slot: u8) {
    // Own word. A vCPU with another mm loaded may still hold entries of the slot.
    let is_loaded = p.load(Word::LoadedMm(p.me()), Relaxed) == u64::from(change.mm.0);
    if change.pages.0 == 0 || !is_loaded {
        p.drop_slot(slot, None);
        return;
    }
    for page in 0..change.pages.0 {
        p.invalidate_page(Gva(change.start.0.wrapping_add(page * PAGE_BYTES)));
    }
}

fn lock<P: Platform>(p: &P, payload: u8) {
    // Partner: the store at the end of `flush`.
    while p.compare_exchange(word(HardwareWord::PayloadLock(payload)), 0, 1).is_err() {
        p.relax();
    }
}

fn send_to_all<P: ActionRequests>(p: &P, payload: u8, targets: &CpuSet) -> CpuSet {
    p.request_action(targets);
    let mut failed = CpuSet::EMPTY;
    for target in targets {
        // Partner: the target's store of the result, after its invalidation.
        let result = loop {
            match p.load(action(target, payload), Acquire) {
                ARMED => p.relax(),
                result => break result,
            }
        };
        if result != DONE {
            failed.insert(target);
        }
    }
    failed
}

/// Every sender walks the targets in the same order; that keeps two senders from
/// waiting for each other's ownership.
fn send_shared<P: ActionRequests>(p: &P, payload: u8, mut targets: CpuSet) -> CpuSet {
    let me = u64::from(p.me().0) + 1;
    let mut mine = CpuSet::EMPTY;
    let mut failed = CpuSet::EMPTY;
    while !targets.is_empty() {
        for target in &targets {
            let owner = word(HardwareWord::ActionOwner(target));
            // Partner: the store below, by whoever gives up ownership.
            if p.load(owner, Relaxed) == 0 && p.compare_exchange(owner, 0, me).is_ok() {
                mine.insert(target);
            }
        }
        if !mine.is_empty() {
            p.request_action(&mine);
        }
        for target in &targets.clone() {
            let result = await_shared(p, payload, target);
            if result == ARMED {
                continue;
            }
            if mine.remove(target) {
                p.store(word(HardwareWord::ActionOwner(target)), 0, Release);
            }
            targets.remove(target);
            if result != DONE {
                failed.insert(target);
            }
        }
    }
    failed
}

/// Waits until the target is through, or nobody has taken on sending it a request.
fn await_shared<P: Platform>(p: &P, payload: u8, target: VcpuId) -> u64 {
    // Partner: the target's store of the result, after its invalidation.
    let read = || p.load(action(target, payload), Acquire);
    let mut result = read();
    while result == ARMED {
        p.relax();
        result = read();
        if p.load(word(HardwareWord::ActionOwner(target)), Acquire) == 0 {
            break;
        }
    }
    result
}
