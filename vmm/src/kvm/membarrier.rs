//! The expedited private membarrier: every thread of this process that is on a
//! pCPU executes a full barrier, in the kernel and so outside guest mode, before
//! the call returns (membarrier(2)).

use std::io;

use super::{Error, Result};

const CMD_PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const CMD_REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

fn call(command: libc::c_int) -> io::Result<()> {
    // SAFETY: membarrier takes integers only.
    match unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Proof that the process registered for expedited barriers.
#[derive(Clone, Copy, Debug)]
pub struct Membarrier(());

impl Membarrier {
    /// Registers the process; may be called again.
    ///
    /// # Errors
    /// If the kernel lacks the command or a filter forbids it.
    pub fn register() -> Result<Self> {
        call(CMD_REGISTER_PRIVATE_EXPEDITED)
            .map(|()| Self(()))
            .map_err(Error::of("register for expedited membarrier"))
    }

    /// Interrupts every pCPU that runs a thread of this process and waits until
    /// each has executed a full barrier.
    ///
    /// # Errors
    /// If the kernel refuses, which it does not after registration.
    pub fn run(self) -> Result<()> {
        call(CMD_PRIVATE_EXPEDITED).map_err(Error::of("run an expedited membarrier"))
    }
}
