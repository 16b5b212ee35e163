//! Rust source as a flat list of tokens with line numbers.
//!
//! Plain values. A flat list instead of a syntax tree, so that code inside a
//! macro's braces is seen like any other, and so that nothing has to parse.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// One token; `Open` and `Close` are the two ends of a delimited group.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Ident(String),
    Punct(char),
    Literal,
    Open(Delimiter),
    Close(Delimiter),
}

/// A token and its line, from 1.
#[derive(Debug)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) line: usize,
}

impl Token {
    /// The identifier or keyword, if it is one.
    pub(super) fn ident(&self) -> Option<&str> {
        match &self.kind {
            Kind::Ident(text) => Some(text),
            _ => None,
        }
    }
}

/// The tokens of `text`. Doc comments come out as attributes, other comments not
/// at all.
///
/// # Errors
/// A sentence with the place, if the text has no tokens of Rust.
pub(super) fn lex(text: &str) -> Result<Vec<Token>, String> {
    let stream: TokenStream =
        text.parse().map_err(|error| format!("Could not be read as Rust: {error}"))?;
    let mut tokens = Vec::new();
    flatten(stream, &mut tokens);
    Ok(tokens)
}

fn flatten(stream: TokenStream, out: &mut Vec<Token>) {
    for tree in stream {
        let line = tree.span().start().line;
        match tree {
            TokenTree::Ident(ident) => {
                out.push(Token { kind: Kind::Ident(ident.to_string()), line })
            }
            TokenTree::Punct(punct) => out.push(Token { kind: Kind::Punct(punct.as_char()), line }),
            TokenTree::Literal(_) => out.push(Token { kind: Kind::Literal, line }),
            TokenTree::Group(group) => {
                let end = group.span_close().end().line;
                out.push(Token { kind: Kind::Open(group.delimiter()), line });
                flatten(group.stream(), out);
                out.push(Token { kind: Kind::Close(group.delimiter()), line: end });
            }
        }
    }
}

/// The index after the group that opens at `open`.
pub(super) fn after_group(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0;
    for (i, token) in tokens.iter().enumerate().skip(open) {
        match token.kind {
            Kind::Open(_) => depth += 1,
            Kind::Close(_) => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return i + 1;
        }
    }
    tokens.len()
}

/// True if `::` stands at `at`.
pub(super) fn is_path_sep(tokens: &[Token], at: usize) -> bool {
    let colon = |i: usize| tokens.get(i).is_some_and(|t| t.kind == Kind::Punct(':'));
    colon(at) && colon(at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_in_comments_and_strings_are_not_identifiers() {
        let text = "/// unsafe\nfn f() { // unsafe\n    let s = \"unsafe\"; /* unsafe */ }\n";
        let tokens = lex(text).expect("lexes");
        assert!(tokens.iter().all(|t| t.ident() != Some("unsafe")));
    }

    #[test]
    fn groups_keep_the_lines_of_both_ends() {
        let tokens = lex("fn f() {\n\n}").expect("lexes");
        let open = tokens.iter().position(|t| t.kind == Kind::Open(Delimiter::Brace));
        let open = open.expect("a brace");
        assert_eq!((tokens[open].line, tokens[open + 1].line), (1, 3));
        assert_eq!(after_group(&tokens, open), tokens.len());
    }
}
