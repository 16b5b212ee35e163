//! The modelled host and `pv_tlb::plan` decide alike.
//!
//! No state. Random histories run on both; what they think of footprints, and how
//! many pCPUs a flush disturbs, must be the same after every event.

use pv_tlb::addr::PageCount;
use pv_tlb::footprint::{Footprint, Footprints};
use pv_tlb::id::{PcpuId, VcpuId};
use pv_tlb::invalidation::{Extent, Invalidation, Reach};
use pv_tlb::placement::{Placement, RunState};
use pv_tlb::plan::{EntryFlush, HostPolicy, Upgrade, plan, plan_entry};
use pv_tlb_model::explore::System;
use pv_tlb_model::generate::{Shape, scenario};
use pv_tlb_model::machine::{Hardware, Machine, State};
use pv_tlb_model::program::compile;
use pv_tlb_model::scenario::{Actor, Addresses, Op, Scenario, Way};
use pv_tlb_model::verdict::Price;
use pv_tlb_model::world::World;

const SHAPE: Shape =
    Shape { vcpus: 3, pcpus: 4, events: 60, move_percent: 40, is_concurrent: false };

/// What a host knows that uses the real planner.
struct Host {
    policy: HostPolicy,
    placement: Placement,
    footprints: Footprints<[Footprint; 4]>,
}

impl Host {
    fn new(scenario: &Scenario, policy: HostPolicy) -> Self {
        let footprints = Footprints::new([Footprint::default(); 4]);
        let mut host = Self { policy, placement: Placement::new(), footprints };
        for start in &scenario.starts {
            match start.pcpu {
                Some(pcpu) => host.runs(start.vcpu, pcpu),
                None => host.stops(start.vcpu),
            }
        }
        host
    }

    fn runs(&mut self, vcpu: usize, pcpu: usize) {
        let (vcpu, pcpu) = (VcpuId(vcpu as u32), PcpuId(pcpu as u32));
        self.footprints.entered(vcpu, pcpu);
        self.placement.set(vcpu, RunState::Running(pcpu));
    }

    fn stops(&mut self, vcpu: usize) {
        let vcpu = VcpuId(vcpu as u32);
        self.footprints.left(vcpu);
        self.placement.set(vcpu, RunState::InHost { mid_access: false });
    }

    fn enter(&mut self, vcpu: usize, pcpu: usize) {
        let (id, at) = (VcpuId(vcpu as u32), PcpuId(pcpu as u32));
        match plan_entry(id, at, &self.footprints, self.policy).flush {
            EntryFlush::Nothing => {}
            EntryFlush::Vcpu => self.footprints.flushed_on(id, at),
            EntryFlush::Vm => self.footprints.flushed_vm_on(at),
        }
        self.runs(vcpu, pcpu);
    }

    /// A local flush by `vcpu`; returns how many other pCPUs it disturbs.
    fn flush(&mut self, vcpu: usize, is_whole: bool) -> u32 {
        let id = VcpuId(vcpu as u32);
        let pages = PageCount(1);
        let (start, stride) = (Default::default(), Default::default());
        let extent = if is_whole { Extent::Whole } else { Extent::Range { start, pages, stride } };
        let ask = Invalidation { reach: Reach::Local, extent, ..Invalidation::EVERYTHING };
        let plan = plan(&ask, id, &self.placement, &self.footprints, self.policy);
        match plan.upgrade() {
            Upgrade::None => 0,
            Upgrade::Everywhere => SHAPE.pcpus as u32 - 1,
            Upgrade::Pcpus(pcpus) => {
                if is_whole {
                    self.footprints.flushed(id);
                }
                pcpus.len()
            }
            Upgrade::AtReturn(targets) => {
                targets.iter().for_each(|target| self.footprints.owe(target));
                0
            }
        }
    }

    /// As [`State::footprint`].
    fn footprint(&self, vcpu: usize) -> (u8, u8) {
        let row = self.footprints.of(VcpuId(vcpu as u32)).expect("a row");
        let bits = |wanted: &dyn Fn(PcpuId) -> bool| {
            (0..8).filter(|pcpu| wanted(PcpuId(*pcpu))).fold(0, |mask, pcpu| mask | 1 << pcpu)
        };
        (bits(&|pcpu| row.may_hold().contains(pcpu)), bits(&|pcpu| row.owes(pcpu)))
    }
}

/// Performs one line on both; false once the machine reports a broken promise.
fn both(
    machine: &Machine<'_>,
    state: &mut State,
    host: &mut Host,
    scenario: &Scenario,
    (actor, op): (Actor, &Op),
) -> bool {
    let mut price = Price::default();
    let phase_before = state.phase();
    while state.phase() == phase_before && !machine.is_done(state) {
        let mut enabled = Vec::new();
        machine.enabled(state, &mut enabled);
        if machine.perform(state, enabled[0], &mut price).is_err() {
            return false;
        }
    }
    let vcpu = if let Actor::Vcpu(vcpu) = actor { vcpu } else { 0 };
    // The machine calls a flush whole if it covers all there is to translate.
    let one_asid = scenario.spaces[0].asid == scenario.spaces[1].asid;
    let disturbed = match op {
        Op::Preempt(vcpu) => {
            host.stops(*vcpu);
            0
        }
        Op::Run(vcpu, pcpu) => {
            host.enter(*vcpu, *pcpu);
            0
        }
        Op::Move(vcpu, pcpu) => {
            host.stops(*vcpu);
            host.enter(*vcpu, *pcpu);
            0
        }
        Op::Flush(extent, Way::Locally) => {
            let is_space = extent.addresses == Addresses::Space;
            let is_whole = extent.addresses == Addresses::Everything || is_space && one_asid;
            host.flush(vcpu, is_whole)
        }
        Op::Switch(_, true) => host.flush(vcpu, one_asid),
        // The guest's and the host's own broadcasts are no matter of this planner.
        _ => return true,
    };
    assert_eq!(price.disturbed, disturbed, "{op:?} on {}", host.policy);
    true
}

#[test]
fn the_modelled_host_and_the_planner_agree_after_every_event() {
    let movable = HostPolicy::ALL.into_iter().filter(|policy| policy.may_migrate());
    for policy in movable {
        let is_ours = matches!(policy, HostPolicy::Footprint | HostPolicy::FootprintDeferred);
        for seed in 0..300 {
            let scenario = scenario(seed, SHAPE);
            let program = compile(&scenario, &World::of(policy)).expect("fits");
            let machine = Machine::new(&program, Hardware::MayHold);
            let mut state = machine.initial();
            let mut host = Host::new(&scenario, policy);
            for (number, phase) in scenario.phases.iter().enumerate() {
                let line = &phase.lines[0];
                if !both(&machine, &mut state, &mut host, &scenario, (line.actor, &line.op)) {
                    break;
                }
                for vcpu in 0..SHAPE.vcpus {
                    let (held, owed) = host.footprint(vcpu);
                    let context = format!("v{vcpu} after {number}: {}, seed {seed}", line.text);
                    assert_eq!(state.footprint(vcpu).0, held, "{context} on {policy}");
                    assert!(!is_ours || state.footprint(vcpu).1 == owed, "{context} on {policy}");
                }
            }
        }
    }
}
