//! Remote Action Request: a payload table, one action vector per vCPU, one event.
//!
//! Works on the state of one [`Moment`]; keeps nothing. The target's hardware scans
//! its vector slot by slot; whether an event that arrives during a scan starts
//! another one is a dial, since no document says.

use super::Moment;
use crate::scenario::MAX_SLOTS;
use crate::world::Dial;

impl Moment<'_> {
    pub(super) fn rar_arm(&mut self, vcpu: usize, target: usize, slot: usize) {
        let rar = &mut self.state.rar;
        rar.action[target] |= 1 << slot;
        if vcpu == target {
            rar.own[target] |= 1 << slot;
        }
        self.price.disturbed += u32::from(vcpu != target);
    }

    pub(super) fn rar_ring(&mut self, target: usize) {
        let is_lost = self.state.rar.scan[target] != 0 && self.program.has(Dial::RarUnlatched);
        if !is_lost {
            self.state.rar.rung |= 1 << target;
        }
    }

    /// The sender has seen its slot cleared: it counts the target as flushed.
    pub(super) fn rar_wait(&mut self, target: usize, slot: usize) {
        if let Some(flush) = self.state.rar.payload[slot].checked_sub(1) {
            self.reference_drops(target, self.flush(flush));
        }
    }

    /// The target's hardware starts a scan or looks at the next slot.
    pub(super) fn scan(&mut self, target: usize) {
        let Some(slot) = self.state.rar.scan[target].checked_sub(1) else {
            self.state.rar.rung &= !(1 << target);
            self.state.rar.scan[target] = 1;
            return;
        };
        let slot = usize::from(slot);
        let bit = 1 << slot;
        if self.state.rar.action[target] & bit != 0 {
            let is_own = self.state.rar.own[target] & bit != 0;
            let is_skipped = is_own && self.program.has(Dial::RarSelf);
            let payload = self.state.rar.payload[slot].checked_sub(1);
            if let Some(flush) = payload.filter(|_| !is_skipped) {
                // Not a guest's flush: the reference is told when the sender is.
                self.flush_for(target, self.flush(flush));
            }
            self.state.rar.action[target] &= !bit;
            self.state.rar.own[target] &= !bit;
        }
        let is_last = slot + 1 == MAX_SLOTS;
        self.state.rar.scan[target] = if is_last { 0 } else { slot as u8 + 2 };
    }
}
