//! Mistakes in scripts, and what the writer is told.
//!
//! No state. Each snapshot is the whole answer for one mistake.

use pv_tlb::plan::HostPolicy;
use pv_tlb_model::corpus::ALL;
use pv_tlb_model::explore::Limits;
use pv_tlb_model::run::{Effort, judge};
use pv_tlb_model::script::{parse, render};
use pv_tlb_model::world::World;

/// A right script with `{}` where the mistake goes, behind the declarations.
const HEAD: &str = "\
scenario example \"An example\"
isa x86
vcpus 3
pcpus 2
space M asid 5
option repeats \"the guest flushes twice\"
map X -> F
start v0 on p0
start v1 on p1
v0: read X if repeats
";

/// Names and lines; each is a mistake of its own.
const MISTAKES: [(&str, &str); 26] = [
    ("misspelt_declaration", "vcpu 2"),
    ("misspelt_operation", "v0: raed X"),
    ("unknown_page", "v0: read x2"),
    ("unknown_frame", "v0: free Frame"),
    ("unknown_space", "v0: switch to K"),
    ("vcpu_out_of_range", "v3: read X"),
    ("size_said_twice", "vcpus 2"),
    ("pcpu_out_of_range", "host: move v0 to p7"),
    ("host_operation_by_a_vcpu", "v0: preempt v1"),
    ("guest_operation_by_the_host", "host: unmap X"),
    ("flush_without_a_way", "v0: flush X"),
    ("misspelt_way", "v0: flush X localy"),
    ("flush_sent_to_oneself", "v0: flush X on v0 by ipi"),
    ("started_twice", "start v1 on p1"),
    ("occupied_pcpu", "start v2 on p1"),
    ("finish_without_begin", "v1: finish"),
    ("begin_without_finish", "v1: begin write X"),
    ("par_in_par", "par\n  v0: read X\npar\nend"),
    ("par_without_end", "par\n  v0: read X"),
    ("mark_nobody_sets", "v0: await ready"),
    ("unknown_policy", "expect arm64kvm: ok"),
    ("unknown_dial", "expect x86-kvm + lostflag: stale"),
    ("unknown_verdict", "expect x86-kvm: broken"),
    ("unclosed_text", "about \"this never ends"),
    ("strange_character", "v0: read X; write X"),
    ("words_left_over", "v0: read X twice"),
];

fn answer(source: &str) -> String {
    let errors = parse(source).expect_err("a mistake");
    render("example.tlb", source, &errors)
}

#[test]
fn each_mistake_is_shown_in_its_place_and_with_advice() {
    for (name, line) in MISTAKES {
        insta::assert_snapshot!(name, answer(&format!("{HEAD}{line}\n")));
    }
}

#[test]
fn what_is_missing_is_named() {
    insta::assert_snapshot!("empty_script", answer(""));
    insta::assert_snapshot!("no_events", answer("scenario a \"A\"\nvcpus 1\npcpus 1\n"));
    insta::assert_snapshot!(
        "unused_option",
        answer("scenario a \"A\"\nvcpus 1\npcpus 1\noption o \"O\"\nmap X -> F\nv0: read X\n")
    );
    insta::assert_snapshot!("number_too_large", answer("vcpus 9\n"));
    insta::assert_snapshot!("misaligned_page", answer("page X at 0x201000 size 2m\n"));
    insta::assert_snapshot!("broadcast_on_riscv", {
        let head = HEAD.replace("x86", "riscv");
        answer(&format!("{head}v0: flush X everywhere\n"))
    });
}

#[test]
fn one_mistake_does_not_hide_the_next() {
    let source = format!("{HEAD}v0: raed X\nv9: read X\n");
    assert_eq!(parse(&source).expect_err("mistakes").len(), 2);
}

#[test]
fn no_input_makes_the_parser_panic() {
    let mut rng = fastrand::Rng::with_seed(7);
    let words: Vec<&str> = HEAD.split_inclusive([' ', '\n']).chain(["par\n", "end\n"]).collect();
    for _ in 0..6_000 {
        let count = rng.usize(..40);
        let mut source: String = (0..count).map(|_| words[rng.usize(..words.len())]).collect();
        if rng.bool() && !source.is_empty() {
            source.remove(rng.usize(..source.len()));
        }
        if let Err(errors) = parse(&source) {
            assert!(!render("fuzz.tlb", &source, &errors).is_empty());
        }
    }
}

/// One line taken out, doubled, or moved.
fn mutated(rng: &mut fastrand::Rng, source: &str) -> String {
    let mut lines: Vec<&str> = source.lines().collect();
    for _ in 0..rng.usize(1..4) {
        let (from, to) = (rng.usize(..lines.len()), rng.usize(..lines.len()));
        match rng.u8(..3) {
            0 if lines.len() > 1 => {
                lines.remove(from);
            }
            1 => lines.insert(to, lines[from]),
            _ => lines.swap(from, to),
        }
    }
    lines.join("\n")
}

#[test]
fn no_script_makes_the_machine_panic_however_senseless() {
    let mut rng = fastrand::Rng::with_seed(11);
    let limits = Limits { states: 300, ..Limits::default() };
    let effort = Effort { limits, walks: 5, ..Effort::default() };
    let mut judged = 0;
    for _ in 0..4_000 {
        let script = rng.choice(ALL).expect("a corpus");
        let source = mutated(&mut rng, script.source);
        let Ok(scenario) = parse(&source) else { continue };
        let policy = *rng.choice(&HostPolicy::ALL).expect("policies");
        let mut world = World::of(policy).with_options(rng.u32(..));
        if let Some(expected) = rng.choice(&scenario.expectations) {
            world.dials = expected.world.dials;
        }
        judged += u32::from(judge(&scenario, &world, &effort).is_ok());
    }
    assert!(judged > 500, "only {judged} of the mutants could be judged");
}
