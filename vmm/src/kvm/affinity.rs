//! Which pCPUs there are, which of them a thread may use, and how long a slice of
//! one it asks for.

use std::collections::BTreeSet;
use std::io;
use std::mem;
use std::time::Duration;

use pv_tlb::id::PcpuId;

use super::{Error, Result};

/// The pCPUs that the calling thread may use.
///
/// # Errors
/// If the kernel refuses.
pub fn allowed() -> Result<BTreeSet<PcpuId>> {
    // SAFETY: cpu_set_t is plain bits, for which all zeroes is the empty set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: `set` is a valid set of the stated size, written by the kernel.
    let failed = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    if failed != 0 {
        return Err(Error::of("read the allowed pCPUs")(io::Error::last_os_error()));
    }
    let member = |id: &usize| {
        // SAFETY: `id` is below CPU_SETSIZE, the number of bits of `set`.
        unsafe { libc::CPU_ISSET(*id, &set) }
    };
    let ids = (0..libc::CPU_SETSIZE as usize).filter(member);
    Ok(ids.map(|id| PcpuId(id as u32)).collect())
}

/// Restricts the calling thread to `pcpus`.
///
/// # Errors
/// If the set is empty or names only pCPUs that do not exist.
pub fn restrict(pcpus: &BTreeSet<PcpuId>) -> Result<()> {
    // SAFETY: as in `allowed`.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    for id in pcpus.iter().filter(|id| id.0 < libc::CPU_SETSIZE as u32) {
        // SAFETY: the id is below CPU_SETSIZE.
        unsafe { libc::CPU_SET(id.0 as usize, &mut set) };
    }
    // SAFETY: `set` is a valid set of the stated size, read by the kernel.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) } {
        0 => Ok(()),
        _ => Err(Error::of(format!("run on pCPUs {pcpus:?}"))(io::Error::last_os_error())),
    }
}

/// Asks for time slices of this length for the calling thread, as fair threads may
/// since Linux 6.12 (sched_setattr(2), `sched_runtime`). The kernel keeps them
/// between 0.1 and 100 ms.
///
/// # Errors
/// If the kernel has no such slices, or refuses.
pub fn request_slice(slice: Duration) -> Result<()> {
    let what = || Error::of(format!("ask for time slices of {slice:?}"));
    // SAFETY: sched_attr is plain integers, for which all zeroes is a value.
    let mut attributes: libc::sched_attr = unsafe { mem::zeroed() };
    attributes.size = size_of_val(&attributes) as u32;
    attributes.sched_runtime = u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX);
    // SAFETY: `attributes` is valid for the size that it names, and only read.
    let failed = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if failed != 0 {
        return Err(what()(io::Error::last_os_error()));
    }
    attributes.sched_runtime = 0;
    let size = attributes.size;
    // SAFETY: `attributes` is valid for `size` bytes, and the kernel writes no more.
    let failed = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    match (failed, attributes.sched_runtime) {
        (0, 1..) => Ok(()),
        (0, 0) => Err(what()(io::Error::from(io::ErrorKind::Unsupported))),
        _ => Err(what()(io::Error::last_os_error())),
    }
}

/// The pCPU that the calling thread runs on now.
#[must_use]
pub fn current() -> PcpuId {
    // SAFETY: no preconditions.
    let id = unsafe { libc::sched_getcpu() };
    PcpuId(id.max(0) as u32)
}

/// Lets another thread run on this pCPU.
pub fn yield_now() {
    std::thread::yield_now();
}
