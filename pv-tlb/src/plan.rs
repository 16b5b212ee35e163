//! The host's decision: what must be flushed where, when, and why.
//!
//! Pure functions over frozen values: no state, no owner, no ordering, no
//! allocation. [`plan`] answers a flush, [`plan_entry`] a vCPU about to run. Cost
//! follows the words of the vCPU set that are in use, and the targets that have left
//! entries elsewhere, up to [`EXACT_WANDERERS`] of them.
//!
//! A plan holds for the placement it was made from. Whoever executes it publishes
//! the request first and looks at the run states again after a fence; a target that
//! has begun to run meanwhile is treated as [`Reason::Running`].

mod entry;
mod policy;

pub use entry::{EntryFlush, EntryPlan, EntryReason, plan_entry};
pub use policy::{HostPolicy, Tagging, UnknownPolicy, UpgradeRule};

use crate::cpuset::{CpuSet, WORDS};
use crate::footprint::{Footprint, Footprints, PcpuSet};
use crate::id::VcpuId;
use crate::invalidation::Invalidation;
use crate::placement::Placement;

/// Up to this many of several targets with entries elsewhere, their footprints are
/// added up; beyond it the leftovers of the whole VM are taken, which only
/// over-flushes.
pub const EXACT_WANDERERS: u32 = 16;

/// When a target's flush takes place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The initiator goes on only after it.
    Now,
    /// Before the target's next guest instruction, wherever that is.
    AtNextEntry,
    /// Before the target's next guest instruction on a pCPU where it has left
    /// entries; [`Footprints::owe`] keeps the debt.
    AtReturn,
    /// Not at all by the target.
    Nothing,
}

/// Why a target's flush takes place then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It asks, and may not go on with the entries it wants gone.
    Initiator,
    /// It runs guest code.
    Running,
    /// It is out of guest mode with an access under way that may use an old
    /// translation; the flush holds only once that has ended.
    MidAccess,
    /// It is off its pCPU at an instruction boundary.
    Preempted,
    /// It waits for an interrupt.
    Halted,
    /// It is in the monitor or the host's kernel.
    InHost,
    /// It does not run, and what it left behind goes when it comes back to it.
    LeftBehind,
    /// It does not run, and the upgraded flush reaches what it left behind.
    UpgradeReaches,
    /// The hardware's broadcast reaches every pCPU.
    BroadcastReaches,
    /// It has no entries since its last complete flush, or none that it could enter
    /// upon without a flush.
    HoldsNothing,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 10] = [
        Self::Initiator,
        Self::Running,
        Self::MidAccess,
        Self::Preempted,
        Self::Halted,
        Self::InHost,
        Self::LeftBehind,
        Self::UpgradeReaches,
        Self::BroadcastReaches,
        Self::HoldsNothing,
    ];

    /// When a target with that reason flushes.
    #[must_use]
    pub const fn when(self) -> When {
        match self {
            Self::Initiator | Self::Running | Self::MidAccess => When::Now,
            Self::Preempted | Self::Halted | Self::InHost => When::AtNextEntry,
            Self::LeftBehind => When::AtReturn,
            Self::UpgradeReaches | Self::BroadcastReaches | Self::HoldsNothing => When::Nothing,
        }
    }
}

/// How far the flush is carried past the pCPUs on which its targets run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upgrade {
    /// It is not.
    None,
    /// To these pCPUs, now.
    Pcpus(PcpuSet),
    /// To every pCPU of the host, now.
    Everywhere,
    /// To what these targets left behind, once they come back to it: the executor
    /// calls [`Footprints::owe`] for each.
    AtReturn(CpuSet),
}

/// Word by word, the targets with each reason.
type Groups = [[u64; Reason::ALL.len()]; WORDS];

/// What a flush comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlushPlan {
    groups: Groups,
    upgrade: Upgrade,
    widens_barrier: bool,
}

impl FlushPlan {
    /// The targets with that reason.
    #[must_use]
    pub const fn targets(&self, reason: Reason) -> CpuSet {
        let mut words = [0; WORDS];
        let mut i = 0;
        while i < WORDS {
            words[i] = self.groups[i][reason as usize];
            i += 1;
        }
        CpuSet::from_words(words)
    }

    /// Why `vcpu` flushes when it does; `None` if it is not meant.
    #[must_use]
    pub fn reason(&self, vcpu: VcpuId) -> Option<Reason> {
        Reason::ALL.into_iter().find(|reason| self.targets(*reason).contains(vcpu))
    }

    /// The targets that flush then.
    #[must_use]
    pub fn at(&self, when: When) -> CpuSet {
        Reason::ALL
            .into_iter()
            .filter(|reason| reason.when() == when)
            .fold(CpuSet::EMPTY, |set, reason| set.or(&self.targets(reason)))
    }

    /// How far the flush is carried.
    #[must_use]
    pub const fn upgrade(&self) -> &Upgrade {
        &self.upgrade
    }

    /// True if the guest's barrier is made to wait for the upgraded flush as well.
    #[must_use]
    pub const fn widens_barrier(&self) -> bool {
        self.widens_barrier
    }
}

/// Decides what `ask` by `initiator` comes to.
///
/// vCPUs that `placement` does not know are nobody's targets. `footprints` is looked
/// at only under policies that use it.
#[must_use]
pub fn plan<R: AsRef<[Footprint]> + AsMut<[Footprint]>>(
    ask: &Invalidation,
    initiator: VcpuId,
    placement: &Placement,
    footprints: &Footprints<R>,
    policy: HostPolicy,
) -> FlushPlan {
    let rule = policy.upgrade();
    let targets = ask.reach.vcpus(initiator, placement.present());
    let upgrade = match rule {
        UpgradeRule::Never => Upgrade::None,
        UpgradeRule::Everywhere => Upgrade::Everywhere,
        UpgradeRule::Footprint => carried(&targets, placement.words(), footprints),
        UpgradeRule::FootprintAtReturn => match targets.and(footprints.wandering()) {
            CpuSet::EMPTY => Upgrade::None,
            wanderers => Upgrade::AtReturn(wanderers),
        },
    };
    FlushPlan {
        groups: sorted(&targets, initiator, placement, rule, footprints.holding()),
        widens_barrier: upgrade == Upgrade::Everywhere && policy.widens_barrier(),
        upgrade,
    }
}

/// The pCPUs on which targets have left entries.
fn carried<R: AsRef<[Footprint]> + AsMut<[Footprint]>>(
    targets: &CpuSet,
    words: usize,
    footprints: &Footprints<R>,
) -> Upgrade {
    let wandering = footprints.wandering();
    let wanderers = targets.and(wandering);
    // Counted over the words in use: a population count is not free.
    let count: u32 = wanderers.words()[..words].iter().map(|word| word.count_ones()).sum();
    if count == 0 {
        return Upgrade::None;
    }
    if count > EXACT_WANDERERS || wanderers == *wandering {
        return Upgrade::Pcpus(*footprints.left_behind());
    }
    let mut left = PcpuSet::EMPTY;
    for row in wanderers.iter().filter_map(|vcpu| footprints.of(vcpu)) {
        row.add_left_behind(&mut left);
    }
    Upgrade::Pcpus(left)
}

/// The targets by reason.
fn sorted(
    targets: &CpuSet,
    initiator: VcpuId,
    placement: &Placement,
    rule: UpgradeRule,
    holding: &CpuSet,
) -> Groups {
    let mut groups = [[0; Reason::ALL.len()]; WORDS];
    for (i, group) in groups.iter_mut().enumerate().take(placement.words()) {
        let word = |set: &CpuSet| set.words()[i];
        let asking = match initiator.index() / 64 == i {
            true => word(targets) & 1 << (initiator.0 % 64),
            false => 0,
        };
        let others = word(targets) & !asking;
        let running = others & word(placement.running());
        let mid_access = others & word(placement.mid_access());
        let off = others & !running & !mid_access;
        let mut put = |reason: Reason, members: u64| group[reason as usize] = members;
        put(Reason::Initiator, asking);
        put(Reason::MidAccess, mid_access);
        match rule {
            UpgradeRule::Never => {
                let preempted = off & word(placement.preempted());
                let halted = off & word(placement.halted());
                put(Reason::Running, running);
                put(Reason::Preempted, preempted);
                put(Reason::Halted, halted);
                put(Reason::InHost, off & !preempted & !halted);
            }
            UpgradeRule::Everywhere => put(Reason::BroadcastReaches, running | off),
            UpgradeRule::Footprint => {
                put(Reason::Running, running);
                put(Reason::UpgradeReaches, off & word(holding));
                put(Reason::HoldsNothing, off & !word(holding));
            }
            UpgradeRule::FootprintAtReturn => {
                put(Reason::Running, running);
                put(Reason::LeftBehind, off & word(holding));
                put(Reason::HoldsNothing, off & !word(holding));
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests;
