//! Where the vCPUs of one VM are.
//!
//! Owner: whoever learns of run states; it freezes a copy, or lends this one, for
//! each decision. A plain value without sharing: a state that changes after the
//! decision is the executor's business (publish, fence, look again). States kept
//! by kind in sets, so that a decision works on words and not on vCPUs.

use crate::cpuset::{CpuSet, MAX_CPUS};
use crate::id::{PcpuId, VcpuId};

/// What a vCPU is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// In guest mode, or about to be, on this pCPU.
    Running(PcpuId),
    /// Taken off this pCPU at an instruction boundary: it runs nothing for the guest,
    /// emulation included, until its next entry.
    Preempted(PcpuId),
    /// Waiting for an interrupt of the guest's.
    Halted,
    /// Outside guest mode, its thread in the monitor or in the host's kernel.
    InHost {
        /// An access of the guest's may be under way with an address already
        /// translated, so that a flush holds only once it has ended.
        mid_access: bool,
    },
}

/// The run states of a VM's vCPUs.
#[derive(Clone, Debug)]
pub struct Placement {
    present: CpuSet,
    running: CpuSet,
    preempted: CpuSet,
    halted: CpuSet,
    mid_access: CpuSet,
    /// The pCPU of a running or preempted vCPU; meaningless for others.
    pcpus: [PcpuId; MAX_CPUS as usize],
    words: usize,
}

impl Default for Placement {
    fn default() -> Self {
        Self::new()
    }
}

impl Placement {
    /// A VM without vCPUs.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            present: CpuSet::EMPTY,
            running: CpuSet::EMPTY,
            preempted: CpuSet::EMPTY,
            halted: CpuSet::EMPTY,
            mid_access: CpuSet::EMPTY,
            pcpus: [PcpuId(0); MAX_CPUS as usize],
            words: 0,
        }
    }

    /// Sets the state of `vcpu`, which exists from then on; false, and no change, if
    /// its number is too high for a [`CpuSet`].
    pub fn set(&mut self, vcpu: VcpuId, state: RunState) -> bool {
        if !self.present.insert(vcpu) {
            return false;
        }
        self.words = self.words.max(vcpu.index() / 64 + 1);
        for set in [&mut self.running, &mut self.preempted, &mut self.halted, &mut self.mid_access]
        {
            set.remove(vcpu);
        }
        match state {
            RunState::Running(pcpu) => {
                self.running.insert(vcpu);
                self.pcpus[vcpu.index()] = pcpu;
            }
            RunState::Preempted(pcpu) => {
                self.preempted.insert(vcpu);
                self.pcpus[vcpu.index()] = pcpu;
            }
            RunState::Halted => {
                self.halted.insert(vcpu);
            }
            RunState::InHost { mid_access: true } => {
                self.mid_access.insert(vcpu);
            }
            RunState::InHost { mid_access: false } => {}
        }
        true
    }

    /// The state of `vcpu`, if it exists.
    #[must_use]
    pub fn get(&self, vcpu: VcpuId) -> Option<RunState> {
        let pcpu = *self.pcpus.get(vcpu.index())?;
        if !self.present.contains(vcpu) {
            return None;
        }
        Some(if self.running.contains(vcpu) {
            RunState::Running(pcpu)
        } else if self.preempted.contains(vcpu) {
            RunState::Preempted(pcpu)
        } else if self.halted.contains(vcpu) {
            RunState::Halted
        } else {
            RunState::InHost { mid_access: self.mid_access.contains(vcpu) }
        })
    }

    /// The vCPUs that exist.
    #[must_use]
    pub const fn present(&self) -> &CpuSet {
        &self.present
    }

    /// Those in guest mode.
    #[must_use]
    pub const fn running(&self) -> &CpuSet {
        &self.running
    }

    /// Those preempted at an instruction boundary.
    #[must_use]
    pub const fn preempted(&self) -> &CpuSet {
        &self.preempted
    }

    /// Those halted.
    #[must_use]
    pub const fn halted(&self) -> &CpuSet {
        &self.halted
    }

    /// Those outside guest mode with an access under way.
    #[must_use]
    pub const fn mid_access(&self) -> &CpuSet {
        &self.mid_access
    }

    /// Words of a set that can have members; later ones are 0.
    #[must_use]
    pub const fn words(&self) -> usize {
        self.words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [RunState; 5] = [
        RunState::Running(PcpuId(3)),
        RunState::Preempted(PcpuId(4000)),
        RunState::Halted,
        RunState::InHost { mid_access: false },
        RunState::InHost { mid_access: true },
    ];

    #[test]
    fn a_vcpu_is_in_the_state_set_last_and_in_no_other() {
        let mut placement = Placement::new();
        for first in STATES {
            for second in STATES {
                assert!(placement.set(VcpuId(70), first));
                assert!(placement.set(VcpuId(70), second));
                assert_eq!(placement.get(VcpuId(70)), Some(second));
            }
        }
        assert_eq!(placement.words(), 2);
    }

    #[test]
    fn a_vcpu_that_was_never_set_does_not_exist() {
        let mut placement = Placement::new();
        assert_eq!(placement.get(VcpuId(0)), None);
        assert_eq!(placement.get(VcpuId(MAX_CPUS)), None);
        assert!(!placement.set(VcpuId(MAX_CPUS), RunState::Halted));
        assert!(placement.present().is_empty());
    }
}
