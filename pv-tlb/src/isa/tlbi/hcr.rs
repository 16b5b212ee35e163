//! What HCR_EL2 makes of a guest's TLBI and of its DSB: traps, FB and BSU.
//!
//! Plain values. FB and BSU are apart on purpose: a host that sets only FB makes
//! the flush reach every PE and lets the guest's narrow DSB wait for its own.
//!
//! Sources: Arm ARM, HCR_EL2; Linux `arch/arm64/include/asm/kvm_arm.h`. That BSU is
//! ignored with TGE, as FB is, is from memory.

use super::Domain;

/// The domain a DSB waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BarrierDomain {
    /// NSH.
    NonShareable,
    /// ISH.
    Inner,
    /// OSH.
    Outer,
    /// SY.
    System,
}

impl BarrierDomain {
    /// True if a DSB of this domain, by the PE that issued the TLBI, returns only
    /// after a TLBI performed in `domain` has completed everywhere.
    #[must_use]
    pub const fn covers(self, domain: Domain) -> bool {
        match domain {
            Domain::Local => true,
            Domain::Inner => !matches!(self, Self::NonShareable),
            Domain::Outer => matches!(self, Self::Outer | Self::System),
        }
    }
}

/// What becomes of a TLBI at EL1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It traps to EL2.
    Trapped,
    /// It is performed in this domain.
    Performed(Domain),
}

/// HCR_EL2, as far as TLB maintenance goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Hcr(pub u64);

impl Hcr {
    /// Bit 9: local TLBIs act as Inner Shareable ones.
    pub const FB: u64 = 1 << 9;
    /// Bits 11:10, the value for Inner Shareable.
    pub const BSU_INNER: u64 = 1 << 10;
    /// Bits 11:10.
    pub const BSU_MASK: u64 = 3 << 10;
    /// Bit 25: trap every TLBI of EL1.
    pub const TTLB: u64 = 1 << 25;
    /// Bit 27: no EL1 below; FB has no effect.
    pub const TGE: u64 = 1 << 27;
    /// Bit 54: trap the Inner Shareable forms.
    pub const TTLBIS: u64 = 1 << 54;
    /// Bit 55: trap the Outer Shareable forms.
    pub const TTLBOS: u64 = 1 << 55;
    /// What KVM sets for its guests.
    pub const KVM_GUEST: Self = Self(Self::FB | Self::BSU_INNER);

    const fn has(self, bits: u64) -> bool {
        self.0 & bits != 0
    }

    /// What becomes of a TLBI that EL1 executes; undefined encodings are ruled out
    /// before ([`super::decode`]).
    #[must_use]
    pub const fn outcome(self, encoded: Domain) -> Outcome {
        let trap = match encoded {
            Domain::Local => Self::TTLB,
            Domain::Inner => Self::TTLB | Self::TTLBIS,
            Domain::Outer => Self::TTLB | Self::TTLBOS,
        };
        if self.has(trap) { Outcome::Trapped } else { Outcome::Performed(self.forced(encoded)) }
    }

    /// FB's effect alone: the domain in which a TLBI of EL1 is performed.
    #[must_use]
    pub const fn forced(self, encoded: Domain) -> Domain {
        match encoded {
            Domain::Local if self.has(Self::FB) && !self.has(Self::TGE) => Domain::Inner,
            other => other,
        }
    }

    /// BSU's effect alone: the domain for which a DSB of EL1 or EL0 waits.
    #[must_use]
    pub fn widened(self, written: BarrierDomain) -> BarrierDomain {
        if self.has(Self::TGE) {
            return written;
        }
        written.max(match self.0 >> 10 & 3 {
            0 => BarrierDomain::NonShareable,
            1 => BarrierDomain::Inner,
            2 => BarrierDomain::Outer,
            _ => BarrierDomain::System,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn force_broadcast_lifts_local_forms_only_and_not_with_tge() {
        let fb = Hcr(Hcr::FB);
        assert_eq!(fb.forced(Domain::Local), Domain::Inner);
        assert_eq!(fb.forced(Domain::Outer), Domain::Outer);
        assert_eq!(Hcr(Hcr::FB | Hcr::TGE).forced(Domain::Local), Domain::Local);
        assert_eq!(Hcr::default().forced(Domain::Local), Domain::Local);
    }

    #[test]
    fn force_broadcast_without_barrier_upgrade_leaves_the_flush_open() {
        let narrow = BarrierDomain::NonShareable;
        for (hcr, waits) in [(Hcr(Hcr::FB), false), (Hcr::KVM_GUEST, true), (Hcr(0), true)] {
            let Outcome::Performed(domain) = hcr.outcome(Domain::Local) else {
                panic!("not trapped")
            };
            assert_eq!(hcr.widened(narrow).covers(domain), waits, "{hcr:?}");
        }
    }

    #[test]
    fn a_barrier_is_never_narrowed() {
        use BarrierDomain::{Inner, NonShareable, Outer, System};
        for (bsu, least) in [(0, NonShareable), (1, Inner), (2, Outer), (3, System)] {
            for written in [NonShareable, Inner, Outer, System] {
                assert_eq!(Hcr(bsu << 10).widened(written), written.max(least));
            }
        }
    }

    #[test]
    fn each_trap_bit_takes_its_forms() {
        let trapped = |bit, domain| Hcr(bit).outcome(domain) == Outcome::Trapped;
        let taken = |bit| Domain::ALL.map(|domain| trapped(bit, domain));
        assert_eq!(taken(Hcr::TTLB), [true, true, true]);
        assert_eq!(taken(Hcr::TTLBIS), [false, true, false]);
        assert_eq!(taken(Hcr::TTLBOS), [false, false, true]);
        assert_eq!(taken(Hcr::FB), [false, false, false]);
    }
}
