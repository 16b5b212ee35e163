//! Booting an unmodified Linux: finding the kernel in its file, unpacking it, and
//! making the machine that it expects.
//!
//! Owner: [`LinuxBoot`] owns the unpacked kernel until the machine has been made.

pub mod acpi;
pub mod bzimage;
pub mod machine;
pub mod pace;
pub mod params;
pub mod unpack;

use std::path::PathBuf;

use linux_loader::loader::bootparam::setup_header;

use super::image;
use crate::kvm::features::Edits;
use unpack::{Compression, MAX_UNPACKED_BYTES};

/// Why a Linux guest cannot be booted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The setup header makes no sense.
    #[error("Kernel {name} is not a bzImage that can be booted: {what}")]
    SetupHeader {
        /// The image.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// The file ends before its header says.
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
    /// The payload begins with nothing known.
    #[error(
        "Kernel {name} is compressed in an unknown way: it begins with [{magic}], expected gzip, bzip2, lzma, xz, lz4 or zstd"
    )]
    UnknownCompression {
        /// The image.
        name: String,
        /// First bytes of the payload.
        magic: String,
    },
    /// The payload does not unpack.
    #[error("Cannot unpack the {compression} data of kernel {name}: {what}")]
    Payload {
        /// The image.
        name: String,
        /// How it is compressed.
        compression: Compression,
        /// What is wrong.
        what: String,
    },
    /// The payload claims to be larger than anything that fits.
    #[error("Kernel {name} unpacks to {bytes} bytes, expected at most {limit}")]
    UnpackedSize {
        /// The image.
        name: String,
        /// Bytes by its size field.
        bytes: u64,
        /// Most that is accepted.
        limit: u64,
    },
    /// PVH was asked for, and the kernel has no such entry.
    #[error(
        "Kernel {name} has no PVH entry (ELF note Xen 18); build it with CONFIG_PVH or use --boot-protocol linux"
    )]
    NoPvhEntry {
        /// The image.
        name: String,
    },
    /// The command line is too long.
    #[error("Command line has {bytes} bytes, expected at most {limit} (defaults included)")]
    CmdlineLength {
        /// Its length.
        bytes: usize,
        /// What the kernel accepts.
        limit: usize,
    },
    /// The command line has characters that a kernel does not take.
    #[error("Command line {text:?} is refused: {what}")]
    Cmdline {
        /// The text.
        text: String,
        /// Why.
        what: String,
    },
    /// The initrd cannot be read.
    #[error("Cannot read the initrd {}", path.display())]
    Initrd {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The initrd does not fit above the kernel.
    #[error(
        "Initrd {} has {bytes} bytes, and {free} are free above the kernel; give more --memory",
        path.display()
    )]
    InitrdSize {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// Bytes free.
        free: u64,
    },
    /// More vCPUs than the tables can name.
    #[error("{vcpus} vCPUs are too many for a Linux guest, expected at most {max}")]
    Vcpus {
        /// Number asked for.
        vcpus: u32,
        /// Largest number.
        max: u32,
    },
    /// A mode that Linux has no code for.
    #[error("Linux has no code for mode {0}, expected off or kvm")]
    Mode(&'static str),
    /// A feature bit cannot be forced.
    #[error("{0}")]
    Feature(String),
    /// The boot data cannot be written.
    #[error("Cannot write the boot data: {0}")]
    BootData(String),
}

/// Which entry of the kernel is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The 64-bit entry with a zero page.
    Linux64,
    /// The 32-bit PVH entry with a start-information structure.
    Pvh,
}

/// A Linux kernel, unpacked, and what it is told.
#[derive(Clone, Debug, PartialEq)]
pub struct LinuxBoot {
    /// The name of its file.
    pub name: String,
    /// The ELF image.
    pub elf: Vec<u8>,
    /// The setup header, of a bzImage.
    pub header: Option<setup_header>,
    /// How it was compressed.
    pub compression: Option<Compression>,
    /// Which entry is used.
    pub protocol: Protocol,
    /// The user's part of the command line.
    pub cmdline: String,
    /// The initial RAM disk.
    pub initrd: Option<PathBuf>,
    /// CPUID bits to hide and force.
    pub edits: Edits,
}

// The header has no float and no reference, so equality is total.
impl Eq for LinuxBoot {}

impl LinuxBoot {
    /// Finds and unpacks the kernel in `image`, which must fit into `memory_bytes`.
    ///
    /// # Errors
    /// If a bzImage is truncated, corrupt or too large. What is no bzImage is taken
    /// for an ELF, which is checked when it is loaded.
    pub fn open(name: &str, image: Vec<u8>, memory_bytes: u64) -> Result<Self, Error> {
        let (elf, header, compression) = match bzimage::is_bzimage(&image) {
            false => (image, None, None),
            true => {
                let found = bzimage::parse(name, &image)?;
                let elf =
                    unpack::unpack(name, found.payload, memory_bytes.min(MAX_UNPACKED_BYTES))?;
                (elf, Some(found.header), Compression::of(found.payload))
            }
        };
        Ok(Self {
            name: name.to_owned(),
            elf,
            header,
            compression,
            protocol: Protocol::Linux64,
            cmdline: String::new(),
            initrd: None,
            edits: Edits::default(),
        })
    }
}

/// True if `image` is a Linux kernel by its own word: a bzImage, or an ELF with a
/// note of Linux's or a PVH entry.
#[must_use]
pub fn is_linux(image: &[u8]) -> bool {
    bzimage::is_bzimage(image) || image::has_linux_note(image)
}
