//! Reports as tables for people and as KTAP for test tools.

use std::fmt::Write as _;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use pv_tlb::plan::HostPolicy;
use pvtlb_api::scenario::{Judged, ScenarioReport, Trace};

/// Short heads of the matrix's columns; the legend has the names.
const fn short(policy: HostPolicy) -> &'static str {
    match policy {
        HostPolicy::None => "none",
        HostPolicy::ForceBroadcastNoBarrier => "FB-bar",
        HostPolicy::ForceBroadcast => "FB",
        HostPolicy::LastVcpuRan => "last",
        HostPolicy::Pinned => "pin",
        HostPolicy::Arm64Kvm => "arm64",
        HostPolicy::X86Kvm => "x86",
        HostPolicy::SevKvm => "sev",
        HostPolicy::Footprint => "foot",
        HostPolicy::FootprintDeferred => "foot-d",
    }
}

/// A table without lines, aligned left, without spaces at the ends of lines.
pub(super) fn columns(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(header.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let lines = table.lines().map(|line| line.trim_end().to_owned() + "\n");
    lines.collect()
}

/// A bad verdict in capitals, so that it is seen.
pub(super) fn loud(verdict: &str) -> String {
    if verdict == "ok" { verdict.to_owned() } else { verdict.to_uppercase() }
}

/// The verdict and, for a run that reaches its end, the price.
fn cell(judged: &Judged) -> String {
    let price = judged.price.filter(|_| judged.verdict == "ok").map(|price| {
        format!(" {}/{}/{}", price.broadcasts, price.disturbed_pcpus, price.dropped_entries)
    });
    loud(&judged.verdict) + &price.unwrap_or_default()
}

/// The matrix, what was not expected, and the figures.
pub(super) fn text(report: &ScenarioReport) -> String {
    let mut out = matrix(report);
    let expectations = report.scenarios.iter().flat_map(|scenario| &scenario.expectations);
    let bad = expectations.clone().filter(|judged| judged.expected.as_deref() != Some("ok"));
    let _ = writeln!(
        out,
        "\n{} expectations, {} of them of a bad verdict: {} not met",
        expectations.clone().count(),
        bad.count(),
        report.unmet
    );
    for scenario in &report.scenarios {
        for judged in scenario.expectations.iter().filter(|judged| judged.unmet.is_some()) {
            let unmet = judged.unmet.as_deref().unwrap_or_default();
            let _ = writeln!(out, "\n{} on {}: {unmet}", scenario.name, judged.world);
            out.extend(judged.trace.as_ref().map(trace));
        }
    }
    let _ = writeln!(out, "{}", figures(report.events, report.elapsed_ns));
    let sampled = expectations.filter(|judged| judged.method != "exhaustive").count();
    if sampled > 0 {
        let _ = writeln!(out, "{sampled} verdicts are of random walks and prove no absence");
    }
    out
}

/// Events, time and rate.
pub(super) fn figures(events: u64, elapsed_ns: u64) -> String {
    let seconds = elapsed_ns as f64 / 1e9;
    let rate = if seconds > 0.0 { events as f64 / seconds / 1e6 } else { 0.0 };
    format!("{events} events explored in {:.1} ms: {rate:.2} M events/s", seconds * 1e3)
}

fn matrix(report: &ScenarioReport) -> String {
    let mut header = vec!["scenario"];
    header.extend(HostPolicy::ALL.map(short));
    let rows: Vec<Vec<String>> = report
        .scenarios
        .iter()
        .map(|scenario| {
            let cells = scenario.matrix.iter().map(cell);
            std::iter::once(scenario.name.clone()).chain(cells).collect()
        })
        .collect();
    let mut out = columns(&header, &rows);
    let named = |policy: &HostPolicy| short(*policy) != policy.name();
    let legend: Vec<String> = HostPolicy::ALL
        .iter()
        .filter(|policy| named(policy))
        .map(|policy| format!("{} {policy}", short(*policy)))
        .collect();
    let _ = writeln!(out, "\n{}", legend.join(", "));
    out.push_str("Prices after ok: broadcasts/pCPUs disturbed/entries dropped, in script order\n");
    out
}

/// An interleaving: one column per pCPU.
pub(super) fn trace(trace: &Trace) -> String {
    let pcpus = trace.steps.iter().filter_map(|step| step.pcpu).max().map_or(0, |last| last + 1);
    let has_host = trace.steps.iter().any(|step| step.pcpu.is_none());
    let mut header: Vec<String> = ["step", "line"].map(str::to_owned).to_vec();
    header.extend(has_host.then(|| "host".to_owned()));
    header.extend((0..pcpus).map(|pcpu| format!("p{pcpu}")));
    let first = 2 + usize::from(has_host);
    let rows: Vec<Vec<String>> = trace
        .steps
        .iter()
        .enumerate()
        .map(|(i, step)| {
            let mut row = vec![String::new(); first + pcpus];
            row[0] = (i + 1).to_string();
            row[1] = if step.line == 0 { "-".to_owned() } else { step.line.to_string() };
            row[step.pcpu.map_or(2, |pcpu| first + pcpu)].clone_from(&step.text);
            row
        })
        .collect();
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    format!("{}=> {}\n", columns(&header, &rows), trace.reason)
}

/// The expectations as KTAP version 1, one test each (Linux
/// `Documentation/dev-tools/ktap.rst`).
pub(super) fn ktap(report: &ScenarioReport) -> String {
    let mut out = String::from("KTAP version 1\n");
    let _ = writeln!(out, "1..{}", report.scenarios.len());
    for (i, scenario) in report.scenarios.iter().enumerate() {
        let _ = writeln!(out, "  KTAP version 1\n  # Subtest: {}", scenario.name);
        let _ = writeln!(out, "  1..{}", scenario.expectations.len());
        for (k, judged) in scenario.expectations.iter().enumerate() {
            let word = if judged.unmet.is_none() { "ok" } else { "not ok" };
            let name = judged.world.replace(' ', "");
            let note = judged.unmet.as_ref().unwrap_or(&judged.verdict);
            let _ = writeln!(out, "  {word} {} {name} # {note}", k + 1);
        }
        let is_met = scenario.expectations.iter().all(|judged| judged.unmet.is_none());
        let word = if is_met { "ok" } else { "not ok" };
        let skip = if scenario.expectations.is_empty() { " # SKIP no expectations" } else { "" };
        let _ = writeln!(out, "{word} {} {}{skip}", i + 1, scenario.name);
    }
    out
}
