//! Brings the kernels of the fetch list into the cache.
//!
//! Owner: the calling thread. States of one kernel: chosen, downloaded, put together
//! in a folder of its own, moved into place, entered in the manifest; whatever
//! breaks before the last leaves the cache as it was.

use std::fs;
use std::path::{Path, PathBuf};

use super::apt::{AptError, Offer, PrivateApt};
use super::cache::{self, Cache, CacheError, Kernel, Source, Stored};
use super::choice::{ChoiceError, FetchList, IMAGE_PREFIX, Wanted};
use super::package::{self, PackageError};
use crate::show;

/// Why a kernel could not be brought.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    #[error(transparent)]
    Apt(#[from] AptError),
    #[error(transparent)]
    Cache(#[from] CacheError),
    #[error(transparent)]
    Package(#[from] PackageError),
    #[error("The archive offers no kernel for {name:?} in {suites}")]
    NotOffered { name: String, suites: String },
    #[error("{name} has the SHA-256 {found}, the archive's index says {expected}")]
    WrongSum { name: String, found: String, expected: String },
    #[error("Cannot write {}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
}

/// Fetches what the cache does not have yet. If the archive cannot be reached but the
/// cache holds a kernel for each entry, says so and keeps those.
pub(crate) fn run(
    cache: &Cache,
    list: &FetchList,
    mirror: Option<String>,
) -> Result<(), FetchError> {
    let apt = match reach(cache, list, mirror) {
        Ok(apt) => apt,
        Err(error) if holds_all(cache, list)? => {
            eprintln!("The archive cannot be reached: {error}\nThe cache has every kernel: kept");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let names = apt.names(IMAGE_PREFIX)?;
    for wanted in &list.kernels {
        let release = wanted.newest_of(names.iter().map(String::as_str))?.ok_or_else(|| {
            FetchError::NotOffered { name: wanted.name.clone(), suites: list.suites.join(", ") }
        })?;
        let offers = packages_of(&apt, &release)?;
        if holds(cache, &wanted.name, &offers) {
            show(format_args!("{}: {release} is in the cache", wanted.name));
            continue;
        }
        let kernel = bring(cache, &apt, wanted, release, &offers)?;
        show(format_args!("{}: {} fetched", wanted.name, kernel.release));
        cache.enter(kernel)?;
    }
    Ok(())
}

fn reach(cache: &Cache, list: &FetchList, mirror: Option<String>) -> Result<PrivateApt, AptError> {
    let apt = PrivateApt::set_up(&cache.dir().join("apt"), mirror, &list.suites)?;
    apt.update()?;
    Ok(apt)
}

fn holds_all(cache: &Cache, list: &FetchList) -> Result<bool, CacheError> {
    for wanted in &list.kernels {
        if cache.kernel(&wanted.name)?.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// True if the cache has exactly these packages' kernel, whole. One that is damaged
/// counts as absent, so that a fetch repairs it.
fn holds(cache: &Cache, name: &str, offers: &[Offer]) -> bool {
    let Ok(Some(kernel)) = cache.kernel(name) else { return false };
    kernel.packages == offers.iter().map(source).collect::<Vec<_>>()
}

fn source(offer: &Offer) -> Source {
    Source {
        name: offer.name.clone(),
        version: offer.version.clone(),
        sha256: offer.sha256.clone(),
    }
}

/// The packages that hold a release: newer ones are split into image and modules, with
/// an empty package of the old name that only depends on both.
fn packages_of(apt: &PrivateApt, release: &str) -> Result<Vec<Offer>, FetchError> {
    let mut offers = Vec::new();
    for prefix in ["linux-binary-", "linux-modules-"] {
        let name = format!("{prefix}{release}");
        if apt.names(&name)?.contains(&name) {
            offers.extend(apt.offer(&name)?);
        }
    }
    if offers.is_empty() {
        offers.extend(apt.offer(&format!("{IMAGE_PREFIX}{release}"))?);
    }
    Ok(offers)
}

fn bring(
    cache: &Cache,
    apt: &PrivateApt,
    wanted: &Wanted,
    release: String,
    offers: &[Offer],
) -> Result<Kernel, FetchError> {
    let fresh = cache.dir().join(format!("{}.new", wanted.name));
    let files = fresh.join("packages");
    empty(&fresh)?;
    empty(&files)?;
    let mut packages = Vec::new();
    for offer in offers {
        let file = apt.download(offer, &files)?;
        let found = cache::sha256(&file)?;
        if found != offer.sha256 {
            let (name, expected) = (offer.name.clone(), offer.sha256.clone());
            return Err(FetchError::WrongSum { name, found, expected });
        }
        packages.push(file);
    }
    let contents = package::take_out(&packages, &release, &wanted.modules, &fresh)?;
    remove(&files)?;
    let image = stored(&wanted.name, "vmlinuz", &contents.image)?;
    let modules = contents
        .modules
        .iter()
        .map(|(name, path)| stored(&wanted.name, name, path))
        .collect::<Result<_, _>>()?;
    let place = cache.dir().join(&wanted.name);
    remove(&place)?;
    fs::rename(&fresh, &place)
        .map_err(|source| FetchError::Write { path: place.clone(), source })?;
    Ok(Kernel {
        name: wanted.name.clone(),
        release,
        image,
        modules,
        packages: offers.iter().map(source).collect(),
    })
}

/// Describes a file that is about to move, with its siblings, to the folder `kernel`.
fn stored(kernel: &str, name: &str, path: &Path) -> Result<Stored, CacheError> {
    let file = Path::new(kernel).join(path.file_name().unwrap_or_default());
    Ok(Stored { name: name.to_owned(), file, sha256: cache::sha256(path)? })
}

fn empty(folder: &Path) -> Result<(), FetchError> {
    remove(folder)?;
    fs::create_dir_all(folder)
        .map_err(|source| FetchError::Write { path: folder.to_owned(), source })
}

fn remove(folder: &Path) -> Result<(), FetchError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(FetchError::Write { path: folder.to_owned(), source: error })
        }
        _ => Ok(()),
    }
}
