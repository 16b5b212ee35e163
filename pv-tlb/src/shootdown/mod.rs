//! The guest's side of a shootdown: algorithms over a small [`Platform`].
//!
//! Every shared word an algorithm touches is named by a [`Word`], and every access
//! to one goes through the platform. The booted guest maps words to memory, loom
//! to its own atomics, and the model to its state, where each access is one step.
//! The algorithms own no state of their own.

use core::sync::atomic::Ordering;

use crate::addr::Gva;
use crate::cpuset::CpuSet;
use crate::id::VcpuId;
use crate::invalidation::Invalidation;

/// An address space of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MmId(pub u32);

/// One 64-bit word that several vCPUs share.
///
/// Sets of vCPUs take [`crate::cpuset::WORDS`] words, named by their index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Word {
    /// `mm.tlb_gen`: one more after every change to its page tables.
    MmGen(MmId),
    /// `mm.cpumask`: vCPUs that may need to hear of changes.
    MmMask(MmId, u8),
    /// mm loaded by the vCPU, or the mark of a switch under way.
    LoadedMm(VcpuId),
    /// Not 0 while the vCPU has an mm loaded but runs nothing of it.
    Lazy(VcpuId),
    /// Address-space slot (PCID - 1) in use by the vCPU.
    LoadedSlot(VcpuId),
    /// mm that a slot of the vCPU holds, plus 1; 0 for none.
    SlotMm(VcpuId, u8),
    /// Generation up to which a slot of the vCPU is flushed.
    SlotGen(VcpuId, u8),
    /// Next slot to be reused by the vCPU.
    NextSlot(VcpuId),
    /// Senders whose request the vCPU has not served yet.
    Pending(VcpuId, u8),
    /// Targets that still owe this sender an ack.
    Owing(VcpuId, u8),
    /// The sender's request: its mm.
    RequestMm(VcpuId),
    /// The sender's request: first address.
    RequestStart(VcpuId),
    /// The sender's request: number of pages; 0 for the whole mm.
    RequestPages(VcpuId),
    /// The sender's request: generation it brings; 0 for none.
    RequestGen(VcpuId),
    /// The sender's request: not 0 if page tables were freed.
    RequestFreedTables(VcpuId),
    /// KVM's `preempted` byte of the vCPU (its low 8 bits; the rest reads as 0).
    Preempted(VcpuId),
}

/// What an algorithm needs from the machine it runs on.
pub trait Platform {
    /// The vCPU that executes.
    fn me(&self) -> VcpuId;
    /// Loads a shared word.
    fn load(&self, word: Word, order: Ordering) -> u64;
    /// Stores a shared word.
    fn store(&self, word: Word, value: u64, order: Ordering);
    /// Exchanges a shared word; returns the old value.
    fn swap(&self, word: Word, value: u64, order: Ordering) -> u64;
    /// Compare-and-swap, both orders `SeqCst`; the old value either way.
    ///
    /// # Errors
    /// The value found, if it was not `current`.
    fn compare_exchange(&self, word: Word, current: u64, new: u64) -> Result<u64, u64>;
    /// Adds; returns the old value.
    fn fetch_add(&self, word: Word, value: u64, order: Ordering) -> u64;
    /// Sets bits; returns the old value.
    fn fetch_or(&self, word: Word, bits: u64, order: Ordering) -> u64;
    /// Keeps only `bits`; returns the old value.
    fn fetch_and(&self, word: Word, bits: u64, order: Ordering) -> u64;
    /// A fence.
    fn fence(&self, order: Ordering);
    /// INVLPG on this vCPU, current context.
    fn invalidate_page(&self, page: Gva);
    /// Drops every non-global entry of the current context on this vCPU.
    fn invalidate_context(&self);
    /// Loads `mm` into `slot` on this vCPU; drops the slot's old entries if `flush`.
    fn load_mm(&self, mm: MmId, slot: u8, flush: bool);
    /// Number of slots: 1 without PCID, else up to 6.
    fn slots(&self) -> u8;
    /// Interrupts the targets, so that each comes to serve its pending requests.
    fn send_ipi(&self, targets: &CpuSet);
    /// One turn of a wait: the vCPU may be interrupted and others may run.
    fn relax(&self);
    /// Asks the host; returns true once the flush holds on every target.
    fn doorbell(&self, ask: &Invalidation) -> bool;
}
