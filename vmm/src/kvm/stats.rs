//! KVM's own count of the TLB flushes it did for a vCPU (KVM_GET_STATS_FD).
//!
//! Evidence that does not depend on what the guest sees: under an emulated host
//! every exit empties the TLB, so that a guest sees fresh translations even where
//! KVM flushed nothing.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;

use vmm_sys_util::ioctl::ioctl;

use super::{Error, Result};

mod request {
    vmm_sys_util::ioctl_io_nr!(KVM_GET_STATS_FD, kvm_bindings::KVMIO, 0xce);
}
use request::KVM_GET_STATS_FD;

/// Bytes of `struct kvm_stats_header`.
const HEADER_BYTES: usize = 24;
/// Bytes of `struct kvm_stats_desc` before the name.
const DESC_BYTES: usize = 16;
const STATISTIC: &str = "tlb_flush";

/// The statistic `tlb_flush` of one vCPU.
#[derive(Debug)]
pub struct FlushCount {
    file: File,
    offset: u64,
}

impl FlushCount {
    pub(super) fn open(vcpu: &impl AsRawFd) -> Result<Self> {
        let what = || Error::of(format!("open the statistic {STATISTIC} of a vCPU"));
        // SAFETY: an ioctl without argument on a valid file descriptor.
        let fd = unsafe { ioctl(vcpu, KVM_GET_STATS_FD()) };
        if fd < 0 {
            return Err(what()(io::Error::last_os_error()));
        }
        // SAFETY: the ioctl returned a new descriptor that nobody else holds.
        let file = unsafe { File::from_raw_fd(fd) };
        let offset = find(&file).map_err(what())?;
        Ok(Self { file, offset })
    }

    /// Flushes so far.
    ///
    /// # Errors
    /// If the read fails.
    pub fn read(&self) -> Result<u64> {
        let mut raw = [0; 8];
        self.file
            .read_exact_at(&mut raw, self.offset)
            .map_err(Error::of(format!("read the statistic {STATISTIC}")))?;
        Ok(u64::from_le_bytes(raw))
    }
}

/// Offset in the file of the value of [`STATISTIC`].
fn find(file: &File) -> io::Result<u64> {
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, 0)?;
    let word = |at: usize| {
        u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let (name_bytes, count) = (word(4) as usize, word(8));
    let (descs, data) = (u64::from(word(16)), u64::from(word(20)));
    let stride = DESC_BYTES + name_bytes;
    for i in 0..u64::from(count) {
        let mut desc = vec![0; stride];
        file.read_exact_at(&mut desc, descs + i * stride as u64)?;
        let name = desc[DESC_BYTES..].split(|b| *b == 0).next().unwrap_or_default();
        if name == STATISTIC.as_bytes() {
            let offset = u32::from_le_bytes([desc[8], desc[9], desc[10], desc[11]]);
            return Ok(data + u64::from(offset));
        }
    }
    Err(io::Error::from(io::ErrorKind::NotFound))
}
