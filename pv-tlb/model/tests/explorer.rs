//! The explorer on systems that have nothing to do with TLBs.
//!
//! No state.

use std::cell::Cell;

use pv_tlb_model::explore::{
    Counterexample, Ending, Limits, Method, System, exhaustive, random, survey,
};

/// Threads that each perform a list of steps on shared words; a step is a function
/// that says what it does, or that it waits.
struct Threads<const N: usize> {
    programs: [Vec<StepFunction<N>>; N],
    /// What must hold in every state.
    invariant: fn(&Shared<N>) -> bool,
}

type StepFunction<const N: usize> = fn(&mut Shared<N>, usize) -> Progress;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Shared<const N: usize> {
    words: [u8; 3],
    registers: [u8; N],
    counters: [usize; N],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Done,
    Waits,
}

impl<const N: usize> System for Threads<N> {
    type State = Shared<N>;
    type Step = usize;
    type Fault = &'static str;

    fn initial(&self) -> Shared<N> {
        Shared { words: [0; 3], registers: [0; N], counters: [0; N] }
    }

    fn enabled(&self, state: &Shared<N>, steps: &mut Vec<usize>) {
        steps.extend((0..N).filter(|thread| {
            let next = self.programs[*thread].get(state.counters[*thread]);
            next.is_some_and(|step| step(&mut state.clone(), *thread) == Progress::Done)
        }));
    }

    fn apply(&self, state: &mut Shared<N>, thread: usize) -> Result<(), &'static str> {
        self.programs[thread][state.counters[thread]](state, thread);
        state.counters[thread] += 1;
        if (self.invariant)(state) { Ok(()) } else { Err("the invariant is broken") }
    }

    fn is_done(&self, state: &Shared<N>) -> bool {
        self.programs.iter().zip(state.counters).all(|(program, at)| at == program.len())
    }
}

const COUNTER: usize = 0;
const INSIDE: usize = 1;
const LOCK: usize = 2;

fn load<const N: usize>(shared: &mut Shared<N>, thread: usize) -> Progress {
    shared.registers[thread] = shared.words[COUNTER];
    Progress::Done
}

fn store<const N: usize>(shared: &mut Shared<N>, thread: usize) -> Progress {
    shared.words[COUNTER] = shared.registers[thread] + 1;
    Progress::Done
}

fn lock<const N: usize>(shared: &mut Shared<N>, _: usize) -> Progress {
    if shared.words[LOCK] == 1 {
        return Progress::Waits;
    }
    shared.words[LOCK] = 1;
    Progress::Done
}

fn unlock<const N: usize>(shared: &mut Shared<N>, _: usize) -> Progress {
    shared.words[LOCK] = 0;
    Progress::Done
}

fn enter<const N: usize>(shared: &mut Shared<N>, _: usize) -> Progress {
    shared.words[INSIDE] += 1;
    Progress::Done
}

fn leave<const N: usize>(shared: &mut Shared<N>, _: usize) -> Progress {
    shared.words[INSIDE] -= 1;
    Progress::Done
}

fn lost_update<const N: usize>(shared: &Shared<N>) -> bool {
    shared.counters.iter().any(|at| *at < 2) || usize::from(shared.words[COUNTER]) == N
}

#[test]
fn a_lost_update_is_found_by_a_shortest_path() {
    let threads =
        Threads { programs: [vec![load, store], vec![load, store]], invariant: lost_update };
    let outcome = exhaustive(&threads, Limits::default());
    let Some(Counterexample { steps, ending: Ending::Broken(_) }) = outcome.counterexample else {
        panic!("not found");
    };
    assert_eq!(steps.len(), 4);
    assert_eq!(outcome.method, Method::Exhaustive);
}

#[test]
fn mutual_exclusion_holds_with_the_lock_and_not_without() {
    let excluded = |shared: &Shared<3>| shared.words[INSIDE] <= 1;
    let with: Vec<StepFunction<3>> = vec![lock, enter, leave, unlock];
    let without: Vec<StepFunction<3>> = vec![enter, leave];
    let programs = [with.clone(), with.clone(), with.clone()];
    let outcome = exhaustive(&Threads { programs, invariant: excluded }, Limits::default());
    assert!(outcome.counterexample.is_none());
    let programs = [with.clone(), without, with];
    let outcome = exhaustive(&Threads { programs, invariant: excluded }, Limits::default());
    assert_eq!(outcome.counterexample.expect("broken").steps.len(), 3);
}

#[test]
fn a_lock_that_is_never_released_is_reported_as_stuck() {
    let program: Vec<StepFunction<2>> = vec![lock, enter];
    let threads = Threads { programs: [program.clone(), program], invariant: |_| true };
    let outcome = exhaustive(&threads, Limits::default());
    assert_eq!(outcome.counterexample.expect("stuck").ending, Ending::Stuck);
    let sampled = random(&threads, 5, 10);
    assert_eq!(sampled.counterexample.expect("stuck").ending, Ending::Stuck);
    assert_eq!(sampled.method, Method::Random { seed: 5, walks: 10 });
}

#[test]
fn a_limit_that_is_reached_is_reported() {
    let program: Vec<StepFunction<3>> = vec![lock, enter, leave, unlock];
    let programs = [program.clone(), program.clone(), program];
    let limits = Limits { states: 5, ..Limits::default() };
    let outcome = exhaustive(&Threads { programs, invariant: |_| true }, limits);
    assert_eq!(outcome.method, Method::CutOff { states: 5 });
    assert!(outcome.counterexample.is_none());
}

#[test]
fn a_survey_goes_past_every_fault() {
    let threads =
        Threads { programs: [vec![load, store], vec![load, store]], invariant: lost_update };
    let faults = Cell::new(0);
    let (states, stuck, events) =
        survey(&threads, Limits::default(), |_, _| faults.set(faults.get() + 1));
    assert!(faults.get() >= 1 && states > 4 && events > 4);
    assert_eq!(stuck, 0);
}
