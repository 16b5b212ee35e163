//! The bzImage container: its setup header and the compressed kernel in it
//! (Linux `Documentation/arch/x86/boot.rst`).
//!
//! Plain values over a borrowed image; nothing in the header is trusted.

use linux_loader::loader::bootparam::setup_header;
use vm_memory::ByteValued;

use super::Error;

/// Where the setup header begins.
const HEADER: usize = 0x1f1;
/// The byte that says how far the header reaches, counted from the byte after it.
const JUMP_LENGTH: usize = 0x201;
const BOOT_FLAG: u16 = 0xaa55;
/// "HdrS".
const MAGIC: u32 = 0x5372_6448;
/// The version that brought the flags of the 64-bit entry.
const LEAST_VERSION: u16 = 0x020c;
/// `xloadflags` bit 0: the kernel has a 64-bit entry.
const KERNEL_64: u16 = 1;
const SECTOR: usize = 512;

/// A bzImage whose header has been checked.
#[derive(Clone, Copy, Debug)]
pub struct BzImage<'a> {
    /// The header, as the kernel wants it back in the zero page.
    pub header: setup_header,
    /// The compressed kernel, with the unpacked length in its last four bytes.
    pub payload: &'a [u8],
}

/// True if `image` says that it is a bzImage.
#[must_use]
pub fn is_bzimage(image: &[u8]) -> bool {
    image.get(0x1fe..0x200) == Some(&BOOT_FLAG.to_le_bytes())
        && image.get(0x202..0x206) == Some(&MAGIC.to_le_bytes())
}

/// Reads the setup header of `image` and finds the payload.
///
/// # Errors
/// Says which field is wrong and what was expected.
pub fn parse<'a>(name: &str, image: &'a [u8]) -> Result<BzImage<'a>, Error> {
    let wrong = |what: String| Error::SetupHeader { name: name.to_owned(), what };
    if !is_bzimage(image) {
        return Err(wrong("it has no boot flag 0xaa55 with \"HdrS\"".to_owned()));
    }
    let header = header(image);
    let (version, flags) = (header.version, header.xloadflags);
    if version < LEAST_VERSION {
        return Err(wrong(format!(
            "boot protocol {}.{:02}, expected at least 2.12",
            version >> 8,
            version & 0xff
        )));
    }
    if flags & KERNEL_64 == 0 {
        return Err(wrong(format!("xloadflags {flags:#x} without the 64-bit entry (bit 0)")));
    }
    // Zero sectors mean four, for loaders older than the field.
    let sectors = match header.setup_sects {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = (sectors + 1) * SECTOR + header.payload_offset as usize;
    let end = start + header.payload_length as usize;
    let payload = image.get(start..end).ok_or_else(|| Error::Truncated {
        name: name.to_owned(),
        what: "the compressed kernel".to_owned(),
        end: end as u64,
        bytes: image.len() as u64,
    })?;
    Ok(BzImage { header, payload })
}

/// The header as far as the image says that it reaches; the rest is zero.
fn header(image: &[u8]) -> setup_header {
    let reaches = JUMP_LENGTH + 1 + image.get(JUMP_LENGTH).copied().map_or(0, usize::from);
    let mut header = setup_header::default();
    let target = header.as_mut_slice();
    let end = reaches.min(HEADER + target.len()).min(image.len());
    if let Some(source) = image.get(HEADER..end) {
        target[..source.len()].copy_from_slice(source);
    }
    header
}
