//! Plans: reasons and upgrades by policy, and soundness over random histories.

mod reference;

use super::*;
use crate::id::PcpuId;
use crate::invalidation::Reach;
use crate::placement::RunState;
use proptest::prelude::*;

type Rows = [Footprint; 8];

fn ask(reach: Reach) -> Invalidation {
    Invalidation { reach, ..Invalidation::EVERYTHING }
}

/// v0 runs on p0 and came from p5; v1 runs on p1; v2 is preempted on p2; v3 is
/// halted and has run on p3; v4 is in the host; v5 too, mid access; v6 never ran.
fn scene() -> (Placement, Footprints<Rows>) {
    let mut placement = Placement::new();
    let mut footprints = Footprints::new(Rows::default());
    let states = [
        RunState::Running(PcpuId(0)),
        RunState::Running(PcpuId(1)),
        RunState::Preempted(PcpuId(2)),
        RunState::Halted,
        RunState::InHost { mid_access: false },
        RunState::InHost { mid_access: true },
        RunState::InHost { mid_access: false },
    ];
    footprints.entered(VcpuId(0), PcpuId(5));
    for (vcpu, state) in (0..).map(VcpuId).zip(states) {
        placement.set(vcpu, state);
        if vcpu.0 < 6 {
            footprints.entered(vcpu, PcpuId(vcpu.0));
        }
        if !matches!(state, RunState::Running(_)) {
            footprints.left(vcpu);
        }
    }
    (placement, footprints)
}

fn reasons(policy: HostPolicy) -> [Option<Reason>; 8] {
    let (placement, footprints) = scene();
    let plan = plan(&ask(Reach::All), VcpuId(0), &placement, &footprints, policy);
    core::array::from_fn(|vcpu| plan.reason(VcpuId(vcpu as u32)))
}

#[test]
fn without_upgrade_each_target_flushes_by_its_own_state() {
    use Reason::*;
    for policy in [HostPolicy::None, HostPolicy::Pinned, HostPolicy::X86Kvm, HostPolicy::SevKvm] {
        let meant = [Initiator, Running, Preempted, Halted, InHost, MidAccess, InHost].map(Some);
        assert_eq!(reasons(policy)[..7], meant, "{policy}");
        assert_eq!(reasons(policy)[7], None);
    }
}

#[test]
fn a_broadcast_leaves_targets_alone_unless_they_are_mid_access() {
    use Reason::*;
    let reached = BroadcastReaches;
    let meant = [Initiator, reached, reached, reached, reached, MidAccess, reached].map(Some);
    assert_eq!(reasons(HostPolicy::Arm64Kvm)[..7], meant);
}

#[test]
fn a_footprint_excuses_targets_that_do_not_run() {
    use Reason::*;
    let off = UpgradeReaches;
    let meant = [Initiator, Running, off, off, off, MidAccess, HoldsNothing].map(Some);
    assert_eq!(reasons(HostPolicy::Footprint)[..7], meant);
    let off = LeftBehind;
    let meant = [Initiator, Running, off, off, off, MidAccess, HoldsNothing].map(Some);
    assert_eq!(reasons(HostPolicy::FootprintDeferred)[..7], meant);
}

fn upgrade(reach: Reach, initiator: u32, policy: HostPolicy) -> Upgrade {
    let (placement, footprints) = scene();
    *plan(&ask(reach), VcpuId(initiator), &placement, &footprints, policy).upgrade()
}

fn pcpus(ids: &[u32]) -> Upgrade {
    Upgrade::Pcpus(ids.iter().map(|id| PcpuId(*id)).collect())
}

#[test]
fn a_local_flush_is_carried_only_where_its_vcpu_left_entries() {
    assert_eq!(upgrade(Reach::Local, 0, HostPolicy::Footprint), pcpus(&[5]));
    assert_eq!(upgrade(Reach::Local, 1, HostPolicy::Footprint), Upgrade::None);
    let owed = Upgrade::AtReturn(CpuSet::only(VcpuId(0)));
    assert_eq!(upgrade(Reach::Local, 0, HostPolicy::FootprintDeferred), owed);
    assert_eq!(upgrade(Reach::Local, 1, HostPolicy::FootprintDeferred), Upgrade::None);
    assert_eq!(upgrade(Reach::Local, 1, HostPolicy::ForceBroadcast), Upgrade::Everywhere);
    assert_eq!(upgrade(Reach::Local, 0, HostPolicy::X86Kvm), Upgrade::None);
}

#[test]
fn a_wider_flush_is_carried_where_any_target_left_entries() {
    assert_eq!(upgrade(Reach::All, 0, HostPolicy::Footprint), pcpus(&[2, 3, 4, 5]));
    let two = Reach::Set([VcpuId(1), VcpuId(3)].into_iter().collect());
    assert_eq!(upgrade(two, 0, HostPolicy::Footprint), pcpus(&[3]));
}

#[test]
fn past_the_exact_limit_the_whole_footprint_is_taken() {
    let mut placement = Placement::new();
    let mut footprints = Footprints::new(vec![Footprint::default(); 100]);
    for vcpu in (0..100).map(VcpuId) {
        footprints.entered(vcpu, PcpuId(vcpu.0 + 200));
        footprints.left(vcpu);
        placement.set(vcpu, RunState::Preempted(PcpuId(vcpu.0 + 200)));
    }
    for (targets, reached) in [(16, 16), (17, 100)] {
        let ask = ask(Reach::Set(CpuSet::first(targets)));
        let plan = plan(&ask, VcpuId(99), &placement, &footprints, HostPolicy::Footprint);
        let Upgrade::Pcpus(pcpus) = plan.upgrade() else { panic!("pCPUs expected") };
        assert_eq!(pcpus.len(), reached);
    }
}

#[test]
fn only_a_broadcast_that_widens_says_so() {
    for policy in HostPolicy::ALL {
        let (placement, footprints) = scene();
        let plan = plan(&ask(Reach::Local), VcpuId(0), &placement, &footprints, policy);
        let meant = matches!(policy, HostPolicy::ForceBroadcast | HostPolicy::Arm64Kvm);
        assert_eq!(plan.widens_barrier(), meant, "{policy}");
    }
}

#[test]
fn a_broken_pin_is_flushed_and_reported() {
    let (_, mut footprints) = scene();
    let entry = |footprints: &Footprints<Rows>, vcpu, pcpu| {
        plan_entry(VcpuId(vcpu), PcpuId(pcpu), footprints, HostPolicy::Pinned)
    };
    assert_eq!(entry(&footprints, 1, 1).flush, EntryFlush::Nothing);
    let shared = EntryPlan { flush: EntryFlush::Vm, reason: EntryReason::PinBroken };
    assert_eq!(entry(&footprints, 6, 1), shared);
    assert_eq!(entry(&footprints, 1, 7), shared);
    assert_eq!(entry(&footprints, 6, 7).reason, EntryReason::Clean);
    footprints.entered(VcpuId(2), PcpuId(1));
    assert_eq!(entry(&footprints, 1, 1), shared);
    // Nobody can say who else ran on a pCPU that is not tracked.
    footprints.entered(VcpuId(6), PcpuId(5000));
    assert_eq!(entry(&footprints, 6, 5000), shared);
}

proptest! {
    #[test]
    fn every_target_has_one_reason_and_nobody_else_has_any(
        states in proptest::collection::vec(0_u8..6, 1..200), initiator in 0_u32..220,
        reach in 0_u8..3, ids in proptest::collection::vec(0_u32..220, 0..40),
        policy in 0..HostPolicy::ALL.len(),
    ) {
        let mut placement = Placement::new();
        let mut footprints = Footprints::new(vec![Footprint::default(); states.len()]);
        for (vcpu, state) in (0..).map(VcpuId).zip(&states) {
            let pcpu = PcpuId(vcpu.0 % 7);
            let state = match state {
                0 => RunState::Running(pcpu),
                1 => RunState::Preempted(pcpu),
                2 => RunState::Halted,
                3 => RunState::InHost { mid_access: false },
                4 => RunState::InHost { mid_access: true },
                _ => continue,
            };
            placement.set(vcpu, state);
            if vcpu.0.is_multiple_of(3) {
                footprints.entered(vcpu, pcpu);
            }
        }
        let reach = match reach {
            0 => Reach::Local,
            1 => Reach::Set(ids.into_iter().map(VcpuId).collect()),
            _ => Reach::All,
        };
        let initiator = VcpuId(initiator);
        let policy = HostPolicy::ALL[policy];
        let plan = plan(&ask(reach), initiator, &placement, &footprints, policy);
        let targets = reach.vcpus(initiator, placement.present());
        let mut seen = CpuSet::EMPTY;
        for reason in Reason::ALL {
            prop_assert!(plan.targets(reason).and(&seen).is_empty(), "{:?}", reason);
            seen = seen.or(&plan.targets(reason));
        }
        prop_assert_eq!(seen, targets);
        for vcpu in &targets {
            let reason = plan.reason(vcpu).expect("a target");
            prop_assert!(plan.at(reason.when()).contains(vcpu));
        }
    }
}
