//! What each vCPU owns: stacks, descriptor tables, task state, and the words of the
//! shootdown algorithms that belong to it.
//!
//! Owner: the vCPU, except for the words that others read or set bits of (see
//! `pv_tlb::shootdown`). All areas are static and zero at start.

use core::arch::asm;
use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use pv_tlb::abi::kvm::StealTime;
use pv_tlb::abi::stress::MAX_VCPUS;
use pv_tlb::shootdown::MAX_SLOTS;

use crate::params::params;

/// 64-bit words of a set of [`MAX_VCPUS`] vCPUs.
pub(crate) const SET_WORDS: usize = MAX_VCPUS as usize / 64;
/// Bytes of the stack on which traps from CPL3 run.
const KERNEL_STACK: usize = 8 * 1024;
/// Bytes of the stack of the program.
const USER_STACK: usize = 16 * 1024;

/// Memory that one vCPU reaches by address only (stacks and what the CPU reads).
#[repr(C, align(64))]
pub(crate) struct Raw<T>(UnsafeCell<T>);

// SAFETY: only the owning vCPU uses the contents, as said at each use.
unsafe impl<T> Sync for Raw<T> {}

impl<T> Raw<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    pub(crate) const fn get(&self) -> *mut T {
        self.0.get()
    }
}

/// Read by every initiator that picks targets.
#[repr(C, align(64))]
#[derive(Default)]
pub(crate) struct Visible {
    pub(crate) loaded_mm: AtomicU64,
    pub(crate) lazy: AtomicU64,
}

/// Read and written by the vCPU itself only.
#[repr(C, align(64))]
#[derive(Default)]
pub(crate) struct Slots {
    pub(crate) masked: AtomicU64,
    pub(crate) loaded: AtomicU64,
    pub(crate) next: AtomicU64,
    pub(crate) mm: [AtomicU64; MAX_SLOTS as usize],
    pub(crate) generation: [AtomicU64; MAX_SLOTS as usize],
}

/// A set of vCPUs that others set or clear bits of.
#[repr(C, align(64))]
#[derive(Default)]
pub(crate) struct SharedSet(pub(crate) [AtomicU64; SET_WORDS]);

/// The request record: written by the vCPU, read by its targets.
#[repr(C, align(64))]
#[derive(Default)]
pub(crate) struct RequestWords {
    pub(crate) mm: AtomicU64,
    pub(crate) start: AtomicU64,
    pub(crate) pages: AtomicU64,
    pub(crate) generation: AtomicU64,
}

/// First bytes at GS.
#[repr(C, align(64))]
#[derive(Default)]
pub(crate) struct Local {
    /// Number of the vCPU.
    pub(crate) id: AtomicU64,
    /// Set by every interrupt taken outside idle; idle does not halt while it is
    /// set, so no interrupt between the last look and the halt is slept through.
    pub(crate) awake: AtomicU64,
    /// The vCPU's own number of its last flush, for the doorbell.
    pub(crate) flush_seq: AtomicU64,
}

/// Everything of one vCPU.
#[repr(C, align(4096))]
pub(crate) struct Area {
    kernel_stack: Raw<[u8; KERNEL_STACK]>,
    user_stack: Raw<[u8; USER_STACK]>,
    pub(crate) task: Raw<crate::boot::TaskState>,
    pub(crate) gdt: Raw<crate::boot::Gdt>,
    pub(crate) local: Local,
    pub(crate) visible: Visible,
    pub(crate) slots: Slots,
    pub(crate) pending: SharedSet,
    pub(crate) owing: SharedSet,
    pub(crate) request: RequestWords,
    pub(crate) steal_time: Raw<[u64; size_of::<StealTime>() / 8]>,
}

/// Where the kernel stack ends, from the start of an [`Area`].
pub(crate) const KERNEL_STACK_TOP: usize = offset_of!(Area, kernel_stack) + KERNEL_STACK;
/// Where the program's stack ends, from the start of an [`Area`].
pub(crate) const USER_STACK_TOP: usize = offset_of!(Area, user_stack) + USER_STACK;

const fn zero() -> AtomicU64 {
    AtomicU64::new(0)
}

const fn zeroes<const N: usize>() -> [AtomicU64; N] {
    [const { zero() }; N]
}

impl Area {
    const fn new() -> Self {
        Self {
            kernel_stack: Raw::new([0; KERNEL_STACK]),
            user_stack: Raw::new([0; USER_STACK]),
            task: Raw::new(crate::boot::TaskState::ZERO),
            gdt: Raw::new([0; crate::boot::GDT_ENTRIES]),
            local: Local { id: zero(), awake: zero(), flush_seq: zero() },
            visible: Visible { loaded_mm: zero(), lazy: zero() },
            slots: Slots {
                masked: zero(),
                loaded: zero(),
                next: zero(),
                mm: zeroes(),
                generation: zeroes(),
            },
            pending: SharedSet(zeroes()),
            owing: SharedSet(zeroes()),
            request: RequestWords { mm: zero(), start: zero(), pages: zero(), generation: zero() },
            steal_time: Raw::new([0; 8]),
        }
    }

    /// KVM's record of this vCPU.
    pub(crate) fn steal_time(&self) -> &StealTime {
        // SAFETY: 64 bytes, 64-byte aligned, of which the fields used are atomics.
        unsafe { &*self.steal_time.get().cast() }
    }
}

/// All areas, by vCPU number.
pub(crate) static AREAS: [Area; MAX_VCPUS as usize] = [const { Area::new() }; MAX_VCPUS as usize];

/// Number of the executing vCPU; valid once GS is loaded.
pub(crate) fn me() -> u32 {
    let id: u32;
    // SAFETY: GS points to this vCPU's `Local`, whose first word is the number and
    // never changes.
    unsafe {
        asm!("mov {:e}, gs:[0]", out(reg) id, options(pure, readonly, nostack, preserves_flags))
    }
    id
}

/// Nanoseconds for which the executing vCPU has waited for a pCPU, as KVM counts
/// them; KVM adds to it before each entry.
pub(crate) fn stolen_ns() -> u64 {
    let first = params().steal_gpa;
    if first == 0 {
        return mine().steal_time().steal.load(Relaxed);
    }
    let record = first + u64::from(me()) * size_of::<StealTime>() as u64;
    // SAFETY: the monitor reserved one record per vCPU there for the whole run; the
    // field used is an atomic.
    let record = unsafe { &*(record as *const StealTime) };
    record.steal.load(Relaxed)
}

/// The area of `vcpu`.
pub(crate) fn area(vcpu: u32) -> &'static Area {
    &AREAS[vcpu as usize]
}

/// The area of the executing vCPU.
pub(crate) fn mine() -> &'static Area {
    area(me())
}
