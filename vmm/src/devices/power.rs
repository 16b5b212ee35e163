//! How a Linux guest ends its run: the ACPI sleep and reset registers, the reset
//! line of the i8042 keyboard controller, and the panic port.
//!
//! Owner: shared by all vCPU threads. The panic mark is set by whoever sees the
//! panic and read at the reset that follows; the guest orders the two, and an
//! exchange of exits lies between them, so `Relaxed` would do; SeqCst costs nothing
//! here.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// ACPI sleep control register.
pub const SLEEP_CONTROL: u16 = 0x600;
/// ACPI sleep status register.
pub const SLEEP_STATUS: u16 = 0x601;
/// ACPI reset register.
pub const RESET: u16 = 0x602;
/// What resets when written to [`RESET`].
pub const RESET_VALUE: u8 = 1;
/// The panic port, as QEMU's pvpanic device: bit 0 says that the guest panicked.
pub const PANIC: u16 = 0x604;
/// The sleep type of S5, soft off.
pub const SLEEP_TYPE_OFF: u8 = 5;

const SLEEP_ENABLE: u8 = 1 << 5;
const PANICKED: u8 = 1 << 0;
const CRASH_LOADED: u8 = 1 << 1;
const I8042_DATA: u16 = 0x60;
const I8042_COMMAND: u16 = 0x64;
/// Pulses the reset line.
const I8042_RESET: u8 = 0xfe;
/// What Linux prints when it panics (`kernel/panic.c`).
const PANIC_TEXT: &[u8] = b"Kernel panic - not syncing";

/// How a guest ended its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerEvent {
    /// It switched itself off.
    Off,
    /// It asked for a reset.
    Reset,
    /// It panicked, told by the panic port or by its console before a reset.
    Panic,
}

/// The registers.
#[derive(Debug, Default)]
pub struct Power {
    panicked: AtomicBool,
    /// Bytes of [`PANIC_TEXT`] that the console has just shown.
    matched: AtomicUsize,
}

impl Power {
    /// Serves one byte of an OUT; the event says that the run ends.
    pub fn write(&self, port: u16, value: u8) -> Option<PowerEvent> {
        match (port, value) {
            (SLEEP_CONTROL, value) if value & SLEEP_ENABLE != 0 => {
                ((value >> 2) & 7 == SLEEP_TYPE_OFF).then_some(PowerEvent::Off)
            }
            (RESET, RESET_VALUE) | (I8042_COMMAND, I8042_RESET) => Some(self.reset()),
            (PANIC, value) if value & PANICKED != 0 => Some(PowerEvent::Panic),
            _ => None,
        }
    }

    fn reset(&self) -> PowerEvent {
        match self.panicked.load(Ordering::SeqCst) {
            true => PowerEvent::Panic,
            false => PowerEvent::Reset,
        }
    }

    /// Serves one byte of an IN, if the port is one of these.
    #[must_use]
    pub fn read(&self, port: u16) -> Option<u8> {
        match port {
            // An empty controller that takes every command at once.
            I8042_DATA | I8042_COMMAND | SLEEP_CONTROL | SLEEP_STATUS => Some(0),
            PANIC => Some(PANICKED | CRASH_LOADED),
            _ => None,
        }
    }

    /// Looks for the panic message in what the console shows, byte by byte.
    pub fn console_shows(&self, byte: u8) {
        let matched = self.matched.load(Ordering::SeqCst);
        // 'K' stands only at the start of the text, so a mismatch can only begin anew.
        let now = match byte {
            byte if PANIC_TEXT.get(matched) == Some(&byte) => matched + 1,
            byte if byte == PANIC_TEXT[0] => 1,
            _ => 0,
        };
        if now == PANIC_TEXT.len() {
            self.panicked.store(true, Ordering::SeqCst);
        }
        self.matched.store(now % PANIC_TEXT.len(), Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(power: &Power, text: &str) {
        text.bytes().for_each(|byte| power.console_shows(byte));
    }

    #[test]
    fn only_soft_off_with_the_enable_bit_ends_the_run() {
        let power = Power::default();
        assert_eq!(power.write(SLEEP_CONTROL, SLEEP_TYPE_OFF << 2), None);
        assert_eq!(power.write(SLEEP_CONTROL, 3 << 2 | SLEEP_ENABLE), None);
        let off = power.write(SLEEP_CONTROL, SLEEP_TYPE_OFF << 2 | SLEEP_ENABLE);
        assert_eq!(off, Some(PowerEvent::Off));
    }

    #[test]
    fn a_reset_after_the_panic_message_is_a_panic() {
        let power = Power::default();
        assert_eq!(power.write(RESET, RESET_VALUE), Some(PowerEvent::Reset));
        show(&power, "KKernel panic - not sync");
        assert_eq!(power.write(I8042_COMMAND, I8042_RESET), Some(PowerEvent::Reset));
        show(&power, "... KKernel panic - not syncing: no init found");
        assert_eq!(power.write(I8042_COMMAND, I8042_RESET), Some(PowerEvent::Panic));
    }

    #[test]
    fn the_panic_port_speaks_at_once_and_other_ports_are_not_ours() {
        let power = Power::default();
        assert_eq!(power.write(PANIC, PANICKED), Some(PowerEvent::Panic));
        assert_eq!(power.write(PANIC, CRASH_LOADED), None);
        assert_eq!(power.read(I8042_COMMAND), Some(0));
        assert_eq!(power.read(0x70), None);
    }
}
