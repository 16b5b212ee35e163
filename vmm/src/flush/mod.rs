//! From a guest's request to the moment its flush holds: trap, plan, execute.
//!
//! Owner: [`FlushSite`] is shared by all vCPU threads of a VM; each element belongs
//! to one vCPU (see `VcpuSlot`).

pub mod entry;
pub mod execute;
pub mod rule;
pub mod standing;
pub mod trap;

use std::time::Duration;

use pv_tlb::CpuSet;
use pv_tlb::abi::doorbell::DoorbellPage;
use pv_tlb::abi::kvm::StealTime;
use pv_tlb::id::VcpuId;
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
