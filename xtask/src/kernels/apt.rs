//! Debian's archive through the system's apt, without touching the system.
//!
//! Owner: [`PrivateApt`] owns one folder that holds its configuration, package
//! lists and locks. Of the system's configuration only the mirror, the keyring and
//! the transport settings (proxies) are read; its hooks are switched off, because
//! they would run for a system that has not changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The keys of Debian's archive, from the package debian-archive-keyring.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// The last part of the path of every mirror of Debian's main archive.
const ARCHIVE_NAME: &str = "debian";

/// Why the archive did not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AptError {
    #[error("Cannot run {program}: kernels are fetched by Debian's apt and dpkg")]
    Missing { program: String, source: std::io::Error },
    #[error("{command} failed:\n{output}")]
    Failed { command: String, output: String },
    #[error(
        "No Debian mirror among this system's apt sources (a URL that ends in /{ARCHIVE_NAME}): \
         give one with --mirror URL"
    )]
    NoMirror,
    #[error("No {KEYRING}: install it with: apt-get install debian-archive-keyring")]
    NoKeyring,
    #[error("Cannot write {}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("The folder {:?} has a character that apt's configuration cannot hold", .0)]
    Folder(PathBuf),
    #[error("apt downloaded no file for {name} into {}", into.display())]
    NoFile { name: String, into: PathBuf },
}

/// One package as the archive describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Package name.
    pub(crate) name: String,
    /// Debian version.
    pub(crate) version: String,
    /// SHA-256 of the package file, from the signed index.
    pub(crate) sha256: String,
}

/// An apt that lives in a folder of its own.
#[derive(Debug)]
pub(crate) struct PrivateApt {
    configuration: PathBuf,
}

impl PrivateApt {
    /// Writes the configuration into `root`, for `suites` of `mirror` or, if none is
    /// given, of the mirror that the system itself uses.
    pub(crate) fn set_up(
        root: &Path,
        mirror: Option<String>,
        suites: &[String],
    ) -> Result<Self, AptError> {
        let text = root.to_str().filter(|text| !text.contains(['"', '\n']));
        let text = text.ok_or_else(|| AptError::Folder(root.to_owned()))?;
        if !Path::new(KEYRING).exists() {
            return Err(AptError::NoKeyring);
        }
        let mirror = match mirror {
            Some(mirror) => mirror,
            None => system_mirror()?,
        };
        for folder in ["state/lists/partial", "cache/archives/partial"] {
            let path = root.join(folder);
            fs::create_dir_all(&path).map_err(|source| AptError::Write { path, source })?;
        }
        let configuration = root.join("apt.conf");
        write(&configuration, &configuration_text(text))?;
        write(&root.join("sources.list"), &sources_text(&mirror, suites))?;
        Ok(Self { configuration })
    }

    /// Fetches the package lists.
    pub(crate) fn update(&self) -> Result<(), AptError> {
        // Without the option apt calls a failed download a success with old lists.
        self.run("apt-get", &["-o", "APT::Update::Error-Mode=any", "update"]).map(drop)
    }

    /// Names of all packages that start with `prefix`.
    pub(crate) fn names(&self, prefix: &str) -> Result<Vec<String>, AptError> {
        let output = self.run("apt-cache", &["pkgnames", prefix])?;
        Ok(output.lines().map(str::to_owned).collect())
    }

    /// The newest version of a package.
    pub(crate) fn offer(&self, name: &str) -> Result<Option<Offer>, AptError> {
        let output = self.run("apt-cache", &["show", "--no-all-versions", name])?;
        Ok(parse_offer(&output))
    }

    /// Downloads the package file into the folder `into` and returns its path.
    pub(crate) fn download(&self, offer: &Offer, into: &Path) -> Result<PathBuf, AptError> {
        let package = format!("{}={}", offer.name, offer.version);
        let mut command = self.command("apt-get", &["download", &package]);
        command.current_dir(into);
        run(command)?;
        let start = format!("{}_", offer.name);
        let mut files = fs::read_dir(into)
            .map_err(|source| AptError::Write { path: into.to_owned(), source })?
            .filter_map(|entry| entry.ok().map(|entry| entry.path()));
        files
            .find(|path| {
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&start))
            })
            .ok_or_else(|| AptError::NoFile { name: offer.name.clone(), into: into.to_owned() })
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<String, AptError> {
        run(self.command(program, arguments))
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.arg("--config-file").arg(&self.configuration).args(arguments);
        command
    }
}

/// Runs a command to its end and returns what it printed on standard output.
pub(crate) fn run(mut command: Command) -> Result<String, AptError> {
    // Messages are parsed by nobody, but shown to people who search for them.
    command.env("LC_ALL", "C.UTF-8");
    let output = command.output().map_err(|source| AptError::Missing {
        program: command.get_program().to_string_lossy().into_owned(),
        source,
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(AptError::Failed {
        command: format!("{command:?}"),
        output: String::from_utf8_lossy(&output.stderr).trim_end().to_owned(),
    })
}

fn write(path: &Path, text: &str) -> Result<(), AptError> {
    fs::write(path, text).map_err(|source| AptError::Write { path: path.to_owned(), source })
}

/// Read by apt after the system's own configuration, so that it has the last word.
fn configuration_text(root: &str) -> String {
    format!(
        r#"Dir::State "{root}/state";
Dir::State::lists "lists";
Dir::State::status "/dev/null";
Dir::Cache "{root}/cache";
Dir::Cache::archives "archives";
Dir::Cache::pkgcache "pkgcache.bin";
Dir::Cache::srcpkgcache "srcpkgcache.bin";
Dir::Etc::sourcelist "{root}/sources.list";
Dir::Etc::sourceparts "-";
Dir::Etc::preferences "-";
Dir::Etc::preferencesparts "-";
APT::Architecture "amd64";
APT::Sandbox::User "root";
Acquire::Check-Valid-Until "false";
Acquire::Languages "none";
#clear APT::Architectures;
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Post-Invoke;
#clear Acquire::IndexTargets::deb::DEP-11;
#clear Acquire::IndexTargets::deb::DEP-11-icons;
#clear Acquire::IndexTargets::deb::DEP-11-icons-small;
#clear Acquire::IndexTargets::deb::DEP-11-icons-large;
#clear Acquire::IndexTargets::deb::DEP-11-icons-hidpi;
#clear Acquire::IndexTargets::deb::DEP-11-icons-large-hidpi;
"#
    )
}

fn sources_text(mirror: &str, suites: &[String]) -> String {
    suites
        .iter()
        .map(|suite| format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n"))
        .collect()
}

/// The mirror of Debian's main archive that this system is set up for.
fn system_mirror() -> Result<String, AptError> {
    let mut command = Command::new("apt-get");
    command.args(["indextargets", "--no-release-info", "--format", "$(REPO_URI)"]);
    main_archive(&run(command)?).ok_or(AptError::NoMirror)
}

/// The first repository in `uris`, one per line, that is Debian's main archive and
/// not, for example, its security archive.
fn main_archive(uris: &str) -> Option<String> {
    let uri = uris.lines().map(str::trim).find(|uri| {
        uri.trim_end_matches('/').rsplit('/').next().is_some_and(|last| last == ARCHIVE_NAME)
    })?;
    Some(uri.to_owned())
}

/// Reads the first paragraph of `apt-cache show`.
fn parse_offer(text: &str) -> Option<Offer> {
    let paragraph = text.split("\n\n").next()?;
    let field = |key: &str| {
        paragraph
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(": "))
            .map(|value| value.trim().to_owned())
    };
    Some(Offer { name: field("Package")?, version: field("Version")?, sha256: field("SHA256")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_archive_is_told_from_security_and_strangers() {
        let uris = "https://packages.example/apt/\n\
                    http://mirror.example/debian-security/\n\
                    http://mirror.example/debian/\n";
        assert_eq!(main_archive(uris).as_deref(), Some("http://mirror.example/debian/"));
        assert_eq!(main_archive("http://mirror.example/ubuntu/\n"), None);
        assert_eq!(main_archive(""), None);
    }

    #[test]
    fn every_suite_is_one_source_with_the_keyring() {
        let text = sources_text("http://mirror.example/debian", &["a".into(), "b".into()]);
        assert_eq!(text.lines().count(), 2);
        for line in text.lines() {
            assert!(line.contains(&format!("signed-by={KEYRING}")), "{line}");
        }
    }

    #[test]
    fn an_offer_is_the_first_paragraph() {
        let text = "Package: linux-image-x\nVersion: 1-1\nSHA256: abc\nSize: 3\n\n\
                    Package: linux-image-x\nVersion: 0-9\nSHA256: def\n";
        let offer = parse_offer(text).unwrap();
        assert_eq!((offer.version.as_str(), offer.sha256.as_str()), ("1-1", "abc"));
        assert_eq!(parse_offer("N: Unable to locate package\n"), None);
    }

    #[test]
    fn a_failed_command_says_what_it_was_and_what_it_said() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such suite >&2; exit 100"]);
        let text = run(command).unwrap_err().to_string();
        assert!(text.contains("\"sh\"") && text.contains("no such suite"), "{text}");
    }

    #[test]
    fn a_folder_that_would_end_a_quoted_string_is_refused() {
        let error = PrivateApt::set_up(Path::new("/x\"y"), None, &[]).unwrap_err();
        assert!(matches!(error, AptError::Folder(_)), "{error}");
    }
}
