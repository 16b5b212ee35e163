//! Characters into tokens.
//!
//! Pure functions; the tokens borrow from the source.

use core::ops::Range;

use winnow::combinator::{alt, delimited, not, repeat, terminated};
use winnow::stream::Location;
use winnow::token::{literal, take_till, take_while};
use winnow::{LocatingSlice, ModalResult, Parser};

use super::error::ScriptError;

type Input<'a> = LocatingSlice<&'a str>;

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind<'a> {
    /// A name, keyword or number.
    Word(&'a str),
    /// The inside of a quoted text.
    Text(&'a str),
    /// One of the marks of [`PUNCTUATION`].
    Punct(&'a str),
}

/// Everything that is neither word nor text.
const PUNCTUATION: [&str; 4] = ["->", ":", ",", "+"];

/// A token and where it stands in the source, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) kind: TokenKind<'a>,
    pub(super) span: Range<usize>,
}

impl Token<'_> {
    /// True for this word or mark.
    pub(super) fn is(&self, text: &str) -> bool {
        match self.kind {
            TokenKind::Word(word) | TokenKind::Punct(word) => word == text,
            TokenKind::Text(_) => false,
        }
    }

    /// How it reads in the source.
    pub(super) fn text(&self) -> String {
        match self.kind {
            TokenKind::Word(text) | TokenKind::Punct(text) => text.to_owned(),
            TokenKind::Text(text) => format!("\"{text}\""),
        }
    }
}

/// One line of the source.
#[derive(Clone, Debug)]
pub(super) struct Line<'a> {
    /// From 1.
    pub(super) number: usize,
    pub(super) tokens: Vec<Token<'a>>,
    /// With its `#`.
    pub(super) comment: Option<&'a str>,
    /// Where its text ends in the source, without line break and comment.
    pub(super) end: usize,
}

/// The lines of `source`, each read or with the character that cannot be.
pub(super) fn lines(source: &str) -> impl Iterator<Item = Result<Line<'_>, ScriptError>> {
    let mut offset = 0;
    source.split('\n').enumerate().map(move |(i, text)| {
        let begin = offset;
        offset += text.len() + 1;
        line(text.strip_suffix('\r').unwrap_or(text), begin, i + 1)
    })
}

fn line(text: &str, begin: usize, number: usize) -> Result<Line<'_>, ScriptError> {
    let mut input = LocatingSlice::new(text);
    let tokens: ModalResult<Vec<Token<'_>>> =
        delimited(blank, repeat(0.., terminated(token, blank)), blank).parse_next(&mut input);
    let mut tokens = tokens.unwrap_or_default();
    for token in &mut tokens {
        token.span = token.span.start + begin..token.span.end + begin;
    }
    let at = input.current_token_start();
    let rest = &text[at..];
    match rest.chars().next() {
        None => Ok(Line { number, tokens, comment: None, end: begin + at }),
        Some('#') => {
            let end = begin + text[..at].trim_end().len();
            Ok(Line { number, tokens, comment: Some(rest.trim_end()), end })
        }
        Some('"') => Err(ScriptError::new(
            "This text is never closed",
            begin + at..begin + text.len(),
        )
        .help("End it with `\"` on the same line")),
        Some(other) => Err(ScriptError::new(
            format!("The character `{other}` means nothing here"),
            begin + at..begin + at + other.len_utf8(),
        )
        .help("A script has words, texts in double quotes, comments after `#`, and the marks : , + ->")),
    }
}

fn blank(input: &mut Input<'_>) -> ModalResult<()> {
    take_while(0.., [' ', '\t']).void().parse_next(input)
}

fn token<'a>(input: &mut Input<'a>) -> ModalResult<Token<'a>> {
    let punct = alt(PUNCTUATION.map(literal)).map(TokenKind::Punct);
    let text = delimited('"', take_till(0.., ['"']), '"').map(TokenKind::Text);
    alt((text, punct, word.map(TokenKind::Word)))
        .with_span()
        .map(|(kind, span)| Token { kind, span })
        .parse_next(input)
}

/// Letters, digits and `_ . @ / ( )`; a hyphen too, unless it begins an arrow.
fn word<'a>(input: &mut Input<'a>) -> ModalResult<&'a str> {
    let plain = take_while(1.., |c: char| c.is_alphanumeric() || matches!(c, '_' | '.')).void();
    let hyphen = terminated('-', not('>')).void();
    repeat::<_, _, (), _, _>(1.., alt((plain, hyphen))).take().parse_next(input)
}

/// Tokens with canonical spaces between them.
pub(super) fn canonical(tokens: &[Token<'_>]) -> String {
    let mut text = String::new();
    for token in tokens {
        let is_tight = token.is(":") || token.is(",");
        if !text.is_empty() && !is_tight {
            text.push(' ');
        }
        text.push_str(&token.text());
    }
    text
}
