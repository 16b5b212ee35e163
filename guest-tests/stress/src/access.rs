//! Loads and stores that may be denied: the test accesses.
//!
//! No state. Each is one instruction with a known address; a page fault on it
//! continues at `access_denied` (see `traps`). Always the program's own level.

use core::arch::global_asm;

#[repr(C)]
struct Outcome {
    value: u64,
    denied: u64,
}

unsafe extern "C" {
    fn access_read(address: u64) -> Outcome;
    fn access_write(address: u64, value: u64) -> Outcome;
}

/// The word at `address`, or `None` if the page is absent.
pub(crate) fn read(address: u64) -> Option<u64> {
    // SAFETY: the address lies in a test window, which Rust holds no reference to;
    // a fault is caught.
    let outcome = unsafe { access_read(address) };
    (outcome.denied == 0).then_some(outcome.value)
}

/// Stores a word; false if the page is absent or read-only.
pub(crate) fn write(address: u64, value: u64) -> bool {
    // SAFETY: as for `read`.
    unsafe { access_write(address, value) }.denied == 0
}

global_asm!(
    ".globl access_read, access_write, access_denied, access_read_at, access_write_at",
    ".type access_read, @function",
    "access_read:",
    "xor edx, edx",
    "access_read_at:",
    "mov rax, [rdi]",
    "ret",
    ".size access_read, . - access_read",
    ".type access_write, @function",
    "access_write:",
    "xor edx, edx",
    "access_write_at:",
    "mov [rdi], rsi",
    "ret",
    ".size access_write, . - access_write",
    ".type access_denied, @function",
    "access_denied:",
    "mov edx, 1",
    "ret",
    ".size access_denied, . - access_denied",
);
