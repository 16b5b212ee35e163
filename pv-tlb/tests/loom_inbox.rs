//! Loom's view of one shootdown: the flush clock, the inboxes and the tickets that
//! ship, between vCPUs whose page tables and TLBs are modelled.
//!
//! Build with `--cfg loom` (`cargo xtask ci` does); without it the file is empty.
//!
//! The machine. Each page has one entry that goes from [`OLD`] to [`NEW`]; every TLB
//! holds `OLD` at first. An initiator stores the entry, draws a number, posts it to
//! each target, fences, and reads each target's run state: a target in the host is
//! excused, another owes an answer. A target marks itself running, fences, takes its
//! inbox, flushes (its TLB becomes what it reads of the page table), acknowledges,
//! runs guest code (which uses the TLB), and goes back into the host.
//!
//! What must hold. (1) Once a flush has returned, no guest code uses an older entry.
//! (2) Once a target has acknowledged a flush, its TLB already holds the new entry.
//! (3) When all is over, an entry into the guest finds everything new: no request
//! gets lost. The first two are judged by a [`Witness`]. It consists of loom's
//! atomics, since loom runs two accesses in both orders only if it can see both, and
//! all its accesses are `Relaxed`, so that the witness orders nothing itself.
//!
//! An initiator looks at its ticket once instead of waiting. That loses nothing:
//! a wait returns at the first look that finds nobody owing, and loom tries every
//! moment for the one look.
//!
//! What is exhaustive: one initiator, two targets, and the crosswise pair. Two
//! initiators beside a target are too many steps; there the number of preemptions in
//! one execution is bounded (5, or 4 with an exit in between) and all executions
//! within the bound are tried. The mistakes that only this machine can show need 2.
//! Loom treats a `SeqCst` access as acquire and release only, but it knows `SeqCst`
//! fences; the protocol uses fences alone. To weaken any one ordering of
//! src/pending.rs, or to post by a store, makes a test here fail.

#![cfg(loom)]

use std::sync::atomic::AtomicU64 as PrivateU64;

use loom::sync::Arc;
use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::{AtomicU64, fence};
use loom::thread;

use pv_tlb::CpuSet;
use pv_tlb::ack::Ticket;
use pv_tlb::id::{FlushSeq, VcpuId};
use pv_tlb::pending::{FlushClock, Inbox};

const VCPUS: usize = 3;
const PAGES: usize = 2;
const OLD: u64 = 0;
const NEW: u64 = 1;
const IN_HOST: u64 = 0;
const RUNNING: u64 = 1;

/// The protocol, or the protocol with one mistake.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rules {
    Shipped,
    NoFenceInInitiator,
    NoFenceInTarget,
    AcknowledgeBeforeFlush,
    FlushBeforeTaking,
    DrawBeforeStore,
    DrawRelaxed,
}

/// What each side has done, a bit per page.
struct Witness {
    /// Pages whose flush has returned.
    returned: AtomicU64,
    /// Pages whose new entry the vCPU's TLB holds, as told to others.
    fresh: [AtomicU64; VCPUS],
}

struct Vm {
    rules: Rules,
    clock: FlushClock,
    /// Stands in for the clock when numbers are drawn without any order.
    unordered_clock: AtomicU64,
    entries: [AtomicU64; PAGES],
    inboxes: [Inbox; VCPUS],
    run_states: [AtomicU64; VCPUS],
    /// Pages whose new entry is cached. Each word is private to its vCPU and needs no
    /// eye of loom's.
    tlbs: [PrivateU64; VCPUS],
    witness: Witness,
}

impl Vm {
    fn new(rules: Rules) -> Arc<Self> {
        Arc::new(Self {
            rules,
            clock: FlushClock::new(),
            unordered_clock: AtomicU64::new(0),
            entries: [(); PAGES].map(|()| AtomicU64::new(OLD)),
            inboxes: [(); VCPUS].map(|()| Inbox::new()),
            run_states: [(); VCPUS].map(|()| AtomicU64::new(IN_HOST)),
            tlbs: [(); VCPUS].map(|()| PrivateU64::new(0)),
            witness: Witness {
                returned: AtomicU64::new(0),
                fresh: [(); VCPUS].map(|()| AtomicU64::new(0)),
            },
        })
    }

    fn draw(&self) -> FlushSeq {
        match self.rules {
            Rules::DrawRelaxed => FlushSeq(self.unordered_clock.fetch_add(1, Relaxed) + 1),
            _ => self.clock.next(),
        }
    }

    /// A vCPU in the host changes the entry of `page` and flushes it on `targets`.
    fn shoot_down(&self, page: usize, targets: &[u32]) {
        let early = (self.rules == Rules::DrawBeforeStore).then(|| self.draw());
        // A page table entry is stored by guest code, without any order of its own.
        self.entries[page].store(NEW, Relaxed);
        let seq = early.unwrap_or_else(|| self.draw());
        for target in targets {
            self.inboxes[*target as usize].post(seq);
        }
        if self.rules != Rules::NoFenceInInitiator {
            // Partner: the fence in `enter`.
            fence(SeqCst);
        }
        let mut ticket = Ticket::new(seq, targets.iter().map(|id| VcpuId(*id)).collect());
        for target in targets {
            // Partner: the stores in `enter` and `leave`.
            if self.run_states[*target as usize].load(Acquire) == IN_HOST {
                ticket.excuse(VcpuId(*target));
            }
        }
        let waited_for = *ticket.owing();
        if ticket.settle(|target| &self.inboxes[target.index()]) {
            self.returned(page, &waited_for);
        }
    }

    fn returned(&self, page: usize, waited_for: &CpuSet) {
        self.witness.returned.fetch_or(1 << page, Relaxed);
        for target in waited_for {
            let fresh = self.witness.fresh[target.index()].load(Relaxed);
            assert!(fresh >> page & 1 == 1, "{target} acknowledged page {page} unflushed");
        }
    }

    /// From the host into the guest, as a vCPU thread does before KVM_RUN.
    fn enter(&self, me: u32) {
        let inbox = &self.inboxes[me as usize];
        // Partner: the load in `shoot_down`, by way of the two fences.
        self.run_states[me as usize].store(RUNNING, Release);
        if self.rules != Rules::NoFenceInTarget {
            // Partner: the fence in `shoot_down`.
            fence(SeqCst);
        }
        match self.rules {
            Rules::FlushBeforeTaking => {
                self.flush(me);
                inbox.owed().into_iter().for_each(|seq| inbox.acknowledge(seq));
            }
            Rules::AcknowledgeBeforeFlush => {
                if let Some(seq) = inbox.owed() {
                    inbox.acknowledge(seq);
                    self.flush(me);
                }
            }
            _ => {
                if let Some(seq) = inbox.owed() {
                    self.flush(me);
                    inbox.acknowledge(seq);
                }
            }
        }
    }

    fn flush(&self, me: u32) {
        let mut fresh = 0;
        for (page, entry) in self.entries.iter().enumerate() {
            // The walk after a flush; it may read as little as its order grants.
            fresh |= entry.load(Relaxed) << page;
        }
        self.tlbs[me as usize].store(fresh, Relaxed);
        self.witness.fresh[me as usize].store(fresh, Relaxed);
    }

    /// Guest code that uses every page through the TLB.
    fn run(&self, me: u32) {
        let returned = self.witness.returned.load(Relaxed);
        let fresh = self.tlbs[me as usize].load(Relaxed);
        assert!(returned & !fresh == 0, "v{me} used a stale entry: {returned:#b}, {fresh:#b}");
    }

    fn leave(&self, me: u32) {
        // Partner: the load in `shoot_down`.
        self.run_states[me as usize].store(IN_HOST, Release);
    }

    fn rounds(&self, me: u32, rounds: usize) {
        for _ in 0..rounds {
            self.enter(me);
            self.run(me);
            self.leave(me);
        }
    }

    /// After every thread is joined: `me` enters once more and must find all new.
    fn nothing_is_lost(&self, me: u32, pages: usize) {
        self.enter(me);
        let fresh = self.tlbs[me as usize].load(Relaxed);
        assert_eq!(fresh, (1 << pages) - 1, "v{me} never heard of a request");
    }
}

/// v0 flushes v2, which enters the guest `rounds` times.
fn one_initiator(rules: Rules, rounds: usize) {
    let vm = Vm::new(rules);
    let initiator = Arc::clone(&vm);
    let initiator = thread::spawn(move || initiator.shoot_down(0, &[2]));
    vm.rounds(2, rounds);
    initiator.join().expect("the initiator's checks hold");
    vm.nothing_is_lost(2, 1);
}

/// v0 and v1 each flush a page of their own on v2, which may serve both at once.
fn two_initiators(rules: Rules, rounds: usize) {
    let vm = Vm::new(rules);
    let initiators = [0, 1].map(|page| {
        let vm = Arc::clone(&vm);
        thread::spawn(move || vm.shoot_down(page, &[2]))
    });
    vm.rounds(2, rounds);
    for initiator in initiators {
        initiator.join().expect("the initiator's checks hold");
    }
    vm.nothing_is_lost(2, 2);
}

/// v0 flushes v1 and v2 with one ticket.
fn two_targets(rules: Rules) {
    let vm = Vm::new(rules);
    let targets = [1, 2].map(|target| {
        let vm = Arc::clone(&vm);
        thread::spawn(move || vm.rounds(target, 1))
    });
    vm.shoot_down(0, &[1, 2]);
    for target in targets {
        target.join().expect("the target's checks hold");
    }
    vm.nothing_is_lost(1, 1);
    vm.nothing_is_lost(2, 1);
}

/// v0 and v1 run, then each leaves the guest to flush a page on the other.
fn crosswise(rules: Rules) {
    let vm = Vm::new(rules);
    let both_ways = |vm: &Vm, me: u32, page: usize, other: u32| {
        vm.rounds(me, 1);
        vm.shoot_down(page, &[other]);
        // INVLPG: nobody is asked to flush oneself.
        vm.tlbs[me as usize].fetch_or(1 << page, Relaxed);
        vm.rounds(me, 1);
    };
    let second = Arc::clone(&vm);
    let second = thread::spawn(move || both_ways(&second, 1, 1, 0));
    both_ways(&vm, 0, 0, 1);
    second.join().expect("the other's checks hold");
}

/// Explores within a bound on preemptions, for a machine that is too large otherwise.
fn bounded(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(test);
}

#[test]
fn a_target_never_uses_an_entry_that_was_flushed() {
    loom::model(|| one_initiator(Rules::Shipped, 2));
}

#[test]
fn one_service_answers_two_initiators() {
    bounded(5, || two_initiators(Rules::Shipped, 1));
}

#[test]
fn two_initiators_are_answered_across_an_exit() {
    bounded(4, || two_initiators(Rules::Shipped, 2));
}

#[test]
fn one_ticket_holds_for_two_targets() {
    loom::model(|| two_targets(Rules::Shipped));
}

#[test]
fn two_vcpus_may_flush_each_other_at_once() {
    loom::model(|| crosswise(Rules::Shipped));
}

#[test]
#[should_panic(expected = "used a stale entry")]
fn without_the_initiators_fence_a_target_is_taken_for_idle() {
    loom::model(|| one_initiator(Rules::NoFenceInInitiator, 1));
}

#[test]
#[should_panic(expected = "used a stale entry")]
fn without_the_targets_fence_a_request_is_overlooked() {
    loom::model(|| one_initiator(Rules::NoFenceInTarget, 1));
}

#[test]
#[should_panic(expected = "unflushed")]
fn an_ack_before_the_flush_comes_too_early() {
    loom::model(|| one_initiator(Rules::AcknowledgeBeforeFlush, 1));
}

#[test]
#[should_panic(expected = "unflushed")]
fn a_flush_before_the_inbox_is_taken_misses_what_it_acknowledges() {
    loom::model(|| one_initiator(Rules::FlushBeforeTaking, 1));
}

#[test]
#[should_panic(expected = "never heard of")]
fn a_number_drawn_before_the_store_is_acknowledged_for_a_later_one() {
    bounded(2, || two_initiators(Rules::DrawBeforeStore, 1));
}

#[test]
#[should_panic(expected = "never heard of")]
fn numbers_drawn_without_order_do_not_carry_earlier_stores() {
    bounded(2, || two_initiators(Rules::DrawRelaxed, 1));
}
