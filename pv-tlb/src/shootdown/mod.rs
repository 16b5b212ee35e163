//! The guest's side of a shootdown: algorithms over a small [`Platform`].
//!
//! Every shared word an algorithm touches is named by a [`Word`], and every access
//! to one goes through the platform. The booted guest maps words to memory, loom
//! to its own atomics, and the model to its state, where each access is one step.
//! The algorithms own no state of their own: [`Shootdown`] is a choice of rules.
//! All words start as 0: every vCPU has [`INIT_MM`] loaded and owes nothing.
//!
//! The life of one shootdown: the caller has changed page tables; [`Shootdown::begin`]
//! raises the mm's generation and then picks the targets; [`Shootdown::finish`]
//! tells them and returns when no vCPU can use the old entries any more.
//!
//! What makes it sound, in one line each (the files say more):
//! - `local`: a slot's generation never exceeds what its entries reflect (X1);
//! - `targets`: a vCPU left out reads the generation before it uses the mm again;
//! - `transport`: a posted request is served, and its ack follows the flush;
//! - a flush done by the host (doorbell, preempted byte) leaves the target's
//!   generations alone. They then underestimate, which X1 allows: the target may
//!   flush once more when it next compares, never once less. A doorbell names no
//!   PCID, because the mm sits in another slot on each target, so it also covers a
//!   target that is between two address spaces.

pub mod active_cpu;
mod batch;
mod doorbell;
pub mod invlpgb;
mod kvm_pv;
mod local;
pub mod rar;
mod targets;
mod transport;

#[cfg(test)]
mod tests;

use core::sync::atomic::Ordering::{self, Relaxed, SeqCst};

use crate::addr::{Gva, PageCount};
use crate::cpuset::CpuSet;
use crate::id::VcpuId;
use crate::invalidation::Invalidation;

pub use batch::Batch;

/// An address space of the guest, named once and never again (Linux: `ctx_id`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MmId(pub u32);

/// The address space without user pages, loaded by vCPUs that run no thread.
pub const INIT_MM: MmId = MmId(0);

/// [`Word::LoadedMm`] while a vCPU is between two address spaces.
pub const SWITCHING: u64 = u64::MAX;

/// Most address-space slots of a vCPU (Linux: `TLB_NR_DYN_ASIDS`).
pub const MAX_SLOTS: u8 = 6;

/// One 64-bit word that several vCPUs share, or a vCPU and its interrupt.
///
/// Sets of vCPUs take one word for every 64 vCPUs, named by their index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Word {
    /// `mm.tlb_gen`: one more after every change to its page tables.
    MmGen(MmId),
    /// `mm.cpumask`: vCPUs that may need to hear of changes.
    MmMask(MmId, u8),
    /// mm loaded by the vCPU, or [`SWITCHING`].
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
    /// Not 0 while the vCPU must not serve requests (Linux: interrupts off).
    Masked(VcpuId),
    /// Senders whose request the vCPU has not served yet.
    Pending(VcpuId, u8),
    /// Targets that still owe this sender an ack.
    Owing(VcpuId, u8),
    /// The sender's request: its mm, plus 1; 0 for whatever the target has loaded.
    RequestMm(VcpuId),
    /// The sender's request: first address.
    RequestStart(VcpuId),
    /// The sender's request: number of pages; 0 for the whole mm.
    RequestPages(VcpuId),
    /// The sender's request: generation it brings; 0 for none.
    RequestGen(VcpuId),
    /// KVM's `preempted` byte of the vCPU (its low 8 bits; the rest reads as 0).
    Preempted(VcpuId),
    /// A word of the schemes that let the hardware tell the targets.
    Hardware(HardwareWord),
}

/// Shared words of [`active_cpu`], [`invlpgb`] and [`rar`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HardwareWord {
    /// Who has ever loaded the mm: see [`active_cpu::Users`].
    ActiveVcpu(MmId),
    /// Slot that the mm has on every vCPU, plus 1; 0 for none.
    GlobalSlot(MmId),
    /// Not 0 while some vCPU may still use the mm under a slot of its own.
    InTransition(MmId),
    /// Not 0 while somebody hands out global slots.
    GlobalLock,
    /// Global slots that are no longer free, one bit each.
    GlobalTaken,
    /// Those of them whose mm is dead, but whose entries may still be cached.
    GlobalDead,
    /// Where the next search for a global slot starts.
    GlobalNext,
    /// Not 0 while the payload is somebody's.
    PayloadLock(u8),
    /// Slot that the payload asks to drop entries of.
    PayloadSlot(u8),
    /// First address of the payload.
    PayloadStart(u8),
    /// Pages of the payload; 0 for the whole slot.
    PayloadPages(u8),
    /// What became of a payload on a vCPU: see [`rar`].
    Action(VcpuId, u8),
    /// Who has taken on sending the vCPU a request, plus 1; 0 for nobody.
    ActionOwner(VcpuId),
}

/// Things worth counting that only the algorithm sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A target left out: lazy, or the mm is not loaded there.
    Skipped,
    /// A target flagged through the preempted byte instead of interrupted.
    Flagged,
    /// A request served for another vCPU.
    Served,
    /// Another address space was loaded.
    Switched,
}

/// What an algorithm needs from the machine it runs on.
pub trait Platform {
    /// The vCPU that executes.
    fn me(&self) -> VcpuId;
    /// Number of vCPUs; ids run from 0 to this minus one.
    fn vcpus(&self) -> u32;
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
    /// Number of slots: 1 without PCID, else up to [`MAX_SLOTS`].
    fn slots(&self) -> u8;
    /// Interrupts the targets, so that each comes to [`Shootdown::on_interrupt`].
    fn send_ipi(&self, targets: &CpuSet);
    /// One turn of a wait: the vCPU may be interrupted and others may run.
    fn relax(&self);
    /// Asks the host; returns true once the flush holds on every target.
    fn doorbell(&self, ask: &Invalidation) -> bool;
    /// True if the host's hints let `target` answer an interrupt at once.
    fn answers_at_once(&self, target: VcpuId) -> bool;
    /// Takes note of an event; for reports only.
    fn count(&self, _event: Event, _times: u32) {}
}

/// A platform that can drop entries of any slot on its own vCPU (x86 INVPCID, Arm
/// TLBI by ASID), for schemes that give an mm one slot on all vCPUs.
pub trait DropSlot: Platform {
    /// Drops one page, or all, from `slot` on this vCPU alone.
    fn drop_slot(&self, slot: u8, page: Option<Gva>);
}

/// How the targets are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Interrupt every target and wait for its ack.
    Ipi,
    /// Flag preempted targets through KVM's byte, interrupt the rest.
    KvmPv,
    /// Ask the host once for all targets and for this vCPU.
    Doorbell,
    /// Interrupt targets that answer at once, ask the host for the others.
    DoorbellAdaptive,
}

/// When the handler reads the mm's generation, a line that all initiators write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GenRead {
    /// Only if the request does not prove that there is nothing to do
    /// (Linux since "avoid reading mm_tlb_gen when possible").
    WhenNeeded,
    /// First thing, for every request.
    First,
}

/// A change to page tables that is already stored and must now be flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The address space.
    pub mm: MmId,
    /// First address changed.
    pub start: Gva,
    /// 4 KiB pages changed; 0 for the whole address space.
    pub pages: PageCount,
    /// Page-table pages were taken out: even lazy vCPUs must forget them.
    pub freed_tables: bool,
}

/// What a target is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    /// `None`: whatever the target has loaded.
    mm: Option<MmId>,
    start: Gva,
    /// 0 for the whole address space.
    pages: PageCount,
    /// 0 for none: the target catches up with its mm.
    generation: u64,
}

/// A shootdown between [`Shootdown::begin`] and [`Shootdown::finish`]: the
/// generation is raised and the targets are known, but none of them was told.
#[derive(Debug)]
#[must_use = "nothing is flushed before `finish`"]
pub struct Begun {
    mm: MmId,
    request: Request,
    freed_tables: bool,
    targets: CpuSet,
}

impl Begun {
    /// The vCPUs that will be told, without the initiator.
    #[must_use]
    pub fn targets(&self) -> &CpuSet {
        &self.targets
    }
}

/// The rules of one guest; the same on all its vCPUs.
#[derive(Clone, Copy, Debug)]
pub struct Shootdown {
    /// How targets are told.
    pub method: Method,
    /// When a handler reads the mm's generation.
    pub gen_read: GenRead,
    /// Ranges of more pages become whole-mm flushes (Linux: 33).
    pub full_flush_ceiling: PageCount,
}

impl Shootdown {
    /// Makes every vCPU forget what `change` outdated; returns when that holds.
    pub fn flush<P: Platform>(&self, p: &P, change: &Change) {
        let begun = self.begin(p, change);
        self.finish(p, begun);
    }

    /// Raises the generation and picks the targets, in this order. The page-table
    /// stores come before the call.
    pub fn begin<P: Platform>(&self, p: &P, change: &Change) -> Begun {
        let request = self.raise(p, change);
        let targets = targets::select(p, change.mm, change.freed_tables);
        Begun { mm: change.mm, request, freed_tables: change.freed_tables, targets }
    }

    fn raise<P: Platform>(&self, p: &P, change: &Change) -> Request {
        let pages = match change.pages > self.full_flush_ceiling {
            true => PageCount(0),
            false => change.pages,
        };
        // Partner: the generation reads in `local`. The fence keeps the reads of
        // mask, loaded mm and lazy flag behind the new generation; its partner is
        // the fence between those stores and the generation read of a switch.
        let generation = p.fetch_add(Word::MmGen(change.mm), 1, SeqCst) + 1;
        p.fence(SeqCst);
        Request { mm: Some(change.mm), start: change.start, pages, generation }
    }

    /// Tells the targets, flushes here, and waits until all have flushed. The
    /// caller may be interrupted, and serves the requests of others, all the time.
    pub fn finish<P: Platform>(&self, p: &P, begun: Begun) {
        let Begun { mm, request, freed_tables, targets } = begun;
        let (by_ipi, by_host) = match self.method {
            Method::Ipi => (targets, CpuSet::EMPTY),
            Method::KvmPv => (targets.minus(&kvm_pv::flag_preempted(p, &targets)), CpuSet::EMPTY),
            Method::Doorbell => (CpuSet::EMPTY, targets),
            Method::DoorbellAdaptive => {
                let quick = targets.iter().filter(|target| p.answers_at_once(*target)).collect();
                (targets.and(&quick), targets.minus(&quick))
            }
        };
        transport::send(p, &request, &by_ipi);
        let rung = !by_host.is_empty() && {
            let with_me = match local::uses(p, mm) {
                true => by_host.or(&CpuSet::only(p.me())),
                false => by_host,
            };
            p.doorbell(&doorbell::ask(&request, freed_tables, with_me))
        };
        if !rung {
            // The host refused, or there was nothing to ask it.
            transport::send(p, &request, &by_host);
            self.masked(p, || local::catch_up_if_loaded(p, self.gen_read, mm, &request));
        }
        transport::wait(p);
    }

    /// Makes `next` the address space of this vCPU; ends laziness.
    pub fn switch_mm<P: Platform>(&self, p: &P, next: MmId) {
        self.masked(p, || local::switch(p, next, &local::OwnSlots));
    }

    /// Says that this vCPU will not touch its mm until [`Self::switch_mm`].
    pub fn enter_lazy<P: Platform>(&self, p: &P) {
        local::enter_lazy(p);
    }

    /// Drops every non-global entry of the context this vCPU has loaded, for a vCPU
    /// whose host left a flush to it (see the doorbell's `idle`). Generations stay,
    /// and so other slots are safe: their mm was not loaded, or it was told.
    pub fn drop_context<P: Platform>(&self, p: &P) {
        self.masked(p, || p.invalidate_context());
    }

    /// Serves what others asked of this vCPU. Called after an interrupt, at any
    /// point of the interrupted code; does nothing inside a masked stretch, whose
    /// end serves instead.
    pub fn on_interrupt<P: Platform>(&self, p: &P) {
        let masked = Word::Masked(p.me());
        // Own word, written by the interrupted code of this vCPU: program order.
        while p.load(masked, Relaxed) == 0 && transport::any_pending(p) {
            self.hold(p);
            transport::serve(p, |request| local::catch_up(p, self.gen_read, request));
            self.release(p);
        }
    }

    /// Runs `critical` with requests held back, then serves what came meanwhile.
    fn masked<P: Platform>(&self, p: &P, critical: impl FnOnce()) {
        self.hold(p);
        critical();
        self.release(p);
        self.on_interrupt(p);
    }

    // The mask is between a vCPU and its own interrupt, so the compiler alone must
    // be kept from moving accesses over its edges.
    fn hold<P: Platform>(&self, p: &P) {
        p.store(Word::Masked(p.me()), 1, Relaxed);
        core::sync::atomic::compiler_fence(SeqCst);
    }

    fn release<P: Platform>(&self, p: &P) {
        core::sync::atomic::compiler_fence(SeqCst);
        p.store(Word::Masked(p.me()), 0, Relaxed);
        core::sync::atomic::compiler_fence(SeqCst);
    }
}

/// Words that a set of this machine's vCPUs takes.
fn set_words<P: Platform>(p: &P) -> u8 {
    p.vcpus().div_ceil(64) as u8
}

/// The word and the bit in it that stand for `vcpu` in a shared set.
fn place(vcpu: VcpuId) -> (u8, u64) {
    ((vcpu.0 / 64) as u8, 1 << (vcpu.0 % 64))
}
