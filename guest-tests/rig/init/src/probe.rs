//! Commands of the rig itself, for plans that test nothing but the rig.
//!
//! No state.

use std::process::ExitCode;

use kvm_ioctls::{Kvm, VmFd};

/// The only version that KVM has ever had since its interface is stable.
const KVM_API_VERSION: i32 = 12;
/// VMs that `kvm-churn` creates and drops.
const CHURNED_VMS: u32 = 200;

/// `kvm-probe`: says that a VM and a vCPU can be made on this host.
pub(crate) fn run() -> ExitCode {
    finish(try_kvm())
}

/// `kvm-churn`: creates and drops VMs of every kind, which makes the kernel patch
/// its code again and again unless somebody holds the keys (see `keys.rs`).
pub(crate) fn churn() -> ExitCode {
    finish(try_churn())
}

fn finish(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn try_kvm() -> Result<(), String> {
    let kvm = open()?;
    let version = kvm.get_api_version();
    println!("KVM API version {version}");
    if version != KVM_API_VERSION {
        return Err(format!("KVM API version {version}: expected {KVM_API_VERSION}"));
    }
    let vm = create_vm(&kvm, true)?;
    let vcpu = vm.create_vcpu(0).map_err(|error| format!("Cannot create a vCPU: {error}"))?;
    let regs = vcpu.get_regs().map_err(|error| format!("Cannot read a vCPU: {error}"))?;
    println!("vCPU 0 resets to RIP {:#x}", regs.rip);
    println!("At most {} vCPUs, {} recommended", kvm.get_max_vcpus(), kvm.get_nr_vcpus());
    Ok(())
}

fn try_churn() -> Result<(), String> {
    let kvm = open()?;
    for turn in 0..CHURNED_VMS {
        let vm = create_vm(&kvm, turn % 2 == 0)?;
        vm.create_vcpu(0).map_err(|error| format!("Cannot create vCPU of VM {turn}: {error}"))?;
    }
    println!("{CHURNED_VMS} VMs came and went");
    Ok(())
}

fn open() -> Result<Kvm, String> {
    Kvm::new().map_err(|error| format!("Cannot open /dev/kvm: {error}"))
}

fn create_vm(kvm: &Kvm, with_irqchip: bool) -> Result<VmFd, String> {
    let vm = kvm.create_vm().map_err(|error| format!("Cannot create a VM: {error}"))?;
    if with_irqchip {
        vm.create_irq_chip().map_err(|error| format!("Cannot create an irqchip: {error}"))?;
    }
    Ok(vm)
}
