//! A world: host policy, dials (errata and host bugs) and guest options.
//!
//! Plain values without state or ordering. A dial makes silicon or host worse than
//! its manual; an option switches lines of one scenario on.

use core::fmt;

use pv_tlb::plan::HostPolicy;

/// One way in which silicon or host departs from its manual.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dial {
    /// Arm CVE-2025-10263 and its older kin: the barrier returns while accesses
    /// that use the dead entry are still on their way; a second TLBI and DSB wait.
    RepeatTlbi,
    /// AMD erratum 1718: a first TLBSYNC may return early.
    TlbsyncTwice,
    /// A RAR that a CPU sends to itself is acknowledged without being executed.
    RarSelf,
    /// A RAR that arrives during a scan of the action vector is lost.
    RarUnlatched,
    /// INVLPG spares global entries while PCIDs are on.
    InvlpgGlobal,
    /// CPUID offers INVLPGB, the instruction raises #UD.
    InvlpgbLie,
    /// The host loads and then stores the `preempted` byte instead of exchanging it.
    LostFlag,
    /// The host writes "preempted" over a byte that asks for a flush.
    FlagOverwrite,
    /// The host marks a vCPU preempted that has stopped in the middle of an access.
    MarkMidInstruction,
    /// The host does not clear the `preempted` byte at entry.
    FlagNeverCleared,
    /// The host performs an owed flush only some time after entry.
    FlushLate,
    /// The host's flush call returns before its targets have left guest mode.
    EarlyDone,
    /// The host's fence call does nothing.
    FenceNop,
    /// The host's own flush at entry spares entries that hold only stage 1.
    GvmaOnly,
    /// The host does not wait for open broadcasts before a vCPU changes pCPU.
    NoDrain,
    /// A guest with one tag per vCPU executes broadcasts untrapped.
    RawBroadcast,
    /// Broadcasts do not reach devices that share an address space.
    DeviceDeaf,
    /// The host gives a VM's tag away without flushing it.
    NoRolloverFlush,
    /// The host's own broadcasts carry no tag and so hit every guest.
    HostFlushUntagged,
}

impl Dial {
    /// Every dial.
    pub const ALL: [Self; 19] = [
        Self::RepeatTlbi,
        Self::TlbsyncTwice,
        Self::RarSelf,
        Self::RarUnlatched,
        Self::InvlpgGlobal,
        Self::InvlpgbLie,
        Self::LostFlag,
        Self::FlagOverwrite,
        Self::MarkMidInstruction,
        Self::FlagNeverCleared,
        Self::FlushLate,
        Self::EarlyDone,
        Self::FenceNop,
        Self::GvmaOnly,
        Self::NoDrain,
        Self::RawBroadcast,
        Self::DeviceDeaf,
        Self::NoRolloverFlush,
        Self::HostFlushUntagged,
    ];

    /// The name used in scripts and flags.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RepeatTlbi => "repeat-tlbi",
            Self::TlbsyncTwice => "tlbsync-twice",
            Self::RarSelf => "rar-self",
            Self::RarUnlatched => "rar-unlatched",
            Self::InvlpgGlobal => "invlpg-global",
            Self::InvlpgbLie => "invlpgb-lie",
            Self::LostFlag => "lost-flag",
            Self::FlagOverwrite => "flag-overwrite",
            Self::MarkMidInstruction => "mark-mid-instruction",
            Self::FlagNeverCleared => "flag-never-cleared",
            Self::FlushLate => "flush-late",
            Self::EarlyDone => "early-done",
            Self::FenceNop => "fence-nop",
            Self::GvmaOnly => "gvma-only",
            Self::NoDrain => "no-drain",
            Self::RawBroadcast => "raw-broadcast",
            Self::DeviceDeaf => "device-deaf",
            Self::NoRolloverFlush => "no-rollover-flush",
            Self::HostFlushUntagged => "host-flush-untagged",
        }
    }

    /// What it does, in a sentence.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::RepeatTlbi => {
                "The barrier returns while accesses that use the dead entry are on their way (Arm CVE-2025-10263, 1286807, 2441007)"
            }
            Self::TlbsyncTwice => "A first TLBSYNC may return early (AMD erratum 1718)",
            Self::RarSelf => "A RAR to oneself is acknowledged but not executed (RAR RFC v4)",
            Self::RarUnlatched => "A RAR that arrives during a scan is lost",
            Self::InvlpgGlobal => "INVLPG spares globals while PCIDs are on (Linux ce0b15d11ad8)",
            Self::InvlpgbLie => {
                "CPUID offers INVLPGB, which then raises #UD (Zen 2, CVE-2025-38518)"
            }
            Self::LostFlag => {
                "The host loads and stores the preempted byte instead of exchanging it (CVE-2019-3016)"
            }
            Self::FlagOverwrite => "The host writes preempted over a byte that asks for a flush",
            Self::MarkMidInstruction => {
                "The host marks a vCPU preempted in the middle of an access (CVE-2022-39189)"
            }
            Self::FlagNeverCleared => {
                "The host does not clear the preempted byte at entry (Linux 1eff0ad0bad1)"
            }
            Self::FlushLate => "The host performs an owed flush only after entry",
            Self::EarlyDone => "The host's flush call returns before its targets left guest mode",
            Self::FenceNop => "The host's fence call does nothing (Linux 2e7be1629966)",
            Self::GvmaOnly => "The host's flush at entry spares stage-1-only entries (Andes AX66)",
            Self::NoDrain => "The host does not wait for open broadcasts before a vCPU moves",
            Self::RawBroadcast => "Guests with per-vCPU tags execute broadcasts untrapped",
            Self::DeviceDeaf => "Broadcasts do not reach devices that share an address space",
            Self::NoRolloverFlush => "The host gives a VM's tag away without flushing it",
            Self::HostFlushUntagged => {
                "The host's own INVLPGB carries no ASID and hits every guest (Linux 634ab76159a8)"
            }
        }
    }
}

impl fmt::Display for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A set of dials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Dials(u32);

impl Dials {
    /// No dial.
    pub const NONE: Self = Self(0);

    /// The set with `dial` as well.
    #[must_use]
    pub const fn with(self, dial: Dial) -> Self {
        Self(self.0 | 1 << dial as u32)
    }

    /// True if `dial` is in the set.
    #[must_use]
    pub const fn has(self, dial: Dial) -> bool {
        self.0 & 1 << dial as u32 != 0
    }

    /// The members.
    pub fn iter(self) -> impl Iterator<Item = Dial> {
        Dial::ALL.into_iter().filter(move |dial| self.has(*dial))
    }
}

/// Everything a verdict depends on besides the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World {
    /// What the host does about moving vCPUs.
    pub policy: HostPolicy,
    /// What is worse than the manual.
    pub dials: Dials,
    /// Bit i: option i of the scenario is on.
    pub options: u32,
}

impl World {
    /// `policy` without dials or options.
    #[must_use]
    pub const fn of(policy: HostPolicy) -> Self {
        Self { policy, dials: Dials::NONE, options: 0 }
    }

    /// The same with these options on.
    #[must_use]
    pub const fn with_options(mut self, options: u32) -> Self {
        self.options = options;
        self
    }

    /// The same with `dial` as well.
    #[must_use]
    pub const fn with(mut self, dial: Dial) -> Self {
        self.dials = self.dials.with(dial);
        self
    }

    /// True if option `index` is on.
    #[must_use]
    pub const fn has_option(&self, index: usize) -> bool {
        self.options & 1 << index != 0
    }

    /// `policy + dial + option`, as scripts write it; `names` are the options'.
    #[must_use]
    pub fn describe(&self, names: &[(String, String)]) -> String {
        let mut text = self.policy.name().to_owned();
        for dial in self.dials.iter() {
            text.push_str(" + ");
            text.push_str(dial.name());
        }
        for (i, (name, _)) in names.iter().enumerate() {
            if self.has_option(i) {
                text.push_str(" + ");
                text.push_str(name);
            }
        }
        text
    }
}
