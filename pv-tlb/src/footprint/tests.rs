//! Footprints against the truth: what is kept is never less, and the summaries say
//! what the rows say.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

const VCPUS: u32 = 4;
/// The last one is too high for a set.
const PCPUS: [PcpuId; 4] = [PcpuId(0), PcpuId(1), PcpuId(1023), PcpuId(5000)];

#[derive(Clone, Copy, Debug)]
enum Event {
    Entered(VcpuId, PcpuId),
    Left(VcpuId),
    Flushed(VcpuId),
    FlushedOn(VcpuId, PcpuId),
    FlushedVmOn(PcpuId),
    Owe(VcpuId),
}

fn event() -> impl Strategy<Value = Event> {
    let vcpu = || (0..VCPUS).prop_map(VcpuId);
    let pcpu = || (0..PCPUS.len()).prop_map(|i| PCPUS[i]);
    prop_oneof![
        4 => (vcpu(), pcpu()).prop_map(|(v, p)| Event::Entered(v, p)),
        2 => vcpu().prop_map(Event::Left),
        1 => vcpu().prop_map(Event::Flushed),
        1 => (vcpu(), pcpu()).prop_map(|(v, p)| Event::FlushedOn(v, p)),
        1 => pcpu().prop_map(Event::FlushedVmOn),
        1 => vcpu().prop_map(Event::Owe),
    ]
}

/// Entries that exist if every vCPU makes one as soon as it can.
#[derive(Default)]
struct Truth {
    entries: BTreeSet<(VcpuId, PcpuId)>,
    on: [Option<PcpuId>; VCPUS as usize],
}

impl Truth {
    fn of(&self, vcpu: VcpuId) -> impl Iterator<Item = PcpuId> {
        self.entries.iter().filter(move |(v, _)| *v == vcpu).map(|(_, p)| *p)
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Entered(v, p) => self.on[v.index()] = Some(p),
            Event::Left(v) => self.on[v.index()] = None,
            Event::Flushed(v) => self.entries.retain(|(w, _)| *w != v),
            Event::FlushedOn(v, p) => _ = self.entries.remove(&(v, p)),
            Event::FlushedVmOn(p) => self.entries.retain(|(_, q)| *q != p),
            Event::Owe(_) => {}
        }
        for (v, on) in self.on.iter().enumerate() {
            self.entries.extend(on.map(|p| (VcpuId(v as u32), p)));
        }
    }
}

fn apply(footprints: &mut Footprints<[Footprint; VCPUS as usize]>, event: Event) {
    match event {
        Event::Entered(v, p) => footprints.entered(v, p),
        Event::Left(v) => footprints.left(v),
        Event::Flushed(v) => footprints.flushed(v),
        Event::FlushedOn(v, p) => footprints.flushed_on(v, p),
        Event::FlushedVmOn(p) => footprints.flushed_vm_on(p),
        Event::Owe(v) => footprints.owe(v),
    }
}

proptest! {
    // PROPTEST_CASES may ask for more.
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(2_000)))]

    #[test]
    fn any_order_of_events_keeps_the_true_footprint_on_tracked_pcpus(
        events in proptest::collection::vec(event(), 0..60),
    ) {
        let mut truth = Truth::default();
        let mut footprints = Footprints::new([Footprint::default(); VCPUS as usize]);
        for event in events {
            truth.apply(event);
            apply(&mut footprints, event);
            for vcpu in (0..VCPUS).map(VcpuId) {
                let kept: BTreeSet<_> =
                    footprints.of(vcpu).expect("a row").may_hold().iter().collect();
                let real: BTreeSet<_> = truth.of(vcpu).filter(|p| p.0 < MAX_CPUS).collect();
                // Neither less, which would be a bug, nor more, which would be a cost.
                prop_assert_eq!(kept, real, "{:?}: {}", event, vcpu);
            }
        }
    }

    #[test]
    fn the_summaries_say_what_the_rows_say(events in proptest::collection::vec(event(), 0..60)) {
        let mut footprints = Footprints::new([Footprint::default(); VCPUS as usize]);
        let mut last_ran = std::collections::BTreeMap::new();
        for event in events {
            apply(&mut footprints, event);
            if let Event::Entered(v, p) = event && p.0 < MAX_CPUS {
                last_ran.insert(p, v);
            }
        }
        let rows: Vec<_> = (0..VCPUS).map(|v| *footprints.of(VcpuId(v)).expect("a row")).collect();
        let mut union = PcpuSet::EMPTY;
        rows.iter().for_each(|row| row.add_left_behind(&mut union));
        prop_assert_eq!(*footprints.left_behind(), union);
        for (v, row) in rows.iter().enumerate() {
            let vcpu = VcpuId(v as u32);
            prop_assert_eq!(footprints.holding().contains(vcpu), !row.may_hold().is_empty());
            prop_assert_eq!(row.has_left(), !row.left_behind().is_empty());
            prop_assert_eq!(footprints.wandering().contains(vcpu), row.has_left());
        }
        for pcpu in PCPUS {
            prop_assert_eq!(footprints.last_ran(pcpu), last_ran.get(&pcpu).copied());
            let others = pcpu.0 >= MAX_CPUS || rows[1..].iter().any(|r| r.may_hold().contains(pcpu));
            prop_assert_eq!(footprints.others_may_hold(VcpuId(0), pcpu), others);
        }
    }
}

#[test]
fn a_debt_is_of_what_was_left_behind_and_ends_with_a_flush() {
    let mut footprints = Footprints::new([Footprint::default(); 1]);
    let vcpu = VcpuId(0);
    let owes = |footprints: &Footprints<[Footprint; 1]>| {
        [PcpuId(0), PcpuId(1)].map(|pcpu| footprints.of(vcpu).is_some_and(|row| row.owes(pcpu)))
    };
    footprints.entered(vcpu, PcpuId(0));
    footprints.owe(vcpu);
    assert_eq!(owes(&footprints), [false, false]);
    footprints.entered(vcpu, PcpuId(1));
    footprints.owe(vcpu);
    assert_eq!(owes(&footprints), [true, false]);
    footprints.left(vcpu);
    footprints.owe(vcpu);
    assert_eq!(owes(&footprints), [true, true]);
    footprints.flushed_vm_on(PcpuId(0));
    assert_eq!(owes(&footprints), [false, true]);
    footprints.flushed(vcpu);
    assert_eq!(owes(&footprints), [false, false]);
}

#[test]
fn where_a_vcpu_without_a_row_ran_others_may_always_hold() {
    let mut footprints = Footprints::new([Footprint::default(); 2]);
    for vcpu in [VcpuId(2), VcpuId(u32::MAX)] {
        assert!(footprints.of(vcpu).is_none());
        footprints.entered(vcpu, PcpuId(vcpu.0 % 5));
        footprints.left(vcpu);
        assert!(footprints.others_may_hold(VcpuId(0), PcpuId(vcpu.0 % 5)));
        assert!(footprints.others_may_hold(vcpu, PcpuId(vcpu.0 % 5)));
    }
    assert_eq!(footprints.last_ran(PcpuId(2)), Some(VcpuId(2)));
    assert_eq!(footprints.last_ran(PcpuId(0)), None);
    assert!(footprints.left_behind().is_empty());
    footprints.flushed_vm_on(PcpuId(u32::MAX));
}
