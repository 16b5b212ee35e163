//! Who still owes an answer to one flush, and what the flush came to.
//!
//! A [`Ticket`] belongs to the initiator alone, on its stack; what others change
//! are the inboxes it looks at. States: open (somebody owes), settled (nobody).

use crate::cpuset::CpuSet;
use crate::id::{FlushSeq, VcpuId};
use crate::pending::Inbox;

/// The initiator's list of targets that have not answered.
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    seq: FlushSeq,
    owing: CpuSet,
}

impl Ticket {
    /// A ticket for flush `seq` on which `owing` owe an answer.
    #[must_use]
    pub fn new(seq: FlushSeq, owing: CpuSet) -> Self {
        Self { seq, owing }
    }

    /// The flush it belongs to.
    #[must_use]
    pub fn seq(&self) -> FlushSeq {
        self.seq
    }

    /// Takes `target` off the list: another rule made its flush certain.
    pub fn excuse(&mut self, target: VcpuId) {
        self.owing.remove(target);
    }

    /// Looks at the inboxes of those who owe and takes off who has served;
    /// `inbox` finds a vCPU's inbox. True once nobody owes.
    pub fn settle<'a>(&mut self, inbox: impl Fn(VcpuId) -> &'a Inbox) -> bool {
        let mut left = self.owing;
        for target in &self.owing {
            if inbox(target).has_served(self.seq) {
                left.remove(target);
            }
        }
        self.owing = left;
        left.is_empty()
    }

    /// Those who still owe.
    #[must_use]
    pub fn owing(&self) -> &CpuSet {
        &self.owing
    }
}
