//! Loading an ELF kernel: our checks first, because the loader trusts the file,
//! then linux-loader.

use std::fs::File;
use std::io::{Cursor, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use linux_loader::elf;
use linux_loader::loader::elf::PvhBootCapability;
use linux_loader::loader::{Elf, KernelLoader};
use pv_tlb::abi::stress::IMAGE_GPA;
use vm_memory::ByteValued;

use crate::memory::GuestMemory;

/// Largest image that is read.
const MAX_FILE_BYTES: u64 = 1 << 30;
/// Most program headers that are read; real kernels have about five.
const MAX_SEGMENTS: usize = 256;
const EM_X86_64: u16 = 62;
const ELFCLASS64: u8 = 2;
const ELFDATA2LSB: u8 = 1;

/// Why an image cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is not there or cannot be read.
    #[error("Cannot read the kernel {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Far too large.
    #[error("Kernel {name} has {bytes} bytes, expected at most {MAX_FILE_BYTES}")]
    TooLarge {
        /// The image.
        name: String,
        /// Its length.
        bytes: u64,
    },
    /// Not an ELF file that runs here.
    #[error("Kernel {name} is not a 64-bit little-endian x86-64 ELF file: {what}")]
    NotElf {
        /// The image.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// Ends before its headers say.
    #[error("Kernel {name} is truncated: {what} ends at byte {end}, the file has {bytes}")]
    Truncated {
        /// The image.
        name: String,
        /// Which part.
        what: String,
        /// Where the part ends.
        end: u64,
        /// Length of the file.
        bytes: u64,
    },
    /// A segment is not where guest memory is free.
    #[error("Segment {index} of kernel {name} at {start:#x}..{end:#x} {what}")]
    Segment {
        /// The image.
        name: String,
        /// Its number among the loadable segments.
        index: usize,
        /// First byte.
        start: u64,
        /// First byte past it.
        end: u64,
        /// What is wrong.
        what: String,
    },
    /// The entry point is in no segment.
    #[error("Entry {entry:#x} of kernel {name} is in none of its loadable segments")]
    Entry {
        /// The image.
        name: String,
        /// The entry point.
        entry: u64,
    },
    /// The loader found something that the checks did not.
    #[error("Cannot load kernel {name}: {what}")]
    Load {
        /// The image.
        name: String,
        /// The loader's words.
        what: String,
    },
}

/// An image in guest memory.
#[derive(Clone, Copy, Debug)]
pub struct Loaded {
    /// First instruction.
    pub entry: u64,
    /// First byte past the highest segment.
    pub end: u64,
    /// First instruction in 32-bit mode, if a PVH note names one in a segment.
    pub pvh_entry: Option<u64>,
}

/// Reads an image file.
///
/// # Errors
/// If it cannot be read or is absurdly large.
pub fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let fail = |source| Error::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(fail)?;
    let bytes = file.metadata().map_err(fail)?.len();
    let mut image = Vec::new();
    // One byte more than allowed: a device or a growing file is caught as well.
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut image).map_err(fail)?;
    if image.len() as u64 > MAX_FILE_BYTES {
        return Err(Error::TooLarge { name: path.display().to_string(), bytes });
    }
    Ok(image)
}

/// Checks `image` and loads it at its physical addresses.
///
/// # Errors
/// Says which header or segment is wrong, and what was expected.
pub fn load(name: &str, image: &[u8], memory: &GuestMemory) -> Result<Loaded, Error> {
    let header = header(name, image)?;
    let segments = segments(name, image, &header)?;
    check(name, image, &segments, memory)?;
    let entry = header.e_entry;
    if !segments.iter().any(|s| s.memory().contains(&entry)) {
        return Err(Error::Entry { name: name.to_owned(), entry });
    }
    let end = segments.iter().map(|s| s.memory().end).max().unwrap_or(IMAGE_GPA);
    let result = Elf::load(memory.mmap(), None, &mut Cursor::new(image), None)
        .map_err(|e| Error::Load { name: name.to_owned(), what: e.to_string() })?;
    let pvh_entry = match result.pvh_boot_cap {
        PvhBootCapability::PvhEntryPresent(gpa) => Some(gpa.0),
        PvhBootCapability::PvhEntryNotPresent | PvhBootCapability::PvhEntryIgnored => None,
    };
    let pvh_entry = pvh_entry.filter(|e| segments.iter().any(|s| s.memory().contains(e)));
    Ok(Loaded { entry, end, pvh_entry })
}

/// True if `image` is an ELF with a note whose owner is Linux, or Xen as in a PVH
/// note. Only a hint about what the file is: the notes are not parsed.
#[must_use]
pub fn has_linux_note(image: &[u8]) -> bool {
    let Ok(header) = header("", image) else { return false };
    let owned = |notes: &[u8]| {
        let has = |owner: &[u8]| notes.windows(owner.len()).any(|window| window == owner);
        has(b"Linux\0") || has(b"Xen\0")
    };
    programs("", image, &header).is_ok_and(|programs| {
        programs.iter().filter(|p| p.p_type == elf::PT_NOTE).any(|p| {
            let start = usize::try_from(p.p_offset).unwrap_or(usize::MAX);
            let end = start.saturating_add(usize::try_from(p.p_filesz).unwrap_or(usize::MAX));
            image.get(start..end.min(image.len())).is_some_and(owned)
        })
    })
}

fn header(name: &str, image: &[u8]) -> Result<elf::Elf64_Ehdr, Error> {
    let not_elf = |what: &str| Error::NotElf { name: name.to_owned(), what: what.to_owned() };
    if !image.starts_with(b"\x7fELF") {
        let magic: Vec<String> = image.iter().take(4).map(|b| format!("{b:02x}")).collect();
        return Err(not_elf(&format!(
            "it begins with [{}], expected [7f 45 4c 46]",
            magic.join(" ")
        )));
    }
    let size = size_of::<elf::Elf64_Ehdr>();
    let header =
        image.get(..size).and_then(elf::Elf64_Ehdr::from_slice_copied).ok_or_else(|| {
            Error::Truncated {
                name: name.to_owned(),
                what: "the ELF header".to_owned(),
                end: size as u64,
                bytes: image.len() as u64,
            }
        })?;
    match (header.e_ident[4], header.e_ident[5], header.e_machine) {
        (ELFCLASS64, ELFDATA2LSB, EM_X86_64) => {}
        (ELFCLASS64, ELFDATA2LSB, machine) => {
            return Err(not_elf(&format!("machine {machine}, expected {EM_X86_64}")));
        }
        (class, data, _) => {
            return Err(not_elf(&format!("class {class} and data {data}, expected 2 and 1")));
        }
    }
    let entry = size_of::<elf::Elf64_Phdr>();
    if usize::from(header.e_phentsize) != entry || header.e_phnum == 0 {
        return Err(not_elf(&format!(
            "{} program headers of {} bytes, expected at least one of {entry}",
            header.e_phnum, header.e_phentsize
        )));
    }
    Ok(header)
}

/// Copies a header out of bytes that need not be aligned.
trait FromSliceCopied: ByteValued + Default {
    fn from_slice_copied(bytes: &[u8]) -> Option<Self> {
        let mut value = Self::default();
        let target = value.as_mut_slice();
        (bytes.len() == target.len()).then(|| target.copy_from_slice(bytes))?;
        Some(value)
    }
}

impl FromSliceCopied for elf::Elf64_Ehdr {}
impl FromSliceCopied for elf::Elf64_Phdr {}

/// A loadable segment; sums of its fields are known not to overflow.
struct Segment {
    gpa: u64,
    memory_bytes: u64,
    file: Range<u64>,
}

impl Segment {
    fn memory(&self) -> Range<u64> {
        self.gpa..self.gpa + self.memory_bytes
    }
}

fn segments(name: &str, image: &[u8], header: &elf::Elf64_Ehdr) -> Result<Vec<Segment>, Error> {
    let programs = programs(name, image, header)?;
    let loadable = programs.iter().filter(|program| program.p_type == elf::PT_LOAD);
    loadable.enumerate().map(|(index, program)| segment(name, index, program)).collect()
}

fn programs(
    name: &str,
    image: &[u8],
    header: &elf::Elf64_Ehdr,
) -> Result<Vec<elf::Elf64_Phdr>, Error> {
    let size = size_of::<elf::Elf64_Phdr>();
    let count = usize::from(header.e_phnum);
    if count > MAX_SEGMENTS {
        let what = format!("{count} program headers, expected at most {MAX_SEGMENTS}");
        return Err(Error::NotElf { name: name.to_owned(), what });
    }
    let mut programs = Vec::with_capacity(count);
    for i in 0..count {
        let start = header.e_phoff.saturating_add((i * size) as u64);
        let bytes = usize::try_from(start)
            .ok()
            .and_then(|start| image.get(start..start.checked_add(size)?))
            .and_then(elf::Elf64_Phdr::from_slice_copied);
        programs.push(bytes.ok_or_else(|| Error::Truncated {
            name: name.to_owned(),
            what: format!("program header {i}"),
            end: start.saturating_add(size as u64),
            bytes: image.len() as u64,
        })?);
    }
    Ok(programs)
}

fn segment(name: &str, index: usize, program: &elf::Elf64_Phdr) -> Result<Segment, Error> {
    let wrong = |what: &str| Error::Segment {
        name: name.to_owned(),
        index,
        start: program.p_paddr,
        end: program.p_paddr.wrapping_add(program.p_memsz),
        what: what.to_owned(),
    };
    let file_end = program.p_offset.checked_add(program.p_filesz);
    let (Some(file_end), Some(_)) = (file_end, program.p_paddr.checked_add(program.p_memsz)) else {
        return Err(wrong("wraps around the end of the address space"));
    };
    if program.p_filesz > program.p_memsz {
        return Err(wrong("has more bytes in the file than in memory"));
    }
    let file = program.p_offset..file_end;
    Ok(Segment { gpa: program.p_paddr, memory_bytes: program.p_memsz, file })
}

fn check(
    name: &str,
    image: &[u8],
    segments: &[Segment],
    memory: &GuestMemory,
) -> Result<(), Error> {
    let bytes = image.len() as u64;
    for (index, segment) in segments.iter().enumerate() {
        let Range { start, end } = segment.memory();
        let wrong =
            |what: String| Error::Segment { name: name.to_owned(), index, start, end, what };
        if segment.file.end > bytes {
            let what = format!("segment {index}");
            return Err(Error::Truncated {
                name: name.to_owned(),
                what,
                end: segment.file.end,
                bytes,
            });
        }
        if start < IMAGE_GPA {
            return Err(wrong(format!("begins below {IMAGE_GPA:#x}, where boot tables lie")));
        }
        if end > memory.low_bytes() {
            return Err(wrong(format!(
                "leaves low guest memory, which ends at {:#x}",
                memory.low_bytes()
            )));
        }
        let overlaps = |other: &Segment| start < other.memory().end && other.memory().start < end;
        if let Some(other) = segments[..index].iter().position(overlaps) {
            return Err(wrong(format!("overlaps segment {other}")));
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "image/tests.rs"]
mod tests;
