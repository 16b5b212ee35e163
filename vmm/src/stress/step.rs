//! One round: a VM with a number of vCPUs and a mode, run once.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pv_tlb::abi::debug_exit::{Key, Verdict};
use pv_tlb::abi::stress::{Apic, BootParams, Program, VcpuReport, Workload};
use pv_tlb::id::VcpuId;

use super::mode::Mode;
use crate::boot::{Kernel, Machine, MachineConfig};
use crate::devices::serial::ConsoleTarget;
use crate::error::Error;
use crate::flush::entry::EntryFlush;
use crate::flush::execute::Unfinished;
use crate::flush::rule::{Completion, CompletionChoice};
use crate::kvm::signals::EndSignals;
use crate::kvm::system::System;
use crate::memory::View;
use crate::metrics::VcpuMetrics;
use crate::placement::pins::Pins;
use crate::session::{self, Ending, Watching};
use crate::vcpu::run_loop::Failure;

/// How much longer than its run a guest may take to boot and to stop, per vCPU:
/// with many vCPUs on one pCPU each waits for its turns.
const GRACE_PER_VCPU: Duration = Duration::from_secs(2);
const GRACE: Duration = Duration::from_secs(20);

/// One row of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Targets of a flush; `None` for all others of the address space.
    pub targets: Option<u32>,
}

/// What all rounds of a sweep have in recipe.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// Guest RAM.
    pub memory_bytes: u64,
    /// Where vCPU threads may run.
    pub pins: Pins,
    /// What the guest does to its pages.
    pub workload: Workload,
    /// APIC interface.
    pub apic: Apic,
    /// Privilege level of the guest's algorithms.
    pub algorithm_cpl: u32,
    /// Address spaces.
    pub mms: u32,
    /// vCPUs that flush; `None` for all.
    pub initiators: Option<u32>,
    /// Least pause between two shootdowns.
    pub gap: Duration,
    /// Length of a round.
    pub length: Duration,
    /// Shootdowns after which a vCPU stops; 0 for no bound.
    pub max_shootdowns: u64,
    /// Test pages of each vCPU.
    pub pages_per_vcpu: u32,
    /// Rule for doorbell modes that name none.
    pub completion: CompletionChoice,
    /// KVM reports preemption.
    pub reports_preemption: bool,
    /// Way to flush on entry.
    pub entry: EntryFlush,
    /// Longest wait for an ack.
    pub deadline: Duration,
    /// TSC frequency of guests.
    pub tsc_khz: u32,
    /// This KVM interprets guest code at CPL 0.
    pub interprets_cpl_0: bool,
}

/// What one round left.
#[derive(Debug)]
pub struct Outcome {
    /// The guest's verdict.
    pub verdict: Verdict,
    /// Each vCPU's report, as it stands in guest memory.
    pub reports: Vec<View<VcpuReport>>,
    /// Each vCPU thread's counts.
    pub metrics: Vec<VcpuMetrics>,
    /// TSC frequency.
    pub tsc_khz: u32,
}

impl Recipe {
    /// The completion rule that `mode` runs under.
    #[must_use]
    pub fn completion(&self, mode: Mode) -> Completion {
        Completion::new(mode.completion.unwrap_or(self.completion), self.reports_preemption)
    }

    fn params(&self, row: Row, mode: Mode) -> BootParams {
        let vcpus = row.vcpus;
        let khz = u128::from(self.tsc_khz);
        let ticks = |d: Duration| (d.as_nanos() * khz / 1_000_000) as u64;
        BootParams {
            program: Program::Stress as u32,
            strategy: mode.strategy as u32,
            workload: self.workload as u32,
            apic: self.apic as u32,
            algorithm_cpl: self.algorithm_cpl,
            mms: self.mms.min(vcpus),
            initiators: self.initiators.unwrap_or(vcpus).min(vcpus),
            targets: row.targets.unwrap_or(0),
            pages_per_vcpu: self.pages_per_vcpu,
            full_flush_ceiling: 33,
            duration_ticks: ticks(self.length),
            max_shootdowns: self.max_shootdowns,
            gap_ticks: ticks(self.gap),
            ..BootParams::default()
        }
    }
}

/// Runs one round.
///
/// # Errors
/// If the VM cannot be made, the guest fails, a vCPU is late, or a signal comes.
pub fn run(
    system: &System,
    recipe: &Recipe,
    row: Row,
    mode: Mode,
    signals: &EndSignals,
) -> Result<Outcome, Error> {
    let vcpus = row.vcpus;
    let config = MachineConfig {
        vcpus,
        memory_bytes: recipe.memory_bytes,
        offered: mode.offered(),
        kernel: Kernel::Embedded,
        params: recipe.params(row, mode),
        pins: recipe.pins.clone(),
        console: ConsoleTarget::Off,
        completion: recipe.completion(mode),
        entry: recipe.entry,
        deadline: recipe.deadline,
    };
    let machine = Machine::create(system, &config)?;
    let reports: Vec<_> =
        (0..vcpus).map(|id| machine.report(VcpuId(id))).collect::<Result<_, _>>()?;
    let tsc_khz = machine.tsc_khz();
    let limit = Some(recipe.length + GRACE + GRACE_PER_VCPU * vcpus);
    let finished = session::run(machine, Watching { signals, limit, input: false })?;
    let verdict =
        verdict(&finished.ending, &finished.values).map_err(|error| named(error, vcpus, mode))?;
    Ok(Outcome { verdict, reports, metrics: finished.metrics, tsc_khz })
}

/// Adds which round it was to the guest's failures.
fn named(error: Error, vcpus: u32, mode: Mode) -> Error {
    match error {
        Error::Guest(what) => Error::Guest(format!("{what} (mode {mode}, {vcpus} vCPUs)")),
        Error::Late(what) => Error::Late(format!("{what} (mode {mode}, {vcpus} vCPUs)")),
        other => other,
    }
}

/// The guest's verdict, or the error that its ending stands for.
///
/// # Errors
/// If the run ended in another way than by PASS or FAIL.
pub fn verdict(ending: &Ending, values: &[(u32, u64)]) -> Result<Verdict, Error> {
    let value = |key: Key| values.iter().find(|(k, _)| *k == key as u32).map(|(_, v)| *v);
    match ending {
        Ending::Verdict(Ok(Verdict::Fault)) => Err(Error::Guest(format!(
            "Guest took an unexpected exception: vector {}, rip {:#x}, error code {:#x}, cr2 {:#x}",
            value(Key::Vector).unwrap_or(u64::MAX),
            value(Key::Rip).unwrap_or(0),
            value(Key::ErrorCode).unwrap_or(0),
            value(Key::Cr2).unwrap_or(0)
        ))),
        Ending::Verdict(Ok(verdict)) => match (value(Key::PanicLine), value(Key::HeapNeeded)) {
            (_, Some(bytes)) => Err(Error::Usage(format!(
                "Guest memory is too small: the guest needs {bytes} bytes above its image, give more --memory"
            ))),
            (Some(line), _) => Err(Error::Guest(format!("Guest panicked at line {line}"))),
            (None, None) => Ok(*verdict),
        },
        Ending::Verdict(Err(raw)) => Err(Error::Guest(format!(
            "Guest ended with {raw:#x}, expected PASS ({:#x}), FAIL ({:#x}) or FAULT ({:#x})",
            Verdict::Pass as u32,
            Verdict::Fail as u32,
            Verdict::Fault as u32
        ))),
        Ending::Power(event) => {
            Err(Error::Guest(format!("Guest ended by {event:?}, expected a verdict")))
        }
        Ending::Failed(Failure::Flush(late @ Unfinished::Late { .. })) => {
            Err(Error::Late(late.to_string()))
        }
        Ending::Failed(failure) => Err(Error::Guest(failure.to_string())),
        Ending::TimedOut(limit) => {
            Err(Error::Guest(format!("Guest did not report within {limit:?}")))
        }
        Ending::Signal(signal) => Err(Error::Interrupted(*signal)),
        Ending::ConsoleClosed => Err(Error::OutputClosed),
        Ending::Left => Err(Error::Interrupted(crate::kvm::signals::EndSignal::Interrupt)),
        Ending::Died => Err(Error::Guest("A vCPU thread ended without a reason".to_owned())),
    }
}

/// Sum of one counter over all reports.
#[must_use]
pub fn sum(
    reports: &[View<VcpuReport>],
    counter: impl Fn(&VcpuReport) -> &std::sync::atomic::AtomicU64,
) -> u64 {
    reports.iter().map(|report| counter(report).load(Relaxed)).fold(0, u64::saturating_add)
}
