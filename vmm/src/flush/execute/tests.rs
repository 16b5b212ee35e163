//! The executor against threads that stand in for vCPU threads: what it counts,
//! whom it waits for, and that a late target is named.

use std::sync::Arc;
use std::thread;

use pv_tlb::abi::kvm::{PREEMPTED, StealTime};
use pv_tlb::invalidation::Reach;
use pv_tlb::pending::FlushClock;

use super::*;
use crate::flush::entry::EntryFlush;
use crate::flush::rule::{Completion, CompletionChoice};
use crate::kvm::membarrier::Membarrier;
use crate::memory::{DOORBELL_GPA, STEAL_TIME_GPA, SharedRegion};

const DEADLINE: Duration = Duration::from_millis(20);

fn site(vcpus: u32, choice: CompletionChoice, reports_preemption: bool) -> FlushSite {
    let pages = SharedRegion::new(DOORBELL_GPA, vcpus as usize).expect("map");
    let steal = SharedRegion::<StealTime>::new(STEAL_TIME_GPA, vcpus as usize).expect("map");
    FlushSite {
        clock: FlushClock::new(),
        slots: (0..vcpus as usize).map(|i| VcpuSlot::new(pages.view(i), steal.view(i))).collect(),
        present: CpuSet::first(vcpus),
        completion: Completion::new(choice, reports_preemption),
        entry: EntryFlush::StealFlushBit,
        membarrier: Membarrier::register().expect("membarrier"),
        deadline: DEADLINE,
    }
}

fn everything(site: &FlushSite) -> Result<FlushOutcome, Unfinished> {
    execute(site, VcpuId(0), &Invalidation::EVERYTHING, &AtomicBool::new(false))
}

/// A running target as the executor sees it: this thread, marked as running.
fn pretend_running(slot: &VcpuSlot) {
    slot.kick.attach_without_vcpu();
    slot.run.enter();
}

#[test]
fn targets_in_the_host_cost_nothing_and_owe_a_flush_before_entry() {
    let site = site(4, CompletionChoice::Ack, false);
    let outcome = everything(&site).expect("done");
    assert_eq!((outcome.deferred_in_host, outcome.kicked, outcome.by_ack), (3, 0, 0));
    for slot in &site.slots {
        assert!(slot.inbox.owed().is_some(), "the initiator's own vCPU included");
    }
}

#[test]
fn a_target_that_never_answers_is_named_when_the_deadline_passes() {
    let site = site(3, CompletionChoice::Ack, false);
    pretend_running(site.slot(VcpuId(2)));
    match everything(&site) {
        Err(Unfinished::Late { late, initiator, .. }) => {
            assert_eq!((*late, initiator), (CpuSet::only(VcpuId(2)), VcpuId(0)));
        }
        other => panic!("expected a late target, got {other:?}"),
    }
    site.slot(VcpuId(2)).kick.detach();
}

#[test]
fn a_preempted_target_is_flagged_and_not_waited_for() {
    let site = site(2, CompletionChoice::Auto, true);
    let slot = site.slot(VcpuId(1));
    slot.run.enter();
    slot.steal.as_deref().expect("record").preempted.store(PREEMPTED, Ordering::SeqCst);
    let outcome = everything(&site).expect("done");
    assert_eq!((outcome.deferred_preempted, outcome.kicked), (1, 0));
}

#[test]
fn auto_excuses_by_membarrier_only_a_target_that_declares_and_is_in_no_section() {
    for (flags, section, expected) in [(1, 0, true), (0, 0, false), (1, 1, false)] {
        let site = site(2, CompletionChoice::Auto, false);
        let slot = site.slot(VcpuId(1));
        pretend_running(slot);
        let page = slot.page.as_deref().expect("page");
        page.guest.flags.store(flags, Ordering::SeqCst);
        page.guest.section.store(section, Ordering::SeqCst);
        let result = everything(&site);
        assert_eq!(result.is_ok(), expected, "flags {flags}, section {section}: {result:?}");
        slot.kick.detach();
    }
}

#[test]
fn no_rule_excuses_a_target_in_the_middle_of_an_access() {
    for choice in [CompletionChoice::Auto, CompletionChoice::Membarrier] {
        let site = site(2, choice, false);
        let slot = site.slot(VcpuId(1));
        pretend_running(slot);
        slot.page.as_deref().expect("page").guest.flags.store(1, Ordering::SeqCst);
        slot.run.leave(true);
        assert!(matches!(everything(&site), Err(Unfinished::Late { .. })), "{choice}");
        slot.kick.detach();
    }
}

#[test]
fn an_ack_of_a_later_request_settles_an_earlier_one() {
    let site = Arc::new(site(2, CompletionChoice::Ack, false));
    let slot = site.slot(VcpuId(1));
    let target = Arc::clone(&site);
    slot.run.enter();
    let server = thread::spawn(move || {
        let slot = target.slot(VcpuId(1));
        slot.kick.attach_without_vcpu();
        loop {
            if let Some(seq) = slot.inbox.owed() {
                slot.inbox.acknowledge(seq);
                slot.kick.detach();
                return;
            }
            thread::yield_now();
        }
    });
    let alone =
        Invalidation { reach: Reach::Set(CpuSet::only(VcpuId(1))), ..Invalidation::EVERYTHING };
    while !matches!(slot.kick.kick(), Kicked::Sent | Kicked::AlreadySent) {
        thread::yield_now();
    }
    let outcome = execute(&site, VcpuId(0), &alone, &AtomicBool::new(false)).expect("done");
    assert_eq!(outcome.by_ack, 1);
    server.join().expect("server");
}

#[test]
fn a_stop_ends_the_wait() {
    let site = site(2, CompletionChoice::Ack, false);
    pretend_running(site.slot(VcpuId(1)));
    let stopped = execute(&site, VcpuId(0), &Invalidation::EVERYTHING, &AtomicBool::new(true));
    assert!(matches!(stopped, Err(Unfinished::Stopped)));
    site.slot(VcpuId(1)).kick.detach();
}
