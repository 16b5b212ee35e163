//! The file system a Linux guest starts from: the embedded agent as /init, a console,
//! and the files that the user adds.
//!
//! No state: an archive is built in memory in one go. The format is the kernel's newc
//! cpio; a bootloader passes it on as it is.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::PathBuf;
use std::str::FromStr;

use cpio::newc::{self, Builder, ModeFileType};

/// The agent, linked statically; docs/agent.md says what it does.
pub static AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pvtlb-agent"));

/// Major and minor number of /dev/console (Linux, Documentation/admin-guide/devices.txt).
const CONSOLE: (u32, u32) = (5, 1);
const INIT: &str = "init";
const CONSOLE_PATH: &str = "dev/console";
/// A file that all may read and run.
const FILE_MODE: u32 = 0o755;

/// Why there is no archive.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `--file` without a name in the guest that can be used.
    #[error(
        "Cannot add `{0}`: expected HOST-FILE or HOST-FILE:GUEST-PATH, where the path in the \
         guest has no empty, `.` or `..` part"
    )]
    Name(String),
    /// Two files of one name, or a file where another needs a folder.
    #[error("Cannot add /{0} to the guest: that name is taken, expected a new one")]
    Taken(String),
    /// The host's file.
    #[error("Cannot read {} for the guest", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Longer than the format can say.
    #[error("The file /{name} has {bytes} bytes, expected less than 4 GiB")]
    TooLarge {
        /// Its name in the guest.
        name: String,
        /// Its length.
        bytes: usize,
    },
    /// The writer failed.
    #[error("Cannot write the initramfs")]
    Write(#[from] io::Error),
}

/// One `--file`: a file of the host and its name in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddedFile {
    host: PathBuf,
    /// Without a leading slash.
    guest: String,
}

impl FromStr for AddedFile {
    type Err = Error;

    /// Reads `HOST-FILE` (placed in the guest's root folder) or `HOST-FILE:GUEST-PATH`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let (host, guest) = match text.rsplit_once(':') {
            Some((host, guest)) => (host, guest),
            None => (text, text.rsplit('/').next().unwrap_or_default()),
        };
        let guest = guest.strip_prefix('/').unwrap_or(guest);
        let usable = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
        if host.is_empty() || !guest.split('/').all(usable) {
            return Err(Error::Name(text.to_owned()));
        }
        Ok(Self { host: host.into(), guest: guest.to_owned() })
    }
}

/// The archive with the agent and `files`, which all may run.
pub fn build(files: &[AddedFile]) -> Result<Vec<u8>, Error> {
    let mut archive = Archive::default();
    archive.folders_above(CONSOLE_PATH)?;
    let console = archive.entry(CONSOLE_PATH, 0o600, ModeFileType::Char)?;
    archive.write(console.rdev_major(CONSOLE.0).rdev_minor(CONSOLE.1), CONSOLE_PATH, &[])?;
    archive.add(INIT, AGENT)?;
    for file in files {
        let read = |source| Error::Read { path: file.host.clone(), source };
        archive.add(&file.guest, &std::fs::read(&file.host).map_err(read)?)?;
    }
    Ok(newc::trailer(archive.bytes)?)
}

/// An archive in the making.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    folders: BTreeSet<String>,
    /// All else. The kernel would let a later entry overwrite an earlier one.
    taken: BTreeSet<String>,
}

impl Archive {
    fn add(&mut self, path: &str, content: &[u8]) -> Result<(), Error> {
        self.folders_above(path)?;
        let file = self.entry(path, FILE_MODE, ModeFileType::Regular)?;
        self.write(file, path, content)
    }

    /// The kernel makes no folders by itself: each must come before what is in it.
    fn folders_above(&mut self, path: &str) -> Result<(), Error> {
        for (end, _) in path.match_indices('/') {
            let folder = &path[..end];
            if !self.folders.contains(folder) {
                let entry = self.entry(folder, FILE_MODE, ModeFileType::Directory)?;
                self.write(entry, folder, &[])?;
                self.folders.insert(folder.to_owned());
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: &str, mode: u32, kind: ModeFileType) -> Result<Builder, Error> {
        if self.folders.contains(path) || !self.taken.insert(path.to_owned()) {
            return Err(Error::Taken(path.to_owned()));
        }
        // Entries of one inode would be one file with several names.
        let inode = self.taken.len() as u32;
        Ok(Builder::new(path).ino(inode).mode(mode).set_mode_file_type(kind))
    }

    fn write(&mut self, entry: Builder, name: &str, content: &[u8]) -> Result<(), Error> {
        let bytes = content.len();
        let length =
            u32::try_from(bytes).map_err(|_| Error::TooLarge { name: name.to_owned(), bytes })?;
        let mut writer = entry.write(&mut self.bytes, length);
        writer.write_all(content)?;
        writer.finish()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(text: &str) -> AddedFile {
        text.parse().unwrap()
    }

    #[test]
    fn a_file_is_named_by_its_last_part_or_as_asked() {
        assert_eq!(added("a/b.ko").guest, "b.ko");
        assert_eq!(added("a/b.ko:/lib/c.ko").guest, "lib/c.ko");
        assert_eq!(added("b.ko:lib/c.ko"), added("b.ko:/lib/c.ko"));
        for text in ["", ":", ":/x", "a:", "a/", "a:/x/../y", "a:x//y", "a:.", ".."] {
            assert!(matches!(text.parse::<AddedFile>(), Err(Error::Name(_))), "{text}");
        }
    }

    #[test]
    fn no_added_file_takes_the_place_of_another() {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        for names in [&["/init"][..], &["/dev"], &["/x", "/x"], &["/x", "/x/y"], &["/init/y"]] {
            let files: Vec<_> = names.iter().map(|n| added(&format!("{source}:{n}"))).collect();
            assert!(matches!(build(&files), Err(Error::Taken(_))), "{names:?}");
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = build(&[added("no/such/file")]).unwrap_err().to_string();
        assert!(error.contains("no/such/file"), "{error}");
    }
}
