//! The CPUID table of each vCPU: what KVM supports, with our topology, and with
//! the hypervisor leaves that the paravirtual mode offers.
//!
//! Plain values, built before the first entry.

pub use kvm_bindings::CpuId;
use kvm_bindings::kvm_cpuid_entry2;
use pv_tlb::abi::{doorbell, kvm};
use pv_tlb::addr::Gpa;
use pv_tlb::id::VcpuId;

use super::system::System;
use super::{Error, Result};

const MONITOR: u32 = 1 << 3;
const X2APIC: u32 = 1 << 21;
const TSC_DEADLINE: u32 = 1 << 24;
const HTT: u32 = 1 << 28;
/// KVM's features that take part in flushing or depend on steal time.
const FLUSH_FEATURES: u32 =
    kvm::FEATURE_STEAL_TIME | kvm::FEATURE_PV_TLB_FLUSH | kvm::FEATURE_PV_SEND_IPI;

/// The doorbell as CPUID tells it.
#[derive(Clone, Copy, Debug)]
pub struct DoorbellOffer {
    /// First shared page.
    pub pages: Gpa,
    /// Number of shared pages.
    pub count: u32,
    /// What the host keeps up to date.
    pub features: doorbell::Features,
}

/// What the guest is offered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Offer {
    /// KVM's own flush features, as far as this KVM has them.
    pub kvm_flush: bool,
    /// The doorbell.
    pub doorbell: Option<DoorbellOffer>,
}

/// The table that all vCPUs start from.
#[derive(Clone, Debug)]
pub struct CpuidTable {
    entries: Vec<kvm_cpuid_entry2>,
}

impl CpuidTable {
    /// What this KVM supports.
    ///
    /// # Errors
    /// If KVM cannot say.
    pub fn supported(system: &System) -> Result<Self> {
        Ok(Self { entries: system.supported_cpuid()?.as_slice().to_vec() })
    }

    /// EAX, EBX, ECX, EDX of a leaf's first subleaf, if it is there.
    #[must_use]
    pub fn leaf(&self, function: u32) -> Option<[u32; 4]> {
        let entry = self.entries.iter().find(|e| e.function == function)?;
        Some([entry.eax, entry.ebx, entry.ecx, entry.edx])
    }

    /// KVM's feature bits (EAX of leaf 0x40000001); 0 if it has none.
    #[must_use]
    pub fn kvm_features(&self) -> u32 {
        self.leaf(kvm::CPUID_FEATURES).map_or(0, |[eax, ..]| eax)
    }

    /// The table of vCPU `id` of `vcpus`.
    ///
    /// # Errors
    /// If the table grows beyond what KVM takes.
    pub fn for_vcpu(&self, id: VcpuId, vcpus: u32, offer: &Offer) -> Result<CpuId> {
        let mut entries: Vec<_> =
            self.entries.iter().filter(|e| !matches!(e.function, 0xb | 0x1f)).copied().collect();
        for entry in &mut entries {
            match entry.function {
                0x1 => leaf_1(entry, id, vcpus),
                0x4 => leaf_4(entry, vcpus),
                0x8000_0008 => entry.ecx = (entry.ecx & !0xf0ff) | (vcpus - 1).min(0xff),
                kvm::CPUID_FEATURES if !offer.kvm_flush => entry.eax &= !FLUSH_FEATURES,
                _ => {}
            }
        }
        entries.extend(topology(id, vcpus));
        if let Some(doorbell) = &offer.doorbell {
            entries.extend(doorbell_leaves(doorbell));
        }
        let refused = |e| Error::of(format!("build the CPUID table: {e:?}"));
        CpuId::from_entries(&entries)
            .map_err(|e| refused(e)(std::io::Error::from(std::io::ErrorKind::InvalidInput)))
    }
}

fn leaf(function: u32, index: u32, [eax, ebx, ecx, edx]: [u32; 4]) -> kvm_cpuid_entry2 {
    const INDEXED: u32 = kvm_bindings::KVM_CPUID_FLAG_SIGNIFCANT_INDEX;
    let flags = if function < 0x4000_0000 { INDEXED } else { 0 };
    kvm_cpuid_entry2 { function, index, flags, eax, ebx, ecx, edx, ..Default::default() }
}

fn leaf_1(entry: &mut kvm_cpuid_entry2, id: VcpuId, vcpus: u32) {
    let count = vcpus.next_power_of_two().min(255);
    entry.ebx = (entry.ebx & 0xffff) | (id.0.min(255) << 24) | (count << 16);
    // Linux avoids paravirtual flushes where it may use MWAIT, and KVM does not
    // run MWAIT for a guest that shares its pCPU.
    entry.ecx = (entry.ecx & !MONITOR) | X2APIC | TSC_DEADLINE;
    entry.edx = if vcpus > 1 { entry.edx | HTT } else { entry.edx & !HTT };
}

fn leaf_4(entry: &mut kvm_cpuid_entry2, vcpus: u32) {
    // One thread per core, each cache private to its core, one package.
    let cores = (vcpus.next_power_of_two() - 1).min(0x3f);
    entry.eax = (entry.eax & 0x3fff) | (cores << 26);
}

/// Leaf 0xb: one thread per core, all cores in one package.
fn topology(id: VcpuId, vcpus: u32) -> [kvm_cpuid_entry2; 3] {
    const THREADS: u32 = 1 << 8;
    const CORES: u32 = 2 << 8;
    let shift = vcpus.next_power_of_two().trailing_zeros();
    [
        leaf(0xb, 0, [0, 1, THREADS, id.0]),
        leaf(0xb, 1, [shift, vcpus, 1 | CORES, id.0]),
        leaf(0xb, 2, [0, 0, 2, id.0]),
    ]
}

fn doorbell_leaves(offer: &DoorbellOffer) -> [kvm_cpuid_entry2; 3] {
    let [ebx, ecx, edx] = doorbell::SIGNATURE;
    let stride = doorbell::PAGE_STRIDE as u32;
    let (low, high) = (offer.pages.0 as u32, (offer.pages.0 >> 32) as u32);
    [
        leaf(doorbell::CPUID_SIGNATURE, 0, [doorbell::CPUID_PAGES, ebx, ecx, edx]),
        leaf(
            doorbell::CPUID_FEATURES,
            0,
            [doorbell::VERSION, u32::from(doorbell::PORT), offer.features.bits(), offer.count],
        ),
        leaf(doorbell::CPUID_PAGES, 0, [low, high, stride, 0]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> CpuidTable {
        let features = leaf(kvm::CPUID_FEATURES, 0, [0x0100_7efb, 0, 0, 0]);
        CpuidTable { entries: vec![leaf(1, 0, [0, 0, MONITOR, 0]), features] }
    }

    fn find(built: &CpuId, function: u32, index: u32) -> Option<[u32; 4]> {
        let entry = built.as_slice().iter().find(|e| e.function == function && e.index == index)?;
        Some([entry.eax, entry.ebx, entry.ecx, entry.edx])
    }

    #[test]
    fn off_hides_every_flush_feature_and_kvm_mode_keeps_them() {
        let off = table().for_vcpu(VcpuId(0), 2, &Offer::default()).expect("table");
        let [eax, ..] = find(&off, kvm::CPUID_FEATURES, 0).expect("leaf");
        assert_eq!(eax & FLUSH_FEATURES, 0);
        assert_eq!(eax | FLUSH_FEATURES, 0x0100_7efb);
        let kvm_mode = Offer { kvm_flush: true, doorbell: None };
        let on = table().for_vcpu(VcpuId(0), 2, &kvm_mode).expect("table");
        assert_eq!(find(&on, kvm::CPUID_FEATURES, 0).map(|l| l[0]), Some(0x0100_7efb));
        assert_eq!(find(&on, doorbell::CPUID_SIGNATURE, 0), None);
    }

    #[test]
    fn each_vcpu_has_its_own_apic_id_and_sees_all_cores() {
        for vcpus in [1, 2, 3, 64, 256] {
            let last = VcpuId(vcpus - 1);
            let built = table().for_vcpu(last, vcpus, &Offer::default()).expect("table");
            let [shift, cores, _, x2apic_id] = find(&built, 0xb, 1).expect("leaf");
            assert_eq!((cores, x2apic_id), (vcpus, last.0));
            assert_eq!(last.0 >> shift, 0, "all in one package");
            let [_, ebx, ecx, _] = find(&built, 1, 0).expect("leaf");
            assert_eq!(ebx >> 24, last.0);
            assert_eq!(ecx & MONITOR, 0);
        }
    }

    #[test]
    fn the_doorbell_leaves_carry_port_pages_and_version() {
        let doorbell = DoorbellOffer {
            pages: Gpa(0x1_2345_6000),
            count: 7,
            features: doorbell::Features::RUN_HINT,
        };
        let offer = Offer { kvm_flush: false, doorbell: Some(doorbell) };
        let built = table().for_vcpu(VcpuId(0), 7, &offer).expect("table");
        assert_eq!(
            find(&built, doorbell::CPUID_FEATURES, 0),
            Some([doorbell::VERSION, u32::from(doorbell::PORT), 1, 7])
        );
        assert_eq!(find(&built, doorbell::CPUID_PAGES, 0), Some([0x2345_6000, 1, 4096, 0]));
    }
}
