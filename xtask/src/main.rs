//! The project's own commands: `cargo xtask ci`, `tidy`, `kernels` and `rig`.
//!
//! No state beyond one run. CI calls the same commands as a contributor, so that
//! what passes here passes there.

mod ci;
mod kernels;
mod rig;
mod tidy;

use std::error::Error;
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
    /// The Linux kernels that tests boot
    #[command(subcommand)]
    Kernels(kernels::Command),
    /// Run a test plan on an emulated host that has the real kvm-amd
    Rig(rig::Options),
}

fn main() -> ExitCode {
    let passed: Result<bool, Box<dyn Error>> = match Xtask::parse() {
        Xtask::Ci => Ok(ci::run(&workspace_dir())),
        Xtask::Tidy => Ok(tidy::run(&workspace_dir())),
        Xtask::Kernels(command) => kernels::run(command).map(|()| true).map_err(Into::into),
        Xtask::Rig(options) => rig::run(options).map_err(Into::into),
    };
    match passed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes, on one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
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
