//! A counterexample for people: what happened where, step by step.
//!
//! Plain values without state or ordering.

use crate::explore::{Counterexample, Ending, System};
use crate::machine::{Fault, Machine, State, Step, free_move};
use crate::program::{HOST, Micro, Program};
use crate::scenario::Scenario;
use crate::verdict::Price;

/// One step of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRow {
    /// pCPU on which it happens; `None` for a host event without one.
    pub pcpu: Option<usize>,
    /// What happens, such as `v0: flush X locally`.
    pub text: String,
    /// Line in the script, from 1; 0 for what no line says.
    pub line: usize,
}

/// An interleaving and what is wrong at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Number of pCPUs, devices' own included.
    pub pcpus: usize,
    /// The steps, in order.
    pub rows: Vec<TraceRow>,
    /// What is wrong, as a sentence.
    pub reason: String,
}

impl Trace {
    /// Replays `counterexample` and writes it down.
    pub(super) fn of(
        scenario: &Scenario,
        machine: &Machine<'_>,
        counterexample: &Counterexample<Step, Fault>,
    ) -> Self {
        let mut state = machine.initial();
        let mut rows = Vec::new();
        for step in &counterexample.steps {
            let before = state.clone();
            // The last step of a broken run fails again, as it did when it was found.
            let _ = machine.perform(&mut state, *step, &mut Price::default());
            rows.push(row(scenario, machine.program(), &before, &state, *step));
        }
        let reason = match counterexample.ending {
            Ending::Broken(fault) => fault.explain(machine.program()),
            Ending::Stuck => stuck(scenario, machine.program(), &state),
        };
        Self { pcpus: machine.program().pcpus, rows, reason }
    }
}

fn row(
    scenario: &Scenario,
    program: &Program,
    before: &State,
    after: &State,
    step: Step,
) -> TraceRow {
    let on = |vcpu: usize| after.pcpu_of(vcpu).or_else(|| before.pcpu_of(vcpu));
    let who = |vcpu: u8| program.vcpu_name(vcpu.into());
    let (pcpu, text, line) = match step {
        Step::Op { actor, .. } => return op_row(scenario, program, before, after, actor.into()),
        Step::Interrupt { target, sender } => (
            on(target.into()),
            format!("{}: interrupted by {}, flushes and answers", who(target), who(sender)),
            0,
        ),
        Step::Kick { target } => {
            (on(target.into()), format!("host: {} exits, is flushed and enters", who(target)), 0)
        }
        Step::Scan { target } => {
            (on(target.into()), format!("{}: hardware scans its action vector", who(target)), 0)
        }
        Step::Free { vcpu, pcpu } => {
            let part = free_move(program, before, vcpu, pcpu).part();
            (on(vcpu.into()), format!("host: {} {part}", who(vcpu)), 0)
        }
        Step::Fill { vcpu, translation } => {
            let what = program.describe(translation.into());
            (on(vcpu.into()), format!("{}: walker takes up {what}", who(vcpu)), 0)
        }
        Step::Deliver { from, to } => {
            (Some(to.into()), format!("hardware: acts on the broadcast of p{from}"), 0)
        }
    };
    TraceRow { pcpu, text, line }
}

fn op_row(
    scenario: &Scenario,
    program: &Program,
    before: &State,
    after: &State,
    actor: usize,
) -> TraceRow {
    let Some(instruction) = before.next(program, actor) else {
        return TraceRow { pcpu: None, text: String::new(), line: 0 };
    };
    let lines = scenario.phases.iter().flat_map(|phase| &phase.lines);
    let line = lines.into_iter().nth(instruction.line.into());
    let (mut text, number) =
        line.map_or((String::new(), 0), |line| (line.text.clone(), line.number));
    if instruction.in_parts && !instruction.micro.part().is_empty() {
        text = format!("{text} ({})", instruction.micro.part());
    }
    let vcpu = if actor == HOST { moved(instruction.micro) } else { Some(actor) };
    let pcpu = vcpu.and_then(|vcpu| after.pcpu_of(vcpu).or_else(|| before.pcpu_of(vcpu)));
    TraceRow { pcpu, text, line: number }
}

/// The vCPU that a host step moves.
fn moved(micro: Micro) -> Option<usize> {
    match micro {
        Micro::Exit(vcpu)
        | Micro::MarkLoad(vcpu)
        | Micro::Mark(vcpu)
        | Micro::Load(vcpu, _)
        | Micro::ExchangeLoad(vcpu)
        | Micro::Exchange(vcpu)
        | Micro::Enter(vcpu) => Some(vcpu.into()),
        _ => None,
    }
}

fn stuck(scenario: &Scenario, program: &Program, state: &State) -> String {
    let lines: Vec<_> = scenario.phases.iter().flat_map(|phase| &phase.lines).collect();
    let waiting: Vec<String> = (0..=HOST)
        .filter_map(|actor| state.next(program, actor))
        .filter_map(|next| {
            let line = lines.get(usize::from(next.line))?;
            let why = occupied(program, state, next.micro).unwrap_or_default();
            Some(format!("`{}`{why}", line.text))
        })
        .collect();
    format!("nothing can move any more and {} is never done", waiting.join(", "))
}

/// Who is in the way of a vCPU that the host wants to run.
fn occupied(program: &Program, state: &State, micro: Micro) -> Option<String> {
    let Micro::Load(_, pcpu) = micro else { return None };
    let pcpu = usize::from(pcpu);
    let other = (0..program.vcpus).find(|vcpu| state.pcpu_of(*vcpu) == Some(pcpu))?;
    Some(format!(" (p{pcpu} is occupied by {})", program.vcpu_name(other)))
}
