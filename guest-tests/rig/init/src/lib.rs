//! What `cargo xtask rig` and the first process of the rig's host say to each other.
//!
//! The machine that builds the rig writes a [`Setup`] into the initramfs, at
//! [`SETUP_PATH`]. The rig's host answers over its second serial port
//! ([`REPORT_TTY`]) with one [`Event`] in JSON per line, and nothing else. There is
//! no shared state: a [`Setup`] never changes once the host runs.
//!
//! A complete run is `Ready`, then for each step `Started`, any number of `Output`
//! and `File`, and one `Exited`, then `Done`. A report that stops before `Done` or
//! that carries a `Fault` is a rig that broke, not a step that failed.

use serde::{Deserialize, Serialize};

/// Where the initramfs holds the [`Setup`], as JSON.
pub const SETUP_PATH: &str = "/rig/setup.json";
/// The serial port that carries the [`Event`]s.
pub const REPORT_TTY: &str = "/dev/ttyS1";
/// The largest file that a step may bring back, in bytes.
pub const MAX_FILE_BYTES: u64 = 8 << 20;

/// What the rig's host is to do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// Kernel modules, uncompressed, as paths in the initramfs, in loading order.
    pub modules: Vec<String>,
    /// Hold KVM's and perf's static keys enabled for the whole run.
    pub hold_static_keys: bool,
    /// After so many seconds the host reports a fault and powers off, so that it does
    /// not outlive whoever watched it.
    pub limit_s: u64,
    /// The commands, run one after the other, whatever the earlier ones returned.
    pub steps: Vec<Command>,
}

/// One command of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// Program and arguments; the program is looked up in `/bin`.
    pub argv: Vec<String>,
    /// After so many seconds the command and its children are killed.
    pub timeout_s: u64,
    /// Files to bring back once the command has ended.
    pub collect: Vec<String>,
}

/// Which of a command's two outputs a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Ending {
    /// It returned this exit code.
    Code {
        /// The exit code, 0 to 255.
        code: i32,
    },
    /// This signal killed it.
    Signal {
        /// The signal's number.
        signal: i32,
    },
    /// It ran into its time limit.
    TimedOut,
    /// It could not be started.
    NotStarted {
        /// The system's reason.
        reason: String,
    },
}

/// One line of the rig host's report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The host is up, its modules are loaded, and the first command comes next.
    Ready {
        /// What `uname -r` says there.
        release: String,
        /// Online pCPUs of the rig's host.
        pcpus: usize,
        /// Time since the kernel's start, in milliseconds.
        uptime_ms: u64,
    },
    /// A command starts.
    Started {
        /// Its index in [`Setup::steps`].
        step: usize,
    },
    /// A command printed a line.
    Output {
        /// Its index in [`Setup::steps`].
        step: usize,
        /// Where it printed.
        stream: Stream,
        /// The line without its end; bytes that are not UTF-8 are replaced.
        line: String,
    },
    /// A file that the plan asked for.
    File {
        /// The command's index in [`Setup::steps`].
        step: usize,
        /// Its path in the rig's host.
        path: String,
        /// What it holds; bytes that are not UTF-8 are replaced.
        text: String,
    },
    /// A file that the plan asked for could not be brought back.
    FileMissing {
        /// The command's index in [`Setup::steps`].
        step: usize,
        /// Its path in the rig's host.
        path: String,
        /// Why.
        reason: String,
    },
    /// A command ended.
    Exited {
        /// Its index in [`Setup::steps`].
        step: usize,
        /// How.
        ending: Ending,
        /// From start to end, in milliseconds of the rig host's clock.
        elapsed_ms: u64,
    },
    /// The rig's host itself could not go on.
    Fault {
        /// What went wrong.
        message: String,
    },
    /// Every command has ended; the host powers off.
    Done,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_whatever_its_text_holds() {
        let event = Event::Output {
            step: 3,
            stream: Stream::Stderr,
            line: "quote \" newline \n bell \u{7}".into(),
        };
        let text = serde_json::to_string(&event).unwrap();
        assert!(!text.contains('\n'));
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event);
    }

    #[test]
    fn an_ending_keeps_its_kind_and_value() {
        let event =
            Event::Exited { step: 0, ending: Ending::Signal { signal: 11 }, elapsed_ms: 12 };
        let text = serde_json::to_string(&event).unwrap();
        assert!(text.contains(r#""kind":"signal","signal":11"#), "{text}");
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event);
    }
}
