//! From the reports in guest memory and the threads' counts to report types.
//!
//! The guest is not trusted: numbers are taken as they are, sums saturate, and an
//! unknown kind of violation is shown by number.

use std::sync::atomic::Ordering::Relaxed;

use pv_tlb::abi::stress::{
    BUCKETS, RECORDS, VcpuReport, ViolationKind, ViolationRecord, bucket_floor,
};
use pvtlb_api::stress::{GuestCounts, Latency, MonitorCounts, Round, Violation};

use super::step::{Outcome, sum};
use crate::memory::View;
use crate::metrics::{LatencyNs, VcpuMetrics};

/// One round in numbers.
#[derive(Debug)]
pub struct Gathered {
    /// For the report.
    pub round: Round,
    /// For merging over rounds.
    pub latency: LatencyNs,
    /// The same without stolen time.
    pub unstolen: LatencyNs,
    /// Sums over the guest's vCPUs.
    pub guest: GuestCounts,
    /// Sums over the monitor's threads.
    pub metrics: VcpuMetrics,
    /// Violations kept in full.
    pub violations: Vec<Violation>,
}

/// Reads everything out of a finished round.
#[must_use]
pub fn gather(outcome: &Outcome) -> Gathered {
    let reports = &outcome.reports;
    let khz = outcome.tsc_khz;
    let latency = histogram(reports, khz, |report, i| report.latency[i].load(Relaxed));
    let unstolen = histogram(reports, khz, |report, i| report.latency_b[i].load(Relaxed));
    let mut metrics = VcpuMetrics::default();
    for vcpu in &outcome.metrics {
        metrics.merge(vcpu);
    }
    let guest = guest_counts(reports);
    Gathered {
        round: Round {
            seconds: seconds(reports, khz),
            shootdowns: guest.shootdowns,
            latency: Latency { max_ns: max_ns(reports, khz), ..summary(&latency) },
            latency_ns: series(reports, khz),
        },
        latency,
        unstolen,
        guest,
        metrics,
        violations: violations(reports),
    }
}

/// The figures of a distribution.
#[must_use]
pub fn summary(latency: &LatencyNs) -> Latency {
    Latency {
        count: latency.count(),
        p50_ns: latency.quantile_ns(0.5),
        p99_ns: latency.quantile_ns(0.99),
        max_ns: latency.max_ns(),
    }
}

/// The monitor's counts as report type.
#[must_use]
pub fn monitor_counts(metrics: &VcpuMetrics) -> MonitorCounts {
    MonitorCounts {
        port_exits: metrics.exits.port,
        kick_exits: metrics.exits.interrupted,
        doorbells: metrics.flush.done,
        refused: metrics.flush.refused,
        kicked: metrics.flush.kicked,
        coalesced: metrics.flush.coalesced,
        deferred_in_host: metrics.flush.deferred_in_host,
        deferred_idle: metrics.flush.deferred_idle,
        deferred_preempted: metrics.flush.deferred_preempted,
        by_membarrier: metrics.flush.by_membarrier,
        by_ack: metrics.flush.by_ack,
        served: metrics.flush.served,
        wait: summary(&metrics.flush.wait),
    }
}

/// Adds `b` to `a`.
pub fn add(a: &mut GuestCounts, b: &GuestCounts) {
    a.shootdowns += b.shootdowns;
    a.checks += b.checks;
    a.violations += b.violations;
    a.denied += b.denied;
    a.ipis_sent += b.ipis_sent;
    a.icr_writes += b.icr_writes;
    a.served += b.served;
    a.page_flushes += b.page_flushes;
    a.full_flushes += b.full_flushes;
    a.doorbells += b.doorbells;
    a.flagged += b.flagged;
    a.skipped += b.skipped;
    a.switches += b.switches;
}

fn guest_counts(reports: &[View<VcpuReport>]) -> GuestCounts {
    GuestCounts {
        shootdowns: sum(reports, |r| &r.shootdowns),
        checks: sum(reports, |r| &r.checks),
        violations: sum(reports, |r| &r.violations),
        denied: sum(reports, |r| &r.denied),
        ipis_sent: sum(reports, |r| &r.ipis_sent),
        icr_writes: sum(reports, |r| &r.icr_writes),
        served: sum(reports, |r| &r.served),
        page_flushes: sum(reports, |r| &r.page_flushes),
        full_flushes: sum(reports, |r| &r.full_flushes),
        doorbells: sum(reports, |r| &r.doorbells),
        flagged: sum(reports, |r| &r.flagged),
        skipped: sum(reports, |r| &r.skipped),
        switches: sum(reports, |r| &r.switches),
    }
}

fn to_ns(ticks: u64, khz: u32) -> u64 {
    let ns = u128::from(ticks) * 1_000_000 / u128::from(khz.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// From the first start to the last end among vCPUs that did anything.
fn seconds(reports: &[View<VcpuReport>], khz: u32) -> f64 {
    let busy = || reports.iter().filter(|report| report.shootdowns.load(Relaxed) > 0);
    let start = busy().map(|report| report.start_tsc.load(Relaxed)).min().unwrap_or(0);
    let end = busy().map(|report| report.end_tsc.load(Relaxed)).max().unwrap_or(0);
    to_ns(end.saturating_sub(start), khz) as f64 / 1e9
}

/// The longest latency, which the guest keeps exactly.
fn max_ns(reports: &[View<VcpuReport>], khz: u32) -> u64 {
    let ticks = reports.iter().map(|report| report.max_ticks.load(Relaxed)).max();
    to_ns(ticks.unwrap_or(0), khz)
}

/// The middle of a bucket, in nanoseconds: the error is half a bucket either way.
fn middle_ns(index: usize, khz: u32) -> u64 {
    let (floor, next) = (bucket_floor(index), bucket_floor(index + 1));
    to_ns(floor + (next - floor) / 2, khz)
}

fn counts(
    reports: &[View<VcpuReport>],
    count: impl Fn(&VcpuReport, usize) -> u32,
) -> impl Iterator<Item = (usize, u64)> {
    let total = move |i: usize| reports.iter().map(|report| u64::from(count(report, i))).sum();
    let counted: Vec<(usize, u64)> = (0..BUCKETS).map(|i| (i, total(i))).collect();
    counted.into_iter().filter(|(_, n)| *n > 0)
}

/// A histogram of all reports: `count` gives a report's bucket.
pub fn histogram(
    reports: &[View<VcpuReport>],
    khz: u32,
    count: impl Fn(&VcpuReport, usize) -> u32,
) -> LatencyNs {
    let mut latency = LatencyNs::default();
    for (index, n) in counts(reports, count) {
        latency.record_ns(middle_ns(index, khz), n);
    }
    latency
}

fn series(reports: &[View<VcpuReport>], khz: u32) -> Vec<(u64, u64)> {
    let count = |report: &VcpuReport, i: usize| report.latency[i].load(Relaxed);
    counts(reports, count).map(|(index, n)| (middle_ns(index, khz), n)).collect()
}

fn violations(reports: &[View<VcpuReport>]) -> Vec<Violation> {
    let mut all = Vec::new();
    for (vcpu, report) in reports.iter().enumerate() {
        let kept = (report.violations.load(Relaxed) as usize).min(RECORDS);
        all.extend(report.records[..kept].iter().map(|record| violation(vcpu as u32, record)));
    }
    all
}

fn violation(vcpu: u32, record: &ViolationRecord) -> Violation {
    let kind = match ViolationKind::try_from(record.kind.load(Relaxed)) {
        Ok(ViolationKind::StaleRead) => "stale read".to_owned(),
        Ok(ViolationKind::FreedFrame) => "access to a freed frame".to_owned(),
        Ok(ViolationKind::StaleWrite) => "write after the right was taken away".to_owned(),
        Err(raw) => format!("unknown kind {raw}"),
    };
    Violation {
        kind,
        vcpu,
        owner: record.owner.load(Relaxed),
        address: record.address.load(Relaxed),
        expected: record.expected.load(Relaxed),
        seen: record.seen.load(Relaxed),
        flush: record.flush.load(Relaxed),
    }
}
