//! What `pvtlb scenario run --json` and `explore --json` print.
//!
//! Plain data; units are in the names.

use serde::{Deserialize, Serialize};

/// Results of a set of event scripts on modelled hosts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScenarioReport {
    /// One per script.
    pub scenarios: Vec<ScenarioResult>,
    /// Steps performed in all explorations.
    pub events: u64,
    /// Time spent exploring.
    pub elapsed_ns: u64,
    /// Expectations that were not met.
    pub unmet: usize,
}

/// Results of one script.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScenarioResult {
    /// Name.
    pub name: String,
    /// What happens in it.
    pub title: String,
    /// Number in the project's list of public reports.
    pub case: Option<u32>,
    /// Where it was reported.
    pub links: Vec<String>,
    /// One per host policy.
    pub matrix: Vec<Judged>,
    /// One per expectation.
    pub expectations: Vec<Judged>,
}

/// What became of a script in one world.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// Policy, dials and options, as scripts write them.
    pub world: String,
    /// `ok`, `stale`, `hang` or `fault`.
    pub verdict: String,
    /// What was expected, for an expectation.
    pub expected: Option<String>,
    /// What differs from the expectation.
    pub unmet: Option<String>,
    /// `exhaustive`, or what was done instead.
    pub method: String,
    /// Price of the run in script order, if it reaches the end.
    pub price: Option<Price>,
    /// Distinct states.
    pub states: usize,
    /// Steps performed.
    pub events: u64,
    /// Time spent exploring.
    pub elapsed_ns: u64,
    /// The bad interleaving, if there is one.
    pub trace: Option<Trace>,
}

/// What a run costs besides its own instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Price {
    /// Flushes sent to every pCPU.
    pub broadcasts: u32,
    /// Remote pCPUs that had to act, summed.
    pub disturbed_pcpus: u32,
    /// TLB entries dropped, summed.
    pub dropped_entries: u32,
}

/// A bad interleaving.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// Its steps.
    pub steps: Vec<TraceStep>,
    /// What is wrong at its end.
    pub reason: String,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceStep {
    /// pCPU on which it happens.
    pub pcpu: Option<usize>,
    /// What happens.
    pub text: String,
    /// Line of the script, from 1; 0 for what no line says.
    pub line: usize,
}
