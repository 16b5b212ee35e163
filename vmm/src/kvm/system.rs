//! `/dev/kvm`: opening it, asking it, creating VMs.

use std::ffi::CString;
use std::io;
use std::os::fd::FromRawFd;
use std::path::Path;
use std::sync::Arc;

use kvm_bindings::{CpuId, KVM_MAX_CPUID_ENTRIES};
use kvm_ioctls::Kvm;
use pv_tlb::id::VcpuId;

use super::cap::Capability;
use super::vm::Vm;
use super::{Error, Result};

/// An open `/dev/kvm`.
#[derive(Debug)]
pub struct System {
    kvm: Kvm,
}

impl System {
    /// Opens the device at `path` and checks the API version.
    ///
    /// # Errors
    /// Says whether the device is missing, forbidden, or not KVM.
    pub fn open(path: &Path) -> Result<Self> {
        let shown = path.display().to_string();
        let bytes = CString::new(path.as_os_str().as_encoded_bytes())
            .map_err(|_| Error::NoDevice { path: shown.clone() })?;
        let fd = Kvm::open_with_cloexec_at(bytes, true).map_err(|e| {
            let source = io::Error::from(e);
            match source.kind() {
                io::ErrorKind::NotFound => Error::NoDevice { path: shown.clone() },
                io::ErrorKind::PermissionDenied => Error::NoPermission { path: shown.clone() },
                _ => Error::Device { path: shown.clone(), source },
            }
        })?;
        // SAFETY: `fd` was opened just above and nobody else holds it.
        let kvm = unsafe { Kvm::from_raw_fd(fd) };
        match kvm.get_api_version() {
            12 => Ok(Self { kvm }),
            -1 => Err(Error::Device { path: shown, source: io::Error::last_os_error() }),
            found => Err(Error::ApiVersion { found }),
        }
    }

    /// Creates an empty VM.
    ///
    /// # Errors
    /// If KVM refuses.
    pub fn create_vm(&self) -> Result<Vm> {
        let fd = self.kvm.create_vm().map_err(Error::of("create the VM"))?;
        Ok(Vm::new(fd))
    }

    /// TSC frequency that a guest gets, kHz. Only a vCPU can tell, so one is made in a
    /// VM without memory.
    ///
    /// # Errors
    /// If KVM refuses the vCPU or cannot say.
    pub fn guest_tsc_khz(&self) -> Result<u32> {
        Arc::new(self.create_vm()?).create_vcpu(VcpuId(0))?.tsc_khz()
    }

    /// Most vCPUs of one VM.
    #[must_use]
    pub fn max_vcpus(&self) -> usize {
        self.kvm.get_max_vcpus()
    }

    /// The value of a capability; 0 or less means absent.
    #[must_use]
    pub fn capability(&self, cap: Capability) -> i32 {
        self.kvm.check_extension_raw(cap.number())
    }

    /// The CPUID table this KVM can offer.
    ///
    /// # Errors
    /// If KVM refuses.
    pub fn supported_cpuid(&self) -> Result<CpuId> {
        self.kvm
            .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
            .map_err(Error::of("read the supported CPUID table"))
    }
}
