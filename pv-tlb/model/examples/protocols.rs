//! Prints what exploration says of every shipped algorithm and of every mutant.
//!
//! `cargo run --release -p pv-tlb-model --example protocols [WORDS]`: only rows that
//! contain the words, and with words the shortest bad path of each broken one.
//! Owns nothing.

use std::time::Instant;

use pv_tlb_model::protocol::{Machine, Mutant, answer, broken, sound};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words = words.join(" ");
    for setup in sound().into_iter().chain(broken()) {
        let question = setup.mutant.map_or(setup.asks, Mutant::name);
        if !setup.name.contains(&words) && !question.contains(&words) {
            continue;
        }
        let start = Instant::now();
        let row = answer(setup);
        println!("{row} in {} ms", start.elapsed().as_millis());
        if let (Some(found), false) = (row.outcome.counterexample, words.is_empty()) {
            for line in Machine::new(row.setup).trace(&found.steps) {
                println!("    {line}");
            }
        }
    }
}
