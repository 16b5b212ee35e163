//! Names of processors, tags and flushes, one type per meaning.
//!
//! Plain values: no state, no owner, no ordering.

use core::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($int:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub $int);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

id!(
    /// A virtual CPU of one VM, counted from 0; also its x2APIC id in this monitor.
    VcpuId(u32), "v"
);
id!(
    /// A physical CPU of the host, numbered as the host kernel numbers it.
    PcpuId(u32), "p"
);
id!(
    /// The hardware tag of a guest in the TLB (AMD ASID, Intel VPID).
    Asid(u16), "asid"
);
id!(
    /// The guest's own 12-bit process-context identifier.
    Pcid(u16), "pcid"
);
id!(
    /// A VM, for hosts that model several (Arm VMID, or one ASID per VM).
    VmId(u16), "vm"
);
id!(
    /// The number of a flush request in one VM; 0 is never issued.
    FlushSeq(u64), "#"
);

impl Pcid {
    /// The value if it fits the twelve bits of CR3 and INVPCID.
    #[must_use]
    pub const fn new(value: u16) -> Option<Self> {
        if value < 4096 { Some(Self(value)) } else { None }
    }
}

impl VcpuId {
    /// The number as an index into per-vCPU arrays.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}
