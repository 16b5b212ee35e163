//! Takes the kernel image and the needed modules out of Debian's packages.
//!
//! No state: package files and a folder go in, files in that folder come out. Two
//! layouts are known: image and modules in one package, the image under /boot; and
//! split packages with the image beside its modules.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object, ObjectSection};

use super::apt::{self, AptError};

/// Why a kernel cannot be taken out of its packages.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PackageError {
    #[error(transparent)]
    Unpack(#[from] AptError),
    #[error("Cannot read {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("Cannot write {}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("No kernel image of {release} in {packages}: expected it under boot or lib/modules")]
    NoImage { release: String, packages: String },
    #[error("No module {name} in the packages of {release}, neither as a file nor built in")]
    NoModule { name: String, release: String },
    #[error("Cannot decompress {}", path.display())]
    Decompress { path: PathBuf, source: std::io::Error },
    #[error("The module {} is no ELF file with a .modinfo section", .0.display())]
    NoModInfo(PathBuf),
}

/// What was taken out, as paths in the folder given.
#[derive(Debug)]
pub(crate) struct Contents {
    /// The bzImage.
    pub(crate) image: PathBuf,
    /// Name and file of each module, dependencies first.
    pub(crate) modules: Vec<(String, PathBuf)>,
}

/// Unpacks `packages` and leaves the image of `release` and the modules `wanted`, with
/// all that they depend on, in `into`.
pub(crate) fn take_out(
    packages: &[PathBuf],
    release: &str,
    wanted: &[String],
    into: &Path,
) -> Result<Contents, PackageError> {
    let tree = into.join("unpacked");
    for package in packages {
        let mut command = Command::new("dpkg-deb");
        command.arg("--extract").arg(package).arg(&tree);
        apt::run(command)?;
    }
    let image = into.join("vmlinuz");
    let found = find_image(&tree, release).ok_or_else(|| PackageError::NoImage {
        release: release.to_owned(),
        packages: packages
            .iter()
            .map(|path| path.display().to_string())
            .collect::<Vec<_>>()
            .join(", "),
    })?;
    fs::rename(&found, &image)
        .map_err(|source| PackageError::Write { path: image.clone(), source })?;
    let shelf = Shelf::of(&tree, release)?;
    let mut modules = Vec::new();
    for name in wanted {
        shelf.add(name, into, &mut modules)?;
    }
    fs::remove_dir_all(&tree).map_err(|source| PackageError::Write { path: tree, source })?;
    Ok(Contents { image, modules })
}

fn find_image(tree: &Path, release: &str) -> Option<PathBuf> {
    let mut places = vec![tree.join("boot").join(format!("vmlinuz-{release}"))];
    places.extend(module_roots(tree, release).map(|root| root.join("vmlinuz")));
    places.into_iter().find(|place| place.is_file())
}

fn module_roots(tree: &Path, release: &str) -> impl Iterator<Item = PathBuf> {
    ["usr/lib/modules", "lib/modules"].into_iter().map(move |root| tree.join(root).join(release))
}

/// The modules of one release.
struct Shelf {
    release: String,
    /// Module files by canonical name.
    files: BTreeMap<String, PathBuf>,
    /// Canonical names of what is linked into the image.
    built_in: Vec<String>,
}

impl Shelf {
    fn of(tree: &Path, release: &str) -> Result<Self, PackageError> {
        let mut shelf =
            Self { release: release.to_owned(), files: BTreeMap::new(), built_in: Vec::new() };
        for root in module_roots(tree, release).filter(|root| root.is_dir()) {
            shelf.collect(&root)?;
            // Absent where a package has only some modules of the release.
            let list = fs::read_to_string(root.join("modules.builtin")).unwrap_or_default();
            shelf.built_in.extend(list.lines().filter_map(|line| module_name(Path::new(line))));
        }
        Ok(shelf)
    }

    fn collect(&mut self, folder: &Path) -> Result<(), PackageError> {
        let entries = fs::read_dir(folder)
            .map_err(|source| PackageError::Read { path: folder.to_owned(), source })?;
        for path in entries.filter_map(|entry| entry.ok().map(|entry| entry.path())) {
            if path.is_dir() && !path.is_symlink() {
                self.collect(&path)?;
            } else if let Some(name) = module_name(&path) {
                self.files.insert(name, path);
            }
        }
        Ok(())
    }

    /// Puts the module `name` into the folder `into`, after all that it depends on,
    /// unless it is in `done` already.
    fn add(
        &self,
        name: &str,
        into: &Path,
        done: &mut Vec<(String, PathBuf)>,
    ) -> Result<(), PackageError> {
        let name = canonical(name);
        if self.built_in.contains(&name) || done.iter().any(|(other, _)| *other == name) {
            return Ok(());
        }
        let Some(packed) = self.files.get(&name) else {
            return Err(PackageError::NoModule { name, release: self.release.clone() });
        };
        let bytes = decompressed(packed)?;
        let depends = depends(&bytes).ok_or_else(|| PackageError::NoModInfo(packed.clone()))?;
        for other in &depends {
            self.add(other, into, done)?;
        }
        let path = into.join(format!("{name}.ko"));
        fs::write(&path, &bytes)
            .map_err(|source| PackageError::Write { path: path.clone(), source })?;
        done.push((name, path));
        Ok(())
    }
}

/// `kernel/arch/x86/kvm/kvm-amd.ko.xz` is `kvm_amd`.
fn module_name(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let (name, rest) = file.split_once(".ko")?;
    matches!(rest, "" | ".xz").then(|| canonical(name))
}

/// The kernel takes dashes and underscores in module names for the same.
fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

fn decompressed(path: &Path) -> Result<Vec<u8>, PackageError> {
    let packed =
        fs::read(path).map_err(|source| PackageError::Read { path: path.to_owned(), source })?;
    if path.extension().is_none_or(|extension| extension != "xz") {
        return Ok(packed);
    }
    let mut bytes = Vec::new();
    lzma_rust2::XzReader::new(packed.as_slice(), true)
        .read_to_end(&mut bytes)
        .map_err(|source| PackageError::Decompress { path: path.to_owned(), source })?;
    Ok(bytes)
}

/// The modules that a module says it needs; nothing if it is no kernel module.
fn depends(module: &[u8]) -> Option<Vec<String>> {
    let file = object::File::parse(module).ok()?;
    let info = file.section_by_name(".modinfo")?.data().ok()?;
    let entries = info.split(|byte| *byte == 0);
    let list = entries.filter_map(|entry| entry.strip_prefix(b"depends=")).next().unwrap_or(b"");
    let list = String::from_utf8_lossy(list);
    Some(list.split(',').filter(|name| !name.is_empty()).map(canonical).collect())
}

#[cfg(test)]
#[path = "package/tests.rs"]
mod tests;
