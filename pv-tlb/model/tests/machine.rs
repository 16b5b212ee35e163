//! Facts about the modelled machine, each by a few lines of script.
//!
//! No state.

use pv_tlb::plan::HostPolicy;
use pv_tlb_model::corpus::ALL;
use pv_tlb_model::explore::{Limits, Method};
use pv_tlb_model::machine::Hardware;
use pv_tlb_model::run::{Effort, Judgement, judge};
use pv_tlb_model::script::{parse, render};
use pv_tlb_model::verdict::{Price, Verdict};
use pv_tlb_model::world::{Dial, Dials, World};

const PINNED: World = World::of(HostPolicy::Pinned);

/// Judges `lines` behind a head with two vCPUs on two pCPUs and X mapped to F.
fn judged(isa: &str, lines: &str, world: World) -> Judgement {
    let source = format!(
        "scenario test \"A test\"\nisa {isa}\nvcpus 2\npcpus 2\nmap X -> F\n\
         start v0 on p0\nstart v1 on p1\n{}",
        lines.replace("; ", "\n")
    );
    let scenario =
        parse(&source).unwrap_or_else(|errors| panic!("{}", render("test", &source, &errors)));
    judge(&scenario, &world, &Effort::default()).expect("fits")
}

fn verdict(isa: &str, lines: &str) -> Verdict {
    judged(isa, lines, PINNED).verdict
}

#[test]
fn a_local_flush_is_open_on_arm_and_done_on_x86() {
    let lines = "v0: unmap X; v0: flush X locally; v0: free F; v0: read X";
    assert_eq!(verdict("arm64", lines), Verdict::Stale);
    assert_eq!(verdict("x86", lines), Verdict::Ok);
}

#[test]
fn a_broadcast_is_open_until_the_issuers_barrier_and_no_other() {
    let flush = "v0: unmap X; v0: flush X everywhere; ";
    let tail = "v0: free F; v1: read X";
    assert_eq!(verdict("arm64", &format!("{flush}{tail}")), Verdict::Stale);
    assert_eq!(verdict("arm64", &format!("{flush}v1: sync; {tail}")), Verdict::Stale);
    assert_eq!(verdict("arm64", &format!("{flush}v0: sync locally; {tail}")), Verdict::Stale);
    assert_eq!(verdict("arm64", &format!("{flush}v0: sync; {tail}")), Verdict::Ok);
}

#[test]
fn speculation_takes_up_what_is_valid_although_it_was_just_flushed() {
    let lines = "v0: flush X locally; v0: unmap X; v0: read X must fault";
    assert_eq!(verdict("x86", lines), Verdict::Stale);
    let demand = format!("fills demand; v0: read X; {lines}");
    assert_eq!(verdict("x86", &demand), Verdict::Ok);
}

#[test]
fn a_demand_filled_tlb_holds_only_what_was_accessed() {
    let lines = "v0: unmap X; v0: free F; v0: read X";
    assert_eq!(verdict("x86", lines), Verdict::Stale);
    assert_eq!(verdict("x86", &format!("fills demand; {lines}")), Verdict::Ok);
    assert_eq!(verdict("x86", &format!("fills demand; v0: read X; {lines}")), Verdict::Stale);
}

#[test]
fn an_access_under_way_holds_up_the_barrier() {
    let sequence = "v1: begin write X; v0: unmap X; v0: flush X everywhere; v0: sync; v1: finish";
    assert_eq!(verdict("arm64", sequence), Verdict::Hang);
    let concurrent = "v1: begin write X; par; v0: unmap X; v0: flush X everywhere; v0: sync; \
                      v0: free F; v1: finish; end";
    assert_eq!(verdict("arm64", concurrent), Verdict::Ok);
}

#[test]
fn a_write_does_not_use_a_read_only_entry_but_may_use_an_old_writable_one() {
    let protect = "v0: protect X; v0: freeze F; ";
    assert_eq!(verdict("x86", &format!("{protect}v0: write X")), Verdict::Stale);
    let flushed = "v0: protect X; v0: flush X locally; v0: freeze F; v0: write X; v0: read X";
    assert_eq!(verdict("x86", flushed), Verdict::Ok);
}

#[test]
fn a_frame_given_to_a_new_mapping_is_alive_again_for_that_one_only() {
    let lines = "v0: unmap X; v0: flush X locally; v0: free F; v0: map X -> F; v0: read X";
    assert_eq!(verdict("x86", lines), Verdict::Ok);
    assert_eq!(verdict("x86", &format!("{lines}; v1: read X")), Verdict::Stale);
}

#[test]
fn a_vcpu_that_is_off_answers_no_interrupt() {
    let lines = "host: preempt v1; v0: flush X on v1 by ipi; v0: wait";
    let judgement = judged("x86", lines, PINNED);
    assert_eq!(judgement.verdict, Verdict::Hang);
    let reason = judgement.trace.expect("a trace").reason;
    assert!(reason.contains("`v0: wait` is never done"), "{reason}");
    assert_eq!(verdict("x86", &format!("par; {lines}; host: run v1 on p1; end")), Verdict::Ok);
}

#[test]
fn an_occupied_pcpu_is_named() {
    let judgement =
        judged("x86", "host: preempt v1; host: run v1 on p0", World::of(HostPolicy::X86Kvm));
    assert_eq!(judgement.verdict, Verdict::Hang);
    let reason = judgement.trace.expect("a trace").reason;
    assert!(reason.contains("(p0 is occupied by v0)"), "{reason}");
}

#[test]
fn a_second_request_in_the_preempted_byte_is_not_lost() {
    let lines = "host: preempt v1; v0: unmap X; v0: flush X on v1 by flag; \
                 v0: flush X on v1 by flag; v0: wait; v0: free F; host: run v1 on p1; v1: read X";
    assert_eq!(verdict("x86", lines), Verdict::Ok);
}

#[test]
fn a_price_counts_what_was_asked_of_others() {
    let lines = "v0: unmap X; v0: flush X locally; v0: flush X on v1 by ipi; v0: wait";
    let price = |policy| judged("x86", lines, World::of(policy)).price;
    let here = Price { broadcasts: 0, disturbed: 1, dropped: 2 };
    assert_eq!(price(HostPolicy::X86Kvm), Some(here));
    let forced = price(HostPolicy::Arm64Kvm).expect("ends");
    assert_eq!((forced.broadcasts, forced.disturbed), (2, 3));
}

#[test]
fn a_search_that_is_cut_off_says_that_it_sampled() {
    let scenario = pv_tlb_model::corpus::find("host-moves-at-will").expect("there").source;
    let scenario = parse(scenario).expect("right");
    let limits = Limits { states: 20, ..Limits::default() };
    let effort = Effort { limits, seed: 3, walks: 2_000, ..Effort::default() };
    let sampled = judge(&scenario, &World::of(HostPolicy::None), &effort).expect("fits");
    assert_eq!(sampled.method, Method::Random { seed: 3, walks: 2_000 });
    assert_eq!(sampled.verdict, Verdict::Stale);
    let again = judge(&scenario, &World::of(HostPolicy::None), &effort).expect("fits");
    assert_eq!(sampled.trace, again.trace, "the seed fixes the walks");
}

#[test]
fn literal_hardware_gives_every_script_the_same_verdict() {
    // An erratum is told in terms of barriers that return early, which only the sets
    // of what may be held express.
    let silicon = [Dial::RepeatTlbi, Dial::TlbsyncTwice];
    for script in ALL {
        let scenario = parse(script.source).expect("right");
        let small = scenario.free_moves.iter().sum::<u8>() < 4;
        for expected in scenario.expectations.iter().filter(|_| small) {
            let has = |dials: Dials| silicon.into_iter().any(|dial| dials.has(dial));
            if has(expected.world.dials) {
                continue;
            }
            let effort = Effort { hardware: Hardware::Literal, ..Effort::default() };
            let judgement = judge(&scenario, &expected.world, &effort).expect("fits");
            let world = expected.world.describe(&scenario.options);
            assert_eq!(judgement.verdict, expected.verdict, "{} on {world}", scenario.name);
            assert_eq!(judgement.method, Method::Exhaustive, "{} on {world}", scenario.name);
        }
    }
}
