//! Puts together what the rig's host starts from: binaries, modules, kernels, setup.
//!
//! No state of its own; it writes one file.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use super::initramfs::Initramfs;
use super::plan::Plan;
use super::{RigError, binaries};
use crate::kernels::{Cache, Kernel};

/// The package with the host's first process, and that process's program.
const INIT_PACKAGE: &str = "pvtlb-rig-init";
const INIT: &str = "rig-init";

/// What goes into the host's file system.
#[derive(Debug)]
pub(super) struct Ingredients<'a> {
    /// Where kernels and modules lie.
    pub(super) cache: &'a Cache,
    /// The plan, which names the binaries and the commands.
    pub(super) plan: &'a Plan,
    /// The host's kernel.
    pub(super) host: &'a Kernel,
    /// Kernels for guests.
    pub(super) guests: &'a [Kernel],
    /// Keep the host's kernel from patching its own code.
    pub(super) hold_static_keys: bool,
}

impl Ingredients<'_> {
    /// Builds the binaries and writes the archive.
    pub(super) fn build(&self, archive: &Path) -> Result<(), RigError> {
        let init = binaries::build_static(INIT_PACKAGE, INIT)?;
        let mut binaries = vec![(INIT, init)];
        for name in &self.plan.binaries {
            binaries.push((name, binaries::build_static(name, name)?));
        }
        self.write(archive, &binaries)
            .map_err(|source| RigError::Write { path: archive.to_owned(), source })
    }

    fn write(&self, archive: &Path, binaries: &[(&str, PathBuf)]) -> io::Result<()> {
        let mut files = Initramfs::new(BufWriter::new(File::create(archive)?))?;
        for (name, path) in binaries {
            files.add_file(&format!("bin/{name}"), path)?;
            if *name == INIT {
                files.add_file("init", path)?;
            }
        }
        let mut modules = Vec::new();
        for module in &self.host.modules {
            let place = format!("lib/modules/{}.ko", module.name);
            files.add_file(&place, &self.cache.path(module))?;
            modules.push(format!("/{place}"));
        }
        for guest in self.guests {
            let place = format!("kernels/{}", guest.name);
            files.add_file(&place, &self.cache.path(&guest.image))?;
        }
        let setup = self.plan.setup(modules, self.hold_static_keys);
        files.add(rig_wire::SETUP_PATH.trim_start_matches('/'), &serde_json::to_vec(&setup)?)?;
        files.finish().map(drop)
    }
}
