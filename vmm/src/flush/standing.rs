//! Where a vCPU thread stands, as other threads may rely on it.
//!
//! Owner: the vCPU thread stores; every initiator loads. States: in the host (it
//! will look at its inbox before it enters the guest), running (it may execute
//! guest code), mid access (in the host, but KVM has yet to finish an access whose
//! address is translated already: hazard H4).
//!
//! Memory ordering: Dekker's pattern, two stores and two loads with a `SeqCst`
//! fence between. Target: store running; fence; look at the inbox. Initiator: post
//! to the inbox; fence; load the state. At least one sees the other: the target
//! sees the post, or the initiator sees "running" and kicks.

use std::sync::atomic::{AtomicU32, Ordering, fence};

/// See the module text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Standing {
    /// Looks at its inbox before it enters the guest.
    InHost = 0,
    /// May execute guest code.
    Running = 1,
    /// In the host with an access unfinished.
    MidAccess = 2,
}

/// The published standing of one vCPU.
#[derive(Debug, Default)]
pub struct RunState {
    standing: AtomicU32,
}

impl RunState {
    /// Vcpu thread, before it looks at its inbox for the last time before entry.
    pub fn enter(&self) {
        // Partner: the load in `observe`; the fence is the target's half of Dekker.
        self.standing.store(Standing::Running as u32, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Vcpu thread, after KVM_RUN.
    pub fn leave(&self, mid_access: bool) {
        let standing = if mid_access { Standing::MidAccess } else { Standing::InHost };
        // Partner: the load in `observe`. Release: an initiator that sees the thread
        // in the host also sees that its guest code has stopped.
        self.standing.store(standing as u32, Ordering::Release);
    }

    /// Any thread, after it has posted and fenced.
    #[must_use]
    pub fn observe(&self) -> Standing {
        // Partners: the stores in `enter` and `leave`.
        match self.standing.load(Ordering::Acquire) {
            0 => Standing::InHost,
            2 => Standing::MidAccess,
            _ => Standing::Running,
        }
    }
}
