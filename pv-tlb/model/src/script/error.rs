//! Mistakes in a script, and how they are shown.
//!
//! Plain values without state or ordering.

use core::fmt;
use core::ops::Range;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptError {
    /// What is wrong, as a sentence.
    pub message: String,
    /// Where, in bytes of the source.
    pub span: Range<usize>,
    /// What to do about it.
    pub help: Option<String>,
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl core::error::Error for ScriptError {}

impl ScriptError {
    pub(super) fn new(message: impl Into<String>, span: Range<usize>) -> Self {
        Self { message: message.into(), span, help: None }
    }

    pub(super) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Adds `help` where there is none yet.
    pub(super) fn or_help(mut self, help: impl Into<String>) -> Self {
        self.help.get_or_insert_with(|| help.into());
        self
    }

    /// A name that is not among the known ones; suggests the nearest.
    pub(super) fn unknown<'a>(
        what: &str,
        name: &str,
        span: Range<usize>,
        known: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let known: Vec<&str> = known.into_iter().collect();
        let error = Self::new(format!("There is no {what} `{name}`"), span);
        match nearest(name, &known) {
            Some(meant) => error.help(format!("Did you mean `{meant}`?")),
            None if known.is_empty() || known.len() > 12 => error,
            None => error.help(format!("Known: {}", known.join(", "))),
        }
    }
}

/// The known name that `name` most likely stands for.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let lower = name.to_lowercase();
    let distance = |other: &str| strsim::damerau_levenshtein(&lower, &other.to_lowercase());
    let best = known.iter().copied().min_by_key(|other| distance(other))?;
    // A third of the letters may differ, and one always may in a longer name.
    let allowed = (name.len().max(best.len()) / 3).max(usize::from(best.len() > 1));
    (distance(best) <= allowed).then_some(best)
}

/// The errors with their lines, columns and carets, for a terminal without colours.
#[must_use]
pub fn render(path: &str, source: &str, errors: &[ScriptError]) -> String {
    let renderer = Renderer::plain();
    let mut text = String::new();
    for error in errors {
        let snippet = Snippet::source(source)
            .path(path)
            .annotation(AnnotationKind::Primary.span(error.span.clone()));
        let mut group = Level::ERROR.primary_title(error.message.as_str()).element(snippet);
        if let Some(help) = &error.help {
            group = group.element(Level::HELP.message(help.as_str()));
        }
        text.push_str(&renderer.render(&[group]));
        text.push_str("\n\n");
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}
