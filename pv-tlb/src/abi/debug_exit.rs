//! The debug-exit device: four 32-bit ports by which a guest reports values and
//! ends the run with a verdict.
//!
//! A value is reported by writing [`KEY`], [`LOW`], then [`HIGH`]; the write to
//! `HIGH` completes it. A write to [`EXIT`] ends the run. Each vCPU has its own
//! key and low half, so that two vCPUs reporting at once do not mix.

/// Write a [`Verdict`] here to end the run.
pub const EXIT: u16 = 0x500;
/// Write the key of the next value here.
pub const KEY: u16 = 0x504;
/// Write the value's bits 31:0 here.
pub const LOW: u16 = 0x508;
/// Write the value's bits 63:32 here; this completes the value.
pub const HIGH: u16 = 0x50c;
/// Number of ports, from [`EXIT`] on.
pub const PORTS: u16 = 16;

/// What a guest says when it ends the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Verdict {
    /// Everything the guest checked held.
    Pass = 0x5041_5353,
    /// Something the guest checked did not hold.
    Fail = 0x4641_494c,
    /// The guest took an exception that it did not expect.
    Fault = 0x4641_554c,
}

impl TryFrom<u32> for Verdict {
    type Error = u32;

    /// Fails with the value itself if it is none of the three.
    fn try_from(raw: u32) -> Result<Self, u32> {
        [Self::Pass, Self::Fail, Self::Fault]
            .into_iter()
            .find(|verdict| *verdict as u32 == raw)
            .ok_or(raw)
    }
}

/// Keys of reported values. A monitor shows unknown keys by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Key {
    /// Exception vector of a [`Verdict::Fault`].
    Vector = 1,
    /// Instruction pointer of a fault.
    Rip = 2,
    /// Error code of a fault.
    ErrorCode = 3,
    /// CR2 of a fault.
    Cr2 = 4,
    /// Line of a panic in the guest.
    PanicLine = 5,
    /// Bytes of heap that were asked for when there was not enough.
    HeapNeeded = 6,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_decode_to_themselves_and_other_values_are_refused() {
        for verdict in [Verdict::Pass, Verdict::Fail, Verdict::Fault] {
            assert_eq!(Verdict::try_from(verdict as u32), Ok(verdict));
        }
        assert_eq!(Verdict::try_from(0), Err(0));
    }
}
