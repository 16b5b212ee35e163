//! What a doorbell costs above a bare port exit: vCPU 0 alternates the two, while
//! all others are halted, so that there is nobody to interrupt.
//!
//! The doorbell's latencies go to `latency`, those of the bare exit to `latency_b`.

use core::sync::atomic::Ordering::Relaxed;

use pv_tlb::abi::debug_exit::Verdict;
use pv_tlb::abi::stress::EXIT_COST_PORT;
use pv_tlb::cpuset::CpuSet;
use pv_tlb::id::VcpuId;
use pv_tlb::invalidation::{Depth, Globals, Invalidation, Reach};

use super::{now, record};
use crate::params::{params, report};
use crate::{doorbell, ports};

/// Pairs timed if the parameters set no bound.
const DEFAULT_PAIRS: u64 = 10_000;

pub(crate) fn run() -> Verdict {
    let report = report();
    let others = CpuSet::first(params().vcpus).without(VcpuId(0));
    let ask = Invalidation {
        reach: Reach::Set(others),
        globals: Globals::Spare,
        depth: Depth::FinalOnly,
        ..Invalidation::EVERYTHING
    };
    let pairs = match params().max_shootdowns {
        0 => DEFAULT_PAIRS,
        bound => bound,
    };
    let start = now();
    report.start_tsc.store(start, Relaxed);
    for _ in 0..pairs {
        let before = now();
        ports::out32(EXIT_COST_PORT, 0);
        let between = now();
        if !doorbell::ring(&ask) {
            return Verdict::Fail;
        }
        let after = now();
        record(&report.latency_b, between - before);
        record(&report.latency, after - between);
        if params().duration_ticks != 0 && after - start > params().duration_ticks {
            break;
        }
    }
    report.end_tsc.store(now(), Relaxed);
    Verdict::Pass
}
