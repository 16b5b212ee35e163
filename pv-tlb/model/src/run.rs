//! From a scenario and a world to a verdict, a price and a readable trace.
//!
//! Pure but for the clock that times the exploration; nothing is kept.

mod trace;

pub use trace::{Trace, TraceRow};

use std::time::{Duration, Instant};

use crate::explore::System;
use crate::explore::{Counterexample, Ending, Limits, Method, exhaustive, random};
use crate::machine::{Fault, Hardware, Machine, Step};
use crate::program::{CompileError, Program, compile};
use crate::scenario::{Expectation, Scenario};
use crate::verdict::{Price, Verdict};
use crate::world::World;

/// How thoroughly to look.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Bounds of the exhaustive search.
    pub limits: Limits,
    /// Seed of the random walks made if those bounds are hit.
    pub seed: u64,
    /// Number of those walks.
    pub walks: u64,
    /// How the hardware's own freedom is explored.
    pub hardware: Hardware,
}

impl Default for Effort {
    fn default() -> Self {
        Self { limits: Limits::default(), seed: 1, walks: 20_000, hardware: Hardware::MayHold }
    }
}

/// What became of one scenario in one world.
#[derive(Clone, Debug)]
pub struct Judgement {
    /// The world.
    pub world: World,
    /// The verdict.
    pub verdict: Verdict,
    /// What a run in script order costs; `None` if it ends before the end.
    pub price: Option<Price>,
    /// Which procedure gave the verdict.
    pub method: Method,
    /// Distinct states.
    pub states: usize,
    /// Steps performed.
    pub events: u64,
    /// Time spent exploring.
    pub elapsed: Duration,
    /// The bad interleaving, unless the verdict is ok.
    pub trace: Option<Trace>,
}

impl Judgement {
    /// What differs from `expected`, as a sentence; `None` if nothing does.
    #[must_use]
    pub fn misses(&self, expected: &Expectation) -> Option<String> {
        if self.verdict != expected.verdict {
            return Some(format!("verdict {}, expected {}", self.verdict, expected.verdict));
        }
        let wanted = expected.price;
        let price = self.price.unwrap_or_default();
        let pairs = [
            ("broadcasts", price.broadcasts, wanted.broadcasts),
            ("disturbed", price.disturbed, wanted.disturbed),
            ("dropped", price.dropped, wanted.dropped),
        ];
        let differs = |(what, found, wanted): &(&str, u32, Option<u32>)| {
            let wanted = (*wanted).filter(|wanted| wanted != found)?;
            Some(format!("{what} {found}, expected {wanted}"))
        };
        pairs.iter().find_map(differs)
    }
}

/// Explores `scenario` in `world`.
///
/// # Errors
/// If the scenario exceeds a fixed size of the model.
pub fn judge(
    scenario: &Scenario,
    world: &World,
    effort: &Effort,
) -> Result<Judgement, CompileError> {
    let program = compile(scenario, world)?;
    let machine = Machine::new(&program, effort.hardware);
    let begun = Instant::now();
    let mut outcome = exhaustive(&machine, effort.limits);
    if matches!(outcome.method, Method::CutOff { .. }) {
        let visited = (outcome.states, outcome.events);
        outcome = random(&machine, effort.seed, effort.walks);
        outcome.states += visited.0;
        outcome.events += visited.1;
    }
    let elapsed = begun.elapsed();
    let verdict = outcome.counterexample.as_ref().map_or(Verdict::Ok, verdict_of);
    let trace =
        outcome.counterexample.map(|counterexample| Trace::of(scenario, &machine, &counterexample));
    Ok(Judgement {
        world: *world,
        verdict,
        price: price_in_order(&machine),
        method: outcome.method,
        states: outcome.states,
        events: outcome.events,
        elapsed,
        trace,
    })
}

fn verdict_of(counterexample: &Counterexample<Step, Fault>) -> Verdict {
    match counterexample.ending {
        Ending::Broken(fault) => fault.verdict(),
        Ending::Stuck => Verdict::Hang,
    }
}

/// The price of the run that takes lines in script order and answers at once.
fn price_in_order(machine: &Machine<'_>) -> Option<Price> {
    let mut price = Price::default();
    let mut state = machine.initial();
    let mut enabled = Vec::new();
    while !machine.is_done(&state) {
        enabled.clear();
        machine.enabled(&state, &mut enabled);
        let step = enabled.iter().min_by_key(|step| in_order(machine.program(), &state, **step))?;
        machine.perform(&mut state, *step, &mut price).ok()?;
    }
    Some(price)
}

/// Answers first, then lines by number, then what the host may do at will.
fn in_order(program: &Program, state: &crate::machine::State, step: Step) -> u32 {
    match step {
        Step::Op { actor, .. } => {
            1 + state.next(program, actor.into()).map_or(0, |next| u32::from(next.line))
        }
        Step::Free { .. } => u32::MAX,
        _ => 0,
    }
}
