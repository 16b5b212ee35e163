//! Builds binaries of this workspace that run without any file beside them.
//!
//! No state. The target is named, although it is this machine's own, so that build
//! scripts and procedural macros keep their own flags.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Why a binary could not be built.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BinaryError {
    #[error("Cannot run cargo")]
    Cargo(#[from] std::io::Error),
    #[error("cargo could not build {package}: see its messages above")]
    Failed { package: String },
    #[error("cargo built {package} but named no executable {name}")]
    NotNamed { package: String, name: String },
}

/// The part of cargo's JSON messages that is needed here.
#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
}

/// Builds the binary `name` of `package`, linked statically and stripped.
pub(super) fn build_static(package: &str, name: &str) -> Result<PathBuf, BinaryError> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut child = Command::new(cargo)
        .current_dir(crate::workspace_dir())
        .args(["build", "--release", "--quiet", "--message-format=json-render-diagnostics"])
        .args(["--target", TARGET, "--package", package, "--bin", name])
        // The encoded form wins over every other way to pass flags.
        .env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static")
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut executable = None;
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines() {
            executable = executable_of(&line?, name).or(executable);
        }
    }
    if !child.wait()?.success() {
        return Err(BinaryError::Failed { package: package.to_owned() });
    }
    executable
        .ok_or_else(|| BinaryError::NotNamed { package: package.to_owned(), name: name.to_owned() })
}

/// The path of the executable `name`, if that is what cargo's message is about.
fn executable_of(message: &str, name: &str) -> Option<PathBuf> {
    let message: Message = serde_json::from_str(message).ok()?;
    message.executable.filter(|path| path.file_name() == Some(Path::new(name).as_os_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_message_about_the_binary_itself_names_it() {
        let message =
            r#"{"reason":"compiler-artifact","executable":"/t/release/pvtlb","fresh":true}"#;
        assert_eq!(executable_of(message, "pvtlb"), Some(PathBuf::from("/t/release/pvtlb")));
        assert_eq!(executable_of(message, "rig-init"), None);
        let library = r#"{"reason":"compiler-artifact","executable":null}"#;
        assert_eq!(executable_of(library, "pvtlb"), None);
        assert_eq!(executable_of("no json", "pvtlb"), None);
    }
}
