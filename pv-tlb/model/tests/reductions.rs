//! The explorer's short cuts lose nothing: random scripts, with and without them.
//!
//! No state.

use std::collections::BTreeSet;

use pv_tlb::plan::HostPolicy;
use pv_tlb_model::explore::{Limits, exhaustive, survey};
use pv_tlb_model::generate::{Shape, scenario};
use pv_tlb_model::machine::{Fault, Hardware, Machine, Step};
use pv_tlb_model::program::{Program, compile};
use pv_tlb_model::world::{Dial, World};

const SCRIPTS: u64 = 200;

/// Every script in a world that moves on with the seed: all policies are used, those
/// that can fail more often.
fn programs(shape: Shape) -> impl Iterator<Item = (u64, Program)> {
    (0..SCRIPTS).map(move |seed| {
        let unsound = HostPolicy::ALL.into_iter().filter(|policy| !policy.is_sound());
        let policies: Vec<_> = unsound.chain(HostPolicy::ALL).collect();
        let policy = policies[seed as usize % policies.len()];
        let world = World::of(policy);
        let world = if seed % 3 == 0 { world.with(Dial::NoDrain) } else { world };
        (seed, compile(&scenario(seed, shape), &world).expect("fits"))
    })
}

/// What can go wrong, by the line that does it, whatever came before.
fn faults(program: &Program, hardware: Hardware, sleep_sets: bool) -> (BTreeSet<String>, usize) {
    let machine = Machine::new(program, hardware);
    let limits = Limits { states: 3_000_000, sleep_sets };
    let mut found = BTreeSet::new();
    let (states, _, _) = survey(&machine, limits, |step: Step, fault: &Fault| {
        found.insert(format!("{step:?} {fault:?}"));
    });
    assert!(states < limits.states, "the search was cut off");
    (found, states)
}

#[test]
fn sets_of_what_may_be_held_find_what_literal_hardware_steps_find() {
    let shape = Shape { vcpus: 2, pcpus: 3, events: 40, move_percent: 50, is_concurrent: false };
    let mut bad = 0;
    for (seed, program) in programs(shape) {
        let (held, _) = faults(&program, Hardware::MayHold, false);
        let (literal, _) = faults(&program, Hardware::Literal, false);
        // The literal machine reports one candidate per path and goes no further on
        // it; the other one reports the first of all. Whether a line can fail, and
        // which line fails first, must agree.
        assert_eq!(held.is_empty(), literal.is_empty(), "seed {seed}: {held:?} {literal:?}");
        assert!(held.is_subset(&literal), "seed {seed}: {held:?} {literal:?}");
        bad += usize::from(!held.is_empty());
    }
    println!("{bad} of {SCRIPTS} scripts can fail");
    assert!(bad > 5, "only {bad} scripts can fail, so the test says little");
}

#[test]
fn sleep_sets_keep_every_state_every_fault_and_the_shortest_path() {
    let shape = Shape { vcpus: 2, pcpus: 3, events: 14, move_percent: 30, is_concurrent: true };
    let mut bad = 0;
    let mut saved = (0, 0);
    for (seed, program) in programs(shape) {
        let (with, states) = faults(&program, Hardware::MayHold, true);
        let (without, all_states) = faults(&program, Hardware::MayHold, false);
        assert_eq!(with, without, "seed {seed}");
        assert_eq!(states, all_states, "seed {seed}");
        let machine = Machine::new(&program, Hardware::MayHold);
        let search = |sleep_sets| {
            let outcome = exhaustive(&machine, Limits { states: 3_000_000, sleep_sets });
            let length = outcome.counterexample.map(|path| path.steps.len());
            (length, outcome.events)
        };
        let (short, long) = (search(true), search(false));
        assert_eq!(short.0, long.0, "seed {seed}");
        saved = (saved.0 + short.1, saved.1 + long.1);
        bad += usize::from(!with.is_empty());
    }
    println!("{bad} of {SCRIPTS} scripts can fail; steps with and without: {saved:?}");
    assert!(bad > 5, "only {bad} scripts can fail, so the test says little");
    assert!(saved.0 < saved.1, "sleep sets saved nothing: {saved:?}");
}
