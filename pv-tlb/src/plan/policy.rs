//! How a host keeps a guest's local flush true although the vCPU moves.
//!
//! Plain value. A policy is a set of answers to the questions below; planner and
//! model ask those and never look at the variant, so that a policy means the same
//! in both.

use core::fmt;

/// Whose tag the entries of a vCPU carry in a pCPU's TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tagging {
    /// One tag for the VM (Arm VMID, a SEV guest's ASID): two vCPUs on one pCPU
    /// hit each other's entries.
    PerVm,
    /// One tag for each vCPU (Intel VPID, an AMD ASID taken anew after a move).
    PerVcpu,
}

/// How far a flush is carried past the pCPUs on which its targets run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpgradeRule {
    /// Not at all.
    Never,
    /// To every pCPU of the host, by the hardware's broadcast.
    Everywhere,
    /// At once, to the pCPUs on which a target may have left entries.
    Footprint,
    /// To those pCPUs as well, but only when the target comes back to one.
    FootprintAtReturn,
}

/// What the host does so that entries left on another pCPU are never used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HostPolicy {
    /// Nothing: the bug mode. A local flush stays where it was executed.
    None,
    /// Nothing, because no vCPU ever leaves its pCPU and none shares it.
    Pinned,
    /// A local flush becomes a broadcast and its barrier is widened to match (Arm
    /// `HCR_EL2.FB` with `BSU`).
    ForceBroadcast,
    /// A local flush becomes a broadcast, but the barrier waits only for the pCPU
    /// that executes it, and the host does not drain either (Arm `FB` alone).
    ForceBroadcastNoBarrier,
    /// A pCPU's entries of the VM are dropped when another vCPU of it enters than
    /// the one that ran there last; local flushes stay local.
    LastVcpuRan,
    /// [`Self::ForceBroadcast`] and [`Self::LastVcpuRan`] together: KVM/arm64
    /// (Linux `arch/arm64/kvm/arm.c`, `kvm_arch_vcpu_load`).
    Arm64Kvm,
    /// A tag for each vCPU, flushed when the vCPU enters another pCPU than its last
    /// one: KVM on VMX and on SVM without SEV.
    X86Kvm,
    /// One tag for the VM, flushed when a vCPU enters another pCPU than its last
    /// one or when another vCPU ran there last: KVM's SEV guests
    /// (`pre_sev_run`), and the rule for letting a guest run INVLPGB itself.
    SevKvm,
    /// One tag for the VM; a flush is carried to the pCPUs on which its targets may
    /// have left entries, and another vCPU's leftovers are dropped at entry.
    Footprint,
    /// As [`Self::Footprint`], but leftovers of the target are dropped when it
    /// comes back to them, so that no other pCPU is disturbed.
    FootprintDeferred,
}

impl HostPolicy {
    /// Every policy, the unsound ones first.
    pub const ALL: [Self; 10] = [
        Self::None,
        Self::ForceBroadcastNoBarrier,
        Self::ForceBroadcast,
        Self::LastVcpuRan,
        Self::Pinned,
        Self::Arm64Kvm,
        Self::X86Kvm,
        Self::SevKvm,
        Self::Footprint,
        Self::FootprintDeferred,
    ];

    /// The name used in scripts, flags and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Pinned => "pinned",
            Self::ForceBroadcast => "force-broadcast",
            Self::ForceBroadcastNoBarrier => "force-broadcast-no-barrier",
            Self::LastVcpuRan => "last-vcpu-ran",
            Self::Arm64Kvm => "arm64-kvm",
            Self::X86Kvm => "x86-kvm",
            Self::SevKvm => "sev-kvm",
            Self::Footprint => "footprint",
            Self::FootprintDeferred => "footprint-deferred",
        }
    }

    /// A second name, which says what the host does instead of who does it.
    #[must_use]
    pub const fn alias(self) -> Option<&'static str> {
        match self {
            Self::None => Some("naive"),
            Self::Arm64Kvm => Some("force-broadcast+last-vcpu-ran"),
            Self::X86Kvm => Some("flush-on-migrate"),
            Self::SevKvm => Some("flush-on-migrate+last-vcpu-ran"),
            _ => None,
        }
    }

    /// The policy of that name or alias.
    ///
    /// # Errors
    /// The text itself, if no policy has that name.
    pub fn parse(text: &str) -> Result<Self, UnknownPolicy<'_>> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.name() == text || policy.alias() == Some(text))
            .ok_or(UnknownPolicy(text))
    }

    /// True if no order of events lets a vCPU use an entry that it was told is gone.
    #[must_use]
    pub const fn is_sound(self) -> bool {
        !matches!(
            self,
            Self::None | Self::ForceBroadcast | Self::ForceBroadcastNoBarrier | Self::LastVcpuRan
        )
    }

    /// Whose tag the TLB entries carry.
    #[must_use]
    pub const fn tagging(self) -> Tagging {
        match self {
            Self::X86Kvm => Tagging::PerVcpu,
            _ => Tagging::PerVm,
        }
    }

    /// How far a flush is carried.
    #[must_use]
    pub const fn upgrade(self) -> UpgradeRule {
        match self {
            Self::ForceBroadcast | Self::ForceBroadcastNoBarrier | Self::Arm64Kvm => {
                UpgradeRule::Everywhere
            }
            Self::Footprint => UpgradeRule::Footprint,
            Self::FootprintDeferred => UpgradeRule::FootprintAtReturn,
            _ => UpgradeRule::Never,
        }
    }

    /// True if the guest's completion barrier waits for as many pCPUs as the
    /// upgraded flush reaches.
    #[must_use]
    pub const fn widens_barrier(self) -> bool {
        !matches!(self, Self::ForceBroadcastNoBarrier)
    }

    /// True if the host waits, on the old pCPU, for the broadcasts that a vCPU left
    /// open before it may run elsewhere (Arm: the DSB in `__switch_to`; AMD: a
    /// TLBSYNC of the host's own).
    #[must_use]
    pub const fn drains_on_switch(self) -> bool {
        !matches!(self, Self::None | Self::ForceBroadcastNoBarrier)
    }

    /// True if a vCPU's entry on another pCPU than its last one flushes its tag there.
    #[must_use]
    pub const fn flushes_on_pcpu_change(self) -> bool {
        matches!(self, Self::X86Kvm | Self::SevKvm)
    }

    /// True if a vCPU's entry on a pCPU where another vCPU of the VM ran last
    /// flushes the VM's tag there.
    #[must_use]
    pub const fn flushes_on_vcpu_change(self) -> bool {
        matches!(
            self,
            Self::LastVcpuRan
                | Self::Arm64Kvm
                | Self::SevKvm
                | Self::Footprint
                | Self::FootprintDeferred
        )
    }

    /// False if the host promises never to move a vCPU, nor to let two share a pCPU.
    #[must_use]
    pub const fn may_migrate(self) -> bool {
        !matches!(self, Self::Pinned)
    }
}

impl fmt::Display for HostPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that names no policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPolicy<'a>(pub &'a str);

impl fmt::Display for UnknownPolicy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Host policy `{}` is unknown; expected one of", self.0)?;
        for (i, policy) in HostPolicy::ALL.into_iter().enumerate() {
            write!(f, "{} {policy}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl core::error::Error for UnknownPolicy<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_aliases_are_distinct_and_parse_to_their_policy() {
        let mut seen = Vec::new();
        for policy in HostPolicy::ALL {
            for name in [Some(policy.name()), policy.alias()].into_iter().flatten() {
                assert!(!seen.contains(&name), "{name}");
                seen.push(name);
                assert_eq!(HostPolicy::parse(name), Ok(policy));
            }
            assert_eq!(policy.to_string(), policy.name());
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let error = HostPolicy::parse("forcebroadcast").expect_err("unknown").to_string();
        assert!(
            error.starts_with("Host policy `forcebroadcast` is unknown; expected one of none,")
        );
        assert!(error.ends_with("footprint-deferred"));
    }
}
