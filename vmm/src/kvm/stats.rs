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
        let file = open(vcpu).map_err(what())?;
        let found = values(&file).map_err(what())?.into_iter().find(|(name, _)| name == STATISTIC);
        let missing = || what()(io::Error::from(io::ErrorKind::NotFound));
        let (_, offset) = found.ok_or_else(missing)?;
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

/// All single-valued statistics of one vCPU. They can be read as long as this lives,
/// also when the vCPU is gone.
#[derive(Debug)]
pub struct Statistics {
    file: File,
    values: Vec<(String, u64)>,
}

impl Statistics {
    pub(super) fn open(vcpu: &impl AsRawFd) -> Result<Self> {
        let what = || Error::of("open the statistics of a vCPU");
        let file = open(vcpu).map_err(what())?;
        let values = values(&file).map_err(what())?;
        Ok(Self { file, values })
    }

    /// The statistic of this name; `None` if this KVM has none.
    #[must_use]
    pub fn read(&self, name: &str) -> Option<u64> {
        let (_, offset) = self.values.iter().find(|(found, _)| found == name)?;
        let mut raw = [0; 8];
        self.file.read_exact_at(&mut raw, *offset).ok()?;
        Some(u64::from_le_bytes(raw))
    }
}

fn open(vcpu: &impl AsRawFd) -> io::Result<File> {
    // SAFETY: an ioctl without argument on a valid file descriptor.
    let fd = unsafe { ioctl(vcpu, KVM_GET_STATS_FD()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the ioctl returned a new descriptor that nobody else holds.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Name of each statistic and the offset in the file of its first value.
fn values(file: &File) -> io::Result<Vec<(String, u64)>> {
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, 0)?;
    let word = |at: usize| {
        u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let (name_bytes, count) = (word(4) as usize, word(8));
    let (descs, data) = (u64::from(word(16)), u64::from(word(20)));
    let stride = DESC_BYTES + name_bytes;
    let mut values = Vec::with_capacity(count as usize);
    for i in 0..u64::from(count) {
        let mut desc = vec![0; stride];
        file.read_exact_at(&mut desc, descs + i * stride as u64)?;
        let name = desc[DESC_BYTES..].split(|b| *b == 0).next().unwrap_or_default();
        let offset = u32::from_le_bytes([desc[8], desc[9], desc[10], desc[11]]);
        values.push((String::from_utf8_lossy(name).into_owned(), data + u64::from(offset)));
    }
    Ok(values)
}
