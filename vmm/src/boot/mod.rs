//! Create, configure, start: from a configuration to running vCPU threads.
//!
//! Owner: [`Machine`] owns everything until [`Machine::start`] hands the vCPUs to
//! their threads.

pub mod image;
pub mod linux;
pub mod tables;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pv_tlb::CpuSet;
use pv_tlb::abi::doorbell::{self, DoorbellPage, Features, HostFlags};
use pv_tlb::abi::kvm::StealTime;
use pv_tlb::abi::stress::{Apic, BOOT_PARAMS_GPA, BootParams, REPORT_STRIDE, VcpuReport};
use pv_tlb::addr::Gpa;
use pv_tlb::id::VcpuId;
use pv_tlb::pending::FlushClock;

use crate::devices::PortBus;
use crate::devices::debug_exit::DebugExit;
use crate::devices::serial::{Console, ConsoleTarget};
use crate::flush::entry::EntryFlush;
use crate::flush::rule::Completion;
use crate::flush::{FlushSite, VcpuSlot};
use crate::kvm;
use crate::kvm::cpuid::{CpuidTable, DoorbellOffer, Offer};
use crate::kvm::membarrier::Membarrier;
use crate::kvm::system::System;
use crate::kvm::vcpu::Vcpu;
use crate::kvm::vm::Vm;
use crate::memory::{DOORBELL_GPA, GuestMemory, STEAL_TIME_GPA, SharedRegion, View};
use crate::placement::pins::Pins;
use crate::vcpu::run_loop::Shared;
use crate::vcpu::thread::Running;

/// vCPUs that eight-bit APIC ids can tell apart; 255 means all of them.
const XAPIC_IDS: u32 = 255;

/// The stress guest, built together with the monitor.
pub static STRESS_GUEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/stress-guest.elf"));

/// What the guest is offered for its flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    /// Nothing: KVM's flush features are hidden.
    Off,
    /// KVM's own: the preempted byte.
    Kvm,
    /// The doorbell.
    Doorbell,
}

/// Which kernel is booted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// The embedded stress guest.
    Embedded,
    /// An ELF file that follows the same entry contract (docs/guest-entry.md).
    File(PathBuf),
    /// An unmodified Linux.
    Linux(Box<linux::LinuxBoot>),
}

/// Everything a VM is made from.
#[derive(Clone, Debug)]
pub struct MachineConfig {
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Guest RAM.
    pub memory_bytes: u64,
    /// Flush features offered.
    pub offered: Offered,
    /// Kernel.
    pub kernel: Kernel,
    /// What the kernel is told; addresses and counts are filled in here.
    pub params: BootParams,
    /// Where vCPU threads may run.
    pub pins: Pins,
    /// Guest console.
    pub console: ConsoleTarget,
    /// When a target counts as flushed.
    pub completion: Completion,
    /// How a vCPU flushes on entry.
    pub entry: EntryFlush,
    /// Longest wait for an ack.
    pub deadline: Duration,
}

/// Why a machine could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Too few or too many vCPUs.
    #[error("{vcpus} vCPUs are out of range, expected 1 to {max} ({limit})")]
    Vcpus {
        /// Number asked for.
        vcpus: u32,
        /// Largest number possible.
        max: u32,
        /// Who limits it.
        limit: &'static str,
    },
    /// The guest does not fit.
    #[error(
        "Guest memory of {bytes} bytes is too small for {vcpus} vCPUs, expected at least {needed}"
    )]
    TooSmall {
        /// Memory asked for.
        bytes: u64,
        /// Number of vCPUs.
        vcpus: u32,
        /// Bytes needed for image and reports.
        needed: u64,
    },
    /// The image is wrong.
    #[error(transparent)]
    Image(#[from] image::Error),
    /// Linux cannot be booted.
    #[error(transparent)]
    Linux(#[from] linux::Error),
    /// Guest memory.
    #[error(transparent)]
    Memory(#[from] crate::memory::Error),
    /// The kernel refused something.
    #[error(transparent)]
    Kvm(#[from] kvm::Error),
    /// The console cannot be opened.
    #[error("Cannot open the console output {target:?}")]
    Console {
        /// Where it should go.
        target: ConsoleTarget,
        /// Why.
        source: std::io::Error,
    },
}

/// A VM that has not started.
#[derive(Debug)]
pub struct Machine {
    memory: GuestMemory,
    vcpus: Vec<Vcpu>,
    shared: Arc<Shared>,
    pins: Pins,
    params: BootParams,
    tsc_khz: u32,
}

impl Machine {
    /// Creates the VM, loads the kernel and configures every vCPU.
    ///
    /// # Errors
    /// If the configuration is out of range or KVM refuses.
    pub fn create(system: &System, config: &MachineConfig) -> Result<Self, Error> {
        check_vcpus(system, config)?;
        if let Kernel::Linux(boot) = &config.kernel {
            return linux::machine::create(system, config, boot);
        }
        let memory = GuestMemory::new(config.memory_bytes)?;
        let vm = Arc::new(system.create_vm()?);
        vm.create_irqchip()?;
        for region in memory.regions() {
            vm.add_slot(region)?;
        }
        let shared = Arc::new(shared(&vm, config)?);
        let loaded = load(config, &memory)?;
        let mut vcpus = Vec::with_capacity(config.vcpus as usize);
        for id in 0..config.vcpus {
            vcpus.push(vm.create_vcpu(VcpuId(id))?);
        }
        let tsc_khz = vcpus[0].tsc_khz()?;
        let params = place(config, &memory, loaded, tsc_khz)?;
        memory.write_params(Gpa(BOOT_PARAMS_GPA), &params)?;
        let entry = tables::write(&memory, loaded.entry)?;
        let table = CpuidTable::supported(system)?;
        let offer = offer(config);
        for vcpu in &vcpus {
            let id = vcpu.id();
            vcpu.set_cpuid(&table.for_vcpu(id, config.vcpus, &offer)?)?;
            let mut entry = entry;
            (entry.rdi, entry.rsi) = (u64::from(id.0), BOOT_PARAMS_GPA);
            vcpu.enter_long_mode(&entry)?;
            if config.offered != Offered::Kvm {
                vcpu.enable_steal_time(record_gpa(id))?;
            }
        }
        Ok(Self { memory, vcpus, shared, pins: config.pins.clone(), params, tsc_khz })
    }

    /// TSC frequency of the guest, kHz.
    #[must_use]
    pub fn tsc_khz(&self) -> u32 {
        self.tsc_khz
    }

    /// What vCPU threads and the monitor share.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The vCPUs, for what must be asked before they run.
    #[must_use]
    pub fn vcpus(&self) -> &[Vcpu] {
        &self.vcpus
    }

    /// The report that vCPU `id` of the stress guest leaves.
    ///
    /// # Errors
    /// If the place is outside RAM, which [`Machine::create`] excludes.
    pub fn report(&self, id: VcpuId) -> Result<View<VcpuReport>, Error> {
        let gpa = Gpa(self.params.reports_gpa + u64::from(id.0) * REPORT_STRIDE);
        Ok(self.memory.view(gpa)?)
    }

    /// The words of the probe program.
    ///
    /// # Errors
    /// As for [`Self::report`].
    pub fn probe_words(&self) -> Result<View<pv_tlb::abi::stress::ProbeWords>, Error> {
        Ok(self.memory.view(Gpa(self.params.probe_gpa))?)
    }

    /// Starts one thread per vCPU.
    ///
    /// # Errors
    /// If a thread cannot be made or pinned.
    pub fn start(self) -> Result<Running, kvm::Error> {
        Running::start(self.vcpus, self.shared, &self.pins)
    }
}

fn check_vcpus(system: &System, config: &MachineConfig) -> Result<(), Error> {
    let vcpus = config.vcpus;
    let by_kvm = u32::try_from(system.max_vcpus()).unwrap_or(u32::MAX);
    let xapic = config.kernel == Kernel::Embedded && config.params.apic == Apic::Xapic as u32;
    let mut limits = vec![
        (by_kvm, "the limit of this KVM"),
        (pv_tlb::abi::stress::MAX_VCPUS, "the limit of pvtlb"),
    ];
    if xapic {
        limits.push((XAPIC_IDS, "the ids of an xAPIC, use --apic x2apic"));
    }
    let (max, limit) = limits.into_iter().min_by_key(|(max, _)| *max).unwrap_or((1, ""));
    match (1..=max).contains(&vcpus) {
        true => Ok(()),
        false => Err(Error::Vcpus { vcpus, max, limit }),
    }
}

fn record_gpa(id: VcpuId) -> Gpa {
    Gpa(STEAL_TIME_GPA.0 + u64::from(id.0) * size_of::<StealTime>() as u64)
}

fn offer(config: &MachineConfig) -> Offer {
    let doorbell = (config.offered == Offered::Doorbell).then_some(DoorbellOffer {
        pages: DOORBELL_GPA,
        count: config.vcpus,
        features: Features::RUN_HINT,
    });
    Offer { kvm_flush: config.offered == Offered::Kvm, doorbell }
}

fn shared(vm: &Vm, config: &MachineConfig) -> Result<Shared, Error> {
    let count = config.vcpus as usize;
    let pages = match config.offered {
        Offered::Doorbell => Some(SharedRegion::<DoorbellPage>::new(DOORBELL_GPA, count)?),
        Offered::Off | Offered::Kvm => None,
    };
    // In kvm mode the record is the guest's; otherwise the guest does not see one.
    let records = match config.offered {
        Offered::Kvm => None,
        Offered::Off | Offered::Doorbell => {
            Some(SharedRegion::<StealTime>::new(STEAL_TIME_GPA, count)?)
        }
    };
    let regions =
        pages.iter().map(SharedRegion::region).chain(records.iter().map(SharedRegion::region));
    for region in regions {
        vm.add_slot(region)?;
    }
    let overcommitted = config.pins.overcommits(config.vcpus);
    let slots = (0..count).map(|i| {
        let page = pages.as_ref().and_then(|pages| pages.view(i));
        if let Some(page) = &page {
            introduce(page, i as u32, overcommitted);
        }
        VcpuSlot::new(page, records.as_ref().and_then(|records| records.view(i)))
    });
    let site = FlushSite {
        clock: FlushClock::new(),
        slots: slots.collect(),
        present: CpuSet::first(config.vcpus),
        completion: config.completion,
        entry: config.entry,
        membarrier: Membarrier::register()?,
        deadline: config.deadline,
    };
    let console = Console::open(&config.console, None)
        .map_err(|source| Error::Console { target: config.console.clone(), source })?;
    let bus = PortBus { console, debug_exit: DebugExit::new(config.vcpus), power: None };
    Ok(Shared::new(site, bus, overcommitted)?)
}

/// Fills in the host's part of a doorbell page; nobody reads it yet.
fn introduce(page: &DoorbellPage, vcpu: u32, overcommitted: bool) {
    use std::sync::atomic::Ordering::Relaxed;
    let flags = if overcommitted { HostFlags::OVERCOMMITTED } else { HostFlags::empty() };
    page.host.magic.store(doorbell::MAGIC, Relaxed);
    page.host.version.store(doorbell::VERSION, Relaxed);
    page.host.vcpu.store(vcpu, Relaxed);
    page.host.flags.store(flags.bits(), Relaxed);
}

fn load(config: &MachineConfig, memory: &GuestMemory) -> Result<image::Loaded, Error> {
    Ok(match &config.kernel {
        Kernel::Embedded => image::load("(embedded stress guest)", STRESS_GUEST, memory)?,
        Kernel::File(path) => {
            image::load(&path.display().to_string(), &image::read(path)?, memory)?
        }
        Kernel::Linux(boot) => image::load(&boot.name, &boot.elf, memory)?,
    })
}

/// Fills in addresses: reports at the top of low memory, probe words below them,
/// the heap between them and the image.
fn place(
    config: &MachineConfig,
    memory: &GuestMemory,
    loaded: image::Loaded,
    tsc_khz: u32,
) -> Result<BootParams, Error> {
    const PAGE: u64 = 4096;
    let heap_start = loaded.end.next_multiple_of(PAGE);
    let reports = (u64::from(config.vcpus) * REPORT_STRIDE).next_multiple_of(PAGE);
    let needed = heap_start + PAGE + reports;
    if memory.low_bytes() < needed {
        let (bytes, vcpus) = (memory.bytes(), config.vcpus);
        return Err(Error::TooSmall { bytes, vcpus, needed });
    }
    let reports_gpa = memory.low_bytes() - reports;
    let probe_gpa = reports_gpa - PAGE;
    Ok(BootParams {
        magic: pv_tlb::abi::stress::MAGIC,
        version: pv_tlb::abi::stress::VERSION,
        vcpus: config.vcpus,
        tsc_khz: u64::from(tsc_khz),
        heap_start,
        heap_end: probe_gpa,
        reports_gpa,
        probe_gpa,
        steal_gpa: match config.offered {
            Offered::Kvm => 0,
            Offered::Off | Offered::Doorbell => STEAL_TIME_GPA.0,
        },
        ..config.params
    })
}
