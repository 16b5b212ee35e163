//! What is explored: an algorithm, the vCPUs' programs, the host and the hardware.
//!
//! Plain values.

use super::doorbell::Order;
use super::mutant::Mutant;
use super::program::{Algorithm, Op};
use super::replay::Constants;

/// The host under the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Host {
    /// Every vCPU has a pCPU of its own for ever.
    #[default]
    Absent,
    /// KVM with the preempted byte.
    KvmPv,
    /// This project's monitor.
    Doorbell,
}

/// One question to the explorer. See the module text.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Name in tables.
    pub name: &'static str,
    /// What the programs do, for tables.
    pub asks: &'static str,
    /// What the guest runs.
    pub algorithm: Algorithm,
    /// The mistake in it, if any.
    pub mutant: Option<Mutant>,
    /// Address-space slots of a vCPU, at most 3; 1 stands for a machine without PCIDs.
    pub slots: u8,
    /// Operations that every vCPU has behind it, one vCPU after the other.
    pub prologue: Vec<Op>,
    /// One program for each vCPU, in all interleavings.
    pub programs: Vec<Vec<Op>>,
    /// The walker may fill entries of the loaded mm at any time.
    pub speculates: bool,
    /// Plain stores reach memory late, in order.
    pub store_buffers: bool,
    /// The host.
    pub host: Host,
    /// A doorbell flush completes by membarrier instead of acks.
    pub membarrier: bool,
    /// Times that the host may take each vCPU out of the guest unasked; none for those
    /// that are not listed.
    pub preemptions: &'static [u8],
    /// The host may move each vCPU to another pCPU, once.
    pub migrates: bool,
    /// The hardware has erratum 1718.
    pub erratum_1718: bool,
    /// Random walks to make instead of visiting every state; 0 for none.
    pub random_walks: u64,
}

impl Setup {
    /// The programs over `algorithm`, every vCPU with mm 1 loaded, and nothing else.
    #[must_use]
    pub fn new(
        name: &'static str,
        algorithm: Algorithm,
        (asks, programs): (&'static str, &[&[Op]]),
    ) -> Self {
        Self {
            name,
            asks,
            algorithm,
            mutant: None,
            slots: 2,
            prologue: vec![Op::Switch(1)],
            programs: programs.iter().map(|program| program.to_vec()).collect(),
            speculates: false,
            store_buffers: false,
            host: Host::Absent,
            membarrier: false,
            preemptions: &[],
            migrates: false,
            erratum_1718: false,
            random_walks: 0,
        }
    }

    /// The same with a mistake in it.
    #[must_use]
    pub fn with(self, mutant: Mutant) -> Self {
        Self { mutant: Some(mutant), ..self }
    }

    pub(super) fn constants(&self) -> Constants {
        let host = match self.mutant {
            Some(Mutant::LookBeforePost) => Order::LookFirst,
            Some(Mutant::MembarrierBeforeSignal) => Order::MembarrierFirst,
            Some(Mutant::NoSignal) => Order::NoSignal,
            _ if self.membarrier => Order::Membarrier,
            _ => Order::Acks,
        };
        let vcpus = self.programs.len() as u32;
        Constants { vcpus, slots: self.slots, host, mutant: self.mutant }
    }

    /// The operation of a vCPU by its index, those of the prologue first.
    pub(super) fn op(&self, vcpu: usize, at: u8) -> Option<Op> {
        let at = usize::from(at);
        let own = || self.programs[vcpu].get(at - self.prologue.len());
        self.prologue.get(at).or_else(own).copied()
    }
}
