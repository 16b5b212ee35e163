//! How a vCPU is made to flush before its next guest instruction.
//!
//! Executed by the vCPU's own thread, outside KVM_RUN. Which way works on this KVM
//! is proved at start by the probe; none is assumed.
//!
//! Ordering: the FLUSH bit has one more writer, KVM, which exchanges the byte with
//! 0 before entry and may store 1 when it preempts the vCPU inside KVM_RUN, at an
//! instruction boundary. Between our store and KVM's exchange the vCPU is at none
//! (KVM clears that mark before it looks), so the bit is not lost.

use std::fmt;
use std::sync::atomic::Ordering;

use pv_tlb::abi::kvm::{FLUSH_TLB, PREEMPTED, StealTime};

use crate::kvm;
use crate::kvm::vcpu::{ControlToggle, Vcpu};

/// A way to make the vCPU flush on entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryFlush {
    /// The FLUSH bit of the steal-time record.
    StealFlushBit,
    /// CR4.PGE changed and changed back.
    Cr4PgeToggle,
    /// CR3.PWT changed and changed back.
    Cr3PwtToggle,
    /// Control registers written back unchanged: a control for the probe.
    SregsUnchanged,
    /// Nothing at all: a control for the probe.
    Nothing,
}

impl EntryFlush {
    /// The ways that may work, cheapest first.
    pub const CANDIDATES: [Self; 3] = [Self::StealFlushBit, Self::Cr4PgeToggle, Self::Cr3PwtToggle];
    /// The ways that must not work, to show that the probe can tell.
    pub const CONTROLS: [Self; 2] = [Self::Nothing, Self::SregsUnchanged];

    /// Makes `vcpu` flush before its next guest instruction.
    ///
    /// # Errors
    /// If KVM refuses.
    pub fn arrange(self, vcpu: &Vcpu, steal: Option<&StealTime>) -> kvm::Result<()> {
        match self {
            Self::StealFlushBit => {
                if let Some(record) = steal {
                    // Partner: KVM's exchange before entry.
                    record.preempted.fetch_or(FLUSH_TLB, Ordering::SeqCst);
                }
                Ok(())
            }
            Self::Cr4PgeToggle => vcpu.toggle(ControlToggle::Cr4Pge),
            Self::Cr3PwtToggle => vcpu.toggle(ControlToggle::Cr3Pwt),
            Self::SregsUnchanged => vcpu.toggle(ControlToggle::Unchanged),
            Self::Nothing => Ok(()),
        }
    }
}

impl fmt::Display for EntryFlush {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StealFlushBit => "steal-time FLUSH bit",
            Self::Cr4PgeToggle => "CR4.PGE toggle",
            Self::Cr3PwtToggle => "CR3.PWT toggle",
            Self::SregsUnchanged => "registers unchanged (control)",
            Self::Nothing => "exit and entry only (control)",
        })
    }
}

/// Asks KVM to flush a vCPU that it holds preempted; true if the flush is now
/// certain to come before the next guest instruction. Any thread.
#[must_use]
pub fn flag_if_preempted(record: &StealTime) -> bool {
    // Partner: KVM's exchange before entry. Only 1 to 3 is allowed: a byte of 0
    // means the vCPU may be running, and 3 that a flush is owed already.
    match record.preempted.compare_exchange(
        PREEMPTED,
        PREEMPTED | FLUSH_TLB,
        Ordering::SeqCst,
        Ordering::SeqCst,
    ) {
        Ok(_) => true,
        Err(found) => found == PREEMPTED | FLUSH_TLB,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{STEAL_TIME_GPA, SharedRegion};

    #[test]
    fn only_a_preempted_vcpu_is_flagged() {
        let region = SharedRegion::<StealTime>::new(STEAL_TIME_GPA, 1).expect("map");
        let record = region.view(0).expect("element");
        assert!(!flag_if_preempted(&record));
        assert_eq!(record.preempted.load(Ordering::SeqCst), 0);
        record.preempted.store(PREEMPTED, Ordering::SeqCst);
        assert!(flag_if_preempted(&record));
        assert_eq!(record.preempted.load(Ordering::SeqCst), PREEMPTED | FLUSH_TLB);
        assert!(flag_if_preempted(&record), "a flush owed already is as good");
        record.preempted.store(FLUSH_TLB, Ordering::SeqCst);
        assert!(!flag_if_preempted(&record), "2 is not a state of the protocol");
    }
}
