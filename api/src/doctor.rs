//! The report of `pvtlb doctor`.

use serde::{Deserialize, Serialize};

/// What this host can do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoctorReport {
    /// Name and version of this layout.
    pub schema: String,
    /// Facts in the order they are shown.
    pub facts: Vec<Fact>,
    /// KVM capabilities.
    pub capabilities: Vec<CapabilityFact>,
    /// What was tried to make a vCPU flush on entry, and what came of it.
    pub entry_flush: Vec<EntryFlushFact>,
    /// Each paravirtual mode.
    pub modes: Vec<ModeFact>,
}

/// One fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    /// What.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// A KVM capability.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapabilityFact {
    /// API name.
    pub name: String,
    /// Value that KVM returned; 0 or less is absent.
    pub value: i32,
    /// What pvtlb does with it.
    pub purpose: String,
}

/// One way to make a vCPU flush on entry, tried with a stale mapping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryFlushFact {
    /// The way.
    pub way: String,
    /// True for a control that must not work.
    pub control: bool,
    /// Mappings changed behind the reader's back.
    pub trials: u32,
    /// Trials in which the reader still saw the old page before the flush.
    pub stale_before: u32,
    /// Trials in which it saw the new page after the flush.
    pub fresh_after: u32,
    /// Flushes that KVM counted meanwhile, where it counts them.
    pub kvm_flushes: Option<u64>,
    /// What that shows: proved, refused, or control.
    pub conclusion: String,
}

/// Whether a mode works here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModeFact {
    /// Name on the command line.
    pub mode: String,
    /// True if it works.
    pub works: bool,
    /// Why, or why not.
    pub reason: String,
}
