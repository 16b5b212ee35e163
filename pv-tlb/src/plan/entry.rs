//! What a vCPU that is about to run must flush first.
//!
//! Pure function. Called by the vCPU's thread once its pCPU is certain, before
//! [`Footprints::entered`]; flushes that were deferred to the entry by a plan come on
//! top.

use crate::cpuset::MAX_CPUS;
use crate::footprint::{Footprint, Footprints};
use crate::id::{PcpuId, VcpuId};
use crate::plan::{HostPolicy, Tagging, UpgradeRule};

/// What is dropped from the entered pCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryFlush {
    /// Nothing.
    Nothing,
    /// The vCPU's own tag; then [`Footprints::flushed_on`] holds.
    Vcpu,
    /// The VM's tag; then [`Footprints::flushed_vm_on`] holds.
    Vm,
}

/// Why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryReason {
    /// The policy never flushes at entry.
    NeverFlushes,
    /// Nothing on this pCPU can be out of date or somebody else's.
    Clean,
    /// The vCPU never ran before, or ran on another pCPU last.
    MovedPcpu,
    /// Another vCPU of the VM ran here last, or may have left entries here.
    OtherVcpuRan,
    /// A flush since the vCPU left this pCPU was deferred to its return.
    Owed,
    /// The policy is to pin, and the vCPU was moved or shares its pCPU.
    PinBroken,
}

/// What an entry comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryPlan {
    /// What is dropped.
    pub flush: EntryFlush,
    /// Why.
    pub reason: EntryReason,
}

/// Decides what must be flushed before `vcpu` runs on `pcpu`.
#[must_use]
pub fn plan_entry<R: AsRef<[Footprint]> + AsMut<[Footprint]>>(
    vcpu: VcpuId,
    pcpu: PcpuId,
    footprints: &Footprints<R>,
    policy: HostPolicy,
) -> EntryPlan {
    let reason = reason(vcpu, pcpu, footprints, policy);
    let flush = match (reason, policy.tagging()) {
        (EntryReason::NeverFlushes | EntryReason::Clean, _) => EntryFlush::Nothing,
        (_, Tagging::PerVcpu) => EntryFlush::Vcpu,
        (_, Tagging::PerVm) => EntryFlush::Vm,
    };
    EntryPlan { flush, reason }
}

fn reason<R: AsRef<[Footprint]> + AsMut<[Footprint]>>(
    vcpu: VcpuId,
    pcpu: PcpuId,
    footprints: &Footprints<R>,
    policy: HostPolicy,
) -> EntryReason {
    let row = footprints.of(vcpu);
    let moved = row.and_then(Footprint::last) != Some(pcpu);
    let last_ran = footprints.last_ran(pcpu);
    if !policy.may_migrate() {
        // Who else ran on a pCPU that is not tracked is unknown, so it counts as shared.
        let tracked = pcpu.0 < MAX_CPUS;
        let first = row.is_some_and(|row| row.last().is_none());
        let alone = last_ran.is_none_or(|last| last == vcpu);
        let kept = tracked && alone && (first || !moved);
        return if kept { EntryReason::Clean } else { EntryReason::PinBroken };
    }
    match policy.upgrade() {
        UpgradeRule::Footprint | UpgradeRule::FootprintAtReturn => {
            if footprints.others_may_hold(vcpu, pcpu) {
                EntryReason::OtherVcpuRan
            } else if row.is_some_and(|row| row.owes(pcpu)) {
                EntryReason::Owed
            } else {
                EntryReason::Clean
            }
        }
        UpgradeRule::Never | UpgradeRule::Everywhere => {
            if policy.flushes_on_pcpu_change() && moved {
                EntryReason::MovedPcpu
            } else if policy.flushes_on_vcpu_change() && last_ran != Some(vcpu) {
                EntryReason::OtherVcpuRan
            } else if policy.flushes_on_pcpu_change() || policy.flushes_on_vcpu_change() {
                EntryReason::Clean
            } else {
                EntryReason::NeverFlushes
            }
        }
    }
}
