//! A kick is never lost, whatever the target is doing: on real KVM, against a guest
//! that spins (long stays in KVM_RUN) and one that exits all the time (every kick
//! falls close to an entry).

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pv_tlb::CpuSet;
use pv_tlb::abi::stress::{BootParams, IMAGE_GPA};
use pv_tlb::addr::Gpa;
use pv_tlb::id::{PcpuId, VcpuId};
use pv_tlb::invalidation::{Invalidation, Reach};
use pvtlb::boot::{Kernel, Machine, MachineConfig, Offered, tables};
use pvtlb::devices::serial::ConsoleTarget;
use pvtlb::flush::entry::EntryFlush;
use pvtlb::flush::execute::execute;
use pvtlb::flush::rule::{Completion, CompletionChoice};
use pvtlb::kvm::affinity;
use pvtlb::kvm::cpuid::{CpuidTable, Offer};
use pvtlb::kvm::exit::Exit;
use pvtlb::kvm::kick::{Kick, Kicked};
use pvtlb::kvm::system::System;
use pvtlb::kvm::vcpu::Vcpu;
use pvtlb::memory::GuestMemory;
use pvtlb::placement::pins::Pins;
use support::{Scratch, elf, kvm};

/// jmp to itself.
const SPIN: &[u8] = &[0xeb, 0xfe];
/// out 0x80, al; jmp back.
const EXIT_ALL_THE_TIME: &[u8] = &[0xe6, 0x80, 0xeb, 0xfc];
const KICKS: u32 = 5_000;

/// Asks vCPU 0 to flush, again and again; a lost kick shows as a late vCPU.
fn every_request_is_answered(name: &str, code: &[u8], pcpus: BTreeSet<PcpuId>) {
    let Some(system) = kvm(name) else { return };
    let image = Scratch::file(name, &elf(code));
    let config = MachineConfig {
        vcpus: 1,
        memory_bytes: 16 << 20,
        offered: Offered::Off,
        kernel: Kernel::File(image.path().to_owned()),
        params: BootParams::default(),
        pins: Pins::anywhere_in(pcpus),
        console: ConsoleTarget::Off,
        completion: Completion::new(CompletionChoice::Ack, false),
        entry: EntryFlush::StealFlushBit,
        deadline: Duration::from_secs(20),
    };
    let running = Machine::create(&system, &config).expect("create").start().expect("start");
    let target = VcpuId(0);
    let ask = Invalidation { reach: Reach::Set(CpuSet::only(target)), ..Invalidation::EVERYTHING };
    let stop = AtomicBool::new(false);
    let mut acks = 0;
    while acks < KICKS {
        // The initiator is no vCPU of this VM, so the target is never left out.
        let outcome = execute(&running.shared().site, VcpuId(9), &ask, &stop).expect("answered");
        assert_eq!(outcome.by_ack + outcome.deferred_in_host, 1);
        acks += outcome.by_ack;
        if outcome.by_ack == 0 {
            // In the host, or not started yet: let it come to its next entry.
            std::thread::yield_now();
        }
    }
    let metrics = running.stop();
    assert!(metrics[0].flush.served >= u64::from(KICKS), "the target flushed for each ack");
}

#[test]
fn a_kick_reaches_a_vcpu_that_never_exits_by_itself() {
    let pcpus = affinity::allowed().expect("affinity");
    every_request_is_answered("kick_spin", SPIN, pcpus);
}

#[test]
fn a_kick_before_entry_is_not_lost() {
    let pcpus = affinity::allowed().expect("affinity");
    every_request_is_answered("kick_entry", EXIT_ALL_THE_TIME, pcpus);
}

#[test]
fn a_kick_before_entry_is_not_lost_on_one_pcpu() {
    let one = affinity::allowed().expect("affinity").into_iter().take(1).collect();
    every_request_is_answered("kick_one_pcpu", EXIT_ALL_THE_TIME, one);
}

/// A vCPU outside any monitor loop, about to run `code`.
fn bare_vcpu(system: &System, code: &[u8]) -> Vcpu {
    let memory = GuestMemory::new(16 << 20).expect("memory");
    let vm = Arc::new(system.create_vm().expect("vm"));
    vm.create_irqchip().expect("irqchip");
    for region in memory.regions() {
        vm.add_slot(region).expect("slot");
    }
    memory.write(Gpa(IMAGE_GPA), code).expect("code");
    let entry = tables::write(&memory, IMAGE_GPA).expect("tables");
    let vcpu = vm.create_vcpu(VcpuId(0)).expect("vcpu");
    let table = CpuidTable::supported(system).expect("cpuid");
    let cpuid = table.for_vcpu(VcpuId(0), 1, &Offer::default()).expect("cpuid");
    vcpu.set_cpuid(&cpuid).expect("cpuid");
    vcpu.enter_long_mode(&entry).expect("long mode");
    vcpu
}

/// The race made certain: the kick falls exactly between the last look and KVM_RUN.
#[test]
fn a_signal_handled_just_before_kvm_run_still_ends_it() {
    let Some(system) = kvm("kick_just_before_run") else { return };
    let mut vcpu = bare_vcpu(&system, SPIN);
    let kick = Arc::new(Kick::default());
    vcpu.attach(&kick).expect("attach");
    // Turns a lost kick into a failure instead of a hang.
    let rescued = Arc::new(AtomicBool::new(false));
    let (done, finished) = std::sync::mpsc::channel::<()>();
    let rescuer = {
        let (kick, rescued) = (Arc::clone(&kick), Arc::clone(&rescued));
        std::thread::spawn(move || {
            if finished.recv_timeout(Duration::from_secs(10)).is_err() {
                rescued.store(true, Ordering::SeqCst);
                kick.kick_again();
            }
        })
    };
    for _ in 0..100 {
        kick.rearm();
        // To the own thread: the handler has run when this returns.
        assert_eq!(kick.kick(), Kicked::Sent);
        assert_eq!(vcpu.run().expect("run"), Exit::Interrupted);
        assert!(!rescued.load(Ordering::SeqCst), "the kick was lost");
    }
    vcpu.detach(&kick);
    done.send(()).expect("the rescuer waits");
    rescuer.join().expect("rescuer");
}
