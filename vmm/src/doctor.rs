//! `pvtlb doctor`: what this host can do for each mode, shown with evidence.

use std::collections::BTreeSet;
use std::fs;

use pv_tlb::abi::kvm::{FEATURE_PV_TLB_FLUSH, FEATURE_STEAL_TIME};
use pv_tlb::id::PcpuId;
use pvtlb_api::doctor::{CapabilityFact, DoctorReport, EntryFlushFact, Fact, ModeFact};

use crate::error::Error;
use crate::flush::entry::EntryFlush;
use crate::flush::rule::{Completion, CompletionChoice};
use crate::kvm::affinity;
use crate::kvm::cap::Capability;
use crate::kvm::cpuid::CpuidTable;
use crate::kvm::membarrier::Membarrier;
use crate::kvm::system::System;
use crate::probe::{Probe, trials_per_way};
use crate::stress::render::table;

const SCHEMA: &str = "pvtlb-doctor/1";

/// The release of the running kernel.
#[must_use]
pub fn kernel_release() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    if text.is_empty() { "unknown".to_owned() } else { text.trim().to_owned() }
}

/// True if the host's CPU has one of these flags.
fn cpu_has(flags: &[&str]) -> bool {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    line.split_whitespace().any(|flag| flags.contains(&flag))
}

/// True if this KVM has no hardware to run guest code at CPL 0, and interprets it.
#[must_use]
pub fn interprets_cpl_0() -> bool {
    !cpu_has(&["vmx", "svm"])
}

/// Which kind of KVM this is, from the host's CPU flags.
#[must_use]
pub fn kvm_kind() -> String {
    if interprets_cpl_0() {
        return "software KVM: no VMX or SVM, guest CPL 0 code may be interpreted".to_owned();
    }
    let kind = if cpu_has(&["vmx"]) { "VMX" } else { "SVM" };
    let nested = cpu_has(&["hypervisor"]);
    let host = if nested { " (nested: the host is itself a guest)" } else { "" };
    format!("hardware KVM on {kind}{host}")
}

/// Examines the host.
///
/// # Errors
/// If there is no usable KVM.
pub fn examine(system: &System) -> Result<DoctorReport, Error> {
    let probe = Probe::run(system)?;
    let table = CpuidTable::supported(system)?;
    let pcpus = affinity::allowed()?;
    Ok(DoctorReport {
        schema: SCHEMA.to_owned(),
        facts: facts(system, &probe, &table, &pcpus),
        capabilities: Capability::ALL
            .iter()
            .map(|cap| CapabilityFact {
                name: cap.name().to_owned(),
                value: system.capability(*cap),
                purpose: cap.purpose().to_owned(),
            })
            .collect(),
        entry_flush: entry_flush(&probe),
        modes: modes(&probe, &table),
    })
}

fn facts(
    system: &System,
    probe: &Probe,
    table: &CpuidTable,
    pcpus: &BTreeSet<PcpuId>,
) -> Vec<Fact> {
    let fact = |name: &str, value: String| Fact { name: name.to_owned(), value };
    let yes_no = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
    let membarrier = match Membarrier::register() {
        Ok(_) => "yes".to_owned(),
        Err(error) => format!("no: {error}"),
    };
    let auto = Completion::new(CompletionChoice::Auto, probe.reports_preemption);
    vec![
        fact("kernel", kernel_release()),
        fact("KVM", kvm_kind()),
        fact("pCPUs this process may use", pcpus.len().to_string()),
        fact("most vCPUs per VM", system.max_vcpus().to_string()),
        fact("guest TSC", format!("{} kHz", probe.tsc_khz)),
        fact("KVM feature bits", format!("{:#010x}", table.kvm_features())),
        fact("reports preemption", yes_no(probe.reports_preemption)),
        fact("expedited membarrier", membarrier),
        fact("perf_event_paranoid", perf_paranoid()),
        fact(
            "flush on entry",
            probe.entry.map_or_else(|| "none proved".to_owned(), |way| way.to_string()),
        ),
        fact("completion under auto", auto.name().to_owned()),
        fact("because", Completion::reason(probe.reports_preemption).to_owned()),
    ]
}

fn perf_paranoid() -> String {
    match fs::read_to_string("/proc/sys/kernel/perf_event_paranoid") {
        Ok(level) => level.trim().to_owned(),
        Err(error) => format!("unknown: {error}"),
    }
}

fn entry_flush(probe: &Probe) -> Vec<EntryFlushFact> {
    probe
        .trials
        .iter()
        .map(|trial| EntryFlushFact {
            way: trial.way.to_string(),
            control: EntryFlush::CONTROLS.contains(&trial.way),
            trials: trials_per_way(),
            stale_before: trial.stale_before,
            fresh_after: trial.fresh_after,
            kvm_flushes: trial.kvm_flushes,
            conclusion: probe.conclusion(trial).to_owned(),
        })
        .collect()
}

fn modes(probe: &Probe, table: &CpuidTable) -> Vec<ModeFact> {
    let mode =
        |name: &str, works: bool, reason: String| ModeFact { mode: name.to_owned(), works, reason };
    let needed = FEATURE_PV_TLB_FLUSH | FEATURE_STEAL_TIME;
    let kvm = match (table.kvm_features() & needed == needed, probe.reports_preemption) {
        (false, _) => mode("kvm", false, format!("KVM lacks feature bits {needed:#x}")),
        (true, true) => mode("kvm", true, "KVM marks preempted vCPUs".to_owned()),
        (true, false) => mode(
            "kvm",
            true,
            "offered, but this KVM never marks a vCPU preempted, so guests always send IPIs"
                .to_owned(),
        ),
    };
    let doorbell = match probe.entry {
        Some(way) => mode("doorbell", true, format!("flush on entry by {way}")),
        None => mode("doorbell", false, "no way to flush on entry is proved".to_owned()),
    };
    let later = |name| mode(name, false, "not there yet".to_owned());
    vec![
        mode("off", true, "hides KVM's flush features".to_owned()),
        kvm,
        doorbell,
        later("invlpgb"),
        later("rar"),
        later("hyperv"),
    ]
}

/// The report for a person.
#[must_use]
pub fn text(report: &DoctorReport) -> String {
    let rows = |align: &str, rows: Vec<Vec<String>>, header: &[&str]| {
        let header: Vec<String> = header.iter().map(|h| (*h).to_owned()).collect();
        table(align, &header, &rows)
    };
    let facts = report.facts.iter().map(|f| format!("{:28} {}", f.name, f.value));
    let facts: Vec<String> = facts.collect();
    let ways = report.entry_flush.iter().map(|w| {
        vec![
            w.way.clone(),
            format!("{}/{}", w.stale_before, w.trials),
            format!("{}/{}", w.fresh_after, w.trials),
            w.kvm_flushes.map_or_else(|| "-".to_owned(), |n| n.to_string()),
            w.conclusion.clone(),
        ]
    });
    let capabilities = report
        .capabilities
        .iter()
        .map(|c| vec![c.name.clone(), c.value.to_string(), c.purpose.clone()]);
    let modes = report.modes.iter().map(|m| {
        let works = if m.works { "works" } else { "no" };
        vec![m.mode.clone(), works.to_owned(), m.reason.clone()]
    });
    format!(
        "{}\n\nFlush on entry, tried with a mapping kept in use\n{}\n\nKVM capabilities\n{}\n\nModes of --pv-tlb\n{}\n",
        facts.join("\n"),
        rows(
            "lrrrl",
            ways.collect(),
            &["way", "stale before", "fresh after", "KVM flushes", "conclusion"]
        ),
        rows("lrl", capabilities.collect(), &["capability", "value", "used for"]),
        rows("l", modes.collect(), &["mode", "works", "why"]),
    )
}
