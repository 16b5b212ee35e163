//! Which vCPUs an initiator must tell.
//!
//! Reads only. The mask may name vCPUs that have left the mm; whoever is left out
//! here will compare generations before it uses the mm again (see `local`).

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use super::{Event, MmId, Platform, SWITCHING, Word, set_words};
use crate::cpuset::{CpuSet, WORDS};
use crate::id::VcpuId;

/// The other vCPUs that may use translations of `mm`, or with `freed_tables` may
/// walk its tables.
pub(super) fn select<P: Platform>(p: &P, mm: MmId, freed_tables: bool) -> CpuSet {
    let others = mask(p, mm).without(p.me());
    if freed_tables {
        return others;
    }
    let chosen: CpuSet = others.iter().filter(|target| may_use(p, *target, mm)).collect();
    p.count(Event::Skipped, others.len() - chosen.len());
    chosen
}

/// A snapshot of the mm's mask.
pub(super) fn mask<P: Platform>(p: &P, mm: MmId) -> CpuSet {
    let mut words = [0; WORDS];
    for word in 0..set_words(p) {
        // Partner: the bit set in `local::switch`, ordered by the fences there and
        // in `begin`.
        words[usize::from(word)] = p.load(Word::MmMask(mm, word), Relaxed);
    }
    CpuSet::from_words(words)
}

/// True unless `target` is lazy or has another mm. A target between two address
/// spaces may be on its way to this one.
fn may_use<P: Platform>(p: &P, target: VcpuId, mm: MmId) -> bool {
    // Acquire, and before `Lazy`: who sees the new mm must not see an old flag.
    let loaded = p.load(Word::LoadedMm(target), Acquire);
    let lazy = p.load(Word::Lazy(target), Relaxed) != 0;
    !lazy && (loaded == SWITCHING || loaded == u64::from(mm.0))
}

/// As [`select`], for a request that names no mm: everybody who is not lazy.
pub(super) fn awake<P: Platform>(p: &P, among: &CpuSet) -> CpuSet {
    among.iter().filter(|target| p.load(Word::Lazy(*target), Acquire) == 0).collect()
}
