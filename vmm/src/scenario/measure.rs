//! Scripts and worlds into a report.

use pv_tlb::plan::HostPolicy;
use pv_tlb_model::explore::Method;
use pv_tlb_model::run::{Effort, Judgement, judge};
use pv_tlb_model::scenario::Scenario;
use pv_tlb_model::world::World;
use pvtlb_api::scenario::{Judged, Price, ScenarioReport, ScenarioResult, Trace, TraceStep};

use super::files::Loaded;
use crate::error::Error;

/// Judges every script on every policy and in every world it has expectations for.
pub(super) fn report(loaded: &[Loaded], effort: &Effort) -> Result<ScenarioReport, Error> {
    let mut report = ScenarioReport::default();
    for Loaded { scenario, .. } in loaded {
        let result = result(scenario, effort)?;
        let all = result.matrix.iter().chain(&result.expectations);
        for judged in all {
            report.events += judged.events;
            report.elapsed_ns += judged.elapsed_ns;
            report.unmet += usize::from(judged.unmet.is_some());
        }
        report.scenarios.push(result);
    }
    Ok(report)
}

fn result(scenario: &Scenario, effort: &Effort) -> Result<ScenarioResult, Error> {
    let matrix = HostPolicy::ALL
        .into_iter()
        .map(|policy| World::of(policy).with_options(scenario.matrix_options))
        .map(|world| Ok(judged(scenario, &judge_in(scenario, &world, effort)?)))
        .collect::<Result<_, Error>>()?;
    let expectations = scenario
        .expectations
        .iter()
        .map(|expected| {
            let judgement = judge_in(scenario, &expected.world, effort)?;
            Ok(Judged {
                expected: Some(expected.verdict.to_string()),
                unmet: judgement.misses(expected),
                ..judged(scenario, &judgement)
            })
        })
        .collect::<Result<_, Error>>()?;
    Ok(ScenarioResult {
        name: scenario.name.clone(),
        title: scenario.title.clone(),
        case: scenario.case,
        links: scenario.links.clone(),
        matrix,
        expectations,
    })
}

/// Judges one script in one world.
pub(super) fn judge_in(
    scenario: &Scenario,
    world: &World,
    effort: &Effort,
) -> Result<Judgement, Error> {
    judge(scenario, world, effort)
        .map_err(|error| Error::Usage(format!("{} is too large: {error}", scenario.name)))
}

/// A judgement in the words of the report.
pub(super) fn judged(scenario: &Scenario, judgement: &Judgement) -> Judged {
    Judged {
        world: judgement.world.describe(&scenario.options),
        verdict: judgement.verdict.to_string(),
        expected: None,
        unmet: None,
        method: method(judgement.method),
        price: judgement.price.map(|price| Price {
            broadcasts: price.broadcasts,
            disturbed_pcpus: price.disturbed,
            dropped_entries: price.dropped,
        }),
        states: judgement.states,
        events: judgement.events,
        elapsed_ns: u64::try_from(judgement.elapsed.as_nanos()).unwrap_or(u64::MAX),
        trace: judgement.trace.as_ref().map(|trace| Trace {
            steps: trace
                .rows
                .iter()
                .map(|row| TraceStep { pcpu: row.pcpu, text: row.text.clone(), line: row.line })
                .collect(),
            reason: trace.reason.clone(),
        }),
    }
}

fn method(method: Method) -> String {
    match method {
        Method::Exhaustive => "exhaustive".to_owned(),
        Method::Random { seed, walks } => format!("random, {walks} walks from seed {seed}"),
        Method::CutOff { states } => format!("cut off at {states} states"),
    }
}
