//! The `pvtlb` binary: arguments to a command, its error to an exit code.

use std::process::ExitCode;

use clap::Parser;
use pvtlb::cli::Cli;
use pvtlb::command;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match command::execute(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(),
    }
}
