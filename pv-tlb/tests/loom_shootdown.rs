//! The shootdown algorithms under loom: every interleaving and every reordering that
//! C11 allows of two vCPUs, each a thread with a TLB of its own.
//!
//! Shared: the words, one page-table entry, interrupt lines, and a flag that says
//! that the flush has returned. A vCPU that has seen the flag must not read the old
//! entry. To be as hostile as hardware may be, a vCPU fills its TLB just before each
//! look at a generation, as speculation could.
//!
//! Waits block on a condition instead of polling, which loom could not exhaust. Its
//! lock orders no more than the messages themselves: interrupt, ack, and the end.
//!
//! Build with `--cfg loom`; empty otherwise.

#![cfg(loom)]

use std::cell::RefCell;

use loom::sync::atomic::{AtomicU64, Ordering, Ordering::*, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use pv_tlb::CpuSet;
use pv_tlb::addr::{Gva, PageCount};
use pv_tlb::id::VcpuId;
use pv_tlb::invalidation::Invalidation;
use pv_tlb::shootdown::{Change, GenRead, Method, MmId, Platform, Shootdown, Word};

const MM: MmId = MmId(1);
const OTHER: MmId = MmId(2);
const VCPUS: u32 = 2;
const SLOTS: u8 = 2;
const OLD: u64 = 0;
const NEW: u64 = 1;

const RULES: Shootdown = Shootdown {
    method: Method::Ipi,
    gen_read: GenRead::WhenNeeded,
    full_flush_ceiling: PageCount(33),
};

const CHANGE: Change = Change { mm: MM, start: Gva(0), pages: PageCount(1), freed_tables: false };

/// Fields of a vCPU's words, in order; words of address spaces come first.
const PER_VCPU: usize = 20;
const PER_MM: usize = 2;
const MMS: usize = 3;

/// What a vCPU may wait for.
#[derive(Default)]
struct Events {
    interrupted: bool,
    acked: bool,
    /// The other vCPU has nothing more to ask.
    over: bool,
}

struct Shared {
    words: Vec<AtomicU64>,
    entry: AtomicU64,
    events: Vec<(Mutex<Events>, Condvar)>,
    returned: AtomicU64,
    /// Whether fences work: false to see that the test would notice.
    fences: bool,
}

fn index(word: Word) -> usize {
    let mm = |mm: MmId, field| mm.0 as usize * PER_MM + field;
    let vcpu = |v: VcpuId, field: usize| MMS * PER_MM + v.index() * PER_VCPU + field;
    match word {
        Word::MmGen(m) => mm(m, 0),
        Word::MmMask(m, _) => mm(m, 1),
        Word::LoadedMm(v) => vcpu(v, 0),
        Word::Lazy(v) => vcpu(v, 1),
        Word::LoadedSlot(v) => vcpu(v, 2),
        Word::NextSlot(v) => vcpu(v, 3),
        Word::Masked(v) => vcpu(v, 4),
        Word::Pending(v, _) => vcpu(v, 5),
        Word::Owing(v, _) => vcpu(v, 6),
        Word::RequestMm(v) => vcpu(v, 7),
        Word::RequestStart(v) => vcpu(v, 8),
        Word::RequestPages(v) => vcpu(v, 9),
        Word::RequestGen(v) => vcpu(v, 10),
        Word::Preempted(v) => vcpu(v, 11),
        Word::SlotMm(v, slot) => vcpu(v, 12 + usize::from(slot)),
        Word::SlotGen(v, slot) => vcpu(v, 12 + usize::from(SLOTS + slot)),
        Word::Hardware(_) => unreachable!("IPIs need no broadcast hardware"),
    }
}

impl Shared {
    fn new(fences: bool) -> Self {
        let words = MMS * PER_MM + VCPUS as usize * PER_VCPU;
        Self {
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
            entry: AtomicU64::new(OLD),
            events: (0..VCPUS).map(|_| (Mutex::default(), Condvar::new())).collect(),
            returned: AtomicU64::new(0),
            fences,
        }
    }

    fn tell(&self, vcpu: VcpuId, event: impl FnOnce(&mut Events)) {
        let (events, changed) = &self.events[vcpu.index()];
        event(&mut events.lock().unwrap());
        changed.notify_one();
    }

    fn at(&self, word: Word) -> &AtomicU64 {
        &self.words[index(word)]
    }
}

#[derive(Clone, Default)]
struct Tlb {
    mm: u32,
    slot: u8,
    /// By slot, what it holds for the one page.
    entries: [Option<u64>; SLOTS as usize],
}

struct Vcpu {
    id: u32,
    rules: Shootdown,
    shared: Arc<Shared>,
    tlb: RefCell<Tlb>,
}

impl Vcpu {
    fn new(id: u32, rules: Shootdown, shared: &Arc<Shared>) -> Self {
        Self { id, rules, shared: shared.clone(), tlb: RefCell::default() }
    }

    /// What a read of the page returns; fills the TLB.
    fn read(&self) -> u64 {
        let mut tlb = self.tlb.borrow_mut();
        assert_eq!(tlb.mm, MM.0, "only {MM:?} maps the page");
        let slot = usize::from(tlb.slot);
        *tlb.entries[slot].get_or_insert_with(|| self.shared.entry.load(Relaxed))
    }

    fn speculate(&self) {
        if self.tlb.borrow().mm == MM.0 {
            self.read();
        }
    }

    /// A read that must not be old once the flush is known to have returned.
    fn check(&self) {
        let returned = self.shared.returned.load(Acquire) == 1;
        let seen = self.read();
        assert!(!returned || seen == NEW, "old entry used after the flush returned");
    }

    /// Takes an interrupt that has arrived.
    fn poll(&self) {
        let (events, _) = &self.shared.events[self.id as usize];
        let interrupted = std::mem::take(&mut events.lock().unwrap().interrupted);
        if interrupted {
            self.rules.on_interrupt(self);
        }
    }

    /// Blocks until an interrupt or one of the events that `until` knows, and takes
    /// the interrupt.
    fn block(&self, until: fn(&mut Events) -> bool) {
        let (events, changed) = &self.shared.events[self.id as usize];
        let mut events = events.lock().unwrap();
        while !events.interrupted && !until(&mut events) {
            events = changed.wait(events).unwrap();
        }
        drop(events);
        self.poll();
    }

    /// Changes the entry, flushes, and says so.
    fn change_and_flush(&self) {
        self.shared.entry.store(NEW, Relaxed);
        self.rules.flush(self, &CHANGE);
        self.shared.returned.store(1, Release);
    }

    /// Says that this vCPU is done, and takes interrupts until the other is as well.
    fn serve_to_the_end(&self) {
        self.shared.tell(VcpuId(1 - self.id), |events| events.over = true);
        let (events, _) = &self.shared.events[self.id as usize];
        while !events.lock().unwrap().over {
            self.block(|events| events.over);
        }
        // An interrupt that came with the end.
        self.poll();
    }
}

impl Platform for Vcpu {
    fn me(&self) -> VcpuId {
        VcpuId(self.id)
    }
    fn vcpus(&self) -> u32 {
        VCPUS
    }
    fn load(&self, word: Word, order: Ordering) -> u64 {
        if matches!(word, Word::MmGen(_)) {
            self.speculate();
        }
        self.shared.at(word).load(order)
    }
    fn store(&self, word: Word, value: u64, order: Ordering) {
        self.shared.at(word).store(value, order);
    }
    fn swap(&self, word: Word, value: u64, order: Ordering) -> u64 {
        self.shared.at(word).swap(value, order)
    }
    fn compare_exchange(&self, word: Word, current: u64, new: u64) -> Result<u64, u64> {
        self.shared.at(word).compare_exchange(current, new, SeqCst, SeqCst)
    }
    fn fetch_add(&self, word: Word, value: u64, order: Ordering) -> u64 {
        self.shared.at(word).fetch_add(value, order)
    }
    fn fetch_or(&self, word: Word, bits: u64, order: Ordering) -> u64 {
        self.shared.at(word).fetch_or(bits, order)
    }
    fn fetch_and(&self, word: Word, bits: u64, order: Ordering) -> u64 {
        let before = self.shared.at(word).fetch_and(bits, order);
        if let Word::Owing(sender, _) = word {
            self.shared.tell(sender, |events| events.acked = true);
        }
        before
    }
    fn fence(&self, order: Ordering) {
        if self.shared.fences {
            fence(order);
        }
    }
    fn invalidate_page(&self, page: Gva) {
        if page == CHANGE.start {
            self.invalidate_context();
        }
    }
    fn invalidate_context(&self) {
        let mut tlb = self.tlb.borrow_mut();
        let slot = usize::from(tlb.slot);
        tlb.entries[slot] = None;
    }
    fn load_mm(&self, mm: MmId, slot: u8, flush: bool) {
        let mut tlb = self.tlb.borrow_mut();
        (tlb.mm, tlb.slot) = (mm.0, slot);
        if flush {
            tlb.entries[usize::from(slot)] = None;
        }
    }
    fn slots(&self) -> u8 {
        SLOTS
    }
    fn send_ipi(&self, targets: &CpuSet) {
        for target in targets {
            self.shared.tell(target, |events| events.interrupted = true);
        }
    }
    fn relax(&self) {
        self.block(|events| std::mem::take(&mut events.acked));
    }
    fn doorbell(&self, _: &Invalidation) -> bool {
        unreachable!("The host is not part of this test")
    }
    fn answers_at_once(&self, _: VcpuId) -> bool {
        true
    }
}

/// Every execution of two vCPUs that both start in [`MM`] with the old entry cached:
/// vCPU 0 flushes, vCPU 1 does `other`, which starts out by `prepare`.
fn explore(rules: Shootdown, fences: bool, prepare: fn(&Vcpu), other: fn(&Vcpu)) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let shared = Arc::new(Shared::new(fences));
        let vcpus = [Vcpu::new(0, rules, &shared), Vcpu::new(1, rules, &shared)];
        for vcpu in &vcpus {
            rules.switch_mm(vcpu, MM);
            vcpu.read();
        }
        prepare(&vcpus[1]);
        let [initiator, target] = vcpus;
        let thread = thread::spawn(move || {
            other(&target);
            target.serve_to_the_end();
            target.check();
        });
        initiator.change_and_flush();
        assert_eq!(initiator.read(), NEW);
        initiator.serve_to_the_end();
        thread.join().unwrap();
    });
}

fn nothing(_: &Vcpu) {}

fn read_and_poll(vcpu: &Vcpu) {
    vcpu.check();
    vcpu.poll();
    vcpu.check();
}

fn go_away(vcpu: &Vcpu) {
    vcpu.rules.switch_mm(vcpu, OTHER);
}

fn come_back(vcpu: &Vcpu) {
    vcpu.rules.switch_mm(vcpu, MM);
    vcpu.check();
}

fn be_lazy(vcpu: &Vcpu) {
    vcpu.rules.enter_lazy(vcpu);
}

#[test]
fn a_reader_never_uses_the_old_entry_after_the_flush_returned() {
    for gen_read in [GenRead::WhenNeeded, GenRead::First] {
        explore(Shootdown { gen_read, ..RULES }, true, nothing, read_and_poll);
    }
}

#[test]
fn a_vcpu_that_switches_in_is_told_or_sees_the_new_generation() {
    explore(RULES, true, go_away, come_back);
}

#[test]
fn a_vcpu_that_leaves_and_returns_is_told_or_sees_the_new_generation() {
    explore(RULES, true, nothing, |vcpu| {
        go_away(vcpu);
        come_back(vcpu);
    });
}

#[test]
fn a_lazy_vcpu_that_goes_on_is_told_or_sees_the_new_generation() {
    explore(RULES, true, be_lazy, come_back);
}

#[test]
#[should_panic(expected = "old entry used after the flush returned")]
fn without_fences_a_switch_misses_a_flush() {
    explore(RULES, false, go_away, come_back);
}

#[test]
#[should_panic(expected = "old entry used after the flush returned")]
fn without_fences_a_lazy_vcpu_misses_a_flush() {
    explore(RULES, false, be_lazy, come_back);
}

/// The host puts vCPU 1 back: exchange, flush if asked, enter.
fn host_resumes(vcpu: &Vcpu) {
    use pv_tlb::abi::kvm::FLUSH_TLB;
    let byte = vcpu.swap(Word::Preempted(vcpu.me()), 0, AcqRel);
    if byte & u64::from(FLUSH_TLB) != 0 {
        vcpu.tlb.borrow_mut().entries = Default::default();
    }
    vcpu.check();
}

#[test]
fn a_preempted_vcpu_is_flushed_by_the_host_or_interrupted() {
    use pv_tlb::abi::kvm::PREEMPTED;
    let rules = Shootdown { method: Method::KvmPv, ..RULES };
    let preempt =
        |vcpu: &Vcpu| vcpu.store(Word::Preempted(vcpu.me()), u64::from(PREEMPTED), Release);
    explore(rules, true, preempt, host_resumes);
}

#[test]
fn a_vcpu_that_flushes_another_page_meanwhile_is_not_taken_for_up_to_date() {
    explore(RULES, true, nothing, |vcpu| {
        vcpu.rules.flush(vcpu, &Change { start: Gva(4096), ..CHANGE });
        vcpu.check();
    });
}
