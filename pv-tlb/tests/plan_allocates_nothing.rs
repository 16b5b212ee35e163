//! The decisions allocate nothing, at any size and under any policy.
//!
//! `pv-tlb` has no allocator to call: it is `no_std` without `alloc`. This test
//! counts all the same, so that neither may come in unseen.

use pv_tlb::CpuSet;
use pv_tlb::footprint::{Footprint, Footprints};
use pv_tlb::id::{PcpuId, VcpuId};
use pv_tlb::invalidation::{Invalidation, Reach};
use pv_tlb::placement::{Placement, RunState};
use pv_tlb::plan::{HostPolicy, plan, plan_entry};

#[test]
fn plans_and_entries_allocate_nothing() {
    for vcpus in [8, 64, 1024] {
        let mut placement = Placement::new();
        let mut footprints =
            Footprints::new(vec![Footprint::default(); vcpus as usize].into_boxed_slice());
        let counted = allocation_counter::measure(|| {
            for vcpu in (0..vcpus).map(VcpuId) {
                footprints.entered(vcpu, PcpuId(vcpu.0 % 5));
                footprints.left(vcpu);
                footprints.entered(vcpu, PcpuId(vcpu.0));
                placement.set(vcpu, RunState::Running(PcpuId(vcpu.0)));
            }
            for policy in HostPolicy::ALL {
                for reach in [Reach::Local, Reach::Set(CpuSet::first(vcpus / 2)), Reach::All] {
                    let ask = Invalidation { reach, ..Invalidation::EVERYTHING };
                    let plan = plan(&ask, VcpuId(1), &placement, &footprints, policy);
                    assert!(plan.reason(VcpuId(1)).is_some());
                }
                let _ = plan_entry(VcpuId(1), PcpuId(3), &footprints, policy);
            }
            footprints.flushed(VcpuId(2));
            footprints.flushed_vm_on(PcpuId(3));
        });
        assert_eq!(counted.count_total, 0, "{vcpus} vCPUs");
    }
    // The counter does count.
    assert!(allocation_counter::measure(|| drop(Box::new(VcpuId(0)))).count_total > 0);
}
