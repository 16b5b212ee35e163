//! The report of `pvtlb stress`.

use serde::{Deserialize, Serialize};

use crate::Verdict;

/// Name and version of this layout.
pub const SCHEMA: &str = "pvtlb-stress/1";

/// A whole sweep, or the part of it that was done when it was interrupted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StressReport {
    /// [`SCHEMA`].
    pub schema: String,
    /// Arguments that reproduce the run.
    pub command: Vec<String>,
    /// Where it ran.
    pub host: HostFacts,
    /// What was run.
    pub settings: Settings,
    /// One per number of vCPUs and mode, in the order of the table.
    pub steps: Vec<Step>,
    /// Negative controls.
    pub controls: Vec<Control>,
    /// True if a signal ended the sweep early.
    pub interrupted: bool,
    /// The verdict of it all.
    pub verdict: Verdict,
    /// Why, in one line.
    pub reason: String,
}

/// Facts of the host that the numbers depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFacts {
    /// Kernel release.
    pub kernel: String,
    /// Kind of KVM.
    pub kvm: String,
    /// pCPUs that vCPU threads could use.
    pub pcpus: u32,
    /// How a vCPU flushes on entry, if the doorbell was used.
    pub entry_flush: Option<String>,
    /// Whether KVM reports preemption in the steal-time record.
    pub reports_preemption: Option<bool>,
}

/// What was run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Workload.
    pub workload: String,
    /// APIC interface of the guest.
    pub apic: String,
    /// Privilege level of the guest's page-table writes and flush algorithms.
    pub algorithm_cpl: u32,
    /// Length of one round in seconds.
    pub seconds: f64,
    /// Rounds of each step, interleaved over the modes.
    pub rounds: u32,
    /// vCPUs that flush; the others read. `None`: all.
    pub initiators: Option<u32>,
    /// Time slices that vCPU threads asked for, in microseconds. `None`: default.
    pub slice_us: Option<u64>,
    /// Address spaces.
    pub address_spaces: u32,
    /// Least pause between two shootdowns of one vCPU, in microseconds.
    pub gap_us: u64,
}

/// One number of vCPUs with one mode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// vCPUs.
    pub vcpus: u32,
    /// Targets of a flush. `None`: all other vCPUs of the address space.
    pub targets: Option<u32>,
    /// Mode.
    pub mode: String,
    /// How targets counted as flushed, where the monitor flushed.
    pub completion: Option<String>,
    /// Each round.
    pub rounds: Vec<Round>,
    /// Median over the rounds.
    pub shootdowns_per_second: f64,
    /// The same, over that of mode `ipi` with as many vCPUs, if that was run.
    pub ratio_to_ipi: Option<f64>,
    /// Initiator latency over all rounds.
    pub latency: Latency,
    /// Initiator latency without the time its own vCPU waited for a pCPU.
    pub latency_unstolen: Latency,
    /// Sums over all rounds and vCPUs of the guest.
    pub guest: GuestCounts,
    /// Sums over all rounds and vCPUs of the monitor.
    pub monitor: MonitorCounts,
    /// The violations that were kept in full.
    pub violations: Vec<Violation>,
}

/// One round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// From the first to the last operation, in seconds.
    pub seconds: f64,
    /// Shootdowns completed.
    pub shootdowns: u64,
    /// Initiator latency.
    pub latency: Latency,
    /// The raw series: latency in nanoseconds and how often it was seen.
    pub latency_ns: Vec<(u64, u64)>,
}

/// A latency distribution, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// Samples.
    pub count: u64,
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Longest.
    pub max_ns: u64,
}

/// What the guest counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestCounts {
    /// Shootdowns completed.
    pub shootdowns: u64,
    /// Verified accesses.
    pub checks: u64,
    /// Accesses that found a broken promise.
    pub violations: u64,
    /// Accesses that faulted because the page was absent or read-only.
    pub denied: u64,
    /// IPIs sent, one per target.
    pub ipis_sent: u64,
    /// Writes to the APIC's command register.
    pub icr_writes: u64,
    /// Requests served for others.
    pub served: u64,
    /// Single-page invalidations.
    pub page_flushes: u64,
    /// Whole-context invalidations.
    pub full_flushes: u64,
    /// Doorbells rung.
    pub doorbells: u64,
    /// Targets flagged in KVM's preempted byte.
    pub flagged: u64,
    /// Targets skipped as lazy or elsewhere.
    pub skipped: u64,
    /// Address-space switches.
    pub switches: u64,
}

/// What the monitor counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MonitorCounts {
    /// Port exits, doorbells included.
    pub port_exits: u64,
    /// Exits because of a kick.
    pub kick_exits: u64,
    /// Doorbell requests performed.
    pub doorbells: u64,
    /// Doorbell requests refused.
    pub refused: u64,
    /// Targets interrupted.
    pub kicked: u64,
    /// Running targets that had been interrupted already.
    pub coalesced: u64,
    /// Targets in the host: nothing to do now.
    pub deferred_in_host: u64,
    /// Targets that idled by their own word: nothing to do now.
    pub deferred_idle: u64,
    /// Targets off their pCPU, flagged.
    pub deferred_preempted: u64,
    /// Running targets made certain by a membarrier.
    pub by_membarrier: u64,
    /// Targets waited for.
    pub by_ack: u64,
    /// Flushes on entry.
    pub served: u64,
    /// From the exit to the moment the flush held.
    pub wait: Latency,
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// What kind.
    pub kind: String,
    /// The vCPU that saw it.
    pub vcpu: u32,
    /// The vCPU that owns the page.
    pub owner: u32,
    /// Address used.
    pub address: u64,
    /// Lowest stamp allowed.
    pub expected: u64,
    /// Stamp seen.
    pub seen: u64,
    /// The owner's flush that had returned.
    pub flush: u64,
}

/// A strategy that must be caught.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Control {
    /// Strategy.
    pub mode: String,
    /// vCPUs.
    pub vcpus: u32,
    /// Shootdowns that it pretended.
    pub shootdowns: u64,
    /// Violations seen.
    pub violations: u64,
    /// XFAIL if it was caught, FAIL if not, SKIP if it could not be tried.
    pub verdict: Verdict,
    /// Why, if it is not XFAIL.
    pub reason: Option<String>,
    /// The first violation.
    pub example: Option<Violation>,
}
