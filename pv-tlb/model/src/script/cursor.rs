//! Walking through the tokens of one line.
//!
//! Owned by the reader of the line; its only state is how far it has come.

use core::ops::Range;

use super::error::ScriptError;
use super::lex::{Line, Token, TokenKind};

pub(super) struct Cursor<'a> {
    line: &'a Line<'a>,
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(line: &'a Line<'a>) -> Self {
        Self { line, at: 0 }
    }

    pub(super) fn peek(&self) -> Option<&'a Token<'a>> {
        self.line.tokens.get(self.at)
    }

    pub(super) fn peek_second(&self) -> Option<&'a Token<'a>> {
        self.line.tokens.get(self.at + 1)
    }

    /// The next token, or an error that says what was expected.
    pub(super) fn any(&mut self, expected: &str) -> Result<&'a Token<'a>, ScriptError> {
        let token = self.peek().ok_or_else(|| self.unexpected(expected))?;
        self.at += 1;
        Ok(token)
    }

    /// The error for whatever stands here instead of `expected`.
    pub(super) fn unexpected(&self, expected: &str) -> ScriptError {
        match self.peek() {
            Some(token) => ScriptError::new(
                format!("Expected {expected}, found `{}`", token.text()),
                token.span.clone(),
            ),
            None => ScriptError::new(
                format!("Expected {expected}, but the line ends here"),
                self.end_span(),
            ),
        }
    }

    fn end_span(&self) -> Range<usize> {
        self.line.end..self.line.end
    }

    /// A word, with its place.
    pub(super) fn word(&mut self, expected: &str) -> Result<(&'a str, Range<usize>), ScriptError> {
        match self.peek() {
            Some(Token { kind: TokenKind::Word(word), span }) => {
                self.at += 1;
                Ok((word, span.clone()))
            }
            _ => Err(self.unexpected(expected)),
        }
    }

    /// A quoted text.
    pub(super) fn text(&mut self, expected: &str) -> Result<&'a str, ScriptError> {
        match self.peek() {
            Some(Token { kind: TokenKind::Text(text), .. }) => {
                self.at += 1;
                Ok(text)
            }
            _ => Err(self.unexpected(expected).help("Texts stand in double quotes: \"like this\"")),
        }
    }

    /// A number, decimal or with 0x, within `range`.
    pub(super) fn number(
        &mut self,
        what: &str,
        range: core::ops::RangeInclusive<u64>,
    ) -> Result<u64, ScriptError> {
        let (word, span) = self.word(what)?;
        let digits = word.strip_prefix("0x");
        let number = digits.map_or_else(|| word.parse(), |digits| u64::from_str_radix(digits, 16));
        let Ok(number) = number else {
            return Err(ScriptError::new(format!("Expected {what}, found `{word}`"), span));
        };
        if range.contains(&number) {
            return Ok(number);
        }
        let message =
            format!("Expected {what} from {} to {}, found {word}", range.start(), range.end());
        Err(ScriptError::new(message, span))
    }

    /// Goes past `text` if it stands here.
    pub(super) fn accept(&mut self, text: &str) -> bool {
        let is_here = self.peek().is_some_and(|token| token.is(text));
        self.at += usize::from(is_here);
        is_here
    }

    /// Goes past the mark `mark`, which must stand here.
    pub(super) fn punct(&mut self, mark: &str) -> Result<(), ScriptError> {
        if self.accept(mark) { Ok(()) } else { Err(self.unexpected(&format!("`{mark}`"))) }
    }

    /// Goes past the word `word`, which must stand here.
    pub(super) fn keyword(&mut self, word: &'static str) -> Result<(), ScriptError> {
        self.one_of(&[word]).map(|_| ())
    }

    /// One of these words, with a suggestion if it is nearly one.
    pub(super) fn one_of(&mut self, words: &[&'static str]) -> Result<&'static str, ScriptError> {
        let expected = match words {
            [one] => format!("`{one}`"),
            _ => format!("one of {}", words.join(", ")),
        };
        let (found, span) = self.word(&expected)?;
        words.iter().copied().find(|word| *word == found).ok_or_else(|| {
            let guess = ScriptError::unknown("word", found, span.clone(), words.iter().copied());
            let error = ScriptError::new(format!("Expected {expected}, found `{found}`"), span);
            match guess.help.filter(|help| help.starts_with("Did")) {
                Some(help) => error.help(help),
                None => error,
            }
        })
    }

    /// Nothing may be left.
    pub(super) fn end(&self) -> Result<(), ScriptError> {
        match self.peek() {
            None => Ok(()),
            Some(token) => Err(ScriptError::new(
                format!("Expected the end of the line, found `{}`", token.text()),
                token.span.clone(),
            )),
        }
    }
}
