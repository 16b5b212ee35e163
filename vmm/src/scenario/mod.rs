//! `pvtlb scenario`: event scripts on modelled hosts.
//!
//! From flags and files to text; the model does the work and nothing is kept. No
//! KVM is needed.

pub mod args;
mod explain;
mod files;
mod measure;
mod render;
#[cfg(test)]
mod tests;
mod why_local;

use std::io::Write;

use pv_tlb_model::run::Effort;
use pv_tlb_model::world::Dial;

use crate::error::Error;
use args::{FmtArgs, ListArgs, RunArgs, ScenarioArgs, ScenarioCommand};
use files::{Loaded, load, load_all};

/// Executes `pvtlb scenario`, writing to `out`.
///
/// # Errors
/// Bad flags and bad scripts; a verdict that is not the expected one; an output that
/// cannot be written.
pub fn run(args: &ScenarioArgs, out: &mut impl Write) -> Result<(), Error> {
    match &args.command {
        ScenarioCommand::List(args) => list(args, out),
        ScenarioCommand::Run(args) => run_scripts(args, out),
        ScenarioCommand::Explain(args) => {
            let loaded = load(&args.name)?;
            write(out, &explain::text(&loaded, &args.effort.effort())?)
        }
        ScenarioCommand::Explore(args) => {
            let report = explain::explore(args)?;
            write(out, &report.text)?;
            report.verdict
        }
        ScenarioCommand::Fmt(args) => format(args, out),
        ScenarioCommand::WhyLocal => write(out, &why_local::text()?),
    }
}

fn write(out: &mut impl Write, text: &str) -> Result<(), Error> {
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(Error::output("standard output"))
}

fn list(args: &ListArgs, out: &mut impl Write) -> Result<(), Error> {
    if args.dials {
        let rows: Vec<Vec<String>> = Dial::ALL
            .iter()
            .map(|dial| vec![dial.name().to_owned(), dial.about().to_owned()])
            .collect();
        return write(out, &render::columns(&["dial", "what is worse than the manual"], &rows));
    }
    let rows: Vec<Vec<String>> = load_all(&[])?
        .iter()
        .map(|Loaded { scenario, .. }| {
            let case = scenario.case.map_or_else(|| "-".to_owned(), |case| case.to_string());
            vec![scenario.name.clone(), case, scenario.title.clone()]
        })
        .collect();
    write(out, &render::columns(&["name", "case", "what happens"], &rows))
}

fn run_scripts(args: &RunArgs, out: &mut impl Write) -> Result<(), Error> {
    let loaded = load_all(&args.scripts)?;
    let report = measure::report(&loaded, &args.effort.effort())?;
    if args.json {
        let json = serde_json::to_string_pretty(&report)
            .map_err(|e| Error::output("the report")(e.into()))?;
        write(out, &format!("{json}\n"))?;
    } else if args.ktap {
        write(out, &render::ktap(&report))?;
    } else {
        write(out, &render::text(&report))?;
    }
    match report.unmet {
        0 => Ok(()),
        unmet => Err(Error::Verdict(format!("{unmet} expectations are not met"))),
    }
}

fn format(args: &FmtArgs, out: &mut impl Write) -> Result<(), Error> {
    let mut unformatted = Vec::new();
    for path in &args.files {
        let source = files::read(path)?;
        let formatted = pv_tlb_model::script::format(&source)
            .map_err(|errors| files::mistakes(path, &source, &errors))?;
        if path == "-" {
            write(out, &formatted)?;
        } else if formatted != source && args.check {
            unformatted.push(path.as_str());
        } else if formatted != source {
            std::fs::write(path, formatted).map_err(Error::output(path))?;
        }
    }
    if unformatted.is_empty() {
        return Ok(());
    }
    Err(Error::Verdict(format!("Not formatted: {}", unformatted.join(", "))))
}

impl args::EffortArgs {
    fn effort(&self) -> Effort {
        let mut effort = Effort { seed: self.seed, walks: self.walks, ..Effort::default() };
        effort.limits.states = self.max_states;
        if self.literal {
            effort.hardware = pv_tlb_model::machine::Hardware::Literal;
        }
        effort
    }
}
