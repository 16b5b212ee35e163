//! `cargo xtask kernels`: the Linux kernels that tests boot.
//!
//! Owner: this command alone writes the cache folder; the rig and the guest tests
//! read it through [`Cache`]. States of one kernel there: absent, or whole: it is
//! put together beside its place, moved in, and only then entered in the manifest.

mod apt;
mod cache;
mod choice;
mod fetch;
mod package;

use std::path::PathBuf;

use comfy_table::{Table, presets};

use crate::show;
pub(crate) use cache::{Cache, Kernel};

/// The fetch list of this repository.
const FETCH_LIST: &str = include_str!("../../../resources/kernels/fetch.toml");

/// `cargo xtask kernels ...`
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Download the kernels of resources/kernels/fetch.toml from Debian's archive
    Fetch(FetchOptions),
    /// Show the kernels in the cache folder
    List(ListOptions),
}

/// Options of `kernels fetch`.
#[derive(Debug, clap::Args)]
pub(crate) struct FetchOptions {
    /// Names from the fetch list [default: all]
    names: Vec<String>,
    /// Cache folder [default: target/kernels]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Debian mirror [default: the one in this system's apt sources]
    #[arg(long, value_name = "URL")]
    mirror: Option<String>,
}

/// Options of `kernels list`.
#[derive(Debug, clap::Args)]
pub(crate) struct ListOptions {
    /// Cache folder [default: target/kernels]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print the manifest as JSON
    #[arg(long)]
    json: bool,
}

/// Why a `kernels` command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KernelsError {
    #[error(transparent)]
    Fetch(#[from] fetch::FetchError),
    #[error(transparent)]
    Cache(#[from] cache::CacheError),
}

/// Runs one `kernels` command; results go to standard output.
pub(crate) fn run(command: Command) -> Result<(), KernelsError> {
    match command {
        Command::Fetch(options) => {
            let cache = Cache::open(options.dir)?;
            let list = choice::FetchList::parse(FETCH_LIST, &options.names)
                .map_err(fetch::FetchError::from)?;
            fetch::run(&cache, &list, options.mirror)?;
        }
        Command::List(options) => {
            let cache = Cache::open(options.dir)?;
            if options.json {
                show(cache.manifest_json()?);
            } else {
                show(table(&cache.kernels()?));
            }
        }
    }
    Ok(())
}

fn table(kernels: &[Kernel]) -> String {
    if kernels.is_empty() {
        return "No kernel in the cache. Get them with: cargo xtask kernels fetch".into();
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["name", "release", "modules", "package", "version", "sha256"]);
    for kernel in kernels {
        let modules: Vec<_> = kernel.modules.iter().map(|module| module.name.as_str()).collect();
        for (row, package) in kernel.packages.iter().enumerate() {
            let first = |text: &str| if row == 0 { text.to_owned() } else { String::new() };
            table.add_row([
                first(&kernel.name),
                first(&kernel.release),
                first(&modules.join(" ")),
                package.name.clone(),
                package.version.clone(),
                package.sha256.clone(),
            ]);
        }
    }
    table.trim_fmt()
}
