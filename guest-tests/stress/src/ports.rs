//! Port I/O: the debug-exit device and the serial line. Works at CPL0 and, through
//! the I/O bitmap of the TSS, at CPL3.
//!
//! No state here; the monitor keeps keys and halves per vCPU.

use core::arch::asm;
use core::fmt::{self, Write};

use pv_tlb::abi::debug_exit::{EXIT, HIGH, KEY, Key, LOW, Verdict};

/// Transmit register of the first serial port.
const SERIAL_DATA: u16 = 0x3f8;

/// Writes 32 bits to `port`, which the I/O bitmap must open.
pub(crate) fn out32(port: u16, value: u32) {
    // SAFETY: port output touches no memory of this guest by itself; a doorbell's
    // answer is written to atomics. The clobber makes earlier stores visible.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nostack)) }
}

/// Writes 8 bits to `port`, which the I/O bitmap must open.
pub(crate) fn out8(port: u16, value: u8) {
    // SAFETY: as for `out32`.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nostack)) }
}

/// Reads 32 bits from `port`, which the I/O bitmap must open.
pub(crate) fn in32(port: u16) -> u32 {
    let value;
    // SAFETY: port input touches no memory.
    unsafe { asm!("in eax, dx", in("dx") port, out("eax") value, options(nostack)) }
    value
}

/// Reports one value to the monitor.
pub(crate) fn report(key: Key, value: u64) {
    out32(KEY, key as u32);
    out32(LOW, value as u32);
    out32(HIGH, (value >> 32) as u32);
}

/// Ends the run.
pub(crate) fn end(verdict: Verdict) -> ! {
    out32(EXIT, verdict as u32);
    // The monitor stops the vCPU inside the write.
    loop {
        core::hint::spin_loop();
    }
}

struct Serial;

impl Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            out8(SERIAL_DATA, byte);
        }
        Ok(())
    }
}

/// Prints to the serial line; one exit per byte, so for bad news only.
pub(crate) fn print(text: fmt::Arguments<'_>) {
    // The line takes everything.
    let _ = Serial.write_fmt(text);
}
