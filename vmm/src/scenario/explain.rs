//! `pvtlb scenario explain` and `explore`: one script in depth.

use std::fmt::Write as _;

use pv_tlb::plan::HostPolicy;
use pv_tlb_model::run::Effort;
use pv_tlb_model::scenario::Scenario;
use pv_tlb_model::verdict::Verdict;
use pv_tlb_model::world::World;
use pvtlb_api::scenario::Judged;

use super::args::ExploreArgs;
use super::files::{Loaded, load};
use super::measure::{judge_in, judged};
use super::render::{figures, loud, trace};
use crate::error::Error;

/// The script, its verdicts, and the interleaving behind each bad one.
pub(super) fn text(loaded: &Loaded, effort: &Effort) -> Result<String, Error> {
    let Loaded { scenario, source } = loaded;
    let mut out = format!("{}\n{}\n", scenario.name, scenario.title);
    for line in &scenario.about {
        let _ = writeln!(out, "  {line}");
    }
    for link in &scenario.links {
        let _ = writeln!(out, "  link: {link}");
    }
    for (name, about) in &scenario.options {
        let _ = writeln!(out, "  option {name}: {about}");
    }
    out.push('\n');
    for (i, line) in source.lines().enumerate() {
        let _ = writeln!(out, "{:4} | {line}", i + 1);
    }
    for expected in &scenario.expectations {
        let judgement = judge_in(scenario, &expected.world, effort)?;
        let unmet = judgement.misses(expected);
        verdict(&mut out, &judged(scenario, &judgement));
        if let Some(unmet) = unmet {
            let _ = writeln!(out, "NOT AS EXPECTED: {unmet}");
        }
    }
    Ok(out)
}

fn verdict(out: &mut String, judged: &Judged) {
    let _ = write!(out, "\n{}: {} ({}", judged.world, loud(&judged.verdict), judged.method);
    let _ = write!(out, ", {} states, {} events", judged.states, judged.events);
    if let Some(price) = judged.price.filter(|_| judged.trace.is_none()) {
        let _ = write!(
            out,
            "; {} broadcasts, {} pCPUs disturbed, {} entries dropped",
            price.broadcasts, price.disturbed_pcpus, price.dropped_entries
        );
    }
    out.push_str(")\n");
    out.extend(judged.trace.as_ref().map(trace));
}

/// What `explore` prints and how it ends.
pub(super) struct Explored {
    pub(super) text: String,
    pub(super) verdict: Result<(), Error>,
}

/// Judges one script in the worlds that the flags name.
pub(super) fn explore(args: &ExploreArgs) -> Result<Explored, Error> {
    let Loaded { scenario, .. } = load(&args.name)?;
    let effort = args.effort.effort();
    let hosts = if args.host.is_empty() { HostPolicy::ALL.to_vec() } else { args.host.clone() };
    let mut results = Vec::new();
    let mut bad = Vec::new();
    for policy in hosts {
        let world = world(&scenario, policy, args)?;
        let judgement = judge_in(&scenario, &world, &effort)?;
        if judgement.verdict != Verdict::Ok {
            bad.push(format!("{} on {}", judgement.verdict, world.describe(&scenario.options)));
        }
        results.push(judged(&scenario, &judgement));
    }
    let text = if args.json {
        let json = serde_json::to_string_pretty(&results)
            .map_err(|e| Error::output("the report")(e.into()))?;
        format!("{json}\n")
    } else {
        let mut out = format!("{}: {}\n", scenario.name, scenario.title);
        results.iter().for_each(|judged| verdict(&mut out, judged));
        let events = results.iter().map(|judged| judged.events).sum();
        let elapsed_ns = results.iter().map(|judged| judged.elapsed_ns).sum();
        let _ = writeln!(out, "\n{}", figures(events, elapsed_ns));
        out
    };
    let verdict = if bad.is_empty() { Ok(()) } else { Err(Error::Verdict(bad.join("; "))) };
    Ok(Explored { text, verdict })
}

fn world(scenario: &Scenario, policy: HostPolicy, args: &ExploreArgs) -> Result<World, Error> {
    let mut world = args.dial.iter().fold(World::of(policy), |world, dial| world.with(*dial));
    for name in &args.option {
        let option = scenario.options.iter().position(|(other, _)| other == name);
        let Some(option) = option else {
            let known: Vec<&str> = scenario.options.iter().map(|(name, _)| name.as_str()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(Error::Usage(format!(
                "Option `{name}` is not one of {}'s; it has {known}",
                scenario.name
            )));
        };
        world = world.with_options(world.options | 1 << option);
    }
    Ok(world)
}
