//! Entries into CPL0: exceptions, the gate and the one interrupt vector.
//!
//! States of a vCPU that matter here: in the program at CPL3, halted in the gate,
//! or (with `algorithm_cpl` = 0) in the program at CPL0. The entries are short
//! assembly, because a KVM that interprets CPL0 takes most of a microsecond for
//! each instruction.
//!
//! An interrupt that met the program at CPL3 continues there as an upcall: the entry
//! pushes the interrupted RIP on the program's stack and returns to `upcall`, which
//! saves registers, serves, and goes on where the program was. The image has no red
//! zone, so the stack below RSP is free. Upcalls nest, since nothing at CPL3 can
//! mask interrupts; a nested one meets the mask of `Shootdown::on_interrupt` and
//! returns at once, so that at most one per pending word is on the stack.
//!
//! `sti` holds interrupts off until `hlt` has begun, but QEMU's emulated SVM forgets
//! that across an exit between the two. So an interrupt that finds a vCPU before its
//! `hlt` also takes it past the `hlt`: it was what the halt would have waited for.
//!
//! An access of `access` that faults continues at its denied exit. Any other
//! exception ends the run.

use core::arch::global_asm;
use core::mem::size_of_val;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pv_tlb::abi::debug_exit::{Key, Verdict};

use crate::boot::KERNEL_CODE;
use crate::gate::call;
use crate::{apic, machine, ports, vcpu};

/// Vector of flush requests, wake-ups and the timer.
pub(crate) const VECTOR: u8 = 0xe0;
/// Vector of spurious interrupts.
pub(crate) const SPURIOUS: u8 = 0xff;
const PAGE_FAULT: u8 = 14;
const BREAKPOINT: u8 = 3;
const EXCEPTIONS: u8 = 32;
/// Bytes between two exception entries.
const ENTRY_STRIDE: u64 = 16;

unsafe extern "C" {
    fn exception_entries();
    fn page_fault_entry();
    fn gate_entry();
    fn xapic_entry();
    fn x2apic_entry();
    fn direct_entry();
    fn spurious_entry();
}

#[repr(C, align(16))]
struct Idt([AtomicU64; 512]);

static IDT: Idt = Idt([const { AtomicU64::new(0) }; 512]);

/// Address and limit of the interrupt descriptor table.
pub(crate) fn idt() -> (u64, u16) {
    (IDT.0.as_ptr() as u64, size_of_val(&IDT) as u16 - 1)
}

/// Fills the table. vCPU 0, before any vCPU loads it.
pub(crate) fn fill_idt(direct: bool, x2apic: bool) {
    for vector in 0..EXCEPTIONS {
        set(vector, exception_entries as *const () as u64 + u64::from(vector) * ENTRY_STRIDE, 0);
    }
    set(PAGE_FAULT, page_fault_entry as *const () as u64, 0);
    set(BREAKPOINT, gate_entry as *const () as u64, 3);
    set(SPURIOUS, spurious_entry as *const () as u64, 0);
    let interrupt: unsafe extern "C" fn() = match (direct, x2apic) {
        (true, _) => direct_entry,
        (false, true) => x2apic_entry,
        (false, false) => xapic_entry,
    };
    set(VECTOR, interrupt as *const () as u64, 0);
}

/// A 64-bit interrupt gate (Intel SDM vol. 3, 7.14.1): interrupts off at entry.
fn set(vector: u8, entry: u64, dpl: u64) {
    let kind = 0x8e00 | dpl << 13;
    let low =
        entry & 0xffff | u64::from(KERNEL_CODE) << 16 | kind << 32 | (entry >> 16 & 0xffff) << 48;
    IDT.0[usize::from(vector) * 2].store(low, Relaxed);
    IDT.0[usize::from(vector) * 2 + 1].store(entry >> 32, Relaxed);
}

/// An interrupt met the program; called at the program's level, on its stack.
extern "C" fn interrupted() {
    // Partner: `idle` of this vCPU; program order.
    vcpu::mine().local.awake.store(1, Relaxed);
    machine::rules().on_interrupt(&machine::Machine);
}

/// The same at CPL0, which also ends the interrupt.
extern "C" fn interrupted_direct() {
    apic::end_of_interrupt();
    interrupted();
}

/// What the exception entries leave on the stack.
#[repr(C)]
struct Frame {
    vector: u64,
    error: u64,
    rip: u64,
    cs: u64,
}

extern "C" fn fatal(frame: &Frame) -> ! {
    let cr2: u64;
    // SAFETY: at CPL0, a read of CR2 changes nothing.
    unsafe { core::arch::asm!("mov {}, cr2", out(reg) cr2, options(nomem, nostack)) };
    ports::report(Key::Vector, frame.vector);
    ports::report(Key::Rip, frame.rip);
    ports::report(Key::ErrorCode, frame.error);
    ports::report(Key::Cr2, cr2);
    ports::print(format_args!(
        "guest: exception {} at {:#x}, cs {:#x}, error {:#x}, cr2 {cr2:#x}\n",
        frame.vector, frame.rip, frame.cs, frame.error,
    ));
    ports::end(Verdict::Fault)
}

global_asm!(
    ".macro entry name",
    ".globl \\name",
    ".type \\name, @function",
    ".balign 16",
    "\\name:",
    ".endm",
    // One entry per exception, 16 bytes apart; those without an error code push 0.
    "entry exception_entries",
    ".set vector, 0",
    ".rept 32",
    ".balign 16",
    ".if (0x60227d00 >> vector) & 1",
    ".else",
    "push 0",
    ".endif",
    ".byte 0x6a, vector", // push imm8
    "jmp exception_common",
    ".set vector, vector + 1",
    ".endr",
    ".size exception_entries, . - exception_entries",
    "entry exception_common",
    "mov rdi, rsp",
    "and rsp, -16",
    "cld",
    "call {fatal}",
    "ud2",
    ".size exception_common, . - exception_common",
    // [rsp] error, +8 rip.
    "entry page_fault_entry",
    "push rax",
    "lea rax, [rip + access_read_at]",
    "cmp [rsp + 16], rax",
    "je 2f",
    "lea rax, [rip + access_write_at]",
    "cmp [rsp + 16], rax",
    "je 2f",
    "pop rax",
    "push 14",
    "jmp exception_common",
    "2: lea rax, [rip + access_denied]",
    "mov [rsp + 16], rax",
    "pop rax",
    "add rsp, 8",
    "iretq",
    ".size page_fault_entry, . - page_fault_entry",
    "entry gate_entry",
    "test eax, eax",
    "jnz 2f",
    "invlpg [rdi]",
    "iretq",
    "2: cmp eax, {load_cr3}",
    "jne 3f",
    "mov cr3, rdi",
    "iretq",
    "3: cmp eax, {write_msr}",
    "jne 4f",
    "mov ecx, edi",
    "mov eax, esi",
    "mov rdx, rsi",
    "shr rdx, 32",
    "wrmsr",
    "iretq",
    "4: cmp eax, {idle}",
    "jne 6f",
    "cmp qword ptr [rdi], 0",
    "jne 5f",
    "sti",
    "gate_halt: hlt",
    "5: iretq",
    "6: cmp eax, {command_xapic}",
    "jne 8f",
    "mov eax, {xapic}",
    "7: mov rcx, [rdi]",
    "mov rdx, rcx",
    "shr rdx, 32",
    "mov [rax + {command_high}], edx",
    "mov [rax + {command_low}], ecx",
    "add rdi, 8",
    "dec rsi",
    "jnz 7b",
    "iretq",
    "8: cmp eax, {command_x2apic}",
    "jne 10f",
    "mov ecx, {command_msr}",
    "9: mov eax, [rdi]",
    "mov edx, [rdi + 4]",
    "wrmsr",
    "add rdi, 8",
    "dec rsi",
    "jnz 9b",
    "iretq",
    "10: ud2",
    ".size gate_entry, . - gate_entry",
    // [rsp] rcx, +8 rax, +16 rip, +24 cs, +32 rflags, +40 rsp. From the gate nothing
    // but the end of the interrupt is due, and of a halt that has not begun.
    ".macro to_upcall",
    "test byte ptr [rsp + 24], 3",
    "jnz 3f",
    "lea rax, [rip + gate_halt]",
    "cmp [rsp + 16], rax",
    "jne 2f",
    "inc qword ptr [rsp + 16]", // hlt is one byte
    "jmp 2f",
    "3:",
    "mov rcx, [rsp + 40]",
    "mov rax, [rsp + 16]",
    "sub rcx, 8",
    "mov [rcx], rax",
    "mov [rsp + 40], rcx",
    "lea rax, [rip + upcall]",
    "mov [rsp + 16], rax",
    "2:",
    ".endm",
    "entry xapic_entry",
    "push rax",
    "push rcx",
    "mov eax, {eoi}",
    "mov dword ptr [rax], 0",
    "to_upcall",
    "pop rcx",
    "pop rax",
    "iretq",
    ".size xapic_entry, . - xapic_entry",
    "entry x2apic_entry",
    "push rax",
    "push rcx",
    "push rdx",
    "mov ecx, {eoi_msr}",
    "xor eax, eax",
    "xor edx, edx",
    "wrmsr",
    "pop rdx",
    "to_upcall",
    "pop rcx",
    "pop rax",
    "iretq",
    ".size x2apic_entry, . - x2apic_entry",
    ".macro save_and_call function",
    "push rax",
    "push rcx",
    "push rdx",
    "push rsi",
    "push rdi",
    "push r8",
    "push r9",
    "push r10",
    "push r11",
    "push rbx",
    "mov rbx, rsp",
    "and rsp, -16",
    "cld",
    "call \\function",
    "mov rsp, rbx",
    "pop rbx",
    "pop r11",
    "pop r10",
    "pop r9",
    "pop r8",
    "pop rdi",
    "pop rsi",
    "pop rdx",
    "pop rcx",
    "pop rax",
    ".endm",
    // At CPL3; [rsp] holds the interrupted RIP, the flags are still its own.
    "entry upcall",
    "pushfq",
    "save_and_call {interrupted}",
    "popfq",
    "ret",
    ".size upcall, . - upcall",
    "entry direct_entry",
    "push rax",
    "lea rax, [rip + direct_halt]",
    "cmp [rsp + 8], rax",
    "jne 2f",
    "inc qword ptr [rsp + 8]", // hlt is one byte
    "2: pop rax",
    "save_and_call {interrupted_direct}",
    "iretq",
    ".size direct_entry, . - direct_entry",
    // Halts at CPL0 with interrupts on, unless the word at RDI is not 0.
    "entry idle_direct",
    "cli",
    "cmp qword ptr [rdi], 0",
    "jne 2f",
    "sti",
    "direct_halt: hlt",
    "2: sti",
    "ret",
    ".size idle_direct, . - idle_direct",
    "entry spurious_entry",
    "iretq",
    ".size spurious_entry, . - spurious_entry",
    fatal = sym fatal,
    interrupted = sym interrupted,
    interrupted_direct = sym interrupted_direct,
    load_cr3 = const call::LOAD_CR3,
    write_msr = const call::WRITE_MSR,
    idle = const call::IDLE,
    command_xapic = const call::COMMAND_XAPIC,
    command_x2apic = const call::COMMAND_X2APIC,
    command_high = const apic::COMMAND_HIGH,
    command_low = const apic::COMMAND_LOW,
    command_msr = const apic::X2APIC_COMMAND,
    xapic = const apic::XAPIC,
    eoi = const apic::XAPIC_EOI,
    eoi_msr = const apic::X2APIC_EOI,
);
