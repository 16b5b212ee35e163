//! MSRs of a vCPU: setting single ones, and what the guest had enabled when it ended.

use std::io;

use kvm_bindings::{Msrs, kvm_msr_entry};
use pv_tlb::abi::kvm as kvm_abi;

use super::Vcpu;
use crate::kvm::{Error, Result};
use crate::metrics::ParavirtualUse;

/// Linux `arch/x86/include/uapi/asm/kvm_para.h`.
const MSR_SYSTEM_TIME_NEW: u32 = 0x4b56_4d01;
const MSR_ASYNC_PF_EN: u32 = 0x4b56_4d02;
const MSR_PV_EOI_EN: u32 = 0x4b56_4d04;
/// Default memory type (Intel SDM vol. 3, 12.11.2.1).
const MSR_MTRR_DEF_TYPE: u32 = 0x2ff;
/// MTRRs enabled, write-back where no range says otherwise.
const MTRR_WRITE_BACK: u64 = 1 << 11 | 6;

impl Vcpu {
    /// Sets one MSR, without the guest's help.
    ///
    /// # Errors
    /// If KVM refuses it; the message says "Cannot `what`".
    pub(super) fn set_msr(&self, index: u32, data: u64, what: &str) -> Result<()> {
        let entry = kvm_msr_entry { index, data, ..kvm_msr_entry::default() };
        let msrs = Msrs::from_entries(&[entry])
            .map_err(|e| Error::of(what)(io::Error::other(format!("{e:?}"))))?;
        match self.fd.set_msrs(&msrs).map_err(Error::of(what))? {
            1 => Ok(()),
            _ => Err(Error::of(what)(io::Error::from(io::ErrorKind::Unsupported))),
        }
    }

    /// Makes all memory write-back, as firmware would.
    ///
    /// # Errors
    /// If KVM refuses.
    pub fn cache_all_memory(&self) -> Result<()> {
        let what = format!("set the memory type of {}", self.id);
        self.set_msr(MSR_MTRR_DEF_TYPE, MTRR_WRITE_BACK, &what)
    }

    fn msr(&self, index: u32) -> Option<u64> {
        let entry = kvm_msr_entry { index, ..kvm_msr_entry::default() };
        let mut msrs = Msrs::from_entries(&[entry]).ok()?;
        match self.fd.get_msrs(&mut msrs) {
            Ok(1) => msrs.as_slice().first().map(|entry| entry.data),
            _ => None,
        }
    }

    /// Which of KVM's offers the guest has enabled on this vCPU.
    #[must_use]
    pub fn paravirtual_use(&self) -> ParavirtualUse {
        ParavirtualUse {
            steal_time: self.msr(kvm_abi::MSR_STEAL_TIME),
            clock: self.msr(MSR_SYSTEM_TIME_NEW),
            async_pf: self.msr(MSR_ASYNC_PF_EN),
            pv_eoi: self.msr(MSR_PV_EOI_EN),
        }
    }
}
