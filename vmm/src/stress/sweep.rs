//! The sweep: controls first, then every number of vCPUs with its modes
//! interleaved, round by round (A B C A B C …), so that a host that speeds up or
//! slows down meanwhile does so for all modes alike.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pv_tlb::abi::debug_exit::Verdict as GuestVerdict;
use pv_tlb::abi::stress::{Strategy, Workload};
use pvtlb_api::Verdict;
use pvtlb_api::stress::{Control, GuestCounts, Step};

use super::gather::{self, Gathered, gather, monitor_counts, summary};
use super::mode::Mode;
pub use super::step::Row;
use super::step::{self, Recipe};
use crate::boot::Offered;
use crate::error::Error;
use crate::kvm::signals::EndSignals;
use crate::kvm::system::System;
use crate::metrics::{LatencyNs, VcpuMetrics};

/// Length of a control's run; a control that survives it was not caught.
const CONTROL_LENGTH: Duration = Duration::from_millis(400);
/// Shootdowns after which each vCPU of a control stops.
const CONTROL_SHOOTDOWNS: u64 = 3_000;
/// vCPUs of a control: one that flushes and reads, one that reads and flushes.
const CONTROL_VCPUS: u32 = 2;

/// What to sweep.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// Rows, in the order of the table.
    pub rows: Vec<Row>,
    /// Modes, in the order of the table; controls among them run as controls.
    pub modes: Vec<Mode>,
    /// Rounds of each step.
    pub rounds: u32,
    /// Run the negative controls.
    pub controls: bool,
    /// What all rounds have in recipe.
    pub recipe: Recipe,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Swept {
    /// Finished steps.
    pub steps: Vec<Step>,
    /// Controls.
    pub controls: Vec<Control>,
    /// What ended the sweep early.
    pub ended_by: Option<Error>,
}

impl Sweep {
    /// Runs everything. An error ends the sweep but keeps what was done.
    #[must_use]
    pub fn run(&self, system: &System, signals: &EndSignals) -> Swept {
        let mut swept = Swept::default();
        let progress = self.progress();
        swept.ended_by = self.all(system, signals, &progress, &mut swept).err();
        progress.finish_and_clear();
        swept
    }

    fn all(
        &self,
        system: &System,
        signals: &EndSignals,
        progress: &ProgressBar,
        swept: &mut Swept,
    ) -> Result<(), Error> {
        for strategy in self.control_strategies() {
            progress.set_message(format!("control {}", strategy.name()));
            swept.controls.push(self.control(system, signals, strategy)?);
            progress.inc(1);
        }
        for row in &self.rows {
            self.row(system, signals, *row, progress, &mut swept.steps)?;
        }
        Ok(())
    }

    fn measured(&self) -> impl Iterator<Item = Mode> + '_ {
        self.modes.iter().copied().filter(|mode| !mode.is_control())
    }

    fn control_strategies(&self) -> Vec<Strategy> {
        let all = [Strategy::None, Strategy::Late];
        let named = |s: &Strategy| self.modes.iter().any(|mode| mode.strategy == *s);
        all.into_iter().filter(|s| self.controls || named(s)).collect()
    }

    fn progress(&self) -> ProgressBar {
        let rounds =
            self.rows.len() as u64 * self.measured().count() as u64 * u64::from(self.rounds);
        // Standard error: drawn only if it is a terminal.
        let target = ProgressDrawTarget::stderr();
        let bar = ProgressBar::with_draw_target(
            Some(rounds + self.control_strategies().len() as u64),
            target,
        );
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar
    }

    /// One number of vCPUs: all modes, interleaved. Rounds that were done before an
    /// error are kept.
    fn row(
        &self,
        system: &System,
        signals: &EndSignals,
        row: Row,
        progress: &ProgressBar,
        steps: &mut Vec<Step>,
    ) -> Result<(), Error> {
        let mut columns: Vec<Column> = self.measured().map(Column::new).collect();
        let mut result = Ok(());
        'rounds: for round in 0..self.rounds {
            for column in &mut columns {
                progress.set_message(format!(
                    "{} vCPUs, {}, round {}/{}",
                    row.vcpus,
                    column.mode,
                    round + 1,
                    self.rounds
                ));
                match self.round(system, signals, row, column.mode) {
                    Ok(gathered) => column.add(gathered),
                    Err(error) => {
                        result = Err(error);
                        break 'rounds;
                    }
                }
                progress.inc(1);
            }
        }
        let done = columns.into_iter().filter(|column| !column.rounds.is_empty());
        let mut steps_of_row: Vec<Step> =
            done.map(|column| column.step(row, &self.recipe)).collect();
        let ipi = Mode::from(Strategy::Ipi).to_string();
        let base = steps_of_row.iter().find(|s| s.mode == ipi).map(|s| s.shootdowns_per_second);
        for step in &mut steps_of_row {
            step.ratio_to_ipi =
                base.filter(|base| *base > 0.0).map(|base| step.shootdowns_per_second / base);
        }
        steps.append(&mut steps_of_row);
        result
    }

    fn round(
        &self,
        system: &System,
        signals: &EndSignals,
        row: Row,
        mode: Mode,
    ) -> Result<Gathered, Error> {
        let outcome = step::run(system, &self.recipe, row, mode, signals)?;
        let vcpus = row.vcpus;
        let gathered = gather(&outcome);
        match (outcome.verdict, gathered.guest.violations) {
            (GuestVerdict::Pass, 0) | (GuestVerdict::Fail, 1..) => Ok(gathered),
            (verdict, violations) => Err(Error::Guest(format!(
                "Guest said {verdict:?} but reported {violations} violations (mode {mode}, {vcpus} vCPUs)"
            ))),
        }
    }

    fn control(
        &self,
        system: &System,
        signals: &EndSignals,
        strategy: Strategy,
    ) -> Result<Control, Error> {
        let mode = Mode::from(strategy);
        let vcpus = CONTROL_VCPUS;
        let mut control = Control {
            mode: mode.to_string(),
            vcpus,
            shootdowns: 0,
            violations: 0,
            verdict: Verdict::Skip,
            reason: None,
            example: None,
        };
        if self.recipe.pins.pcpus(vcpus).len() < 2 {
            // Readers never run beside the flusher, so that `late` cannot be seen.
            control.reason = Some("needs two pCPUs, so that a reader runs meanwhile".to_owned());
            return Ok(control);
        }
        if self.recipe.algorithm_cpl == 0 && self.recipe.interprets_cpl_0 {
            control.reason =
                Some("this KVM interprets algorithms at CPL 0, which hides staleness".to_owned());
            return Ok(control);
        }
        let recipe = Recipe {
            length: CONTROL_LENGTH,
            max_shootdowns: CONTROL_SHOOTDOWNS,
            workload: Workload::Remap,
            mms: 1,
            initiators: None,
            gap: Duration::ZERO,
            ..self.recipe.clone()
        };
        let gathered =
            gather(&step::run(system, &recipe, Row { vcpus, targets: None }, mode, signals)?);
        control.shootdowns = gathered.guest.shootdowns;
        control.violations = gathered.guest.violations;
        control.example = gathered.violations.into_iter().next();
        (control.verdict, control.reason) = match control.violations {
            0 => (Verdict::Fail, Some("was not caught: the checks cannot be trusted".to_owned())),
            _ => (Verdict::Xfail, None),
        };
        Ok(control)
    }
}

/// One mode of a row while its rounds come in.
struct Column {
    mode: Mode,
    rounds: Vec<Gathered>,
}

impl Column {
    fn new(mode: Mode) -> Self {
        Self { mode, rounds: Vec::new() }
    }

    fn add(&mut self, round: Gathered) {
        self.rounds.push(round);
    }

    fn step(self, row: Row, recipe: &Recipe) -> Step {
        let mut latency = LatencyNs::default();
        let mut unstolen = LatencyNs::default();
        let mut guest = GuestCounts::default();
        let mut metrics = VcpuMetrics::default();
        let mut rates = Vec::new();
        for round in &self.rounds {
            latency.merge(&round.latency);
            unstolen.merge(&round.unstolen);
            gather::add(&mut guest, &round.guest);
            metrics.merge(&round.metrics);
            let seconds = round.round.seconds;
            rates.push(if seconds > 0.0 { round.round.shootdowns as f64 / seconds } else { 0.0 });
        }
        let longest = self.rounds.iter().map(|r| r.round.latency.max_ns).max().unwrap_or(0);
        let doorbell = self.mode.offered() == Offered::Doorbell;
        Step {
            vcpus: row.vcpus,
            targets: row.targets,
            mode: self.mode.to_string(),
            completion: doorbell.then(|| recipe.completion(self.mode).name().to_owned()),
            shootdowns_per_second: median(&mut rates),
            ratio_to_ipi: None,
            latency: pvtlb_api::stress::Latency { max_ns: longest, ..summary(&latency) },
            latency_unstolen: summary(&unstolen),
            guest,
            monitor: monitor_counts(&metrics),
            violations: self.rounds.iter().flat_map(|r| r.violations.clone()).collect(),
            rounds: self.rounds.into_iter().map(|r| r.round).collect(),
        }
    }
}

/// The middle value; of an even number, the mean of the middle two; 0 of none.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match (values.len() / 2, values.len() % 2) {
        (0, 0) => 0.0,
        (middle, 1) => values[middle],
        (middle, _) => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// The verdict of a sweep, and why.
#[must_use]
pub fn judge(swept: &Swept) -> (Verdict, String) {
    let shootdowns: u64 = swept.steps.iter().map(|s| s.guest.shootdowns).sum();
    let broken: Vec<String> = swept
        .steps
        .iter()
        .filter(|s| s.guest.violations > 0)
        .map(|s| format!("{} at {} vCPUs: {} violations", s.mode, s.vcpus, s.guest.violations))
        .collect();
    let missed: Vec<&str> = swept
        .controls
        .iter()
        .filter(|c| c.verdict == Verdict::Fail)
        .map(|c| c.mode.as_str())
        .collect();
    if !broken.is_empty() {
        return (Verdict::Fail, broken.join("; "));
    }
    if !missed.is_empty() {
        return (Verdict::Fail, format!("control {} was not caught", missed.join(" and ")));
    }
    if let Some(error) = &swept.ended_by {
        return (Verdict::Fail, format!("the sweep ended early: {error}"));
    }
    if shootdowns == 0 && swept.controls.iter().all(|c| c.verdict == Verdict::Skip) {
        return (Verdict::Skip, "nothing was run".to_owned());
    }
    let caught = swept.controls.iter().filter(|c| c.verdict == Verdict::Xfail).count();
    (
        Verdict::Pass,
        format!(
            "0 violations in {shootdowns} shootdowns; {caught} of {} controls caught",
            swept.controls.len()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(verdict: Verdict) -> Control {
        Control {
            mode: "none".to_owned(),
            vcpus: 2,
            shootdowns: 9,
            violations: u64::from(verdict == Verdict::Xfail),
            verdict,
            reason: None,
            example: None,
        }
    }

    #[test]
    fn a_control_that_is_not_caught_fails_the_sweep() {
        let swept = Swept { controls: vec![control(Verdict::Fail)], ..Swept::default() };
        assert_eq!(judge(&swept).0, Verdict::Fail);
    }

    #[test]
    fn a_sweep_in_which_all_was_skipped_is_not_a_success() {
        let swept = Swept { controls: vec![control(Verdict::Skip)], ..Swept::default() };
        assert_eq!(judge(&swept).0, Verdict::Skip);
        assert_eq!(judge(&Swept::default()).0, Verdict::Skip);
        let caught = Swept { controls: vec![control(Verdict::Xfail)], ..Swept::default() };
        assert_eq!(judge(&caught).0, Verdict::Pass);
    }

    #[test]
    fn the_median_of_an_even_number_is_between_the_middle_two() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0]), 2.5);
        assert_eq!(median(&mut []), 0.0);
    }
}
