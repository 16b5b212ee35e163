//! What guest code does, and what the host does at once on its behalf.
//!
//! Works on the state of one [`Moment`]; keeps nothing.

use super::Moment;
use super::access::Fault;
use super::tlb::latched;
use crate::program::{Micro, bits};
use crate::scenario::Isa;
use crate::world::Dial;

impl Moment<'_> {
    pub(super) fn guest(&mut self, vcpu: usize, micro: Micro, choice: usize) -> Result<(), Fault> {
        match micro {
            Micro::Access(kind, page, must) => self.access(vcpu, kind, page.into(), must)?,
            Micro::Begin(kind, page) => self.begin(vcpu, kind, page.into(), choice)?,
            Micro::Finish => self.finish(vcpu)?,
            Micro::FlushBroadcast(flush) => self.flush_broadcast(vcpu, self.flush(flush))?,
            Micro::FlushLocal(flush) => self.flush_locally(vcpu, self.flush(flush)),
            Micro::Store { clear, set } => {
                self.state.valid = self.state.valid & !clear | set;
                // A new value is a new translation, whatever its frame was before.
                self.state.dead &= !set;
                self.state.frozen &= !set;
            }
            Micro::Switch(space, flush) => self.switch(vcpu, space, flush),
            Micro::Sync(here) => self.sync(vcpu, here),
            Micro::Free(frame) => self.state.dead |= self.program.to_frame[usize::from(frame)],
            Micro::Freeze(frame) => {
                self.state.frozen |= self.program.to_frame[usize::from(frame)];
            }
            Micro::Set(mark) => self.state.marks |= 1 << mark,
            _ => self.ask_others(vcpu, micro),
        }
        Ok(())
    }

    fn ask_others(&mut self, vcpu: usize, micro: Micro) {
        match micro {
            Micro::SendIpi(target, flush) => self.send_interrupt(vcpu, target.into(), flush),
            Micro::FlagLoad(target) => {
                self.state.vcpus[vcpu].byte_seen = self.state.vcpus[usize::from(target)].byte;
            }
            Micro::FlagSwap(target, flush) => self.flag_swap(vcpu, target.into(), flush),
            Micro::HostPost(targets, flush) => self.host_post(vcpu, targets, flush),
            Micro::HostWait(targets) => self.host_wait(vcpu, targets),
            Micro::RarPayload(slot, flush) => {
                self.state.rar.payload[usize::from(slot)] = flush + 1;
            }
            Micro::RarArm(target, slot) => self.rar_arm(vcpu, target.into(), slot.into()),
            Micro::RarRing(target) => self.rar_ring(target.into()),
            Micro::RarWait(target, slot) => self.rar_wait(target.into(), slot.into()),
            // The rest waits in the list of enabled steps and does nothing itself.
            _ => {}
        }
    }

    pub(super) fn flush(&self, number: u8) -> u64 {
        self.program.flushes[usize::from(number)]
    }

    fn flush_broadcast(&mut self, vcpu: usize, translations: u64) -> Result<(), Fault> {
        if self.program.isa == Isa::X86 && self.program.has(Dial::InvlpgbLie) {
            return Err(Fault::Undefined { vcpu: vcpu as u8 });
        }
        let mates = self.program.vm_mates(vcpu);
        self.reference_flush(vcpu, mates, translations);
        let pcpu = usize::from(self.state.vcpus[vcpu].pcpu);
        if self.program.traps_broadcasts() {
            for mate in bits(mates.into()) {
                let entries = self.program.tagged(translations, self.state.vcpus[mate].tag);
                (0..self.program.broadcast_domain()).for_each(|pcpu| self.drop_now(pcpu, entries));
                let is_kicked = mate != vcpu && self.state.is_in_guest(mate);
                self.price.disturbed += u32::from(is_kicked);
            }
        } else {
            let entries = self.program.tagged(translations, self.state.vcpus[vcpu].tag);
            self.ask_everywhere(pcpu, entries);
        }
        Ok(())
    }

    fn switch(&mut self, vcpu: usize, space: u8, flush: u8) {
        self.state.vcpus[vcpu].space = space;
        if let Some(flush) = flush.checked_sub(1) {
            self.flush_locally(vcpu, self.flush(flush));
        }
    }

    fn sync(&mut self, vcpu: usize, here: bool) {
        let pcpu = usize::from(self.state.vcpus[vcpu].pcpu);
        let stays_here = self.program.barrier_stays_here(here);
        let (own, reference) = (1 << pcpu, 0x10 << vcpu);
        if self.program.has(Dial::TlbsyncTwice) {
            let before = self.state.half_synced;
            self.state.half_synced |= own | reference;
            if before & own != 0 {
                self.complete(pcpu, stays_here);
            }
            if before & reference != 0 {
                self.reference_completes(vcpu, here);
            }
            return;
        }
        if self.program.has(Dial::RepeatTlbi) {
            self.note_early(vcpu, pcpu);
        }
        self.complete(pcpu, stays_here);
        self.reference_completes(vcpu, here);
    }

    /// Under [`Dial::RepeatTlbi`]: remembers the accesses that this barrier did not
    /// wait for, or forgets them if it is a repeated one.
    fn note_early(&mut self, vcpu: usize, pcpu: usize) {
        if self.state.repeated & 1 << pcpu != 0 {
            self.state.early[pcpu] = 0;
            self.state.repeated &= !(1 << pcpu);
            return;
        }
        let open = self.state.open[pcpu];
        let is_overtaken = latched(self.program, self.state, vcpu, |holder| open[holder]);
        if is_overtaken {
            self.state.early[pcpu] |= open.iter().fold(0, |all, entries| all | entries);
        }
    }

    fn send_interrupt(&mut self, sender: usize, target: usize, flush: u8) {
        self.state.interrupts[target][sender] = flush + 1;
        self.price.disturbed += u32::from(self.state.is_in_guest(target));
    }

    /// The vCPU takes the interrupt, flushes and answers.
    pub(super) fn interrupt(&mut self, target: usize, sender: usize) {
        let flush = core::mem::take(&mut self.state.interrupts[target][sender]);
        self.flush_and_sync(target, self.flush(flush - 1));
    }

    fn flag_swap(&mut self, vcpu: usize, target: usize, flush: u8) {
        let seen = core::mem::take(&mut self.state.vcpus[vcpu].byte_seen);
        if seen & 1 == 0 || self.state.vcpus[target].byte != seen {
            return self.send_interrupt(vcpu, target, flush);
        }
        self.state.vcpus[target].byte = seen | 2;
        // From here on the guest counts the target as flushed.
        self.reference_drops(target, self.flush(flush));
    }

    fn host_post(&mut self, vcpu: usize, targets: u8, flush: u8) {
        let translations = self.flush(flush);
        self.reference_flush(vcpu, targets, translations);
        if self.program.has(Dial::FenceNop) {
            return;
        }
        for target in bits(targets.into()) {
            self.state.owed[target] |= translations;
            let is_kicked = target != vcpu && self.state.is_in_guest(target);
            self.price.disturbed += u32::from(is_kicked);
        }
    }

    fn host_wait(&mut self, vcpu: usize, targets: u8) {
        if targets & 1 << vcpu != 0 {
            self.serve_owed(vcpu);
        }
        for target in bits(targets.into()) {
            let due = core::mem::take(&mut self.state.reference_open[vcpu][target]);
            self.state.reference[target] &= !due;
        }
    }

    /// The host, with the vCPU stopped on its pCPU, performs what it owes it.
    pub(super) fn serve_owed(&mut self, vcpu: usize) {
        let owed = core::mem::take(&mut self.state.owed[vcpu]);
        if owed != 0 {
            self.flush_for(vcpu, owed);
        }
    }
}
