//! A machine of several vCPUs that run one after another, with TLBs that keep every
//! entry until told otherwise.
//!
//! Owner: one test. Only the vCPU named by `me` executes; the others take their
//! interrupts when it relaxes, or when the test says so.

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use super::super::*;
use crate::abi::kvm::{FLUSH_TLB, PREEMPTED};
use crate::addr::PAGE_BYTES;
use crate::invalidation::Extent;

/// What the hardware of one vCPU holds.
#[derive(Clone, Debug, Default)]
pub(super) struct Tlb {
    mm: u32,
    slot: u8,
    /// By slot and page: the version of the entry.
    entries: BTreeMap<(u8, u64), u64>,
}

pub(super) struct Machine {
    vcpus: u32,
    slots: u8,
    pub(super) rules: Shootdown,
    me: Cell<u32>,
    words: RefCell<BTreeMap<String, u64>>,
    tlbs: RefCell<Vec<Tlb>>,
    /// By mm and page: the version in the page table.
    tables: RefCell<BTreeMap<(u32, u64), u64>>,
    interrupted: RefCell<BTreeSet<u32>>,
    pub(super) host_refuses: Cell<bool>,
    pub(super) quick: RefCell<BTreeSet<u32>>,
    pub(super) ipis: Cell<u32>,
    pub(super) rings: Cell<u32>,
    pub(super) page_flushes: Cell<u32>,
    pub(super) full_flushes: Cell<u32>,
    pub(super) generation_reads: Cell<u32>,
    /// Interrupt the vCPU in the middle of its next CR3 load.
    pub(super) interrupt_next_load: Cell<bool>,
}

pub(super) const RULES: Shootdown = Shootdown {
    method: Method::Ipi,
    gen_read: GenRead::WhenNeeded,
    full_flush_ceiling: PageCount(33),
};

impl Machine {
    pub(super) fn new(vcpus: u32, slots: u8, rules: Shootdown) -> Self {
        Self {
            vcpus,
            slots,
            rules,
            me: Cell::default(),
            words: RefCell::default(),
            tlbs: RefCell::new(vec![Tlb::default(); vcpus as usize]),
            tables: RefCell::default(),
            interrupted: RefCell::default(),
            host_refuses: Cell::default(),
            quick: RefCell::default(),
            ipis: Cell::default(),
            rings: Cell::default(),
            page_flushes: Cell::default(),
            full_flushes: Cell::default(),
            generation_reads: Cell::default(),
            interrupt_next_load: Cell::default(),
        }
    }

    /// Lets `vcpu` execute `what`.
    pub(super) fn on<R>(&self, vcpu: u32, what: impl FnOnce(&Self) -> R) -> R {
        let before = self.me.replace(vcpu);
        let result = what(self);
        self.me.set(before);
        result
    }

    /// `vcpu` switches to `mm`.
    pub(super) fn switch(&self, vcpu: u32, mm: u32) {
        self.on(vcpu, |m| m.rules.switch_mm(m, MmId(mm)));
    }

    /// Changes `pages` pages in the table of `mm`, without a flush.
    pub(super) fn change(&self, mm: u32, start: u64, pages: u64) {
        for page in start..start + pages {
            *self.tables.borrow_mut().entry((mm, page)).or_default() += 1;
        }
    }

    /// `vcpu` changes and flushes.
    pub(super) fn change_and_flush(&self, vcpu: u32, mm: u32, start: u64, pages: u64, freed: bool) {
        self.change(mm, start, pages);
        self.on(vcpu, |m| m.rules.flush(m, &change(mm, start, pages, freed)));
    }

    /// The version that `vcpu` gets when it reads `page`; fills its TLB.
    pub(super) fn read(&self, vcpu: u32, page: u64) -> u64 {
        let tlb = &mut self.tlbs.borrow_mut()[vcpu as usize];
        let walk = self.tables.borrow().get(&(tlb.mm, page)).copied().unwrap_or(0);
        *tlb.entries.entry((tlb.slot, page)).or_insert(walk)
    }

    /// The version in the table.
    pub(super) fn newest(&self, mm: u32, page: u64) -> u64 {
        self.tables.borrow().get(&(mm, page)).copied().unwrap_or(0)
    }

    /// `vcpu` takes the interrupt that was sent to it, if any.
    pub(super) fn take_interrupt(&self, vcpu: u32) {
        if self.interrupted.borrow_mut().remove(&vcpu) {
            self.on(vcpu, |m| m.rules.on_interrupt(m));
        }
    }

    /// What CR3 of `vcpu` names.
    pub(super) fn loaded(&self, vcpu: u32) -> (MmId, u8) {
        let tlb = &self.tlbs.borrow()[vcpu as usize];
        (MmId(tlb.mm), tlb.slot)
    }

    /// True if an interrupt waits for `vcpu`.
    pub(super) fn is_interrupted(&self, vcpu: u32) -> bool {
        self.interrupted.borrow().contains(&vcpu)
    }

    /// KVM takes `vcpu` off its pCPU.
    pub(super) fn preempt(&self, vcpu: u32) {
        // A vCPU that is off its pCPU cannot be taken off again; a second store of 1
        // would erase a flag, and KVM's copy of the byte keeps it from that.
        if !self.is_preempted(vcpu) {
            self.store(Word::Preempted(VcpuId(vcpu)), u64::from(PREEMPTED), Ordering::SeqCst);
        }
    }

    /// KVM puts `vcpu` back, flushing first if that was asked for.
    pub(super) fn resume(&self, vcpu: u32) {
        let byte = self.swap(Word::Preempted(VcpuId(vcpu)), 0, Ordering::SeqCst);
        if byte & u64::from(FLUSH_TLB) != 0 {
            self.tlbs.borrow_mut()[vcpu as usize].entries.clear();
        }
        self.take_interrupt(vcpu);
    }

    /// True if `vcpu` is off its pCPU.
    pub(super) fn is_preempted(&self, vcpu: u32) -> bool {
        self.load(Word::Preempted(VcpuId(vcpu)), Ordering::SeqCst) & u64::from(PREEMPTED) != 0
    }

    fn word<R>(&self, word: Word, access: impl FnOnce(&mut u64) -> R) -> R {
        access(self.words.borrow_mut().entry(format!("{word:?}")).or_default())
    }

    fn drop_entries(&self, vcpu: u32, dropped: impl Fn(u8, u64, u8) -> bool) {
        let tlb = &mut self.tlbs.borrow_mut()[vcpu as usize];
        let current = tlb.slot;
        tlb.entries.retain(|(slot, page), _| !dropped(*slot, *page, current));
    }
}

/// A change of `pages` pages from page number `start` on.
pub(super) fn change(mm: u32, start: u64, pages: u64, freed_tables: bool) -> Change {
    let start = Gva(start * PAGE_BYTES);
    Change { mm: MmId(mm), start, pages: PageCount(pages), freed_tables }
}

impl Platform for Machine {
    fn me(&self) -> VcpuId {
        VcpuId(self.me.get())
    }

    fn vcpus(&self) -> u32 {
        self.vcpus
    }

    fn load(&self, word: Word, _: Ordering) -> u64 {
        if matches!(word, Word::MmGen(_)) {
            self.generation_reads.set(self.generation_reads.get() + 1);
        }
        self.word(word, |value| *value)
    }

    fn store(&self, word: Word, new: u64, _: Ordering) {
        self.word(word, |value| *value = new);
    }

    fn swap(&self, word: Word, new: u64, _: Ordering) -> u64 {
        self.word(word, |value| core::mem::replace(value, new))
    }

    fn compare_exchange(&self, word: Word, current: u64, new: u64) -> Result<u64, u64> {
        self.word(word, |value| match *value == current {
            true => Ok(core::mem::replace(value, new)),
            false => Err(*value),
        })
    }

    fn fetch_add(&self, word: Word, more: u64, _: Ordering) -> u64 {
        self.word(word, |value| core::mem::replace(value, *value + more))
    }

    fn fetch_or(&self, word: Word, bits: u64, _: Ordering) -> u64 {
        self.word(word, |value| core::mem::replace(value, *value | bits))
    }

    fn fetch_and(&self, word: Word, bits: u64, _: Ordering) -> u64 {
        self.word(word, |value| core::mem::replace(value, *value & bits))
    }

    fn fence(&self, _: Ordering) {}

    fn invalidate_page(&self, page: Gva) {
        self.page_flushes.set(self.page_flushes.get() + 1);
        let number = page.0 / PAGE_BYTES;
        self.drop_entries(self.me.get(), |slot, page, current| slot == current && page == number);
    }

    fn invalidate_context(&self) {
        self.full_flushes.set(self.full_flushes.get() + 1);
        let (mm, slot) = self.loaded(self.me.get());
        self.load_mm(mm, slot, true);
    }

    fn load_mm(&self, mm: MmId, slot: u8, flush: bool) {
        let me = self.me.get();
        if self.interrupt_next_load.take() {
            self.rules.on_interrupt(self);
        }
        let tlb = &mut self.tlbs.borrow_mut()[me as usize];
        (tlb.mm, tlb.slot) = (mm.0, slot);
        if flush {
            tlb.entries.retain(|(kept, _), _| *kept != slot);
        }
    }

    fn slots(&self) -> u8 {
        self.slots
    }

    fn send_ipi(&self, targets: &CpuSet) {
        self.ipis.set(self.ipis.get() + targets.len());
        self.interrupted.borrow_mut().extend(targets.iter().map(|target| target.0));
    }

    fn relax(&self) {
        for vcpu in 0..self.vcpus {
            // Who is off its pCPU comes back sooner or later.
            self.resume(vcpu);
        }
    }

    fn doorbell(&self, ask: &Invalidation) -> bool {
        self.rings.set(self.rings.get() + 1);
        if self.host_refuses.get() {
            return false;
        }
        for target in &ask.reach.vcpus(self.me(), &CpuSet::first(self.vcpus)) {
            self.drop_entries(target.0, |_, page, _| match ask.extent {
                Extent::Whole => true,
                range => range.covers(Gva(page * PAGE_BYTES), crate::addr::PageSize::Small),
            });
        }
        true
    }

    fn answers_at_once(&self, target: VcpuId) -> bool {
        self.quick.borrow().contains(&target.0)
    }
}
