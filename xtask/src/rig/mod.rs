//! `cargo xtask rig`: runs a test plan on an emulated AMD host whose kernel has the
//! real kvm-amd, so that the monitor meets hardware-style virtualization everywhere.
//!
//! Owner: this command owns the run's folder and the emulator. States of a run: built,
//! running, recorded; a run that cannot start is skipped (and in CI failed), never
//! passed.

mod binaries;
mod console;
mod image;
mod initramfs;
mod ktap;
mod plan;
mod qemu;
mod record;
mod turn;

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::kernels::{Cache, Kernel, KernelsError};
use crate::show;
use image::Ingredients;
use plan::Plan;
use record::Verdict;
use turn::Turn;

const INSTALL_QEMU: &str = "apt-get install --no-install-recommends qemu-system-x86";
const FETCH_KERNELS: &str = "cargo xtask kernels fetch";

/// Options of `cargo xtask rig`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Plan to run: a file of guest-tests/rig/plans without its .toml
    #[arg(long, default_value = "smoke", value_name = "NAME")]
    plan: String,
    /// Host kernel, by its name in the kernel cache [default: the plan's]
    #[arg(long, value_name = "NAME")]
    kernel: Option<String>,
    /// Kernel cache [default: target/kernels]
    #[arg(long, value_name = "DIR")]
    kernels: Option<PathBuf>,
    /// Seconds until the host is given up [default: the plan's]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: Option<u64>,
    /// Boot and run so many times, to find what fails only sometimes
    #[arg(long, default_value_t = 1, value_name = "TIMES", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// Folder for results and console logs [default: target/rig/PLAN]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Keep the host's file system and print the command that starts it
    #[arg(long)]
    keep: bool,
    /// Let the host's kernel patch its own code during the plan, which now and then
    /// crashes an emulated host
    #[arg(long)]
    unheld: bool,
    /// List the plans and end
    #[arg(long)]
    list: bool,
}

/// Why the rig could not run, as opposed to a plan that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RigError {
    #[error(transparent)]
    Plan(#[from] plan::PlanError),
    #[error(transparent)]
    Binary(#[from] binaries::BinaryError),
    #[error(transparent)]
    Kernels(#[from] KernelsError),
    #[error("Cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("Cannot run {}", qemu::PROGRAM)]
    Qemu(#[source] io::Error),
}

/// Runs a plan; results go to standard output and into files. True if it passed, or
/// may be skipped here.
pub(crate) fn run(options: Options) -> Result<bool, RigError> {
    let folder = plan::folder();
    if options.list {
        for name in plan::names(&folder)? {
            show(format_args!("{name:10} {}", Plan::load(&folder, &name)?.description));
        }
        return Ok(true);
    }
    let mut plan = Plan::load(&folder, &options.plan)?;
    plan.kernel = options.kernel.clone().unwrap_or(plan.kernel);
    plan.timeout_s = options.timeout.unwrap_or(plan.timeout_s);
    let cache = Cache::open(options.kernels.clone()).map_err(KernelsError::from)?;
    let Some(qemu_version) = qemu::version().map_err(RigError::Qemu)? else {
        return Ok(skip(&format!("no {}: {INSTALL_QEMU}", qemu::PROGRAM)));
    };
    let mut kernels = Vec::new();
    for name in std::iter::once(&plan.kernel).chain(&plan.guest_kernels) {
        match cache.kernel(name).map_err(KernelsError::from)? {
            Some(kernel) => kernels.push(kernel),
            None => return Ok(skip(&format!("no kernel {name:?} in the cache: {FETCH_KERNELS}"))),
        }
    }
    let host = kernels.remove(0);
    eprintln!("{qemu_version}; host kernel {}", host.release);
    boot(&options, &plan, &cache, host, kernels)
}

/// Boots as often as asked.
fn boot(
    options: &Options,
    plan: &Plan,
    cache: &Cache,
    host: Kernel,
    guests: Vec<Kernel>,
) -> Result<bool, RigError> {
    let out = options.out.clone();
    let out = out.unwrap_or_else(|| crate::target_dir().join("rig").join(&plan.name));
    fs::create_dir_all(&out).map_err(|source| RigError::Write { path: out.clone(), source })?;
    let initramfs = out.join("initramfs.cpio");
    Ingredients { cache, plan, host: &host, guests: &guests, hold_static_keys: !options.unheld }
        .build(&initramfs)?;
    let kernel = cache.path(&host.image);
    let mut failed = 0;
    for number in 1..=options.repeat {
        let place = if options.repeat == 1 { out.clone() } else { out.join(number.to_string()) };
        let turn = Turn { plan, kernel: &kernel, initramfs: &initramfs, place: &place };
        failed += u32::from(turn.run(options.keep)?.verdict == Verdict::Fail);
    }
    if !options.keep {
        fs::remove_file(&initramfs)
            .map_err(|source| RigError::Write { path: initramfs, source })?;
    }
    show(format_args!("# results: {}", out.display()));
    show(format_args!("{}: {} passed, {failed} failed", plan.name, options.repeat - failed));
    Ok(failed == 0)
}

/// Says why nothing runs. True where that is acceptable: where somebody relies on the
/// rig it is not.
fn skip(why: &str) -> bool {
    show(format_args!("SKIP rig: {why}"));
    let ci = std::env::var("CI").is_ok_and(|value| value == "true" || value == "1");
    if ci {
        eprintln!("A skipped rig fails in CI");
    }
    !ci
}
