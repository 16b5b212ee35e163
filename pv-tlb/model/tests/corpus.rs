//! The scripts that come with the program keep what they promise.
//!
//! No state.

use std::collections::BTreeSet;

use pv_tlb::plan::HostPolicy;
use pv_tlb_model::corpus::{self, ALL};
use pv_tlb_model::run::{Effort, judge};
use pv_tlb_model::scenario::Scenario;
use pv_tlb_model::script::{format, parse, render};
use pv_tlb_model::verdict::Verdict;
use pv_tlb_model::world::World;

/// Scripts about prices, or about something that must simply work.
const WITHOUT_A_BAD_VERDICT: [&str; 5] = [
    "invlpgb-host-without-asid",
    "ipi-against-broadcast",
    "nested-flush-per-switch",
    "single-vcpu-broadcasts",
    "two-senders-at-once",
];

fn scenarios() -> impl Iterator<Item = Scenario> {
    ALL.iter().map(|script| {
        parse(script.source)
            .unwrap_or_else(|errors| panic!("{}", render(script.name, script.source, &errors)))
    })
}

#[test]
fn every_file_is_embedded_under_its_name_and_formatted() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../resources/scenarios");
    let files: BTreeSet<String> = std::fs::read_dir(folder)
        .expect("the folder is there")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
        .collect();
    let embedded: BTreeSet<String> =
        ALL.iter().map(|script| format!("{}.tlb", script.name)).collect();
    assert_eq!(files, embedded);
    for (script, scenario) in ALL.iter().zip(scenarios()) {
        assert_eq!(script.name, scenario.name);
        assert_eq!(format(script.source).as_deref(), Ok(script.source), "{}", script.name);
    }
}

#[test]
fn every_script_has_a_source_and_opposite_verdicts() {
    for scenario in scenarios() {
        let name = scenario.name.as_str();
        assert!(!scenario.links.is_empty(), "{name} has no link");
        let verdicts = scenario.expectations.iter().map(|expected| expected.verdict);
        assert!(verdicts.clone().any(|verdict| verdict == Verdict::Ok), "{name} is never ok");
        let has_bad = verdicts.into_iter().any(|verdict| verdict != Verdict::Ok);
        assert_eq!(has_bad, !WITHOUT_A_BAD_VERDICT.contains(&name), "{name}");
    }
}

#[test]
fn thirty_public_cases_are_scripts() {
    let cases: BTreeSet<u32> = scenarios().filter_map(|scenario| scenario.case).collect();
    assert!(cases.len() >= 30, "{} cases: {cases:?}", cases.len());
}

#[test]
fn every_expectation_is_met() {
    for scenario in scenarios() {
        for expected in &scenario.expectations {
            let judgement = judge(&scenario, &expected.world, &Effort::default()).expect("fits");
            let world = expected.world.describe(&scenario.options);
            assert_eq!(judgement.misses(expected), None, "{} on {world}", scenario.name);
        }
    }
}

#[test]
fn a_right_guest_is_safe_on_every_sound_policy_and_on_no_other() {
    let mut bitten = BTreeSet::new();
    for scenario in scenarios() {
        for policy in HostPolicy::ALL {
            let world = World::of(policy).with_options(scenario.matrix_options);
            let judgement = judge(&scenario, &world, &Effort::default()).expect("fits");
            if policy.is_sound() {
                assert_eq!(judgement.verdict, Verdict::Ok, "{} on {policy}", scenario.name);
            } else if judgement.verdict != Verdict::Ok {
                bitten.insert(policy.name());
            }
        }
    }
    let unsound = HostPolicy::ALL.into_iter().filter(|policy| !policy.is_sound());
    assert_eq!(bitten, unsound.map(HostPolicy::name).collect());
}

#[test]
fn the_example_in_the_documentation_is_right() {
    let document = include_str!("../../../docs/scenarios.md");
    let example = document.split("```text\n").nth(1).and_then(|rest| rest.split("```").next());
    let source = example.expect("an example");
    assert_eq!(format(source).as_deref(), Ok(source));
    let scenario = parse(source).expect("right");
    assert!(scenario.expectations.len() >= 2);
    for expected in &scenario.expectations {
        let judgement = judge(&scenario, &expected.world, &Effort::default()).expect("fits");
        assert_eq!(judgement.misses(expected), None);
    }
}

#[test]
fn an_unknown_name_is_answered_with_a_similar_one() {
    assert_eq!(corpus::find("h1-move-away").err(), Some("h1-move-away-and-back"));
    assert!(corpus::find("h1-move-away-and-back").is_ok());
}
