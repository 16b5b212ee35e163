//! What the modelled vCPUs do: short programs over the shootdown algorithms.
//!
//! Plain values and the code that runs them over a recorder.

use pv_tlb::addr::{Gva, PAGE_BYTES, PageCount};
use pv_tlb::id::VcpuId;
use pv_tlb::shootdown::invlpgb::Invlpgb;
use pv_tlb::shootdown::rar::Rar;
use pv_tlb::shootdown::{Batch, Change, MAX_SLOTS, MmId, Shootdown, Word, active_cpu, rar};

use super::access::Access;
use super::mutant::Mutant;
use super::replay::Recorder;

/// Which algorithm the guest uses.
#[derive(Clone, Copy, Debug)]
pub enum Algorithm {
    /// Interrupts, the preempted byte, or the doorbell.
    Shootdown(Shootdown),
    /// Broadcasts by global slot.
    Invlpgb(Invlpgb),
    /// Remote action requests.
    Rar(Rar),
    /// Local invalidations while one vCPU uses the mm.
    ActiveCpu,
}

/// One operation of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Loads an address space.
    Switch(u32),
    /// Keeps it loaded and runs nothing of it.
    Lazy,
    /// A user access to a page of the loaded address space.
    Touch(u8),
    /// Changes the page's entry in an mm, flushes that page, frees the old frame.
    Unmap(u32, u8),
    /// The same with a flush of the whole mm.
    UnmapWhole(u32, u8),
    /// Takes a page table out, flushes the whole mm, frees the table.
    UnmapTable(u32, u8),
    /// Changes the page's entry and flushes it by a batch that names no mm.
    Reclaim(u32, u8),
    /// Declares an mm dead, whose global slot may go to another.
    Forget(u32),
    /// Waits until a vCPU has loaded an mm.
    Await(u32, u32),
}

/// The slot that an mm has everywhere, for algorithms that give it one.
fn everywhere(mm: MmId) -> u8 {
    MAX_SLOTS + mm.0 as u8 - 1
}

impl Algorithm {
    /// Runs one operation.
    pub(super) fn run(&self, p: &Recorder<'_>, op: Op, mutant: Option<Mutant>) {
        match op {
            Op::Switch(mm) => self.switch(p, MmId(mm)),
            Op::Lazy => {
                if let Self::Shootdown(rules) | Self::Invlpgb(Invlpgb { local: rules, .. }) = self {
                    rules.enter_lazy(p);
                }
            }
            Op::Touch(page) => {
                p.step(Access::Touch(page));
            }
            Op::Unmap(mm, page) => self.unmap(p, change(mm, page, 1, false), mutant),
            Op::UnmapWhole(mm, page) => self.unmap(p, change(mm, page, 0, false), mutant),
            Op::UnmapTable(mm, page) => self.unmap(p, change(mm, page, 0, true), mutant),
            Op::Reclaim(mm, page) => self.reclaim(p, MmId(mm), page),
            Op::Forget(mm) => {
                if let Self::Invlpgb(rules) = self {
                    rules.forget(p, MmId(mm));
                }
            }
            Op::Await(vcpu, mm) => {
                while p.step(Access::Load(Word::LoadedMm(VcpuId(vcpu)))) != u64::from(mm) {
                    p.step(Access::Relax);
                }
            }
        }
    }

    /// Runs the interrupt.
    pub(super) fn interrupt(&self, p: &Recorder<'_>) {
        match self {
            Self::Shootdown(rules) => rules.on_interrupt(p),
            Self::Invlpgb(rules) => rules.on_interrupt(p),
            Self::Rar(_) | Self::ActiveCpu => {}
        }
    }

    fn switch(&self, p: &Recorder<'_>, mm: MmId) {
        match self {
            Self::Shootdown(rules) => rules.switch_mm(p, mm),
            Self::Invlpgb(rules) => rules.switch_mm(p, mm),
            Self::Rar(_) => rar::switch_mm(p, mm, everywhere(mm)),
            Self::ActiveCpu => active_cpu::switch_mm(p, mm, everywhere(mm)),
        }
    }

    fn flush(&self, p: &Recorder<'_>, change: &Change) {
        match self {
            Self::Shootdown(rules) => rules.flush(p, change),
            Self::Invlpgb(rules) => rules.flush(p, change),
            Self::Rar(rules) => {
                let failed = rules.flush(p, change, everywhere(change.mm));
                assert!(failed.is_empty(), "the modelled hardware never fails");
            }
            Self::ActiveCpu => active_cpu::flush(p, change, everywhere(change.mm)),
        }
    }

    fn unmap(&self, p: &Recorder<'_>, change: Change, mutant: Option<Mutant>) {
        let mm = change.mm;
        let page = (change.start.0 / PAGE_BYTES) as u8;
        let set = || p.step(Access::SetPte(mm, page)) as u8;
        let free = |version| p.step(Access::Free(mm, page, version, change.freed_tables));
        let version = match mutant {
            Some(Mutant::TablesChangedLate) => {
                self.flush(p, &change);
                set()
            }
            Some(Mutant::FreeBeforeAck) => {
                let version = set();
                free(version);
                self.flush(p, &change);
                version
            }
            Some(Mutant::WaitWithInterruptsOff) => {
                let version = set();
                p.step(Access::IrqsOff(true));
                self.flush(p, &change);
                p.step(Access::IrqsOff(false));
                version
            }
            Some(Mutant::LazySparedTablesFreed) => {
                let version = set();
                self.flush(p, &Change { freed_tables: false, ..change });
                version
            }
            _ => {
                let version = set();
                self.flush(p, &change);
                version
            }
        };
        p.step(Access::Returned(mm, page, version));
        free(version);
    }

    fn reclaim(&self, p: &Recorder<'_>, mm: MmId, page: u8) {
        let Self::Shootdown(rules) = self else { return };
        let version = p.step(Access::SetPte(mm, page)) as u8;
        let mut batch = Batch::default();
        batch.add(p, mm);
        batch.flush(p, rules);
        p.step(Access::Returned(mm, page, version));
        p.step(Access::Free(mm, page, version, false));
    }

    /// True if another vCPU's interrupt, code or hardware reads `LoadedSlot`.
    pub(super) fn shows_slot(&self) -> bool {
        matches!(self, Self::Invlpgb(_))
    }
}

fn change(mm: u32, page: u8, pages: u64, freed_tables: bool) -> Change {
    let start = Gva(u64::from(page) * PAGE_BYTES);
    Change { mm: MmId(mm), start, pages: PageCount(pages), freed_tables }
}
