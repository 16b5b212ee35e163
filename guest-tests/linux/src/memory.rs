//! Test pages and shared words: the only file that talks to the kernel about memory.
//!
//! Owner: an [`Arena`] owns a range of addresses that holds nothing but its pages; a
//! [`SharedWords`] owns one shared mapping of a file. Both give it back when dropped.
//! States of a page of an arena: mapped, read-only, a hole. Which page is in which is
//! the caller's business; a direct access to a hole ends the process, so pages that
//! may be holes are read by [`Arena::probe_load`] only.
//!
//! Memory ordering: every access is an atomic one; each caller names its partner.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap,
};

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// Words of a page.
pub const PAGE_WORDS: usize = PAGE_BYTES / WORD_BYTES;

const WORD_BYTES: usize = 8;
/// Where arenas are put: far below the place from which the kernel hands out
/// addresses downwards, so that no other mapping of the process falls into a hole.
const FIRST_START: usize = 0x1000_0000_0000;
const START_STEP: usize = 1 << 30;
/// Most pages of an arena.
pub const MAX_PAGES: usize = 16_384;

/// A file in memory (tmpfs without a mount point) of `bytes` bytes.
pub fn memory_file(bytes: usize) -> io::Result<File> {
    let file = File::from(memfd_create("pvtlb-agent", MemfdFlags::CLOEXEC)?);
    file.set_len(bytes as u64)?;
    Ok(file)
}

/// A file's first words, shared with everybody who maps it.
pub struct SharedWords {
    start: *mut AtomicU64,
    len: usize,
}

// SAFETY: the mapping lives as long as the value and is used as atomics only.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Maps the first `len` words of `file`, which must be that long.
    pub fn new(file: &File, len: usize) -> io::Result<Self> {
        let bytes = len * WORD_BYTES;
        let has = file.metadata()?.len();
        if len == 0 || has < bytes as u64 {
            let text = format!("A file of {has} bytes, expected at least {bytes} and not 0");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: no address is asked for, so nothing that exists is replaced.
        let start = unsafe { mmap(ptr::null_mut(), bytes, rights, MapFlags::SHARED, file, 0) }?;
        Ok(Self { start: start.cast(), len })
    }

    /// Word `index`.
    ///
    /// # Panics
    ///
    /// If there is no such word.
    pub fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.len, "Word {index} of {}", self.len);
        let word = self.start.wrapping_add(index);
        // SAFETY: inside the mapping, aligned, and used by everybody as an atomic; the
        // borrow ends before the mapping does.
        unsafe { &*word }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: our own mapping; borrows of its words end before the value does.
        // A failure would leave the mapping in place, which harms nobody.
        let _ = unsafe { munmap(self.start.cast(), self.len * WORD_BYTES) };
    }
}

/// Where one worker's probes pass through: the kernel copies between this word and a
/// test page, and says EFAULT where an access of our own would be a signal.
pub struct ProbeSlot {
    file: File,
    words: SharedWords,
}

impl ProbeSlot {
    /// A slot of its own.
    pub fn new() -> io::Result<Self> {
        let file = memory_file(PAGE_BYTES)?;
        let words = SharedWords::new(&file, PAGE_WORDS)?;
        Ok(Self { file, words })
    }
}

/// Test pages at fixed addresses.
pub struct Arena {
    start: usize,
    pages: usize,
    file: Option<File>,
}

impl Arena {
    /// Private anonymous pages, all zero.
    pub fn anonymous(pages: usize) -> io::Result<Self> {
        Self::place(pages, None)
    }

    /// The pages of `file`, shared.
    pub fn shared(file: File, pages: usize) -> io::Result<Self> {
        Self::place(pages, Some(file))
    }

    fn place(pages: usize, file: Option<File>) -> io::Result<Self> {
        /// A counter: arenas of one process shall not meet.
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        if pages == 0 || pages > MAX_PAGES {
            let text = format!("An arena of {pages} pages, expected 1 to {MAX_PAGES}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let start = FIRST_START + NEXT.fetch_add(1, Ordering::Relaxed) % 1024 * START_STEP;
        // From here on dropping it would unmap, so it is made only after the mapping.
        map_at(start, 0..pages, file.as_ref(), MapFlags::FIXED_NOREPLACE)?;
        let arena = Self { start, pages, file };
        // SAFETY: our own range; the advice changes no content. Kernels without huge
        // pages refuse it, and have no need of it.
        let _ = unsafe { madvise(arena.at(0), arena.bytes(), Advice::LinuxNoHugepage) };
        Ok(arena)
    }

    /// Address of word `word` of `page`.
    ///
    /// # Panics
    ///
    /// If there is no such page or word.
    pub fn address(&self, page: usize, word: usize) -> usize {
        assert!(page < self.pages, "Page {page} of {}", self.pages);
        assert!(word < PAGE_WORDS, "Word {word} of {PAGE_WORDS}");
        self.start + page * PAGE_BYTES + word * WORD_BYTES
    }

    /// Loads a word by an access of this vCPU (acquire).
    pub fn load(&self, page: usize, word: usize) -> u64 {
        let word = self.address(page, word) as *const AtomicU64;
        // SAFETY: inside the arena's range, aligned, used by everybody as an atomic. A
        // hole ends the process by a signal before anything is read.
        unsafe { &*word }.load(Ordering::Acquire)
    }

    /// Stores a word by an access of this vCPU (release).
    pub fn store(&self, page: usize, word: usize, value: u64) {
        let word = self.address(page, word) as *const AtomicU64;
        // SAFETY: as in `load`; the range holds nothing but the arena's pages, so
        // nobody's memory changes.
        unsafe { &*word }.store(value, Ordering::Release);
    }

    /// Loads a word by way of the kernel's own copy, which uses this vCPU's TLB as
    /// well; `None` if it faults.
    pub fn probe_load(
        &self,
        page: usize,
        word: usize,
        slot: &ProbeSlot,
    ) -> io::Result<Option<u64>> {
        let from = self.address(page, word) as *const c_void;
        // SAFETY: the kernel checks the address and reads 8 bytes of the arena.
        let done = unsafe { libc::pwrite(slot.file.as_raw_fd(), from, WORD_BYTES, 0) };
        // Only this worker uses the slot; the system call orders the two.
        Ok(copied(done)?.then(|| slot.words.word(0).load(Ordering::Acquire)))
    }

    /// Stores a word by way of the kernel's own copy; false if it faults.
    pub fn probe_store(
        &self,
        page: usize,
        word: usize,
        value: u64,
        slot: &ProbeSlot,
    ) -> io::Result<bool> {
        let to = self.address(page, word) as *mut c_void;
        slot.words.word(0).store(value, Ordering::Release);
        // SAFETY: the kernel checks the address and writes 8 bytes of the arena, which
        // are used as an atomic only.
        copied(unsafe { libc::pread(slot.file.as_raw_fd(), to, WORD_BYTES, 0) })
    }

    /// Drops the pages' frames; an anonymous page then reads as zero.
    pub fn discard(&self, run: Range<usize>) -> io::Result<()> {
        let (start, bytes) = self.range(&run);
        // SAFETY: our own range, whose content is allowed to go.
        Ok(unsafe { madvise(start, bytes, Advice::LinuxDontNeed) }?)
    }

    /// Maps new pages over the old ones in one step, so that no reader meets a hole.
    pub fn replace(&self, run: Range<usize>) -> io::Result<()> {
        self.range(&run);
        map_at(self.start, run, self.file.as_ref(), MapFlags::FIXED)
    }

    /// Makes the pages a hole.
    pub fn unmap(&self, run: Range<usize>) -> io::Result<()> {
        let (start, bytes) = self.range(&run);
        // SAFETY: our own range; readers of pages that may be holes use probes.
        Ok(unsafe { munmap(start, bytes) }?)
    }

    /// Fills a hole. Fails if somebody else's mapping is there.
    pub fn map(&self, run: Range<usize>) -> io::Result<()> {
        self.range(&run);
        map_at(self.start, run, self.file.as_ref(), MapFlags::FIXED_NOREPLACE)
    }

    /// Gives or takes the right to write.
    pub fn protect(&self, run: Range<usize>, writable: bool) -> io::Result<()> {
        let (start, bytes) = self.range(&run);
        let write = if writable { MprotectFlags::WRITE } else { MprotectFlags::empty() };
        // SAFETY: our own range, in which no Rust value lives.
        Ok(unsafe { mprotect(start, bytes, MprotectFlags::READ | write) }?)
    }

    /// Takes the pages out of the shared file, and so out of every address space.
    pub fn punch(&self, run: Range<usize>) -> io::Result<()> {
        self.range(&run);
        let Some(file) = &self.file else {
            let text = "An anonymous arena has no file to punch";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        };
        let (offset, bytes) = (run.start * PAGE_BYTES, run.len() * PAGE_BYTES);
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(file, how, offset as u64, bytes as u64)?)
    }

    /// Start and bytes of `run`, which must lie inside.
    fn range(&self, run: &Range<usize>) -> (*mut c_void, usize) {
        let inside = run.start < run.end && run.end <= self.pages;
        assert!(inside, "Pages {run:?} of {}", self.pages);
        (self.at(run.start), run.len() * PAGE_BYTES)
    }

    fn at(&self, page: usize) -> *mut c_void {
        (self.start + page * PAGE_BYTES) as *mut c_void
    }

    fn bytes(&self) -> usize {
        self.pages * PAGE_BYTES
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: our own range; holes in it do not matter. A failure would leave the
        // pages in place, which harms nobody.
        let _ = unsafe { munmap(self.at(0), self.bytes()) };
    }
}

/// Maps the pages `run` of the arena that begins at `start`. `how` is FIXED only for
/// ranges that belong to an arena already.
fn map_at(start: usize, run: Range<usize>, file: Option<&File>, how: MapFlags) -> io::Result<()> {
    let at = (start + run.start * PAGE_BYTES) as *mut c_void;
    let (bytes, rights) = (run.len() * PAGE_BYTES, ProtFlags::READ | ProtFlags::WRITE);
    match file {
        Some(file) => {
            let offset = (run.start * PAGE_BYTES) as u64;
            // SAFETY: replaces nothing (NOREPLACE), or pages of the caller's own arena.
            unsafe { mmap(at, bytes, rights, how | MapFlags::SHARED, file, offset) }?;
        }
        None => {
            // SAFETY: as above.
            unsafe { mmap_anonymous(at, bytes, rights, how | MapFlags::PRIVATE) }?;
        }
    }
    Ok(())
}

/// What a copy by the kernel came to: true if all 8 bytes moved, false at EFAULT.
fn copied(done: isize) -> io::Result<bool> {
    if done == WORD_BYTES as isize {
        return Ok(true);
    }
    if done >= 0 {
        return Err(io::Error::other(format!("A probe moved {done} bytes, expected {WORD_BYTES}")));
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::EFAULT) { Ok(false) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_refuses_a_probe_and_a_filled_one_reads_zero() {
        let (arena, slot) = (Arena::anonymous(2).unwrap(), ProbeSlot::new().unwrap());
        arena.store(1, 3, 77);
        assert_eq!(arena.probe_load(1, 3, &slot).unwrap(), Some(77));
        arena.unmap(1..2).unwrap();
        assert_eq!(arena.probe_load(1, 3, &slot).unwrap(), None);
        assert!(!arena.probe_store(1, 3, 1, &slot).unwrap());
        arena.map(1..2).unwrap();
        assert_eq!(arena.probe_load(1, 3, &slot).unwrap(), Some(0));
    }

    #[test]
    fn a_hole_is_not_filled_over_another_mapping() {
        let arena = Arena::anonymous(1).unwrap();
        let error = arena.map(0..1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{error}");
    }

    #[test]
    fn a_read_only_page_refuses_a_probe_to_write_and_keeps_its_content() {
        let (arena, slot) = (Arena::anonymous(1).unwrap(), ProbeSlot::new().unwrap());
        assert!(arena.probe_store(0, 5, 9, &slot).unwrap());
        arena.protect(0..1, false).unwrap();
        assert!(!arena.probe_store(0, 5, 10, &slot).unwrap());
        assert_eq!(arena.load(0, 5), 9);
        arena.protect(0..1, true).unwrap();
        assert!(arena.probe_store(0, 5, 11, &slot).unwrap());
    }

    #[test]
    fn discarded_replaced_and_punched_pages_read_zero() {
        let arena = Arena::anonymous(2).unwrap();
        arena.store(0, 0, 5);
        arena.store(1, 0, 6);
        arena.discard(0..1).unwrap();
        arena.replace(1..2).unwrap();
        assert_eq!((arena.load(0, 0), arena.load(1, 0)), (0, 0));
        let file = memory_file(2 * PAGE_BYTES).unwrap();
        let one = Arena::shared(file.try_clone().unwrap(), 2).unwrap();
        let other = Arena::shared(file, 2).unwrap();
        one.store(1, 0, 8);
        assert_eq!(other.load(1, 0), 8);
        one.punch(1..2).unwrap();
        assert_eq!(other.load(1, 0), 0);
    }

    #[test]
    fn impossible_sizes_are_errors() {
        assert!(Arena::anonymous(0).is_err());
        assert!(Arena::anonymous(MAX_PAGES + 1).is_err());
        assert!(Arena::anonymous(1).unwrap().punch(0..1).is_err());
        assert!(SharedWords::new(&memory_file(8).unwrap(), 2).is_err());
    }
}
