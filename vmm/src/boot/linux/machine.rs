//! The machine of a Linux guest: interrupt controllers, timer chip, COM1 with its
//! interrupt, ACPI tables; the first vCPU at the kernel's entry, the others waiting
//! for the INIT and SIPI that the kernel sends.

use std::sync::Arc;

use pv_tlb::CpuSet;
use pv_tlb::abi::stress::BootParams;
use pv_tlb::id::VcpuId;
use pv_tlb::pending::FlushClock;

use super::{Error as LinuxError, LinuxBoot, Protocol, acpi, params};
use crate::boot::{Error, Machine, MachineConfig, Offered, image, tables};
use crate::devices::PortBus;
use crate::devices::debug_exit::DebugExit;
use crate::devices::power::Power;
use crate::devices::serial::{self, Console};
use crate::flush::{FlushSite, VcpuSlot};
use crate::kvm::cpuid::{CpuId, CpuidTable, Offer};
use crate::kvm::features::{FLUSH, Feature};
use crate::kvm::membarrier::Membarrier;
use crate::kvm::system::System;
use crate::kvm::vcpu::Vcpu;
use crate::kvm::vm::Vm;
use crate::memory::GuestMemory;
use crate::vcpu::run_loop::Shared;

/// Makes the machine.
///
/// # Errors
/// If the configuration is out of range or KVM refuses.
pub fn create(system: &System, config: &MachineConfig, boot: &LinuxBoot) -> Result<Machine, Error> {
    check(config)?;
    let memory = GuestMemory::new(config.memory_bytes)?;
    let entry = prepare(&memory, config, boot)?;
    let vm = Arc::new(system.create_vm()?);
    vm.create_irqchip()?;
    vm.create_timer()?;
    for region in memory.regions() {
        vm.add_slot(region)?;
    }
    let shared = Arc::new(shared(&vm, config)?);
    let table = CpuidTable::supported(system)?;
    let mut vcpus = Vec::with_capacity(config.vcpus as usize);
    for id in (0..config.vcpus).map(VcpuId) {
        let vcpu = vm.create_vcpu(id)?;
        vcpu.set_cpuid(&cpuid(&table, config, boot, id)?)?;
        vcpu.cache_all_memory()?;
        vcpus.push(vcpu);
    }
    start_at(&vcpus[0], &memory, entry, boot.protocol)?;
    let tsc_khz = vcpus[0].tsc_khz()?;
    let (pins, params) = (config.pins.clone(), BootParams::default());
    Ok(Machine { memory, vcpus, shared, pins, params, tsc_khz })
}

fn check(config: &MachineConfig) -> Result<(), LinuxError> {
    let (vcpus, max) = (config.vcpus, acpi::MAX_VCPUS);
    if vcpus > max {
        return Err(LinuxError::Vcpus { vcpus, max });
    }
    match config.offered {
        Offered::Doorbell => Err(LinuxError::Mode("doorbell")),
        Offered::Off | Offered::Kvm => Ok(()),
    }
}

/// Loads kernel and initrd and writes the boot data; returns the entry.
fn prepare(memory: &GuestMemory, config: &MachineConfig, boot: &LinuxBoot) -> Result<u64, Error> {
    let loaded = image::load(&boot.name, &boot.elf, memory)?;
    let line = params::cmdline(&boot.cmdline, params::cmdline_limit(boot.header.as_ref()))?;
    let initrd = match &boot.initrd {
        None => params::Initrd::default(),
        Some(path) => params::load_initrd(path, memory, loaded.end)?,
    };
    let rsdp = acpi::write(memory, config.vcpus)?;
    match boot.protocol {
        Protocol::Linux64 => {
            params::write_zero_page(memory, boot.header.as_ref(), &line, initrd, rsdp)?;
            Ok(loaded.entry)
        }
        Protocol::Pvh => {
            let none = || LinuxError::NoPvhEntry { name: boot.name.clone() };
            let entry = loaded.pvh_entry.ok_or_else(none)?;
            params::write_start_info(memory, &line, initrd, rsdp)?;
            Ok(entry)
        }
    }
}

fn start_at(
    vcpu: &Vcpu,
    memory: &GuestMemory,
    entry: u64,
    protocol: Protocol,
) -> Result<(), Error> {
    match protocol {
        Protocol::Linux64 => {
            let mut state = tables::write(memory, entry)?;
            state.rsi = params::PARAMS.0;
            vcpu.enter_long_mode(&state)?;
        }
        Protocol::Pvh => vcpu.enter_protected_mode(entry, params::PARAMS.0)?,
    }
    Ok(())
}

/// The CPUID table of vCPU `id`.
fn cpuid(
    table: &CpuidTable,
    config: &MachineConfig,
    boot: &LinuxBoot,
    id: VcpuId,
) -> Result<CpuId, Error> {
    let kvm_flush = config.offered == Offered::Kvm;
    let offer = Offer { kvm_flush, doorbell: None };
    let mut table = table.for_vcpu(id, config.vcpus, &offer)?;
    // KVM leaves this bit to the monitor; without it Linux does not look for KVM.
    if let Ok(hypervisor) = Feature::by_name("hypervisor") {
        hypervisor.set(&mut table, true);
    }
    if !kvm_flush {
        for feature in FLUSH {
            feature.set(&mut table, false);
        }
    }
    boot.edits.apply(&mut table).map_err(LinuxError::Feature)?;
    Ok(table)
}

fn shared(vm: &Vm, config: &MachineConfig) -> Result<Shared, Error> {
    let site = FlushSite {
        clock: FlushClock::new(),
        slots: (0..config.vcpus).map(|_| VcpuSlot::new(None, None)).collect(),
        present: CpuSet::first(config.vcpus),
        completion: config.completion,
        entry: config.entry,
        membarrier: Membarrier::register()?,
        deadline: config.deadline,
    };
    let line = vm.interrupt_line(serial::GSI)?;
    let console = Console::open(&config.console, Some(line))
        .map_err(|source| Error::Console { target: config.console.clone(), source })?;
    let bus = PortBus {
        console,
        debug_exit: DebugExit::new(config.vcpus),
        power: Some(Power::default()),
    };
    Ok(Shared::new(site, bus, config.pins.overcommits(config.vcpus))?)
}

/// What the machine of `config` offers, by the table that vCPU 0 gets.
///
/// # Errors
/// As for [`create`].
pub fn offered(
    system: &System,
    config: &MachineConfig,
    boot: &LinuxBoot,
) -> Result<Vec<(Feature, bool)>, Error> {
    let table = cpuid(&CpuidTable::supported(system)?, config, boot, VcpuId(0))?;
    Ok(Feature::all().map(|feature| (feature, feature.is_in(&table))).collect())
}
