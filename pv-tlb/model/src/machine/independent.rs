//! Which steps commute.
//!
//! Pure. A step is described by what it reads and writes; two steps commute if
//! neither writes what the other touches. Whatever is not described here in detail
//! touches everything, which is always right.

use pv_tlb::plan::UpgradeRule;

use super::enabled::free_move;
use super::state::State;
use super::{Hardware, Machine, Step};
use crate::program::{HOST, Micro};
use crate::scenario::{Fills, MAX_PCPUS, MAX_VCPUS};

/// Parts of a state, as bits.
mod part {
    pub(super) const ALL: u64 = u64::MAX;
    pub(super) const TLBS: u64 = 0xf;
    pub(super) const OPEN: u64 = 0xf << 4;
    pub(super) const VCPUS: u64 = 0xf << 8;
    pub(super) const REFERENCE: u64 = 0xf << 12;
    pub(super) const REFERENCE_OPEN: u64 = 0xf << 16;
    pub(super) const INTERRUPTS: u64 = 0xf << 20;
    pub(super) const PAGE_TABLES: u64 = 1 << 24;
    pub(super) const FRAMES: u64 = 1 << 25;
    pub(super) const MARKS: u64 = 1 << 26;
    pub(super) const QUIRKS: u64 = 1 << 27;
    pub(super) const PLACES: u64 = 1 << 28;

    pub(super) const fn tlb(pcpu: usize) -> u64 {
        1 << pcpu
    }
    pub(super) const fn open(pcpu: usize) -> u64 {
        1 << (4 + pcpu)
    }
    pub(super) const fn vcpu(vcpu: usize) -> u64 {
        1 << (8 + vcpu)
    }
    pub(super) const fn reference(vcpu: usize) -> u64 {
        1 << (12 + vcpu)
    }
    pub(super) const fn reference_open(vcpu: usize) -> u64 {
        1 << (16 + vcpu)
    }
    pub(super) const fn interrupts(vcpu: usize) -> u64 {
        1 << (20 + vcpu)
    }
}

// The parts have four bits per kind of CPU.
const _: () = assert!(MAX_PCPUS <= 4 && MAX_VCPUS <= 4);

#[derive(Clone, Copy)]
struct Touches {
    reads: u64,
    writes: u64,
}

const EVERYTHING: Touches = Touches { reads: part::ALL, writes: part::ALL };

/// True if the two steps, both enabled in `state`, commute.
pub(super) fn commute(machine: &Machine<'_>, state: &State, one: Step, other: Step) -> bool {
    if machine.hardware == Hardware::Literal || machine.program.fills == Fills::Demand {
        return false;
    }
    let (Some(first), Some(second)) = (actor(one), actor(other)) else { return false };
    if first == second {
        return false;
    }
    let one = touches(machine, state, first, one);
    let other = touches(machine, state, second, other);
    one.writes & (other.reads | other.writes) == 0 && other.writes & one.reads == 0
}

/// Whose step it is; `None` if it is not described here.
fn actor(step: Step) -> Option<usize> {
    match step {
        Step::Op { actor, .. } => Some(actor.into()),
        Step::Interrupt { target, .. } => Some(target.into()),
        // The host's moves of one vCPU follow each other; with the vCPU's own steps
        // they conflict by what they write.
        Step::Free { vcpu, .. } => Some(HOST + 1 + usize::from(vcpu)),
        _ => None,
    }
}

fn touches(machine: &Machine<'_>, state: &State, actor: usize, step: Step) -> Touches {
    let micro = match step {
        Step::Interrupt { target, .. } => return interrupt(target.into()),
        Step::Free { vcpu, pcpu } => free_move(machine.program, state, vcpu, pcpu),
        _ => match state.next(machine.program, actor) {
            Some(next) if !ends_the_run(machine, state, actor) => next.micro,
            _ => return EVERYTHING,
        },
    };
    match micro {
        Micro::Exit(vcpu) => exit(machine, state, vcpu.into()),
        Micro::Load(vcpu, pcpu) if !machine.program.uses_flag => Touches {
            reads: part::VCPUS | part::PAGE_TABLES,
            // The policy may drop entries and so shorten everybody's footprint.
            writes: part::tlb(pcpu.into()) | part::OPEN | part::vcpu(vcpu.into()) | part::PLACES,
        },
        _ if actor < HOST => guest(machine, state, actor, micro),
        _ => EVERYTHING,
    }
}

fn interrupt(target: usize) -> Touches {
    let flush = part::TLBS | part::OPEN | part::QUIRKS | part::interrupts(target);
    let reference = part::REFERENCE | part::REFERENCE_OPEN;
    Touches { reads: part::VCPUS | part::PAGE_TABLES, writes: flush | reference }
}

fn exit(machine: &Machine<'_>, state: &State, vcpu: usize) -> Touches {
    let pcpu = usize::from(state.vcpus[vcpu].pcpu);
    let drained = part::TLBS | part::open(pcpu);
    let writes = part::vcpu(vcpu) | if machine.program.drains() { drained } else { 0 };
    Touches { reads: part::VCPUS, writes }
}

fn guest(machine: &Machine<'_>, state: &State, vcpu: usize, micro: Micro) -> Touches {
    let pcpu = usize::from(state.vcpus[vcpu].pcpu);
    let own = part::vcpu(vcpu);
    let seen = part::tlb(pcpu) | part::reference(vcpu) | part::FRAMES | own;
    let writes = |writes: u64| Touches { reads: own, writes };
    match micro {
        Micro::Access(..) => Touches { reads: seen, writes: 0 },
        Micro::Begin(..) | Micro::Finish => Touches { reads: seen, writes: own },
        // What becomes invalid leaves every TLB as it is.
        Micro::Store { set: 0, .. } => writes(part::PAGE_TABLES),
        Micro::Store { .. } => Touches {
            reads: part::VCPUS,
            writes: part::PAGE_TABLES
                | part::FRAMES
                | part::TLBS
                | part::OPEN
                | part::REFERENCE
                | part::REFERENCE_OPEN,
        },
        Micro::FlushLocal(_) => flush_local(machine, vcpu, pcpu),
        Micro::Sync(_) => Touches {
            reads: part::VCPUS,
            writes: part::TLBS
                | part::open(pcpu)
                | part::REFERENCE
                | part::reference_open(vcpu)
                | part::QUIRKS,
        },
        Micro::SendIpi(target, _) => writes(part::interrupts(target.into())),
        Micro::Wait => Touches { reads: own | part::INTERRUPTS, writes: 0 },
        Micro::Set(_) => writes(part::MARKS),
        Micro::Await(_) => Touches { reads: own | part::MARKS, writes: 0 },
        Micro::Free(_) | Micro::Freeze(_) => writes(part::FRAMES),
        _ => EVERYTHING,
    }
}

fn flush_local(machine: &Machine<'_>, vcpu: usize, pcpu: usize) -> Touches {
    let open = part::open(pcpu) | part::reference_open(vcpu) | part::QUIRKS;
    let reference = part::reference(vcpu) | part::REFERENCE_OPEN;
    let reads = part::vcpu(vcpu) | part::reference(vcpu) | part::PAGE_TABLES;
    let is_synchronous = machine.program.isa.local_flush_is_synchronous();
    match machine.program.policy.upgrade() {
        UpgradeRule::Never if is_synchronous => {
            Touches { reads, writes: part::tlb(pcpu) | part::OPEN | reference | part::QUIRKS }
        }
        UpgradeRule::Never => Touches { reads: reads | part::tlb(pcpu), writes: open },
        // Which entries may be refilled at once depends on who is live elsewhere.
        UpgradeRule::Everywhere if !is_synchronous => {
            Touches { reads: reads | part::TLBS | part::VCPUS, writes: open }
        }
        _ => EVERYTHING,
    }
}

/// True if the actor's instruction may be the very last one, after which nothing
/// that commutes with it would be looked at.
fn ends_the_run(machine: &Machine<'_>, state: &State, actor: usize) -> bool {
    let phases = &machine.program.phases;
    let phase = usize::from(state.phase);
    let length = phases[phase].actors[actor].len();
    phase + 1 == phases.len() && usize::from(state.counter[actor]) + 1 == length
}
