//! The debug-exit device (layout in `pv_tlb::abi::debug_exit`).
//!
//! Owner: one latch per vCPU, written only by that vCPU's thread, so the accesses
//! are `Relaxed`; a completed value is returned to the thread, not stored.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use pv_tlb::abi::debug_exit::{EXIT, HIGH, KEY, LOW, PORTS, Verdict};
use pv_tlb::id::VcpuId;

use super::power::PowerEvent;

/// What a write completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// A value under a key.
    Value {
        /// See `pv_tlb::abi::debug_exit::Key`.
        key: u32,
        /// The value.
        value: u64,
    },
    /// The guest ended the run: a verdict, or a number that is none.
    Ended(Result<Verdict, u32>),
    /// A Linux guest ended the run.
    Power(PowerEvent),
}

#[derive(Debug, Default)]
struct Latch {
    key: AtomicU32,
    low: AtomicU32,
}

/// The device.
#[derive(Debug)]
pub struct DebugExit {
    latches: Vec<Latch>,
}

impl DebugExit {
    /// A device for `vcpus` vCPUs.
    #[must_use]
    pub fn new(vcpus: u32) -> Self {
        Self { latches: (0..vcpus).map(|_| Latch::default()).collect() }
    }

    /// True if `port` is one of the device's.
    #[must_use]
    pub const fn owns(port: u16) -> bool {
        port >= EXIT && port < EXIT + PORTS
    }

    /// Serves a 32-bit OUT.
    pub fn write(&self, vcpu: VcpuId, port: u16, value: u32) -> Option<Report> {
        let latch = self.latches.get(vcpu.index())?;
        match port {
            EXIT => return Some(Report::Ended(Verdict::try_from(value))),
            KEY => latch.key.store(value, Relaxed),
            LOW => latch.low.store(value, Relaxed),
            HIGH => {
                let low = u64::from(latch.low.load(Relaxed));
                let value = u64::from(value) << 32 | low;
                return Some(Report::Value { key: latch.key.load(Relaxed), value });
            }
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_vcpus_reporting_at_once_do_not_mix() {
        let device = DebugExit::new(2);
        for vcpu in [VcpuId(0), VcpuId(1)] {
            assert_eq!(device.write(vcpu, KEY, 10 + vcpu.0), None);
            assert_eq!(device.write(vcpu, LOW, 20 + vcpu.0), None);
        }
        let first = device.write(VcpuId(0), HIGH, 1);
        assert_eq!(first, Some(Report::Value { key: 10, value: 1 << 32 | 20 }));
        let second = device.write(VcpuId(1), HIGH, 0);
        assert_eq!(second, Some(Report::Value { key: 11, value: 21 }));
    }

    #[test]
    fn an_unknown_verdict_is_passed_on_as_its_number() {
        let device = DebugExit::new(1);
        assert_eq!(device.write(VcpuId(0), EXIT, 7), Some(Report::Ended(Err(7))));
        let pass = device.write(VcpuId(0), EXIT, Verdict::Pass as u32);
        assert_eq!(pass, Some(Report::Ended(Ok(Verdict::Pass))));
        assert_eq!(device.write(VcpuId(9), EXIT, 7), None);
    }
}
