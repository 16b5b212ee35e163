//! No file may know the machine it was written on: no absolute path of somebody's
//! folders, no host beyond the public ones that documents cite.
//!
//! A pure function of one file, line by line.

use super::{File, Finding};

/// First components of absolute paths that belong to one machine. System paths
/// (`/dev`, `/proc`, `/sys`, `/usr`) are the same everywhere. A temporary file goes
/// into `std::env::temp_dir()`.
const MACHINE_ROOTS: &[&str] = &["work", "root", "home", "tmp", "Users"];

/// Folders whose absolute paths are those of a guest or an emulated host.
const OTHER_MACHINES: &[&str] = &["guest-tests/linux/", "guest-tests/rig/"];

/// Public hosts, their subdomains included. No package registry is among them:
/// cargo knows where those are.
const HOSTS: &[&str] = &[
    "amd.com",
    "apache.org",
    "arm.com",
    "arxiv.org",
    "debian.org",
    "docs.rs",
    "github.com",
    "gitlab.com",
    "intel.com",
    "kernel.org",
    "keepachangelog.com",
    "microsoft.com",
    "openapis.org",
    "opensource.org",
    "qemu.org",
    "redhat.com",
    "rust-lang.org",
    "rustup.rs",
    "semver.org",
    "spinics.net",
    "w3.org",
    "xen.org",
    // Reserved for examples and tests (RFC 2606, RFC 6761).
    "example",
    "example.com",
    "invalid",
    "localhost",
    "127.0.0.1",
];

const SCHEMES: &[&str] = &["http", "https", "ftp", "git", "ssh"];

pub(super) fn check(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    let own_paths = !OTHER_MACHINES.iter().any(|folder| file.path.starts_with(folder));
    for (i, line) in file.text.lines().enumerate() {
        if own_paths {
            for path in machine_paths(line) {
                let text = format!("`{path}` is a path of one machine");
                findings.push(Finding::new(&file.path, i + 1, text));
            }
        }
        for host in hosts(line).filter(|host| !is_public(host)) {
            let text =
                format!("`{host}` is not among the public hosts of xtask/src/tidy/places.rs");
            findings.push(Finding::new(&file.path, i + 1, text));
        }
    }
    findings
}

/// Absolute paths in `line` that begin with one of [`MACHINE_ROOTS`].
fn machine_paths(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices('/').filter_map(|(at, _)| {
        // A slash after a letter, a dot or another slash goes on with a path.
        let before = line[..at].chars().next_back();
        let starts = before.is_none_or(|c| c.is_whitespace() || "\"'`(=:,;[<{|>".contains(c));
        let rest = &line[at + 1..];
        let root = &rest[..rest.find(|c: char| !is_word(c)).unwrap_or(rest.len())];
        let end = rest.find(|c: char| !is_word(c) && c != '/' && c != '.').unwrap_or(rest.len());
        (starts && MACHINE_ROOTS.contains(&root)).then(|| &line[at..at + 1 + end])
    })
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_' || letter == '-'
}

/// The hosts of the URLs in `line`.
fn hosts(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("://").filter_map(|(at, _)| {
        let scheme = line[..at].rsplit(|c: char| !c.is_ascii_alphabetic()).next();
        let rest = &line[at + 3..];
        let authority = &rest[..rest.find(|c: char| !is_host(c)).unwrap_or(rest.len())];
        let host = authority.rsplit('@').next().unwrap_or_default().trim_end_matches('.');
        let known = scheme.is_some_and(|scheme| SCHEMES.contains(&scheme));
        (known && !host.is_empty()).then_some(host)
    })
}

fn is_host(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "-.@_".contains(letter)
}

fn is_public(host: &str) -> bool {
    HOSTS.iter().any(|public| {
        host.strip_suffix(public).is_some_and(|sub| sub.is_empty() || sub.ends_with('.'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> usize {
        check(&File { path: path.into(), text: text.into() }).len()
    }

    /// Built from parts, since this file is checked as well.
    fn under(root: &str, rest: &str) -> String {
        format!("/{root}/{rest}")
    }

    fn url(host: &str) -> String {
        format!("https:/{}", under(host, "x"))
    }

    #[test]
    fn a_path_of_one_machine_is_found_wherever_it_begins() {
        for root in MACHINE_ROOTS {
            let path = under(root, "somebody/x.log");
            for text in
                [path.clone(), format!("cd {path}"), format!("\"{path}\""), format!("A={path}")]
            {
                assert_eq!(findings("vmm/src/a.rs", &text), 1, "{text}");
            }
        }
        assert_eq!(findings("README.md", &format!("HOME=/{}", "root")), 1);
    }

    #[test]
    fn system_paths_and_folders_inside_the_project_are_let_pass() {
        for text in ["/dev/kvm", "/proc/self/stat", "target/tmp/x", "docs/home/a", "./root/x"] {
            assert_eq!(findings("vmm/src/a.rs", text), 0, "{text}");
        }
        assert_eq!(findings("a.md", "https://github.com/root/work"), 0);
    }

    #[test]
    fn a_guest_has_its_own_file_system() {
        let text = under("root", "agent");
        assert_eq!(findings("guest-tests/rig/init", &text), 0);
        assert_eq!(findings("guest-tests/stress/src/main.rs", &text), 1);
    }

    #[test]
    fn only_public_hosts_pass_their_subdomains_included() {
        for host in ["github.com", "lore.kernel.org", "docs.rs", "localhost", "a.invalid"] {
            assert_eq!(findings("a.md", &url(host)), 0, "{host}");
        }
        for host in ["mirror.corp", "notgithub.com", "index.crates.io", "user@10.0.0.1"] {
            assert_eq!(findings("a.md", &url(host)), 1, "{host}");
        }
        assert_eq!(findings("Cargo.lock", &format!("registry+{}", url("mirror.corp"))), 1);
    }
}
