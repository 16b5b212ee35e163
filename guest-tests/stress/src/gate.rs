//! The few things only CPL0 may do, for a program that runs at either level.
//!
//! From CPL3 each is one `int3`, whose gate is open to CPL3 (see `traps`): a
//! breakpoint is the one software interrupt that every KVM delivers. At CPL0 the
//! instruction itself is used.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::apic;

/// Calls through the gate: RAX holds the number, RDI and RSI the arguments.
pub(crate) mod call {
    /// INVLPG of the address in RDI.
    pub(crate) const INVLPG: u64 = 0;
    /// CR3 = RDI.
    pub(crate) const LOAD_CR3: u64 = 1;
    /// WRMSR: register RDI, value RSI.
    pub(crate) const WRITE_MSR: u64 = 2;
    /// Halt with interrupts on, unless the word at RDI is not 0.
    pub(crate) const IDLE: u64 = 3;
    /// Store the RSI words at RDI to the xAPIC's interrupt command register.
    pub(crate) const COMMAND_XAPIC: u64 = 4;
    /// The same for the x2APIC's.
    pub(crate) const COMMAND_X2APIC: u64 = 5;
}

unsafe extern "C" {
    /// See `traps`, whose interrupt entry knows where it halts.
    fn idle_direct(awake: *const u64);
}

/// True if the program runs at CPL0. Written once by vCPU 0 before the others start.
pub(crate) static DIRECT: AtomicBool = AtomicBool::new(false);

fn direct() -> bool {
    DIRECT.load(Relaxed)
}

/// One passage to CPL0 and back.
fn enter(number: u64, a: u64, b: u64) {
    // SAFETY: the gate preserves everything but the registers named; what a call
    // does to memory is said at the caller.
    unsafe {
        asm!("int3", inout("rax") number => _, inout("rdi") a => _, inout("rsi") b => _,
             out("rcx") _, out("rdx") _, options(nostack));
    }
}

/// Drops the translation of the page at `address`.
pub(crate) fn invlpg(address: u64) {
    if !direct() {
        return enter(call::INVLPG, address, 0);
    }
    // SAFETY: dropping a translation is always allowed.
    unsafe { asm!("invlpg [{}]", in(reg) address, options(nostack, preserves_flags)) }
}

/// Loads CR3; bit 63 keeps the entries of the PCID.
///
/// # Safety
/// The tables must map this image, the stacks and the heap as all others do.
pub(crate) unsafe fn load_cr3(value: u64) {
    if !direct() {
        return enter(call::LOAD_CR3, value, 0);
    }
    // SAFETY: by the caller.
    unsafe { asm!("mov cr3, {}", in(reg) value, options(nostack, preserves_flags)) }
}

/// Writes a model-specific register.
///
/// # Safety
/// The write must not change how this code runs.
pub(crate) unsafe fn write_msr(register: u32, value: u64) {
    if !direct() {
        return enter(call::WRITE_MSR, u64::from(register), value);
    }
    // SAFETY: by the caller; this branch runs at CPL0.
    unsafe { write_msr_here(register, value) }
}

/// The same for code that knows it runs at CPL0.
///
/// # Safety
/// As [`write_msr`], and at CPL0.
pub(crate) unsafe fn write_msr_here(register: u32, value: u64) {
    // SAFETY: by the caller.
    unsafe {
        asm!("wrmsr", in("ecx") register, in("eax") value as u32, in("edx") (value >> 32) as u32,
             options(nostack, preserves_flags));
    }
}

/// Reads a model-specific register; at CPL0 only.
///
/// # Safety
/// The register must exist.
pub(crate) unsafe fn read_msr_here(register: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: by the caller.
    unsafe {
        asm!("rdmsr", in("ecx") register, out("eax") low, out("edx") high,
             options(nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// Gives `commands` to the local APIC one after another, in one passage. Bits 63:32
/// are the high half of the interrupt command register.
pub(crate) fn command(commands: &[u64], x2apic: bool) {
    if commands.is_empty() {
        return;
    }
    let number = if x2apic { call::COMMAND_X2APIC } else { call::COMMAND_XAPIC };
    if !direct() {
        return enter(number, commands.as_ptr() as u64, commands.len() as u64);
    }
    for command in commands {
        if x2apic {
            // SAFETY: the register only sends interrupts, which their targets expect.
            unsafe { write_msr_here(apic::X2APIC_COMMAND, *command) };
        } else {
            apic::write_mmio(apic::COMMAND_HIGH, (*command >> 32) as u32);
            apic::write_mmio(apic::COMMAND_LOW, *command as u32);
        }
    }
}

/// Halts until an interrupt, unless `awake` is set: the look and the halt are one
/// step for interrupts.
pub(crate) fn idle(awake: &AtomicU64) {
    if !direct() {
        return enter(call::IDLE, awake.as_ptr() as u64, 0);
    }
    // SAFETY: at CPL0 with interrupts on; the word outlives the halt.
    unsafe { idle_direct(awake.as_ptr()) }
}
