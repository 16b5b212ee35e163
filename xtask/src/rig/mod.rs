//! `cargo xtask rig`: runs a test plan on an emulated AMD host whose kernel has the
//! real kvm-amd, so that the monitor meets hardware-style virtualization everywhere.
//!
//! Owner: this command owns the run's folder and the emulator. States of a run: built,
//! running, recorded; a run that cannot start is skipped (and in CI failed), never
//! passed.

mod binaries;
mod initramfs;
mod ktap;
mod plan;
mod qemu;
mod record;

use std::fs;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use indicatif::ProgressBar;

use crate::kernels::{Cache, Kernel};
use plan::Plan;
use qemu::{HostEnd, Machine};
use record::{Record, Recorder, Verdict};

/// The package with the host's first process.
const INIT_PACKAGE: &str = "pvtlb-rig-init";
const INIT: &str = "rig-init";
const INSTALL_QEMU: &str = "apt-get install --no-install-recommends qemu-system-x86";
const FETCH_KERNELS: &str = "cargo xtask kernels fetch";
/// The host powers itself off at its limit; this is how much later it is killed.
const GRACE: Duration = Duration::from_secs(10);
/// So many last lines of the console are shown when the host failed.
const SHOWN_CONSOLE_LINES: usize = 25;

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
    Kernels(#[from] crate::kernels::KernelsError),
    #[error("Cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("Cannot run {}", qemu::PROGRAM)]
    Qemu(#[source] io::Error),
}

/// Runs a plan; results go to standard output and into files.
pub(crate) fn run(options: Options) -> Result<ExitCode, RigError> {
    let folder = plan::folder();
    if options.list {
        for name in plan::names(&folder)? {
            println!("{name:10} {}", Plan::load(&folder, &name)?.description);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut plan = Plan::load(&folder, &options.plan)?;
    plan.kernel = options.kernel.unwrap_or(plan.kernel);
    plan.timeout_s = options.timeout.unwrap_or(plan.timeout_s);
    let cache = Cache::open(options.kernels).map_err(crate::kernels::KernelsError::from)?;
    let Some(qemu_version) = qemu::version().map_err(RigError::Qemu)? else {
        return Ok(skip(&format!("no {}: {INSTALL_QEMU}", qemu::PROGRAM)));
    };
    let (kernel, guests) = match kernels(&cache, &plan)? {
        Ok(kernels) => kernels,
        Err(missing) => {
            return Ok(skip(&format!("no kernel {missing:?} in the cache: {FETCH_KERNELS}")));
        }
    };
    let out = options.out.unwrap_or_else(|| crate::target_dir().join("rig").join(&plan.name));
    fs::create_dir_all(&out).map_err(|source| RigError::Write { path: out.clone(), source })?;
    let image = out.join("initramfs.cpio");
    build(&cache, &plan, &kernel, &guests, &image)?;
    eprintln!("{qemu_version}; host kernel {}; results in {}", kernel.release, out.display());
    let mut runs = Vec::new();
    for turn in 1..=options.repeat {
        let place = if options.repeat == 1 { out.clone() } else { out.join(turn.to_string()) };
        let record = one_run(&cache, &plan, &kernel, &image, &place, options.keep)?;
        runs.push(record);
    }
    if !options.keep {
        fs::remove_file(&image).map_err(|source| RigError::Write { path: image, source })?;
    }
    let failed = runs.iter().filter(|record| record.verdict == Verdict::Fail).count();
    println!("{}: {} passed, {failed} failed", plan.name, runs.len() - failed);
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What cannot run is no success where somebody relies on it.
fn skip(why: &str) -> ExitCode {
    println!("SKIP {why}");
    if std::env::var("CI").is_ok_and(|value| value == "true") {
        eprintln!("A skipped rig fails in CI");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// The host's kernel and the guests' kernels, or the name of one that is missing.
fn kernels(cache: &Cache, plan: &Plan) -> Result<Result<(Kernel, Vec<Kernel>), String>, RigError> {
    let find = |name: &str| {
        let kernel = cache.kernel(name).map_err(crate::kernels::KernelsError::from)?;
        Ok::<_, RigError>(kernel.ok_or_else(|| name.to_owned()))
    };
    let host = match find(&plan.kernel)? {
        Ok(kernel) => kernel,
        Err(missing) => return Ok(Err(missing)),
    };
    let mut guests = Vec::new();
    for name in &plan.guest_kernels {
        match find(name)? {
            Ok(kernel) => guests.push(kernel),
            Err(missing) => return Ok(Err(missing)),
        }
    }
    Ok(Ok((host, guests)))
}

/// Builds the binaries and the host's file system.
fn build(
    cache: &Cache,
    plan: &Plan,
    kernel: &Kernel,
    guests: &[Kernel],
    image: &Path,
) -> Result<(), RigError> {
    let init = binaries::build_static(INIT_PACKAGE, INIT)?;
    let mut binaries = vec![(INIT, init)];
    for name in &plan.binaries {
        binaries.push((name, binaries::build_static(name, name)?));
    }
    let module_path = |name: &str| format!("lib/modules/{name}.ko");
    let modules = kernel.modules.iter().map(|module| format!("/{}", module_path(&module.name)));
    let setup = plan.setup(modules.collect(), plan.timeout_s);
    let setup = serde_json::to_vec(&setup).expect("a setup has only strings, numbers and lists");
    let write = || -> io::Result<()> {
        let mut archive = initramfs::Initramfs::new(BufWriter::new(fs::File::create(image)?))?;
        archive.add_file("init", &binaries[0].1)?;
        for (name, path) in &binaries {
            archive.add_file(&format!("bin/{name}"), path)?;
        }
        for module in &kernel.modules {
            archive.add_file(&module_path(&module.name), &cache.path(module))?;
        }
        for guest in guests {
            archive.add_file(&format!("kernels/{}", guest.name), &cache.path(&guest.image))?;
        }
        archive.add(rig_wire::SETUP_PATH.trim_start_matches('/'), &setup)?;
        archive.finish().map(drop)
    };
    write().map_err(|source| RigError::Write { path: image.to_owned(), source })
}

/// Boots once, shows the results as they come, and writes them into `place`.
fn one_run(
    cache: &Cache,
    plan: &Plan,
    kernel: &Kernel,
    image: &Path,
    place: &Path,
    keep: bool,
) -> Result<Record, RigError> {
    let wrong = |path: &Path| {
        let path = path.to_owned();
        move |source| RigError::Write { path, source }
    };
    fs::create_dir_all(place).map_err(wrong(place))?;
    let console = place.join("console.log");
    let hardware = qemu::Hardware {
        kernel: cache.path(&kernel.image),
        initramfs: image.to_owned(),
        console: console.clone(),
        pcpus: plan.pcpus,
        memory_mib: plan.memory_mib,
    };
    let command = hardware.command();
    if keep {
        eprintln!("{command:?}");
    }
    let mut recorder = Recorder::new(plan);
    let limit = Duration::from_secs(plan.timeout_s) + GRACE;
    let mut machine = Machine::start(command, limit).map_err(RigError::Qemu)?;
    print!("{}", ktap::head(plan.steps.len()));
    let end = follow(&mut machine, &mut recorder, plan);
    drop(machine);
    let record = recorder.finish(&end);
    print_rest(&record, &console);
    let json = serde_json::to_string_pretty(&record).expect("a record has only plain data");
    let (json_path, ktap_path) = (place.join("result.json"), place.join("result.ktap"));
    fs::write(&json_path, json).map_err(wrong(&json_path))?;
    fs::write(&ktap_path, ktap::document(&record)).map_err(wrong(&ktap_path))?;
    Ok(record)
}

/// Follows the host with a progress line on a terminal; steps print as they end.
fn follow(machine: &mut Machine, recorder: &mut Recorder<'_>, plan: &Plan) -> HostEnd {
    // Hidden by itself where standard error is no terminal.
    let progress = ProgressBar::new_spinner();
    let mut running = "booting".to_owned();
    let end = machine.follow(|event| {
        match &event {
            Some(rig_wire::Event::Ready { .. }) => running = "ready".into(),
            Some(rig_wire::Event::Started { step }) => {
                if let Some(step) = plan.steps.get(*step) {
                    running.clone_from(&step.name);
                }
            }
            _ => {}
        }
        let ended = event.and_then(|event| recorder.see(event));
        if let Some(index) = ended {
            progress.suspend(|| {
                print!("{}", ktap::step(index, &recorder.so_far().steps[index]));
            });
        }
        progress.set_message(format!("{running}, {} s", recorder.elapsed().as_secs()));
        progress.tick();
    });
    progress.finish_and_clear();
    end
}

/// The lines that no event brought: steps that never ended, the host, the console.
fn print_rest(record: &Record, console: &Path) {
    for (index, step) in record.steps.iter().enumerate() {
        if step.ending.is_none() {
            print!("{}", ktap::step(index, step));
        }
    }
    print!("{}", ktap::host(record));
    let boot = record.boot_ms.map_or("never".to_owned(), |ms| format!("after {ms} ms"));
    println!("# first command {boot}, end after {} ms", record.total_ms);
    if record.host_failure.is_some() {
        println!("# console log: {}", console.display());
        let text = fs::read(console).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        for line in &lines[lines.len().saturating_sub(SHOWN_CONSOLE_LINES)..] {
            println!("# console: {line}");
        }
    }
}
