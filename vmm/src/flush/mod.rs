//! From a guest's request to the moment its flush holds: trap, plan, execute.
//!
//! Owner: [`FlushSite`] is shared by all vCPU threads of a VM; each element belongs
//! to one vCPU (see `VcpuSlot`).

pub mod entry;
pub mod execute;
pub mod rule;
pub mod standing;
pub mod trap;

use std::sync::atomic::Ordering;
use std::time::Duration;

use pv_tlb::CpuSet;
use pv_tlb::abi::doorbell::{DoorbellPage, GuestFlags};
use pv_tlb::abi::kvm::StealTime;
use pv_tlb::id::{FlushSeq, VcpuId};
use pv_tlb::pending::{FlushClock, Inbox};

use crate::flush::standing::RunState;
use crate::kvm::kick::Kick;
use crate::kvm::membarrier::Membarrier;
use crate::memory::View;
use entry::EntryFlush;
use rule::Completion;

/// What others need of one vCPU.
#[derive(Debug)]
pub struct VcpuSlot {
    /// What it has been asked to flush.
    pub inbox: Inbox,
    /// Where its thread stands.
    pub run: RunState,
    /// How to interrupt it.
    pub kick: Kick,
    /// Its doorbell page, in doorbell mode.
    pub page: Option<View<DoorbellPage>>,
    /// Its steal-time record, where it belongs to the monitor.
    pub steal: Option<View<StealTime>>,
}

impl VcpuSlot {
    /// A slot without shared pages.
    #[must_use]
    pub fn new(page: Option<View<DoorbellPage>>, steal: Option<View<StealTime>>) -> Self {
        Self { inbox: Inbox::new(), run: RunState::default(), kick: Kick::default(), page, steal }
    }
}

impl VcpuSlot {
    /// Asks the vCPU to flush before its next guest instruction; the caller fences
    /// and then looks where it stands.
    pub fn post(&self, seq: FlushSeq) {
        self.inbox.post(seq);
        if let Some(page) = self.page.as_deref() {
            // Partner: the guest's load when it wakes (docs/doorbell.md).
            page.host.requested.fetch_max(seq.0, Ordering::AcqRel);
        }
    }

    /// True if the guest declared `what` on this vCPU.
    #[must_use]
    pub fn declares(&self, what: GuestFlags) -> bool {
        // Set once before the guest's first request; seen late is only slower.
        let flags = |page: &DoorbellPage| page.guest.flags.load(Ordering::Relaxed);
        self.page.as_deref().is_some_and(|page| flags(page) & what.bits() != 0)
    }

    /// True if the vCPU idles by its own word, so that it will see what was posted
    /// when it wakes. After the caller's fence.
    #[must_use]
    pub fn idles(&self) -> bool {
        // Partner: the guest's stores around its halt; either this sees 0, or the
        // guest, after its fence, sees the number posted.
        let idle = |page: &DoorbellPage| page.guest.idle.load(Ordering::Acquire) != 0;
        self.declares(GuestFlags::DECLARES_IDLE) && self.page.as_deref().is_some_and(idle)
    }
}

/// Everything a flush of one VM needs.
#[derive(Debug)]
pub struct FlushSite {
    /// Draws the flush numbers.
    pub clock: FlushClock,
    /// One per vCPU, by number.
    pub slots: Vec<VcpuSlot>,
    /// The vCPUs that exist.
    pub present: CpuSet,
    /// When a target counts as flushed.
    pub completion: Completion,
    /// How a vCPU is made to flush before its next guest instruction.
    pub entry: EntryFlush,
    /// The process's membarrier registration.
    pub membarrier: Membarrier,
    /// Longest wait for an ack.
    pub deadline: Duration,
}

impl FlushSite {
    /// The slot of a vCPU that exists.
    #[must_use]
    pub fn slot(&self, id: VcpuId) -> &VcpuSlot {
        &self.slots[id.index()]
    }
}
