//! KVM's own paravirtual flush ABI (Linux `arch/x86/include/uapi/asm/kvm_para.h`
//! and `Documentation/virt/kvm/x86/{cpuid,msr}.rst`).
//!
//! The byte [`StealTime::preempted`] has two writers. The host writes
//! [`PREEMPTED`] when it takes the vCPU off its pCPU at an instruction boundary,
//! and exchanges the byte with 0 before the next entry, flushing if [`FLUSH_TLB`]
//! was in it. Everybody else may only compare-and-swap 1 to 3: the host's store of
//! 1 would otherwise erase the request.

use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// Leaf whose EBX, ECX, EDX spell [`SIGNATURE`]; EAX is the highest KVM leaf.
pub const CPUID_SIGNATURE: u32 = 0x4000_0000;
/// Leaf with the feature bits in EAX and hints in EDX.
pub const CPUID_FEATURES: u32 = 0x4000_0001;
/// "KVMKVMKVM" and three NULs, little endian, in EBX, ECX, EDX.
pub const SIGNATURE: [u32; 3] = [0x4b4d_564b, 0x564b_4d56, 0x0000_004d];

/// EAX bit 5: the steal-time record may be enabled.
pub const FEATURE_STEAL_TIME: u32 = 1 << 5;
/// EAX bit 7: pv spinlock wake-up.
pub const FEATURE_PV_UNHALT: u32 = 1 << 7;
/// EAX bit 9: a preempted vCPU may be flushed through its `preempted` byte.
pub const FEATURE_PV_TLB_FLUSH: u32 = 1 << 9;
/// EAX bit 11: hypercall that sends an IPI to many vCPUs.
pub const FEATURE_PV_SEND_IPI: u32 = 1 << 11;
/// EAX bit 13: hypercall that yields to a preempted vCPU.
pub const FEATURE_PV_SCHED_YIELD: u32 = 1 << 13;
/// EDX bit 0: vCPUs are never preempted for long; a guest then avoids PV flush.
pub const HINT_REALTIME: u32 = 1 << 0;

/// `MSR_KVM_STEAL_TIME`: bits 63:6 the record's address, bit 0 enable.
pub const MSR_STEAL_TIME: u32 = 0x4b56_4d03;
/// Bit 0 of [`MSR_STEAL_TIME`].
pub const STEAL_TIME_ENABLE: u64 = 1;

/// `preempted` bit 0, `KVM_VCPU_PREEMPTED`: off its pCPU.
pub const PREEMPTED: u8 = 1 << 0;
/// `preempted` bit 1, `KVM_VCPU_FLUSH_TLB`: flush everything before the next entry.
pub const FLUSH_TLB: u8 = 1 << 1;

/// `struct kvm_steal_time`, 64 bytes, 64-byte aligned, written by KVM.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct StealTime {
    /// Nanoseconds the vCPU was runnable but not running. Host writes.
    pub steal: AtomicU64,
    /// Odd while the host is updating. Host writes.
    pub version: AtomicU32,
    /// Always 0.
    pub flags: AtomicU32,
    /// See the module text for who may write what.
    pub preempted: AtomicU8,
    pad: [u8; 47],
}

const _: () = {
    assert!(size_of::<StealTime>() == 64);
    assert!(offset_of!(StealTime, steal) == 0);
    assert!(offset_of!(StealTime, version) == 8);
    assert!(offset_of!(StealTime, flags) == 12);
    assert!(offset_of!(StealTime, preempted) == 16);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_spells_kvmkvmkvm() {
        let bytes: Vec<u8> = SIGNATURE.iter().flat_map(|w| w.to_le_bytes()).collect();
        assert_eq!(&bytes, b"KVMKVMKVM\0\0\0");
    }
}
