//! Entry in 32-bit protected mode without paging, as the PVH boot protocol wants it
//! (Xen `docs/misc/pvh.pandoc`).

use kvm_bindings::{kvm_regs, kvm_segment};

use super::{CR0_ET, CR0_PE, Vcpu};
use crate::kvm::{Error, Result};

impl Vcpu {
    /// Makes the vCPU begin at `rip` with `rbx` pointing to the start information.
    ///
    /// # Errors
    /// If KVM refuses a register.
    pub fn enter_protected_mode(&self, rip: u64, rbx: u64) -> Result<()> {
        let what = || format!("set registers of {}", self.id);
        let mut sregs = self.fd.get_sregs().map_err(Error::of(what()))?;
        let flat = |selector: u16, type_: u8| kvm_segment {
            limit: 0xffff_ffff,
            selector,
            type_,
            present: 1,
            db: 1,
            s: 1,
            g: 1,
            ..kvm_segment::default()
        };
        sregs.cs = flat(0x08, 0xb);
        let data = flat(0x10, 0x3);
        (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
        sregs.tr = kvm_segment { limit: 0x67, type_: 0xb, present: 1, ..kvm_segment::default() };
        (sregs.cr0, sregs.cr3, sregs.cr4, sregs.efer) = (CR0_PE | CR0_ET, 0, 0, 0);
        self.fd.set_sregs(&sregs).map_err(Error::of(what()))?;
        let regs = kvm_regs { rip, rbx, rflags: 0x2, ..kvm_regs::default() };
        self.fd.set_regs(&regs).map_err(Error::of(what()))
    }
}
