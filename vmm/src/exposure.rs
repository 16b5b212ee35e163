//! The exposure report of a Linux guest: which features it was offered, and by which
//! evidence it used them, so that nothing is silently off.
//!
//! Read after the run: CPUID as it was offered, MSRs as the guest left them, and
//! KVM's own statistics. No state.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::kvm::features::{FLUSH, Feature};
use crate::kvm::stats::Statistics;
use crate::metrics::VcpuMetrics;

/// Schema of the JSON.
pub const SCHEMA: &str = "pvtlb-run/1";

/// Bit 0 of KVM's MSRs: enabled.
const ENABLED: u64 = 1;
/// KVM's statistics that tell of paravirtual calls and flushes.
const STATISTICS: [&str; 7] = [
    "exits",
    "halt_exits",
    "hypercalls",
    "directed_yield_attempted",
    "preemption_reported",
    "tlb_flush",
    "irq_injections",
];

/// What is known of a run.
#[derive(Debug)]
pub struct Exposure<'a> {
    /// Every feature with a name, and whether CPUID showed it.
    pub offered: Vec<(Feature, bool)>,
    /// KVM's statistics of each vCPU, where it has them.
    pub statistics: Vec<Option<Statistics>>,
    /// What each vCPU thread counted.
    pub metrics: &'a [VcpuMetrics],
}

impl Exposure<'_> {
    /// Number of vCPUs on which the guest had enabled an MSR.
    fn enabled(&self, msr: impl Fn(&VcpuMetrics) -> Option<u64>) -> usize {
        self.metrics.iter().filter(|m| msr(m).is_some_and(|value| value & ENABLED != 0)).count()
    }

    /// Sum of a statistic over all vCPUs; `None` if KVM does not have it.
    fn sum(&self, name: &str) -> Option<u64> {
        let read = |s: &Option<Statistics>| s.as_ref().and_then(|s| s.read(name));
        self.statistics.iter().map(read).sum()
    }

    /// What shows that `feature` was used, and whether it shows that.
    fn evidence(&self, feature: &str) -> (Option<bool>, String) {
        let vcpus = self.metrics.len();
        let counted =
            |name: &str| self.sum(name).map_or("not counted".to_owned(), |n| n.to_string());
        let on = |what: &str, count: usize| {
            (Some(count > 0), format!("{what} enabled on {count} of {vcpus} vCPUs at the end"))
        };
        let steal = self.enabled(|m| m.paravirtual.steal_time);
        match feature {
            "steal_time" => on("MSR_KVM_STEAL_TIME", steal),
            // Linux asks for a flush by a bit in the record, which makes no exit.
            "pv_tlb_flush" if steal == 0 => (Some(false), "no steal-time record".to_owned()),
            "pv_tlb_flush" if vcpus == 1 => {
                (Some(false), "one vCPU: Linux does not use it".to_owned())
            }
            "pv_tlb_flush" => (
                None,
                format!(
                    "possible: records on {steal} of {vcpus} vCPUs; its use makes no exit; KVM flushed {} times for any reason",
                    counted("tlb_flush")
                ),
            ),
            "pv_send_ipi" | "pv_unhalt" => {
                let calls = self.sum("hypercalls");
                let none = calls.map(|n| n > 0).filter(|used| !used);
                (none, format!("hypercalls of any kind: {}", counted("hypercalls")))
            }
            "pv_sched_yield" => {
                let yields = self.sum("directed_yield_attempted");
                (
                    yields.map(|n| n > 0),
                    format!("directed yields: {}", counted("directed_yield_attempted")),
                )
            }
            "kvmclock" => on("MSR_KVM_SYSTEM_TIME_NEW", self.enabled(|m| m.paravirtual.clock)),
            "async_pf" => on("MSR_KVM_ASYNC_PF_EN", self.enabled(|m| m.paravirtual.async_pf)),
            "pv_eoi" => on("MSR_KVM_PV_EOI_EN", self.enabled(|m| m.paravirtual.pv_eoi)),
            _ => (None, String::new()),
        }
    }

    /// The features that take part in flushing, and the clock, as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::from("pvtlb: feature          offered  used     evidence\n");
        let shown = FLUSH.iter().map(|f| f.name).chain(["kvmclock", "async_pf", "pv_eoi"]);
        for name in shown {
            let offered = self.offered.iter().any(|(f, offered)| f.name == name && *offered);
            let (used, evidence) = self.evidence(name);
            let offered = if offered { "yes" } else { "no" };
            // Writing to a string cannot fail.
            let _ = writeln!(out, "pvtlb: {name:<15}  {offered:<7}  {:<7}  {evidence}", word(used));
        }
        out
    }

    /// Every feature with a name.
    #[must_use]
    pub fn features(&self) -> Value {
        let row = |(feature, offered): &(Feature, bool)| {
            let (used, evidence) = self.evidence(feature.name);
            json!({"name": feature.name, "offered": offered, "used": used, "evidence": evidence})
        };
        self.offered.iter().map(row).collect()
    }

    /// MSRs, exits and KVM's statistics of each vCPU.
    #[must_use]
    pub fn vcpus(&self) -> Value {
        let statistics = |s: &Option<Statistics>| -> Value {
            let read = |name: &&str| {
                let value = s.as_ref().and_then(|s| s.read(name));
                ((*name).to_owned(), json!(value))
            };
            Value::Object(STATISTICS.iter().map(read).collect())
        };
        let row = |(m, s): (&VcpuMetrics, &Option<Statistics>)| {
            json!({
                "msr_steal_time": m.paravirtual.steal_time,
                "msr_clock": m.paravirtual.clock,
                "msr_async_pf": m.paravirtual.async_pf,
                "msr_pv_eoi": m.paravirtual.pv_eoi,
                "exits_port": m.exits.port,
                "exits_mmio": m.exits.mmio,
                "exits_interrupted": m.exits.interrupted,
                "kvm": statistics(s),
            })
        };
        self.metrics.iter().zip(&self.statistics).map(row).collect()
    }
}

fn word(used: Option<bool>) -> &'static str {
    match used {
        Some(true) => "yes",
        Some(false) => "no",
        None => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::ParavirtualUse;

    fn metrics(steal_time: u64) -> VcpuMetrics {
        let paravirtual = ParavirtualUse { steal_time: Some(steal_time), ..Default::default() };
        VcpuMetrics { paravirtual, ..VcpuMetrics::default() }
    }

    fn used(name: &str, metrics: &[VcpuMetrics]) -> Option<bool> {
        let exposure = Exposure { offered: vec![], statistics: vec![], metrics };
        exposure.evidence(name).0
    }

    #[test]
    fn an_offer_that_the_guest_did_not_take_is_reported_as_unused() {
        assert_eq!(used("steal_time", &[metrics(0), metrics(0)]), Some(false));
        assert_eq!(used("pv_tlb_flush", &[metrics(0), metrics(0)]), Some(false));
        assert_eq!(used("steal_time", &[metrics(0x1001), metrics(0)]), Some(true));
        assert_eq!(used("pv_tlb_flush", &[metrics(0x1001), metrics(0x1041)]), None);
        assert_eq!(used("pv_tlb_flush", &[metrics(0x1001)]), Some(false), "one vCPU");
    }

    #[test]
    fn the_text_names_every_flush_feature_and_what_was_offered() {
        let offered = vec![(FLUSH[0], true), (FLUSH[1], false)];
        let text = Exposure { offered, statistics: vec![], metrics: &[metrics(0)] }.text();
        for feature in FLUSH {
            assert!(text.contains(feature.name), "{text}");
        }
        let line = |name: &str| text.lines().find(|l| l.contains(name)).unwrap_or_default();
        assert!(line("pv_tlb_flush").contains("yes") && !line("steal_time ").contains("yes"));
    }
}
