//! A setup as a state machine for the explorer.
//!
//! Owner: one exploration, which also owns the tree of points that the vCPUs' code has
//! reached. Every access of the code is a step of its own, except those to words that
//! nobody but the vCPU itself can see: made while it holds requests back, they join
//! the step before them.

use std::cell::RefCell;

use pv_tlb::id::VcpuId;
use pv_tlb::shootdown::{INIT_MM, SWITCHING, Word};

use super::access::Access;
use super::host;
use super::memory::{PAGES, cell, encode};
use super::mutant::Mutant;
use super::perform::{self, Fault, Step as Perform, read, uses_freed_table};
use super::replay::{Code, Constants, Recorder, SharedTree, Tree};
use super::setup::Setup;
use super::state::{Place, State};
use crate::explore::System;

/// Stores that fit a store buffer.
const BUFFER: usize = 8;

/// One step of the modelled machine; vCPUs by their index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The vCPU's code makes its next access; the number chooses a hint's answer.
    Run(u8, u8),
    /// The vCPU takes its pending interrupt.
    Interrupt(u8),
    /// The vCPU's oldest store becomes visible.
    Drain(u8),
    /// The vCPU's walker fills an entry for a page.
    Walk(u8, u8),
    /// The host moves the vCPU on.
    Host(u8),
    /// The host takes the vCPU off again.
    Retreat(u8),
    /// The host flushes late (mutant only).
    LateFlush(u8),
    /// The host moves the vCPU to its other pCPU.
    Migrate(u8),
    /// A broadcast reaches a target: issuer, its queue, place in it, target.
    Deliver(u8, u8, u8, u8),
    /// The vCPU's microcode looks at its action vector.
    Scan(u8),
}

/// See the module text.
pub struct Machine {
    setup: Setup,
    constants: Constants,
    tree: SharedTree,
}

impl Machine {
    /// The machine of a setup.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        let constants = setup.constants();
        Self { setup, constants, tree: RefCell::new(Tree::new()) }
    }

    fn run_code(&self, p: &Recorder<'_>, code: Code) {
        match code {
            Code::Interrupt(_) => self.setup.algorithm.interrupt(p),
            Code::Operation(vcpu, at) => {
                if let Some(op) = self.setup.op(usize::from(vcpu), at) {
                    self.setup.algorithm.run(p, op, self.setup.mutant);
                }
            }
        }
    }

    fn root(&self, code: Code) -> u32 {
        self.tree.borrow_mut().root(code, self.constants, |p| self.run_code(p, code))
    }

    /// The node that the vCPU's next step starts from; 0 if its code has ended.
    fn node(state: &State, v: usize) -> u32 {
        match state.vcpus[v].irq {
            0 => state.vcpus[v].node,
            irq => irq,
        }
    }

    fn pending(&self, state: &State, v: usize) -> Option<Access> {
        self.tree.borrow().pending(Self::node(state, v))
    }

    /// Moves the vCPU's code on by the result of its access.
    fn proceed(&self, state: &mut State, v: usize, result: u64) {
        let next = self.tree.borrow_mut().child(
            Self::node(state, v),
            result,
            self.constants,
            |p, code| self.run_code(p, code),
        );
        let is_over = self.tree.borrow().pending(next).is_none();
        let vcpu = &mut state.vcpus[v];
        match (vcpu.irq, is_over) {
            (0, false) => vcpu.node = next,
            (0, true) => self.start(state, v, state.vcpus[v].op + 1),
            (_, false) => vcpu.irq = next,
            (_, true) => vcpu.irq = 0,
        }
    }

    /// Starts the operation at `at`, or the next one that does anything.
    fn start(&self, state: &mut State, v: usize, at: u8) {
        let mut at = at;
        let mut node = 0;
        while node == 0 && self.setup.op(v, at).is_some() {
            node = self.root(Code::Operation(v as u8, at));
            if self.tree.borrow().pending(node).is_none() {
                node = 0;
                at += 1;
            }
        }
        state.vcpus[v].op = at;
        state.vcpus[v].node = node;
    }

    /// Performs the accesses that nobody else can see.
    fn run_private(&self, state: &mut State, v: usize) {
        let me = VcpuId(v as u32);
        while state.vcpus[v].irq != 0 || read(state, v, Word::Masked(me)) != 0 {
            match self.pending(state, v) {
                Some(access) if access.is_private(me, self.setup.algorithm.shows_slot()) => {
                    let result = match access {
                        Access::Load(word) => read(state, v, word),
                        Access::Store(word, value) => {
                            state.cells[usize::from(cell(word))] = encode(word, value);
                            0
                        }
                        _ => 0,
                    };
                    self.proceed(state, v, result);
                }
                _ => return,
            }
        }
    }

    /// True if the access can be made now.
    fn can(&self, state: &State, v: usize, access: Access) -> bool {
        let vcpu = &state.vcpus[v];
        match access {
            Access::Store(..) | Access::SetPte(..) => vcpu.buffer.len() < BUFFER,
            Access::Swap(..)
            | Access::CompareExchange(..)
            | Access::Add(..)
            | Access::Or(..)
            | Access::And(..)
            | Access::Fence
            | Access::InCall(_) => vcpu.buffer.is_empty(),
            Access::LoadMm(..)
            | Access::DropPage(_)
            | Access::DropContext
            | Access::DropSlot(..)
            | Access::Broadcast(..) => vcpu.fenced == 0,
            Access::Sync => {
                let returns_early = self.setup.erratum_1718 && !vcpu.half_synced;
                vcpu.buffer.is_empty() && (vcpu.in_flight[0].is_empty() || returns_early)
            }
            // A wait goes on when something that it looks at has changed.
            Access::Relax => self.tree.borrow().looks(Self::node(state, v)).any(|(look, seen)| {
                let now = match look {
                    Access::Load(word) | Access::CompareExchange(word, ..) => read(state, v, word),
                    Access::Waiting(target) => {
                        u64::from(state.vcpus[target.index()].inbox >> v & 1)
                    }
                    _ => seen,
                };
                now != seen
            }),
            _ => true,
        }
    }

    fn run(&self, state: &mut State, v: usize, choice: u8) -> Result<(), Fault> {
        let Some(access) = self.pending(state, v) else { return Ok(()) };
        let loses_requests = self.setup.mutant == Some(Mutant::UnlatchedScan);
        let store_buffers = self.setup.store_buffers;
        if access == Access::Sync {
            let vcpu = &mut state.vcpus[v];
            vcpu.half_synced = self.setup.erratum_1718 && !vcpu.half_synced;
        }
        let mut step = Perform { state, v, store_buffers, loses_requests };
        let result = step.perform(access, choice)?;
        self.proceed(state, v, result);
        Ok(())
    }

    fn enabled_of(&self, state: &State, v: usize, steps: &mut Vec<Step>) {
        let (vcpu, id) = (&state.vcpus[v], v as u8);
        let is_scanning = vcpu.scan != 255;
        if !vcpu.buffer.is_empty() {
            steps.push(Step::Drain(id));
        }
        if vcpu.runs() && vcpu.irq == 0 && vcpu.interrupt && !vcpu.irqs_off {
            steps.push(Step::Interrupt(id));
        }
        if vcpu.place == Place::Guest
            && !is_scanning
            && let Some(access) = self.pending(state, v)
            && self.can(state, v, access)
        {
            steps.push(Step::Run(id, 0));
            if matches!(access, Access::Hint(_)) {
                steps.push(Step::Run(id, 1));
            }
        }
        if vcpu.owed && vcpu.place == Place::Guest {
            steps.push(Step::LateFlush(id));
        }
        if is_scanning || vcpu.action_latch {
            steps.push(Step::Scan(id));
        }
        if self.setup.speculates && vcpu.runs() && vcpu.loaded.0 != INIT_MM {
            let slot = usize::from(vcpu.loaded.1);
            let walks = |page: &usize| {
                vcpu.tlb[slot][*page] == 0 || uses_freed_table(state, v, *page as u8)
            };
            steps.extend((0..PAGES).filter(walks).map(|page| Step::Walk(id, page as u8)));
        }
    }

    fn enabled_around(&self, state: &State, v: usize, steps: &mut Vec<Step>) {
        let (vcpu, id) = (&state.vcpus[v], v as u8);
        if host::can_step(self.setup.host, vcpu) {
            steps.push(Step::Host(id));
        }
        if host::can_retreat(self.setup.host, vcpu) {
            steps.push(Step::Retreat(id));
        }
        let is_drained = vcpu.in_flight[0].is_empty();
        if self.setup.migrates
            && !vcpu.on_spare
            && (is_drained || self.setup.mutant == Some(Mutant::SyncAfterMigration))
        {
            steps.push(Step::Migrate(id));
        }
        for (queue, flights) in vcpu.in_flight.iter().enumerate() {
            for (at, flight) in flights.iter().enumerate() {
                let targets = (0..state.vcpus.len() as u8).filter(|t| flight.left >> t & 1 != 0);
                steps.extend(targets.map(|t| Step::Deliver(id, queue as u8, at as u8, t)));
            }
        }
    }

    fn describe(&self, state: &State, step: Step) -> String {
        match step {
            Step::Run(v, _) => match self.pending(state, v.into()) {
                Some(Access::Load(word)) => match read(state, v.into(), word) {
                    SWITCHING => format!("v{v}: load {word:?}: switching"),
                    value => format!("v{v}: load {word:?}: {value}"),
                },
                Some(access) => format!("v{v}: {access}"),
                None => format!("v{v}: nothing"),
            },
            Step::Interrupt(v) => format!("v{v}: takes the interrupt"),
            Step::Drain(v) => format!("v{v}: its oldest store becomes visible"),
            Step::Walk(v, page) => format!("v{v}: the walker looks up page {page}"),
            Step::Host(v) | Step::Retreat(v) => {
                format!("host: v{v} is {:?}", state.vcpus[usize::from(v)].place)
            }
            Step::LateFlush(v) => format!("host: flushes v{v} at last"),
            Step::Migrate(v) => format!("host: v{v} moves to another pCPU"),
            Step::Deliver(v, _, _, to) => format!("v{to}: the broadcast of v{v} arrives"),
            Step::Scan(v) => format!("v{v}: the microcode scans"),
        }
    }

    /// A line for each step: what it does, and what it finds.
    #[must_use]
    pub fn trace(&self, steps: &[Step]) -> Vec<String> {
        let mut state = self.initial();
        let mut lines = Vec::new();
        for step in steps {
            let line = self.describe(&state, *step);
            let result = self.apply(&mut state, *step);
            lines.push(match *step {
                Step::Host(v) | Step::Retreat(v) => {
                    format!("{line}, then {:?}", state.vcpus[usize::from(v)].place)
                }
                _ => line,
            });
            if let Err(fault) = result {
                lines.push(fault.to_string());
            }
        }
        lines
    }
}

impl System for Machine {
    type State = State;
    type Step = Step;
    type Fault = Fault;

    /// Every vCPU has its prologue behind it.
    fn initial(&self) -> State {
        let mut state = State::new(self.setup.programs.len(), self.setup.preemptions);
        for v in 0..state.vcpus.len() {
            self.start(&mut state, v, 0);
        }
        for v in 0..state.vcpus.len() {
            while usize::from(state.vcpus[v].op) < self.setup.prologue.len() {
                match self.pending(&state, v).filter(|access| self.can(&state, v, *access)) {
                    Some(_) => self.run(&mut state, v, 0).expect("a prologue breaks nothing"),
                    None => perform::drain(&mut state, v),
                }
            }
            while !state.vcpus[v].buffer.is_empty() {
                perform::drain(&mut state, v);
            }
        }
        state
    }

    fn enabled(&self, state: &State, steps: &mut Vec<Step>) {
        for v in 0..state.vcpus.len() {
            self.enabled_of(state, v, steps);
            self.enabled_around(state, v, steps);
        }
    }

    fn apply(&self, state: &mut State, step: Step) -> Result<(), Fault> {
        match step {
            Step::Run(v, choice) => {
                self.run(state, v.into(), choice)?;
                self.run_private(state, v.into());
            }
            Step::Interrupt(v) => {
                let vcpu = &mut state.vcpus[usize::from(v)];
                vcpu.interrupt = false;
                let root = self.root(Code::Interrupt(v));
                // An algorithm without interrupts has nothing to do.
                let is_idle = self.tree.borrow().pending(root).is_none();
                state.vcpus[usize::from(v)].irq = if is_idle { 0 } else { root };
                self.run_private(state, v.into());
            }
            Step::Drain(v) => perform::drain(state, v.into()),
            Step::Walk(v, page) => {
                let mut step =
                    Perform { state, v: v.into(), store_buffers: false, loses_requests: false };
                step.walk(page)?;
            }
            Step::Host(v) => host::step(self.setup.host, self.setup.mutant, state, v.into()),
            Step::Retreat(v) => host::retreat(self.setup.mutant, state, v.into()),
            Step::LateFlush(v) => {
                let vcpu = &mut state.vcpus[usize::from(v)];
                vcpu.owed = false;
                vcpu.drop_slot(None, None);
            }
            Step::Migrate(v) => {
                let vcpu = &mut state.vcpus[usize::from(v)];
                vcpu.on_spare = true;
                vcpu.in_flight.swap(0, 1);
                vcpu.drop_slot(None, None);
            }
            Step::Deliver(v, queue, at, target) => {
                perform::deliver(state, v.into(), queue.into(), at.into(), target.into());
            }
            Step::Scan(v) => perform::scan(state, v.into()),
        }
        Ok(())
    }

    fn is_done(&self, state: &State) -> bool {
        state.vcpus.iter().all(|vcpu| vcpu.node == 0 && vcpu.irq == 0)
    }
}
