//! `pvtlb run` with a Linux kernel: boots it, tells how it ended, and reports what it
//! was offered and what it took.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use pv_tlb::abi::stress::BootParams;
use serde_json::{Value, json};

use super::pins;
use super::run::console;
use crate::boot::linux::pace::Pace;
use crate::boot::linux::{self, LinuxBoot, Protocol, machine};
use crate::boot::{self, Kernel, Machine, MachineConfig, Offered, image};
use crate::cli::{BootProtocol, PvTlb, RunArgs};
use crate::devices::power::PowerEvent;
use crate::devices::serial::ConsoleTarget;
use crate::error::Error;
use crate::exposure::{self, Exposure};
use crate::flush::entry::EntryFlush;
use crate::flush::rule::Completion;
use crate::kvm::features::Edits;
use crate::kvm::signals::EndSignals;
use crate::kvm::system::System;
use crate::kvm::terminal::RawTerminal;
use crate::session::{self, Ending, Watching};
use crate::stress::step::verdict;

/// A kernel file that is to be booted as Linux.
#[derive(Debug)]
pub(super) struct Image {
    name: String,
    bytes: Vec<u8>,
}

/// The kernel of `args`, if it is a Linux kernel or is to be taken for one.
pub(super) fn image(args: &RunArgs) -> Result<Option<Image>, Error> {
    let Some(path) = &args.kernel else { return Ok(None) };
    let bytes = image::read(path).map_err(boot::Error::from)?;
    let linux = match args.linux.boot_protocol {
        BootProtocol::Auto => linux::is_linux(&bytes),
        BootProtocol::Linux | BootProtocol::Pvh => true,
        BootProtocol::Bare => false,
    };
    Ok(linux.then(|| Image { name: path.display().to_string(), bytes }))
}

pub(super) fn execute(
    args: &RunArgs,
    image: Image,
    system: &System,
    signals: &EndSignals,
) -> Result<(), Error> {
    let config = config(args, image)?;
    let Kernel::Linux(boot) = &config.kernel else { return Ok(()) };
    refuse_an_interpreter(args, system)?;
    let json = args.linux.json.as_deref().map(create).transpose()?;
    let offered = machine::offered(system, &config, boot)?;
    let machine = Machine::create(system, &config)?;
    let statistics: Vec<_> = machine.vcpus().iter().map(|v| v.statistics().ok()).collect();
    let interactive = config.console == ConsoleTarget::Stdout;
    let terminal = if interactive { RawTerminal::enter()? } else { None };
    let watching = Watching { signals, limit: args.timeout, input: interactive };
    let finished = session::run(machine, watching);
    drop(terminal);
    let finished = finished?;
    let exposure = Exposure { offered, statistics, metrics: &finished.metrics };
    // The guest's console may own standard output, so the report goes beside it.
    eprint!("{}", exposure.text());
    if let Some((file, path)) = json {
        write_json(file, path, &report(&config, boot, &finished.ending, &exposure))?;
    }
    judge(&finished.ending)
}

fn config(args: &RunArgs, image: Image) -> Result<MachineConfig, Error> {
    let memory_bytes = args.guest.memory;
    let mut boot =
        LinuxBoot::open(&image.name, image.bytes, memory_bytes).map_err(boot::Error::from)?;
    if args.linux.boot_protocol == BootProtocol::Pvh {
        boot.protocol = Protocol::Pvh;
    }
    boot.cmdline.clone_from(&args.linux.cmdline);
    boot.initrd.clone_from(&args.linux.initrd);
    boot.edits = Edits { hide: args.linux.cpu_hide.clone(), force: args.linux.cpu_force.clone() };
    Ok(MachineConfig {
        vcpus: args.cpus,
        memory_bytes,
        offered: offered(args.pv_tlb)?,
        kernel: Kernel::Linux(Box::new(boot)),
        params: BootParams::default(),
        pins: pins(&args.guest, args.cpus)?,
        console: console(&args.serial)?,
        completion: Completion::new(args.guest.completion, false),
        entry: EntryFlush::Nothing,
        deadline: args.guest.deadline,
    })
}

fn offered(mode: PvTlb) -> Result<Offered, Error> {
    match mode {
        PvTlb::Off => Ok(Offered::Off),
        // Linux knows KVM's own flush only.
        PvTlb::Kvm | PvTlb::Auto => Ok(Offered::Kvm),
        PvTlb::Doorbell => Err(boot::Error::from(linux::Error::Mode("doorbell")).into()),
        PvTlb::Invlpgb => Err(boot::Error::from(linux::Error::Mode("invlpgb")).into()),
        PvTlb::Rar => Err(boot::Error::from(linux::Error::Mode("rar")).into()),
        PvTlb::Hyperv => Err(boot::Error::from(linux::Error::Mode("hyperv")).into()),
    }
}

/// A kernel needs minutes to hours where KVM interprets it; say so instead.
fn refuse_an_interpreter(args: &RunArgs, system: &System) -> Result<(), Error> {
    if args.linux.force {
        return Ok(());
    }
    let pace = Pace::measure(system)?;
    if !pace.is_interpreted() {
        return Ok(());
    }
    Err(Error::HostLacks(format!(
        "This KVM interprets guest kernel code: {:.0} ns for two instructions at CPL 0 ({:.2} million instructions per second), where hardware needs about 1 ns; Linux would not get far. Run it in the rig (cargo xtask rig, docs/rig.md) or on hardware, or try with --force",
        pace.turn_ns,
        pace.mips()
    )))
}

fn create(path: &Path) -> Result<(File, &Path), Error> {
    let file = File::create(path).map_err(Error::output(path.display().to_string()))?;
    Ok((file, path))
}

fn write_json(mut file: File, path: &Path, report: &Value) -> Result<(), Error> {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{report:#}");
    file.write_all(text.as_bytes()).map_err(Error::output(path.display().to_string()))
}

fn ending_name(ending: &Ending) -> String {
    match ending {
        Ending::Power(PowerEvent::Off) => "poweroff".to_owned(),
        Ending::Power(PowerEvent::Reset) => "reset".to_owned(),
        Ending::Power(PowerEvent::Panic) => "panic".to_owned(),
        Ending::TimedOut(_) => "timeout".to_owned(),
        Ending::Failed(failure) => failure.to_string(),
        other => format!("{other:?}"),
    }
}

fn report(
    config: &MachineConfig,
    boot: &LinuxBoot,
    ending: &Ending,
    exposure: &Exposure<'_>,
) -> Value {
    json!({
        "schema": exposure::SCHEMA,
        "kernel": boot.name,
        "compression": boot.compression.map(|c| c.to_string()),
        "protocol": match boot.protocol { Protocol::Linux64 => "linux", Protocol::Pvh => "pvh" },
        "vcpus": config.vcpus,
        "memory_bytes": config.memory_bytes,
        "mode": match config.offered { Offered::Kvm => "kvm", _ => "off" },
        "ending": ending_name(ending),
        "features": exposure.features(),
        "vcpu": exposure.vcpus(),
    })
}

fn judge(ending: &Ending) -> Result<(), Error> {
    match ending {
        Ending::Power(PowerEvent::Off) => {
            eprintln!("pvtlb: guest switched itself off");
            Ok(())
        }
        Ending::Power(PowerEvent::Reset) => Err(Error::Reset),
        Ending::Power(PowerEvent::Panic) => Err(Error::Panicked),
        Ending::TimedOut(limit) => {
            Err(Error::Guest(format!("Guest did not switch itself off within {limit:?}")))
        }
        other => verdict(other, &[]).map(drop),
    }
}
