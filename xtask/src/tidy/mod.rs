//! The project's own source rules, as far as a program can hold them.
//!
//! Owner: nobody; the tree is read once into [`File`]s, each check is a pure
//! function from files to [`Finding`]s, and so each check has samples that it must
//! refuse beside samples that it must let pass.

mod architecture;
mod arrows;
mod names;
mod places;
mod shape;
mod tokens;

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use crate::show;

/// One text file of the tree.
#[derive(Debug)]
struct File {
    /// Relative to the workspace, with forward slashes.
    path: String,
    text: String,
}

impl File {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

/// One breach of a rule.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    path: String,
    /// From 1; 0 if the whole file is meant.
    line: usize,
    text: String,
}

impl Finding {
    fn new(path: &str, line: usize, text: impl Into<String>) -> Self {
        Self { path: path.into(), line, text: text.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.text),
            line => write!(f, "{}:{line}: {}", self.path, self.text),
        }
    }
}

/// Checks the tree under `root` and prints what it finds; true if that is nothing.
pub(crate) fn run(root: &Path) -> bool {
    let files = match read_tree(root) {
        Ok(files) => files,
        Err(error) => {
            eprintln!("Could not read the tree under {}: {error}", root.display());
            return false;
        }
    };
    let findings = check(&files);
    for finding in &findings {
        eprintln!("{finding}");
    }
    show(format_args!("tidy: {} files, {} findings", files.len(), findings.len()));
    findings.is_empty()
}

fn check(files: &[File]) -> Vec<Finding> {
    let mut findings = arrows::check_manifests(files);
    findings.extend(architecture::check(files));
    let mut uses = Vec::new();
    for file in files {
        findings.extend(places::check(file));
        if !file.is_rust() {
            continue;
        }
        findings.extend(shape::check_text(file));
        match tokens::lex(&file.text) {
            Ok(tokens) => {
                findings.extend(shape::check_tokens(file, &tokens));
                findings.extend(names::check(file, &tokens));
                findings.extend(arrows::check_kvm_importers(file, &tokens));
                uses.extend(arrows::module_uses(file, &tokens));
            }
            Err(error) => findings.push(Finding::new(&file.path, 0, error)),
        }
    }
    findings.extend(arrows::check_layers(&uses));
    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    findings
}

/// Every UTF-8 file below `root`, without version control and build output.
fn read_tree(root: &Path) -> io::Result<Vec<File>> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let path = entry.path();
            let kind = entry.file_type()?;
            if entry.file_name() == ".git" {
                continue;
            }
            if kind.is_dir() {
                if !is_output(&path) {
                    folders.push(path);
                }
            } else if kind.is_file() {
                let Ok(text) = String::from_utf8(fs::read(&path)?) else {
                    continue;
                };
                let relative = path.strip_prefix(root).unwrap_or(&path);
                files.push(File { path: relative.to_string_lossy().replace('\\', "/"), text });
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

/// Build output is tagged by cargo, but a target folder may also have been made
/// by hand before cargo saw it.
fn is_output(folder: &Path) -> bool {
    let name = folder.file_name().unwrap_or_default();
    name == "target" || folder.join("CACHEDIR.TAG").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clean_file_has_no_findings_and_a_broken_one_is_found_by_its_line() {
        let file = |path: &str, text: &str| File { path: path.into(), text: text.into() };
        let map = file("ARCHITECTURE.md", "`api/src/lib.rs`");
        let good = file("api/src/lib.rs", "//! Types.\npub struct Config;\n");
        assert_eq!(check(&[map, good]), []);
        let map = file("ARCHITECTURE.md", "`api/src/lib.rs`");
        let bad = file("api/src/lib.rs", "//! Types.\npub struct ConfigManager;\n");
        let findings = check(&[map, bad]);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].to_string().starts_with("api/src/lib.rs:2: "), "{}", findings[0]);
    }

    #[test]
    fn a_file_that_is_not_rust_text_is_a_finding_and_not_a_panic() {
        let file = File { path: "api/src/x.rs".into(), text: "//! x\nfn f( {".into() };
        let map = File { path: "ARCHITECTURE.md".into(), text: String::new() };
        assert_eq!(check(&[map, file]).len(), 1);
    }
}
