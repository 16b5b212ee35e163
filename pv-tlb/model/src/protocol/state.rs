//! One state of a guest under a flush protocol: memory, TLBs, programs, the host.
//!
//! A plain value owned by the explorer. Accesses to shared words take effect in the
//! order of the steps; with store buffers, a plain store reaches memory later, in
//! order, by a step of its own.

use pv_tlb::shootdown::MmId;
use smallvec::SmallVec;

use super::memory::{CELLS, Cell, MAX_VCPUS, MMS, PAGES, SLOTS};

/// What the host has done with a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// Executes guest code.
    Guest,
    /// Preempted: off its pCPU.
    Off,
    /// Its thread runs again, before the flush byte is looked at.
    Loaded,
    /// The byte was read and not yet cleared (mutant only).
    ByteRead(u8),
    /// The byte is cleared; about to enter the guest.
    Ready,
    /// In the monitor, which will look at the inbox before it enters the guest.
    InHost,
    /// Says that it runs; about to look at the inbox.
    Entering,
    /// The inbox was looked at; about to enter the guest.
    Armed,
}

/// A cached translation: 0 for none, else mm, version of the PTE, packed.
pub(super) type Entry = u8;

/// Packs a TLB entry.
pub(super) fn entry(mm: MmId, version: u8) -> Entry {
    ((mm.0 as u8) << 5) | (version + 1)
}

/// The mm and the version of an entry that is not 0.
pub(super) fn unpack(entry: Entry) -> (MmId, u8) {
    (MmId(u32::from(entry >> 5)), (entry & 31) - 1)
}

/// A broadcast of one vCPU that has yet to reach some of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct InFlight {
    /// vCPUs still to be reached, one bit each.
    pub(super) left: u8,
    /// Slot to be dropped from; `None` for every slot.
    pub(super) slot: Option<u8>,
    /// Page to be dropped; `None` for all.
    pub(super) page: Option<u8>,
}

/// One vCPU, its TLB and its thread in the host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Vcpu {
    /// Index of the operation of its program.
    pub(super) op: u8,
    /// Where in that operation it stands; 0 when the program is over.
    pub(super) node: u32,
    /// Where in the interrupt it stands; 0 for none.
    pub(super) irq: u32,
    /// An interrupt is pending.
    pub(super) interrupt: bool,
    /// Interrupts are off in hardware (mutant only).
    pub(super) irqs_off: bool,
    /// Address space and slot in use by the walker.
    pub(super) loaded: (MmId, u8),
    pub(super) tlb: [[Entry; PAGES]; SLOTS],
    /// Stores not yet visible to others, oldest first.
    pub(super) buffer: SmallVec<[(Cell, u8); 8]>,
    /// Leading stores of the buffer that a store fence waits for.
    pub(super) fenced: u8,
    pub(super) place: Place,
    /// Executes in the monitor on behalf of its own doorbell.
    pub(super) in_call: bool,
    /// Senders whose doorbell flush is not arranged yet, one bit each.
    pub(super) inbox: u8,
    /// The monitor says that the vCPU may run guest code.
    pub(super) says_running: bool,
    /// A signal is pending for the thread.
    pub(super) kicked: bool,
    /// The host owes a flush that it will do late (mutant only).
    pub(super) owed: bool,
    /// Times that the host may still take it off its pCPU.
    pub(super) preemptions: u8,
    /// The vCPU sits on its spare pCPU.
    pub(super) on_spare: bool,
    /// Broadcasts issued on its pCPU, and on the one it came from.
    pub(super) in_flight: [SmallVec<[InFlight; 2]>; 2],
    /// The first of two waits for broadcasts has returned early (erratum only).
    pub(super) half_synced: bool,
    /// A remote action request was delivered and is not yet looked at.
    pub(super) action_latch: bool,
    /// Next slot of the action vector to be scanned; 255 when no scan runs.
    pub(super) scan: u8,
}

/// One state. See the module text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(super) cells: [u8; CELLS],
    /// Newest version given to each page, whether visible yet or not.
    pub(super) newest: [[u8; PAGES]; MMS],
    /// Version whose flush has returned.
    pub(super) returned: [[u8; PAGES]; MMS],
    /// Version that replaced a freed frame.
    pub(super) freed: [[u8; PAGES]; MMS],
    /// Version that replaced a freed page table.
    pub(super) freed_tables: [[u8; PAGES]; MMS],
    pub(super) vcpus: SmallVec<[Vcpu; MAX_VCPUS]>,
}

impl State {
    /// Every word 0, every vCPU in the guest with the empty mm.
    pub(super) fn new(vcpus: usize, preemptions: &[u8]) -> Self {
        let none = [[0; PAGES]; MMS];
        let vcpu = Vcpu {
            op: 0,
            node: 0,
            irq: 0,
            interrupt: false,
            irqs_off: false,
            loaded: (MmId(0), 0),
            tlb: [[0; PAGES]; SLOTS],
            buffer: SmallVec::new(),
            fenced: 0,
            place: Place::Guest,
            in_call: false,
            inbox: 0,
            says_running: true,
            kicked: false,
            owed: false,
            preemptions: 0,
            on_spare: false,
            in_flight: [SmallVec::new(), SmallVec::new()],
            half_synced: false,
            action_latch: false,
            scan: 255,
        };
        let of = |v| {
            let preemptions = preemptions.get(v).copied().unwrap_or(0);
            Vcpu { preemptions, ..vcpu.clone() }
        };
        Self {
            cells: [0; CELLS],
            newest: none,
            returned: none,
            freed: none,
            freed_tables: none,
            vcpus: (0..vcpus).map(of).collect(),
        }
    }
}

impl Vcpu {
    /// True while guest code of this vCPU can execute.
    pub(super) fn runs(&self) -> bool {
        self.place == Place::Guest && !self.in_call
    }

    /// Drops what the loaded slot holds of `page`, or all it holds.
    pub(super) fn drop_loaded(&mut self, page: Option<u8>) {
        self.drop_slot(Some(self.loaded.1), page);
    }

    /// Drops `page`, or everything, from `slot`, or from every slot.
    pub(super) fn drop_slot(&mut self, slot: Option<u8>, page: Option<u8>) {
        for (s, entries) in self.tlb.iter_mut().enumerate() {
            if slot.is_some_and(|slot| usize::from(slot) != s) {
                continue;
            }
            match page {
                Some(page) => entries[usize::from(page)] = 0,
                None => *entries = [0; PAGES],
            }
        }
    }
}
