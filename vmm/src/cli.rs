//! The command line: flags to plain values. Nothing is opened or run here.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use pv_tlb::abi::stress::{Apic, Program, Workload};

use crate::flush::rule::CompletionChoice;
use crate::kvm::features::Feature;
use crate::scenario::args::ScenarioArgs;
use crate::stress::mode::Mode;

/// A KVM microVM monitor whose subject is TLB invalidation.
#[derive(Debug, Parser)]
#[command(name = "pvtlb", version, about, max_term_width = 100)]
pub struct Cli {
    /// KVM's device.
    #[arg(long, global = true, default_value = "/dev/kvm", value_name = "PATH")]
    pub kvm: PathBuf,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Sweep vCPU counts and flush modes over the stress guest, verify every flush
    Stress(StressArgs),
    /// Boot one guest
    Run(RunArgs),
    /// Show what this host can do for each mode, with evidence
    Doctor(DoctorArgs),
    /// Judge event scripts on modelled hosts, every interleaving
    Scenario(ScenarioArgs),
}

/// Flags of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print JSON instead of tables
    #[arg(long)]
    pub json: bool,
}

/// Flags shared by commands that run guests.
#[derive(Debug, Args)]
pub struct GuestArgs {
    /// Guest memory, as 64M or 2G
    #[arg(long, default_value = "128M", value_name = "SIZE", value_parser = size)]
    pub memory: u64,
    /// pCPUs to use: a number, or a list such as 0-1,3 [default: all]
    #[arg(long, value_name = "N|LIST")]
    pub pcpus: Option<String>,
    /// Pin vCPU threads: pCPUs for all (0-1), or vCPU:pCPU pairs (0:0,1:1)
    #[arg(long, value_name = "PINS", conflicts_with = "pcpus")]
    pub pin: Option<String>,
    /// Time slices that vCPU threads ask for, as 20ms: fewer preemptions, longer waits
    /// for a pCPU [default: the kernel's]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub slice: Option<Duration>,
    /// When a doorbell target counts as flushed
    #[arg(long, default_value = "auto", value_name = "auto|ack|preempted|membarrier")]
    pub completion: CompletionChoice,
    /// Longest wait for a target's ack, as 5s, 20ms or 1us
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = time)]
    pub deadline: Duration,
    /// APIC interface of the stress guest
    #[arg(long, default_value = "xapic", value_name = "xapic|x2apic", value_parser = apic)]
    pub apic: Apic,
    /// Privilege level of the stress guest's page-table writes and algorithms
    #[arg(long, default_value_t = 3, value_name = "3|0", value_parser = cpl)]
    pub algorithm_cpl: u32,
}

/// Flags of `stress`.
#[derive(Debug, Args)]
pub struct StressArgs {
    /// vCPU counts, one row of the table each
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16", value_name = "N,N,…", value_parser = vcpus)]
    pub cpus: Vec<u32>,
    /// Modes, one column of the table each; doorbell@RULE picks a completion rule
    /// [default: ipi,ipi-gen-read,kvm-pv,doorbell,doorbell-adaptive]
    #[arg(long, value_delimiter = ',', value_name = "MODE,MODE,…")]
    pub modes: Vec<Mode>,
    /// What the guest's threads do to their pages
    #[arg(long, default_value = "remap", value_name = "remap|unmap|mprotect", value_parser = workload)]
    pub workload: Workload,
    /// Seconds per round
    #[arg(long, default_value_t = 0.25, value_name = "S", value_parser = seconds)]
    pub seconds: f64,
    /// Rounds of each step, interleaved over the modes
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// vCPUs that flush; the others read and verify [default: all]
    #[arg(long, value_name = "N", value_parser = vcpus)]
    pub initiators: Option<u32>,
    /// Targets of each flush, one row of the table each: the first N+1 vCPUs share an
    /// address space, the others are busy in their own [default: all]
    #[arg(long, value_delimiter = ',', value_name = "N,N,…", value_parser = vcpus)]
    pub targets: Vec<u32>,
    /// Address spaces, vCPUs dealt out in turn [default: 1, for mprotect 4]
    #[arg(long, value_name = "N", value_parser = vcpus)]
    pub address_spaces: Option<u32>,
    /// Least pause between two shootdowns of a vCPU, as 50us
    #[arg(long, default_value = "0us", value_name = "TIME", value_parser = time)]
    pub gap: Duration,
    /// Shootdowns after which a vCPU stops before its time is up [default: none]
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "N")]
    pub max_shootdowns: u64,
    /// Do not run the negative controls first
    #[arg(long)]
    pub no_controls: bool,
    /// Also write the report, with raw series, to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Print KTAP instead of tables
    #[arg(long)]
    pub ktap: bool,
    /// Guest flags.
    #[command(flatten)]
    pub guest: GuestArgs,
}

/// What `run` offers the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PvTlb {
    /// Hide KVM's flush features
    Off,
    /// KVM's own preempted byte
    Kvm,
    /// The doorbell (docs/doorbell.md)
    Doorbell,
    /// doorbell where a way to flush on entry is proved, else kvm
    Auto,
    /// AMD INVLPGB (not there yet)
    Invlpgb,
    /// Intel RAR (not there yet)
    Rar,
    /// Hyper-V flush calls (not there yet)
    Hyperv,
}

/// How a kernel is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BootProtocol {
    /// linux for a Linux kernel, bare for any other ELF
    Auto,
    /// The 64-bit entry of Linux
    Linux,
    /// The 32-bit PVH entry of Linux
    Pvh,
    /// The contract of docs/guest-entry.md
    Bare,
}

/// Flags of a Linux guest.
#[derive(Debug, Args)]
pub struct LinuxArgs {
    /// Initial RAM disk of a Linux guest
    #[arg(long, value_name = "FILE", requires = "kernel")]
    pub initrd: Option<PathBuf>,
    /// Kernel parameters; they replace defaults of the same key (docs/run.md)
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "STR",
        requires = "kernel"
    )]
    pub cmdline: String,
    /// How the kernel is entered
    #[arg(long, value_enum, default_value = "auto", value_name = "PROTOCOL")]
    pub boot_protocol: BootProtocol,
    /// CPUID bits to hide from a Linux guest, by name
    #[arg(long, value_delimiter = ',', value_name = "NAME,NAME,…", value_parser = Feature::by_name)]
    pub cpu_hide: Vec<Feature>,
    /// CPUID bits to show to a Linux guest whatever KVM supports
    #[arg(long, value_delimiter = ',', value_name = "NAME,NAME,…", value_parser = Feature::by_name)]
    pub cpu_force: Vec<Feature>,
    /// Also write the exposure report of a Linux guest to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Run Linux also where KVM interprets kernel code
    #[arg(long)]
    pub force: bool,
}

/// Flags of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Linux kernel (bzImage or ELF), or an ELF that follows docs/guest-entry.md
    /// [default: the stress guest]
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    /// Linux flags.
    #[command(flatten)]
    pub linux: LinuxArgs,
    /// Number of vCPUs
    #[arg(long, default_value = "2", value_name = "N", value_parser = vcpus)]
    pub cpus: u32,
    /// Paravirtual flush features to offer
    #[arg(long, value_enum, default_value = "off", num_args = 0..=1, default_missing_value = "auto", value_name = "MODE")]
    pub pv_tlb: PvTlb,
    /// What the stress guest does
    #[arg(long, default_value = "stress", value_name = "PROGRAM", value_parser = program)]
    pub program: Program,
    /// Guest console: off, stdout, or file=PATH
    #[arg(long, default_value = "stdout", value_name = "TARGET")]
    pub serial: String,
    /// End the run after this time, as 10s [default: never]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub timeout: Option<Duration>,
    /// Guest flags.
    #[command(flatten)]
    pub guest: GuestArgs,
}

fn number(text: &str, what: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number of {what}"))
}

fn vcpus(text: &str) -> Result<u32, String> {
    match number(text, "vCPUs or targets")? {
        0 => Err("0 is too few, expected at least 1".to_owned()),
        count => Ok(count),
    }
}

fn size(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("{text:?} is not a size, expected a number with K, M, G or nothing, as 64M");
    let upper = text.to_ascii_uppercase();
    let digits = upper.trim_end_matches(['K', 'M', 'G']);
    let shift = match &upper[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err(wrong()),
    };
    let count: u64 = digits.parse().map_err(|_| wrong())?;
    count.checked_mul(1 << shift).ok_or_else(|| format!("{text:?} is more than 64 bits can say"))
}

fn time(text: &str) -> Result<Duration, String> {
    let wrong =
        || format!("{text:?} is not a time, expected a whole number with s, ms or us, as 5s");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_lowercase());
    let count: u64 = digits.parse().map_err(|_| wrong())?;
    match &text[digits.len()..] {
        "s" if count <= 86_400 => Ok(Duration::from_secs(count)),
        "s" => Err(format!("{text:?} is longer than a day")),
        "ms" => Ok(Duration::from_millis(count)),
        "us" => Ok(Duration::from_micros(count)),
        _ => Err(wrong()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.001..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err(format!("{text:?} is not a length, expected seconds from 0.001 to 3600")),
    }
}

fn cpl(text: &str) -> Result<u32, String> {
    match text {
        "0" => Ok(0),
        "3" => Ok(3),
        _ => Err(format!("{text:?} is not a privilege level for the algorithms, expected 3 or 0")),
    }
}

/// Finds a choice of the guest ABI by its name.
macro_rules! by_name {
    ($function:ident, $choice:ty) => {
        fn $function(text: &str) -> Result<$choice, String> {
            <$choice>::ALL.iter().copied().find(|c| c.name() == text).ok_or_else(|| {
                let known: Vec<&str> = <$choice>::ALL.iter().map(|c| c.name()).collect();
                format!("{text:?} is unknown, expected one of {}", known.join(", "))
            })
        }
    };
}

by_name!(apic, Apic);
by_name!(workload, Workload);
by_name!(program, Program);

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_and_times_carry_units_and_absurd_ones_are_refused() {
        assert_eq!(size("64M"), Ok(64 << 20));
        assert_eq!(size("2g"), Ok(2 << 30));
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(time("5s"), Ok(Duration::from_secs(5)));
        assert_eq!(time("1us"), Ok(Duration::from_micros(1)));
        for text in ["", "M", "64MM", "6.4M", "-1", "99999999999999999999G", "17179869185G"] {
            assert!(size(text).is_err(), "{text}");
        }
        for text in ["", "5", "s", "5m", "-1s", "99999999s"] {
            assert!(time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn pv_tlb_without_a_value_means_auto() {
        let parse = |args: &[&str]| Cli::try_parse_from(args).map(|cli| cli.command);
        match parse(&["pvtlb", "run", "--pv-tlb"]) {
            Ok(Command::Run(run)) => assert_eq!(run.pv_tlb, PvTlb::Auto),
            other => panic!("{other:?}"),
        }
        assert!(parse(&["pvtlb", "run", "--pv-tlb", "magic"]).is_err());
        assert!(parse(&["pvtlb", "stress", "--cpus", "0"]).is_err());
    }
}
