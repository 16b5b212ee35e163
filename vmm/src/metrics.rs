//! Counters, each owned by one vCPU thread and handed over when it ends.
//!
//! No sharing, so no ordering: a thread adds to its own values and returns them.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Longest latency the histograms keep apart: longer ones count as this.
const MAX_NS: u64 = 60_000_000_000;

/// A latency histogram in nanoseconds with three significant digits.
#[derive(Clone, Debug)]
pub struct LatencyNs(Histogram<u64>);

impl Default for LatencyNs {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, MAX_NS, 3).expect("fixed bounds are valid"))
    }
}

impl LatencyNs {
    /// Counts one latency.
    pub fn record(&mut self, latency: Duration) {
        self.record_ns(u64::try_from(latency.as_nanos()).unwrap_or(MAX_NS), 1);
    }

    /// Counts `count` latencies of `ns`.
    pub fn record_ns(&mut self, ns: u64, count: u64) {
        self.0.saturating_record_n(ns.max(1), count);
    }

    /// Adds another histogram's counts.
    pub fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("all histograms have the same bounds");
    }

    /// Number of latencies.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The latency that a share of `quantile` (0 to 1) does not exceed; 0 if none
    /// was counted.
    #[must_use]
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        if self.0.is_empty() { 0 } else { self.0.value_at_quantile(quantile) }
    }

    /// The longest latency; 0 if none was counted.
    #[must_use]
    pub fn max_ns(&self) -> u64 {
        if self.0.is_empty() { 0 } else { self.0.max() }
    }
}

/// Exits of one vCPU by kind.
#[derive(Clone, Debug, Default)]
pub struct ExitCounts {
    /// OUT and IN, doorbells included.
    pub port: u64,
    /// Loads and stores outside memory.
    pub mmio: u64,
    /// Kicks and other signals.
    pub interrupted: u64,
}

/// What the flush executor did on behalf of one vCPU.
#[derive(Clone, Debug, Default)]
pub struct FlushCounts {
    /// Doorbell requests performed.
    pub done: u64,
    /// Doorbell requests refused with a status.
    pub refused: u64,
    /// Targets interrupted by a signal.
    pub kicked: u64,
    /// Targets running that had been interrupted already.
    pub coalesced: u64,
    /// Targets that were in the host and will flush before they enter.
    pub deferred_in_host: u64,
    /// Targets that said that they idle.
    pub deferred_idle: u64,
    /// Targets that KVM had preempted, flagged by compare-and-swap.
    pub deferred_preempted: u64,
    /// Targets made certain by the membarrier.
    pub by_membarrier: u64,
    /// Targets waited for until they acknowledged.
    pub by_ack: u64,
    /// Flushes this vCPU did on entry for others or itself.
    pub served: u64,
    /// From the exit to the moment the flush held.
    pub wait: LatencyNs,
}

impl FlushCounts {
    /// Adds another vCPU's counts.
    pub fn merge(&mut self, other: &Self) {
        self.done += other.done;
        self.refused += other.refused;
        self.kicked += other.kicked;
        self.coalesced += other.coalesced;
        self.deferred_in_host += other.deferred_in_host;
        self.deferred_idle += other.deferred_idle;
        self.deferred_preempted += other.deferred_preempted;
        self.by_membarrier += other.by_membarrier;
        self.by_ack += other.by_ack;
        self.served += other.served;
        self.wait.merge(&other.wait);
    }
}

/// Everything one vCPU thread counted.
#[derive(Clone, Debug, Default)]
pub struct VcpuMetrics {
    /// Exits by kind.
    pub exits: ExitCounts,
    /// Flushes.
    pub flush: FlushCounts,
    /// KVM's paravirtual MSRs when the vCPU ended.
    pub paravirtual: ParavirtualUse,
}

/// What a guest had enabled on one vCPU: the MSRs by which it takes KVM's offers,
/// `None` where this KVM does not have or show one.
#[derive(Clone, Copy, Debug, Default)]
pub struct ParavirtualUse {
    /// `MSR_KVM_STEAL_TIME`.
    pub steal_time: Option<u64>,
    /// `MSR_KVM_SYSTEM_TIME_NEW`, the clock.
    pub clock: Option<u64>,
    /// `MSR_KVM_ASYNC_PF_EN`.
    pub async_pf: Option<u64>,
    /// `MSR_KVM_PV_EOI_EN`.
    pub pv_eoi: Option<u64>,
}

impl VcpuMetrics {
    /// Adds another vCPU's counts.
    pub fn merge(&mut self, other: &Self) {
        self.exits.port += other.exits.port;
        self.exits.mmio += other.exits.mmio;
        self.exits.interrupted += other.exits.interrupted;
        self.flush.merge(&other.flush);
    }
}
