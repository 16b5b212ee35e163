//! The small steps that lines are made of.
//!
//! Plain values without state or ordering.

use crate::scenario::{AccessKind, Must};

/// A step that nothing can come in the middle of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Micro {
    /// Translates and completes.
    Access(AccessKind, u8, Must),
    /// Latches a translation.
    Begin(AccessKind, u8),
    /// Uses the latched translation.
    Finish,
    /// Stores to page tables: these entries become invalid, those valid.
    Store {
        /// Translations that stop being valid.
        clear: u64,
        /// Translations that become valid.
        set: u64,
    },
    /// A flush by a local instruction.
    FlushLocal(u8),
    /// A flush by a broadcast instruction.
    FlushBroadcast(u8),
    /// Interrupts a vCPU to flush.
    SendIpi(u8, u8),
    /// Reads a vCPU's `preempted` byte.
    FlagLoad(u8),
    /// Asks for the flush in that byte if it still says preempted; interrupts the
    /// vCPU if it does not.
    FlagSwap(u8, u8),
    /// Leaves the flush with the host for these vCPUs.
    HostPost(u8, u8),
    /// Returns from the host once these vCPUs are flushed or bound to flush.
    HostWait(u8),
    /// The completion barrier; `true`: of the own TLB only.
    Sync(bool),
    /// Waits for all interrupted vCPUs.
    Wait,
    /// Frees a frame.
    Free(u8),
    /// Forbids writes to a frame.
    Freeze(u8),
    /// Loads a space; the flush, plus 1, that goes with it.
    Switch(u8, u8),
    /// Sets a mark.
    Set(u8),
    /// Waits for a mark.
    Await(u8),
    /// Writes a RAR payload.
    RarPayload(u8, u8),
    /// Arms a slot at a vCPU.
    RarArm(u8, u8),
    /// Sends the RAR event to a vCPU.
    RarRing(u8),
    /// Waits for a vCPU to clear a slot.
    RarWait(u8, u8),
    /// The vCPU leaves guest mode and its pCPU.
    Exit(u8),
    /// A host that does not use a read-modify-write loads the `preempted` byte.
    MarkLoad(u8),
    /// The host marks the vCPU preempted.
    Mark(u8),
    /// The host takes the vCPU to a pCPU and does what its policy asks at entry.
    Load(u8, u8),
    /// A host that does not exchange loads the `preempted` byte before entry.
    ExchangeLoad(u8),
    /// The host takes the `preempted` byte and clears it.
    Exchange(u8),
    /// The vCPU enters guest mode.
    Enter(u8),
    /// The host gives the first VM's tag to the second.
    GiveTag(u8, u8),
    /// The host's own broadcast flush.
    HostFlush,
}

impl Micro {
    /// Which part of its line this is; empty if it is all of it.
    #[must_use]
    pub const fn part(&self) -> &'static str {
        match self {
            Self::FlagLoad(_) => "reads the preempted byte",
            Self::FlagSwap(..) => "asks in the preempted byte, or interrupts",
            Self::HostPost(..) => "the host notes the flush",
            Self::HostWait(_) => "the host returns",
            Self::Exit(_) => "leaves the pCPU",
            Self::MarkLoad(_) | Self::ExchangeLoad(_) => "the host loads the preempted byte",
            Self::Mark(_) => "the host marks it preempted",
            Self::Load(..) => "comes to the pCPU",
            Self::Exchange(_) => "the host takes the preempted byte",
            Self::Enter(_) => "enters the guest",
            _ => "",
        }
    }
}

/// A small step and the line it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// What is done.
    pub micro: Micro,
    /// Number of the line in the whole scenario, from 0.
    pub line: u16,
    /// True if the line has other steps.
    pub in_parts: bool,
}
