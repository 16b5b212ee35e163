//! Breadth-first search with state hashing and sleep sets.
//!
//! Visited states are remembered by a 128-bit fingerprint (two independently seeded
//! 64-bit hashes): among ten million states two collide with a probability below
//! 10⁻²⁴. Breadth-first order makes the first counterexample a shortest one.
//!
//! Sleep sets (Godefroid, 1996): after step a was explored in a state, its later
//! siblings that commute with it need not be followed by a again, since that only
//! reaches the same states. A state that is reached again with fewer sleeping steps
//! than before is taken up again for the difference. Sleep sets save steps, never
//! states, so every state keeps its shortest distance; a test compares with the
//! search without them.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash};

use foldhash::quality::FixedState;
use smallvec::SmallVec;

use super::{Counterexample, Ending, Method, Outcome, System};

/// How far a search may go.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Distinct states after which the search gives up.
    pub states: usize,
    /// Whether sleep sets are used.
    pub sleep_sets: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { states: 2_000_000, sleep_sets: true }
    }
}

type Sleep<St> = SmallVec<[St; 6]>;

/// How a state was first reached.
struct Node<St> {
    parent: u32,
    step: Option<St>,
}

/// A state waiting to be expanded.
struct Work<Sy: System> {
    state: Sy::State,
    node: u32,
    sleep: Sleep<Sy::Step>,
    /// Only these steps, if the state was expanded before.
    only: Option<Sleep<Sy::Step>>,
}

struct Search<'a, Sy: System> {
    system: &'a Sy,
    limits: Limits,
    seen: HashMap<u128, (u32, Sleep<Sy::Step>), FixedState>,
    nodes: Vec<Node<Sy::Step>>,
    queue: VecDeque<Work<Sy>>,
    hashers: [FixedState; 2],
    events: u64,
}

/// Searches all interleavings and stops at the first broken promise; a stuck state
/// is reported if no promise is broken anywhere.
pub fn exhaustive<Sy: System>(system: &Sy, limits: Limits) -> Outcome<Sy::Step, Sy::Fault> {
    let mut search = Search::new(system, limits);
    let mut stuck = None;
    let mut broken = None;
    let is_complete = search.run(|search, node, found| match found {
        Found::Broken(step, fault) => {
            let mut steps = search.path(node);
            steps.push(step);
            broken = Some(Counterexample { steps, ending: Ending::Broken(fault) });
            false
        }
        Found::Stuck => {
            stuck.get_or_insert_with(|| Counterexample {
                steps: search.path(node),
                ending: Ending::Stuck,
            });
            true
        }
    });
    let method = if is_complete || broken.is_some() {
        Method::Exhaustive
    } else {
        Method::CutOff { states: limits.states }
    };
    let counterexample = broken.or(stuck);
    Outcome { counterexample, method, states: search.nodes.len(), events: search.events }
}

/// Searches all interleavings, past every broken promise, and hands each of them to
/// `on_broken`, with the state it starts from. Returns the distinct states, the
/// stuck ones among them, and the steps performed.
pub fn survey<Sy: System>(
    system: &Sy,
    limits: Limits,
    mut on_broken: impl FnMut(Sy::Step, &Sy::Fault),
) -> (usize, usize, u64) {
    let mut search = Search::new(system, limits);
    let mut stuck = std::collections::HashSet::new();
    search.run(|_, node, found| {
        match found {
            Found::Broken(step, fault) => on_broken(step, &fault),
            Found::Stuck => {
                stuck.insert(node);
            }
        }
        true
    });
    (search.nodes.len(), stuck.len(), search.events)
}

enum Found<St, F> {
    Broken(St, F),
    Stuck,
}

impl<'a, Sy: System> Search<'a, Sy> {
    fn new(system: &'a Sy, limits: Limits) -> Self {
        let mut search = Self {
            system,
            limits,
            seen: HashMap::with_hasher(FixedState::with_seed(3)),
            nodes: Vec::new(),
            queue: VecDeque::new(),
            hashers: [FixedState::with_seed(1), FixedState::with_seed(2)],
            events: 0,
        };
        let state = system.initial();
        let print = search.fingerprint(&state);
        search.seen.insert(print, (0, Sleep::new()));
        search.nodes.push(Node { parent: 0, step: None });
        search.queue.push_back(Work { state, node: 0, sleep: Sleep::new(), only: None });
        search
    }

    fn fingerprint(&self, state: &impl Hash) -> u128 {
        let [high, low] = &self.hashers;
        u128::from(high.hash_one(state)) << 64 | u128::from(low.hash_one(state))
    }

    fn path(&self, mut node: u32) -> Vec<Sy::Step> {
        let mut steps = Vec::new();
        while let Some(step) = self.nodes[node as usize].step {
            steps.push(step);
            node = self.nodes[node as usize].parent;
        }
        steps.reverse();
        steps
    }

    /// Expands until nothing is left (true), `report` says stop, or the limit is hit.
    fn run(
        &mut self,
        mut report: impl FnMut(&Self, u32, Found<Sy::Step, Sy::Fault>) -> bool,
    ) -> bool {
        let mut enabled = Vec::new();
        while let Some(work) = self.queue.pop_front() {
            if self.system.is_done(&work.state) {
                continue;
            }
            enabled.clear();
            self.system.enabled(&work.state, &mut enabled);
            if enabled.is_empty() && !report(self, work.node, Found::Stuck) {
                return false;
            }
            let mut sleep = work.sleep.clone();
            for step in &enabled {
                let is_left_out = match &work.only {
                    Some(only) => !only.contains(step),
                    None => work.sleep.contains(step),
                };
                if is_left_out {
                    continue;
                }
                let mut state = work.state.clone();
                self.events += 1;
                match self.system.apply(&mut state, *step) {
                    Err(fault) => {
                        if !report(self, work.node, Found::Broken(*step, fault)) {
                            return false;
                        }
                    }
                    Ok(()) => {
                        let slept = self.still_asleep(&work.state, &sleep, *step);
                        self.reach(state, work.node, *step, slept);
                    }
                }
                if self.limits.sleep_sets {
                    sleep.push(*step);
                }
            }
            if self.nodes.len() > self.limits.states {
                return false;
            }
        }
        true
    }

    fn still_asleep(
        &self,
        state: &Sy::State,
        sleep: &Sleep<Sy::Step>,
        step: Sy::Step,
    ) -> Sleep<Sy::Step> {
        let commutes = |other: &&Sy::Step| self.system.independent(state, **other, step);
        sleep.iter().filter(commutes).copied().collect()
    }

    fn reach(&mut self, state: Sy::State, parent: u32, step: Sy::Step, sleep: Sleep<Sy::Step>) {
        let print = self.fingerprint(&state);
        if let Some((node, asleep)) = self.seen.get_mut(&print) {
            let woken: Sleep<_> =
                asleep.iter().filter(|step| !sleep.contains(step)).copied().collect();
            if !woken.is_empty() {
                asleep.retain(|step| sleep.contains(step));
                let work = Work { state, node: *node, sleep: asleep.clone(), only: Some(woken) };
                self.queue.push_back(work);
            }
            return;
        }
        let node = self.nodes.len() as u32;
        self.nodes.push(Node { parent, step: Some(step) });
        self.seen.insert(print, (node, sleep.clone()));
        self.queue.push_back(Work { state, node, sleep, only: None });
    }
}
