//! The questions asked of every algorithm, and one function that answers all.
//!
//! Plain values. What is too large to visit says so by [`Setup::random_walks`].

use core::fmt;

use pv_tlb::addr::PageCount;
use pv_tlb::shootdown::invlpgb::Invlpgb;
use pv_tlb::shootdown::rar::{Rar, Sending};
use pv_tlb::shootdown::{GenRead, Method, Shootdown};

use super::broken::broken;
use super::machine::{Machine, Step};
use super::perform::Fault;
use super::program::Op::{Await, Forget, Lazy, Reclaim, Switch, Touch, Unmap, UnmapTable};
use super::program::{Algorithm, Op};
use super::setup::{Host, Setup};
use crate::explore::{self, Ending, Limits, Outcome};

pub(super) const IPI: Shootdown = Shootdown {
    method: Method::Ipi,
    gen_read: GenRead::WhenNeeded,
    full_flush_ceiling: PageCount(33),
};
pub(super) const INVLPGB: Invlpgb =
    Invlpgb { local: IPI, more_than: 1, global_slots: 1, sync_twice: false };

/// What the vCPUs do, in a few words and as programs.
pub(super) type Programs = (&'static str, &'static [&'static [Op]]);

pub(super) const USES: Programs =
    ("the target uses the mm", &[&[Unmap(1, 0)], &[Touch(0), Touch(0)]]);
pub(super) const COMES_BACK: Programs = (
    "the target leaves and comes back",
    &[&[Unmap(1, 0)], &[Touch(0), Switch(2), Switch(1), Touch(0)]],
);
pub(super) const BOTH: Programs =
    ("both flush", &[&[Unmap(1, 0), Touch(1)], &[Unmap(1, 1), Touch(0)]]);
const LAZY: Programs = (
    "the target goes lazy and comes back",
    &[&[Unmap(1, 0)], &[Touch(0), Lazy, Switch(1), Touch(0)]],
);
pub(super) const TABLES: Programs =
    ("tables are freed under a lazy target", &[&[UnmapTable(1, 1)], &[Touch(0), Lazy, Switch(2)]]);
pub(super) const BATCH: Programs =
    ("a batch after an ordinary flush", &[&[Unmap(1, 1), Reclaim(1, 0)], &[Touch(0), Touch(0)]]);
pub(super) const SECOND_USER: Programs = (
    "a second vCPU loads the mm",
    &[&[Switch(1), Touch(0), Unmap(1, 0)], &[Switch(1), Touch(0), Touch(0)]],
);
const BOTH_LOAD: Programs = (
    "both load the mm and flush",
    &[&[Switch(1), Touch(0), Unmap(1, 0), Touch(1)], &[Switch(1), Touch(1), Unmap(1, 1), Touch(0)]],
);
const THIRD_USER: Programs = (
    "a second and a third load the mm",
    &[
        &[Switch(1), Touch(0), Unmap(1, 0)],
        &[Switch(1), Touch(0), Touch(0)],
        &[Switch(1), Touch(0)],
    ],
);
pub(super) const MOVES: Programs = (
    "the mm gets a global slot",
    &[&[Unmap(1, 1), Unmap(1, 1), Unmap(1, 0)], &[Touch(0), Touch(0)]],
);
pub(super) const MOVES_AND_LEAVES: Programs = (
    "it gets one while the target leaves",
    &[&[Unmap(1, 1), Unmap(1, 0)], &[Switch(2), Switch(1), Touch(0)]],
);
pub(super) const REUSES_SLOT: Programs = (
    "a dead mm's global slot is reused",
    &[
        &[
            Unmap(1, 0),
            Unmap(1, 1),
            Touch(0),
            Await(1, 2),
            Switch(2),
            Forget(1),
            Unmap(2, 0),
            Unmap(2, 1),
            Touch(0),
        ],
        &[Switch(2)],
    ],
);
pub(super) const TWICE: Programs =
    ("two requests to one target", &[&[Unmap(1, 0), Unmap(1, 1)], &[Touch(0), Touch(1)]]);
pub(super) const TWO_SEND: Programs =
    ("two flush, a third listens", &[&[Unmap(1, 0)], &[Unmap(1, 1)], &[]]);
const TWO_AND_ONE: Programs =
    ("two flush, a third uses the mm", &[&[Unmap(1, 0)], &[Unmap(1, 1)], &[Touch(0)]]);
const ONE_AND_TWO: Programs =
    ("one flushes, one stays, one leaves", &[&[Unmap(1, 0)], &[Touch(0)], &[Touch(0), Switch(2)]]);
const TWO_TARGETS: Programs =
    ("one flushes, two use the mm", &[&[Unmap(1, 0)], &[Touch(0)], &[Touch(0)]]);

fn rules(method: Method, gen_read: GenRead) -> Algorithm {
    Algorithm::Shootdown(Shootdown { method, gen_read, ..IPI })
}

pub(super) fn doorbell(programs: Programs) -> Setup {
    let algorithm = rules(Method::Doorbell, GenRead::WhenNeeded);
    Setup {
        host: Host::Doorbell,
        preemptions: &[1, 1, 1],
        ..Setup::new("doorbell, acks", algorithm, programs)
    }
}

pub(super) fn membarrier(programs: Programs) -> Setup {
    Setup { name: "doorbell, membarrier", membarrier: true, ..doorbell(programs) }
}

pub(super) fn kvm_pv(programs: Programs, preemptions: &'static [u8]) -> Setup {
    let algorithm = rules(Method::KvmPv, GenRead::WhenNeeded);
    Setup { host: Host::KvmPv, preemptions, ..Setup::new("kvm-pv", algorithm, programs) }
}

pub(super) fn active_cpu(programs: Programs) -> Setup {
    let setup = Setup::new("active_cpu", Algorithm::ActiveCpu, programs);
    Setup { store_buffers: true, prologue: vec![], ..setup }
}

pub(super) fn rar(sending: Sending, programs: Programs) -> Setup {
    let name = match sending {
        Sending::Always => "rar, naive",
        Sending::Shared => "rar, optimised",
    };
    let rules = Rar { payloads: programs.1.len() as u8, sending };
    warm(Setup::new(name, Algorithm::Rar(rules), programs))
}

pub(super) fn invlpgb(programs: Programs) -> Setup {
    warm(Setup::new("invlpgb", Algorithm::Invlpgb(INVLPGB), programs))
}

/// Every vCPU has used both pages before.
pub(super) fn warm(setup: Setup) -> Setup {
    Setup { prologue: vec![Switch(1), Touch(0), Touch(1)], ..setup }
}

fn interrupts() -> Vec<Setup> {
    let mut setups = Vec::new();
    for (gen_read, name) in
        [(GenRead::WhenNeeded, "ipi"), (GenRead::First, "ipi, generation read first")]
    {
        let ipi = |programs| Setup::new(name, rules(Method::Ipi, gen_read), programs);
        setups.extend([COMES_BACK, LAZY, BATCH, ONE_AND_TWO].map(ipi));
        setups.push(warm(ipi(BOTH)));
        setups.push(Setup { speculates: true, ..ipi(TABLES) });
        setups.push(Setup { random_walks: WALKS, ..warm(ipi(TWO_AND_ONE)) });
    }
    let ipi = |name| Setup::new(name, rules(Method::Ipi, GenRead::WhenNeeded), COMES_BACK);
    setups.push(Setup { slots: 1, ..ipi("ipi, no PCIDs") });
    setups.push(Setup { store_buffers: true, ..ipi("ipi, store buffers") });
    setups.push(Setup { speculates: true, ..ipi("ipi, speculating walker") });
    setups
}

fn paravirtual() -> Vec<Setup> {
    let adaptive = |programs| Setup {
        name: "doorbell, adaptive",
        algorithm: rules(Method::DoorbellAdaptive, GenRead::WhenNeeded),
        ..doorbell(programs)
    };
    vec![
        kvm_pv(USES, &[1, 2]),
        kvm_pv(COMES_BACK, &[0, 2]),
        kvm_pv(TWO_TARGETS, &[0, 1, 0]),
        Setup { random_walks: WALKS, ..kvm_pv(ONE_AND_TWO, &[1, 2, 2]) },
        doorbell(USES),
        doorbell(COMES_BACK),
        doorbell(BOTH),
        doorbell(TWO_TARGETS),
        membarrier(COMES_BACK),
        membarrier(TWO_TARGETS),
        adaptive(USES),
        Setup { random_walks: WALKS, ..adaptive(ONE_AND_TWO) },
    ]
}

fn hardware() -> Vec<Setup> {
    let erratum = Setup {
        name: "invlpgb, erratum 1718",
        algorithm: Algorithm::Invlpgb(Invlpgb { sync_twice: true, ..INVLPGB }),
        erratum_1718: true,
        ..invlpgb(MOVES)
    };
    let mut setups = vec![
        active_cpu(SECOND_USER),
        active_cpu(BOTH_LOAD),
        active_cpu(THIRD_USER),
        invlpgb(MOVES),
        invlpgb(MOVES_AND_LEAVES),
        invlpgb(REUSES_SLOT),
        invlpgb(COMES_BACK),
        invlpgb(LAZY),
        invlpgb(BOTH),
        Setup { name: "invlpgb, draining host", migrates: true, ..invlpgb(MOVES) },
        erratum,
        invlpgb(TWO_TARGETS),
        Setup { random_walks: WALKS, ..invlpgb(TWO_AND_ONE) },
    ];
    for sending in [Sending::Always, Sending::Shared] {
        setups.extend([COMES_BACK, BOTH, TWICE, TWO_SEND].map(|programs| rar(sending, programs)));
        setups.push(Setup { random_walks: WALKS, ..rar(sending, TWO_AND_ONE) });
    }
    setups
}

/// Every sound algorithm with the programs it is asked about.
#[must_use]
pub fn sound() -> Vec<Setup> {
    [interrupts(), paravirtual(), hardware()].concat()
}

/// One answer.
#[derive(Clone, Debug)]
pub struct Row {
    /// The question.
    pub setup: Setup,
    /// The answer.
    pub outcome: Outcome<Step, Fault>,
}

impl Row {
    /// What goes wrong, and after how many steps; `None` if nothing was found.
    #[must_use]
    pub fn failure(&self) -> Option<(String, usize)> {
        let found = self.outcome.counterexample.as_ref()?;
        let text = match &found.ending {
            Ending::Broken(fault) => fault.to_string(),
            Ending::Stuck => "nobody can move, and somebody has to".into(),
        };
        Some((text, found.steps.len()))
    }

    /// How the answer was found.
    #[must_use]
    pub fn method(&self) -> String {
        match self.outcome.method {
            explore::Method::Exhaustive => format!("all {} states", self.outcome.states),
            explore::Method::CutOff { states } => format!("cut off after {states} states"),
            explore::Method::Random { seed, walks } => {
                format!("{walks} random walks, seed {seed}")
            }
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let vcpus = self.setup.programs.len();
        let verdict = match self.failure() {
            Some((text, steps)) => format!("{text} ({steps} steps)"),
            None => "sound".into(),
        };
        let question = self.setup.mutant.map_or(self.setup.asks, super::Mutant::name);
        let (name, method) = (self.setup.name, self.method());
        write!(f, "{name:<27} {vcpus} {question:<48} {method:<30} {verdict}")
    }
}

/// Walks of the questions that are too large to visit.
const WALKS: u64 = 20_000;
/// Distinct states after which an exploration gives up.
const MOST_STATES: usize = 3_000_000;

/// Answers one question.
#[must_use]
pub fn answer(setup: Setup) -> Row {
    let machine = Machine::new(setup.clone());
    let outcome = match setup.random_walks {
        0 => explore::exhaustive(&machine, Limits { states: MOST_STATES, sleep_sets: false }),
        walks => explore::random(&machine, 1, walks),
    };
    Row { setup, outcome }
}

/// All answers: the sound algorithms, then the mutants.
#[must_use]
pub fn table() -> Vec<Row> {
    sound().into_iter().chain(broken()).map(answer).collect()
}
