//! The algorithms on vCPUs that run one after another. What depends on how accesses
//! interleave is left to loom (`tests/loom_shootdown.rs`).

mod machine;

use core::sync::atomic::Ordering::Relaxed;
use proptest::prelude::*;

use super::*;
use machine::{Machine, RULES, change};

const METHODS: [Method; 4] =
    [Method::Ipi, Method::KvmPv, Method::Doorbell, Method::DoorbellAdaptive];
const GEN_READS: [GenRead; 2] = [GenRead::WhenNeeded, GenRead::First];

/// `vcpus` vCPUs in mm 1 that have all read page 5.
fn busy(vcpus: u32, slots: u8, rules: Shootdown) -> Machine {
    let machine = Machine::new(vcpus, slots, rules);
    for vcpu in 0..vcpus {
        machine.switch(vcpu, 1);
        machine.read(vcpu, 5);
    }
    machine
}

#[test]
fn after_a_flush_nobody_uses_the_old_entry() {
    for method in METHODS {
        for gen_read in GEN_READS {
            for slots in [1, MAX_SLOTS] {
                let m = busy(70, slots, Shootdown { method, gen_read, ..RULES });
                m.change(1, 5, 1);
                assert_eq!(m.read(69, 5), 0, "the modelled TLB keeps entries");
                m.on(3, |m| m.rules.flush(m, &change(1, 5, 1, false)));
                assert!((0..70).all(|vcpu| m.read(vcpu, 5) == 1), "{method:?} {gen_read:?}");
            }
        }
    }
}

#[test]
fn begin_alone_flushes_nothing() {
    let m = busy(2, 1, RULES);
    m.change(1, 5, 1);
    let begun = m.on(0, |m| m.rules.begin(m, &change(1, 5, 1, false)));
    assert_eq!(begun.targets().len(), 1);
    assert_eq!((m.read(0, 5), m.read(1, 5)), (0, 0));
    m.on(0, |m| m.rules.finish(m, begun));
    assert_eq!((m.read(0, 5), m.read(1, 5)), (1, 1));
}

#[test]
fn a_lazy_vcpu_is_left_alone_and_catches_up_when_it_goes_on() {
    let m = busy(2, MAX_SLOTS, RULES);
    m.on(1, |m| m.rules.enter_lazy(m));
    m.change_and_flush(0, 1, 5, 1, false);
    assert_eq!(m.ipis.get(), 0);
    m.switch(1, 1);
    assert_eq!(m.read(1, 5), 1);
}

#[test]
fn a_lazy_vcpu_leaves_an_mm_whose_tables_are_freed() {
    let m = busy(2, MAX_SLOTS, RULES);
    m.on(1, |m| m.rules.enter_lazy(m));
    m.change_and_flush(0, 1, 5, 1, true);
    assert_eq!(m.ipis.get(), 1);
    assert_eq!(m.load(Word::LoadedMm(VcpuId(1)), Relaxed), u64::from(INIT_MM.0));
    m.switch(1, 1);
    assert_eq!(m.read(1, 5), 1);
}

#[test]
fn a_slot_that_missed_flushes_is_flushed_before_it_is_used_again() {
    let m = busy(2, MAX_SLOTS, RULES);
    m.switch(1, 2);
    m.change_and_flush(0, 1, 5, 1, false);
    assert_eq!(m.ipis.get(), 0);
    m.switch(1, 1);
    assert_eq!(m.read(1, 5), 1);
}

#[test]
fn a_slot_that_missed_nothing_keeps_its_entries() {
    let m = busy(1, MAX_SLOTS, RULES);
    m.switch(0, 2);
    m.change(1, 5, 1);
    m.switch(0, 1);
    // No flush was asked for, so the old entry may be, and here is, still there.
    assert_eq!(m.read(0, 5), 0);
}

#[test]
fn a_reused_slot_does_not_show_the_entries_of_the_mm_before() {
    let m = busy(1, MAX_SLOTS, RULES);
    m.change(7, 5, 1);
    // mm 7 comes to the slot that mm 1 had.
    (2..=7).for_each(|mm| m.switch(0, mm));
    assert_eq!(m.read(0, 5), 1);
}

#[test]
fn a_member_that_left_is_taken_out_of_the_mask_by_the_next_interrupt() {
    let m = busy(2, MAX_SLOTS, RULES);
    m.switch(1, 2);
    assert_eq!(m.load(Word::MmMask(MmId(1), 0), Relaxed), 0b11);
    m.change_and_flush(0, 1, 5, 1, true);
    assert_eq!(m.load(Word::MmMask(MmId(1), 0), Relaxed), 0b01);
}

#[test]
fn a_range_is_flushed_page_by_page_up_to_the_ceiling_and_whole_above_it() {
    let m = busy(1, 1, RULES);
    m.change_and_flush(0, 1, 0, 33, false);
    assert_eq!((m.page_flushes.get(), m.full_flushes.get()), (33, 0));
    m.change_and_flush(0, 1, 0, 34, false);
    assert_eq!((m.page_flushes.get(), m.full_flushes.get()), (33, 1));
}

#[test]
fn a_range_request_behind_another_change_flushes_everything() {
    let m = busy(2, 1, RULES);
    m.read(1, 6);
    // Two changes, of which vCPU 1 hears the later one first.
    m.change(1, 6, 1);
    let first = m.on(0, |m| m.rules.begin(m, &change(1, 6, 1, false)));
    m.change_and_flush(0, 1, 5, 1, false);
    assert_eq!((m.read(1, 5), m.read(1, 6)), (1, 1));
    m.on(0, |m| m.rules.finish(m, first));
    assert_eq!(m.page_flushes.get(), 0);
}

#[test]
fn a_request_that_is_already_covered_reads_the_generation_only_if_told_to() {
    for (gen_read, reads) in [(GenRead::WhenNeeded, 0), (GenRead::First, 2)] {
        let m = busy(2, 1, Shootdown { gen_read, ..RULES });
        let first = m.on(0, |m| m.rules.begin(m, &change(1, 6, 1, false)));
        m.change_and_flush(0, 1, 5, 1, false);
        m.generation_reads.set(0);
        m.on(0, |m| m.rules.finish(m, first));
        assert_eq!(m.generation_reads.get(), reads, "{gen_read:?}");
    }
}

#[test]
fn a_batch_reaches_vcpus_although_it_brings_no_generation() {
    for gen_read in GEN_READS {
        let m = busy(3, 1, Shootdown { gen_read, ..RULES });
        m.switch(2, 2);
        m.read(2, 7);
        let mut batch = Batch::default();
        m.on(0, |m| {
            m.change(1, 5, 1);
            batch.add(m, MmId(1));
            m.change(2, 7, 1);
            batch.add(m, MmId(2));
            batch.flush(m, &m.rules);
        });
        assert_eq!((m.read(0, 5), m.read(1, 5), m.read(2, 7)), (1, 1, 1));
    }
}

#[test]
fn one_interrupt_serves_all_senders_that_were_in_time() {
    let m = busy(3, 1, RULES);
    m.change(1, 5, 1);
    let a = m.on(0, |m| m.rules.begin(m, &change(1, 5, 1, false)));
    let b = m.on(1, |m| m.rules.begin(m, &change(1, 5, 1, false)));
    m.on(0, |m| transport::send(m, &a.request, &CpuSet::only(VcpuId(2))));
    m.on(1, |m| transport::send(m, &b.request, &CpuSet::only(VcpuId(2))));
    assert_eq!(m.ipis.get(), 1);
    m.take_interrupt(2);
    assert_eq!(m.read(2, 5), 1);
    for sender in [VcpuId(0), VcpuId(1)] {
        assert_eq!(m.load(Word::Owing(sender, 0), Relaxed), 0);
    }
}

#[test]
fn an_interrupt_in_the_middle_of_a_switch_is_served_at_its_end() {
    let m = busy(2, MAX_SLOTS, RULES);
    m.switch(1, 2);
    m.change(1, 5, 1);
    let begun = m.on(0, |m| m.rules.begin(m, &change(1, 5, 1, true)));
    m.on(0, |m| transport::send(m, &begun.request, begun.targets()));
    m.interrupt_next_load.set(true);
    m.switch(1, 1);
    // Served half way, it would have taken vCPU 1 out of the mask.
    assert_eq!(m.load(Word::MmMask(MmId(1), 0), Relaxed), 0b11);
    assert_eq!(m.load(Word::Owing(VcpuId(0), 0), Relaxed), 0);
    assert_eq!(m.read(1, 5), 1);
}

#[test]
fn an_interrupt_while_the_context_is_dropped_is_served_afterwards() {
    let m = busy(2, 1, RULES);
    m.on(1, |m| m.rules.enter_lazy(m));
    m.change(1, 5, 1);
    let begun = m.on(0, |m| m.rules.begin(m, &change(1, 5, 1, true)));
    m.on(0, |m| transport::send(m, &begun.request, begun.targets()));
    m.interrupt_next_load.set(true);
    m.on(1, |m| m.rules.drop_context(m));
    // Served half way, it would have left vCPU 1 with another mm than it says.
    assert_eq!(m.load(Word::Owing(VcpuId(0), 0), Relaxed), 0);
    assert_eq!(m.load(Word::LoadedMm(VcpuId(1)), Relaxed), u64::from(m.loaded(1).0.0));
}

#[test]
fn a_preempted_target_is_flagged_and_flushes_before_it_runs() {
    let m = busy(3, 1, Shootdown { method: Method::KvmPv, ..RULES });
    m.preempt(1);
    m.change(1, 5, 1);
    m.on(0, |m| m.rules.flush(m, &change(1, 5, 1, false)));
    assert_eq!(m.ipis.get(), 1, "only vCPU 2 runs");
    m.resume(1);
    assert_eq!((m.read(1, 5), m.read(2, 5)), (1, 1));
}

#[test]
fn a_target_flagged_twice_needs_no_interrupt_either() {
    let m = busy(2, 1, Shootdown { method: Method::KvmPv, ..RULES });
    m.preempt(1);
    for version in 1..=2 {
        m.change(1, 5, 1);
        m.on(0, |m| m.rules.flush(m, &change(1, 5, 1, false)));
        assert_eq!((m.ipis.get(), m.newest(1, 5)), (0, version));
    }
    m.resume(1);
    assert_eq!(m.read(1, 5), 2);
}

#[test]
fn a_doorbell_is_rung_once_and_flushes_the_initiator_too() {
    let m = busy(9, 1, Shootdown { method: Method::Doorbell, ..RULES });
    m.change_and_flush(4, 1, 5, 1, false);
    assert_eq!((m.rings.get(), m.ipis.get()), (1, 0));
    assert_eq!((m.page_flushes.get(), m.full_flushes.get()), (0, 0));
    assert_eq!(m.read(4, 5), 1);
}

#[test]
fn a_doorbell_with_nobody_to_tell_is_not_rung() {
    let m = busy(1, 1, Shootdown { method: Method::Doorbell, ..RULES });
    m.change_and_flush(0, 1, 5, 1, false);
    assert_eq!((m.rings.get(), m.read(0, 5)), (0, 1));
}

#[test]
fn a_host_that_refuses_is_replaced_by_interrupts() {
    let m = busy(3, 1, Shootdown { method: Method::Doorbell, ..RULES });
    m.host_refuses.set(true);
    m.change_and_flush(0, 1, 5, 1, false);
    assert_eq!((m.rings.get(), m.ipis.get()), (1, 2));
    assert!((0..3).all(|vcpu| m.read(vcpu, 5) == 1));
}

#[test]
fn the_adaptive_doorbell_interrupts_only_who_answers_at_once() {
    let m = busy(4, 1, Shootdown { method: Method::DoorbellAdaptive, ..RULES });
    m.quick.borrow_mut().insert(2);
    m.change_and_flush(0, 1, 5, 1, false);
    assert_eq!((m.rings.get(), m.ipis.get()), (1, 1));
    m.quick.borrow_mut().extend([1, 3]);
    m.change_and_flush(0, 1, 5, 1, false);
    assert_eq!((m.rings.get(), m.ipis.get()), (1, 4));
    assert!((0..4).all(|vcpu| m.read(vcpu, 5) == 2));
}

/// One step of a random history.
#[derive(Clone, Copy, Debug)]
enum Step {
    Switch { vcpu: u32, mm: u32 },
    Lazy { vcpu: u32 },
    Read { vcpu: u32, page: u64 },
    Flush { vcpu: u32, mm: u32, page: u64, pages: u64, freed: bool },
    Batch { vcpu: u32, page: u64 },
    Preempt { vcpu: u32 },
    Resume { vcpu: u32 },
}

const VCPUS: u32 = 3;
const MMS: u32 = 3;

fn step() -> impl Strategy<Value = Step> {
    let (vcpu, mm, page) = (0..VCPUS, 1..=MMS, 0_u64..3);
    let flush = (vcpu.clone(), mm.clone(), page.clone(), 0_u64..4, any::<bool>());
    prop_oneof![
        2 => (vcpu.clone(), mm).prop_map(|(vcpu, mm)| Step::Switch { vcpu, mm }),
        1 => vcpu.clone().prop_map(|vcpu| Step::Lazy { vcpu }),
        4 => (vcpu.clone(), page.clone()).prop_map(|(vcpu, page)| Step::Read { vcpu, page }),
        3 => flush.prop_map(|(vcpu, mm, page, pages, freed)| Step::Flush {
            vcpu, mm, page, pages, freed
        }),
        1 => (vcpu.clone(), page).prop_map(|(vcpu, page)| Step::Batch { vcpu, page }),
        1 => vcpu.clone().prop_map(|vcpu| Step::Preempt { vcpu }),
        1 => vcpu.prop_map(|vcpu| Step::Resume { vcpu }),
    ]
}

/// Performs a step; a vCPU that executes is on its pCPU.
fn perform(m: &Machine, step: Step) {
    match step {
        Step::Switch { vcpu, mm } => {
            m.resume(vcpu);
            m.switch(vcpu, mm);
        }
        Step::Lazy { vcpu } => {
            m.resume(vcpu);
            m.on(vcpu, |m| m.rules.enter_lazy(m));
        }
        // Also a lazy vCPU may fill its TLB, by speculation.
        Step::Read { vcpu, page } if !m.is_preempted(vcpu) => drop(m.read(vcpu, page)),
        Step::Read { .. } => (),
        Step::Flush { vcpu, mm, page, pages, freed } => {
            m.resume(vcpu);
            m.change(mm, page, if pages == 0 { 3 } else { pages });
            m.on(vcpu, |m| m.rules.flush(m, &change(mm, page, pages, freed)));
        }
        Step::Batch { vcpu, page } => {
            m.resume(vcpu);
            let mut batch = Batch::default();
            m.on(vcpu, |m| {
                for mm in 1..=MMS {
                    m.change(mm, page, 1);
                    batch.add(m, MmId(mm));
                }
                batch.flush(m, &m.rules);
            });
        }
        Step::Preempt { vcpu } => m.preempt(vcpu),
        Step::Resume { vcpu } => m.resume(vcpu),
    }
}

/// After each step: who runs an mm sees its newest pages, and no generation of a slot
/// is ahead of its mm.
fn judge(m: &Machine) -> Result<(), TestCaseError> {
    for vcpu in 0..VCPUS {
        let id = VcpuId(vcpu);
        let mm = m.load(Word::LoadedMm(id), Relaxed) as u32;
        let runs = m.load(Word::Lazy(id), Relaxed) == 0 && !m.is_preempted(vcpu);
        prop_assert!(!runs || !m.is_interrupted(vcpu) || mm == INIT_MM.0);
        for page in (0..8).filter(|_| runs && mm != INIT_MM.0) {
            prop_assert_eq!(m.read(vcpu, page), m.newest(mm, page), "{} page {}", id, page);
        }
        for slot in 0..MAX_SLOTS {
            let holds = m.load(Word::SlotMm(id, slot), Relaxed);
            if let Some(mm) = holds.checked_sub(1) {
                let here = m.load(Word::SlotGen(id, slot), Relaxed);
                prop_assert!(here <= m.load(Word::MmGen(MmId(mm as u32)), Relaxed));
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn no_history_lets_a_running_vcpu_use_an_outdated_entry(
        steps in proptest::collection::vec(step(), 1..60),
        method in proptest::sample::select(METHODS.to_vec()),
        gen_read in proptest::sample::select(GEN_READS.to_vec()),
        slots in proptest::sample::select(vec![1, 2, MAX_SLOTS]),
        ceiling in 1_u64..4,
    ) {
        let full_flush_ceiling = PageCount(ceiling);
        let m = Machine::new(VCPUS, slots, Shootdown { method, gen_read, full_flush_ceiling });
        m.quick.borrow_mut().insert(1);
        for step in steps {
            perform(&m, step);
            judge(&m)?;
        }
    }
}
