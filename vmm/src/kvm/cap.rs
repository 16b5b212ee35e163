//! The KVM capabilities that matter here, by their API name.

use kvm_bindings as kb;

macro_rules! capabilities {
    ($($(#[$doc:meta])* $name:ident = $number:path, $text:literal, $use:literal;)+) => {
        /// A capability of KVM (Linux `Documentation/virt/kvm/api.rst`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Capability { $($(#[$doc])* $name,)+ }

        impl Capability {
            /// Every capability that is asked for.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The API name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// What pvtlb does with it.
            #[must_use]
            pub const fn purpose(self) -> &'static str {
                match self { $(Self::$name => $use,)+ }
            }

            pub(super) const fn number(self) -> u64 {
                match self { $(Self::$name => $number as u64,)+ }
            }
        }
    };
}

capabilities! {
    /// In-kernel interrupt controllers.
    Irqchip = kb::KVM_CAP_IRQCHIP, "KVM_CAP_IRQCHIP", "interrupts between vCPUs";
    /// Guest memory from this process.
    UserMemory = kb::KVM_CAP_USER_MEMORY, "KVM_CAP_USER_MEMORY", "guest RAM";
    /// `immediate_exit` in kvm_run.
    ImmediateExit = kb::KVM_CAP_IMMEDIATE_EXIT, "KVM_CAP_IMMEDIATE_EXIT", "a kick before entry is not lost";
    /// Start vCPUs without INIT-SIPI.
    MpState = kb::KVM_CAP_MP_STATE, "KVM_CAP_MP_STATE", "vCPUs started by the monitor";
    /// Steal-time record with the `preempted` byte.
    StealTime = kb::KVM_CAP_STEAL_TIME, "KVM_CAP_STEAL_TIME", "flush on entry by the FLUSH bit";
    /// Registers in kvm_run.
    SyncRegs = kb::KVM_CAP_SYNC_REGS, "KVM_CAP_SYNC_REGS", "cheap register access";
    /// MSR exits to userspace.
    UserSpaceMsr = kb::KVM_CAP_X86_USER_SPACE_MSR, "KVM_CAP_X86_USER_SPACE_MSR", "RAR's MSRs (not offered yet)";
    /// MSR filters.
    MsrFilter = kb::KVM_CAP_X86_MSR_FILTER, "KVM_CAP_X86_MSR_FILTER", "RAR's MSRs (not offered yet)";
    /// Hyper-V remote flush calls.
    HypervTlbflush = kb::KVM_CAP_HYPERV_TLBFLUSH, "KVM_CAP_HYPERV_TLBFLUSH", "Hyper-V flush (not offered yet)";
    /// Statistics file descriptors.
    BinaryStats = kb::KVM_CAP_BINARY_STATS_FD, "KVM_CAP_BINARY_STATS_FD", "flush counts as evidence";
    /// x2APIC ids above 255.
    X2apicApi = kb::KVM_CAP_X2APIC_API, "KVM_CAP_X2APIC_API", "APIC ids above 255";
    /// Dirty log rings.
    DirtyLogRing = kb::KVM_CAP_DIRTY_LOG_RING, "KVM_CAP_DIRTY_LOG_RING", "not used";
}
