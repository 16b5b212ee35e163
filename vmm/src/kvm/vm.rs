//! One VM: its memslots, irqchip and vCPUs.
//!
//! Owner: [`Vm`] owns the file descriptor and keeps every mapping that KVM was told
//! of, because KVM uses them until the last vCPU is gone; each vCPU holds the VM.

use std::sync::{Arc, Mutex};

use kvm_bindings::{KVM_PIT_SPEAKER_DUMMY, kvm_pit_config, kvm_userspace_memory_region};
use kvm_ioctls::VmFd;
use pv_tlb::id::VcpuId;
use vm_memory::{GuestMemoryRegion, GuestRegionMmap};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::vcpu::Vcpu;
use super::{Error, Result};

/// Where VMX keeps its real-mode TSS; inside the gap, above the APICs.
const TSS_GPA: usize = 0xfffb_d000;

/// An open VM.
#[derive(Debug)]
pub struct Vm {
    fd: VmFd,
    slots: Mutex<Vec<Arc<GuestRegionMmap>>>,
}

impl Vm {
    pub(super) fn new(fd: VmFd) -> Self {
        Self { fd, slots: Mutex::new(Vec::new()) }
    }

    /// Creates PIC, IOAPIC and a local APIC for each vCPU that is made later.
    ///
    /// # Errors
    /// If KVM refuses.
    pub fn create_irqchip(&self) -> Result<()> {
        self.fd.set_tss_address(TSS_GPA).map_err(Error::of("place the TSS pages"))?;
        self.fd.create_irq_chip().map_err(Error::of("create the in-kernel irqchip"))
    }

    /// Creates the in-kernel timer chip, by which a guest without KVM's clock finds
    /// out how fast its TSC is.
    ///
    /// # Errors
    /// If KVM refuses.
    pub fn create_timer(&self) -> Result<()> {
        let pit = kvm_pit_config { flags: KVM_PIT_SPEAKER_DUMMY, ..kvm_pit_config::default() };
        self.fd.create_pit2(pit).map_err(Error::of("create the in-kernel timer chip"))
    }

    /// Makes an eventfd whose writes pulse line `gsi` of the IOAPIC.
    ///
    /// # Errors
    /// If KVM refuses.
    pub fn interrupt_line(&self, gsi: u32) -> Result<EventFd> {
        let what = format!("connect interrupt line {gsi}");
        let line = EventFd::new(EFD_NONBLOCK).map_err(Error::of(what.as_str()))?;
        self.fd.register_irqfd(&line, gsi).map_err(Error::of(what))?;
        Ok(line)
    }

    /// Makes `region` the next memslot.
    ///
    /// # Errors
    /// If KVM refuses, for instance because slots overlap.
    pub fn add_slot(&self, region: Arc<GuestRegionMmap>) -> Result<()> {
        let mut slots = self.slots.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let start = region.start_addr().0;
        let slot = kvm_userspace_memory_region {
            slot: slots.len() as u32,
            guest_phys_addr: start,
            memory_size: region.len(),
            userspace_addr: region.get_mmap().as_ptr() as u64,
            flags: 0,
        };
        slots.push(region);
        // SAFETY: the mapping is as long as the slot says and lives in `slots`, and
        // every vCPU holds this VM, so it outlives all use by KVM.
        unsafe { self.fd.set_user_memory_region(slot) }
            .map_err(Error::of(format!("add the memslot at {start:#x}")))
    }

    /// Creates vCPU `id`, whose x2APIC id is the same number.
    ///
    /// # Errors
    /// If KVM refuses, for instance above its limit.
    pub fn create_vcpu(self: &Arc<Self>, id: VcpuId) -> Result<Vcpu> {
        let fd = self
            .fd
            .create_vcpu(u64::from(id.0))
            .map_err(Error::of(format!("create vCPU {}", id.0)))?;
        Vcpu::new(fd, id, Arc::clone(self))
    }
}
