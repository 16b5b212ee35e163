//! Where each shared word lives in a modelled state, one byte each.
//!
//! Pure functions. Values are small in the model: generations, slots and sets of at
//! most eight vCPUs. Addresses are kept as page numbers, the two special values at
//! the top.

use pv_tlb::addr::PAGE_BYTES;
use pv_tlb::id::VcpuId;
use pv_tlb::shootdown::active_cpu::SEVERAL;
use pv_tlb::shootdown::{HardwareWord, MmId, SWITCHING, Word};

/// Most vCPUs of a modelled guest.
pub const MAX_VCPUS: usize = 3;
/// Most address spaces, the one without user pages included.
pub(super) const MMS: usize = 3;
/// Pages of an address space.
pub(super) const PAGES: usize = 2;
/// Slots of a TLB: up to three of the vCPU's own, and two global ones from 6 on.
pub(super) const SLOTS: usize = 8;
/// Slots that a vCPU may choose for itself.
const OWN_SLOTS: usize = 3;

const PER_MM: usize = 5;
const PER_VCPU: usize = 23;
const FIRST_VCPU: usize = MMS * PER_MM + 4;
const FIRST_ACTION: usize = FIRST_VCPU + MAX_VCPUS * PER_VCPU;
const FIRST_PTE: usize = FIRST_ACTION + MAX_VCPUS * MAX_VCPUS;
/// Bytes of a modelled memory.
pub(super) const CELLS: usize = FIRST_PTE + MMS * PAGES;

/// A place in the modelled memory.
pub(super) type Cell = u8;

/// The place of a page-table entry.
pub(super) fn pte(mm: MmId, page: u8) -> Cell {
    (FIRST_PTE + mm.0 as usize * PAGES + usize::from(page)) as Cell
}

/// True for the places of page-table entries.
pub(super) fn is_pte(cell: Cell) -> bool {
    usize::from(cell) >= FIRST_PTE
}

/// The place of a word.
pub(super) fn cell(word: Word) -> Cell {
    let of_mm = |mm: MmId, field: usize| mm.0 as usize * PER_MM + field;
    let of_vcpu = |vcpu: VcpuId, field: usize| FIRST_VCPU + vcpu.index() * PER_VCPU + field;
    let of_payload = |slot: u8, field: usize| of_vcpu(VcpuId(slot.into()), field);
    let place = match word {
        Word::MmGen(mm) => of_mm(mm, 0),
        Word::MmMask(mm, _) => of_mm(mm, 1),
        Word::LoadedMm(v) => of_vcpu(v, 0),
        Word::Lazy(v) => of_vcpu(v, 1),
        Word::LoadedSlot(v) => of_vcpu(v, 2),
        Word::SlotMm(v, slot) => of_vcpu(v, 3 + usize::from(slot) % OWN_SLOTS),
        Word::SlotGen(v, slot) => of_vcpu(v, 6 + usize::from(slot) % OWN_SLOTS),
        Word::NextSlot(v) => of_vcpu(v, 9),
        Word::Masked(v) => of_vcpu(v, 10),
        Word::Pending(v, _) => of_vcpu(v, 11),
        Word::Owing(v, _) => of_vcpu(v, 12),
        Word::RequestMm(v) => of_vcpu(v, 13),
        Word::RequestStart(v) => of_vcpu(v, 14),
        Word::RequestPages(v) => of_vcpu(v, 15),
        Word::RequestGen(v) => of_vcpu(v, 16),
        Word::Preempted(v) => of_vcpu(v, 17),
        Word::Hardware(word) => match word {
            HardwareWord::ActiveVcpu(mm) => of_mm(mm, 2),
            HardwareWord::GlobalSlot(mm) => of_mm(mm, 3),
            HardwareWord::InTransition(mm) => of_mm(mm, 4),
            HardwareWord::GlobalLock => MMS * PER_MM,
            HardwareWord::GlobalTaken => MMS * PER_MM + 1,
            HardwareWord::GlobalDead => MMS * PER_MM + 2,
            HardwareWord::GlobalNext => MMS * PER_MM + 3,
            HardwareWord::PayloadLock(slot) => of_payload(slot, 18),
            HardwareWord::PayloadSlot(slot) => of_payload(slot, 19),
            HardwareWord::PayloadStart(slot) => of_payload(slot, 20),
            HardwareWord::PayloadPages(slot) => of_payload(slot, 22),
            HardwareWord::ActionOwner(v) => of_vcpu(v, 21),
            HardwareWord::Action(v, slot) => {
                FIRST_ACTION + v.index() * MAX_VCPUS + usize::from(slot)
            }
        },
    };
    place as Cell
}

/// The byte that stands for `value` in `word`.
pub(super) fn encode(word: Word, value: u64) -> u8 {
    let small = match (word, value) {
        (_, SWITCHING) => 255,
        (_, SEVERAL) => 254,
        (Word::RequestStart(_) | Word::Hardware(HardwareWord::PayloadStart(_)), _) => {
            value / PAGE_BYTES
        }
        _ => value,
    };
    u8::try_from(small).expect("modelled values are small")
}

/// The value that `byte` stands for in `word`.
pub(super) fn decode(word: Word, byte: u8) -> u64 {
    match (word, byte) {
        (_, 255) => SWITCHING,
        (_, 254) => SEVERAL,
        (Word::RequestStart(_) | Word::Hardware(HardwareWord::PayloadStart(_)), _) => {
            u64::from(byte) * PAGE_BYTES
        }
        _ => u64::from(byte),
    }
}
