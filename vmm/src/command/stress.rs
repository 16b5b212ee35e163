//! `pvtlb stress`: flags to a sweep, the sweep to output and verdict.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use pv_tlb::abi::stress::Workload;
use pvtlb_api::Verdict;
use pvtlb_api::stress::{HostFacts, SCHEMA, Settings, StressReport};

use super::{pins, print};
use crate::boot::Offered;
use crate::cli::StressArgs;
use crate::doctor::{interprets_cpl_0, kernel_release, kvm_kind};
use crate::error::Error;
use crate::flush::entry::EntryFlush;
use crate::kvm::signals::EndSignals;
use crate::kvm::system::System;
use crate::probe::Probe;
use crate::stress::mode::Mode;
use crate::stress::render;
use crate::stress::step::Recipe;
use crate::stress::sweep::{Row, Sweep, Swept, judge};

/// Test pages of each vCPU.
const PAGES_PER_VCPU: u32 = 8;
/// Address spaces of the mprotect workload unless given: several processes.
const PROCESSES: u32 = 4;

pub(super) fn execute(
    args: &StressArgs,
    system: &System,
    signals: &EndSignals,
) -> Result<(), Error> {
    let modes = if args.modes.is_empty() { Mode::defaults() } else { args.modes.clone() };
    // Opened first: a sweep must not be lost because its file cannot be written.
    let json = args.json.as_deref().map(create).transpose()?;
    let probe = Probe::run(system)?;
    let doorbell = modes.iter().any(|mode| mode.offered() == Offered::Doorbell);
    let entry = match (probe.entry, doorbell) {
        (Some(way), _) => way,
        (None, false) => EntryFlush::Nothing,
        (None, true) => {
            return Err(Error::HostLacks(
                "Doorbell modes need a way to flush on entry, and none is proved on this KVM; see pvtlb doctor".to_owned(),
            ));
        }
    };
    let sweep = sweep(args, &modes, &probe, entry)?;
    let mut swept = sweep.run(system, signals);
    let report = report(args, &sweep, &probe, doorbell.then_some(entry), &swept);
    if let (Some(file), Some(path)) = (json, &args.json) {
        write_json(file, path, &report)?;
    }
    print(&if args.ktap { render::ktap(&report) } else { render::text(&report) })?;
    match (swept.ended_by.take(), report.verdict) {
        (Some(error), _) => Err(error),
        (None, Verdict::Fail | Verdict::Skip) => Err(Error::Verdict(report.reason)),
        (None, _) => Ok(()),
    }
}

fn create(path: &Path) -> Result<File, Error> {
    File::create(path).map_err(Error::output(path.display().to_string()))
}

fn sweep(
    args: &StressArgs,
    modes: &[Mode],
    probe: &Probe,
    entry: EntryFlush,
) -> Result<Sweep, Error> {
    let most = args.cpus.iter().copied().max().unwrap_or(1);
    let address_spaces = args.address_spaces.unwrap_or(match args.workload {
        Workload::Mprotect => PROCESSES,
        Workload::Remap | Workload::Unmap => 1,
    });
    Ok(Sweep {
        rows: rows(args)?,
        modes: modes.to_vec(),
        rounds: args.rounds,
        controls: !args.no_controls,
        recipe: Recipe {
            memory_bytes: args.guest.memory,
            pins: pins(&args.guest, most)?,
            workload: args.workload,
            apic: args.guest.apic,
            algorithm_cpl: args.guest.algorithm_cpl,
            mms: address_spaces,
            initiators: args.initiators,
            gap: args.gap,
            length: Duration::from_secs_f64(args.seconds),
            max_shootdowns: args.max_shootdowns,
            pages_per_vcpu: PAGES_PER_VCPU,
            completion: args.guest.completion,
            reports_preemption: probe.reports_preemption,
            entry,
            deadline: args.guest.deadline,
            tsc_khz: probe.tsc_khz,
            interprets_cpl_0: interprets_cpl_0(),
        },
    })
}

/// One row for each number of vCPUs, or for each number of targets that it has.
fn rows(args: &StressArgs) -> Result<Vec<Row>, Error> {
    if args.targets.is_empty() {
        return Ok(args.cpus.iter().map(|vcpus| Row { vcpus: *vcpus, targets: None }).collect());
    }
    let possible = |vcpus: u32| args.targets.iter().copied().filter(move |t| *t < vcpus);
    let row = |vcpus: u32| possible(vcpus).map(move |t| Row { vcpus, targets: Some(t) });
    let rows: Vec<Row> = args.cpus.iter().copied().flat_map(row).collect();
    match rows.is_empty() {
        false => Ok(rows),
        true => Err(Error::Usage(format!(
            "Targets {:?} leave no row, expected fewer targets than vCPUs ({:?})",
            args.targets, args.cpus
        ))),
    }
}

fn report(
    args: &StressArgs,
    sweep: &Sweep,
    probe: &Probe,
    entry: Option<EntryFlush>,
    swept: &Swept,
) -> StressReport {
    let recipe = &sweep.recipe;
    let (verdict, reason) = judge(swept);
    let most = sweep.rows.iter().map(|row| row.vcpus).max().unwrap_or(1);
    StressReport {
        schema: SCHEMA.to_owned(),
        command: std::env::args().collect(),
        host: HostFacts {
            kernel: kernel_release(),
            kvm: kvm_kind(),
            pcpus: recipe.pins.pcpus(most).len() as u32,
            entry_flush: entry.map(|way| way.to_string()),
            reports_preemption: Some(probe.reports_preemption),
        },
        settings: Settings {
            workload: recipe.workload.name().to_owned(),
            apic: recipe.apic.name().to_owned(),
            algorithm_cpl: recipe.algorithm_cpl,
            seconds: args.seconds,
            rounds: sweep.rounds,
            initiators: recipe.initiators,
            slice_us: recipe
                .pins
                .slice()
                .map(|slice| u64::try_from(slice.as_micros()).unwrap_or(u64::MAX)),
            address_spaces: recipe.mms,
            gap_us: u64::try_from(recipe.gap.as_micros()).unwrap_or(u64::MAX),
        },
        steps: swept.steps.clone(),
        controls: swept.controls.clone(),
        interrupted: matches!(swept.ended_by, Some(Error::Interrupted(_))),
        verdict,
        reason,
    }
}

fn write_json(file: File, path: &Path, report: &StressReport) -> Result<(), Error> {
    let failed = || Error::output(path.display().to_string());
    let mut out = BufWriter::new(file);
    serde_json::to_writer_pretty(&mut out, report).map_err(|e| failed()(e.into()))?;
    out.write_all(b"\n").and_then(|()| out.flush()).map_err(failed())
}
