//! What the tests that need real KVM share: finding it, skipping loudly, and tiny
//! ELF kernels made of a few bytes of machine code.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pvtlb::boot::linux::unpack::Compression;
use pvtlb::kvm::system::System;

/// Opens KVM, or says SKIP with the reason. With PVTLB_REQUIRE_KVM=1 a missing KVM
/// is a failure.
pub(crate) fn kvm(test: &str) -> Option<System> {
    match System::open(Path::new("/dev/kvm")) {
        Ok(system) => Some(system),
        Err(error) => {
            assert!(
                std::env::var_os("PVTLB_REQUIRE_KVM").is_none_or(|v| v != "1"),
                "{test} needs KVM: {error}"
            );
            eprintln!("SKIP {test}: {error}");
            None
        }
    }
}

/// A file that is removed when the test ends.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// A file of this name, unique to the process, with these bytes.
    pub(crate) fn file(name: &str, bytes: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("pvtlb-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).expect("write a scratch file");
        Self(path)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A 64-bit ELF whose one segment at 2 MiB is `code`, entered at its first byte.
pub(crate) fn elf(code: &[u8]) -> Vec<u8> {
    const LOAD: u64 = 0x20_0000;
    let mut out = Vec::new();
    out.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    out.extend_from_slice(&2_u16.to_le_bytes());
    out.extend_from_slice(&62_u16.to_le_bytes());
    out.extend_from_slice(&1_u32.to_le_bytes());
    for word in [LOAD, 64, 0] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(&0_u32.to_le_bytes());
    for half in [64_u16, 56, 1, 0, 0, 0] {
        out.extend_from_slice(&half.to_le_bytes());
    }
    out.extend_from_slice(&1_u32.to_le_bytes());
    out.extend_from_slice(&7_u32.to_le_bytes());
    let length = code.len() as u64;
    for word in [120, LOAD, LOAD, length, length, 4096] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(code);
    out
}

/// Runs the `pvtlb` binary.
pub(crate) fn pvtlb(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pvtlb")).args(args).output().expect("start pvtlb")
}

/// Standard error as text.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A bzImage of boot protocol 2.15 with `kernel` packed by gzip.
pub(crate) fn bzimage(kernel: &[u8]) -> Vec<u8> {
    use std::io::Write;
    const SETUP_BYTES: usize = 1024;
    const PAYLOAD_OFFSET: u32 = 64;
    let mut pack = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    pack.write_all(kernel).expect("write to memory");
    let payload = pack.finish().expect("write to memory");
    let mut image = vec![0; SETUP_BYTES];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    put(0x1f1, &[1]);
    put(0x1fe, &[0x55, 0xaa, 0xeb, 0x6a]);
    put(0x202, b"HdrS");
    put(0x206, &0x020f_u16.to_le_bytes());
    put(0x236, &1_u16.to_le_bytes());
    put(0x238, &2047_u32.to_le_bytes());
    put(0x248, &PAYLOAD_OFFSET.to_le_bytes());
    put(0x24c, &(payload.len() as u32).to_le_bytes());
    image.resize(SETUP_BYTES + PAYLOAD_OFFSET as usize, 0);
    image.extend_from_slice(&payload);
    image
}

/// `data` as a payload of each supported compression.
pub(crate) fn streams(data: &[u8]) -> Vec<(Compression, Vec<u8>)> {
    use std::io::Write;
    let done = "write to memory";
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(data).expect(done);
    let mut bzip2 = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::best());
    bzip2.write_all(data).expect(done);
    let options = lzma_rust2::LzmaOptions::with_preset(0);
    let mut lzma = lzma_rust2::LzmaWriter::new_use_header(Vec::new(), &options, None).expect(done);
    lzma.write_all(data).expect(done);
    let mut options = lzma_rust2::XzOptions::with_preset(0);
    options.prepend_pre_filter(lzma_rust2::FilterType::BcjX86, 0);
    let mut xz = lzma_rust2::XzWriter::new(Vec::new(), options).expect(done);
    xz.write_all(data).expect(done);
    let block = lz4_flex::block::compress(data);
    let frame = [0x184c_2102_u32.to_le_bytes(), (block.len() as u32).to_le_bytes()];
    let zstd = ruzstd::encoding::CompressionLevel::Fastest;
    let mut streams = vec![
        (Compression::Bzip2, bzip2.finish().expect(done)),
        (Compression::Lzma, lzma.finish().expect(done)),
        (Compression::Xz, xz.finish().expect(done)),
        (Compression::Lz4, [frame.as_flattened(), &block].concat()),
        (Compression::Zstd, ruzstd::encoding::compress_to_vec(data, zstd)),
    ];
    for (_, stream) in &mut streams {
        stream.extend_from_slice(&(data.len() as u32).to_le_bytes());
    }
    streams.push((Compression::Gzip, gzip.finish().expect(done)));
    streams
}
