//! The monitor's side of a doorbell, as the initiator's thread executes it.
//!
//! The same steps as the monitor's executor: post to every target, fence, read who
//! may run, signal those, wait for their acks. It runs on the initiator's vCPU, which
//! executes no guest code and takes no interrupt meanwhile.

use pv_tlb::CpuSet;

use super::access::Access;
use super::replay::Recorder;

/// In which order, and how the flush counts as complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Post, look, signal, wait for acks.
    Acks,
    /// Post, look, signal, membarrier.
    Membarrier,
    /// The look comes before the post.
    LookFirst,
    /// The membarrier comes before the signals.
    MembarrierFirst,
    /// Nobody is signalled.
    NoSignal,
}

/// Returns once no target can execute guest code before it has flushed.
pub(super) fn ring(p: &Recorder<'_>, targets: &CpuSet) {
    p.step(Access::InCall(true));
    let others = targets.without(p.me);
    let runs = |target: &pv_tlb::id::VcpuId| p.step(Access::Observe(*target)) != 0;
    let early: Option<CpuSet> =
        (p.host == Order::LookFirst).then(|| others.iter().filter(runs).collect());
    for target in targets {
        p.step(Access::Post(target));
    }
    let running = early.unwrap_or_else(|| others.iter().filter(runs).collect());
    if !running.is_empty() {
        if p.host == Order::MembarrierFirst {
            p.step(Access::Membarrier);
        }
        if p.host != Order::NoSignal {
            for target in &running {
                p.step(Access::Kick(target));
            }
        }
        match p.host {
            Order::Membarrier => {
                p.step(Access::Membarrier);
            }
            Order::MembarrierFirst => {}
            Order::Acks | Order::LookFirst | Order::NoSignal => wait(p, &running),
        }
    }
    p.step(Access::InCall(false));
}

fn wait(p: &Recorder<'_>, running: &CpuSet) {
    for target in running {
        while p.step(Access::Waiting(target)) != 0 {
            p.step(Access::Relax);
        }
    }
}
