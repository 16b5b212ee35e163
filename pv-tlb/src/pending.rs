//! What a vCPU has been asked to flush and has not flushed yet.
//!
//! Owner: the target vCPU's thread takes and acknowledges; every other thread only
//! posts. Because the flush a KVM host can force on a vCPU is a whole one, an
//! inbox is a pair of sequence numbers instead of a queue: requests merge for
//! free and nothing can overflow.
//!
//! States: idle (`served` = `requested`), owed (`served` < `requested`).
//!
//! Memory ordering. A request's page-table stores happen before its number is
//! drawn ([`FlushClock::next`], a read-modify-write with acquire and release), and
//! all draws form one release sequence. So a target that sees number n has seen
//! the stores of every request up to n, also of those whose own post it has not
//! seen, and may acknowledge n for all of them.

use crate::id::FlushSeq;
use crate::sync::{AtomicU64, Ordering};

/// Draws the flush numbers of one VM.
#[derive(Debug)]
pub struct FlushClock {
    last: AtomicU64,
}

impl Default for FlushClock {
    fn default() -> Self {
        Self::new()
    }
}

impl FlushClock {
    /// A clock that will draw 1 first.
    #[must_use]
    pub fn new() -> Self {
        Self { last: AtomicU64::new(0) }
    }

    /// The next number. Everything the caller did before is visible to whoever
    /// takes this number or a later one out of an inbox.
    pub fn next(&self) -> FlushSeq {
        // Partner: the same read-modify-write in other initiators, see the module.
        FlushSeq(self.last.fetch_add(1, Ordering::AcqRel) + 1)
    }
}

/// One vCPU's inbox.
#[derive(Debug)]
pub struct Inbox {
    requested: AtomicU64,
    served: AtomicU64,
}

impl Default for Inbox {
    fn default() -> Self {
        Self::new()
    }
}

impl Inbox {
    /// An inbox that owes nothing.
    #[must_use]
    pub fn new() -> Self {
        Self { requested: AtomicU64::new(0), served: AtomicU64::new(0) }
    }

    /// Asks the owner to flush before its next guest instruction. Any thread.
    pub fn post(&self, seq: FlushSeq) {
        // Partner: the acquire load in `owed`. The caller's SeqCst fence after the
        // post pairs with the owner's fence between marking itself running and
        // looking here (see the vmm's run state).
        self.requested.fetch_max(seq.0, Ordering::AcqRel);
    }

    /// The newest request not yet served, if any. Owner only; acknowledge it with
    /// [`Self::acknowledge`] once the flush is certain to precede guest code.
    #[must_use]
    pub fn owed(&self) -> Option<FlushSeq> {
        // Partner: `post`.
        let requested = self.requested.load(Ordering::Acquire);
        // Own value: only the owner stores `served`.
        let served = self.served.load(Ordering::Relaxed);
        (requested > served).then_some(FlushSeq(requested))
    }

    /// Says that everything up to `seq` is flushed. Owner only.
    pub fn acknowledge(&self, seq: FlushSeq) {
        // Partner: `has_served` in an initiator that waits.
        self.served.store(seq.0, Ordering::Release);
    }

    /// True once the owner has acknowledged `seq` or a later request.
    #[must_use]
    pub fn has_served(&self, seq: FlushSeq) -> bool {
        // Partner: `acknowledge`.
        self.served.load(Ordering::Acquire) >= seq.0
    }
}
