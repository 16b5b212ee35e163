//! `pvtlb run`: boots one guest and reports how it ended.

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

use pv_tlb::abi::debug_exit::Verdict;
use pv_tlb::abi::stress::{BootParams, Program, Strategy, VcpuReport, Workload};
use pv_tlb::id::VcpuId;

use super::{linux, pins, print};
use crate::boot::{Kernel, Machine, MachineConfig, Offered};
use crate::cli::{PvTlb, RunArgs};
use crate::devices::serial::ConsoleTarget;
use crate::error::Error;
use crate::flush::entry::EntryFlush;
use crate::flush::rule::Completion;
use crate::kvm::signals::EndSignals;
use crate::kvm::system::System;
use crate::kvm::terminal::RawTerminal;
use crate::memory::View;
use crate::metrics::LatencyNs;
use crate::probe::Probe;
use crate::session::{self, Finished, Watching};
use crate::stress::gather::histogram;
use crate::stress::render::{duration, table, thousands};
use crate::stress::step::verdict;

/// Length of the stress program when it is run by itself.
const STRESS_MS: u64 = 1_000;

pub(super) fn execute(args: &RunArgs, system: &System, signals: &EndSignals) -> Result<(), Error> {
    if let Some(image) = linux::image(args)? {
        return linux::execute(args, image, system, signals);
    }
    let console = console(&args.serial)?;
    let pins = pins(&args.guest, args.cpus)?;
    let (offered, entry, completion) = paravirtual(args, system)?;
    // The guest's clock decides the length of the run.
    let tsc_khz = system.guest_tsc_khz()?;
    let config = MachineConfig {
        vcpus: args.cpus,
        memory_bytes: args.guest.memory,
        offered,
        kernel: args.kernel.clone().map_or(Kernel::Embedded, Kernel::File),
        params: params(args, offered, tsc_khz),
        pins,
        console,
        completion,
        entry,
        deadline: args.guest.deadline,
    };
    let machine = Machine::create(system, &config)?;
    let first = machine.report(VcpuId(0))?;
    let interactive = config.console == ConsoleTarget::Stdout;
    let terminal = if interactive { RawTerminal::enter()? } else { None };
    let watching = Watching { signals, limit: args.timeout, input: interactive };
    let finished = session::run(machine, watching);
    drop(terminal);
    judge(&finished?)?;
    match args.program {
        Program::ExitCost => print(&exit_cost(&[first], tsc_khz)),
        _ => Ok(()),
    }
}

/// The two kinds of exit side by side, timed in turn by the guest.
fn exit_cost(reports: &[View<VcpuReport>], tsc_khz: u32) -> String {
    let bare = histogram(reports, tsc_khz, |report, i| report.latency_b[i].load(Relaxed));
    let bell = histogram(reports, tsc_khz, |report, i| report.latency[i].load(Relaxed));
    let row = |name: &str, latency: &LatencyNs| {
        vec![
            name.to_owned(),
            thousands(latency.count()),
            duration(latency.quantile_ns(0.5)),
            duration(latency.quantile_ns(0.99)),
            duration(latency.max_ns()),
        ]
    };
    let ratio = |quantile: f64| {
        let base = bare.quantile_ns(quantile).max(1) as f64;
        format!("{:.2}x", bell.quantile_ns(quantile) as f64 / base)
    };
    let ratios = vec!["ratio".to_owned(), String::new(), ratio(0.5), ratio(0.99), String::new()];
    let header = ["exit", "count", "median", "p99", "longest"].map(str::to_owned);
    let rows = [row("bare port", &bare), row("doorbell, nobody to interrupt", &bell), ratios];
    format!("{}\n", table("lr", &header, &rows))
}

/// What is offered, how vCPUs flush on entry, and when a target counts as flushed.
fn paravirtual(
    args: &RunArgs,
    system: &System,
) -> Result<(Offered, EntryFlush, Completion), Error> {
    let later = |name: &str| {
        Error::HostLacks(format!(
            "Mode {name} is not there yet, expected off, kvm, doorbell or auto"
        ))
    };
    let wanted = match args.pv_tlb {
        PvTlb::Off => Some(Offered::Off),
        PvTlb::Kvm => Some(Offered::Kvm),
        PvTlb::Doorbell => Some(Offered::Doorbell),
        PvTlb::Auto => None,
        PvTlb::Invlpgb => return Err(later("invlpgb")),
        PvTlb::Rar => return Err(later("rar")),
        PvTlb::Hyperv => return Err(later("hyperv")),
    };
    if matches!(wanted, Some(Offered::Off | Offered::Kvm)) {
        let rule = Completion::new(args.guest.completion, false);
        return Ok((wanted.unwrap_or(Offered::Off), EntryFlush::Nothing, rule));
    }
    let probe = Probe::run(system)?;
    let rule = Completion::new(args.guest.completion, probe.reports_preemption);
    match (wanted, probe.entry) {
        (_, Some(way)) => Ok((Offered::Doorbell, way, rule)),
        (None, None) => Ok((Offered::Kvm, EntryFlush::Nothing, rule)),
        (Some(_), None) => Err(Error::HostLacks(
            "Mode doorbell needs a way to flush on entry, and none is proved on this KVM; see pvtlb doctor".to_owned(),
        )),
    }
}

fn params(args: &RunArgs, offered: Offered, tsc_khz: u32) -> BootParams {
    let strategy = match offered {
        Offered::Off => Strategy::Ipi,
        Offered::Kvm => Strategy::KvmPv,
        Offered::Doorbell => Strategy::Doorbell,
    };
    let length_ms = match args.program {
        Program::Stress => STRESS_MS,
        _ => 0,
    };
    BootParams {
        program: args.program as u32,
        strategy: strategy as u32,
        workload: Workload::Remap as u32,
        apic: args.guest.apic as u32,
        algorithm_cpl: args.guest.algorithm_cpl,
        mms: 1,
        initiators: args.cpus,
        pages_per_vcpu: 8,
        full_flush_ceiling: 33,
        duration_ticks: length_ms * u64::from(tsc_khz),
        ..BootParams::default()
    }
}

pub(super) fn console(text: &str) -> Result<ConsoleTarget, Error> {
    match text.split_once('=') {
        None if text == "off" => Ok(ConsoleTarget::Off),
        None if text == "stdout" => Ok(ConsoleTarget::Stdout),
        Some(("file", path)) if !path.is_empty() => Ok(ConsoleTarget::File(PathBuf::from(path))),
        _ => Err(Error::Usage(format!(
            "Serial target {text:?} is unknown, expected off, stdout or file=PATH"
        ))),
    }
}

fn judge(finished: &Finished) -> Result<(), Error> {
    match verdict(&finished.ending, &finished.values)? {
        Verdict::Pass => {
            eprintln!("pvtlb: guest said PASS");
            Ok(())
        }
        other => Err(Error::Verdict(format!("Guest said {other:?}"))),
    }
}
