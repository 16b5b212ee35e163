//! From a doorbell exit to an answer in the guest's page.
//!
//! Runs on the vCPU thread that rang. A guest's mistake is a status in its page,
//! never an error of the monitor.

use std::sync::atomic::{AtomicBool, Ordering};

use pv_tlb::abi::doorbell::{COMMAND_FLUSH, DoorbellPage, Status};
use pv_tlb::id::VcpuId;

use super::FlushSite;
use super::execute::{FlushOutcome, Unfinished, execute};
use crate::metrics::FlushCounts;

/// Serves one OUT of `size` bytes with value `command` by `vcpu`.
///
/// # Errors
/// If the flush cannot be completed; the guest's page then says `TimedOut`.
pub fn doorbell(
    site: &FlushSite,
    vcpu: VcpuId,
    size: u8,
    command: u32,
    stop: &AtomicBool,
    counts: &mut FlushCounts,
) -> Result<(), Unfinished> {
    let Some(page) = site.slot(vcpu).page.as_deref() else {
        counts.refused += 1;
        return Ok(());
    };
    let valid = size == 4 && command == COMMAND_FLUSH;
    let request = if valid { page.request.read(&site.present) } else { Err(Status::BadCommand) };
    match request {
        Ok((ask, seq)) => match execute(site, vcpu, &ask, stop) {
            Ok(outcome) => {
                count(counts, &outcome);
                answer(page, Status::Done, seq.0, &outcome);
                Ok(())
            }
            Err(unfinished) => {
                answer(page, Status::TimedOut, seq.0, &FlushOutcome::default());
                Err(unfinished)
            }
        },
        Err(status) => {
            counts.refused += 1;
            answer(
                page,
                status,
                page.request.seq.load(Ordering::Relaxed),
                &FlushOutcome::default(),
            );
            Ok(())
        }
    }
}

/// Partner of every store: the guest's loads after the OUT, ordered by the entry.
fn answer(page: &DoorbellPage, status: Status, seq: u64, outcome: &FlushOutcome) {
    let response = &page.response;
    let deferred = outcome.deferred_in_host + outcome.deferred_idle + outcome.deferred_preempted;
    response.kicked.store(outcome.kicked + outcome.coalesced, Ordering::Relaxed);
    response.deferred.store(deferred, Ordering::Relaxed);
    response.seq.store(seq, Ordering::Relaxed);
    let waited_ns = u64::try_from(outcome.waited.as_nanos()).unwrap_or(u64::MAX);
    response.waited_ns.store(waited_ns, Ordering::Relaxed);
    response.status.store(status as u32, Ordering::Relaxed);
}

fn count(counts: &mut FlushCounts, outcome: &FlushOutcome) {
    counts.done += 1;
    counts.kicked += u64::from(outcome.kicked);
    counts.coalesced += u64::from(outcome.coalesced);
    counts.deferred_in_host += u64::from(outcome.deferred_in_host);
    counts.deferred_idle += u64::from(outcome.deferred_idle);
    counts.deferred_preempted += u64::from(outcome.deferred_preempted);
    counts.by_membarrier += u64::from(outcome.by_membarrier);
    counts.by_ack += u64::from(outcome.by_ack);
    counts.wait.record(outcome.waited);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pv_tlb::CpuSet;
    use pv_tlb::id::FlushSeq;
    use pv_tlb::invalidation::Invalidation;
    use pv_tlb::pending::FlushClock;

    use super::*;
    use crate::flush::VcpuSlot;
    use crate::flush::entry::EntryFlush;
    use crate::flush::rule::{Completion, CompletionChoice};
    use crate::kvm::membarrier::Membarrier;
    use crate::memory::{DOORBELL_GPA, SharedRegion};

    fn ring(size: u8, command: u32, scope: u32) -> (u32, u64, FlushCounts) {
        let pages = SharedRegion::<DoorbellPage>::new(DOORBELL_GPA, 1).expect("map");
        let site = FlushSite {
            clock: FlushClock::new(),
            slots: vec![VcpuSlot::new(pages.view(0), None)],
            present: CpuSet::first(1),
            completion: Completion::new(CompletionChoice::Auto, false),
            entry: EntryFlush::Cr4PgeToggle,
            membarrier: Membarrier::register().expect("membarrier"),
            deadline: Duration::from_secs(5),
        };
        let page = pages.view(0).expect("page");
        page.request.write(&Invalidation::EVERYTHING, FlushSeq(41));
        page.request.scope.store(scope, Ordering::Relaxed);
        let mut counts = FlushCounts::default();
        let stop = AtomicBool::new(false);
        doorbell(&site, VcpuId(0), size, command, &stop, &mut counts).expect("answered");
        let response = &page.response;
        (response.status.load(Ordering::Relaxed), response.seq.load(Ordering::Relaxed), counts)
    }

    #[test]
    fn a_good_request_is_done_and_echoed() {
        let (status, seq, counts) = ring(4, COMMAND_FLUSH, 2);
        assert_eq!((status, seq), (Status::Done as u32, 41));
        assert_eq!((counts.done, counts.refused), (1, 0));
    }

    #[test]
    fn bad_commands_and_bad_requests_get_their_status_and_flush_nothing() {
        for (size, command, scope, expected) in [
            (4, 0, 2, Status::BadCommand),
            (1, COMMAND_FLUSH, 2, Status::BadCommand),
            (4, u32::MAX, 2, Status::BadCommand),
            (4, COMMAND_FLUSH, 9, Status::BadScope),
        ] {
            let (status, _, counts) = ring(size, command, scope);
            assert_eq!(status, expected as u32);
            assert_eq!((counts.done, counts.refused), (0, 1));
        }
    }
}
