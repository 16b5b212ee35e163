//! Local invalidations for an address space that only one vCPU has ever loaded.
//!
//! The scheme of "arm64: tlbflush: Don't broadcast if mm was only active on local
//! cpu" (Ryan Roberts, 2025): each mm remembers nobody, one vCPU, or several. A
//! flusher that finds itself there invalidates on its own vCPU alone; everybody else
//! broadcasts. Owner of the word: every vCPU that loads the mm, and only forward:
//! nobody, one, several. It goes back only with a fresh address-space number.
//!
//! Order, a store-buffer pair: the flusher stores the page-table entry, waits until
//! walkers can see it, and reads the word; a second vCPU stores "several", waits
//! until that is visible, loads the tables and only then walks. If the flusher read
//! its own name, the second vCPU's walk comes after the entry was visible.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::{Change, DropSlot, HardwareWord, MmId, Platform, Word};
use crate::addr::{Gva, PAGE_BYTES};

/// What a machine that broadcasts invalidations adds (Arm `TLBI` and `DSB`; AMD
/// `INVLPGB` and `TLBSYNC`).
pub trait Broadcast: DropSlot {
    /// Sends an invalidation to every vCPU, this one included: of one page or of
    /// all, in one slot or in all. Done only after [`Self::sync`].
    fn broadcast(&self, slot: Option<u8>, page: Option<Gva>);
    /// Waits until every broadcast that this vCPU has issued on the pCPU where it
    /// is now has taken effect everywhere, and earlier stores are visible.
    fn sync(&self);
    /// Makes later stores and acts on translations wait until earlier stores are
    /// visible to walkers. Says nothing of later loads (Arm `DSB ISHST`).
    fn fence_stores(&self);
    /// Holds the thread on its vCPU, or lets it go again.
    fn pin(&self, is_held: bool);
}

/// Values of [`HardwareWord::ActiveVcpu`]: 0 for nobody, the vCPU plus 1, or this.
pub const SEVERAL: u64 = u64::MAX - 1;

/// Who has loaded an mm, as its word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Users {
    /// Nobody yet.
    Nobody,
    /// This vCPU alone.
    Me,
    /// Somebody else, or several.
    Others,
}

fn users<P: Platform>(p: &P, mm: MmId) -> Users {
    // Partner: the stores in `switch_mm`; the fences around this load order it.
    match p.load(Word::Hardware(HardwareWord::ActiveVcpu(mm)), Relaxed) {
        0 => Users::Nobody,
        active if active == u64::from(p.me().0) + 1 => Users::Me,
        _ => Users::Others,
    }
}

/// Makes `next` the address space of this vCPU, in the one slot that it has
/// everywhere.
pub fn switch_mm<P: Broadcast>(p: &P, next: MmId, slot: u8) {
    let word = Word::Hardware(HardwareWord::ActiveVcpu(next));
    let me = u64::from(p.me().0) + 1;
    let seen = p.load(word, Relaxed);
    if seen != me && seen != SEVERAL {
        let won = seen == 0 && p.compare_exchange(word, 0, me).is_ok();
        if !won {
            // Partner: the flusher's load in `users`. The only value that may follow.
            p.store(word, SEVERAL, Relaxed);
        }
        p.fence_stores();
    }
    // Own words; they say what this vCPU has loaded.
    p.store(Word::LoadedMm(p.me()), u64::from(next.0), Relaxed);
    p.load_mm(next, slot, false);
}

/// Makes every vCPU forget what `change` outdated; returns when that holds. The
/// page-table stores come before the call. `slot` is the mm's.
pub fn flush<P: Broadcast>(p: &P, change: &Change, slot: u8) {
    // From the read of the word to the local invalidation the thread must not move:
    // on another vCPU it would invalidate the wrong TLB.
    p.pin(true);
    let is_local = match users(p, change.mm) {
        Users::Me => {
            // The entry must be visible to walkers before the word is believed.
            p.fence(SeqCst);
            users(p, change.mm) == Users::Me
        }
        Users::Nobody | Users::Others => {
            p.fence_stores();
            false
        }
    };
    if !is_local {
        p.pin(false);
    }
    let pages = change.pages.0.max(1);
    for page in 0..pages {
        let address = Gva(change.start.0.wrapping_add(page * PAGE_BYTES));
        match (is_local, change.pages.0) {
            (true, 0) => p.drop_slot(slot, None),
            (true, _) => p.drop_slot(slot, Some(address)),
            (false, 0) => p.broadcast(Some(slot), None),
            (false, _) => p.broadcast(Some(slot), Some(address)),
        }
    }
    if is_local {
        p.pin(false);
    }
    // A local invalidation needs it as well: it completes by a barrier of this vCPU.
    p.sync();
}
