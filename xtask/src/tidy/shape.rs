//! The shape of a source file: how it opens, how long it and its functions are,
//! and where `unsafe` may stand.
//!
//! Pure functions of one file.

use super::tokens::{Kind, Token, after_group};
use super::{File, Finding};
use proc_macro2::Delimiter;

const FILE_LINES: usize = 500;
const FUNCTION_LINES: usize = 60;

/// Files and folders that may hold `unsafe`: the KVM boundary, guest memory, the
/// runtime of a guest that has no operating system below it, and the test pages of the
/// one that has.
const UNSAFE_ALLOWED: &[&str] = &[
    "vmm/src/kvm.rs",
    "vmm/src/kvm/",
    "vmm/src/memory.rs",
    "vmm/src/memory/",
    "guest-tests/stress/",
    "guest-tests/linux/src/memory.rs",
];

pub(super) fn check_text(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    let lines = file.text.lines().count();
    if lines > FILE_LINES {
        let text = format!("The file has {lines} lines; at most {FILE_LINES} are allowed");
        findings.push(Finding::new(&file.path, 0, text));
    }
    if !file.text.starts_with("//!") {
        let text = "The file must open with `//!`: purpose, who owns the state, its states, the \
                    memory ordering";
        findings.push(Finding::new(&file.path, 1, text));
    }
    findings
}

pub(super) fn check_tokens(file: &File, tokens: &[Token]) -> Vec<Finding> {
    let mut findings = long_functions(file, tokens);
    if !UNSAFE_ALLOWED.iter().any(|place| is_at(&file.path, place)) {
        for token in tokens.iter().filter(|t| t.ident() == Some("unsafe")) {
            let text = format!("`unsafe` is allowed only in {}", UNSAFE_ALLOWED.join(", "));
            findings.push(Finding::new(&file.path, token.line, text));
        }
    }
    findings
}

/// True if `path` is the file `place`, or lies in the folder `place` (which then
/// ends with a slash).
fn is_at(path: &str, place: &str) -> bool {
    if place.ends_with('/') { path.starts_with(place) } else { path == place }
}

/// Lines are counted from the word `fn` to the closing brace, both included.
fn long_functions(file: &File, tokens: &[Token]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        let name = tokens.get(i + 1).and_then(Token::ident);
        let (Some("fn"), Some(name)) = (token.ident(), name) else {
            continue;
        };
        let Some(end) = body_end(tokens, i + 2) else {
            continue;
        };
        let lines = end - token.line + 1;
        if lines > FUNCTION_LINES {
            let text =
                format!("`fn {name}` has {lines} lines; at most {FUNCTION_LINES} are allowed");
            findings.push(Finding::new(&file.path, token.line, text));
        }
    }
    findings
}

/// The last line of the body of the function whose signature goes on at `at`;
/// `None` if it has no body.
fn body_end(tokens: &[Token], mut at: usize) -> Option<usize> {
    loop {
        at = match tokens.get(at)?.kind {
            Kind::Open(Delimiter::Brace) => {
                return Some(tokens[after_group(tokens, at) - 1].line);
            }
            Kind::Open(_) => after_group(tokens, at),
            Kind::Punct(';') | Kind::Close(_) => return None,
            _ => at + 1,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tokens::lex;

    fn findings(path: &str, text: &str) -> Vec<Finding> {
        let file = File { path: path.into(), text: text.into() };
        let tokens = lex(text).expect("lexes");
        let mut found = check_text(&file);
        found.extend(check_tokens(&file, &tokens));
        found
    }

    fn function(lines: usize) -> String {
        format!("//! x\nfn long(a: [u8; 2]) -> u8 {{\n{}}}\n", "    f();\n".repeat(lines - 2))
    }

    #[test]
    fn sixty_lines_of_function_pass_and_sixty_one_do_not() {
        assert_eq!(findings("api/src/a.rs", &function(60)), []);
        let found = findings("api/src/a.rs", &function(61));
        assert_eq!((found.len(), found[0].line), (1, 2));
    }

    #[test]
    fn a_long_function_is_seen_inside_an_impl_and_inside_a_macro() {
        let inner = function(61).replace("//! x\n", "");
        assert_eq!(findings("a.rs", &format!("//! x\nimpl A {{ {inner} }}")).len(), 1);
        assert_eq!(findings("a.rs", &format!("//! x\nproptest! {{ {inner} }}")).len(), 1);
    }

    #[test]
    fn a_function_without_a_body_has_no_length() {
        let long = "\n".repeat(100);
        let text = format!("//! x\ntrait T {{ fn a(&self);{long} fn b(&self, f: fn(u8) -> u8); }}");
        assert_eq!(findings("a.rs", &text), []);
    }

    #[test]
    fn five_hundred_lines_of_file_pass_and_five_hundred_and_one_do_not() {
        let file = |lines: usize| format!("//! x\n{}", "// y\n".repeat(lines - 1));
        assert_eq!(findings("a.rs", &file(500)), []);
        assert_eq!(findings("a.rs", &file(501)).len(), 1);
    }

    #[test]
    fn a_file_must_open_with_its_purpose() {
        assert_eq!(findings("a.rs", "//! x\n"), []);
        assert_eq!(findings("a.rs", "// x\n").len(), 1);
        assert_eq!(findings("a.rs", "use x;\n//! late\n").len(), 1);
    }

    #[test]
    fn unsafe_stands_only_where_it_is_allowed() {
        let text = "//! x\nfn f() { unsafe { g() } }";
        for path in ["vmm/src/kvm/vm.rs", "vmm/src/memory.rs", "guest-tests/stress/src/main.rs"] {
            assert_eq!(findings(path, text), []);
        }
        for path in ["vmm/src/flush/trap.rs", "pv-tlb/src/id.rs", "guest-tests/linux/src/main.rs"] {
            assert_eq!(findings(path, text).len(), 1, "{path}");
        }
        assert_eq!(findings("pv-tlb/src/lib.rs", "//! unsafe\n#![forbid(unsafe_code)]"), []);
    }
}
