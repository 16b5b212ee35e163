//! Who may import whom: between crates, and between the modules of `vmm`.
//!
//! The two tables below are the only place where the arrows are written down for
//! a program. A crate or module that is in neither is a finding, so that a new one
//! has to be placed before it can be used.

use super::tokens::{Kind, Token, after_group, is_path_sep};
use super::{File, Finding};
use proc_macro2::Delimiter;
use toml::{Table, Value};

/// Each crate's folder, and the folders of the crates it may depend on. An entry
/// that ends with a slash stands for every crate below it.
const CRATES: &[(&str, &[&str])] = &[
    ("pv-tlb", &[]),
    ("pv-tlb/model", &["pv-tlb"]),
    ("api", &[]),
    ("vmm", &["pv-tlb", "pv-tlb/model", "api"]),
    ("guest-tests/", &["pv-tlb"]),
    // The rig's two ends, on the emulated host and outside of it, speak one format.
    ("xtask", &["guest-tests/rig/init"]),
];

/// All that the pure core may take from outside, tests aside.
const CORE_DEPENDENCIES: &[&str] = &["bitflags", "zerocopy", "loom"];

/// The modules of `vmm`, top layer first. A module may use those of lower layers,
/// and of its own layer as long as no circle comes of it. `main` stands for the
/// crate's root, be it main.rs or lib.rs.
const VMM_LAYERS: &[&[&str]] = &[
    &[
        "main", "cli", "error", "command", "doctor", "stress", "scenario", "run", "session",
        "exposure", "probe",
    ],
    &["boot", "vcpu", "report", "initramfs"],
    &["flush", "placement", "devices"],
    &["kvm", "memory"],
    &["metrics"],
];

/// Crates that only `vmm/src/kvm` may name.
const KVM_CRATES: &[&str] = &["kvm_ioctls", "kvm_bindings", "libc"];

/// A module of `vmm` that names another.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Use {
    path: String,
    line: usize,
    from: String,
    to: String,
}

/// Holds every manifest in the tree against [`CRATES`].
pub(super) fn check_manifests(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut crates = Vec::new();
    for file in files.iter().filter(|f| is_manifest(&f.path)) {
        let folder = file.path.trim_end_matches("Cargo.toml").trim_end_matches('/');
        match file.text.parse::<Table>() {
            Ok(table) => {
                if let Some(name) = table.get("package").and_then(|p| p.get("name")?.as_str()) {
                    crates.push((name.to_string(), folder, table));
                }
            }
            Err(error) => {
                findings.push(Finding::new(&file.path, 0, format!("Is not TOML: {error}")));
            }
        }
    }
    for (_, folder, table) in &crates {
        let path = format!("{folder}/Cargo.toml");
        let Some(allowed) = allowed(folder) else {
            let text = "The crate is not in the table of xtask/src/tidy/arrows.rs";
            findings.push(Finding::new(&path, 0, text));
            continue;
        };
        for (kind, dependency) in dependencies(table) {
            let sibling = crates.iter().find(|(name, ..)| *name == dependency);
            let breach = match sibling {
                Some((_, target, _)) => !allowed.contains(target),
                None => {
                    *folder == "pv-tlb"
                        && kind != "dev-dependencies"
                        && !CORE_DEPENDENCIES.contains(&dependency.as_str())
                }
            };
            if breach {
                let text = format!("`{folder}` may not depend on `{dependency}`");
                findings.push(Finding::new(&path, 0, text));
            }
        }
    }
    findings
}

fn is_manifest(path: &str) -> bool {
    path == "Cargo.toml" || path.ends_with("/Cargo.toml")
}

fn allowed(folder: &str) -> Option<&'static [&'static str]> {
    let fits = |entry: &str| entry == folder || entry.ends_with('/') && folder.starts_with(entry);
    CRATES.iter().find(|(entry, _)| fits(entry)).map(|(_, targets)| *targets)
}

/// Kind and package name of each dependency, those for single targets included.
fn dependencies(manifest: &Table) -> Vec<(&'static str, String)> {
    let targets = manifest.get("target").and_then(Value::as_table);
    let per_target = targets.into_iter().flat_map(|t| t.values()).filter_map(Value::as_table);
    let mut found = Vec::new();
    for table in per_target.chain([manifest]) {
        for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let entries = table.get(kind).and_then(Value::as_table);
            for (key, value) in entries.into_iter().flatten() {
                let package = value.get("package").and_then(Value::as_str);
                found.push((kind, package.unwrap_or(key).to_string()));
            }
        }
    }
    found
}

/// Finds the crates behind KVM's border outside of `vmm/src/kvm`.
pub(super) fn check_kvm_importers(file: &File, tokens: &[Token]) -> Vec<Finding> {
    let inside = file.path.starts_with("vmm/src/kvm/") || file.path == "vmm/src/kvm.rs";
    if !file.path.starts_with("vmm/") || inside {
        return Vec::new();
    }
    let named = tokens.iter().filter_map(|t| Some((t.line, t.ident()?)));
    named
        .filter(|(_, name)| KVM_CRATES.contains(name))
        .map(|(line, name)| {
            let text = format!("`{name}` may be named only in vmm/src/kvm");
            Finding::new(&file.path, line, text)
        })
        .collect()
}

/// Which modules of `vmm` the file names by a path from `crate`, or from `super`
/// up to the root.
pub(super) fn module_uses(file: &File, tokens: &[Token]) -> Vec<Use> {
    let Some(here) = module_path(&file.path) else {
        return Vec::new();
    };
    let from = here.first().map_or("main", |top| top.as_str());
    let mut uses = Vec::new();
    let mut inline = InlineModules::default();
    for (i, token) in tokens.iter().enumerate() {
        inline.pass(tokens, i);
        let depth = here.len() + inline.depth();
        // A `super` further along a chain was counted with the first one.
        let chained =
            i >= 3 && is_path_sep(tokens, i - 2) && tokens[i - 3].ident() == Some("super");
        let after_root = match token.ident() {
            Some("crate") => Some(i + 1),
            Some("super") if !chained => past_supers(tokens, i, depth),
            _ => None,
        };
        let Some(at) = after_root.filter(|at| is_path_sep(tokens, *at)) else {
            continue;
        };
        for to in first_segments(tokens, at + 2) {
            let path = file.path.clone();
            uses.push(Use { path, line: token.line, from: from.into(), to: to.into() });
        }
    }
    uses.retain(|found| found.from != found.to && found.to != "self");
    uses
}

/// Module path of a file of `vmm`; empty for the crate's root.
fn module_path(path: &str) -> Option<Vec<String>> {
    let inner = path.strip_prefix("vmm/src/")?.strip_suffix(".rs")?;
    let mut parts: Vec<String> = inner.split('/').map(String::from).collect();
    let root = parts.len() == 1 && matches!(parts[0].as_str(), "main" | "lib");
    if root || parts.last().is_some_and(|last| last == "mod") {
        parts.pop();
    }
    Some(parts)
}

/// Index after a chain of `super`s that begins at `at`, if it climbs `depth`
/// modules up to the root.
fn past_supers(tokens: &[Token], mut at: usize, depth: usize) -> Option<usize> {
    let mut climbed = 1;
    while is_path_sep(tokens, at + 1) && tokens.get(at + 3)?.ident() == Some("super") {
        climbed += 1;
        at += 3;
    }
    (climbed >= depth).then_some(at + 1)
}

/// The first names of the path, or of the list of paths in braces, at `at`.
fn first_segments(tokens: &[Token], at: usize) -> Vec<&str> {
    match tokens.get(at).map(|t| &t.kind) {
        Some(Kind::Ident(name)) => vec![name],
        Some(Kind::Open(Delimiter::Brace)) => {
            let end = after_group(tokens, at) - 1;
            let mut names = Vec::new();
            let mut next = at + 1;
            while next < end {
                names.extend(tokens[next].ident());
                while next < end && tokens[next].kind != Kind::Punct(',') {
                    let open = matches!(tokens[next].kind, Kind::Open(_));
                    next = if open { after_group(tokens, next) } else { next + 1 };
                }
                next += 1;
            }
            names
        }
        _ => Vec::new(),
    }
}

/// The modules written in braces that enclose the current token.
#[derive(Default)]
struct InlineModules {
    ends: Vec<usize>,
}

impl InlineModules {
    /// Must be called for each index in turn.
    fn pass(&mut self, tokens: &[Token], i: usize) {
        self.ends.retain(|end| i < *end);
        let is_mod = i >= 2 && tokens[i - 2].ident() == Some("mod");
        if is_mod && tokens[i].kind == Kind::Open(Delimiter::Brace) {
            self.ends.push(after_group(tokens, i));
        }
    }

    fn depth(&self) -> usize {
        self.ends.len()
    }
}

/// Holds the uses of all files against [`VMM_LAYERS`].
pub(super) fn check_layers(uses: &[Use]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for found in uses {
        let text = match (layer(&found.from), layer(&found.to)) {
            (None, _) => unknown(&found.from),
            (_, None) => unknown(&found.to),
            (Some(from), Some(to)) if from > to => format!(
                "`{}` lies below `{}` and may not use it: values go forward by return",
                found.from, found.to
            ),
            (Some(from), Some(to)) if from == to && reaches(uses, &found.to, &found.from) => {
                format!("`{}` and `{}` use each other in a circle", found.from, found.to)
            }
            _ => continue,
        };
        findings.push(Finding::new(&found.path, found.line, text));
    }
    findings
}

fn layer(module: &str) -> Option<usize> {
    VMM_LAYERS.iter().position(|modules| modules.contains(&module))
}

fn unknown(module: &str) -> String {
    format!("`{module}` is not in the layer table of xtask/src/tidy/arrows.rs")
}

/// True if `from` comes to `to` by uses inside their common layer.
fn reaches(uses: &[Use], from: &str, to: &str) -> bool {
    let mut seen = vec![from];
    let mut next = 0;
    while let Some(module) = seen.get(next).copied() {
        next += 1;
        for found in uses.iter().filter(|u| u.from == module && layer(&u.to) == layer(from)) {
            if found.to == to {
                return true;
            }
            if !seen.contains(&found.to.as_str()) {
                seen.push(&found.to);
            }
        }
    }
    false
}

#[cfg(test)]
#[path = "arrows/tests.rs"]
mod tests;
