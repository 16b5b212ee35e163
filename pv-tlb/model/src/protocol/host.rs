//! What the host does with a vCPU between its own steps.
//!
//! For KVM's preempted byte: the host takes a vCPU off its pCPU and says so; it
//! brings the thread back, exchanges the byte with 0, flushes if the flag was in it,
//! and enters. For the doorbell: a vCPU leaves the guest when signalled or for
//! reasons of its own; before it enters again its thread says that it runs, then
//! looks at its inbox, and stays out if a signal is pending.

use pv_tlb::abi::kvm::{FLUSH_TLB, PREEMPTED};
use pv_tlb::id::VcpuId;
use pv_tlb::shootdown::Word;

use super::memory::cell;
use super::mutant::Mutant;
use super::setup::Host;
use super::state::{Place, State, Vcpu};

/// True if the host can move vCPU `v` on.
pub(super) fn can_step(host: Host, vcpu: &Vcpu) -> bool {
    match (host, vcpu.place) {
        (Host::Absent, _) => false,
        (Host::KvmPv, Place::Guest) => vcpu.preemptions > 0,
        (Host::Doorbell, Place::Guest) => !vcpu.in_call && (vcpu.kicked || vcpu.preemptions > 0),
        _ => true,
    }
}

/// True if the host can take the vCPU off again before it has entered the guest.
pub(super) fn can_retreat(host: Host, vcpu: &Vcpu) -> bool {
    host == Host::KvmPv
        && vcpu.preemptions > 0
        && matches!(vcpu.place, Place::Loaded | Place::Ready)
}

/// The one way forward from where the vCPU is.
pub(super) fn step(host: Host, mutant: Option<Mutant>, state: &mut State, v: usize) {
    match host {
        Host::Absent => {}
        Host::KvmPv => kvm_step(mutant, state, v),
        Host::Doorbell => monitor_step(mutant, &mut state.vcpus[v]),
    }
}

/// The vCPU is preempted before it has entered the guest.
pub(super) fn retreat(mutant: Option<Mutant>, state: &mut State, v: usize) {
    let byte = &mut state.cells[usize::from(cell(Word::Preempted(VcpuId(v as u32))))];
    let vcpu = &mut state.vcpus[v];
    // The host writes only if it has cleared the byte since it wrote last.
    if vcpu.place == Place::Ready || mutant == Some(Mutant::HostOverwritesFlag) {
        *byte = PREEMPTED;
    }
    vcpu.preemptions -= 1;
    vcpu.place = Place::Off;
}

fn kvm_step(mutant: Option<Mutant>, state: &mut State, v: usize) {
    let byte = &mut state.cells[usize::from(cell(Word::Preempted(VcpuId(v as u32))))];
    let vcpu = &mut state.vcpus[v];
    vcpu.place = match vcpu.place {
        Place::Guest => {
            vcpu.preemptions -= 1;
            *byte = PREEMPTED;
            Place::Off
        }
        Place::Off => Place::Loaded,
        Place::Loaded if mutant == Some(Mutant::HostLoadsThenStores) => Place::ByteRead(*byte),
        Place::Loaded => {
            let old = std::mem::take(byte);
            clear(mutant, vcpu, old)
        }
        Place::ByteRead(old) => {
            *byte = 0;
            clear(mutant, vcpu, old)
        }
        Place::Ready | Place::InHost | Place::Entering | Place::Armed => Place::Guest,
    };
}

fn clear(mutant: Option<Mutant>, vcpu: &mut Vcpu, old: u8) -> Place {
    if old & FLUSH_TLB != 0 {
        flush(mutant, vcpu);
    }
    Place::Ready
}

fn monitor_step(mutant: Option<Mutant>, vcpu: &mut Vcpu) {
    let looks_first = mutant == Some(Mutant::InboxBeforeRunning);
    match vcpu.place {
        Place::Guest => {
            if !vcpu.kicked {
                vcpu.preemptions -= 1;
            }
            leave(vcpu);
        }
        Place::InHost => {
            match looks_first {
                true => take_inbox(mutant, vcpu),
                false => vcpu.says_running = true,
            }
            vcpu.place = Place::Entering;
        }
        Place::Entering => {
            match looks_first {
                true => vcpu.says_running = true,
                false => take_inbox(mutant, vcpu),
            }
            vcpu.place = Place::Armed;
        }
        Place::Armed if vcpu.kicked => leave(vcpu),
        _ => vcpu.place = Place::Guest,
    }
}

/// Comes back to the monitor; whatever signal was pending is taken.
pub(super) fn leave(vcpu: &mut Vcpu) {
    vcpu.kicked = false;
    vcpu.says_running = false;
    vcpu.place = Place::InHost;
}

fn take_inbox(mutant: Option<Mutant>, vcpu: &mut Vcpu) {
    if std::mem::take(&mut vcpu.inbox) != 0 {
        flush(mutant, vcpu);
    }
}

fn flush(mutant: Option<Mutant>, vcpu: &mut Vcpu) {
    match mutant {
        Some(Mutant::HostFlushesLate) => vcpu.owed = true,
        _ => vcpu.drop_slot(None, None),
    }
}
