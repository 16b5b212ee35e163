//! The map must match the ground: every path that ARCHITECTURE.md names exists.
//!
//! A pure function of the tree. Paths are looked for where the document can name
//! them: in code spans, in link targets and in fenced blocks.

use super::{File, Finding};

const MAP: &str = "ARCHITECTURE.md";

/// Endings by which a word without a slash is taken for a file.
const ENDINGS: &[&str] = &[".rs", ".md", ".toml", ".lock", ".tlb", ".json", ".sh"];

pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let Some(map) = files.iter().find(|file| file.path == MAP) else {
        return vec![Finding::new(MAP, 0, "The file is missing")];
    };
    let mut findings = Vec::new();
    for (line, path) in named_paths(&map.text) {
        if !exists(files, &path) {
            let text = format!("`{path}` is named here and does not exist");
            findings.push(Finding::new(MAP, line, text));
        }
    }
    findings
}

/// The paths named in `text`, each with its line.
fn named_paths(text: &str) -> Vec<(usize, String)> {
    let mut paths = Vec::new();
    let mut fenced = false;
    for (i, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            continue;
        }
        let spans: Vec<&str> = if fenced {
            vec![line]
        } else {
            let code = line.split('`').skip(1).step_by(2);
            let links = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
            code.chain(links).collect()
        };
        let words = spans.iter().flat_map(|span| span.split_whitespace());
        paths.extend(words.filter_map(as_path).map(|path| (i + 1, path.to_string())));
    }
    paths
}

/// `word` as a path of the project, or `None` if it looks like something else.
fn as_path(word: &str) -> Option<&str> {
    let word = word.trim_matches(|c| ",;:()".contains(c));
    let word = word.split('#').next().unwrap_or(word).trim_end_matches('/');
    let is_path = word.contains('/') || ENDINGS.iter().any(|ending| word.ends_with(ending));
    let foreign = word.starts_with('/') || word.contains("://") || word.contains("::");
    (is_path && !foreign).then_some(word)
}

/// True if `path` is a file, a folder, or, with a `*` in its last component, if a
/// file beside it fits.
fn exists(files: &[File], path: &str) -> bool {
    if let Some((head, tail)) = path.split_once('*') {
        return files.iter().any(|f| f.path.starts_with(head) && f.path.ends_with(tail));
    }
    let folder = format!("{path}/");
    files.iter().any(|f| f.path == path || f.path.starts_with(&folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(map: &str) -> Vec<usize> {
        let file = |path: &str, text: &str| File { path: path.into(), text: text.into() };
        let files = [file(MAP, map), file("vmm/src/main.rs", ""), file("resources/a.tlb", "")];
        check(&files).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn files_folders_patterns_and_links_that_exist_pass() {
        let map =
            "`vmm/src/main.rs` `vmm/` `vmm/src` `resources/*.tlb`\n[m](vmm/src/main.rs#top)\n";
        assert!(findings(map).is_empty(), "{:?}", findings(map));
    }

    #[test]
    fn what_does_not_exist_is_found_in_spans_links_and_blocks() {
        assert_eq!(findings("x\n`vmm/src/gone.rs`"), [2]);
        assert_eq!(findings("`gone.rs`"), [1]);
        assert_eq!(findings("[gone](docs/gone.md)"), [1]);
        assert_eq!(findings("```text\nvmm/src/gone/   text\n```"), [2]);
        assert_eq!(findings("`resources/*.toml`"), [1]);
    }

    #[test]
    fn what_is_not_a_path_of_the_project_is_left_alone() {
        let map = "either/or `/dev/kvm` `pv_tlb::plan/x` [web](https://docs.rs/loom) `ack`";
        assert!(findings(map).is_empty(), "{:?}", findings(map));
    }

    #[test]
    fn a_missing_map_is_a_finding() {
        assert_eq!(check(&[]).len(), 1);
    }
}
