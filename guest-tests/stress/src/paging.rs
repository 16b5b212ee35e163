//! Page tables: the identity map that all address spaces share, and a window of
//! test pages in each.
//!
//! The identity map is made by the compiler, so that no vCPU spends time on it at
//! CPL0; it covers the first 4 GiB by 2 MiB pages, open to CPL3, with the page of
//! the local APIC uncached. Windows are built by vCPU 0 at the program's level;
//! afterwards only the owner of a test page writes its entry. Accessed and dirty
//! bits are set from the start, so the CPU never writes an entry.
//!
//! vCPUs are made different where it does not matter to them, because a KVM with
//! shadow page tables lets equal vCPUs share them: an INVLPG of one would repair the
//! others, and a flush that never reached them would go unseen. Such a table is kept
//! for each combination of CR0.WP and of the rights that the levels above grant. So
//! every other vCPU clears CR0.WP ([`write_protects`]), and every other pair uses a
//! top table that denies execution of the window: four kinds, two of which any two
//! neighbours are.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use pv_tlb::addr::PAGE_BYTES;
use pv_tlb::shootdown::{INIT_MM, MmId};

use crate::heap::Heap;
use crate::vcpu::Raw;

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const UNCACHED: u64 = 1 << 3 | 1 << 4;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;
const TABLE: u64 = PRESENT | WRITABLE | USER | ACCESSED;

/// Flags of a test page that may be written.
pub(crate) const READ_WRITE: u64 = TABLE | DIRTY;
/// Flags of a test page that may only be read.
pub(crate) const READ_ONLY: u64 = READ_WRITE & !WRITABLE;

/// First address of the window of test pages, in every address space.
pub(crate) const WINDOW: u64 = 1 << 39;
/// Most address spaces, [`INIT_MM`] included.
pub(crate) const MAX_MMS: usize = 257;

const GIBIBYTES: usize = 4;
const APIC_ENTRY: usize = 0xfee0_0000 >> 21;

#[repr(C, align(4096))]
struct Table([AtomicU64; 512]);

impl Table {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 512])
    }

    fn address(&self) -> u64 {
        self.0.as_ptr() as u64
    }
}

#[repr(C, align(4096))]
struct Directories([[u64; 512]; GIBIBYTES]);

/// In writable memory although nobody writes it: a CPU may, if it likes.
static IDENTITY: Raw<Directories> = Raw::new(identity());
static IDENTITY_POINTERS: Table = Table::new();
static INIT_ROOT: Table = Table::new();
/// By mm: the top table, and the one that denies execution of the window.
static ROOTS: [[AtomicU64; 2]; MAX_MMS] = [const { [const { AtomicU64::new(0) }; 2] }; MAX_MMS];
/// EFER.NXE is set. Written by vCPU 0 at boot.
pub(crate) static NO_EXECUTE_OFFERED: AtomicBool = AtomicBool::new(false);

const fn identity() -> Directories {
    let mut tables = [[0; 512]; GIBIBYTES];
    let mut entry = 0;
    while entry < 512 * GIBIBYTES {
        let caching = if entry == APIC_ENTRY { UNCACHED } else { 0 };
        tables[entry / 512][entry % 512] = (entry as u64) << 21 | READ_WRITE | LARGE | caching;
        entry += 1;
    }
    Directories(tables)
}

/// Ties the identity map together. vCPU 0, before any vCPU loads it.
pub(crate) fn build_init_mm() {
    let first = IDENTITY.get() as u64;
    for (i, entry) in IDENTITY_POINTERS.0.iter().take(GIBIBYTES).enumerate() {
        let directory = first + i as u64 * PAGE_BYTES;
        entry.store(directory | TABLE, Relaxed);
    }
    INIT_ROOT.0[0].store(IDENTITY_POINTERS.address() | TABLE, Relaxed);
    for root in &ROOTS[INIT_MM.0 as usize] {
        root.store(INIT_ROOT.address(), Relaxed);
    }
}

/// The top table of `mm` for `vcpu`, for CR3.
pub(crate) fn root(mm: MmId, vcpu: u32) -> u64 {
    let kind = (vcpu / 2 % 2) as usize;
    // Partner: the start barrier, after set-up by vCPU 0.
    ROOTS[mm.0 as usize][kind].load(Relaxed)
}

/// True if `vcpu` has CR0.WP set, which means nothing at CPL3.
pub(crate) fn write_protects(vcpu: u32) -> bool {
    vcpu.is_multiple_of(2)
}

/// Makes an address space with an empty window.
pub(crate) fn build_mm(heap: &mut Heap, mm: MmId) {
    let window = new_table(heap).address() | TABLE;
    let denied = if NO_EXECUTE_OFFERED.load(Relaxed) { NO_EXECUTE } else { 0 };
    for (root, rights) in ROOTS[mm.0 as usize].iter().zip([0, denied]) {
        let top = new_table(heap);
        top.0[0].store(IDENTITY_POINTERS.address() | TABLE, Relaxed);
        top.0[(WINDOW >> 39) as usize].store(window | rights, Relaxed);
        root.store(top.address(), Relaxed);
    }
}

/// The last-level entry of `address` in `mm`; makes the tables on the way.
pub(crate) fn entry(heap: &mut Heap, mm: MmId, address: u64) -> &'static AtomicU64 {
    let mut at = table(root(mm, 0));
    for shift in [39, 30, 21] {
        let entry = &at.0[(address >> shift) as usize % 512];
        if entry.load(Relaxed) == 0 {
            entry.store(new_table(heap).address() | TABLE, Relaxed);
        }
        at = table(entry.load(Relaxed) & !(PAGE_BYTES - 1));
    }
    &at.0[(address >> 12) as usize % 512]
}

fn new_table(heap: &mut Heap) -> &'static Table {
    table(heap.frame())
}

fn table(address: u64) -> &'static Table {
    // SAFETY: every table address comes from a `Table` or from `Heap::frame`, which
    // gives whole zero pages for ever; entries are atomics.
    unsafe { &*(address as *const Table) }
}
