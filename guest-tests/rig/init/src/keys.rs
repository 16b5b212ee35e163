//! Keeps the kernel from patching its own code while the plan runs.
//!
//! KVM and perf guard rare paths by static keys: the first user of such a path makes
//! the kernel patch a jump into running code, and the last one patches it out.
//! Emulated pCPUs on several threads now and then execute the breakpoint byte of a
//! patch in progress after the kernel has forgotten it, and the host dies with
//! "Oops: int3". Someone who uses every such path from the start, and until the end,
//! keeps the patching out of the plan.
//!
//! Owner: process 1. States: not taken, taken; taken lasts to power-off.

use kvm_ioctls::{Kvm, VcpuFd, VmFd};
use perf_event::events::Software;
use perf_event::{Builder, Counter};

/// Bit of the APIC base register that switches the APIC on.
const APIC_BASE_ENABLE: u64 = 1 << 11;

/// One user of each guarded path, as long as it lives.
pub(crate) struct HeldKeys {
    _switched_off: (VmFd, VcpuFd, VcpuFd),
    _without_irqchip: (VmFd, VcpuFd),
    _task_events: Vec<Counter>,
}

/// Every kind of software event that the monitor counts has a key of its own.
const EVENTS: [Software; 3] =
    [Software::DUMMY, Software::CPU_MIGRATIONS, Software::CONTEXT_SWITCHES];

impl HeldKeys {
    /// Creates the users: a vCPU whose APIC is off by software (its reset state), one
    /// whose APIC is off by hardware, one without an APIC, perf events on a task.
    pub(crate) fn take() -> Result<Self, String> {
        let kvm = Kvm::new().map_err(|error| format!("open /dev/kvm: {error}"))?;
        let with_irqchip = kvm.create_vm().map_err(|error| format!("create a VM: {error}"))?;
        with_irqchip.create_irq_chip().map_err(|error| format!("create an irqchip: {error}"))?;
        let by_software = vcpu(&with_irqchip, 0)?;
        let by_hardware = vcpu(&with_irqchip, 1)?;
        let mut sregs =
            by_hardware.get_sregs().map_err(|error| format!("read a vCPU's state: {error}"))?;
        sregs.apic_base &= !APIC_BASE_ENABLE;
        by_hardware
            .set_sregs(&sregs)
            .map_err(|error| format!("switch a vCPU's APIC off: {error}"))?;
        let without = kvm.create_vm().map_err(|error| format!("create a VM: {error}"))?;
        let without_apic = vcpu(&without, 0)?;
        let task_events = EVENTS
            .into_iter()
            .map(|event| Builder::new(event).build())
            .collect::<Result<_, _>>()
            .map_err(|error| format!("open a perf event: {error}"))?;
        Ok(Self {
            _switched_off: (with_irqchip, by_software, by_hardware),
            _without_irqchip: (without, without_apic),
            _task_events: task_events,
        })
    }
}

fn vcpu(vm: &VmFd, index: u64) -> Result<VcpuFd, String> {
    vm.create_vcpu(index).map_err(|error| format!("create vCPU {index}: {error}"))
}
