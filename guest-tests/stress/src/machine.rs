//! This guest as the [`Platform`] of the shootdown algorithms.
//!
//! Owner of the words of address spaces; those of vCPUs are in `vcpu`. Orders are
//! the callers'.

use core::hint::spin_loop;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use pv_tlb::abi::stress::Strategy;
use pv_tlb::addr::{Gva, PageCount};
use pv_tlb::cpuset::CpuSet;
use pv_tlb::id::VcpuId;
use pv_tlb::invalidation::Invalidation;
use pv_tlb::shootdown::{Event, GenRead, MAX_SLOTS, Method, MmId, Platform, Shootdown, Word};

use crate::paging::{self, MAX_MMS};
use crate::params::{add, params, report, strategy};
use crate::vcpu::{self, SET_WORDS, area};
use crate::{apic, doorbell, gate};

/// The executing vCPU.
pub(crate) struct Machine;

#[repr(C, align(64))]
struct Line<T>(T);

struct MmWords {
    generation: Line<AtomicU64>,
    mask: Line<[AtomicU64; SET_WORDS]>,
}

static MMS: [MmWords; MAX_MMS] = [const {
    MmWords {
        generation: Line(AtomicU64::new(0)),
        mask: Line([const { AtomicU64::new(0) }; SET_WORDS]),
    }
}; MAX_MMS];

/// CR4.PCIDE is set. Written by vCPU 0 at boot.
pub(crate) static PCIDS: AtomicBool = AtomicBool::new(false);
/// CR3 bit 63: keep the entries of the PCID loaded.
const KEEP: u64 = 1 << 63;

/// The rules that the strategy asks for. The negative controls use those of `ipi`,
/// wrongly or not at all.
pub(crate) fn rules() -> Shootdown {
    let (method, gen_read) = match strategy() {
        Strategy::IpiGenRead => (Method::Ipi, GenRead::First),
        Strategy::KvmPv => (Method::KvmPv, GenRead::WhenNeeded),
        Strategy::Doorbell => (Method::Doorbell, GenRead::WhenNeeded),
        Strategy::DoorbellAdaptive => (Method::DoorbellAdaptive, GenRead::WhenNeeded),
        Strategy::Ipi | Strategy::None | Strategy::Late => (Method::Ipi, GenRead::WhenNeeded),
    };
    let full_flush_ceiling = PageCount(u64::from(params().full_flush_ceiling));
    Shootdown { method, gen_read, full_flush_ceiling }
}

fn cell(word: Word) -> &'static AtomicU64 {
    let of = |vcpu: VcpuId| area(vcpu.0);
    match word {
        Word::MmGen(mm) => &MMS[mm.0 as usize].generation.0,
        Word::MmMask(mm, i) => &MMS[mm.0 as usize].mask.0[usize::from(i)],
        Word::LoadedMm(v) => &of(v).visible.loaded_mm,
        Word::Lazy(v) => &of(v).visible.lazy,
        Word::LoadedSlot(v) => &of(v).slots.loaded,
        Word::SlotMm(v, i) => &of(v).slots.mm[usize::from(i)],
        Word::SlotGen(v, i) => &of(v).slots.generation[usize::from(i)],
        Word::NextSlot(v) => &of(v).slots.next,
        Word::Masked(v) => &of(v).slots.masked,
        Word::Pending(v, i) => &of(v).pending.0[usize::from(i)],
        Word::Owing(v, i) => &of(v).owing.0[usize::from(i)],
        Word::RequestMm(v) => &of(v).request.mm,
        Word::RequestStart(v) => &of(v).request.start,
        Word::RequestPages(v) => &of(v).request.pages,
        Word::RequestGen(v) => &of(v).request.generation,
        Word::Preempted(_) => unreachable!("The preempted byte is no 64-bit word"),
        Word::Hardware(_) => unreachable!("No method of this guest uses {word:?}"),
    }
}

impl Platform for Machine {
    fn me(&self) -> VcpuId {
        VcpuId(vcpu::me())
    }

    fn vcpus(&self) -> u32 {
        params().vcpus
    }

    fn load(&self, word: Word, order: Ordering) -> u64 {
        match word {
            Word::Preempted(v) => u64::from(area(v.0).steal_time().preempted.load(order)),
            _ => cell(word).load(order),
        }
    }

    fn store(&self, word: Word, value: u64, order: Ordering) {
        cell(word).store(value, order);
    }

    fn swap(&self, word: Word, value: u64, order: Ordering) -> u64 {
        cell(word).swap(value, order)
    }

    fn compare_exchange(&self, word: Word, current: u64, new: u64) -> Result<u64, u64> {
        use Ordering::SeqCst;
        match word {
            Word::Preempted(v) => area(v.0)
                .steal_time()
                .preempted
                .compare_exchange(current as u8, new as u8, SeqCst, SeqCst)
                .map(u64::from)
                .map_err(u64::from),
            _ => cell(word).compare_exchange(current, new, SeqCst, SeqCst),
        }
    }

    fn fetch_add(&self, word: Word, value: u64, order: Ordering) -> u64 {
        cell(word).fetch_add(value, order)
    }

    fn fetch_or(&self, word: Word, bits: u64, order: Ordering) -> u64 {
        cell(word).fetch_or(bits, order)
    }

    fn fetch_and(&self, word: Word, bits: u64, order: Ordering) -> u64 {
        cell(word).fetch_and(bits, order)
    }

    fn fence(&self, order: Ordering) {
        fence(order);
    }

    fn invalidate_page(&self, page: Gva) {
        gate::invlpg(page.0);
        add(&report().page_flushes, 1);
    }

    fn invalidate_context(&self) {
        let mm = MmId(self.load(Word::LoadedMm(self.me()), Ordering::Relaxed) as u32);
        let slot = self.load(Word::LoadedSlot(self.me()), Ordering::Relaxed) as u8;
        self.load_mm(mm, slot, true);
        add(&report().full_flushes, 1);
    }

    fn load_mm(&self, mm: MmId, slot: u8, flush: bool) {
        let pcids = PCIDS.load(Ordering::Relaxed);
        let pcid = if pcids { u64::from(slot) + 1 } else { 0 };
        let keep = if pcids && !flush { KEEP } else { 0 };
        // SAFETY: `root` gives tables that share the identity map.
        unsafe { gate::load_cr3(paging::root(mm, vcpu::me()) | pcid | keep) };
    }

    fn slots(&self) -> u8 {
        if PCIDS.load(Ordering::Relaxed) { MAX_SLOTS } else { 1 }
    }

    fn send_ipi(&self, targets: &CpuSet) {
        apic::interrupt(targets);
    }

    fn relax(&self) {
        spin_loop();
    }

    fn doorbell(&self, ask: &Invalidation) -> bool {
        doorbell::ring(ask)
    }

    fn answers_at_once(&self, target: VcpuId) -> bool {
        doorbell::answers_at_once(target.0)
    }

    fn count(&self, event: Event, times: u32) {
        let report = report();
        let counter = match event {
            Event::Skipped => &report.skipped,
            Event::Flagged => &report.flagged,
            Event::Served => &report.served,
            Event::Switched => &report.switches,
        };
        add(counter, u64::from(times));
    }
}
