//! Port devices: serial console, debug-exit, a Linux guest's power registers;
//! everything else reads as ones.
//!
//! Owner: [`PortBus`] is shared by all vCPU threads; each device locks itself for
//! the length of one access, and no lock is held across KVM_RUN, kick or wait.

pub mod debug_exit;
pub mod power;
pub mod serial;

use pv_tlb::id::VcpuId;

use debug_exit::{DebugExit, Report};
use power::Power;
use serial::Console;

/// The devices of one VM.
#[derive(Debug)]
pub struct PortBus {
    /// COM1.
    pub console: Console,
    /// Values and verdict from the guest.
    pub debug_exit: DebugExit,
    /// Power registers, of a Linux guest.
    pub power: Option<Power>,
}

impl PortBus {
    /// Serves an OUT; the report says if the guest ended the run or completed a
    /// value.
    pub fn write(&self, vcpu: VcpuId, port: u16, size: u8, value: u32) -> Option<Report> {
        if self.console.owns(port) {
            self.console.write(port, value as u8);
            if let (Some(power), serial::BASE) = (&self.power, port) {
                power.console_shows(value as u8);
            }
            return None;
        }
        let event = self.power.as_ref().and_then(|power| power.write(port, value as u8));
        if let Some(event) = event {
            return Some(Report::Power(event));
        }
        match (DebugExit::owns(port), size) {
            (true, 4) => self.debug_exit.write(vcpu, port, value),
            _ => None,
        }
    }

    /// Serves one byte of an IN.
    #[must_use]
    pub fn read(&self, port: u16) -> u8 {
        if self.console.owns(port) {
            return self.console.read(port);
        }
        self.power.as_ref().and_then(|power| power.read(port)).unwrap_or(0xff)
    }
}
