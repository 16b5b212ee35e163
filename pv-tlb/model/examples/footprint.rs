//! Footprint against forced broadcasts, on random scripts.
//!
//! Three tables: soundness (no random guest on a random host may ever use what a CPU
//! of its own could not); what the policies cost as vCPUs move more often; and the
//! same on a large host, by the planner alone, to which a test holds the model.
//!
//! `cargo run --release -p pv-tlb-model --example footprint -- [SCRIPTS [SEED]]`

use std::time::Instant;

use pv_tlb::footprint::{Footprint, Footprints};
use pv_tlb::id::{PcpuId, VcpuId};
use pv_tlb::invalidation::{Invalidation, Reach};
use pv_tlb::placement::{Placement, RunState};
use pv_tlb::plan::{EntryFlush, HostPolicy, Upgrade, plan, plan_entry};
use pv_tlb_model::explore::{Limits, System, exhaustive};
use pv_tlb_model::generate::{Shape, scenario};
use pv_tlb_model::machine::{Hardware, Machine};
use pv_tlb_model::program::compile;
use pv_tlb_model::scenario::{Op, Scenario, Way};
use pv_tlb_model::verdict::Price;
use pv_tlb_model::world::World;

/// Of the random scripts.
const SHAPE: Shape =
    Shape { vcpus: 3, pcpus: 4, events: 24, move_percent: 35, is_concurrent: false };

fn main() {
    let mut args = std::env::args().skip(1).filter_map(|arg| arg.parse::<u64>().ok());
    let scripts = args.next().unwrap_or(100_000);
    let first = args.next().unwrap_or(0);
    let is_sound = soundness(first, scripts);
    rates(first);
    large_host(first);
    if !is_sound {
        std::process::exit(1);
    }
}

fn soundness(first: u64, scripts: u64) -> bool {
    println!("{scripts} random scripts from seed {first}: {SHAPE:?}\n");
    println!("{:28}{:>10}{:>14}{:>10}", "policy", "scripts", "events", "broken");
    let mut is_sound = true;
    for policy in HostPolicy::ALL {
        let is_ours = matches!(policy, HostPolicy::Footprint | HostPolicy::FootprintDeferred);
        // The others show what the same scripts can find; a tenth of them is enough.
        let count = if is_ours { scripts } else { scripts / 10 };
        let begun = Instant::now();
        let (mut events, mut broken) = (0, 0_u64);
        for seed in first..first + count {
            let program = compile(&scenario(seed, SHAPE), &World::of(policy)).expect("fits");
            let machine = Machine::new(&program, Hardware::MayHold);
            let outcome = exhaustive(&machine, Limits::default());
            events += outcome.events;
            broken += u64::from(outcome.counterexample.is_some());
        }
        println!("{:28}{count:>10}{events:>14}{broken:>10}  {:?}", policy.name(), begun.elapsed());
        is_sound &= !policy.is_sound() || broken == 0;
    }
    is_sound
}

/// What a policy costs over scripts of one restlessness.
#[derive(Default)]
struct Cost {
    flushes: u64,
    disturbing: u64,
    moves: u64,
    price: Price,
}

impl Cost {
    /// `n` for each 100 flushes.
    fn per_100(&self, n: u64) -> f64 {
        100.0 * n as f64 / self.flushes.max(1) as f64
    }
}

fn rates(first: u64) {
    println!("\nper 100 local flushes of a guest, by how often the host moves a vCPU:");
    println!("broadcasts / pCPUs disturbed / flushes that disturb no other pCPU\n");
    println!(
        "{:>12}{:>26}{:>26}{:>26}{:>22}",
        "moves/flush", "arm64-kvm", "footprint", "footprint-deferred", "disturbance avoided"
    );
    for move_percent in [0, 1, 2, 5, 10, 20, 40, 60, 80] {
        let shape = Shape { move_percent, events: 200, ..SHAPE };
        let costs = [HostPolicy::Arm64Kvm, HostPolicy::Footprint, HostPolicy::FootprintDeferred]
            .map(|policy| cost(first, shape, policy));
        let [forced, ours, _] = &costs;
        print!("{:>12.2}", forced.moves as f64 / forced.flushes.max(1) as f64);
        for cost in &costs {
            let broadcasts = cost.per_100(cost.price.broadcasts.into());
            let disturbed = cost.per_100(cost.price.disturbed.into());
            let local = cost.per_100(cost.flushes - cost.disturbing);
            print!("{:>26}", format!("{broadcasts:.0} / {disturbed:.1} / {local:.1}"));
        }
        let share = f64::from(ours.price.disturbed) / f64::from(forced.price.disturbed.max(1));
        println!("{:>21.1}%", 100.0 * (1.0 - share));
    }
}

fn cost(first: u64, shape: Shape, policy: HostPolicy) -> Cost {
    let mut cost = Cost::default();
    for seed in first..first + 200 {
        let scenario = only_local(scenario(seed, shape));
        for line in scenario.phases.iter().flat_map(|phase| &phase.lines) {
            let is_flush = matches!(line.op, Op::Flush(_, Way::Locally) | Op::Switch(_, true));
            cost.flushes += u64::from(is_flush);
            cost.moves += u64::from(matches!(line.op, Op::Move(..) | Op::Run(..)));
        }
        let program = compile(&scenario, &World::of(policy)).expect("fits");
        let machine = Machine::new(&program, Hardware::MayHold);
        let mut state = machine.initial();
        let mut enabled = Vec::new();
        while !machine.is_done(&state) {
            enabled.clear();
            machine.enabled(&state, &mut enabled);
            let before = cost.price;
            // A script in sequence has one step at a time.
            let result = machine.perform(&mut state, enabled[0], &mut cost.price);
            result.expect("the policies compared are sound");
            // Nothing but a flush disturbs another pCPU.
            cost.disturbing += u64::from(cost.price.disturbed != before.disturbed);
        }
    }
    cost
}

/// The script without the guest's own broadcasts and the host's: they cost the same
/// on every policy.
fn only_local(mut scenario: Scenario) -> Scenario {
    scenario.phases.retain(|phase| {
        let is_broadcast = |op: &Op| matches!(op, Op::Flush(_, Way::Everywhere) | Op::HostFlush);
        !phase.lines.iter().any(|line| is_broadcast(&line.op))
    });
    scenario
}

const LARGE_PCPUS: u32 = 64;
const LARGE_VCPUS: u32 = 8;

/// A VM of eight vCPUs on a host of 64 pCPUs: now and then a vCPU moves to a random
/// free pCPU, and all the time some vCPU flushes one page.
fn large_host(first: u64) {
    println!(
        "\n{LARGE_VCPUS} vCPUs on {LARGE_PCPUS} pCPUs, 100,000 flushes each, one in a hundred of them whole, by plan():"
    );
    println!(
        "{:>12}{:>26}{:>18}{:>14}",
        "moves/flush", "pCPUs disturbed/flush", "stay local", "avoided"
    );
    for per_million in [0, 100, 1_000, 10_000, 100_000, 1_000_000] {
        let mut host = LargeHost::new(first);
        let (mut moves, mut disturbed, mut local) = (0_u64, 0_u64, 0_u64);
        for _ in 0..100_000 {
            if host.rng.u32(..1_000_000) < per_million {
                host.moves();
                moves += 1;
            }
            let pcpus = host.flush();
            disturbed += u64::from(pcpus);
            local += u64::from(pcpus == 0);
        }
        let per_flush = disturbed as f64 / 1e5;
        println!(
            "{:>12.4}{per_flush:>26.3}{:>17.1}%{:>13.2}%",
            moves as f64 / 1e5,
            local as f64 / 1e3,
            100.0 * (1.0 - per_flush / f64::from(LARGE_PCPUS - 1))
        );
    }
}

struct LargeHost {
    rng: fastrand::Rng,
    placement: Placement,
    footprints: Footprints<Vec<Footprint>>,
    on: Vec<u32>,
}

impl LargeHost {
    fn new(seed: u64) -> Self {
        let mut host = Self {
            rng: fastrand::Rng::with_seed(seed),
            placement: Placement::new(),
            footprints: Footprints::new(vec![Footprint::default(); LARGE_VCPUS as usize]),
            on: (0..LARGE_VCPUS).collect(),
        };
        (0..LARGE_VCPUS).for_each(|vcpu| host.enter(vcpu, vcpu));
        host
    }

    fn enter(&mut self, vcpu: u32, pcpu: u32) {
        let (id, at) = (VcpuId(vcpu), PcpuId(pcpu));
        match plan_entry(id, at, &self.footprints, HostPolicy::Footprint).flush {
            EntryFlush::Nothing => {}
            EntryFlush::Vcpu => self.footprints.flushed_on(id, at),
            EntryFlush::Vm => self.footprints.flushed_vm_on(at),
        }
        self.footprints.entered(id, at);
        self.placement.set(id, RunState::Running(at));
        self.on[vcpu as usize] = pcpu;
    }

    fn moves(&mut self) {
        let vcpu = self.rng.u32(..LARGE_VCPUS);
        let free: Vec<u32> = (0..LARGE_PCPUS).filter(|pcpu| !self.on.contains(pcpu)).collect();
        let pcpu = free[self.rng.usize(..free.len())];
        self.footprints.left(VcpuId(vcpu));
        self.enter(vcpu, pcpu);
    }

    /// One page, locally; every hundredth time everything. Returns the pCPUs disturbed.
    fn flush(&mut self) -> u32 {
        let id = VcpuId(self.rng.u32(..LARGE_VCPUS));
        let is_whole = self.rng.u8(..100) == 0;
        let ask = Invalidation { reach: Reach::Local, ..Invalidation::EVERYTHING };
        let plan = plan(&ask, id, &self.placement, &self.footprints, HostPolicy::Footprint);
        let Upgrade::Pcpus(pcpus) = plan.upgrade() else { return 0 };
        if is_whole {
            self.footprints.flushed(id);
        }
        pcpus.len()
    }
}
