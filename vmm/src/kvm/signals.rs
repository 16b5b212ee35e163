//! SIGINT and SIGTERM as something to poll, so that a run ends in order.
//!
//! Owner: the main thread blocks the signals before it makes other threads, which
//! inherit the mask; the signal then only shows on the descriptor.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

use vmm_sys_util::signal::create_sigset;

use super::{Error, Result};

/// A signal that asks for an orderly end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndSignal {
    /// SIGINT.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

/// Readable when SIGINT or SIGTERM has arrived.
#[derive(Debug)]
pub struct EndSignals {
    file: File,
}

impl EndSignals {
    /// Blocks the signals in the calling thread and opens the descriptor. To be
    /// called before any other thread is made.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn block() -> Result<Self> {
        let what = || Error::of("receive SIGINT and SIGTERM as events");
        let signals = [libc::SIGINT, libc::SIGTERM];
        let set =
            create_sigset(&signals).map_err(|e| what()(io::Error::from_raw_os_error(e.errno())))?;
        // SAFETY: `set` is an initialised signal set; the old mask is not asked for.
        let blocked =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if blocked != 0 {
            return Err(what()(io::Error::from_raw_os_error(blocked)));
        }
        // SAFETY: `set` is an initialised signal set; -1 asks for a new descriptor.
        let fd =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) };
        if fd < 0 {
            return Err(what()(io::Error::last_os_error()));
        }
        // SAFETY: the call returned a new descriptor that nobody else holds.
        Ok(Self { file: unsafe { File::from_raw_fd(fd) } })
    }

    /// The signal that has arrived, if one has.
    #[must_use]
    pub fn take(&self) -> Option<EndSignal> {
        let mut raw = [0; size_of::<libc::signalfd_siginfo>()];
        (&self.file).read_exact(&mut raw).ok()?;
        // The signal number is the first field (signalfd(2)).
        match i32::from_ne_bytes([raw[0], raw[1], raw[2], raw[3]]) {
            libc::SIGTERM => Some(EndSignal::Terminate),
            _ => Some(EndSignal::Interrupt),
        }
    }
}

impl AsRawFd for EndSignals {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}
