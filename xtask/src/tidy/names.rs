//! Names that say nothing: no type and no module may be called by one.
//!
//! A pure function of one file. A name is split into its words, so `BootInfo` and
//! `mod kvm_util` are found, while `Information` and `Database` are not.

use super::tokens::Token;
use super::{File, Finding};

const BANNED: &[&str] = &["manager", "handler", "util", "utils", "common", "base", "info"];

const ITEMS: &[&str] = &["struct", "enum", "union", "trait", "type", "mod"];

pub(super) fn check(file: &File, tokens: &[Token]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for pair in tokens.windows(2) {
        let (Some(item), Some(name)) = (pair[0].ident(), pair[1].ident()) else {
            continue;
        };
        if !ITEMS.contains(&item) {
            continue;
        }
        if let Some(word) = words(name).into_iter().find(|w| BANNED.contains(&w.as_str())) {
            let text = format!("`{item} {name}`: the word `{word}` says nothing about what it is");
            findings.push(Finding::new(&file.path, pair[1].line, text));
        }
    }
    findings
}

/// The words of a CamelCase or snake_case name, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for letter in name.chars() {
        if letter == '_' || letter.is_uppercase() {
            words.push(String::new());
        }
        if let (true, Some(word)) = (letter != '_', words.last_mut()) {
            word.extend(letter.to_lowercase());
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tokens::lex;

    fn findings(text: &str) -> usize {
        let file = File { path: "a.rs".into(), text: text.into() };
        check(&file, &lex(text).expect("lexes")).len()
    }

    #[test]
    fn a_banned_word_is_found_in_every_kind_of_item() {
        for text in [
            "struct VcpuManager;",
            "enum ExitHandler {}",
            "trait Base {}",
            "type Info = u8;",
            "mod util;",
            "mod kvm_common { }",
            "macro! { pub struct BootInfo { } }",
        ] {
            assert_eq!(findings(text), 1, "{text}");
        }
    }

    #[test]
    fn a_word_that_only_contains_one_and_a_function_or_field_are_let_pass() {
        for text in [
            "struct Information;",
            "struct Database;",
            "fn handler() {}",
            "struct S { base: u64 }",
            "use vm::Manager;",
            "impl Manager { }",
        ] {
            assert_eq!(findings(text), 0, "{text}");
        }
    }
}
