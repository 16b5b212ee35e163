//! KVM's paravirtual flush: a target that the host has taken off its pCPU is
//! flagged instead of interrupted.
//!
//! The byte's other writer is the host, which exchanges it with 0 before the next
//! entry and flushes if the flag was in it. A successful compare-and-swap thus
//! means that the exchange is still to come, and with it the flush, before any
//! guest instruction. If the host came first the byte reads 0, the swap fails, and
//! the target is interrupted like any other. The page-table stores come before
//! the swap (`SeqCst`), so the walks after the flush see them.

use core::sync::atomic::Ordering::Relaxed;

use super::{Event, Platform, Word};
use crate::abi::kvm::{FLUSH_TLB, PREEMPTED};
use crate::cpuset::CpuSet;

/// Flags the preempted ones among `targets`; returns those that need nothing more.
pub(super) fn flag_preempted<P: Platform>(p: &P, targets: &CpuSet) -> CpuSet {
    let flagged: CpuSet = targets
        .iter()
        .filter(|target| {
            let byte = Word::Preempted(*target);
            // The plain load spares running targets a locked access to their line.
            let seen = p.load(byte, Relaxed);
            // Partner: the host's exchange. A byte that is flagged already is swapped
            // for itself, which proves that the exchange is still to come.
            seen & u64::from(PREEMPTED) != 0
                && p.compare_exchange(byte, seen, seen | u64::from(FLUSH_TLB)).is_ok()
        })
        .collect();
    p.count(Event::Flagged, flagged.len());
    flagged
}
