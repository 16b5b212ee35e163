//! Random walks, for systems that are too large to visit.
//!
//! The seed fixes every choice, so that a walk can be repeated.

use super::{Counterexample, Ending, Method, Outcome, System};

/// Makes `walks` walks and keeps the shortest that breaks a promise, or else the
/// shortest that gets stuck.
pub fn random<Sy: System>(system: &Sy, seed: u64, walks: u64) -> Outcome<Sy::Step, Sy::Fault> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut best: Option<Counterexample<Sy::Step, Sy::Fault>> = None;
    let mut events = 0;
    let mut enabled = Vec::new();
    for _ in 0..walks {
        let mut state = system.initial();
        let mut steps = Vec::new();
        let ending = loop {
            if system.is_done(&state) {
                break None;
            }
            enabled.clear();
            system.enabled(&state, &mut enabled);
            let Some(step) = rng.choice(&enabled) else {
                break Some(Ending::Stuck);
            };
            steps.push(*step);
            events += 1;
            if let Err(fault) = system.apply(&mut state, *step) {
                break Some(Ending::Broken(fault));
            }
        };
        if let Some(ending) = ending {
            let found = Counterexample { steps, ending };
            if best.as_ref().is_none_or(|best| is_better(&found, best)) {
                best = Some(found);
            }
        }
    }
    Outcome { counterexample: best, method: Method::Random { seed, walks }, states: 0, events }
}

fn is_better<St, F>(one: &Counterexample<St, F>, other: &Counterexample<St, F>) -> bool {
    let rank =
        |found: &Counterexample<St, F>| (matches!(found.ending, Ending::Stuck), found.steps.len());
    rank(one) < rank(other)
}
