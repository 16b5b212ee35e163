//! Lines into small steps.
//!
//! The lowering owns what it knows about the program so far: the space that each
//! actor has loaded at this point of its text. It is dropped with the compilation.

use super::compile::{CompileError, is_active, mask_of, with_copies};
use super::{ACTORS, CompiledPhase, HOST, Instruction, Micro, Program};
use crate::scenario::{Actor, Addresses, Extent, Isa, Mapping, Op, Phase, Scenario, Way};
use crate::world::{Dial, World};

pub(super) struct Lowering<'a> {
    scenario: &'a Scenario,
    world: &'a World,
    loaded: [usize; ACTORS],
    next_line: u16,
}

impl<'a> Lowering<'a> {
    pub(super) fn new(scenario: &'a Scenario, world: &'a World) -> Self {
        let mut loaded = [0; ACTORS];
        for start in &scenario.starts {
            loaded[start.vcpu] = start.space;
        }
        Self { scenario, world, loaded, next_line: 0 }
    }

    pub(super) fn phases(mut self, program: &mut Program) -> Result<(), CompileError> {
        for phase in &self.scenario.phases {
            let compiled = self.phase(phase, program)?;
            if compiled.actors.iter().any(|actor| !actor.is_empty()) {
                program.phases.push(compiled);
            }
        }
        Ok(())
    }

    fn phase(
        &mut self,
        phase: &Phase,
        program: &mut Program,
    ) -> Result<CompiledPhase, CompileError> {
        let mut compiled = CompiledPhase::default();
        for line in &phase.lines {
            let number = self.next_line;
            self.next_line += 1;
            if !is_active(line, self.world) {
                continue;
            }
            let actor = match line.actor {
                Actor::Vcpu(vcpu) => vcpu,
                Actor::Host => HOST,
            };
            let mut micros = Vec::new();
            self.line(actor, &line.op, program, &mut micros);
            // 255 would not leave room for "number plus 1".
            if program.flushes.len() > 254 {
                return Err(CompileError::Flushes(program.flushes.len()));
            }
            let in_parts = micros.len() > 1;
            compiled.actors[actor].extend(micros.into_iter().map(|micro| Instruction {
                micro,
                line: number,
                in_parts,
            }));
        }
        Ok(compiled)
    }

    fn line(&mut self, actor: usize, op: &Op, program: &mut Program, out: &mut Vec<Micro>) {
        match op {
            Op::Access(kind, page, must) => out.push(Micro::Access(*kind, *page as u8, *must)),
            Op::Begin(kind, page) => out.push(Micro::Begin(*kind, *page as u8)),
            Op::Finish => out.push(Micro::Finish),
            Op::SetPte { page, space, mapping } => {
                out.push(self.store(*page, *space, *mapping));
            }
            Op::CutTable(table) => out.push(self.cut(*table)),
            Op::Flush(extent, way) => self.flush(actor, extent, way, program, out),
            Op::Sync(here) => out.push(Micro::Sync(*here)),
            Op::Wait => out.push(Micro::Wait),
            Op::Free(frame) => out.push(Micro::Free(*frame as u8)),
            Op::Freeze(frame) => out.push(Micro::Freeze(*frame as u8)),
            Op::Switch(space, flushing) => out.push(self.switch(actor, *space, *flushing, program)),
            Op::Set(mark) => out.push(Micro::Set(*mark as u8)),
            Op::Await(mark) => out.push(Micro::Await(*mark as u8)),
            Op::RarPayload(slot, extent) => {
                let flush = self.add_flush(program, actor, extent, false);
                out.push(Micro::RarPayload(*slot as u8, flush));
            }
            Op::RarArm(target, slot) => out.push(Micro::RarArm(*target as u8, *slot as u8)),
            Op::RarRing(target) => out.push(Micro::RarRing(*target as u8)),
            Op::RarWait(target, slot) => out.push(Micro::RarWait(*target as u8, *slot as u8)),
            Op::Preempt(vcpu) => self.leave(*vcpu as u8, program.uses_flag, out),
            Op::Run(vcpu, pcpu) => self.arrive(*vcpu, *pcpu, program.uses_flag, out),
            Op::RunInVain(vcpu, pcpu) => self.almost(*vcpu, *pcpu, program.uses_flag, out),
            Op::Move(vcpu, pcpu) => {
                if self.world.policy.may_migrate() {
                    self.leave(*vcpu as u8, program.uses_flag, out);
                    self.arrive(*vcpu, *pcpu, program.uses_flag, out);
                }
            }
            Op::GiveTag(from, to) => out.push(Micro::GiveTag(*from as u8, *to as u8)),
            Op::HostFlush => out.push(Micro::HostFlush),
        }
    }

    fn store(&self, page: usize, space: usize, mapping: Option<usize>) -> Micro {
        let clear = self.leaves(|m| m.page == page && m.space == space);
        let set = mapping.map_or(0, |mapping| with_copies(self.scenario, 1 << mapping));
        Micro::Store { clear, set }
    }

    fn cut(&self, table: usize) -> Micro {
        let cut = &self.scenario.tables[table];
        let below = self.leaves(|m| m.space == cut.space && cut.pages.contains(&m.page));
        let own = 1 << (self.scenario.mappings.len() + table);
        Micro::Store { clear: own | below, set: 0 }
    }

    fn leaves(&self, wanted: impl Fn(&Mapping) -> bool) -> u64 {
        let mappings = self.scenario.mappings.iter().enumerate();
        let leaves = mappings.filter(|(_, m)| wanted(m)).fold(0, |mask, (i, _)| mask | 1 << i);
        with_copies(self.scenario, leaves)
    }

    fn switch(
        &mut self,
        actor: usize,
        space: usize,
        flushing: bool,
        program: &mut Program,
    ) -> Micro {
        self.loaded[actor] = space;
        let extent = Extent { addresses: Addresses::Space, leaf_only: false, space: Some(space) };
        let flush = if flushing { self.add_flush(program, actor, &extent, false) + 1 } else { 0 };
        Micro::Switch(space as u8, flush)
    }

    fn flush(
        &self,
        actor: usize,
        extent: &Extent,
        way: &Way,
        program: &mut Program,
        out: &mut Vec<Micro>,
    ) {
        let by_invlpg = matches!(way, Way::Locally | Way::Ipi(_) | Way::Flag(_));
        let flush = self.add_flush(program, actor, extent, by_invlpg);
        match way {
            Way::Locally => out.push(Micro::FlushLocal(flush)),
            Way::Everywhere => out.push(Micro::FlushBroadcast(flush)),
            Way::Ipi(targets) => {
                out.extend(targets.iter().map(|target| Micro::SendIpi(*target as u8, flush)));
            }
            Way::Flag(targets) => {
                for target in targets {
                    out.push(Micro::FlagLoad(*target as u8));
                    out.push(Micro::FlagSwap(*target as u8, flush));
                }
            }
            Way::Hypercall(targets) => {
                let targets = targets.iter().fold(0, |mask, target| mask | 1 << target);
                out.push(Micro::HostPost(targets, flush));
                out.push(Micro::HostWait(targets));
            }
        }
    }

    /// Notes a flush and returns its number.
    fn add_flush(
        &self,
        program: &mut Program,
        actor: usize,
        extent: &Extent,
        by_invlpg: bool,
    ) -> u8 {
        let by_page = matches!(extent.addresses, Addresses::Pages(_) | Addresses::Range { .. });
        let spares_globals = by_invlpg
            && by_page
            && self.scenario.isa == Isa::X86
            && self.world.dials.has(Dial::InvlpgGlobal);
        let covered = mask_of(&program.translations, |t| {
            t.is_covered(self.scenario, extent, self.loaded[actor]) && !(t.global && spares_globals)
        });
        // A number that does not fit is refused by the caller before it is used.
        let number = program.flushes.len() as u8;
        program.flushes.push(covered);
        number
    }

    fn leave(&self, vcpu: u8, uses_flag: bool, out: &mut Vec<Micro>) {
        out.push(Micro::Exit(vcpu));
        if uses_flag {
            if self.world.dials.has(Dial::LostFlag) {
                out.push(Micro::MarkLoad(vcpu));
            }
            out.push(Micro::Mark(vcpu));
        }
    }

    fn almost(&self, vcpu: usize, pcpu: usize, uses_flag: bool, out: &mut Vec<Micro>) {
        if uses_flag {
            let pcpu = if self.world.policy.may_migrate() { pcpu } else { vcpu };
            out.extend([Micro::Load(vcpu as u8, pcpu as u8), Micro::Mark(vcpu as u8)]);
        } else {
            // Nothing tells a visit that ends before entry from one that ends after it.
            self.arrive(vcpu, pcpu, uses_flag, out);
            self.leave(vcpu as u8, uses_flag, out);
        }
    }

    fn arrive(&self, vcpu: usize, pcpu: usize, uses_flag: bool, out: &mut Vec<Micro>) {
        let pcpu = if self.world.policy.may_migrate() { pcpu } else { vcpu };
        let vcpu = vcpu as u8;
        out.push(Micro::Load(vcpu, pcpu as u8));
        if uses_flag {
            if self.world.dials.has(Dial::LostFlag) {
                out.push(Micro::ExchangeLoad(vcpu));
            }
            out.push(Micro::Exchange(vcpu));
            out.push(Micro::Enter(vcpu));
        }
    }
}
