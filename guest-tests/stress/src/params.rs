//! What the monitor asked for, checked once, and the reports.
//!
//! [`BootParams`] lies in memory where the host put it before the first entry and
//! never changes. A report is written by its vCPU alone, with plain load and store
//! of `Relaxed` atomics: code that an interrupt may meet half way and the code that
//! the interrupt runs count different things, or one of them is masked.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use pv_tlb::abi::stress::{
    Apic, BOOT_PARAMS_GPA, BootParams, MAGIC, MAX_VCPUS, ProbeWords, Program, Strategy, VERSION,
    VcpuReport, Workload,
};

use crate::vcpu;

/// The parameters.
pub(crate) fn params() -> &'static BootParams {
    // SAFETY: the monitor wrote the struct there before the first entry, nobody
    // writes it afterwards, and every bit pattern is valid.
    unsafe { &*(BOOT_PARAMS_GPA as *const BootParams) }
}

/// Panics, and so reports FAIL, if the parameters are not what this image speaks.
pub(crate) fn check() {
    let p = params();
    assert!(p.magic == MAGIC && p.version == VERSION, "Boot parameters of another version");
    assert!(p.vcpus >= 1 && p.vcpus <= MAX_VCPUS, "{} vCPUs, expected 1 to 256", p.vcpus);
    assert!(p.algorithm_cpl == 0 || p.algorithm_cpl == 3, "CPL {}", p.algorithm_cpl);
    assert!(p.apic == Apic::X2apic as u32 || p.vcpus <= 255, "{} vCPUs need x2APIC", p.vcpus);
    assert!(p.initiators <= p.vcpus, "{} initiators, {} vCPUs", p.initiators, p.vcpus);
}

/// The program to run.
pub(crate) fn program() -> Program {
    params().program.try_into().expect("Unknown program")
}

/// The flush strategy.
pub(crate) fn strategy() -> Strategy {
    params().strategy.try_into().expect("Unknown strategy")
}

/// The workload.
pub(crate) fn workload() -> Workload {
    params().workload.try_into().expect("Unknown workload")
}

/// True if the local APIC is driven by MSRs.
pub(crate) fn x2apic() -> bool {
    params().apic == Apic::X2apic as u32
}

/// The report of `vcpu`.
pub(crate) fn report_of(vcpu: u32) -> &'static VcpuReport {
    assert!(vcpu < params().vcpus, "No vCPU {vcpu}");
    let array = params().reports_gpa as *const VcpuReport;
    // SAFETY: the monitor reserved an array of one report per vCPU there.
    let report = unsafe { array.add(vcpu as usize) };
    // SAFETY: as above, zeroed; all fields are atomics, so sharing it is fine.
    unsafe { &*report }
}

/// The report of the executing vCPU.
pub(crate) fn report() -> &'static VcpuReport {
    report_of(vcpu::me())
}

/// The words shared with the monitor's probe.
pub(crate) fn probe_words() -> &'static ProbeWords {
    // SAFETY: the monitor reserved the words there; all are atomics.
    unsafe { &*(params().probe_gpa as *const ProbeWords) }
}

/// Adds to a counter that only the executing vCPU writes.
pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Relaxed) + amount, Relaxed);
}
