//! A scenario made ready to run in one world.
//!
//! Plain values without state or ordering. Everything that can be known before the
//! first step is worked out here: each translation gets a bit, each flush the mask
//! of bits it covers, each line the small steps that other actors can come between.

mod compile;
mod lower;
mod micro;
mod translation;

pub use compile::{CompileError, compile};
pub use micro::{Instruction, Micro};

use pv_tlb::plan::{HostPolicy, Tagging, UpgradeRule};

use crate::scenario::{Fills, Isa, MAX_VCPUS};
use crate::world::{Dial, Dials};
use translation::Translation;

/// Actors of a phase: the vCPUs and, last, the host.
pub const ACTORS: usize = MAX_VCPUS + 1;
/// The host's place among the actors.
pub const HOST: usize = MAX_VCPUS;

/// Lines of one phase, per actor, as small steps.
#[derive(Clone, Debug, Default)]
pub struct CompiledPhase {
    /// In program order per actor.
    pub actors: [Vec<Instruction>; ACTORS],
}

/// A scenario compiled for one world.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) isa: Isa,
    pub(crate) policy: HostPolicy,
    pub(crate) dials: Dials,
    pub(crate) fills: Fills,
    pub(crate) vcpus: usize,
    pub(crate) devices: usize,
    /// All pCPUs, the devices' own ones last.
    pub(crate) pcpus: usize,
    pub(crate) vm_of: [u8; MAX_VCPUS],
    pub(crate) start: [Start; MAX_VCPUS],
    pub(crate) free_moves: [u8; MAX_VCPUS],
    pub(crate) phases: Vec<CompiledPhase>,
    /// Valid page-table entries at the start.
    pub(crate) initial: u64,
    pub(crate) translations: Vec<Translation>,
    /// Per flush: the translations it covers.
    pub(crate) flushes: Vec<u64>,
    /// Per space: the translations that its tables can hold.
    pub(crate) in_space: Vec<u64>,
    /// Per page and loaded space: translations that an access to the page can hit.
    pub(crate) hits: Vec<Vec<u64>>,
    /// Translations of pages, tables left out.
    pub(crate) leaves: u64,
    /// Per frame: translations that end there.
    pub(crate) to_frame: Vec<u64>,
    /// Translations that allow writes, tables included.
    pub(crate) writable: u64,
    /// Entries that hold only stage 1 in a split TLB.
    pub(crate) stage1_only: u64,
    /// True if the `preempted` byte matters, so that its accesses are steps.
    pub(crate) uses_flag: bool,
}

/// Where a vCPU starts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Start {
    /// pCPU plus 1; 0 if off.
    pub(crate) on: u8,
    pub(crate) space: u8,
    pub(crate) tag: u8,
}

impl Program {
    /// Number of translations: the distance between the entries of two tags.
    pub(crate) fn width(&self) -> usize {
        self.translations.len()
    }

    /// `translations` as entries of `tag`.
    pub(crate) fn tagged(&self, translations: u64, tag: u8) -> u64 {
        translations << (usize::from(tag) * self.width())
    }

    /// Those of `entries` that belong to `tag`, as translations.
    pub(crate) fn untagged(&self, entries: u64, tag: u8) -> u64 {
        (entries >> (usize::from(tag) * self.width())) & self.everything()
    }

    /// Every translation.
    pub(crate) fn everything(&self) -> u64 {
        ones(self.width())
    }

    pub(crate) fn has(&self, dial: Dial) -> bool {
        self.dials.has(dial)
    }

    /// True if a barrier, written for the own TLB only or not, waits for no other pCPU.
    pub(crate) fn barrier_stays_here(&self, is_written_local: bool) -> bool {
        let is_upgraded = self.policy.upgrade() == UpgradeRule::Everywhere;
        is_written_local && !(is_upgraded && self.policy.widens_barrier())
    }

    /// True if the host waits for open broadcasts before a vCPU changes pCPU.
    pub(crate) fn drains(&self) -> bool {
        self.policy.drains_on_switch() && !self.has(Dial::NoDrain)
    }

    /// True if a guest's broadcasts are trapped, because its vCPUs have tags of their own.
    pub(crate) fn traps_broadcasts(&self) -> bool {
        self.policy.tagging() == Tagging::PerVcpu && !self.has(Dial::RawBroadcast)
    }

    /// The vCPUs of the same VM as `vcpu`, as bits.
    pub(crate) fn vm_mates(&self, vcpu: usize) -> u8 {
        let same = |other: &usize| self.vm_of[*other] == self.vm_of[vcpu];
        (0..self.vcpus).filter(same).fold(0, |mask, other| mask | 1 << other)
    }

    /// pCPUs that a broadcast reaches.
    pub(crate) fn broadcast_domain(&self) -> usize {
        if self.has(Dial::DeviceDeaf) { self.pcpus - self.devices } else { self.pcpus }
    }

    /// `v0`, or `d0` for a device.
    #[must_use]
    pub fn vcpu_name(&self, vcpu: usize) -> String {
        match vcpu.checked_sub(self.vcpus - self.devices) {
            Some(device) => format!("d{device}"),
            None => format!("v{vcpu}"),
        }
    }

    /// What entry number `entry` of a TLB is, for people: `X->F (asid 5)`.
    #[must_use]
    pub fn describe(&self, translation: usize) -> &str {
        &self.translations[translation].text
    }
}

/// The lowest `count` bits.
pub(crate) fn ones(count: usize) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

/// The numbers of the bits of `mask`, rising.
pub(crate) fn bits(mut mask: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let bit = mask.trailing_zeros() as usize;
        mask &= mask.checked_sub(1)?;
        Some(bit)
    })
}
