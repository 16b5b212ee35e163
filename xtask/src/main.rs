//! The project's own commands: `cargo xtask ci` and `cargo xtask tidy`.
//!
//! No state beyond one run. CI calls the same commands as a contributor, so that
//! what passes here passes there.

mod ci;
mod tidy;

use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// The project's own commands, exactly as CI runs them
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Xtask {
    /// Everything a change must pass: fmt, clippy, tidy, docs, licences, tests, loom
    Ci,
    /// The project's own source rules only (seconds)
    Tidy,
}

fn main() -> ExitCode {
    let passed = match Xtask::parse() {
        Xtask::Ci => ci::run(&workspace_dir()),
        Xtask::Tidy => tidy::run(&workspace_dir()),
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The folder that holds this workspace.
fn workspace_dir() -> PathBuf {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    own.parent().map_or(own.clone(), PathBuf::from)
}

/// Cargo's build folder.
fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace_dir().join("target"), PathBuf::from)
}

/// Prints a line of results. The exit code says the same, so a reader that went
/// away (`| head -1`) ends nothing.
fn show(line: impl Display) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
