//! One module per command: from flags to a run, its output and its error.

pub mod doctor;
pub mod linux;
pub mod run;
pub mod scenario;
pub mod stress;

use std::io::Write;

use crate::cli::{Cli, Command, GuestArgs};
use crate::error::Error;
use crate::kvm::affinity;
use crate::kvm::signals::EndSignals;
use crate::kvm::system::System;
use crate::placement::pins::Pins;

/// Executes the command line.
///
/// # Errors
/// Whatever ends the program with a message.
pub fn execute(cli: &Cli) -> Result<(), Error> {
    let prepare = || -> Result<(EndSignals, System), Error> {
        // Before any other thread is made, so that all inherit the mask.
        let signals = EndSignals::block()?;
        Ok((signals, System::open(&cli.kvm)?))
    };
    match &cli.command {
        Command::Stress(args) => {
            let (signals, system) = prepare()?;
            stress::execute(args, &system, &signals)
        }
        Command::Run(args) => {
            let (signals, system) = prepare()?;
            run::execute(args, &system, &signals)
        }
        Command::Doctor(args) => doctor::execute(args, &prepare()?.1),
        Command::Scenario(args) => scenario::execute(args),
    }
}

/// Where vCPU threads may run, from `--pin` or `--pcpus`.
fn pins(args: &GuestArgs, vcpus: u32) -> Result<Pins, Error> {
    let allowed = affinity::allowed()?;
    let pins = match (&args.pin, &args.pcpus) {
        (Some(text), _) => Pins::parse(text, &allowed),
        (None, Some(text)) => Pins::parse_pcpus(text, &allowed),
        (None, None) => Ok(Pins::anywhere_in(allowed)),
    };
    let pins = pins.map_err(Error::Usage)?;
    match pins.highest_vcpu() {
        Some(id) if id.0 >= vcpus => Err(Error::Usage(format!(
            "Pin names vCPU {}, expected less than {vcpus} (the number of vCPUs)",
            id.0
        ))),
        _ => Ok(pins.with_slice(args.slice)),
    }
}

/// Writes to standard output; a closed one is an error of its own kind.
fn print(text: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(Error::output("standard output"))
}
