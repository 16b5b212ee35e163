//! The test pages: who owns which, where it is mapped, and what has been promised.
//!
//! Built by vCPU 0 before the start, never changed in shape. Each page belongs to
//! one initiator and is mapped in its home mm only, at the same address whatever the
//! mm. Fields say who writes them.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use pv_tlb::addr::PAGE_BYTES;
use pv_tlb::shootdown::MmId;

use crate::heap::Heap;
use crate::paging::{self, MAX_MMS, READ_WRITE, WINDOW};
use crate::params::params;

/// Frames that an initiator has besides those mapped: the more, the longer a freed
/// frame keeps its poison.
const SPARE_FRAMES: usize = 4;
/// Bits of a stamp that count; above them page and mm.
const SEQUENCE_BITS: u32 = 36;
const PAGE_BITS: u32 = 16;
/// What a freed frame holds; the stamp of no page.
pub(crate) const POISON: u64 = 0xdead_dead_dead_dead;

/// One test page.
#[repr(C, align(64))]
pub(crate) struct Page {
    /// Lowest stamp a read may return. The owner stores it (release) when a flush has
    /// returned; readers load it (acquire) before they read through the mapping.
    pub(crate) floor: AtomicU64,
    /// The owner's number of that flush; stored before the floor.
    pub(crate) flush: AtomicU64,
    /// Address of the mapped frame; owner only.
    pub(crate) frame: AtomicU64,
    /// The newest stamp; owner only.
    pub(crate) stamp: AtomicU64,
    /// The page-table entry, written by the owner, read by every walk.
    pub(crate) entry: &'static AtomicU64,
    /// Where it is mapped.
    pub(crate) address: u64,
    /// The address space.
    pub(crate) mm: MmId,
    /// The initiator it belongs to.
    pub(crate) owner: u32,
}

impl Page {
    /// Makes `stamp` the lowest that may still be seen.
    pub(crate) fn promise(&self, stamp: u64, flush: u64) {
        self.flush.store(flush, Relaxed);
        // Partner: `Reader::check`.
        self.floor.store(stamp, Release);
    }

    /// True if `stamp` is one of this page's.
    pub(crate) fn is_mine(&self, stamp: u64) -> bool {
        stamp >> SEQUENCE_BITS == self.stamp.load(Relaxed) >> SEQUENCE_BITS
    }
}

/// Everything that is built.
pub(crate) struct World {
    pages: &'static [Page],
    /// By mm, then the pages mapped in it, by index.
    in_mm: &'static [&'static [u32]],
    /// By initiator: addresses of its spare frames, used in turn; owner only.
    spares: &'static [&'static [AtomicU64]],
}

/// Null until built.
static WORLD: AtomicU64 = AtomicU64::new(0);

/// What vCPU 0 built.
pub(crate) fn world() -> &'static World {
    let address = WORLD.load(Acquire) as *const World;
    assert!(!address.is_null(), "Nothing was built");
    // SAFETY: `build` stored the address of a value that lives for ever and is
    // shared by atomics only.
    unsafe { &*address }
}

/// The address space in which `vcpu` lives.
pub(crate) fn home_mm(vcpu: u32) -> MmId {
    let p = params();
    let index = match p.targets {
        0 => vcpu % p.mms.max(1),
        k => vcpu.saturating_sub(k),
    };
    // 0 is the address space without a window.
    MmId(index + 1)
}

/// Number of address spaces with a window.
pub(crate) fn mms() -> u32 {
    let p = params();
    match p.targets {
        0 => p.mms.clamp(1, p.vcpus),
        k => p.vcpus.saturating_sub(k).max(1),
    }
}

/// Pages of each initiator.
pub(crate) fn pages_each() -> usize {
    params().pages_per_vcpu.max(1) as usize
}

/// Builds address spaces, pages and frames.
pub(crate) fn build() {
    assert!(mms() < MAX_MMS as u32, "{} address spaces, expected fewer than {MAX_MMS}", mms());
    let total = params().initiators as usize * pages_each();
    assert!(total < 1 << PAGE_BITS, "{total} test pages, expected fewer than 65536");
    let heap = &mut Heap::new();
    (1..=mms()).for_each(|mm| paging::build_mm(heap, MmId(mm)));
    let pages = heap.slice_with(total, make_page);
    let in_mm = heap.slice_with(mms() as usize + 1, |heap, mm| {
        let here = |page: &&Page| page.mm.0 as usize == mm;
        let mut indices = (0..total).filter(|i| here(&&pages[*i]));
        let count = pages.iter().filter(here).count();
        &*heap.slice_with(count, |_, _| indices.next().expect("Counted") as u32)
    });
    let spares = heap.slice_with(params().initiators as usize, |heap, _| {
        &*heap.slice_with(pages_each() + SPARE_FRAMES, |heap, _| AtomicU64::new(heap.frame()))
    });
    let world = heap.slice_with(1, |_, _| World { pages, in_mm, spares });
    // Partner: `world`.
    WORLD.store(world.as_ptr() as u64, Release);
}

fn make_page(heap: &mut Heap, index: usize) -> Page {
    let owner = (index / pages_each()) as u32;
    let mm = home_mm(owner);
    let address = WINDOW + index as u64 * PAGE_BYTES;
    let entry = paging::entry(heap, mm, address);
    let frame = heap.frame();
    let stamp = (u64::from(mm.0) << PAGE_BITS | index as u64) << SEQUENCE_BITS;
    write_frame(frame, 0, stamp);
    entry.store(frame | READ_WRITE, Relaxed);
    Page {
        floor: AtomicU64::new(stamp),
        flush: AtomicU64::new(0),
        frame: AtomicU64::new(frame),
        stamp: AtomicU64::new(stamp),
        entry,
        address,
        mm,
        owner,
    }
}

impl World {
    /// The pages of one initiator.
    pub(crate) fn pages_of(&self, owner: u32) -> &'static [Page] {
        &self.pages[owner as usize * pages_each()..][..pages_each()]
    }

    /// The spare frames of one initiator.
    pub(crate) fn spares_of(&self, owner: u32) -> &'static [AtomicU64] {
        self.spares[owner as usize]
    }

    /// Number of pages mapped in `mm`.
    pub(crate) fn count_in(&self, mm: MmId) -> usize {
        self.in_mm[mm.0 as usize].len()
    }

    /// The `n`th page mapped in `mm`.
    pub(crate) fn page_in(&self, mm: MmId, n: usize) -> &'static Page {
        &self.pages[self.in_mm[mm.0 as usize][n] as usize]
    }
}

/// Word `index` of a frame, through the identity map.
fn frame_word(frame: u64, index: usize) -> &'static AtomicU64 {
    assert!(index < PAGE_BYTES as usize / 8, "Word {index} is outside a frame");
    let word = (frame + index as u64 * 8) as *const AtomicU64;
    // SAFETY: `frame` came from the heap and is used as atomics only, here and, from
    // the hardware's view, through the window.
    unsafe { &*word }
}

/// Stores a word of a frame before the frame is mapped, or after it is freed.
pub(crate) fn write_frame(frame: u64, index: usize, value: u64) {
    // Release: a reader that comes by the new entry sees the stamp.
    frame_word(frame, index).store(value, Release);
}

/// Loads a word of a frame.
pub(crate) fn read_frame(frame: u64, index: usize) -> u64 {
    frame_word(frame, index).load(Acquire)
}
