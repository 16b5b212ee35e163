//! What the tests that need real KVM share: finding it, skipping loudly, and tiny
//! ELF kernels made of a few bytes of machine code.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

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
