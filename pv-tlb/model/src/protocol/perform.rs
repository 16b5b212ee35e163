//! The effect of one access, and the promises that it may break.
//!
//! Works on a state that belongs to the caller.

use core::fmt;

use pv_tlb::id::VcpuId;
use pv_tlb::shootdown::rar::ARMED;
use pv_tlb::shootdown::{HardwareWord, INIT_MM, Word};

use super::access::Access;
use super::host;
use super::memory::{PAGES, cell, decode, encode, is_pte, pte};
use super::state::{InFlight, Place, State, Vcpu, entry, unpack};

/// A broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A translation older than a change whose flush has returned was used.
    Stale {
        /// Who used it.
        vcpu: VcpuId,
        /// The page.
        page: u8,
    },
    /// A frame was accessed that belongs to somebody else by now.
    FreedFrame {
        /// Who accessed it.
        vcpu: VcpuId,
        /// The page.
        page: u8,
    },
    /// The walker used a page table that belongs to somebody else by now.
    FreedTable {
        /// Whose walker.
        vcpu: VcpuId,
        /// The page that stands for what the table maps.
        page: u8,
    },
    /// A translation of another address space was used.
    ForeignEntry {
        /// Who used it.
        vcpu: VcpuId,
        /// The page.
        page: u8,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stale { vcpu, page } => {
                write!(f, "{vcpu} uses an old translation of page {page} after its flush returned")
            }
            Self::FreedFrame { vcpu, page } => {
                write!(f, "{vcpu} accesses a freed frame through page {page}")
            }
            Self::FreedTable { vcpu, page } => {
                write!(f, "{vcpu} walks a freed page table of page {page}")
            }
            Self::ForeignEntry { vcpu, page } => {
                write!(f, "{vcpu} uses page {page} of another address space")
            }
        }
    }
}

/// A state under one access of vCPU `v`.
pub(super) struct Step<'a> {
    pub(super) state: &'a mut State,
    pub(super) v: usize,
    pub(super) store_buffers: bool,
    /// A request that arrives during a scan of the action vector is lost.
    pub(super) loses_requests: bool,
}

impl Step<'_> {
    fn vcpu(&mut self) -> &mut Vcpu {
        &mut self.state.vcpus[self.v]
    }

    fn id(&self) -> VcpuId {
        VcpuId(self.v as u32)
    }

    /// Performs it; returns its result, or the promise it breaks.
    pub(super) fn perform(&mut self, access: Access, choice: u8) -> Result<u64, Fault> {
        match access {
            Access::Touch(page) => return self.touch(page).map(|()| 0),
            Access::Load(word) => return Ok(read(self.state, self.v, word)),
            Access::Store(word, value) => self.write(cell(word), encode(word, value)),
            Access::SetPte(mm, page) => {
                let newest = &mut self.state.newest[mm.0 as usize][usize::from(page)];
                *newest += 1;
                let version = *newest;
                self.write(pte(mm, page), version);
                return Ok(u64::from(version));
            }
            Access::Swap(word, new) => return Ok(self.update(word, |_| new)),
            Access::Add(word, value) => return Ok(self.update(word, |old| old + value)),
            Access::Or(word, bits) => return Ok(self.update(word, |old| old | bits)),
            Access::And(word, bits) => return Ok(self.update(word, |old| old & bits)),
            Access::CompareExchange(word, current, new) => {
                return Ok(self.update(word, |old| if old == current { new } else { old }));
            }
            Access::Hint(_) => return Ok(u64::from(choice)),
            Access::Observe(target) => {
                return Ok(u64::from(self.state.vcpus[target.index()].says_running));
            }
            Access::Waiting(target) => return Ok(self.waiting(target)),
            Access::Fence | Access::Relax => {}
            Access::FenceStores => {
                let vcpu = self.vcpu();
                vcpu.fenced = vcpu.buffer.len() as u8;
            }
            Access::Returned(mm, page, version) => {
                raise(&mut self.state.returned[mm.0 as usize][usize::from(page)], version);
            }
            Access::Free(mm, page, version, is_table) => {
                let freed = match is_table {
                    true => &mut self.state.freed_tables,
                    false => &mut self.state.freed,
                };
                raise(&mut freed[mm.0 as usize][usize::from(page)], version);
            }
            other => self.message(other),
        }
        Ok(0)
    }

    /// Acts on TLBs, interrupts and the monitor.
    fn message(&mut self, access: Access) {
        let (v, all) = (self.v, (1_u8 << self.state.vcpus.len()) - 1);
        match access {
            Access::DropPage(page) => self.vcpu().drop_loaded(Some(page)),
            Access::DropContext => self.vcpu().drop_loaded(None),
            Access::DropSlot(slot, page) => self.vcpu().drop_slot(Some(slot), page),
            Access::LoadMm(mm, slot, flush) => {
                self.vcpu().loaded = (mm, slot);
                if flush {
                    self.vcpu().drop_loaded(None);
                }
            }
            Access::Ipi(targets) => self.each(targets, |vcpu| vcpu.interrupt = true),
            Access::ActionRequest(targets) => {
                let loses = self.loses_requests;
                self.each(targets, |vcpu| vcpu.action_latch |= !loses || vcpu.scan == 255);
            }
            Access::IrqsOff(off) => self.vcpu().irqs_off = off,
            Access::InCall(true) => {
                self.vcpu().in_call = true;
                self.vcpu().says_running = false;
            }
            Access::InCall(false) => {
                self.vcpu().in_call = false;
                self.vcpu().place = Place::InHost;
            }
            Access::Post(target) => self.state.vcpus[target.index()].inbox |= 1 << v,
            Access::Kick(target) => self.state.vcpus[target.index()].kicked = true,
            Access::Membarrier => self.each(all & !(1 << v), |vcpu| {
                if vcpu.kicked && !vcpu.in_call && matches!(vcpu.place, Place::Guest | Place::Armed)
                {
                    host::leave(vcpu);
                }
            }),
            Access::Broadcast(slot, page) => {
                self.vcpu().half_synced = false;
                self.vcpu().in_flight[0].push(InFlight { left: all, slot, page });
            }
            _ => {}
        }
    }

    fn each(&mut self, set: u8, act: impl Fn(&mut Vcpu)) {
        for (target, vcpu) in self.state.vcpus.iter_mut().enumerate() {
            if set >> target & 1 != 0 {
                act(vcpu);
            }
        }
    }

    fn waiting(&self, target: VcpuId) -> u64 {
        u64::from(self.state.vcpus[target.index()].inbox >> self.v & 1)
    }

    fn write(&mut self, place: u8, value: u8) {
        match self.store_buffers {
            true => self.vcpu().buffer.push((place, value)),
            false => put(self.state, place, value),
        }
    }

    fn update(&mut self, word: Word, new: impl FnOnce(u64) -> u64) -> u64 {
        let place = &mut self.state.cells[usize::from(cell(word))];
        let old = decode(word, *place);
        *place = encode(word, new(old));
        old
    }

    /// A user access: through a cached entry, or through a walk that caches one.
    fn touch(&mut self, page: u8) -> Result<(), Fault> {
        let (vcpu, page_index) = (self.id(), usize::from(page));
        let (mm, slot) = self.vcpu().loaded;
        let cached = self.vcpu().tlb[usize::from(slot)][page_index];
        let found = match cached {
            0 => self.fill(page),
            cached => cached,
        };
        let (of, version) = unpack(found);
        let newer = |marks: &[[u8; PAGES]]| version < marks[mm.0 as usize][page_index];
        if of != mm {
            Err(Fault::ForeignEntry { vcpu, page })
        } else if newer(&self.state.freed) {
            Err(Fault::FreedFrame { vcpu, page })
        } else if newer(&self.state.returned) {
            Err(Fault::Stale { vcpu, page })
        } else {
            Ok(())
        }
    }

    /// A walk that nobody asked for.
    pub(super) fn walk(&mut self, page: u8) -> Result<(), Fault> {
        if uses_freed_table(self.state, self.v, page) {
            return Err(Fault::FreedTable { vcpu: self.id(), page });
        }
        self.fill(page);
        Ok(())
    }

    fn fill(&mut self, page: u8) -> u8 {
        let (mm, slot) = self.vcpu().loaded;
        let version = self.state.cells[usize::from(pte(mm, page))];
        let entry = entry(mm, version);
        self.vcpu().tlb[usize::from(slot)][usize::from(page)] = entry;
        entry
    }
}

fn raise(mark: &mut u8, version: u8) {
    *mark = version.max(*mark);
}

/// True if the walker of vCPU `v` still holds a table of the loaded mm that is gone.
pub(super) fn uses_freed_table(state: &State, v: usize, page: u8) -> bool {
    let (mm, slot) = state.vcpus[v].loaded;
    let cached = state.vcpus[v].tlb[usize::from(slot)][usize::from(page)];
    let freed = state.freed_tables[mm.0 as usize][usize::from(page)];
    mm != INIT_MM && cached != 0 && unpack(cached).0 == mm && unpack(cached).1 < freed
}

/// What vCPU `v` reads in `word`: its own newest store, or memory.
pub(super) fn read(state: &State, v: usize, word: Word) -> u64 {
    let place = cell(word);
    let own = state.vcpus[v].buffer.iter().rev().find(|(at, _)| *at == place);
    decode(word, own.map_or(state.cells[usize::from(place)], |(_, value)| *value))
}

/// The oldest store of vCPU `v` becomes visible.
pub(super) fn drain(state: &mut State, v: usize) {
    let vcpu = &mut state.vcpus[v];
    let (place, value) = vcpu.buffer.remove(0);
    vcpu.fenced = vcpu.fenced.saturating_sub(1);
    put(state, place, value);
}

fn put(state: &mut State, place: u8, value: u8) {
    let at = &mut state.cells[usize::from(place)];
    // Two changes of one entry exclude each other by a lock that is not modelled.
    *at = if is_pte(place) { value.max(*at) } else { value };
}

/// A broadcast of vCPU `v` reaches `target`.
pub(super) fn deliver(state: &mut State, v: usize, queue: usize, at: usize, target: usize) {
    let flight = &mut state.vcpus[v].in_flight[queue][at];
    let InFlight { slot, page, .. } = *flight;
    flight.left &= !(1 << target);
    if flight.left == 0 {
        state.vcpus[v].in_flight[queue].remove(at);
    }
    state.vcpus[target].drop_slot(slot, page);
}

/// The microcode of vCPU `v` starts a scan of its action vector, or looks at one slot.
pub(super) fn scan(state: &mut State, v: usize) {
    let me = VcpuId(v as u32);
    let payload = state.vcpus[v].scan;
    if payload == 255 {
        state.vcpus[v].action_latch = false;
        state.vcpus[v].scan = 0;
        return;
    }
    let action = cell(Word::Hardware(HardwareWord::Action(me, payload)));
    if u64::from(state.cells[usize::from(action)]) == ARMED {
        let get = |word| state.cells[usize::from(cell(Word::Hardware(word)))];
        let slot = get(HardwareWord::PayloadSlot(payload));
        let start = get(HardwareWord::PayloadStart(payload));
        let whole = get(HardwareWord::PayloadPages(payload)) == 0;
        state.vcpus[v].drop_slot(Some(slot), (!whole).then_some(start));
        state.cells[usize::from(action)] = 0;
    }
    let vcpus = state.vcpus.len() as u8;
    state.vcpus[v].scan = if payload + 1 == vcpus { 255 } else { payload + 1 };
}
