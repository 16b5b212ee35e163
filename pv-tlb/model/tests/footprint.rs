//! Our policy is sound on random scripts that catch the unsound ones.
//!
//! No state. The example `footprint` does the same on millions.

use pv_tlb::plan::HostPolicy;
use pv_tlb_model::explore::{Limits, exhaustive};
use pv_tlb_model::generate::{Shape, scenario};
use pv_tlb_model::machine::{Hardware, Machine};
use pv_tlb_model::program::compile;
use pv_tlb_model::world::World;

fn broken(policy: HostPolicy, scripts: u64) -> usize {
    let shape = Shape { vcpus: 3, pcpus: 4, events: 24, move_percent: 35, is_concurrent: false };
    (0..scripts)
        .filter(|seed| {
            let program = compile(&scenario(*seed, shape), &World::of(policy)).expect("fits");
            let machine = Machine::new(&program, Hardware::MayHold);
            exhaustive(&machine, Limits::default()).counterexample.is_some()
        })
        .count()
}

#[test]
fn every_sound_policy_survives_the_scripts_that_break_every_unsound_one() {
    for policy in HostPolicy::ALL {
        let broken = broken(policy, 1_500);
        assert_eq!(broken == 0, policy.is_sound(), "{policy}: {broken} broken");
    }
}
