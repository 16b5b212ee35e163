//! Everything that the future of a run depends on, in one fixed-size value.
//!
//! Owned by the explorer; compared and hashed as a whole, so that nothing may be
//! kept here that has no influence (prices are counted outside).

use core::hash::{Hash, Hasher};

use crate::program::{ACTORS, Instruction, Program};
use crate::scenario::{AccessKind, MAX_PCPUS, MAX_SLOTS, MAX_VCPUS, MAX_VMS};

/// A state of the machine and of its reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Per pCPU: entries (translation under tag) that it may hold.
    pub(super) tlb: [u64; MAX_PCPUS],
    /// Per issuing and holding pCPU: entries that go when the issuer's barrier has
    /// completed its open broadcasts.
    pub(super) open: [[u64; MAX_PCPUS]; MAX_PCPUS],
    /// Per issuing pCPU: entries whose barrier returned early under
    /// [`crate::world::Dial::RepeatTlbi`].
    pub(super) early: [u64; MAX_PCPUS],
    /// Per vCPU: translations that the reference CPU may hold.
    pub(super) reference: [u64; MAX_VCPUS],
    /// Per issuing and holding vCPU: as `open`, on the reference machine.
    pub(super) reference_open: [[u64; MAX_VCPUS]; MAX_VCPUS],
    /// Valid page-table entries.
    pub(super) valid: u64,
    /// Translations to frames that were freed.
    pub(super) dead: u64,
    /// Translations to frames whose contents somebody relies on.
    pub(super) frozen: u64,
    /// Per vCPU: translations that the host owes it to flush before it goes on.
    pub(super) owed: [u64; MAX_VCPUS],
    pub(super) marks: u32,
    pub(super) vcpus: [Vcpu; MAX_VCPUS],
    /// Per pCPU and VM: vCPU that ran last, plus 1.
    pub(super) last_ran: [[u8; MAX_VMS]; MAX_PCPUS],
    /// Per target and sender: flush to perform, plus 1.
    pub(super) interrupts: [[u8; MAX_VCPUS]; MAX_VCPUS],
    pub(super) rar: Rar,
    /// pCPUs (low half) and reference CPUs (high half) whose first TLBSYNC returned
    /// early under [`crate::world::Dial::TlbsyncTwice`].
    pub(super) half_synced: u8,
    /// pCPUs that have issued a flush since a barrier returned early.
    pub(super) repeated: u8,
    pub(super) phase: u8,
    pub(super) counter: [u8; ACTORS],
}

/// Payload table and action vectors of Remote Action Request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rar {
    /// Per slot: flush to perform, plus 1.
    pub(super) payload: [u8; MAX_SLOTS],
    /// Per vCPU: pending slots.
    pub(super) action: [u8; MAX_VCPUS],
    /// Per vCPU: slots that it armed itself.
    pub(super) own: [u8; MAX_VCPUS],
    /// vCPUs with an event that has not been taken.
    pub(super) rung: u8,
    /// Per vCPU: next slot to look at, plus 1; 0 if no scan is under way.
    pub(super) scan: [u8; MAX_VCPUS],
}

/// What the host is about to do with a vCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// It is on no pCPU.
    #[default]
    Off,
    /// It is on a pCPU, its entry conditions are met, its `preempted` byte is due.
    Loaded,
    /// As `Loaded`, the byte was loaded and will be stored.
    LoadedByte,
    /// As `Loaded`, the byte has been taken.
    Taken,
    /// It executes guest code.
    Guest,
    /// It has left guest mode, its `preempted` byte is due.
    Left,
    /// As `Left`, the byte was loaded and will be stored.
    LeftByte,
}

/// One vCPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Vcpu {
    pub(super) stage: Stage,
    pub(super) pcpu: u8,
    /// pCPU of the last entry, plus 1.
    pub(super) last_pcpu: u8,
    pub(super) space: u8,
    pub(super) tag: u8,
    /// Latched translation, plus 1.
    pub(super) latch: u8,
    pub(super) latch_writes: bool,
    /// An access was begun and not finished.
    pub(super) is_mid_access: bool,
    /// KVM's `preempted` byte of this vCPU: 1 preempted, 2 flush.
    pub(super) byte: u8,
    /// What this vCPU read in another one's byte.
    pub(super) byte_seen: u8,
    /// What the host read in this one's byte.
    pub(super) byte_held: u8,
    pub(super) moves_left: u8,
    /// pCPUs that may hold its entries.
    pub(super) footprint: u8,
    /// pCPUs whose entries of its tag go when it comes back to them.
    pub(super) leftovers: u8,
}

/// Every state is hashed, most of them twice, and a hasher is fed fastest in large
/// pieces: words first, then all bytes packed into one array.
impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.tlb.hash(state);
        self.open.as_flattened().hash(state);
        self.early.hash(state);
        self.reference.hash(state);
        self.reference_open.as_flattened().hash(state);
        [self.valid, self.dead, self.frozen, self.marks.into()].hash(state);
        self.owed.hash(state);
        self.vcpus.each_ref().map(Vcpu::packed).hash(state);
        let rar = &self.rar;
        let odd = [self.half_synced, self.repeated, self.phase, rar.rung];
        state.write(self.last_ran.as_flattened());
        state.write(self.interrupts.as_flattened());
        state.write([rar.payload, rar.action, rar.own, rar.scan].as_flattened());
        state.write(&odd);
        state.write(&self.counter);
    }
}

impl State {
    pub(super) fn new(program: &Program) -> Self {
        let mut state = Self {
            tlb: [0; MAX_PCPUS],
            open: [[0; MAX_PCPUS]; MAX_PCPUS],
            early: [0; MAX_PCPUS],
            reference: [0; MAX_VCPUS],
            reference_open: [[0; MAX_VCPUS]; MAX_VCPUS],
            valid: program.initial,
            dead: 0,
            frozen: 0,
            owed: [0; MAX_VCPUS],
            marks: 0,
            vcpus: Default::default(),
            last_ran: [[0; MAX_VMS]; MAX_PCPUS],
            interrupts: [[0; MAX_VCPUS]; MAX_VCPUS],
            rar: Rar::default(),
            half_synced: 0,
            repeated: 0,
            phase: 0,
            counter: [0; ACTORS],
        };
        for (id, start) in program.start.iter().enumerate().take(program.vcpus) {
            let vcpu = &mut state.vcpus[id];
            vcpu.space = start.space;
            vcpu.tag = start.tag;
            vcpu.moves_left = program.free_moves[id];
            if let Some(pcpu) = start.on.checked_sub(1) {
                vcpu.stage = Stage::Guest;
                vcpu.pcpu = pcpu;
                vcpu.last_pcpu = pcpu + 1;
                vcpu.footprint = 1 << pcpu;
                let vm = usize::from(program.vm_of[id]);
                state.last_ran[usize::from(pcpu)][vm] = id as u8 + 1;
            }
        }
        state
    }

    /// The actor's next instruction in the current phase.
    pub(crate) fn next(&self, program: &Program, actor: usize) -> Option<Instruction> {
        let phase = program.phases.get(usize::from(self.phase))?;
        phase.actors[actor].get(usize::from(self.counter[actor])).copied()
    }

    /// Moves the actor past its instruction, and everybody to the next phase if that
    /// was the last one.
    pub(super) fn advance(&mut self, program: &Program, actor: usize) {
        self.counter[actor] += 1;
        let phase = &program.phases[usize::from(self.phase)];
        let is_over = phase
            .actors
            .iter()
            .zip(self.counter)
            .all(|(actor, counter)| usize::from(counter) == actor.len());
        if is_over {
            self.phase += 1;
            self.counter = [0; ACTORS];
        }
    }

    /// Number of phases that are over.
    #[must_use]
    pub fn phase(&self) -> usize {
        self.phase.into()
    }

    /// pCPUs that may hold entries of the vCPU, and of these the ones whose entries go
    /// when it comes back to them, as bits. Kept under every policy.
    #[must_use]
    pub fn footprint(&self, vcpu: usize) -> (u8, u8) {
        (self.vcpus[vcpu].footprint, self.vcpus[vcpu].leftovers)
    }

    /// True if the vCPU executes guest code.
    pub(super) fn is_in_guest(&self, vcpu: usize) -> bool {
        self.vcpus[vcpu].stage == Stage::Guest
    }

    /// The pCPU that the vCPU occupies, if it does.
    pub(crate) fn pcpu_of(&self, vcpu: usize) -> Option<usize> {
        let vcpu = &self.vcpus[vcpu];
        (vcpu.stage != Stage::Off).then_some(usize::from(vcpu.pcpu))
    }

    /// True if some vCPU occupies the pCPU.
    pub(super) fn is_occupied(&self, pcpu: usize) -> bool {
        (0..MAX_VCPUS).any(|vcpu| self.pcpu_of(vcpu) == Some(pcpu))
    }

    /// True if a flush interrupt from `sender` is unanswered.
    pub(super) fn is_waiting(&self, sender: usize) -> bool {
        self.interrupts.iter().any(|senders| senders[sender] != 0)
    }
}

impl Vcpu {
    /// Everything about it, in two words.
    fn packed(&self) -> u128 {
        u128::from_le_bytes([
            self.stage as u8,
            self.pcpu,
            self.last_pcpu,
            self.space,
            self.tag,
            self.latch,
            u8::from(self.latch_writes),
            u8::from(self.is_mid_access),
            self.byte,
            self.byte_seen,
            self.byte_held,
            self.moves_left,
            self.footprint,
            self.leftovers,
            0,
            0,
        ])
    }

    pub(super) fn latch(&mut self, translation: Option<usize>, kind: AccessKind) {
        self.latch = translation.map_or(0, |translation| translation as u8 + 1);
        self.latch_writes = kind == AccessKind::Write;
        self.is_mid_access = true;
    }

    pub(super) fn unlatch(&mut self) {
        self.latch = 0;
        self.latch_writes = false;
        self.is_mid_access = false;
    }
}
