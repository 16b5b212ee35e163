//! What the host does: taking vCPUs off, bringing them back, tags.
//!
//! Works on the state of one [`Moment`]; keeps nothing.

use pv_tlb::plan::{HostPolicy, Tagging, UpgradeRule};

use super::Moment;
use super::state::Stage;
use crate::program::{Micro, bits};
use crate::world::Dial;

/// Bits of the `preempted` byte (Linux `KVM_VCPU_PREEMPTED`, `KVM_VCPU_FLUSH_TLB`).
const PREEMPTED: u8 = 1;
const FLUSH: u8 = 2;

impl Moment<'_> {
    pub(super) fn host(&mut self, micro: Micro) {
        match micro {
            Micro::Exit(vcpu) => self.exit(vcpu.into()),
            Micro::MarkLoad(vcpu) => self.hold_byte(vcpu.into(), Stage::LeftByte),
            Micro::Mark(vcpu) => self.mark(vcpu.into()),
            Micro::Load(vcpu, pcpu) => self.load(vcpu.into(), pcpu.into()),
            Micro::ExchangeLoad(vcpu) => self.hold_byte(vcpu.into(), Stage::LoadedByte),
            Micro::Exchange(vcpu) => self.exchange(vcpu.into()),
            Micro::Enter(vcpu) => self.enter(vcpu.into()),
            Micro::GiveTag(from, to) => self.give_tag(from, to),
            Micro::HostFlush => self.host_flush(),
            // The rest is the guest's.
            _ => {}
        }
    }

    fn exit(&mut self, id: usize) {
        let pcpu = usize::from(self.state.vcpus[id].pcpu);
        if self.program.drains() {
            self.complete(pcpu, false);
        }
        self.state.vcpus[id].stage = if self.program.uses_flag { Stage::Left } else { Stage::Off };
    }

    fn hold_byte(&mut self, id: usize, next: Stage) {
        let vcpu = &mut self.state.vcpus[id];
        vcpu.byte_held = vcpu.byte;
        vcpu.stage = next;
    }

    fn mark(&mut self, id: usize) {
        let vcpu = &mut self.state.vcpus[id];
        let is_at_boundary = !vcpu.is_mid_access || self.program.has(Dial::MarkMidInstruction);
        if is_at_boundary {
            if self.program.has(Dial::LostFlag) {
                vcpu.byte = vcpu.byte_held | PREEMPTED;
            } else if vcpu.byte == 0 || self.program.has(Dial::FlagOverwrite) {
                // Not over a byte that already asks for a flush.
                vcpu.byte = PREEMPTED;
            }
        }
        vcpu.byte_held = 0;
        vcpu.stage = Stage::Off;
    }

    fn load(&mut self, id: usize, pcpu: usize) {
        let vm = usize::from(self.program.vm_of[id]);
        let here = 1 << pcpu;
        if self.must_flush_at_entry(id, pcpu) {
            let tag = self.state.vcpus[id].tag;
            self.flush_tag(pcpu, tag);
            self.shrink_footprints(id, here);
        }
        self.state.last_ran[pcpu][vm] = id as u8 + 1;
        let vcpu = &mut self.state.vcpus[id];
        vcpu.leftovers &= !here;
        vcpu.footprint |= here;
        vcpu.pcpu = pcpu as u8;
        vcpu.last_pcpu = pcpu as u8 + 1;
        vcpu.stage = Stage::Loaded;
        if !self.program.uses_flag {
            self.enter(id);
        }
    }

    /// The rules of `pv_tlb::plan::plan_entry`, which a test holds this to; its
    /// footprints are too large to be part of a state.
    fn must_flush_at_entry(&self, id: usize, pcpu: usize) -> bool {
        let policy = self.program.policy;
        let vcpu = &self.state.vcpus[id];
        let here = 1 << pcpu;
        if matches!(policy.upgrade(), UpgradeRule::Footprint | UpgradeRule::FootprintAtReturn) {
            let mates = self.program.vm_mates(id) & !(1 << id);
            let others_may_hold =
                bits(mates.into()).any(|mate| self.state.vcpus[mate].footprint & here != 0);
            return others_may_hold || vcpu.leftovers & here != 0;
        }
        let vm = usize::from(self.program.vm_of[id]);
        let has_moved = usize::from(vcpu.last_pcpu) != pcpu + 1;
        let other_ran = usize::from(self.state.last_ran[pcpu][vm]) != id + 1;
        policy.flushes_on_pcpu_change() && has_moved || policy.flushes_on_vcpu_change() && other_ran
    }

    /// The pCPU holds nothing of the tag any more: nobody who uses it left anything.
    fn shrink_footprints(&mut self, id: usize, here: u8) {
        let mates = self.program.vm_mates(id);
        let is_per_vm = self.program.policy.tagging() == Tagging::PerVm;
        for (mate, vcpu) in self.state.vcpus.iter_mut().enumerate() {
            if mate == id || is_per_vm && mates & 1 << mate != 0 {
                vcpu.footprint &= !here;
                vcpu.leftovers &= !here;
            }
        }
    }

    fn exchange(&mut self, id: usize) {
        let is_split = self.program.has(Dial::LostFlag);
        let keeps = self.program.has(Dial::FlagNeverCleared);
        let vcpu = &mut self.state.vcpus[id];
        let old = if is_split { vcpu.byte_held } else { vcpu.byte };
        if !keeps {
            vcpu.byte = 0;
        }
        vcpu.byte_held = 0;
        vcpu.stage = Stage::Taken;
        if old & FLUSH != 0 {
            self.state.owed[id] = self.program.everything();
        }
    }

    fn enter(&mut self, id: usize) {
        if !self.program.has(Dial::FlushLate) {
            self.serve_owed(id);
        }
        self.state.vcpus[id].stage = Stage::Guest;
    }

    fn give_tag(&mut self, from: u8, to: u8) {
        let old_tags: Vec<u8> = self.tags_of(from);
        let is_flushed =
            !self.program.has(Dial::NoRolloverFlush) && self.program.policy != HostPolicy::None;
        if is_flushed {
            for tag in &old_tags {
                (0..self.program.pcpus).for_each(|pcpu| self.flush_tag(pcpu, *tag));
            }
            self.price.broadcasts += 1;
            self.price.disturbed += self.program.pcpus as u32 - 1;
        }
        let takers = (0..self.program.vcpus).filter(|id| self.program.vm_of[*id] == to);
        for (id, tag) in takers.zip(old_tags.iter().cycle()) {
            self.state.vcpus[id].tag = *tag;
        }
    }

    /// The tags that the VM's vCPUs carry, in the order of the vCPUs.
    fn tags_of(&self, vm: u8) -> Vec<u8> {
        (0..self.program.vcpus)
            .filter(|id| self.program.vm_of[*id] == vm)
            .map(|id| self.state.vcpus[id].tag)
            .collect()
    }

    /// The host's own broadcast: with its own tag it touches no guest.
    fn host_flush(&mut self) {
        self.price.broadcasts += 1;
        self.price.disturbed += self.program.pcpus as u32 - 1;
        if self.program.has(Dial::HostFlushUntagged) {
            (0..self.program.pcpus).for_each(|pcpu| self.drop_now(pcpu, u64::MAX));
        }
    }
}
