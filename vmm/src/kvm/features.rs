//! CPUID feature bits by name, and hiding or forcing single ones.
//!
//! Plain values. Names are those of Linux's /proc/cpuinfo and, for KVM's own bits, of
//! its `kvm_para.h`.

use kvm_bindings::{CpuId, kvm_cpuid_entry2};

/// Which register of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Register {
    Eax,
    Ebx,
    Ecx,
    Edx,
}
use Register::{Eax, Ebx, Ecx, Edx};

/// A feature bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Its name.
    pub name: &'static str,
    leaf: u32,
    register: Register,
    bit: u32,
}

const fn feature(name: &'static str, leaf: u32, register: Register, bit: u32) -> Feature {
    Feature { name, leaf, register, bit }
}

const KVM: u32 = pv_tlb::abi::kvm::CPUID_FEATURES;

/// KVM's features that take part in flushing and IPIs, in the order of reports.
pub const FLUSH: [Feature; 5] = [
    feature("pv_tlb_flush", KVM, Eax, 9),
    feature("steal_time", KVM, Eax, 5),
    feature("pv_send_ipi", KVM, Eax, 11),
    feature("pv_unhalt", KVM, Eax, 7),
    feature("pv_sched_yield", KVM, Eax, 13),
];

const OTHERS: &[Feature] = &[
    feature("kvmclock", KVM, Eax, 3),
    feature("kvmclock_old", KVM, Eax, 0),
    feature("kvmclock_stable", KVM, Eax, 24),
    feature("async_pf", KVM, Eax, 4),
    feature("async_pf_int", KVM, Eax, 14),
    feature("pv_eoi", KVM, Eax, 6),
    feature("poll_control", KVM, Eax, 12),
    feature("realtime_hint", KVM, Edx, 0),
    feature("hypervisor", 1, Ecx, 31),
    feature("x2apic", 1, Ecx, 21),
    feature("tsc_deadline_timer", 1, Ecx, 24),
    feature("monitor", 1, Ecx, 3),
    feature("pcid", 1, Ecx, 17),
    feature("xsave", 1, Ecx, 26),
    feature("avx", 1, Ecx, 28),
    feature("rdrand", 1, Ecx, 30),
    feature("pge", 1, Edx, 13),
    feature("mtrr", 1, Edx, 12),
    feature("pat", 1, Edx, 16),
    feature("invpcid", 7, Ebx, 10),
    feature("fsgsbase", 7, Ebx, 0),
    feature("avx2", 7, Ebx, 5),
    feature("smep", 7, Ebx, 7),
    feature("smap", 7, Ebx, 20),
    feature("avx512f", 7, Ebx, 16),
    feature("pku", 7, Ecx, 3),
    feature("la57", 7, Ecx, 16),
    feature("nx", 0x8000_0001, Edx, 20),
    feature("pdpe1gb", 0x8000_0001, Edx, 26),
    feature("svm", 0x8000_0001, Ecx, 2),
    feature("topoext", 0x8000_0001, Ecx, 22),
    feature("constant_tsc", 0x8000_0007, Edx, 8),
    feature("clzero", 0x8000_0008, Ebx, 0),
    feature("invlpgb", 0x8000_0008, Ebx, 3),
];

impl Feature {
    /// Every feature that has a name here.
    pub fn all() -> impl Iterator<Item = Self> {
        FLUSH.into_iter().chain(OTHERS.iter().copied())
    }

    /// Finds a feature by its name.
    ///
    /// # Errors
    /// If there is none; the text lists those there are.
    pub fn by_name(name: &str) -> Result<Self, String> {
        Self::all().find(|f| f.name == name).ok_or_else(|| {
            let known: Vec<&str> = Self::all().map(|f| f.name).collect();
            format!("{name:?} is no feature known here, expected one of {}", known.join(", "))
        })
    }

    /// True if `table` offers it.
    #[must_use]
    pub fn is_in(self, table: &CpuId) -> bool {
        table.as_slice().iter().any(|entry| {
            let mut entry = *entry;
            self.belongs_to(&entry) && *self.register_of(&mut entry) & (1 << self.bit) != 0
        })
    }

    /// Hides or forces it; false if `table` has no such leaf.
    pub fn set(self, table: &mut CpuId, present: bool) -> bool {
        let mut found = false;
        for entry in table.as_mut_slice().iter_mut().filter(|entry| self.belongs_to(entry)) {
            let register = self.register_of(entry);
            *register = (*register & !(1 << self.bit)) | u32::from(present) << self.bit;
            found = true;
        }
        found
    }

    fn belongs_to(self, entry: &kvm_cpuid_entry2) -> bool {
        entry.function == self.leaf && entry.index == 0
    }

    fn register_of(self, entry: &mut kvm_cpuid_entry2) -> &mut u32 {
        match self.register {
            Eax => &mut entry.eax,
            Ebx => &mut entry.ebx,
            Ecx => &mut entry.ecx,
            Edx => &mut entry.edx,
        }
    }
}

/// Feature bits to hide and to force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    /// Hidden whatever KVM supports.
    pub hide: Vec<Feature>,
    /// Shown whatever KVM supports.
    pub force: Vec<Feature>,
}

impl Edits {
    /// Applies them to the table of one vCPU; hiding wins.
    ///
    /// # Errors
    /// If a feature is to be forced in a leaf that the table does not have.
    pub fn apply(&self, table: &mut CpuId) -> Result<(), String> {
        for feature in &self.force {
            if !feature.set(table, true) {
                return Err(format!(
                    "Cannot force {}: this KVM has no CPUID leaf {:#x}",
                    feature.name, feature.leaf
                ));
            }
        }
        for feature in &self.hide {
            // A leaf that is not there does not show the feature either.
            feature.set(table, false);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(eax: u32) -> CpuId {
        let entry = kvm_cpuid_entry2 { function: KVM, eax, ..Default::default() };
        CpuId::from_entries(&[entry]).expect("table")
    }

    #[test]
    fn hiding_and_forcing_change_the_named_bit_only() {
        let steal = Feature::by_name("steal_time").expect("known");
        let flush = Feature::by_name("pv_tlb_flush").expect("known");
        let mut table = table(1 << 5 | 1 << 3);
        Edits { hide: vec![steal], force: vec![flush] }.apply(&mut table).expect("applied");
        assert_eq!(table.as_slice()[0].eax, 1 << 9 | 1 << 3);
        assert!(flush.is_in(&table) && !steal.is_in(&table));
    }

    #[test]
    fn forcing_in_a_leaf_that_is_not_there_is_refused_and_hiding_is_not() {
        let pge = Feature::by_name("pge").expect("known");
        let hide = Edits { hide: vec![pge], force: vec![] };
        assert_eq!(hide.apply(&mut table(0)), Ok(()));
        let force = Edits { hide: vec![], force: vec![pge] };
        assert!(force.apply(&mut table(0)).is_err_and(|e| e.contains("pge") && e.contains("0x1")));
    }

    #[test]
    fn names_are_unique_and_unknown_ones_are_answered_with_the_list() {
        let mut names: Vec<_> = Feature::all().map(|f| f.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Feature::all().count());
        assert!(Feature::by_name("warp").is_err_and(|e| e.contains("\"warp\"")));
    }
}
