//! Everything that talks to the kernel: KVM ioctls, signals, affinity, membarrier.
//!
//! The only importer of kvm-ioctls, kvm-bindings and libc, and, with memory.rs, the
//! only place with unsafe code. Owner of file descriptors; what leaves this module
//! is owned and safe to hold.

pub mod affinity;
pub mod cap;
pub mod cpuid;
pub mod exit;
pub mod features;
pub mod kick;
pub mod membarrier;
pub mod signals;
pub mod stats;
pub mod system;
pub mod terminal;
pub mod vcpu;
pub mod vm;

use std::io;

/// What went wrong at the border to the kernel.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device node is not there.
    #[error(
        "No KVM at {path}: the device does not exist; load kvm-intel or kvm-amd, or enable nested virtualization"
    )]
    NoDevice {
        /// Path tried.
        path: String,
    },
    /// The device node may not be opened.
    #[error(
        "No permission to open {path} for reading and writing; join the group that owns it (often \"kvm\")"
    )]
    NoPermission {
        /// Path tried.
        path: String,
    },
    /// The device node is there but is not KVM, or fails.
    #[error("Cannot use {path} as KVM")]
    Device {
        /// Path tried.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The KVM API has another version.
    #[error("KVM API version is {found}, expected 12")]
    ApiVersion {
        /// Version read.
        found: i32,
    },
    /// An operation failed.
    #[error("Cannot {what}")]
    Operation {
        /// The operation, as "create the VM".
        what: String,
        /// Why.
        source: io::Error,
    },
}

impl Error {
    /// Wraps the failure of operation `what`; for `map_err`.
    pub(crate) fn of<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        |source| Self::Operation { what: what.into(), source: source.into() }
    }
}

/// Result of an operation at the border to the kernel.
pub type Result<T> = std::result::Result<T, Error>;
