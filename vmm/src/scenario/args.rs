//! Flags of `pvtlb scenario`. Nothing is opened or run here.

use clap::{Args, Subcommand};
use pv_tlb::plan::HostPolicy;
use pv_tlb_model::world::Dial;

/// Flags of `scenario`.
#[derive(Debug, Args)]
pub struct ScenarioArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: ScenarioCommand,
}

/// The commands of `scenario`.
#[derive(Debug, Subcommand)]
pub enum ScenarioCommand {
    /// List the scripts that come with the program
    List(ListArgs),
    /// Judge scripts on every host policy and against their expectations
    Run(RunArgs),
    /// Show one script, its verdicts, and the interleaving behind each bad one
    Explain(ExplainArgs),
    /// Judge a script on the hosts you name
    Explore(ExploreArgs),
    /// Format script files
    Fmt(FmtArgs),
    /// How does a local flush work when the vCPU moves? The answer on one screen
    WhyLocal,
}

/// Flags of `list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// List the dials (errata and host bugs) instead
    #[arg(long)]
    pub dials: bool,
}

/// How thoroughly to look.
#[derive(Debug, Args)]
pub struct EffortArgs {
    /// Distinct states after which random walks take over
    #[arg(long, default_value_t = 2_000_000, value_name = "N")]
    pub max_states: usize,
    /// Seed of the random walks
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Number of random walks
    #[arg(long, default_value_t = 20_000, value_name = "N")]
    pub walks: u64,
    /// Make each fill and each delivery of a broadcast a step of its own
    #[arg(long)]
    pub literal: bool,
}

/// Flags of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Script files or names [default: all that come with the program]
    #[arg(value_name = "FILE|NAME")]
    pub scripts: Vec<String>,
    /// Print JSON instead of tables
    #[arg(long, conflicts_with = "ktap")]
    pub json: bool,
    /// Print KTAP instead of tables
    #[arg(long)]
    pub ktap: bool,
    /// How thoroughly to look.
    #[command(flatten)]
    pub effort: EffortArgs,
}

/// Flags of `explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Script file or name
    #[arg(value_name = "FILE|NAME")]
    pub name: String,
    /// How thoroughly to look.
    #[command(flatten)]
    pub effort: EffortArgs,
}

/// Flags of `explore`.
#[derive(Debug, Args)]
pub struct ExploreArgs {
    /// Script file or name
    #[arg(value_name = "FILE|NAME")]
    pub name: String,
    /// Host policies [default: all]
    #[arg(long, value_delimiter = ',', value_name = "POLICY,…", value_parser = policy)]
    pub host: Vec<HostPolicy>,
    /// Errata and host bugs in force
    #[arg(long, value_delimiter = ',', value_name = "DIAL,…", value_parser = dial)]
    pub dial: Vec<Dial>,
    /// Options of the script in force
    #[arg(long, value_delimiter = ',', value_name = "OPTION,…")]
    pub option: Vec<String>,
    /// Print JSON instead of tables
    #[arg(long)]
    pub json: bool,
    /// How thoroughly to look.
    #[command(flatten)]
    pub effort: EffortArgs,
}

/// Flags of `fmt`.
#[derive(Debug, Args)]
pub struct FmtArgs {
    /// Script files; `-` reads standard input and writes to standard output
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<String>,
    /// Change nothing and fail if something would be changed
    #[arg(long)]
    pub check: bool,
}

fn policy(text: &str) -> Result<HostPolicy, String> {
    HostPolicy::parse(text).map_err(|error| error.to_string())
}

fn dial(text: &str) -> Result<Dial, String> {
    Dial::ALL.into_iter().find(|dial| dial.name() == text).ok_or_else(|| {
        format!("Dial `{text}` is unknown; `pvtlb scenario list --dials` lists them")
    })
}
