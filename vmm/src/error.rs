//! The monitor's error, its exit code, and how it is printed with its causes.

use std::error::Error as StdError;
use std::fmt::Write as _;
use std::process::ExitCode;

use crate::boot;
use crate::kvm;
use crate::kvm::signals::EndSignal;

/// Everything that ends the program with a message.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line is wrong.
    #[error("{0}")]
    Usage(String),
    /// The host cannot do what was asked.
    #[error("{0}")]
    HostLacks(String),
    /// The machine could not be made.
    #[error(transparent)]
    Boot(#[from] boot::Error),
    /// The kernel refused something.
    #[error(transparent)]
    Kvm(#[from] kvm::Error),
    /// The guest failed: a fault, a wrong verdict, silence.
    #[error("{0}")]
    Guest(String),
    /// A promise was broken, or a control was not caught.
    #[error("{0}")]
    Verdict(String),
    /// A vCPU did not answer a flush before the deadline.
    #[error("{0}")]
    Late(String),
    /// A Linux guest asked for a reset.
    #[error("Guest asked for a reset")]
    Reset,
    /// A Linux guest panicked.
    #[error("Guest kernel panicked; the reason is on its console")]
    Panicked,
    /// A file could not be written.
    #[error("Cannot write {what}")]
    Output {
        /// Which.
        what: String,
        /// Why.
        source: std::io::Error,
    },
    /// Standard output was closed by its reader.
    #[error("Standard output was closed")]
    OutputClosed,
    /// SIGINT or SIGTERM.
    #[error("Interrupted")]
    Interrupted(EndSignal),
}

impl Error {
    /// The exit code; docs/exit-codes.md lists them.
    #[must_use]
    pub fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Boot(boot::Error::Kvm(error)) | Self::Kvm(error) => kvm_code(error),
            Self::Boot(_) => 2,
            Self::HostLacks(_) => 3,
            Self::Guest(_) => 4,
            Self::Verdict(_) => 5,
            Self::Late(_) => 6,
            Self::Output { .. } => 7,
            Self::Reset => 10,
            Self::Panicked => 11,
            Self::OutputClosed => 141,
            Self::Interrupted(EndSignal::Interrupt) => 130,
            Self::Interrupted(EndSignal::Terminate) => 143,
        }
    }

    /// Prints the message with its causes to standard error and returns the exit
    /// code. A reader that closed our output gets no message, as with any filter.
    pub fn report(&self) -> ExitCode {
        if !matches!(self, Self::OutputClosed) {
            eprintln!("pvtlb: {}", self.with_causes());
        }
        ExitCode::from(self.code())
    }

    /// The message and, each on its own line, its causes.
    #[must_use]
    pub fn with_causes(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            let _ = write!(text, "\n  because: {error}");
            cause = error.source();
        }
        text
    }

    /// Wraps a failure to write `what`; a closed pipe is its own case.
    pub fn output(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        |source| match source.kind() {
            std::io::ErrorKind::BrokenPipe => Self::OutputClosed,
            _ => Self::Output { what: what.into(), source },
        }
    }
}

/// A host without KVM is not a malfunction.
fn kvm_code(error: &kvm::Error) -> u8 {
    match error {
        kvm::Error::NoDevice { .. }
        | kvm::Error::NoPermission { .. }
        | kvm::Error::Device { .. }
        | kvm::Error::ApiVersion { .. } => 3,
        kvm::Error::Operation { .. } => 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_follow_the_message_and_are_not_repeated_in_it() {
        let source = std::io::Error::other("the disk is full");
        let error = Error::output("r.json")(source);
        assert_eq!(error.with_causes(), "Cannot write r.json\n  because: the disk is full");
        assert_eq!(error.code(), 7);
    }

    #[test]
    fn a_closed_pipe_is_told_from_other_failures() {
        let closed = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert_eq!(Error::output("the table")(closed).code(), 141);
    }
}
