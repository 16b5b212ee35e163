//! What the host's console says about its end.
//!
//! No state.

use std::fs;
use std::path::Path;

/// The first of these on the console is where a crash begins.
const CRASH_MARKS: [&str; 5] =
    ["Oops:", "BUG:", "Kernel panic", "general protection fault", "rig-init:"];
/// So many lines are shown.
const SHOWN_LINES: usize = 30;

/// The part of a console log that a person wants to see first: from the first sign of
/// a crash on, or else the end.
pub(super) fn excerpt(log: &Path) -> Vec<String> {
    let bytes = match fs::read(log) {
        Ok(bytes) => bytes,
        Err(error) => return vec![format!("cannot read the console log: {error}")],
    };
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().map(str::trim_end).collect();
    let crash = lines.iter().position(|line| CRASH_MARKS.iter().any(|mark| line.contains(mark)));
    let first = crash.unwrap_or(lines.len().saturating_sub(SHOWN_LINES));
    lines[first..].iter().take(SHOWN_LINES).map(|line| (*line).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excerpt_of(lines: impl Iterator<Item = String>) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("console.log");
        fs::write(&log, lines.collect::<Vec<_>>().join("\r\n")).unwrap();
        excerpt(&log)
    }

    #[test]
    fn a_crash_is_shown_from_its_first_line() {
        let lines = (0..100).map(|number| match number {
            40 => "[    9.7] Oops: int3: 0000 [#1]".to_owned(),
            90 => "Kernel panic - not syncing".to_owned(),
            _ => number.to_string(),
        });
        let shown = excerpt_of(lines);
        assert_eq!(shown[0], "[    9.7] Oops: int3: 0000 [#1]");
        assert_eq!(shown.len(), SHOWN_LINES);
    }

    #[test]
    fn a_console_without_a_crash_is_shown_from_its_end() {
        let shown = excerpt_of((0..100).map(|number| number.to_string()));
        assert_eq!(shown.last().unwrap(), "99");
        assert_eq!(shown.len(), SHOWN_LINES);
    }

    #[test]
    fn a_log_that_is_not_there_is_said() {
        assert!(excerpt(Path::new("/no/such/log"))[0].contains("cannot read"));
    }
}
