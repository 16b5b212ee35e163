//! Exploring every interleaving of a system of concurrent steps.
//!
//! A [`System`] is any state machine that can list the steps enabled in a state and
//! perform one. [`exhaustive`] visits every reachable state and finds a shortest
//! counterexample; [`random`] samples walks where that is too much. Both are
//! single-threaded and own their tables for the length of the call.

mod exhaustive;
mod random;

pub use exhaustive::{Limits, exhaustive, survey};
pub use random::random;

use core::hash::Hash;

/// A state machine whose steps belong to concurrent actors.
pub trait System {
    /// A state; two equal states have the same future.
    type State: Clone + Eq + Hash;
    /// A step; performing it in a given state has one result.
    type Step: Copy + Eq;
    /// Why a step breaks a promise.
    type Fault: Clone;

    /// The state in which everything starts.
    fn initial(&self) -> Self::State;

    /// Appends the steps enabled in `state` to `steps`.
    fn enabled(&self, state: &Self::State, steps: &mut Vec<Self::Step>);

    /// Performs an enabled step.
    ///
    /// # Errors
    /// The broken promise, if the step breaks one; the path ends there.
    fn apply(&self, state: &mut Self::State, step: Self::Step) -> Result<(), Self::Fault>;

    /// True if nothing needs to happen any more. A state without enabled steps that
    /// is not done is stuck.
    fn is_done(&self, state: &Self::State) -> bool;

    /// True if the two steps, both enabled in `state` and of different actors,
    /// commute there: either order leads to the same state, neither switches the
    /// other on or off, and neither's fault depends on the other. `false` is always
    /// right; `true` lets the explorer leave one of the orders out.
    fn independent(&self, state: &Self::State, one: Self::Step, other: Self::Step) -> bool {
        let _ = (state, one, other);
        false
    }
}

/// How a path ends badly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending<F> {
    /// The last step breaks a promise.
    Broken(F),
    /// After the last step nothing can move and something still has to.
    Stuck,
}

/// A path from the initial state to a bad end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counterexample<St, F> {
    /// The steps, in order.
    pub steps: Vec<St>,
    /// What is wrong after the last one.
    pub ending: Ending<F>,
}

/// Which procedure gave a result, and what the result is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Every reachable state was visited, or a shortest counterexample was found.
    Exhaustive,
    /// Walks were sampled: a counterexample is real, its absence proves nothing.
    Random {
        /// Seed of the first walk.
        seed: u64,
        /// Number of walks.
        walks: u64,
    },
    /// The state limit was reached before the end: absence proves nothing.
    CutOff {
        /// The limit.
        states: usize,
    },
}

/// What an exploration found.
#[derive(Clone, Debug)]
pub struct Outcome<St, F> {
    /// A bad path, if one was found; after [`exhaustive`] a shortest one.
    pub counterexample: Option<Counterexample<St, F>>,
    /// How it was looked for.
    pub method: Method,
    /// Distinct states seen (0 for random walks, which keep none).
    pub states: usize,
    /// Steps performed.
    pub events: u64,
}
