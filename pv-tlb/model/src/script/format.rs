//! One way to write a script.
//!
//! Pure: text in, text out. Words keep their order; spaces, indentation and blank
//! lines are set.

use super::error::ScriptError;
use super::lex::{self, Line, canonical};

/// The script in its canonical form.
///
/// # Errors
/// The mistakes of the script, which is not touched then.
pub fn format(source: &str) -> Result<String, Vec<ScriptError>> {
    super::parse(source)?;
    let lines: Vec<Line<'_>> = lex::lines(source).collect::<Result<_, _>>().map_err(|e| vec![e])?;
    let mut text = String::new();
    let mut is_in_par = false;
    let mut blanks = 0;
    for group in comment_groups(&lines) {
        let column = group.iter().map(|line| width(line, is_in_par)).max().unwrap_or(0);
        for line in group {
            if line.tokens.is_empty() && line.comment.is_none() {
                blanks += 1;
                continue;
            }
            if blanks > 0 && !text.is_empty() {
                text.push('\n');
            }
            blanks = 0;
            is_in_par &= !opens_with(line, "end");
            write_line(&mut text, line, is_in_par, column);
            is_in_par |= opens_with(line, "par");
        }
    }
    Ok(text)
}

fn opens_with(line: &Line<'_>, word: &str) -> bool {
    line.tokens.first().is_some_and(|token| token.is(word))
}

fn indent(is_in_par: bool) -> &'static str {
    if is_in_par { "  " } else { "" }
}

fn width(line: &Line<'_>, is_in_par: bool) -> usize {
    indent(is_in_par).len() + canonical(&line.tokens).chars().count()
}

/// Runs of adjacent lines that have both text and comment: their comments align.
fn comment_groups<'a, 'b>(lines: &'a [Line<'b>]) -> Vec<&'a [Line<'b>]> {
    let has_both = |line: &Line<'_>| !line.tokens.is_empty() && line.comment.is_some();
    lines.chunk_by(|one, other| has_both(one) && has_both(other)).collect()
}

fn write_line(text: &mut String, line: &Line<'_>, is_in_par: bool, column: usize) {
    let body = canonical(&line.tokens);
    text.push_str(indent(is_in_par));
    text.push_str(&body);
    if let Some(comment) = line.comment {
        let used = indent(is_in_par).len() + body.chars().count();
        if !body.is_empty() {
            text.extend(core::iter::repeat_n(' ', column.saturating_sub(used) + 2));
        }
        text.push_str(comment);
    }
    text.push('\n');
}
