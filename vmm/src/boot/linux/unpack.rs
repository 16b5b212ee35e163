//! Unpacking a compressed kernel in the monitor, so that the guest starts at its
//! 64-bit entry and never runs its own decompressor.
//!
//! The input is hostile: output is bounded by the size field, that by what guest
//! memory can hold, and a decoder's dictionary by a constant.

use std::fmt;
use std::io::{self, Read};

use ruzstd::decoding::StreamingDecoder;

use super::Error;

/// Largest unpacked kernel.
pub const MAX_UNPACKED_BYTES: u64 = 1 << 30;
/// Largest dictionary or window of xz, lzma and zstd. Linux compresses with up to
/// 128 MiB.
const MAX_WINDOW_BYTES: u64 = 256 << 20;
/// Bytes of the size field that ends a payload.
const SIZE_FIELD: usize = 4;

/// How a kernel is compressed (Linux `lib/decompress.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// gzip, RFC 1952.
    Gzip,
    /// bzip2.
    Bzip2,
    /// The older .lzma format.
    Lzma,
    /// xz, with the x86 filter as Linux uses it.
    Xz,
    /// LZO; recognised, not supported.
    Lzo,
    /// LZ4 in its legacy frame.
    Lz4,
    /// Zstandard.
    Zstd,
}

impl Compression {
    const MAGICS: [(&'static [u8], Self); 7] = [
        (&[0x1f, 0x8b], Self::Gzip),
        (b"BZh", Self::Bzip2),
        (&[0x5d, 0x00, 0x00], Self::Lzma),
        (b"\xfd7zXZ\0", Self::Xz),
        (b"\x89LZO", Self::Lzo),
        (&[0x02, 0x21, 0x4c, 0x18], Self::Lz4),
        (&[0x28, 0xb5, 0x2f, 0xfd], Self::Zstd),
    ];

    /// Tells the compression from the first bytes of a payload.
    #[must_use]
    pub fn of(payload: &[u8]) -> Option<Self> {
        Self::MAGICS.into_iter().find(|(magic, _)| payload.starts_with(magic)).map(|(_, c)| c)
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gzip => "gzip",
            Self::Bzip2 => "bzip2",
            Self::Lzma => "lzma",
            Self::Xz => "xz",
            Self::Lzo => "LZO",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        })
    }
}

/// Unpacks `payload`, whose last four bytes say the length, into at most
/// `limit_bytes`.
///
/// # Errors
/// If the compression is unknown or unsupported, the data corrupt, or its length
/// not what the size field says or more than fits.
pub fn unpack(name: &str, payload: &[u8], limit_bytes: u64) -> Result<Vec<u8>, Error> {
    let compression = Compression::of(payload).ok_or_else(|| Error::UnknownCompression {
        name: name.to_owned(),
        magic: payload.iter().take(6).map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" "),
    })?;
    let corrupt = |what: String| Error::Payload { name: name.to_owned(), compression, what };
    let (data, stated) = payload
        .split_last_chunk::<SIZE_FIELD>()
        .ok_or_else(|| corrupt("it is shorter than its size field".to_owned()))?;
    let stated = u64::from(u32::from_le_bytes(*stated));
    let limit = limit_bytes.min(MAX_UNPACKED_BYTES);
    if stated > limit {
        return Err(Error::UnpackedSize { name: name.to_owned(), bytes: stated, limit });
    }
    // The size field of gzip is the end of the format itself.
    let data = if compression == Compression::Gzip { payload } else { data };
    let mut out = Vec::new();
    decode(compression, data, stated + 1, &mut out).map_err(|e| corrupt(e.to_string()))?;
    match out.len() as u64 {
        bytes if bytes == stated => Ok(out),
        bytes if bytes > stated => {
            Err(corrupt(format!("it unpacks to more than the {stated} bytes of its size field")))
        }
        bytes => Err(corrupt(format!("it unpacks to {bytes} bytes, its size field says {stated}"))),
    }
}

/// Decodes at most `most` bytes to `out`.
fn decode(compression: Compression, data: &[u8], most: u64, out: &mut Vec<u8>) -> io::Result<()> {
    const MAX_KIB: u32 = (MAX_WINDOW_BYTES >> 10) as u32;
    let read =
        |decoder: &mut dyn Read, out: &mut Vec<u8>| decoder.take(most).read_to_end(out).map(drop);
    match compression {
        Compression::Gzip => read(&mut flate2::read::GzDecoder::new(data), out),
        Compression::Bzip2 => read(&mut bzip2::read::BzDecoder::new(data), out),
        Compression::Xz => {
            read(&mut lzma_rust2::XzReader::new_mem_limit(data, false, MAX_KIB), out)
        }
        Compression::Lzma => {
            read(&mut lzma_rust2::LzmaReader::new_mem_limit(data, MAX_KIB, None)?, out)
        }
        Compression::Lz4 => read(&mut lz4_flex::frame::FrameDecoder::new(data), out),
        Compression::Zstd => {
            let mut stream = StreamingDecoder::new_with_max_window_size(data, MAX_WINDOW_BYTES)
                .map_err(io::Error::other)?;
            read(&mut stream, out)?;
            // The crate computes the checksum and leaves the comparison to its user.
            let stated = stream.decoder.get_checksum_from_data();
            match stated.is_none() || stated == stream.decoder.get_calculated_checksum() {
                true => Ok(()),
                false => Err(io::Error::new(io::ErrorKind::InvalidData, "its checksum is wrong")),
            }
        }
        Compression::Lzo => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "LZO is not supported; build the kernel with zstd, xz, gzip, lz4, bzip2 or lzma",
        )),
    }
}

#[cfg(test)]
#[path = "unpack/tests.rs"]
mod tests;
