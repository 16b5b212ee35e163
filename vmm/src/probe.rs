//! The start-up probe: which way really makes a vCPU flush on entry here, and
//! whether KVM reports preemption.
//!
//! A two-vCPU guest keeps a translation in use at CPL 3 (vCPU 1) while vCPU 0
//! changes the page table without flushing. A way is proved if the reader still
//! saw the old page before and saw the new one after, every time, while the
//! controls (exit and entry alone, registers written back unchanged) left it stale.
//! Where every exit empties the TLB, as under an emulated host, the controls look
//! fresh too; then KVM's own flush count is the evidence.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use pv_tlb::CpuSet;
use pv_tlb::abi::kvm::PREEMPTED;
use pv_tlb::abi::stress::{BootParams, PROBE_FRAMES, ProbeWords, Program};
use pv_tlb::id::VcpuId;
use pv_tlb::invalidation::{Invalidation, Reach};

use crate::boot::{self, Kernel, Machine, MachineConfig, Offered};
use crate::devices::serial::ConsoleTarget;
use crate::error::Error;
use crate::flush::entry::EntryFlush;
use crate::flush::execute::execute;
use crate::flush::rule::{Completion, CompletionChoice};
use crate::kvm::affinity;
use crate::kvm::stats::FlushCount;
use crate::kvm::system::System;
use crate::memory::View;
use crate::placement::pins::Pins;
use crate::vcpu::run_loop::{Event, Shared};

/// Mappings changed for each way; fewer than the guest has frames, so that a
/// stale frame is never the next fresh one.
const TRIALS: u32 = 5;
/// Reads that the reader must do before its view counts.
const READS: u64 = 32;
/// Longest wait for one step of the guest.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long two vCPUs share a pCPU to see whether preemption is reported.
const PREEMPTION_WATCH: Duration = Duration::from_millis(120);
/// Pause between two looks at the guest.
const LOOK: Duration = Duration::from_micros(50);

const READER: VcpuId = VcpuId(1);

/// What one way came to.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    /// The way.
    pub way: EntryFlush,
    /// Trials in which the reader was still stale before the flush.
    pub stale_before: u32,
    /// Trials in which it was fresh after it.
    pub fresh_after: u32,
    /// Flushes KVM counted for the reader meanwhile, if it counts.
    pub kvm_flushes: Option<u64>,
}

/// What the probe found.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Every way and control that was tried.
    pub trials: Vec<Trial>,
    /// The cheapest way that is proved.
    pub entry: Option<EntryFlush>,
    /// KVM sets the `preempted` byte of a vCPU that it takes off its pCPU.
    pub reports_preemption: bool,
    /// TSC frequency of guests, kHz.
    pub tsc_khz: u32,
}

impl Probe {
    /// Runs the probe; takes a fraction of a second.
    ///
    /// # Errors
    /// If the probe guest cannot be run.
    pub fn run(system: &System) -> Result<Self, Error> {
        let ways = EntryFlush::CONTROLS.into_iter().chain(EntryFlush::CANDIDATES);
        let trials = ways.map(|way| try_way(system, way)).collect::<Result<Vec<_>, _>>()?;
        let entry = EntryFlush::CANDIDATES.into_iter().find(|way| proves(&trials, *way));
        let reports_preemption = reports_preemption(system)?;
        Ok(Self { trials, entry, reports_preemption, tsc_khz: system.guest_tsc_khz()? })
    }

    /// What a trial shows, in a word or two.
    #[must_use]
    pub fn conclusion(&self, trial: &Trial) -> &'static str {
        match (EntryFlush::CONTROLS.contains(&trial.way), proves(&self.trials, trial.way)) {
            (true, _) if trial.fresh_after == 0 => "control stays stale, as it must",
            (true, _) => "control looks fresh: this host drops its TLB at exits",
            (false, true) => "proved",
            (false, false) => "refused: not proved",
        }
    }
}

/// Number of trials of each way.
#[must_use]
pub const fn trials_per_way() -> u32 {
    TRIALS
}

fn proves(trials: &[Trial], way: EntryFlush) -> bool {
    let Some(trial) = trials.iter().find(|t| t.way == way) else { return false };
    if trial.fresh_after != TRIALS {
        return false;
    }
    let controls_stale = trials
        .iter()
        .filter(|t| EntryFlush::CONTROLS.contains(&t.way))
        .all(|t| t.fresh_after == 0 && t.stale_before == TRIALS);
    let seen_by_guest = controls_stale && trial.stale_before == TRIALS;
    let counted_by_kvm = trial.kvm_flushes.is_some_and(|n| n >= u64::from(TRIALS));
    seen_by_guest || counted_by_kvm
}

fn config(way: EntryFlush, pins: Pins) -> MachineConfig {
    MachineConfig {
        vcpus: 2,
        memory_bytes: 32 << 20,
        offered: Offered::Off,
        kernel: Kernel::Embedded,
        params: BootParams {
            program: Program::Probe as u32,
            algorithm_cpl: 3,
            mms: 1,
            initiators: 1,
            pages_per_vcpu: 1,
            full_flush_ceiling: 33,
            ..BootParams::default()
        },
        pins,
        console: ConsoleTarget::Off,
        completion: Completion::new(CompletionChoice::Ack, false),
        entry: way,
        deadline: PATIENCE,
    }
}

struct Bench<'a> {
    words: &'a View<ProbeWords>,
    shared: &'a Shared,
    count: Option<FlushCount>,
}

fn try_way(system: &System, way: EntryFlush) -> Result<Trial, Error> {
    let machine = Machine::create(system, &config(way, Pins::anywhere_in(affinity::allowed()?)))?;
    let words = machine.probe_words()?;
    let count = machine.vcpus()[READER.index()].flush_count().ok();
    let running = machine.start()?;
    let bench = Bench { words: &words, shared: running.shared(), count };
    let result = bench.trials(way);
    drop(running);
    result
}

impl Bench<'_> {
    fn trials(&self, way: EntryFlush) -> Result<Trial, Error> {
        let mut trial = Trial { way, stale_before: 0, fresh_after: 0, kvm_flushes: None };
        let mut flushes = 0;
        self.wait("start", || self.words.seen.load(Ordering::Acquire) != 0)?;
        for command in 1..=u64::from(TRIALS) {
            // Partner: vCPU 0's acquire load.
            self.words.command.store(command, Ordering::Release);
            // Partner: vCPU 0's release store after its page-table store.
            self.wait("change a mapping", || self.words.done.load(Ordering::Acquire) == command)?;
            let fresh = command % PROBE_FRAMES + 1;
            self.let_it_read()?;
            trial.stale_before += u32::from(self.words.seen.load(Ordering::Acquire) != fresh);
            let before = self.kvm_count();
            self.flush()?;
            self.let_it_read()?;
            trial.fresh_after += u32::from(self.words.seen.load(Ordering::Acquire) == fresh);
            flushes += self.kvm_count().saturating_sub(before);
        }
        trial.kvm_flushes = self.count.as_ref().map(|_| flushes);
        Ok(trial)
    }

    fn kvm_count(&self) -> u64 {
        self.count.as_ref().and_then(|count| count.read().ok()).unwrap_or(0)
    }

    fn flush(&self) -> Result<(), Error> {
        let ask =
            Invalidation { reach: Reach::Set(CpuSet::only(READER)), ..Invalidation::EVERYTHING };
        execute(&self.shared.site, VcpuId(0), &ask, &AtomicBool::new(false))
            .map(drop)
            .map_err(|e| Error::Late(format!("Probe: {e}")))
    }

    /// Waits until the reader has read some more, so that what it saw is recent.
    fn let_it_read(&self) -> Result<(), Error> {
        let enough = self.words.reads.load(Ordering::Acquire) + READS;
        self.wait("read", || self.words.reads.load(Ordering::Acquire) >= enough)
    }

    fn wait(&self, what: &str, done: impl Fn() -> bool) -> Result<(), Error> {
        let start = Instant::now();
        while !done() {
            for event in self.shared.events() {
                if !matches!(event, Event::Value { .. }) {
                    return Err(Error::Guest(format!("Probe guest failed: {}", told(&event))));
                }
            }
            if start.elapsed() > PATIENCE {
                return Err(Error::Guest(format!(
                    "Probe guest did not {what} within {PATIENCE:?}"
                )));
            }
            sleep(LOOK);
        }
        Ok(())
    }
}

fn told(event: &Event) -> String {
    match event {
        Event::Failed(failure) => failure.to_string(),
        other => format!("{other:?}"),
    }
}

/// Runs both vCPUs on one pCPU and looks for the mark of preemption.
fn reports_preemption(system: &System) -> Result<bool, Error> {
    let one = affinity::allowed()?.into_iter().take(1).collect();
    let machine = Machine::create(system, &config(EntryFlush::Nothing, Pins::anywhere_in(one)))?;
    let running = machine.start().map_err(boot::Error::from)?;
    let start = Instant::now();
    let mut seen = false;
    while !seen && start.elapsed() < PREEMPTION_WATCH {
        sleep(LOOK);
        let records = running.shared().site.slots.iter().filter_map(|slot| slot.steal.as_deref());
        seen = records
            .into_iter()
            .any(|record| record.preempted.load(Ordering::Relaxed) & PREEMPTED != 0);
    }
    drop(running);
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(way: EntryFlush, stale: u32, fresh: u32, counted: Option<u64>) -> Trial {
        Trial { way, stale_before: stale, fresh_after: fresh, kvm_flushes: counted }
    }

    #[test]
    fn a_way_is_proved_only_against_controls_that_stayed_stale() {
        let way = EntryFlush::Cr4PgeToggle;
        let stale = EntryFlush::CONTROLS.map(|c| trial(c, TRIALS, 0, Some(0)));
        let fresh = EntryFlush::CONTROLS.map(|c| trial(c, TRIALS, TRIALS, Some(0)));
        let good = trial(way, TRIALS, TRIALS, Some(0));
        assert!(proves(&[stale.as_slice(), &[good]].concat(), way));
        assert!(!proves(&[fresh.as_slice(), &[good]].concat(), way), "anything looks fresh");
        let counted = trial(way, TRIALS, TRIALS, Some(u64::from(TRIALS)));
        assert!(proves(&[fresh.as_slice(), &[counted]].concat(), way), "KVM counted it");
        let once_missed = trial(way, TRIALS, TRIALS - 1, Some(100));
        assert!(!proves(&[stale.as_slice(), &[once_missed]].concat(), way));
    }
}
