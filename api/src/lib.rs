//! What pvtlb says to programs: reports as serde types, without any behaviour.
//!
//! Units are in the names; every number in a report was measured in the run that
//! it reports.

pub mod doctor;
pub mod scenario;
pub mod stress;

use serde::{Deserialize, Serialize};

/// A verdict in the words of the kernel's test tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// What was promised held.
    Pass,
    /// Something that was promised did not hold.
    Fail,
    /// A negative control failed, as it must.
    Xfail,
    /// Nothing was shown; a reason stands beside it.
    Skip,
}

impl Verdict {
    /// The word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Fail => "FAIL",
            Self::Xfail => "XFAIL",
            Self::Skip => "SKIP",
        }
    }
}
