//! The project's checks: `cargo xtask ci` and `cargo xtask tidy`.
//!
//! No state beyond one run. CI calls the same two commands as a contributor, so
//! that what passes here passes there.

mod ci;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
Usage: cargo xtask <COMMAND>

  ci     Everything a change must pass: fmt, clippy, tidy, docs, licences, tests, loom
  tidy   The project's own source rules only (seconds)
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let passed = match args[..] {
        ["ci"] => ci::run(&root()),
        ["tidy"] => tidy::run(&root()),
        ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            true
        }
        _ => {
            eprint!("Unknown arguments {args:?}: expected one command.\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The workspace's folder: the parent of this crate's, which cargo names at run
/// time; without cargo, the current folder.
fn root() -> PathBuf {
    match std::env::var_os("CARGO_MANIFEST_DIR") {
        Some(manifest) => PathBuf::from(manifest).join(".."),
        None => PathBuf::from("."),
    }
}
