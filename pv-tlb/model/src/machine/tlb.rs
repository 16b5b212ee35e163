//! What TLBs may hold: taking up, flushing, completing.
//!
//! Works on the state of one [`Moment`]; keeps nothing.

use pv_tlb::plan::UpgradeRule;

use super::state::State;
use super::{Hardware, Moment};
use crate::program::{Program, bits};
use crate::scenario::{Fills, MAX_PCPUS, MAX_VCPUS};
use crate::world::Dial;

impl Moment<'_> {
    /// After every step: each live context takes up whatever is valid in it.
    pub(super) fn speculate(&mut self) {
        if self.program.fills == Fills::Demand {
            return;
        }
        for vcpu in 0..self.program.vcpus {
            let space = usize::from(self.state.vcpus[vcpu].space);
            let valid = self.state.valid & self.program.in_space[space];
            self.reference_takes_up(vcpu, valid);
            if self.hardware == Hardware::MayHold && self.state.is_in_guest(vcpu) {
                self.take_up(vcpu, valid);
            }
        }
    }

    pub(super) fn reference_takes_up(&mut self, vcpu: usize, translations: u64) {
        self.state.reference[vcpu] |= translations;
        for issuer in &mut self.state.reference_open {
            issuer[vcpu] &= !translations;
        }
    }

    /// The pCPU of a running vCPU takes up translations.
    pub(super) fn take_up(&mut self, vcpu: usize, translations: u64) {
        let vcpu = &self.state.vcpus[vcpu];
        let entries = self.program.tagged(translations, vcpu.tag);
        let pcpu = usize::from(vcpu.pcpu);
        self.state.tlb[pcpu] |= entries;
        if self.hardware == Hardware::MayHold {
            // The open flush may have come before, so it need not drop this fill.
            for issuer in &mut self.state.open {
                issuer[pcpu] &= !entries;
            }
        }
    }

    /// The pCPU drops `entries` now.
    pub(super) fn drop_now(&mut self, pcpu: usize, entries: u64) {
        self.price.dropped += (self.state.tlb[pcpu] & entries).count_ones();
        self.state.tlb[pcpu] &= !entries;
        if self.hardware == Hardware::MayHold {
            for issuer in &mut self.state.open {
                issuer[pcpu] &= !entries;
            }
        }
    }

    /// pCPU `issuer` asks pCPU `holder` to drop `entries` some time before its barrier.
    fn ask(&mut self, issuer: usize, holder: usize, entries: u64) {
        let held = self.state.tlb[holder];
        // Counted when asked for: what may be refilled at once is still a loss.
        self.price.dropped += (held & entries).count_ones();
        self.state.open[issuer][holder] |= match self.hardware {
            Hardware::MayHold => entries & held,
            Hardware::Literal => entries,
        };
        if self.state.early[issuer] != 0 {
            self.state.repeated |= 1 << issuer;
        }
        self.state.half_synced &= !(1 << issuer);
    }

    pub(super) fn ask_everywhere(&mut self, issuer: usize, entries: u64) {
        let domain = self.program.broadcast_domain();
        for holder in 0..domain {
            self.ask(issuer, holder, entries);
        }
        self.price.broadcasts += 1;
        self.price.disturbed += domain as u32 - 1;
    }

    /// A flush of `translations` by a local instruction of a running vCPU.
    pub(super) fn flush_locally(&mut self, vcpu: usize, translations: u64) {
        self.reference_flush(vcpu, 1 << vcpu, translations);
        let tag = self.state.vcpus[vcpu].tag;
        let pcpu = usize::from(self.state.vcpus[vcpu].pcpu);
        let entries = self.program.tagged(translations, tag);
        let is_synchronous = self.program.isa.local_flush_is_synchronous();
        match self.program.policy.upgrade() {
            UpgradeRule::Never => self.flush_here(pcpu, entries),
            UpgradeRule::Everywhere => {
                self.ask_everywhere(pcpu, entries);
                if is_synchronous {
                    self.complete(pcpu, self.program.barrier_stays_here(true));
                }
            }
            UpgradeRule::Footprint => self.flush_footprint(vcpu, translations),
            UpgradeRule::FootprintAtReturn => {
                self.flush_here(pcpu, entries);
                self.leave_for_return(vcpu);
            }
        }
    }

    fn flush_here(&mut self, pcpu: usize, entries: u64) {
        if self.program.isa.local_flush_is_synchronous() {
            self.drop_now(pcpu, entries);
        } else {
            self.ask(pcpu, pcpu, entries);
        }
    }

    /// The host traps the flush and carries it to the vCPU's footprint at once.
    fn flush_footprint(&mut self, vcpu: usize, translations: u64) {
        let Some(here) = self.state.pcpu_of(vcpu) else { return };
        let entries = self.program.tagged(translations, self.state.vcpus[vcpu].tag);
        let footprint = self.state.vcpus[vcpu].footprint;
        for pcpu in bits(footprint.into()) {
            self.drop_now(pcpu, entries);
        }
        self.price.disturbed += (footprint & !(1 << here)).count_ones();
        if translations == self.program.everything() {
            self.state.vcpus[vcpu].footprint = 1 << here;
        }
    }

    fn leave_for_return(&mut self, vcpu: usize) {
        let vcpu = &mut self.state.vcpus[vcpu];
        vcpu.leftovers |= vcpu.footprint & !(1 << vcpu.pcpu);
    }

    /// The host flushes for a vCPU on the pCPU that it occupies, and as far beyond
    /// as the policy carries the vCPU's own flushes.
    pub(super) fn flush_for(&mut self, vcpu: usize, translations: u64) {
        let entries = self.program.tagged(translations, self.state.vcpus[vcpu].tag);
        let pcpu = usize::from(self.state.vcpus[vcpu].pcpu);
        match self.program.policy.upgrade() {
            UpgradeRule::Never => self.drop_now(pcpu, entries),
            UpgradeRule::Everywhere => {
                let domain = self.program.broadcast_domain();
                (0..domain).for_each(|pcpu| self.drop_now(pcpu, entries));
                // A device that no broadcast reaches is still told by command.
                self.drop_now(pcpu, entries);
                self.price.broadcasts += 1;
                self.price.disturbed += domain as u32 - 1;
            }
            UpgradeRule::Footprint => self.flush_footprint(vcpu, translations),
            UpgradeRule::FootprintAtReturn => {
                self.drop_now(pcpu, entries);
                self.leave_for_return(vcpu);
            }
        }
    }

    /// A local flush together with the barrier that a flush interrupt ends with.
    pub(super) fn flush_and_sync(&mut self, vcpu: usize, translations: u64) {
        let pcpu = usize::from(self.state.vcpus[vcpu].pcpu);
        self.flush_locally(vcpu, translations);
        self.complete(pcpu, self.program.barrier_stays_here(true));
        self.reference_drops(vcpu, translations);
    }

    /// The reference: reference CPU `issuer` flushes `translations` on `holders`.
    pub(super) fn reference_flush(&mut self, issuer: usize, holders: u8, translations: u64) {
        let is_local = holders == 1 << issuer;
        for holder in bits(holders.into()) {
            if is_local && self.program.isa.local_flush_is_synchronous() {
                self.reference_drops(holder, translations);
            } else {
                let held = self.state.reference[holder];
                self.state.reference_open[issuer][holder] |= translations & held;
            }
        }
        self.state.half_synced &= !(0x10 << issuer);
    }

    /// The reference CPU `holder` drops `translations` now.
    pub(super) fn reference_drops(&mut self, holder: usize, translations: u64) {
        self.state.reference[holder] &= !translations;
        for issuer in &mut self.state.reference_open {
            issuer[holder] &= !translations;
        }
    }

    /// The barrier of pCPU `issuer` has completed its open flushes.
    pub(super) fn complete(&mut self, issuer: usize, only_here: bool) {
        for holder in 0..MAX_PCPUS {
            if !only_here || holder == issuer {
                self.deliver(issuer, holder);
            }
        }
    }

    /// pCPU `to` acts on the open flushes of pCPU `from`.
    pub(super) fn deliver(&mut self, from: usize, to: usize) {
        let entries = core::mem::take(&mut self.state.open[from][to]);
        self.state.tlb[to] &= !entries;
    }

    /// The reference's barrier of CPU `issuer`.
    pub(super) fn reference_completes(&mut self, issuer: usize, only_here: bool) {
        for holder in 0..MAX_VCPUS {
            if !only_here || holder == issuer {
                let due = core::mem::take(&mut self.state.reference_open[issuer][holder]);
                self.state.reference[holder] &= !due;
            }
        }
    }

    /// What pCPU entry drops: the tag's entries, in a split TLB perhaps not all.
    pub(super) fn flush_tag(&mut self, pcpu: usize, tag: u8) {
        let mut translations = self.program.everything();
        if self.program.has(Dial::GvmaOnly) {
            translations &= !self.program.stage1_only;
        }
        let entries = self.program.tagged(translations, tag);
        self.drop_now(pcpu, entries);
    }
}

/// True if a running vCPU other than `but` is in the middle of an access through an
/// entry that is among those `asked` of its pCPU.
pub(super) fn latched(
    program: &Program,
    state: &State,
    but: usize,
    asked: impl Fn(usize) -> u64,
) -> bool {
    (0..program.vcpus).any(|id| {
        let vcpu = &state.vcpus[id];
        let Some(latch) = vcpu.latch.checked_sub(1) else { return false };
        let entry = program.tagged(1 << latch, vcpu.tag);
        id != but && state.is_in_guest(id) && entry & asked(usize::from(vcpu.pcpu)) != 0
    })
}
