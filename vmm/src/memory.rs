//! Guest memory: its layout, the memslots of the monitor, and typed access to both.
//!
//! Owner: [`GuestMemory`] owns guest RAM, [`SharedRegion`] a memslot of the
//! monitor's own (doorbell pages, steal-time records). KVM holds the addresses as
//! long as a vCPU lives, so the VM keeps a reference to every mapping.
//!
//! Layout: RAM from 0 to 3 GiB, the rest from 4 GiB on; between them APICs and the
//! monitor's regions. Memory ordering is the business of the atomics that live in
//! these regions; bulk reads happen when no vCPU runs.

use std::sync::Arc;

use pv_tlb::addr::Gpa;
use vm_memory::{
    Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap,
    MmapRegion,
};

/// First byte that is not RAM below 4 GiB.
pub const GAP_START: u64 = 3 << 30;
/// First byte of RAM above the gap.
pub const GAP_END: u64 = 4 << 30;
/// Doorbell pages, one per vCPU.
pub const DOORBELL_GPA: Gpa = Gpa(0xe000_0000);
/// Steal-time records that belong to the monitor, 64 bytes per vCPU.
pub const STEAL_TIME_GPA: Gpa = Gpa(0xe100_0000);

/// Least guest memory: boot tables and the image must fit.
pub const MIN_BYTES: u64 = 16 << 20;
/// Most guest memory that is accepted.
pub const MAX_BYTES: u64 = 1 << 40;

/// Why guest memory could not be had or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Outside what the monitor accepts.
    #[error(
        "Guest memory of {bytes} bytes is out of range, expected {MIN_BYTES} (16M) to {MAX_BYTES} (1024G)"
    )]
    Size {
        /// Bytes asked for.
        bytes: u64,
    },
    /// Not whole pages.
    #[error("Guest memory of {bytes} bytes is not a multiple of 4096")]
    Unaligned {
        /// Bytes asked for.
        bytes: u64,
    },
    /// The host has not got it.
    #[error("Cannot map {bytes} bytes of guest memory")]
    Map {
        /// Bytes asked for.
        bytes: u64,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An access outside RAM.
    #[error("Cannot access {bytes} bytes of guest memory at {gpa}")]
    Access {
        /// First byte.
        gpa: Gpa,
        /// Length in bytes.
        bytes: usize,
        /// Why.
        source: vm_memory::GuestMemoryError,
    },
}

/// Guest RAM.
#[derive(Clone, Debug)]
pub struct GuestMemory {
    mmap: GuestMemoryMmap,
    bytes: u64,
}

impl GuestMemory {
    /// Maps `bytes` of RAM, zeroed, split around the gap.
    ///
    /// # Errors
    /// If the size is out of range or the host refuses.
    pub fn new(bytes: u64) -> Result<Self, Error> {
        if !(MIN_BYTES..=MAX_BYTES).contains(&bytes) {
            return Err(Error::Size { bytes });
        }
        if !bytes.is_multiple_of(4096) {
            return Err(Error::Unaligned { bytes });
        }
        let low = bytes.min(GAP_START);
        let mut ranges = vec![(GuestAddress(0), low as usize)];
        if bytes > low {
            ranges.push((GuestAddress(GAP_END), (bytes - low) as usize));
        }
        let mmap = GuestMemoryMmap::from_ranges(&ranges)
            .map_err(|e| Error::Map { bytes, source: e.to_string().into() })?;
        Ok(Self { mmap, bytes })
    }

    /// All of it, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// RAM below the gap, in bytes.
    #[must_use]
    pub fn low_bytes(&self) -> u64 {
        self.bytes.min(GAP_START)
    }

    /// The mapping itself, for image loaders.
    #[must_use]
    pub fn mmap(&self) -> &GuestMemoryMmap {
        &self.mmap
    }

    /// The regions, to be made memslots.
    pub fn regions(&self) -> impl Iterator<Item = Arc<GuestRegionMmap>> + '_ {
        self.mmap.iter().map(|region| {
            Arc::new(
                GuestRegionMmap::with_arc(region.get_mmap(), region.start_addr())
                    .expect("the region exists already at this address"),
            )
        })
    }

    /// Writes plain bytes.
    ///
    /// # Errors
    /// If any byte is outside RAM.
    pub fn write(&self, gpa: Gpa, data: &[u8]) -> Result<(), Error> {
        self.mmap.write_slice(data, GuestAddress(gpa.0)).map_err(|source| Error::Access {
            gpa,
            bytes: data.len(),
            source,
        })
    }

    /// Writes little-endian 64-bit words.
    ///
    /// # Errors
    /// If any byte is outside RAM.
    pub fn write_words(&self, gpa: Gpa, words: &[u64]) -> Result<(), Error> {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        self.write(gpa, &bytes)
    }

    /// Writes a plain structure at `gpa`.
    ///
    /// # Errors
    /// If any byte is outside RAM.
    pub fn write_params(
        &self,
        gpa: Gpa,
        params: &pv_tlb::abi::stress::BootParams,
    ) -> Result<(), Error> {
        let start = std::ptr::from_ref(params).cast::<u8>();
        // SAFETY: BootParams is repr(C), made of integers without padding (its size
        // is asserted to be the sum of its fields), so all its bytes are
        // initialised; the borrow outlives the slice.
        let bytes = unsafe { std::slice::from_raw_parts(start, size_of_val(params)) };
        self.write(gpa, bytes)
    }

    /// A view of shared, atomic data inside RAM; `T` must be valid for any bytes.
    ///
    /// # Errors
    /// If it is not wholly inside one region or not aligned.
    pub fn view<T: AnyBytes>(&self, gpa: Gpa) -> Result<View<T>, Error> {
        let bytes = size_of::<T>();
        let slice = self
            .mmap
            .get_slice(GuestAddress(gpa.0), bytes)
            .map_err(|source| Error::Access { gpa, bytes, source })?;
        let host = slice.ptr_guard_mut().as_ptr();
        if host.align_offset(align_of::<T>()) != 0 {
            let source = vm_memory::GuestMemoryError::InvalidBackendAddress;
            return Err(Error::Access { gpa, bytes, source });
        }
        Ok(View { memory: Keep::Ram { _ram: self.mmap.clone() }, host: host.cast::<T>() })
    }
}

/// Types made of atomics only: any bytes are a value, and sharing them with a guest
/// that writes at any time is sound.
///
/// # Safety
/// Implementors are `repr(C)`, contain nothing but `core` atomics and arrays or
/// structures of them, and padding that nobody reads.
pub unsafe trait AnyBytes {}

// SAFETY: atomics only, see its definition.
unsafe impl AnyBytes for pv_tlb::abi::stress::VcpuReport {}
// SAFETY: atomics only, see its definition.
unsafe impl AnyBytes for pv_tlb::abi::stress::ProbeWords {}
// SAFETY: atomics only, see its definition.
unsafe impl AnyBytes for pv_tlb::abi::doorbell::DoorbellPage {}
// SAFETY: atomics, and a private byte array that is never read.
unsafe impl AnyBytes for pv_tlb::abi::kvm::StealTime {}

#[derive(Clone, Debug)]
enum Keep {
    Ram { _ram: GuestMemoryMmap },
    Region { _region: Arc<GuestRegionMmap> },
}

/// A typed view of memory shared with the guest; keeps the mapping alive.
#[derive(Clone, Debug)]
pub struct View<T> {
    #[expect(dead_code, reason = "held so that the mapping lives as long as the view")]
    memory: Keep,
    host: *const T,
}

// SAFETY: a view is a shared reference to atomics that lives as long as the mapping
// it holds; `AnyBytes` types are safe to use from any thread.
unsafe impl<T: AnyBytes> Send for View<T> {}
// SAFETY: as above.
unsafe impl<T: AnyBytes> Sync for View<T> {}

impl<T: AnyBytes> std::ops::Deref for View<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: `host` lies inside a mapping that `memory` keeps alive, is aligned
        // and large enough (checked by the makers), and `AnyBytes` says that any
        // bytes are a value and that concurrent writes by the guest are fine.
        unsafe { &*self.host }
    }
}

/// A memslot of the monitor's own: an array of `count` elements of `T`, shared with
/// the guest, zeroed.
#[derive(Clone, Debug)]
pub struct SharedRegion<T> {
    region: Arc<GuestRegionMmap>,
    count: usize,
    element: std::marker::PhantomData<fn() -> T>,
}

impl<T: AnyBytes> SharedRegion<T> {
    /// Maps a region for `count` elements, to be placed at `gpa`.
    ///
    /// # Errors
    /// If the host refuses.
    pub fn new(gpa: Gpa, count: usize) -> Result<Self, Error> {
        let bytes = (count * size_of::<T>()).next_multiple_of(4096);
        let fail = |source: Box<dyn std::error::Error + Send + Sync>| Error::Map {
            bytes: bytes as u64,
            source,
        };
        let mapping = MmapRegion::new(bytes).map_err(|e| fail(Box::new(e)))?;
        let region = GuestRegionMmap::new(mapping, GuestAddress(gpa.0))
            .ok_or_else(|| fail("the address space ends before it".into()))?;
        Ok(Self { region: Arc::new(region), count, element: std::marker::PhantomData })
    }

    /// The region, to be made a memslot.
    #[must_use]
    pub fn region(&self) -> Arc<GuestRegionMmap> {
        Arc::clone(&self.region)
    }

    /// Guest physical address of element `index`.
    #[must_use]
    pub fn gpa(&self, index: usize) -> Gpa {
        Gpa(self.region.start_addr().0 + (index * size_of::<T>()) as u64)
    }

    /// A view of element `index`, if there is one.
    #[must_use]
    pub fn view(&self, index: usize) -> Option<View<T>> {
        if index >= self.count {
            return None;
        }
        let start = self.region.get_mmap().as_ptr().cast::<T>();
        // SAFETY: the mapping holds `count` elements and `index` is below that.
        let host = unsafe { start.add(index) };
        Some(View { memory: Keep::Region { _region: self.region() }, host })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_above_three_gib_continues_at_four() {
        let memory = GuestMemory::new(GAP_START + (1 << 20)).expect("map");
        assert_eq!(memory.regions().count(), 2);
        memory.write(Gpa(GAP_END), &[7]).expect("above the gap");
        assert!(memory.write(Gpa(GAP_START), &[7]).is_err());
        assert!(memory.write(Gpa(GAP_END + (1 << 20)), &[7]).is_err());
    }

    #[test]
    fn absurd_sizes_are_refused_with_the_value() {
        for bytes in [0, 4096, MAX_BYTES + 4096, u64::MAX] {
            let error = GuestMemory::new(bytes).expect_err("refused");
            assert!(error.to_string().contains(&bytes.to_string()), "{error}");
        }
        assert!(matches!(GuestMemory::new(MIN_BYTES + 1), Err(Error::Unaligned { .. })));
    }

    #[test]
    fn views_outside_ram_are_refused() {
        let memory = GuestMemory::new(MIN_BYTES).expect("map");
        let last = Gpa(MIN_BYTES - 64);
        assert!(memory.view::<pv_tlb::abi::stress::ProbeWords>(last).is_ok());
        assert!(memory.view::<pv_tlb::abi::stress::VcpuReport>(last).is_err());
        assert!(memory.view::<pv_tlb::abi::stress::ProbeWords>(Gpa(u64::MAX - 63)).is_err());
        assert!(memory.view::<pv_tlb::abi::stress::ProbeWords>(Gpa(8)).is_err());
    }
}
