//! What a decision costs at 8, 64 and 1,024 vCPUs.
//!
//! Goals for one decision: 100 ns, 200 ns and 1 µs. Every vCPU has run on two pCPUs,
//! so that under the footprint policies each target has left entries somewhere; half
//! of the vCPUs run, the others are preempted.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use pv_tlb::CpuSet;
use pv_tlb::footprint::{Footprint, Footprints};
use pv_tlb::id::{PcpuId, VcpuId};
use pv_tlb::invalidation::{Invalidation, Reach};
use pv_tlb::placement::{Placement, RunState};
use pv_tlb::plan::{HostPolicy, plan, plan_entry};

const SIZES: [u32; 3] = [8, 64, 1024];

type Rows = Box<[Footprint]>;

fn scene(vcpus: u32) -> (Placement, Footprints<Rows>) {
    let mut placement = Placement::new();
    let rows = vec![Footprint::default(); vcpus as usize].into_boxed_slice();
    let mut footprints = Footprints::new(rows);
    for vcpu in (0..vcpus).map(VcpuId) {
        let (before, now) = (PcpuId((vcpu.0 + 1) % vcpus), PcpuId(vcpu.0));
        footprints.entered(vcpu, before);
        footprints.entered(vcpu, now);
        if vcpu.0.is_multiple_of(2) {
            placement.set(vcpu, RunState::Running(now));
        } else {
            footprints.left(vcpu);
            placement.set(vcpu, RunState::Preempted(now));
        }
    }
    (placement, footprints)
}

fn decisions(c: &mut Criterion) {
    let policies = [
        HostPolicy::X86Kvm,
        HostPolicy::Arm64Kvm,
        HostPolicy::Footprint,
        HostPolicy::FootprintDeferred,
    ];
    for policy in policies {
        let mut group = c.benchmark_group(format!("plan/{policy}"));
        for vcpus in SIZES {
            let (placement, footprints) = scene(vcpus);
            let few = Reach::Set([0, vcpus / 2, vcpus - 1].into_iter().map(VcpuId).collect());
            let most = Reach::Set(CpuSet::first(vcpus).without(VcpuId(3)));
            for (name, reach) in
                [("local", Reach::Local), ("three", few), ("most", most), ("all", Reach::All)]
            {
                let ask = Invalidation { reach, ..Invalidation::EVERYTHING };
                let id = BenchmarkId::new(name, vcpus);
                group.bench_with_input(id, &ask, |b, ask| {
                    b.iter(|| {
                        let initiator = black_box(VcpuId(0));
                        plan(black_box(ask), initiator, &placement, &footprints, policy)
                    });
                });
            }
        }
        group.finish();
    }
}

fn entries(c: &mut Criterion) {
    let mut group = c.benchmark_group("plan_entry");
    for vcpus in SIZES {
        let (_, footprints) = scene(vcpus);
        for policy in [HostPolicy::SevKvm, HostPolicy::Footprint] {
            let id = BenchmarkId::new(policy.name(), vcpus);
            group.bench_with_input(id, &policy, |b, policy| {
                b.iter(|| {
                    plan_entry(black_box(VcpuId(1)), black_box(PcpuId(1)), &footprints, *policy)
                });
            });
        }
    }
    group.finish();
}

fn events(c: &mut Criterion) {
    let mut group = c.benchmark_group("footprint");
    for vcpus in SIZES {
        let (_, mut footprints) = scene(vcpus);
        group.bench_function(BenchmarkId::new("leave_and_enter", vcpus), |b| {
            b.iter(|| {
                footprints.left(black_box(VcpuId(1)));
                footprints.entered(black_box(VcpuId(1)), black_box(PcpuId(1)));
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(std::time::Duration::from_millis(300))
        .measurement_time(std::time::Duration::from_secs(1));
    targets = decisions, entries, events
}
criterion_main!(benches);
