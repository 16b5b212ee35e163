//! What the monitor tells the shootdown-stress guest at boot, and the report that
//! each vCPU of the guest leaves in memory.
//!
//! [`BootParams`] is written by the host before the first entry and only read by
//! the guest. A [`VcpuReport`] is written by its own vCPU and read by the host
//! after the run; `Relaxed` is enough, because the end of KVM_RUN orders the two.
//! The host checks what it reads: the guest is not trusted here either.

use core::mem::size_of;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// First word of [`BootParams`].
pub const MAGIC: u32 = 0x5453_4250;
/// Layout version; both sides refuse another.
pub const VERSION: u32 = 1;
/// Most vCPUs the guest is built for.
pub const MAX_VCPUS: u32 = 256;
/// Where the monitor puts [`BootParams`]; also passed in RSI at entry (RDI holds
/// the vCPU number).
pub const BOOT_PARAMS_GPA: u64 = 0x7000;
/// Where the guest image is linked and loaded.
pub const IMAGE_GPA: u64 = 0x20_0000;

/// A port without a device, next to the doorbell's: the monitor completes an OUT to
/// it and does nothing. [`Program::ExitCost`] times it against the doorbell.
pub const EXIT_COST_PORT: u16 = 0x524;

/// A `#[repr(u32)]` choice that crosses the border as its number.
macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $num:literal, $text:literal;)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum $name { $($(#[$vdoc])* $variant = $num,)+ }

        impl $name {
            /// Every choice, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The name used on the command line and in reports.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }

        impl TryFrom<u32> for $name {
            type Error = u32;

            /// Fails with the number itself if no choice has it.
            fn try_from(raw: u32) -> Result<Self, u32> {
                match raw { $($num => Ok(Self::$variant),)+ _ => Err(raw) }
            }
        }
    };
}

choice!(
    /// What the guest image does.
    Program {
        /// Run the workload of [`BootParams`] and verify it.
        Stress = 0, "stress";
        /// Serve the monitor's flush-on-entry probe (see [`ProbeWords`]).
        Probe = 1, "probe";
        /// Time bare port exits and doorbell exits, alternating.
        ExitCost = 2, "exit-cost";
        /// Ring the doorbell with garbage and check that each is refused.
        Garbage = 3, "garbage";
        /// Shut the VM down by a triple fault.
        TripleFault = 4, "triple-fault";
        /// Never report anything.
        Silent = 5, "silent";
        /// Touch an address that is not mapped, to be reported as a guest fault.
        PageFault = 6, "page-fault";
    }
);

choice!(
    /// How the guest makes other vCPUs forget a translation.
    Strategy {
        /// Linux's IPI shootdown with lazily read mm generation (seed 003 applied).
        Ipi = 0, "ipi";
        /// The same, reading the mm generation first thing in each handler.
        IpiGenRead = 1, "ipi-gen-read";
        /// KVM's preempted byte for off-CPU targets, IPIs for the rest.
        KvmPv = 2, "kvm-pv";
        /// One OUT to the monitor.
        Doorbell = 3, "doorbell";
        /// The doorbell where the host says targets share pCPUs, IPIs elsewhere.
        DoorbellAdaptive = 4, "doorbell-adaptive";
        /// Negative control: no flush at all.
        None = 5, "none";
        /// Negative control: IPIs, but the frame is reused before the last ack.
        Late = 6, "late";
    }
);

choice!(
    /// What the threads do to their pages.
    Workload {
        /// Threads of one mm replace pages by new frames (will-it-scale tlb_flush1).
        Remap = 0, "remap";
        /// Threads of one mm unmap, flush, free and map anew (tlb_flush2).
        Unmap = 1, "unmap";
        /// Several processes flip permissions (stress-ng tlb-shootdown).
        Mprotect = 2, "mprotect";
    }
);

choice!(
    /// Which local APIC interface the guest uses.
    Apic {
        /// Memory-mapped registers at 0xFEE0_0000, written from CPL3.
        Xapic = 0, "xapic";
        /// MSRs, written at CPL0.
        X2apic = 1, "x2apic";
    }
);

/// Everything the guest is told.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BootParams {
    /// [`MAGIC`].
    pub magic: u32,
    /// [`VERSION`].
    pub version: u32,
    /// Number of vCPUs, all started by the monitor, ids 0 to `vcpus`-1.
    pub vcpus: u32,
    /// [`Program`].
    pub program: u32,
    /// [`Strategy`].
    pub strategy: u32,
    /// [`Workload`].
    pub workload: u32,
    /// [`Apic`].
    pub apic: u32,
    /// Privilege level of page-table writes and flush algorithms: 3 or 0.
    pub algorithm_cpl: u32,
    /// Number of address spaces; vCPU i starts in mm i % `mms`.
    pub mms: u32,
    /// vCPUs 0 to `initiators`-1 flush; the others only read and verify.
    pub initiators: u32,
    /// 0: placement by `mms`. k: vCPUs 0..=k share mm 0, each other has its own.
    pub targets: u32,
    /// Test pages that each initiator owns.
    pub pages_per_vcpu: u32,
    /// Ranges above this many pages become whole-mm flushes (Linux: 33).
    pub full_flush_ceiling: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Run length in TSC ticks from the common start.
    pub duration_ticks: u64,
    /// Shootdowns after which an initiator stops; 0 means no bound.
    pub max_shootdowns: u64,
    /// TSC frequency.
    pub tsc_khz: u64,
    /// Ticks an initiator waits between two shootdowns while it reads; 0: none.
    pub gap_ticks: u64,
    /// First byte of guest-owned memory above the image.
    pub heap_start: u64,
    /// First byte past it.
    pub heap_end: u64,
    /// Array of [`VcpuReport`], one per vCPU.
    pub reports_gpa: u64,
    /// [`ProbeWords`].
    pub probe_gpa: u64,
    /// KVM's steal-time records, one per vCPU, where they belong to the monitor; 0
    /// where the guest enables its own.
    pub steal_gpa: u64,
}

/// Kinds of violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ViolationKind {
    /// A read returned a stamp that a finished flush had outdated.
    StaleRead = 1,
    /// A read returned a frame that had been freed or reused.
    FreedFrame = 2,
    /// A write landed in a page after the flush that took the right away.
    StaleWrite = 3,
}

impl TryFrom<u32> for ViolationKind {
    type Error = u32;

    fn try_from(raw: u32) -> Result<Self, u32> {
        match raw {
            1 => Ok(Self::StaleRead),
            2 => Ok(Self::FreedFrame),
            3 => Ok(Self::StaleWrite),
            _ => Err(raw),
        }
    }
}

/// One violation, with all that is needed to tell the story.
#[repr(C)]
#[derive(Debug, Default)]
pub struct ViolationRecord {
    /// [`ViolationKind`].
    pub kind: AtomicU32,
    /// The vCPU that owns the page.
    pub owner: AtomicU32,
    /// Address read or written.
    pub address: AtomicU64,
    /// Lowest stamp that was still allowed.
    pub expected: AtomicU64,
    /// Stamp seen.
    pub seen: AtomicU64,
    /// The owner's flush number that had returned.
    pub flush: AtomicU64,
    /// TSC at the observation.
    pub tsc: AtomicU64,
}

/// Violations kept in full per vCPU; all are counted.
pub const RECORDS: usize = 8;
/// Linear steps per power of two in the latency histogram.
pub const SUB_BUCKETS: usize = 32;
/// Buckets of the latency histogram: exact below 32 ticks, then 32 per octave.
pub const BUCKETS: usize = 36 * SUB_BUCKETS;

/// What one vCPU leaves behind.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct VcpuReport {
    /// Shootdowns completed as initiator.
    pub shootdowns: AtomicU64,
    /// Verified reads and writes.
    pub checks: AtomicU64,
    /// Checks that failed.
    pub violations: AtomicU64,
    /// Accesses that faulted because the page was absent or read-only: allowed.
    pub denied: AtomicU64,
    /// IPIs sent (a broadcast shorthand counts once per target).
    pub ipis_sent: AtomicU64,
    /// ICR writes.
    pub icr_writes: AtomicU64,
    /// Flush requests served for others.
    pub served: AtomicU64,
    /// Single-page invalidations executed.
    pub page_flushes: AtomicU64,
    /// Whole-context invalidations executed.
    pub full_flushes: AtomicU64,
    /// Doorbells rung.
    pub doorbells: AtomicU64,
    /// Targets flagged through KVM's preempted byte instead of interrupted.
    pub flagged: AtomicU64,
    /// Targets skipped because they were lazy or had the mm unloaded.
    pub skipped: AtomicU64,
    /// Switches between address spaces.
    pub switches: AtomicU64,
    /// TSC at the first operation.
    pub start_tsc: AtomicU64,
    /// TSC after the last operation.
    pub end_tsc: AtomicU64,
    /// Longest initiator latency, ticks.
    pub max_ticks: AtomicU64,
    /// Sum of initiator latencies, ticks.
    pub sum_ticks: AtomicU64,
    /// Spare values, by program. `ExitCost`: see there.
    pub extra: [AtomicU64; 7],
    /// The first [`RECORDS`] violations.
    pub records: [ViolationRecord; RECORDS],
    /// Initiator latency in ticks, see [`bucket`].
    pub latency: [AtomicU32; BUCKETS],
    /// A second histogram. `Stress`: the latency less the time in which this vCPU
    /// waited for a pCPU. `ExitCost`: the bare port exit.
    pub latency_b: [AtomicU32; BUCKETS],
}

/// Bytes from one vCPU's report to the next.
pub const REPORT_STRIDE: u64 = size_of::<VcpuReport>() as u64;

const _: () = {
    assert!(size_of::<BootParams>() == 128);
    assert!(size_of::<ViolationRecord>() == 48);
    assert!(size_of::<VcpuReport>().is_multiple_of(64));
    assert!(size_of::<VcpuReport>() < 16 * 1024);
};

/// The bucket that counts a latency of `ticks`.
#[must_use]
pub const fn bucket(ticks: u64) -> usize {
    if ticks < SUB_BUCKETS as u64 {
        return ticks as usize;
    }
    let octave = 63 - ticks.leading_zeros() as usize;
    let shift = octave - SUB_BUCKETS.trailing_zeros() as usize;
    let index = (shift + 1) * SUB_BUCKETS + (ticks >> shift) as usize - SUB_BUCKETS;
    if index < BUCKETS { index } else { BUCKETS - 1 }
}

/// The smallest latency, in ticks, that [`bucket`] puts into bucket `index`.
#[must_use]
pub const fn bucket_floor(index: usize) -> u64 {
    if index < SUB_BUCKETS {
        return index as u64;
    }
    let shift = index / SUB_BUCKETS - 1;
    ((index % SUB_BUCKETS + SUB_BUCKETS) as u64) << shift
}

/// Frames that [`Program::Probe`] maps in turn.
pub const PROBE_FRAMES: u64 = 8;

/// Words shared by monitor and guest in [`Program::Probe`]. vCPU 0 changes a
/// mapping whenever `command` changes and says so in `done`; vCPU 1 reads through
/// the mapping all the time and publishes what it sees.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ProbeWords {
    /// Host writes n (release); vCPU 0 (acquire) then maps frame
    /// n % [`PROBE_FRAMES`], without any flush.
    pub command: AtomicU64,
    /// vCPU 0 writes n (release) once that frame is in the page table.
    pub done: AtomicU64,
    /// vCPU 1 writes frame number + 1 as last read; 0 before the first read.
    pub seen: AtomicU64,
    /// vCPU 1 counts its reads, so that the host knows that it really advanced.
    pub reads: AtomicU64,
    /// Host writes 1: vCPU 0 ends the run with PASS.
    pub stop: AtomicU64,
    reserved: [AtomicU64; 3],
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bucket_holds_what_lies_between_its_floor_and_the_next(ticks in 0_u64..1 << 39) {
            let index = bucket(ticks);
            prop_assert!(bucket_floor(index) <= ticks);
            prop_assert!(index + 1 == BUCKETS || ticks < bucket_floor(index + 1));
        }

        #[test]
        fn buckets_are_within_a_thirty_second_of_the_truth(ticks in 32_u64..1 << 39) {
            let floor = bucket_floor(bucket(ticks));
            prop_assert!((ticks - floor) * SUB_BUCKETS as u64 <= ticks);
        }

        #[test]
        fn no_latency_falls_outside(ticks in any::<u64>()) {
            prop_assert!(bucket(ticks) < BUCKETS);
        }
    }

    #[test]
    fn choices_decode_to_themselves_and_other_numbers_are_refused() {
        for strategy in super::Strategy::ALL {
            assert_eq!(super::Strategy::try_from(*strategy as u32), Ok(*strategy));
        }
        assert_eq!(super::Strategy::try_from(99), Err(99));
        assert_eq!(Program::try_from(7), Err(7));
    }
}
