//! What a guest gets for bits that mean nothing, and what an encoder says to a
//! request that its instruction cannot carry.
//!
//! Plain values. A guest's mistake is never an error of the monitor: it is injected
//! or written back, and the journal prints its [`Cause`].

use core::fmt;

/// The rule that was broken and the bits that broke it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause {
    /// What is required, as a sentence part: "ECX bits 30:16 must be 0".
    pub rule: &'static str,
    /// The register, field or word as the guest gave it.
    pub value: u64,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, found {:#x}", self.rule, self.value)
    }
}

/// Statuses of Hyper-V hypercalls that a flush can end with (TLFS, appendix of
/// status codes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum HvStatus {
    /// The call code is not one of a flush.
    InvalidHypercallCode = 0x02,
    /// The control word contradicts the call or the input.
    InvalidHypercallInput = 0x03,
    /// A field of the input is out of range.
    InvalidParameter = 0x05,
    /// A virtual processor does not exist.
    InvalidVpIndex = 0x0e,
}

/// How the machine answers a guest's bad bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestFault {
    /// x86 #UD: the instruction does not exist here.
    InvalidOpcode(Cause),
    /// x86 #GP(0).
    GeneralProtection(Cause),
    /// Arm: the instruction is UNDEFINED at EL1.
    Undefined(Cause),
    /// The status in the result word of a Hyper-V hypercall.
    HyperV(HvStatus, Cause),
    /// RAR: the target writes FAILURE into its action vector.
    RarFailure(Cause),
}

impl GuestFault {
    /// Which rule was broken.
    #[must_use]
    pub const fn cause(&self) -> Cause {
        match self {
            Self::InvalidOpcode(cause)
            | Self::GeneralProtection(cause)
            | Self::Undefined(cause)
            | Self::HyperV(_, cause)
            | Self::RarFailure(cause) => *cause,
        }
    }
}

impl fmt::Display for GuestFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidOpcode(_) => f.write_str("#UD")?,
            Self::GeneralProtection(_) => f.write_str("#GP(0)")?,
            Self::Undefined(_) => f.write_str("UNDEFINED")?,
            Self::HyperV(status, _) => write!(f, "Hyper-V status {:#x}", *status as u16)?,
            Self::RarFailure(_) => f.write_str("RAR FAILURE")?,
        }
        write!(f, ": {}", self.cause())
    }
}

/// #UD unless `holds`.
pub(crate) fn exists(holds: bool, rule: &'static str, value: u64) -> Result<(), GuestFault> {
    if holds { Ok(()) } else { Err(GuestFault::InvalidOpcode(Cause { rule, value })) }
}

/// #GP(0) unless `holds`.
pub(crate) fn permits(holds: bool, rule: &'static str, value: u64) -> Result<(), GuestFault> {
    if holds { Ok(()) } else { Err(GuestFault::GeneralProtection(Cause { rule, value })) }
}

/// Why an instruction cannot carry an invalidation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsayable {
    /// It always reaches other vCPUs, or never does.
    Reach,
    /// It cannot leave this tag open, or cannot name it.
    Context,
    /// Its page count, stride or address cannot be put into the operand.
    Extent,
    /// It always drops global entries, or never does.
    Globals,
    /// It always drops upper levels, or never does.
    Depth,
    /// It does not reach guest-physical translations.
    Nested,
    /// The processor does not have it.
    Absent,
}

impl fmt::Display for Unsayable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reach => "The instruction cannot reach exactly these vCPUs",
            Self::Context => "The instruction cannot name exactly these tags",
            Self::Extent => "The instruction cannot name exactly these pages",
            Self::Globals => "The instruction cannot choose this treatment of global entries",
            Self::Depth => "The instruction cannot choose these levels of the walk",
            Self::Nested => "The instruction cannot choose guest-physical translations",
            Self::Absent => "The processor does not have the instruction",
        })
    }
}

impl core::error::Error for Unsayable {}

/// `Ok` if `holds`, else `what` cannot be said.
pub(crate) fn say(holds: bool, what: Unsayable) -> Result<(), Unsayable> {
    if holds { Ok(()) } else { Err(what) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_prints_what_is_raised_the_rule_and_the_bits() {
        let cause = Cause { rule: "EDX bits 31:28 must be 0", value: 0xf000_0001 };
        assert_eq!(
            GuestFault::GeneralProtection(cause).to_string(),
            "#GP(0): EDX bits 31:28 must be 0, found 0xf0000001"
        );
        let status = GuestFault::HyperV(HvStatus::InvalidVpIndex, cause).to_string();
        assert!(status.starts_with("Hyper-V status 0xe: "));
    }
}
