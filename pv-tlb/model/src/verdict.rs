//! What an exploration found, in one word, and what it costs.
//!
//! Plain values without state or ordering.

use core::fmt;

/// The result for one scenario in one world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// No interleaving breaks a promise and none gets stuck.
    Ok,
    /// Some access uses a translation that was promised to be gone.
    Stale,
    /// Some interleaving gets stuck: a wait whose answer never comes.
    Hang,
    /// The guest takes a fault that it has not earned.
    Fault,
}

impl Verdict {
    /// Every verdict.
    pub const ALL: [Self; 4] = [Self::Ok, Self::Stale, Self::Hang, Self::Fault];

    /// The word used in scripts and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Stale => "stale",
            Self::Hang => "hang",
            Self::Fault => "fault",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a run costs besides its own instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Price {
    /// Flushes that went to every pCPU of the host.
    pub broadcasts: u32,
    /// pCPUs other than the initiator's that had to act, summed over all flushes.
    pub disturbed: u32,
    /// TLB entries dropped, summed over all pCPUs, in the may-hold sense.
    pub dropped: u32,
}
