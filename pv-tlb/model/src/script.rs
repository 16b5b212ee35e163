//! The script language (`*.tlb`): text into [`Scenario`]s, errors, formatting.
//!
//! Pure functions over text; nothing is kept. A script is read line by line, so that
//! one mistake does not hide the next, and every mistake is reported with its place
//! and, where one can be guessed, with what was meant.

mod cursor;
mod declare;
mod error;
mod expect;
mod format;
mod lex;
mod names;
mod operate;

pub use error::{ScriptError, render};
pub use format::format;

use crate::scenario::{Line, Phase, Scenario};
use cursor::Cursor;
use lex::TokenKind;
use names::Draft;

/// Words that open a declaration.
const DECLARATIONS: [&str; 18] = [
    "scenario", "case", "link", "about", "isa", "vcpus", "devices", "pcpus", "vm", "fills", "tlb",
    "space", "page", "table", "option", "map", "start", "matrix",
];

/// Reads a script.
///
/// # Errors
/// Every line that cannot be read; if all can, what is wrong with the whole.
pub fn parse(source: &str) -> Result<Scenario, Vec<ScriptError>> {
    let mut draft = Draft::new(source);
    let mut errors = Vec::new();
    for line in lex::lines(source) {
        let read = line.and_then(|line| draft.line(&line));
        errors.extend(read.err());
    }
    // What follows from a line that could not be read would only mislead.
    if errors.is_empty() {
        errors = draft.finish();
    }
    if errors.is_empty() { Ok(draft.scenario) } else { Err(errors) }
}

impl Draft {
    fn line(&mut self, line: &lex::Line<'_>) -> Result<(), ScriptError> {
        let mut cursor = Cursor::new(line);
        let Some(first) = cursor.peek() else { return Ok(()) };
        if cursor.peek_second().is_some_and(|second| second.is(":")) {
            return self.actor_line(&mut cursor, line);
        }
        let TokenKind::Word(word) = first.kind else {
            return Err(cursor.unexpected("a declaration, or an actor such as `v0:`"));
        };
        match word {
            "par" => self.open_par(&mut cursor)?,
            "end" => self.close_par(&mut cursor)?,
            "host" => self.free_moves(&mut cursor)?,
            "expect" => self.expect(&mut cursor, line.number)?,
            "matrix" => self.matrix(&mut cursor)?,
            _ if DECLARATIONS.contains(&word) => self.declare(&mut cursor, word)?,
            _ => {
                let known = DECLARATIONS.iter().copied().chain(["par", "end", "host", "expect"]);
                return Err(ScriptError::unknown("statement", word, first.span.clone(), known)
                    .or_help("What a vCPU or the host does starts with who: `v0: …`, `host: …`"));
            }
        }
        cursor.end()
    }

    fn open_par(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ScriptError> {
        let at = cursor.any("`par`")?.span.clone();
        if self.par_opened.is_some() {
            return Err(ScriptError::new("A `par` block cannot hold another one", at)
                .help("Close the first one with `end`"));
        }
        self.par_opened = Some(at);
        self.scenario.phases.push(Phase::default());
        Ok(())
    }

    fn close_par(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ScriptError> {
        let at = cursor.any("`end`")?.span.clone();
        match self.par_opened.take() {
            Some(_) => Ok(()),
            None => Err(ScriptError::new("`end` closes nothing", at)
                .help("Open a block of concurrent lines with `par`")),
        }
    }

    fn actor_line(
        &mut self,
        cursor: &mut Cursor<'_>,
        source: &lex::Line<'_>,
    ) -> Result<(), ScriptError> {
        let actor = self.actor(cursor)?;
        cursor.punct(":")?;
        let op = self.operation(cursor, actor)?;
        let only_if = self.condition(cursor)?;
        cursor.end()?;
        let text = lex::canonical(&source.tokens);
        let line = Line { actor, op, only_if, text, number: source.number };
        let is_in_par = self.par_opened.is_some();
        match self.scenario.phases.last_mut().filter(|_| is_in_par) {
            Some(phase) => phase.lines.push(line),
            None => self.scenario.phases.push(Phase { lines: vec![line] }),
        }
        Ok(())
    }
}
