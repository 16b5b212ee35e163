//! The cache folder: one folder per kernel and a manifest that says what they are.
//!
//! Owner: `kernels fetch` writes, everybody else reads. The manifest is replaced as a
//! whole, after the files that it names are in place.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

const MANIFEST: &str = "manifest.json";

/// Why the cache cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CacheError {
    #[error("Cannot read {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("Cannot write {}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("Cannot parse {}: remove it and fetch again", path.display())]
    Parse { path: PathBuf, source: serde_json::Error },
    #[error("{} has the SHA-256 {found}, the manifest says {expected}: fetch again", path.display())]
    Changed { path: PathBuf, found: String, expected: String },
}

/// What the cache folder holds.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Manifest {
    kernels: Vec<Kernel>,
}

/// One kernel in the cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kernel {
    /// Its name in the fetch list.
    pub(crate) name: String,
    /// What it calls itself (`uname -r`).
    pub(crate) release: String,
    /// The bzImage.
    pub(crate) image: Stored,
    /// Uncompressed modules, each after all that it depends on.
    pub(crate) modules: Vec<Stored>,
    /// The packages that it came from.
    pub(crate) packages: Vec<Source>,
}

/// One file of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stored {
    /// The module's name, or `vmlinuz`.
    pub(crate) name: String,
    /// Path relative to the cache folder.
    pub(crate) file: PathBuf,
    /// SHA-256 of the file as it is here.
    pub(crate) sha256: String,
}

/// A package that a kernel came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Source {
    /// Package name.
    pub(crate) name: String,
    /// Debian version.
    pub(crate) version: String,
    /// SHA-256 of the package file.
    pub(crate) sha256: String,
}

/// The cache folder.
#[derive(Debug)]
pub(crate) struct Cache {
    dir: PathBuf,
}

impl Cache {
    /// The cache in `dir`, or in the build folder's `kernels`. Nothing is created.
    pub(crate) fn open(dir: Option<PathBuf>) -> Result<Self, CacheError> {
        let dir = dir.unwrap_or_else(|| crate::target_dir().join("kernels"));
        let dir = std::path::absolute(&dir)
            .map_err(|source| CacheError::Read { path: dir.clone(), source })?;
        Ok(Self { dir })
    }

    /// The folder itself.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// All kernels of the manifest; none if there is no manifest.
    pub(crate) fn kernels(&self) -> Result<Vec<Kernel>, CacheError> {
        let path = self.dir.join(MANIFEST);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(CacheError::Read { path, source }),
        };
        let manifest: Manifest =
            serde_json::from_str(&text).map_err(|source| CacheError::Parse { path, source })?;
        Ok(manifest.kernels)
    }

    /// The kernel called `name`, if the cache has it; fails if one of its files is not
    /// what was fetched.
    pub(crate) fn kernel(&self, name: &str) -> Result<Option<Kernel>, CacheError> {
        let Some(kernel) = self.kernels()?.into_iter().find(|kernel| kernel.name == name) else {
            return Ok(None);
        };
        for stored in kernel.modules.iter().chain([&kernel.image]) {
            let path = self.path(stored);
            let found = sha256(&path)?;
            if found != stored.sha256 {
                let expected = stored.sha256.clone();
                return Err(CacheError::Changed { path, found, expected });
            }
        }
        Ok(Some(kernel))
    }

    /// Where a file of a kernel lies.
    pub(crate) fn path(&self, stored: &Stored) -> PathBuf {
        self.dir.join(&stored.file)
    }

    /// Enters a kernel whose files are in place, instead of any of the same name.
    pub(crate) fn enter(&self, kernel: Kernel) -> Result<(), CacheError> {
        let mut kernels = self.kernels()?;
        kernels.retain(|other| other.name != kernel.name);
        kernels.push(kernel);
        kernels.sort_by(|one, other| one.name.cmp(&other.name));
        let path = self.dir.join(MANIFEST);
        let fresh = self.dir.join(format!("{MANIFEST}.new"));
        fs::write(&fresh, render(&Manifest { kernels }))
            .and_then(|()| fs::rename(&fresh, &path))
            .map_err(|source| CacheError::Write { path, source })
    }

    /// The manifest as text.
    pub(crate) fn manifest_json(&self) -> Result<String, CacheError> {
        Ok(render(&Manifest { kernels: self.kernels()? }))
    }
}

fn render(manifest: &Manifest) -> String {
    serde_json::to_string_pretty(manifest).expect("a manifest has only strings and lists")
}

/// SHA-256 of a file, in hexadecimal.
pub(crate) fn sha256(path: &Path) -> Result<String, CacheError> {
    let bytes =
        fs::read(path).map_err(|source| CacheError::Read { path: path.to_owned(), source })?;
    Ok(Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(cache: &Cache, name: &str, bytes: &[u8]) -> Stored {
        let file = PathBuf::from(name);
        fs::write(cache.dir().join(&file), bytes).unwrap();
        let sha256 = sha256(&cache.dir().join(&file)).unwrap();
        Stored { name: name.into(), file, sha256 }
    }

    fn cache_with(name: &str, release: &str) -> (tempfile::TempDir, Cache) {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(dir.path().to_owned())).unwrap();
        enter(&cache, name, release);
        (dir, cache)
    }

    fn enter(cache: &Cache, name: &str, release: &str) {
        let image = stored(cache, &format!("{name}-vmlinuz"), release.as_bytes());
        let kernel = Kernel {
            name: name.into(),
            release: release.into(),
            image,
            modules: Vec::new(),
            packages: Vec::new(),
        };
        cache.enter(kernel).unwrap();
    }

    #[test]
    fn an_empty_cache_has_no_kernels() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(dir.path().join("absent"))).unwrap();
        assert_eq!(cache.kernels().unwrap(), []);
        assert_eq!(cache.kernel("6.12").unwrap(), None);
    }

    #[test]
    fn a_newer_release_takes_the_place_of_its_namesake_only() {
        let (_dir, cache) = cache_with("6.12", "6.12.1");
        enter(&cache, "7", "7.0.1");
        enter(&cache, "6.12", "6.12.2");
        let releases: Vec<_> =
            cache.kernels().unwrap().into_iter().map(|kernel| kernel.release).collect();
        assert_eq!(releases, ["6.12.2", "7.0.1"]);
    }

    #[test]
    fn a_file_that_changed_is_refused_with_both_sums() {
        let (_dir, cache) = cache_with("6.12", "6.12.1");
        let kernel = cache.kernel("6.12").unwrap().unwrap();
        fs::write(cache.path(&kernel.image), b"truncated").unwrap();
        let text = cache.kernel("6.12").unwrap_err().to_string();
        assert!(text.contains(&kernel.image.sha256) && text.contains("fetch again"), "{text}");
    }

    #[test]
    fn a_manifest_that_is_no_json_is_named() {
        let (_dir, cache) = cache_with("6.12", "6.12.1");
        fs::write(cache.dir().join(MANIFEST), "{").unwrap();
        let text = cache.kernels().unwrap_err().to_string();
        assert!(text.contains(MANIFEST), "{text}");
    }

    #[test]
    fn sha256_is_the_published_function() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("abc");
        fs::write(&path, b"abc").unwrap();
        let sum = sha256(&path).unwrap();
        assert_eq!(sum, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
