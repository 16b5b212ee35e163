//! Memory above the image, handed out once and never taken back.
//!
//! Owner: vCPU 0, during set-up only, by passing `&mut Heap`.

use core::mem::{align_of, size_of};

use pv_tlb::abi::debug_exit::{Key, Verdict};
use pv_tlb::addr::PAGE_BYTES;

use crate::params::params;
use crate::ports;

/// What is left.
pub(crate) struct Heap {
    next: u64,
}

impl Heap {
    /// All of it. Call once.
    pub(crate) fn new() -> Self {
        Self { next: params().heap_start }
    }

    /// `bytes` zero bytes. Ends the run with `HeapNeeded` if there are not enough.
    fn take(&mut self, bytes: u64, align: u64) -> u64 {
        let at = self.next.next_multiple_of(align);
        let end = at.saturating_add(bytes);
        // The identity map of this guest stops at 4 GiB.
        if end > params().heap_end.min(1 << 32) {
            ports::report(Key::HeapNeeded, end - params().heap_start);
            ports::end(Verdict::Fail);
        }
        self.next = end;
        // SAFETY: the range lies in the heap and was handed to nobody else.
        unsafe { core::ptr::write_bytes(at as *mut u8, 0, bytes as usize) };
        at
    }

    /// One zero page frame: its address, equal for guest physical and identity map.
    pub(crate) fn frame(&mut self) -> u64 {
        self.take(PAGE_BYTES, PAGE_BYTES)
    }

    /// A slice of `len` values made by `fill`, which may take memory itself.
    pub(crate) fn slice_with<T>(
        &mut self,
        len: usize,
        mut fill: impl FnMut(&mut Self, usize) -> T,
    ) -> &'static mut [T] {
        let align = align_of::<T>().max(64) as u64;
        let at = self.take((len * size_of::<T>()) as u64, align) as *mut T;
        for i in 0..len {
            let value = fill(self, i);
            // SAFETY: inside the range just taken.
            let slot = unsafe { at.add(i) };
            // SAFETY: as above; nothing was there before.
            unsafe { slot.write(value) };
        }
        // SAFETY: `len` values were written, and nobody else has the range.
        unsafe { core::slice::from_raw_parts_mut(at, len) }
    }
}
