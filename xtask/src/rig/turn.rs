//! One boot of the rig's host: started, followed, shown, recorded.
//!
//! Owner: the calling thread, from start to record. States: see `qemu.rs`.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use indicatif::ProgressBar;
use rig_wire::Event;

use super::plan::Plan;
use super::qemu::{Hardware, HostEnd, Machine};
use super::record::{Record, Recorder};
use super::{RigError, console, ktap};
use crate::show;

/// The host powers itself off at its limit; this is how much later it is killed.
const GRACE: Duration = Duration::from_secs(10);
/// What a run leaves in its folder.
const CONSOLE: &str = "console.log";
const JSON: &str = "result.json";
const KTAP: &str = "result.ktap";
const FILES: &str = "files";
const RESULTS: [&str; 4] = [CONSOLE, JSON, KTAP, FILES];

/// What one boot needs.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    /// What to run and to expect.
    pub(super) plan: &'a Plan,
    /// The host's bzImage.
    pub(super) kernel: &'a Path,
    /// The host's file system.
    pub(super) initramfs: &'a Path,
    /// Folder for results and the console log.
    pub(super) place: &'a Path,
}

impl Turn<'_> {
    /// Boots once, shows the results as they come, and writes them into the folder.
    pub(super) fn run(&self, show_command: bool) -> Result<Record, RigError> {
        self.clear()?;
        let hardware = Hardware {
            kernel: self.kernel.to_owned(),
            initramfs: self.initramfs.to_owned(),
            console: self.place.join(CONSOLE),
            pcpus: self.plan.pcpus,
            memory_mib: self.plan.memory_mib,
        };
        let command = hardware.command();
        if show_command {
            eprintln!("{command:?}");
        }
        let mut recorder = Recorder::new(self.plan);
        let limit = Duration::from_secs(self.plan.timeout_s) + GRACE;
        let mut machine = Machine::start(command, limit).map_err(RigError::Qemu)?;
        show(ktap::head(self.plan.steps.len()).trim_end());
        let end = self.follow(&mut machine, &mut recorder);
        drop(machine);
        let record = recorder.finish(&end);
        print_rest(&record, &hardware.console);
        self.write(JSON, &render(&record))?;
        self.write(KTAP, &ktap::document(&record))?;
        for step in &record.steps {
            for (path, text) in &step.files {
                let name = Path::new(path).file_name().unwrap_or_default();
                self.write(Path::new(FILES).join(&step.name).join(name), text)?;
            }
        }
        Ok(record)
    }

    /// Makes the folder and removes the results of an earlier run, which would pass for
    /// this one's if it broke off.
    fn clear(&self) -> Result<(), RigError> {
        let wrong = |source| RigError::Write { path: self.place.to_owned(), source };
        fs::create_dir_all(self.place).map_err(wrong)?;
        for name in RESULTS {
            let path = self.place.join(name);
            let removed =
                if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            match removed {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(wrong(error)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Follows the host with a progress line on a terminal; steps print as they end.
    fn follow(&self, machine: &mut Machine, recorder: &mut Recorder<'_>) -> HostEnd {
        // Hidden by itself where standard error is no terminal.
        let progress = ProgressBar::new_spinner();
        let mut doing = "booting";
        let end = machine.follow(|event| {
            match &event {
                Some(Event::Ready { .. }) => doing = "ready",
                Some(Event::Started { step }) => {
                    doing = self.plan.steps.get(*step).map_or(doing, |step| &step.name);
                }
                _ => {}
            }
            if let Some(index) = event.and_then(|event| recorder.see(event)) {
                let line = ktap::step(index, &recorder.so_far().steps[index]);
                progress.suspend(|| show(line.trim_end()));
            }
            progress.set_message(format!("{doing}, {} s", recorder.elapsed().as_secs()));
            progress.tick();
        });
        progress.finish_and_clear();
        end
    }

    fn write(&self, name: impl AsRef<Path>, text: &str) -> Result<(), RigError> {
        let path = self.place.join(name);
        let folder = path.parent().unwrap_or(self.place);
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&path, text))
            .map_err(|source| RigError::Write { path, source })
    }
}

fn render(record: &Record) -> String {
    serde_json::to_string_pretty(record).expect("a record has only plain data")
}

/// The lines that no event brought: steps that never ended, the host, the console.
fn print_rest(record: &Record, log: &Path) {
    for (index, step) in record.steps.iter().enumerate() {
        if step.ending.is_none() {
            show(ktap::step(index, step).trim_end());
        }
    }
    show(ktap::host(record).trim_end());
    let boot = record.boot_ms.map_or("never".to_owned(), |ms| format!("after {ms} ms"));
    show(format_args!("# first command {boot}, end after {} ms", record.total_ms));
    if record.host_failure.is_some() {
        show(format_args!("# console log: {}", log.display()));
        for line in console::excerpt(log) {
            show(format_args!("# console: {line}"));
        }
    }
}
