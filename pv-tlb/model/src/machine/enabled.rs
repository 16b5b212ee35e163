//! Which steps a state allows.
//!
//! Pure. A step that waits (a barrier, an answer, a mark) is simply not listed until
//! its condition holds.

use pv_tlb::plan::UpgradeRule;

use super::access::choices;
use super::state::{Stage, State};
use super::tlb::latched;
use super::{Hardware, Machine, Step};
use crate::program::{HOST, Micro, Program, bits};
use crate::world::Dial;

/// Appends every step that `state` allows.
pub(super) fn list(machine: &Machine<'_>, state: &State, steps: &mut Vec<Step>) {
    let program = machine.program;
    for vcpu in 0..program.vcpus {
        if state.is_in_guest(vcpu) {
            if let Some(instruction) = state.next(program, vcpu) {
                guest(machine, state, vcpu, instruction.micro, steps);
            }
            interruptions(program, state, vcpu, steps);
        }
        if program.free_moves[vcpu] > 0 {
            free(machine, state, vcpu, steps);
        }
    }
    let host = state.next(program, HOST);
    if host.is_some_and(|instruction| host_may(machine, state, instruction.micro)) {
        steps.push(Step::Op { actor: HOST as u8, choice: 0 });
    }
    if machine.hardware == Hardware::Literal {
        literal(program, state, steps);
    }
}

fn guest(machine: &Machine<'_>, state: &State, vcpu: usize, micro: Micro, steps: &mut Vec<Step>) {
    let actor = vcpu as u8;
    if let Micro::Begin(kind, page) = micro {
        let count = choices(machine.program, machine.hardware, state, vcpu, kind, page.into());
        steps.extend((0..count).map(|choice| Step::Op { actor, choice }));
    } else if guest_may(machine, state, vcpu, micro) {
        steps.push(Step::Op { actor, choice: 0 });
    }
}

fn guest_may(machine: &Machine<'_>, state: &State, vcpu: usize, micro: Micro) -> bool {
    let program = machine.program;
    let flush = |number: u8| program.flushes[usize::from(number)];
    match micro {
        Micro::Sync(here) => sync_may(machine, state, vcpu, here),
        Micro::FlushLocal(number) => !flush_waits(program, state, vcpu, flush(number)),
        Micro::Switch(_, number) => number
            .checked_sub(1)
            .is_none_or(|number| !flush_waits(program, state, vcpu, flush(number))),
        Micro::FlushBroadcast(number) => {
            !program.traps_broadcasts()
                || !mates_are_mid_access(program, state, vcpu, flush(number))
        }
        Micro::SendIpi(target, _) | Micro::FlagSwap(target, _) => {
            state.interrupts[usize::from(target)][vcpu] == 0
        }
        Micro::HostWait(targets) => host_wait_may(program, state, vcpu, targets),
        Micro::Wait => !state.is_waiting(vcpu),
        Micro::Await(mark) => state.marks & 1 << mark != 0,
        Micro::RarWait(target, slot) => state.rar.action[usize::from(target)] & 1 << slot == 0,
        _ => true,
    }
}

/// A barrier waits for accesses under way through the entries it completes.
fn sync_may(machine: &Machine<'_>, state: &State, vcpu: usize, here: bool) -> bool {
    let program = machine.program;
    let pcpu = usize::from(state.vcpus[vcpu].pcpu);
    let stays_here = program.barrier_stays_here(here);
    let waits_for = |holder: usize| !stays_here || holder == pcpu;
    if machine.hardware == Hardware::Literal {
        return (0..program.pcpus).all(|q| !waits_for(q) || state.open[pcpu][q] == 0);
    }
    if program.has(Dial::RepeatTlbi) {
        // Only the repeated barrier waits, for whom the first one overtook.
        return state.repeated & 1 << pcpu == 0
            || !latched(program, state, vcpu, |_| state.early[pcpu]);
    }
    let open = |holder: usize| if waits_for(holder) { state.open[pcpu][holder] } else { 0 };
    !latched(program, state, vcpu, open)
}

/// True if a flush that takes effect at once elsewhere has to wait for an access
/// under way there.
fn flush_waits(program: &Program, state: &State, vcpu: usize, translations: u64) -> bool {
    let footprint = state.vcpus[vcpu].footprint;
    let reach = match program.policy.upgrade() {
        UpgradeRule::Never | UpgradeRule::FootprintAtReturn => return false,
        UpgradeRule::Footprint => footprint,
        // Elsewhere than on x86 the flush is open and its barrier waits.
        UpgradeRule::Everywhere if program.isa.local_flush_is_synchronous() => u8::MAX,
        UpgradeRule::Everywhere => return false,
    };
    let entries = program.tagged(translations, state.vcpus[vcpu].tag);
    latched(program, state, vcpu, |pcpu| if reach & 1 << pcpu != 0 { entries } else { 0 })
}

/// The same for a flush that includes its barrier, by the host or in an interrupt.
fn whole_flush_waits(program: &Program, state: &State, vcpu: usize, translations: u64) -> bool {
    let pcpu = usize::from(state.vcpus[vcpu].pcpu);
    let entries = program.tagged(translations, state.vcpus[vcpu].tag);
    let reaches_all = program.policy.upgrade() == UpgradeRule::Everywhere;
    flush_waits(program, state, vcpu, translations)
        || reaches_all && latched(program, state, vcpu, |holder| entries | state.open[pcpu][holder])
}

fn mates_are_mid_access(program: &Program, state: &State, vcpu: usize, translations: u64) -> bool {
    let mates = program.vm_mates(vcpu);
    !program.has(Dial::EarlyDone)
        && bits(mates.into()).any(|mate| {
            let latch = state.vcpus[mate].latch.checked_sub(1);
            latch.is_some_and(|latch| translations & 1 << latch != 0)
        })
}

fn host_wait_may(program: &Program, state: &State, vcpu: usize, targets: u8) -> bool {
    let is_early = program.has(Dial::EarlyDone) || program.has(Dial::FenceNop);
    let others = targets & !(1 << vcpu);
    is_early
        || bits(others.into()).all(|target| {
            let is_stopped = !state.is_in_guest(target) && !state.vcpus[target].is_mid_access;
            state.owed[target] == 0 || is_stopped
        })
}

fn interruptions(program: &Program, state: &State, vcpu: usize, steps: &mut Vec<Step>) {
    if state.vcpus[vcpu].is_mid_access {
        return;
    }
    let target = vcpu as u8;
    for (sender, flush) in state.interrupts[vcpu].iter().enumerate() {
        let Some(flush) = flush.checked_sub(1) else { continue };
        let translations = program.flushes[usize::from(flush)];
        if !whole_flush_waits(program, state, vcpu, translations) {
            steps.push(Step::Interrupt { target, sender: sender as u8 });
        }
    }
    let owed = state.owed[vcpu];
    if owed != 0 && !whole_flush_waits(program, state, vcpu, owed) {
        steps.push(Step::Kick { target });
    }
    if state.rar.scan[vcpu] != 0 || state.rar.rung & 1 << vcpu != 0 {
        steps.push(Step::Scan { target });
    }
}

fn host_may(machine: &Machine<'_>, state: &State, micro: Micro) -> bool {
    let program = machine.program;
    let stage = |vcpu: u8| state.vcpus[usize::from(vcpu)].stage;
    match micro {
        Micro::Exit(vcpu) => stage(vcpu) == Stage::Guest && drain_may(machine, state, vcpu.into()),
        Micro::MarkLoad(vcpu) => stage(vcpu) == Stage::Left,
        Micro::Mark(vcpu) => {
            matches!(stage(vcpu), Stage::Left | Stage::LeftByte | Stage::Loaded)
        }
        Micro::Load(vcpu, pcpu) => {
            stage(vcpu) == Stage::Off
                && !state.is_occupied(pcpu.into())
                && (program.uses_flag || !owed_waits(program, state, vcpu.into()))
        }
        Micro::ExchangeLoad(vcpu) => stage(vcpu) == Stage::Loaded,
        Micro::Exchange(vcpu) => matches!(stage(vcpu), Stage::Loaded | Stage::LoadedByte),
        Micro::Enter(vcpu) => {
            stage(vcpu) == Stage::Taken && !owed_waits(program, state, vcpu.into())
        }
        Micro::GiveTag(from, _) => {
            (0..program.vcpus).all(|id| program.vm_of[id] != from || !state.is_in_guest(id))
        }
        _ => true,
    }
}

fn owed_waits(program: &Program, state: &State, vcpu: usize) -> bool {
    let owed = state.owed[vcpu];
    owed != 0 && whole_flush_waits(program, state, vcpu, owed)
}

fn drain_may(machine: &Machine<'_>, state: &State, vcpu: usize) -> bool {
    let program = machine.program;
    let open = state.open[usize::from(state.vcpus[vcpu].pcpu)];
    if !program.drains() {
        return true;
    }
    match machine.hardware {
        Hardware::Literal => open.iter().all(|entries| *entries == 0),
        Hardware::MayHold => !latched(program, state, vcpu, |holder| open[holder]),
    }
}

/// What a host that may move the vCPU at will can do with it next.
fn free(machine: &Machine<'_>, state: &State, vcpu: usize, steps: &mut Vec<Step>) {
    let program = machine.program;
    let at = &state.vcpus[vcpu];
    if at.stage == Stage::Guest && at.moves_left == 0 {
        return;
    }
    let id = vcpu as u8;
    let targets = match at.stage {
        Stage::Off if program.policy.may_migrate() => 0..(program.pcpus - program.devices) as u8,
        Stage::Off => id..id + 1,
        _ => 0..1,
    };
    for pcpu in targets {
        if host_may(machine, state, free_move(program, state, id, pcpu)) {
            steps.push(Step::Free { vcpu: id, pcpu });
        }
    }
}

/// The part of a move that comes next for a vCPU in its stage.
pub(crate) fn free_move(program: &Program, state: &State, vcpu: u8, pcpu: u8) -> Micro {
    let is_split = program.has(Dial::LostFlag);
    match state.vcpus[usize::from(vcpu)].stage {
        Stage::Guest => Micro::Exit(vcpu),
        Stage::Left if is_split => Micro::MarkLoad(vcpu),
        Stage::Left | Stage::LeftByte => Micro::Mark(vcpu),
        Stage::Off => Micro::Load(vcpu, pcpu),
        Stage::Loaded if is_split => Micro::ExchangeLoad(vcpu),
        Stage::Loaded | Stage::LoadedByte => Micro::Exchange(vcpu),
        Stage::Taken => Micro::Enter(vcpu),
    }
}

fn literal(program: &Program, state: &State, steps: &mut Vec<Step>) {
    for vcpu in (0..program.vcpus).filter(|vcpu| state.is_in_guest(*vcpu)) {
        let at = &state.vcpus[vcpu];
        let held = program.untagged(state.tlb[usize::from(at.pcpu)], at.tag);
        let valid = state.valid & program.in_space[usize::from(at.space)];
        steps.extend(
            bits(valid & !held)
                .map(|translation| Step::Fill { vcpu: vcpu as u8, translation: translation as u8 }),
        );
    }
    for from in 0..program.pcpus {
        for to in (0..program.pcpus).filter(|to| state.open[from][*to] != 0) {
            let entries = state.open[from][to];
            if !latched(program, state, usize::MAX, |pcpu| if pcpu == to { entries } else { 0 }) {
                steps.push(Step::Deliver { from: from as u8, to: to as u8 });
            }
        }
    }
}
