//! Writes the file system that the rig's host starts from.
//!
//! Owner: an [`Initramfs`] owns its archive until it is finished. States: open for
//! files, finished. Parents of every file are added by themselves, once.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use cpio::newc::{self, ModeFileType};

/// Major and minor number of /dev/console.
const CONSOLE: (u32, u32) = (5, 1);

/// An archive in the making.
pub(super) struct Initramfs<W: Write> {
    out: W,
    folders: BTreeSet<String>,
    last_inode: u32,
}

impl<W: Write> Initramfs<W> {
    /// An archive with nothing but a console, without which the first process would
    /// start with its outputs closed.
    pub(super) fn new(out: W) -> io::Result<Self> {
        let mut archive = Self { out, folders: BTreeSet::new(), last_inode: 0 };
        archive.folders_above("dev/console")?;
        let console = archive
            .entry("dev/console", 0o600, ModeFileType::Char)
            .rdev_major(CONSOLE.0)
            .rdev_minor(CONSOLE.1);
        archive.write(console, &[])?;
        Ok(archive)
    }

    /// Adds a file that all may read and run, under a path without a leading slash.
    pub(super) fn add(&mut self, path: &str, bytes: &[u8]) -> io::Result<()> {
        self.folders_above(path)?;
        let file = self.entry(path, 0o755, ModeFileType::Regular);
        self.write(file, bytes)
    }

    /// Adds a copy of the file `from`.
    pub(super) fn add_file(&mut self, path: &str, from: &Path) -> io::Result<()> {
        let bytes = fs::read(from).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", from.display()))
        })?;
        self.add(path, &bytes)
    }

    /// Ends the archive.
    pub(super) fn finish(self) -> io::Result<W> {
        let mut out = newc::trailer(self.out)?;
        out.flush()?;
        Ok(out)
    }

    fn folders_above(&mut self, path: &str) -> io::Result<()> {
        for (end, _) in path.match_indices('/') {
            let folder = &path[..end];
            if self.folders.insert(folder.to_owned()) {
                let entry = self.entry(folder, 0o755, ModeFileType::Directory);
                self.write(entry, &[])?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: &str, permissions: u32, kind: ModeFileType) -> newc::Builder {
        // The kernel takes entries of one inode for one file with several names.
        self.last_inode += 1;
        newc::Builder::new(path).ino(self.last_inode).mode(permissions).set_mode_file_type(kind)
    }

    fn write(&mut self, entry: newc::Builder, bytes: &[u8]) -> io::Result<()> {
        let length = u32::try_from(bytes.len()).map_err(|_| {
            io::Error::new(io::ErrorKind::FileTooLarge, "a file of 4 GiB does not fit newc")
        })?;
        let mut writer = entry.write(&mut self.out, length);
        writer.write_all(bytes)?;
        writer.finish()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(archive: &[u8]) -> Vec<(String, u32, u32)> {
        let mut rest = archive;
        let mut entries = Vec::new();
        loop {
            let reader = newc::Reader::new(rest).unwrap();
            if reader.entry().is_trailer() {
                return entries;
            }
            let entry = reader.entry();
            entries.push((entry.name().to_owned(), entry.mode(), entry.file_size()));
            rest = reader.finish().unwrap();
        }
    }

    #[test]
    fn folders_come_once_and_before_their_files() {
        let mut archive = Initramfs::new(Vec::new()).unwrap();
        archive.add("init", b"one").unwrap();
        archive.add("lib/modules/a.ko", b"four").unwrap();
        archive.add("lib/modules/b.ko", b"").unwrap();
        let entries = entries(&archive.finish().unwrap());
        let expected = [
            ("dev", 0o040_755, 0),
            ("dev/console", 0o020_600, 0),
            ("init", 0o100_755, 3),
            ("lib", 0o040_755, 0),
            ("lib/modules", 0o040_755, 0),
            ("lib/modules/a.ko", 0o100_755, 4),
            ("lib/modules/b.ko", 0o100_755, 0),
        ];
        let expected: Vec<_> =
            expected.map(|(name, mode, size)| (name.to_owned(), mode, size)).into();
        assert_eq!(entries, expected);
    }

    #[test]
    fn a_file_that_is_missing_is_named() {
        let mut archive = Initramfs::new(Vec::new()).unwrap();
        let error = archive.add_file("x", Path::new("/no/such/file")).unwrap_err();
        assert!(error.to_string().contains("/no/such/file"), "{error}");
    }
}
