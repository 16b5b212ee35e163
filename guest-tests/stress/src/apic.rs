//! The local APIC: interrupts to other vCPUs, wake-ups, and a one-shot timer.
//!
//! A single xAPIC register is stored to from either level; x2APIC registers are MSRs
//! and go through the gate, and so does any list of commands: one passage costs less
//! than the two stores of one command, each of which KVM has to emulate. Only the
//! program touches the interrupt command register, never what an interrupt runs, so
//! its two halves cannot be torn.

use core::arch::asm;

use pv_tlb::cpuset::CpuSet;
use pv_tlb::id::VcpuId;

use crate::params::{add, params, report, x2apic};
use crate::traps::{SPURIOUS, VECTOR};
use crate::{gate, vcpu};

/// Address of the xAPIC's registers.
pub(crate) const XAPIC: u32 = 0xfee0_0000;
const X2APIC: u32 = 0x800;

const END_OF_INTERRUPT: u32 = 0xb0;
const SPURIOUS_VECTOR: u32 = 0xf0;
/// Offset of the interrupt command register, bits 31:0.
pub(crate) const COMMAND_LOW: u32 = 0x300;
/// Offset of the interrupt command register, bits 63:32.
pub(crate) const COMMAND_HIGH: u32 = 0x310;
const TIMER_VECTOR: u32 = 0x320;
const TIMER_COUNT: u32 = 0x380;
const TIMER_DIVIDE: u32 = 0x3e0;

/// End-of-interrupt register of the xAPIC.
pub(crate) const XAPIC_EOI: u32 = XAPIC + END_OF_INTERRUPT;
/// Interrupt command MSR of the x2APIC.
pub(crate) const X2APIC_COMMAND: u32 = X2APIC + (COMMAND_LOW >> 4);
/// End-of-interrupt MSR of the x2APIC.
pub(crate) const X2APIC_EOI: u32 = X2APIC + (END_OF_INTERRUPT >> 4);

const MSR_APIC_BASE: u32 = 0x1b;
const APIC_BASE_X2APIC: u64 = 3 << 10;
const SOFTWARE_ENABLE: u32 = 1 << 8;
const LEVEL_ASSERT: u32 = 1 << 14;
const ALL_BUT_SELF: u32 = 3 << 18;
const DIVIDE_BY_1: u32 = 0xb;
/// Commands given in one passage.
const COMMANDS_AT_ONCE: usize = 32;

/// Stores to an xAPIC register, given by its offset.
pub(crate) fn write_mmio(register: u32, value: u32) {
    let address = u64::from(XAPIC + register);
    // SAFETY: the APIC page is mapped at its own address and holds no Rust object.
    unsafe {
        asm!("mov dword ptr [{}], {:e}", in(reg) address, in(reg) value,
             options(nostack, preserves_flags));
    }
}

fn write(register: u32, value: u64) {
    match x2apic() {
        // SAFETY: the registers written here only send or time interrupts, which
        // the program is ready for.
        true => unsafe { gate::write_msr(X2APIC + (register >> 4), value) },
        false => write_mmio(register, value as u32),
    }
}

/// Turns the APIC of this vCPU on; at CPL0, with interrupts off.
pub(crate) fn enable() {
    let setup = [
        (SPURIOUS_VECTOR, SOFTWARE_ENABLE | u32::from(SPURIOUS)),
        (TIMER_VECTOR, u32::from(VECTOR)),
        (TIMER_DIVIDE, DIVIDE_BY_1),
    ];
    if !x2apic() {
        setup.into_iter().for_each(|(register, value)| write_mmio(register, value));
        return;
    }
    // SAFETY: the monitor chose x2APIC, so CPUID offers it and the MSRs exist.
    let mode = unsafe { gate::read_msr_here(MSR_APIC_BASE) };
    // SAFETY: as above; nothing is in flight yet.
    unsafe { gate::write_msr_here(MSR_APIC_BASE, mode | APIC_BASE_X2APIC) };
    for (register, value) in setup {
        // SAFETY: as above.
        unsafe { gate::write_msr_here(X2APIC + (register >> 4), u64::from(value)) };
    }
}

/// Ends the interrupt being served; for the direct entry.
pub(crate) fn end_of_interrupt() {
    write(END_OF_INTERRUPT, 0);
}

/// Interrupts this vCPU after `ticks` of the APIC timer (1 ns each under KVM).
pub(crate) fn arm_timer(ticks: u32) {
    write(TIMER_COUNT, u64::from(ticks));
}

/// Interrupts `targets`, none of them this vCPU; by one command if they are all
/// others. KVM carries a command out before it returns from the write, so there is
/// no delivery status to wait for.
pub(crate) fn interrupt(targets: &CpuSet) {
    let count = targets.len();
    let report = report();
    add(&report.ipis_sent, u64::from(count));
    if count + 1 == params().vcpus {
        add(&report.icr_writes, 1);
        return command_others();
    }
    add(&report.icr_writes, u64::from(count));
    let mut commands = [0; COMMANDS_AT_ONCE];
    let mut filled = 0;
    for target in targets {
        commands[filled] = command_for(target);
        filled += 1;
        if filled == commands.len() {
            gate::command(&commands, x2apic());
            filled = 0;
        }
    }
    gate::command(&commands[..filled], x2apic());
}

/// Wakes one vCPU out of idle.
pub(crate) fn wake(target: u32) {
    if target != vcpu::me() {
        gate::command(&[command_for(VcpuId(target))], x2apic());
    }
}

/// Wakes all other vCPUs.
pub(crate) fn wake_others() {
    if params().vcpus > 1 {
        command_others();
    }
}

/// The command that interrupts `target`: its APIC id is bits 63:32, or 63:56 of the
/// xAPIC's.
fn command_for(target: VcpuId) -> u64 {
    let shift = if x2apic() { 32 } else { 56 };
    u64::from(target.0) << shift | u64::from(LEVEL_ASSERT) | u64::from(VECTOR)
}

fn command_others() {
    write(COMMAND_LOW, u64::from(ALL_BUT_SELF | LEVEL_ASSERT | u32::from(VECTOR)));
}
