//! Every shipped algorithm keeps its promises in every interleaving, and every mutant
//! breaks one.
//!
//! Each answer is printed: `cargo test --test protocol -- --nocapture`.

use std::collections::HashSet;

use pv_tlb_model::explore::{Ending, Method, System};
use pv_tlb_model::protocol::{Machine, Mutant, Row, Setup, answer, broken, sound};

fn answers(of: impl Fn(&Setup) -> bool) -> Vec<Row> {
    let rows: Vec<Row> = sound().into_iter().filter(of).map(answer).collect();
    for row in &rows {
        println!("{row}");
    }
    rows
}

fn assert_sound(rows: &[Row]) {
    for row in rows {
        if let Some(found) = &row.outcome.counterexample {
            let trace = Machine::new(row.setup.clone()).trace(&found.steps);
            panic!("{row}\n{}", trace.join("\n"));
        }
    }
}

#[test]
fn every_algorithm_keeps_its_promises_in_every_interleaving_of_two_vcpus() {
    let rows = answers(|setup| setup.programs.len() == 2);
    assert_sound(&rows);
    for row in &rows {
        assert_eq!(row.outcome.method, Method::Exhaustive, "{row}");
    }
    let names: HashSet<&str> = rows.iter().map(|row| row.setup.name).collect();
    for name in [
        "ipi",
        "ipi, generation read first",
        "kvm-pv",
        "doorbell, acks",
        "doorbell, membarrier",
        "doorbell, adaptive",
        "invlpgb",
        "rar, naive",
        "rar, optimised",
        "active_cpu",
    ] {
        assert!(names.contains(name), "{name} is not asked about");
    }
}

#[test]
fn every_algorithm_keeps_its_promises_at_three_vcpus() {
    let rows = answers(|setup| setup.programs.len() == 3);
    assert_sound(&rows);
    for row in &rows {
        let is_as_asked = match row.setup.random_walks {
            0 => row.outcome.method == Method::Exhaustive,
            walks => {
                matches!(row.outcome.method, Method::Random { walks: made, .. } if made == walks)
            }
        };
        assert!(is_as_asked, "{row}");
    }
}

#[test]
fn every_mutant_is_caught_and_its_counterexample_replays() {
    let rows: Vec<Row> = broken().into_iter().map(answer).collect();
    for row in &rows {
        println!("{row}");
    }
    assert_eq!(rows.len(), Mutant::ALL.len());
    let document = include_str!("../../../docs/protocols.md");
    for row in &rows {
        let (name, with) = (row.setup.mutant.map_or("", Mutant::name), row.setup.name);
        let steps = row.failure().map_or(0, |(_, steps)| steps);
        let is_said = |line: &str| {
            line.starts_with(&format!("| {name} | {with} |"))
                && line.ends_with(&format!("| {steps} |"))
        };
        assert!(document.lines().any(is_said), "docs/protocols.md lacks: {row}");
    }
    for row in rows {
        let found = row.outcome.counterexample.clone().unwrap_or_else(|| panic!("escaped: {row}"));
        let machine = Machine::new(row.setup.clone());
        let mut state = machine.initial();
        let (last, before) = found.steps.split_last().expect("a start breaks nothing");
        for step in before {
            let result = machine.apply(&mut state, *step);
            assert_eq!(result, Ok(()), "{row}: at {step:?}");
        }
        let result = machine.apply(&mut state, *last);
        match found.ending {
            Ending::Broken(fault) => assert_eq!(result, Err(fault), "{row}"),
            Ending::Stuck => {
                let mut enabled = Vec::new();
                machine.enabled(&state, &mut enabled);
                assert!(enabled.is_empty() && !machine.is_done(&state), "{row}: {enabled:?}");
            }
        }
    }
}

#[test]
fn without_its_mutation_each_mutants_setup_is_sound() {
    // The largest is among the algorithms' own questions.
    let sane = broken().into_iter().filter(|setup| setup.programs.len() == 2);
    for setup in sane {
        let mutant = setup.mutant;
        // The erratum's workaround is a rule of the guest.
        if mutant == Some(Mutant::OneSyncOfTwo) {
            continue;
        }
        let row = answer(Setup { mutant: None, ..setup });
        assert_eq!(row.failure(), None, "{mutant:?} blames a sound setup");
        assert_eq!(row.outcome.method, Method::Exhaustive, "{row}");
    }
}

#[test]
fn one_setup_explored_twice_gives_one_answer() {
    let setup = || broken().swap_remove(0);
    let (one, other) = (answer(setup()), answer(setup()));
    assert_eq!(one.outcome.counterexample, other.outcome.counterexample);
    assert_eq!(one.outcome.states, other.outcome.states);
}
