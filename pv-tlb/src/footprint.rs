//! On which pCPUs each vCPU may have left TLB entries.
//!
//! Owner: one [`Footprints`] for a VM; its keeper reports events one after the other
//! and each before it can matter: [`Footprints::entered`] before the first guest
//! instruction of a stay, [`Footprints::left`] after the last one, a flush after it
//! holds. Nothing is shared and no atomics are used.
//!
//! What is kept is a superset whatever the order of events: an entry is added as
//! soon as a vCPU may make one, and taken off only by a flush that covers it, never
//! for the pCPU on which its vCPU runs, since it may be made again at once.
//!
//! Untracked are pCPUs too high for a [`PcpuSet`], and those on which a vCPU ran that
//! has no row here. Entering one always counts as finding the entries of others, so
//! that it is flushed then and what was left there is never used.

mod pcpuset;

pub use pcpuset::PcpuSet;

use crate::cpuset::{CpuSet, MAX_CPUS};
use crate::id::{PcpuId, VcpuId};

/// The traces of one vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Footprint {
    may_hold: PcpuSet,
    /// Members of `may_hold`.
    held: u16,
    owed: PcpuSet,
    on: Option<PcpuId>,
    last: Option<PcpuId>,
}

impl Footprint {
    /// Tracked pCPUs that may hold its entries, the one it runs on included.
    #[must_use]
    pub const fn may_hold(&self) -> &PcpuSet {
        &self.may_hold
    }

    /// [`Self::may_hold`] without the pCPU it runs on: where it has left entries.
    #[must_use]
    pub fn left_behind(&self) -> PcpuSet {
        let mut left = PcpuSet::EMPTY;
        self.add_left_behind(&mut left);
        left
    }

    /// Adds [`Self::left_behind`] to `set`.
    pub fn add_left_behind(&self, set: &mut PcpuSet) {
        let own = self.on.filter(|pcpu| !set.contains(*pcpu));
        set.insert_all(&self.may_hold);
        if let Some(pcpu) = own {
            set.remove(pcpu);
        }
    }

    /// True if [`Self::left_behind`] has members.
    #[must_use]
    pub fn has_left(&self) -> bool {
        let runs = self.on.is_some_and(|pcpu| self.may_hold.contains(pcpu));
        self.held > u16::from(runs)
    }

    /// Where it runs.
    #[must_use]
    pub const fn on(&self) -> Option<PcpuId> {
        self.on
    }

    /// Where it runs, or ran last.
    #[must_use]
    pub const fn last(&self) -> Option<PcpuId> {
        self.last
    }

    /// True if its leftovers on `pcpu` must go before it runs there again.
    #[must_use]
    pub fn owes(&self, pcpu: PcpuId) -> bool {
        self.owed.contains(pcpu)
    }
}

const NOBODY: u16 = u16::MAX;

/// The footprints of a VM's vCPUs, over storage `R` that the keeper brings: an array,
/// a boxed slice, a vector.
#[derive(Clone, Debug)]
pub struct Footprints<R> {
    rows: R,
    /// How many vCPUs may hold entries on each pCPU.
    holders: [u16; MAX_CPUS as usize],
    /// How many vCPUs run on each pCPU, which are among its holders.
    runners: [u16; MAX_CPUS as usize],
    /// pCPUs with more holders than runners.
    left_behind: PcpuSet,
    /// The vCPU that entered each pCPU last, or [`NOBODY`].
    last_ran: [u16; MAX_CPUS as usize],
    /// pCPUs on which a vCPU without a row ran.
    untracked: PcpuSet,
    /// vCPUs that may hold entries anywhere.
    holding: CpuSet,
    /// vCPUs that may hold entries elsewhere than where they run.
    wandering: CpuSet,
}

impl<R: AsRef<[Footprint]> + AsMut<[Footprint]>> Footprints<R> {
    /// Empty footprints for as many vCPUs as `rows` has elements, which are cleared.
    pub fn new(mut rows: R) -> Self {
        rows.as_mut().fill(Footprint::default());
        Self {
            rows,
            holders: [0; MAX_CPUS as usize],
            runners: [0; MAX_CPUS as usize],
            left_behind: PcpuSet::EMPTY,
            last_ran: [NOBODY; MAX_CPUS as usize],
            untracked: PcpuSet::EMPTY,
            holding: CpuSet::EMPTY,
            wandering: CpuSet::EMPTY,
        }
    }

    /// The traces of `vcpu`; `None` if there is no row for it, and then nothing is
    /// known of where its entries are.
    #[must_use]
    pub fn of(&self, vcpu: VcpuId) -> Option<&Footprint> {
        self.rows.as_ref().get(vcpu.index()).filter(|_| vcpu.0 < MAX_CPUS)
    }

    /// `vcpu` is about to run on `pcpu`, after the flushes due at this entry.
    pub fn entered(&mut self, vcpu: VcpuId, pcpu: PcpuId) {
        if let Some(last) = self.last_ran.get_mut(pcpu.0 as usize) {
            *last = u16::try_from(vcpu.0).unwrap_or(NOBODY);
        }
        let Some(row) = self.row(vcpu) else {
            self.untracked.insert(pcpu);
            return;
        };
        let before = row.on.replace(pcpu);
        row.last = Some(pcpu);
        let new = !row.may_hold.contains(pcpu) && row.may_hold.insert(pcpu);
        row.held += u16::from(new);
        self.count(before, |holders, runners| (holders, runners - 1));
        self.count(Some(pcpu), |holders, runners| (holders + u16::from(new), runners + 1));
        self.summarise(vcpu);
    }

    /// `vcpu` has stopped running; its entries stay where it ran.
    pub fn left(&mut self, vcpu: VcpuId) {
        if let Some(row) = self.row(vcpu) {
            let before = row.on.take();
            self.count(before, |holders, runners| (holders, runners - 1));
            self.summarise(vcpu);
        }
    }

    /// Every entry of `vcpu` is gone from every pCPU.
    pub fn flushed(&mut self, vcpu: VcpuId) {
        let Some(row) = self.row(vcpu) else { return };
        let gone = row.left_behind();
        row.may_hold = row.may_hold.minus(&gone);
        row.held = u16::from(!row.may_hold.is_empty());
        row.owed = PcpuSet::EMPTY;
        for pcpu in gone.iter() {
            self.count(Some(pcpu), |holders, runners| (holders - 1, runners));
        }
        self.summarise(vcpu);
    }

    /// Every entry of `vcpu` is gone from `pcpu`.
    pub fn flushed_on(&mut self, vcpu: VcpuId, pcpu: PcpuId) {
        let Some(row) = self.row(vcpu) else { return };
        row.owed.remove(pcpu);
        if row.on != Some(pcpu) && row.may_hold.remove(pcpu) {
            row.held -= 1;
            self.count(Some(pcpu), |holders, runners| (holders - 1, runners));
            self.summarise(vcpu);
        }
    }

    /// Every entry of the VM is gone from `pcpu`.
    pub fn flushed_vm_on(&mut self, pcpu: PcpuId) {
        let Some(&last) = self.last_ran.get(pcpu.0 as usize) else { return };
        if self.holders[pcpu.0 as usize] == 0 {
            return;
        }
        // Where entering flushes what others left, there is no other holder.
        self.flushed_on(VcpuId(u32::from(last)), pcpu);
        if self.holders[pcpu.0 as usize] > 0 {
            for vcpu in 0..self.rows.as_ref().len() {
                self.flushed_on(VcpuId(vcpu as u32), pcpu);
            }
        }
    }

    /// What `vcpu` has left behind must go before it runs there again.
    pub fn owe(&mut self, vcpu: VcpuId) {
        if let Some(row) = self.row(vcpu) {
            row.owed.insert_all(&row.left_behind());
        }
    }

    /// The vCPU that entered `pcpu` last; `None` if none did, or if its number or the
    /// pCPU's is too high to be kept.
    #[must_use]
    pub fn last_ran(&self, pcpu: PcpuId) -> Option<VcpuId> {
        let last = *self.last_ran.get(pcpu.0 as usize)?;
        (last != NOBODY).then_some(VcpuId(u32::from(last)))
    }

    /// True if a vCPU other than `vcpu` may have entries on `pcpu`, and always if
    /// that is untracked.
    #[must_use]
    pub fn others_may_hold(&self, vcpu: VcpuId, pcpu: PcpuId) -> bool {
        let Some(holders) = self.holders.get(pcpu.0 as usize) else { return true };
        let own = self.of(vcpu).is_some_and(|row| row.may_hold.contains(pcpu));
        self.untracked.contains(pcpu) || *holders > u16::from(own)
    }

    /// Tracked pCPUs on which any vCPU may have entries without running there.
    #[must_use]
    pub const fn left_behind(&self) -> &PcpuSet {
        &self.left_behind
    }

    /// vCPUs that may have entries on tracked pCPUs.
    #[must_use]
    pub const fn holding(&self) -> &CpuSet {
        &self.holding
    }

    /// vCPUs that may have entries on tracked pCPUs other than where they run.
    #[must_use]
    pub const fn wandering(&self) -> &CpuSet {
        &self.wandering
    }

    fn row(&mut self, vcpu: VcpuId) -> Option<&mut Footprint> {
        self.rows.as_mut().get_mut(vcpu.index()).filter(|_| vcpu.0 < MAX_CPUS)
    }

    /// Changes the counts of a tracked pCPU.
    fn count(&mut self, pcpu: Option<PcpuId>, change: impl Fn(u16, u16) -> (u16, u16)) {
        let Some(pcpu) = pcpu.filter(|pcpu| pcpu.0 < MAX_CPUS) else { return };
        let i = pcpu.0 as usize;
        (self.holders[i], self.runners[i]) = change(self.holders[i], self.runners[i]);
        match self.holders[i] > self.runners[i] {
            true => _ = self.left_behind.insert(pcpu),
            false => _ = self.left_behind.remove(pcpu),
        }
    }

    /// Brings the summary sets up to date with the row of `vcpu`.
    fn summarise(&mut self, vcpu: VcpuId) {
        let Some(row) = self.of(vcpu) else { return };
        let (holds, wanders) = (row.held > 0, row.has_left());
        for (set, member) in [(&mut self.holding, holds), (&mut self.wandering, wanders)] {
            match member {
                true => _ = set.insert(vcpu),
                false => _ = set.remove(vcpu),
            }
        }
    }
}

#[cfg(test)]
#[path = "footprint/tests.rs"]
mod tests;
