//! The byte routines that the compiler calls, and what it wants of a panic.
//!
//! No state. The routines are string instructions in assembly, so that LLVM cannot
//! turn them into calls of themselves; an interpreted CPL0 runs them fast as well.

use core::arch::global_asm;
use core::panic::PanicInfo;

use pv_tlb::abi::debug_exit::{Key, Verdict};

use crate::ports;

global_asm!(
    ".macro routine name",
    ".globl \\name",
    ".type \\name, @function",
    "\\name:",
    ".endm",
    "routine memcpy",
    "mov rax, rdi",
    "mov rcx, rdx",
    "rep movsb",
    "ret",
    ".size memcpy, . - memcpy",
    "routine memmove",
    "mov rax, rdi",
    "mov rcx, rdx",
    "mov r8, rdi",
    "sub r8, rsi",
    "cmp r8, rdx",
    "jb 2f",
    "rep movsb",
    "ret",
    "2: lea rdi, [rdi + rcx - 1]",
    "lea rsi, [rsi + rcx - 1]",
    "std",
    "rep movsb",
    "cld",
    "ret",
    ".size memmove, . - memmove",
    "routine memset",
    "mov r8, rdi",
    "mov eax, esi",
    "mov rcx, rdx",
    "rep stosb",
    "mov rax, r8",
    "ret",
    ".size memset, . - memset",
    "routine bcmp",
    "routine memcmp",
    "xor eax, eax",
    "mov rcx, rdx",
    "cmp rcx, rcx",
    "repe cmpsb",
    "je 3f",
    "movzx eax, byte ptr [rdi - 1]",
    "movzx ecx, byte ptr [rsi - 1]",
    "sub ecx, eax",
    "mov eax, ecx",
    "3: ret",
    ".size memcmp, . - memcmp",
    ".size bcmp, . - bcmp",
);

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    ports::print(format_args!("guest: {info}\n"));
    let line = info.location().map_or(0, |place| u64::from(place.line()));
    ports::report(Key::PanicLine, line);
    ports::end(Verdict::Fail)
}
