//! The descriptor table and page tables that every vCPU starts with: flat 64-bit
//! segments and an identity map of the first 4 GiB in 2 MiB pages, supervisor only.
//! A guest replaces both.

use pv_tlb::addr::Gpa;

use crate::kvm::vcpu::LongModeEntry;
use crate::memory::{Error, GuestMemory};

const GDT: Gpa = Gpa(0x500);
const PML4: Gpa = Gpa(0x9000);
const PDPT: Gpa = Gpa(0xa000);
const FIRST_DIRECTORY: Gpa = Gpa(0xb000);
const DIRECTORIES: u64 = 4;

const PRESENT_WRITABLE: u64 = 0b11;
const LARGE: u64 = 1 << 7;

/// Null, 64-bit code, data: all flat, ring 0 (Intel SDM vol. 3, 3.4.5).
const DESCRIPTORS: [u64; 3] = [0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff];

/// Writes the tables and returns the entry state for `rip`, still without
/// arguments.
///
/// # Errors
/// If guest memory is too small, which its minimum size excludes.
pub fn write(memory: &GuestMemory, rip: u64) -> Result<LongModeEntry, Error> {
    memory.write_words(GDT, &DESCRIPTORS)?;
    memory.write_words(PML4, &[PDPT.0 | PRESENT_WRITABLE])?;
    for directory in 0..DIRECTORIES {
        let gpa = Gpa(FIRST_DIRECTORY.0 + directory * 4096);
        memory.write_words(Gpa(PDPT.0 + directory * 8), &[gpa.0 | PRESENT_WRITABLE])?;
        let page = |i: u64| ((directory << 30) + (i << 21)) | PRESENT_WRITABLE | LARGE;
        memory.write_words(gpa, &(0..512).map(page).collect::<Vec<_>>())?;
    }
    let gdt_limit = (size_of_val(&DESCRIPTORS) - 1) as u16;
    Ok(LongModeEntry { rip, rdi: 0, rsi: 0, cr3: PML4, gdt: GDT, gdt_limit })
}
