//! Makes a bare kernel with an initramfs usable: file systems, modules, pCPUs,
//! power-off.
//!
//! The kernel starts with one pCPU. While it boots, loads modules and meets its first
//! VM it patches its own code many times. QEMU's emulation first drops its
//! translations of code that is about to be written and then writes; a second pCPU
//! that runs the code in between makes it translate the old bytes again, for good. A
//! host that boots with two pCPUs dies of this in about one of sixty boots.
//!
//! Owner: process 1, from its only thread. No state of its own.

use std::fs::File;
use std::time::Duration;

use nix::kmod::{ModuleInitFlags, finit_module};
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use rig_wire::Event;

/// Why the host could not be brought up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BringUpError {
    #[error("Cannot create the folder {path}: {reason}")]
    Folder { path: &'static str, reason: std::io::Error },
    #[error("Cannot mount {kind} on {target}: {reason}")]
    Mount { kind: &'static str, target: &'static str, reason: nix::Error },
    #[error("Cannot open the module {path}: {reason}")]
    OpenModule { path: String, reason: std::io::Error },
    #[error("Cannot bring up the pCPU {path}: {reason}")]
    Online { path: String, reason: std::io::Error },
    #[error("The kernel refused the module {path}: {reason}")]
    LoadModule { path: String, reason: nix::Error },
}

const PCPUS: &str = "/sys/devices/system/cpu";
const FILE_SYSTEMS: [(&str, &str); 5] = [
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("debugfs", "/sys/kernel/debug"),
    ("tracefs", "/sys/kernel/tracing"),
];

/// Folders for the commands' own files.
const FOLDERS: [&str; 2] = ["/out", "/tmp"];

/// Mounts the kernel's own file systems and makes the folders that commands expect.
pub(crate) fn lay_out() -> Result<(), BringUpError> {
    let create = |path| {
        std::fs::create_dir_all(path).map_err(|reason| BringUpError::Folder { path, reason })
    };
    FOLDERS.into_iter().try_for_each(create)?;
    for (kind, target) in FILE_SYSTEMS {
        create(target)?;
        mount(Some(kind), target, Some(kind), MsFlags::empty(), None::<&str>)
            .map_err(|reason| BringUpError::Mount { kind, target, reason })?;
    }
    Ok(())
}

/// Loads one uncompressed module without parameters.
pub(crate) fn load_module(path: &str) -> Result<(), BringUpError> {
    let file = File::open(path)
        .map_err(|reason| BringUpError::OpenModule { path: path.to_owned(), reason })?;
    match finit_module(&file, c"", ModuleInitFlags::empty()) {
        // Built into this kernel, or loaded on demand by an earlier module.
        Ok(()) | Err(nix::Error::EEXIST) => Ok(()),
        Err(reason) => Err(BringUpError::LoadModule { path: path.to_owned(), reason }),
    }
}

/// Brings up every pCPU that is not running yet.
pub(crate) fn bring_up_pcpus() -> Result<(), BringUpError> {
    let online = |path: String, reason| BringUpError::Online { path, reason };
    let entries = std::fs::read_dir(PCPUS).map_err(|reason| online(PCPUS.to_owned(), reason))?;
    for entry in entries.filter_map(Result::ok) {
        // The first pCPU has no such file, nor have the folder's other entries.
        let switch = entry.path().join("online");
        let Ok(state) = std::fs::read_to_string(&switch) else { continue };
        if state.trim() == "0" {
            std::fs::write(&switch, "1")
                .map_err(|reason| online(switch.display().to_string(), reason))?;
        }
    }
    Ok(())
}

/// What the host has to say about itself once it is up.
pub(crate) fn ready() -> Event {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let pcpus = std::thread::available_parallelism().map_or(0, usize::from);
    Event::Ready { release: release.trim().to_owned(), pcpus, uptime_ms: uptime_ms() }
}

/// Milliseconds since the kernel started, 0 if it does not say.
fn uptime_ms() -> u64 {
    std::fs::read_to_string("/proc/uptime")
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok())
        .map_or(0, |seconds| (seconds * 1000.0) as u64)
}

/// Ends the machine. Does not return: process 1 must not.
pub(crate) fn power_off() -> ! {
    let Err(error) = reboot(RebootMode::RB_POWER_OFF);
    eprintln!("rig-init: cannot power off: {error}");
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}
