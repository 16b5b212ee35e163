//! Publish, fence, re-read, kick, and only then complete.
//!
//! Runs on the initiator's vCPU thread, outside KVM_RUN. It holds no lock; while it
//! waits its own vCPU counts as "in host", so two vCPUs that flush each other do not
//! wait for each other's guest code.
//!
//! Ordering: post to every inbox; `SeqCst` fence; read each standing (Dekker with
//! [`RunState::enter`]). For the membarrier: the signal is sent before the barrier,
//! and KVM looks for signals before each entry, so that after the barrier no target
//! executes a guest instruction before it has come back to its thread's loop.
//!
//! [`RunState::enter`]: crate::flush::standing::RunState::enter

use std::hint;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::{Duration, Instant};

use pv_tlb::CpuSet;
use pv_tlb::abi::doorbell::GuestFlags;
use pv_tlb::ack::Ticket;
use pv_tlb::id::{FlushSeq, VcpuId};
use pv_tlb::invalidation::Invalidation;

use super::entry::flag_if_preempted;
use super::rule::MembarrierUse;
use super::{FlushSite, VcpuSlot};
use crate::flush::standing::Standing;
use crate::kvm::affinity::yield_now;
use crate::kvm::kick::Kicked;

/// Turns of a busy wait before the pCPU is offered to others.
const SPINS: u32 = 200;

/// What became of one flush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushOutcome {
    /// Targets interrupted by a signal of this flush.
    pub kicked: u32,
    /// Running targets that had been interrupted already.
    pub coalesced: u32,
    /// Targets in the host, which flush before they enter.
    pub deferred_in_host: u32,
    /// Targets that said that they idle, which flush by themselves when they wake.
    pub deferred_idle: u32,
    /// Targets that KVM had preempted.
    pub deferred_preempted: u32,
    /// Running targets made certain by the membarrier.
    pub by_membarrier: u32,
    /// Targets that acknowledged.
    pub by_ack: u32,
    /// From the call to the moment the flush held.
    pub waited: Duration,
}

/// Why a flush could not be completed.
#[derive(Debug, thiserror::Error)]
pub enum Unfinished {
    /// Some targets did not answer in time.
    #[error("{} did not answer flush {seq} of {initiator} within {deadline:?}", names(.late))]
    Late {
        /// Who asked.
        initiator: VcpuId,
        /// The flush.
        seq: FlushSeq,
        /// Who did not answer; boxed, because an error should be small.
        late: Box<CpuSet>,
        /// The deadline.
        deadline: Duration,
    },
    /// The VM is being stopped.
    #[error("The VM was stopped during a flush")]
    Stopped,
    /// The kernel failed us.
    #[error(transparent)]
    Kernel(#[from] crate::kvm::Error),
}

fn names(vcpus: &CpuSet) -> String {
    let ids: Vec<String> = vcpus.iter().map(|id| id.0.to_string()).collect();
    format!("vCPU {}", ids.join(", "))
}

/// Performs `ask` on behalf of `initiator`; on return the flush holds on every
/// target. `stop` is the VM's stop flag.
///
/// # Errors
/// If a target misses the deadline, the VM stops, or the kernel fails.
pub fn execute(
    site: &FlushSite,
    initiator: VcpuId,
    ask: &Invalidation,
    stop: &AtomicBool,
) -> Result<FlushOutcome, Unfinished> {
    let start = Instant::now();
    let targets = ask.reach.vcpus(initiator, &site.present);
    let seq = site.clock.next();
    for target in &targets {
        site.slot(target).post(seq);
    }
    // The initiator's half of Dekker; partner: the fence in `RunState::enter`.
    fence(Ordering::SeqCst);
    let mut outcome = FlushOutcome::default();
    let running = kick_running(site, targets.without(initiator), &mut outcome);
    let mut ticket = Ticket::new(seq, running);
    if !running.is_empty() {
        excuse_by_membarrier(site, &mut ticket, &mut outcome)?;
        let wait = Wait { site, initiator, start, stop };
        wait.for_acks(&mut ticket, &mut outcome)?;
    }
    outcome.waited = start.elapsed();
    Ok(outcome)
}

/// Interrupts every target that may run guest code; returns those whose flush is
/// not certain yet.
fn kick_running(site: &FlushSite, targets: CpuSet, outcome: &mut FlushOutcome) -> CpuSet {
    let mut uncertain = CpuSet::EMPTY;
    for target in &targets {
        let slot = site.slot(target);
        if slot.run.observe() == Standing::InHost {
            outcome.deferred_in_host += 1;
            continue;
        }
        if slot.idles() {
            outcome.deferred_idle += 1;
            continue;
        }
        if flag(site, slot) {
            outcome.deferred_preempted += 1;
            continue;
        }
        match slot.kick.kick() {
            Kicked::Sent => outcome.kicked += 1,
            Kicked::AlreadySent => outcome.coalesced += 1,
            // The thread ended after we looked: it will not enter the guest again.
            Kicked::NobodyThere => {
                outcome.deferred_in_host += 1;
                continue;
            }
        }
        uncertain.insert(target);
    }
    uncertain
}

fn flag(site: &FlushSite, slot: &VcpuSlot) -> bool {
    site.completion.flag_preempted && slot.steal.as_deref().is_some_and(flag_if_preempted)
}

/// Runs the membarrier and takes off the ticket every target for which it suffices.
fn excuse_by_membarrier(
    site: &FlushSite,
    ticket: &mut Ticket,
    outcome: &mut FlushOutcome,
) -> Result<(), Unfinished> {
    let declared = |slot: &VcpuSlot| match site.completion.membarrier {
        MembarrierUse::Never => false,
        MembarrierUse::Always => true,
        MembarrierUse::IfDeclared => slot.declares(GuestFlags::DECLARES_SECTIONS),
    };
    let candidates: CpuSet =
        ticket.owing().iter().filter(|target| declared(site.slot(*target))).collect();
    if candidates.is_empty() {
        return Ok(());
    }
    site.membarrier.run()?;
    for target in &candidates {
        let slot = site.slot(target);
        if slot.run.observe() != Standing::MidAccess && !in_section(site, slot) {
            ticket.excuse(target);
            outcome.by_membarrier += 1;
        }
    }
    Ok(())
}

/// True if the guest says that the host may be emulating an access of this vCPU.
fn in_section(site: &FlushSite, slot: &VcpuSlot) -> bool {
    site.completion.membarrier == MembarrierUse::IfDeclared
        && slot.page.as_deref().is_none_or(|page| {
            // Partner: the guest's store before its section. The membarrier made the
            // target execute a full barrier after anything it had stored by then,
            // so a section entered before the barrier is seen here.
            page.guest.section.load(Ordering::Acquire) != 0
        })
}

struct Wait<'a> {
    site: &'a FlushSite,
    initiator: VcpuId,
    start: Instant,
    stop: &'a AtomicBool,
}

impl Wait<'_> {
    /// Waits until nobody owes an ack. A target that KVM preempts meanwhile is
    /// flagged and excused.
    fn for_acks(&self, ticket: &mut Ticket, outcome: &mut FlushOutcome) -> Result<(), Unfinished> {
        let asked = ticket.owing().len();
        let mut flagged = 0;
        let mut turns = 0_u32;
        while !ticket.settle(|target| &self.site.slot(target).inbox) {
            let owing = *ticket.owing();
            for target in &owing {
                if flag(self.site, self.site.slot(target)) {
                    ticket.excuse(target);
                    flagged += 1;
                }
            }
            // Partner: the store in the VM's stop; late is only slower.
            if self.stop.load(Ordering::Relaxed) {
                return Err(Unfinished::Stopped);
            }
            if self.start.elapsed() > self.site.deadline {
                return Err(self.late(ticket));
            }
            turns += 1;
            if turns < SPINS { hint::spin_loop() } else { yield_now() }
        }
        outcome.deferred_preempted += flagged;
        outcome.by_ack += asked - flagged;
        Ok(())
    }

    fn late(&self, ticket: &Ticket) -> Unfinished {
        Unfinished::Late {
            initiator: self.initiator,
            seq: ticket.seq(),
            late: Box::new(*ticket.owing()),
            deadline: self.site.deadline,
        }
    }
}

#[cfg(test)]
#[path = "execute/tests.rs"]
mod tests;
