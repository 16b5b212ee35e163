//! What the guest's own kernel says about flushes, before and after a phase.
//!
//! Owner: a [`Trace`] owns the trigger it set and takes it back when dropped. All else
//! is read from files and parsed by pure functions. What this kernel does not offer is
//! absent (`None`, or an empty map), never zero.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Flags of /proc/cpuinfo that decide how this guest flushes.
const FLAGS: &[&str] =
    &["hypervisor", "invlpgb", "invpcid", "la57", "pcid", "pge", "pti", "rar", "tsc", "x2apic"];
const EVENT: &str = "events/tlb/tlb_flush";
const TRACE_FOLDERS: &[&str] = &["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
const TRIGGER: &str = "hist:keys=reason";
/// Linux, include/linux/mm_types.h: enum tlb_flush_reason; the last in newer kernels only.
const REASONS: &[&str] = &[
    "task-switch",
    "remote-shootdown",
    "local-shootdown",
    "local-mm-shootdown",
    "remote-send-ipi",
    "remote-wrong-cpu",
];

/// The machine as its kernel sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Kernel release.
    pub release: String,
    /// vCPUs that are online.
    pub vcpus: usize,
    /// Of the flags that decide how a guest flushes, those that vCPU 0 has.
    pub flags: Vec<String>,
    /// The command line it was started with.
    pub command_line: String,
    /// Why tlb:tlb_flush is not counted; `None` if it is.
    pub no_trace: Option<String>,
}

impl Machine {
    /// Reads the files. What cannot be read is left empty.
    pub fn read(no_trace: Option<String>) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self {
            release: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            vcpus: online_vcpus().len(),
            flags: flags(&read("/proc/cpuinfo")),
            command_line: read("/proc/cmdline").trim().to_owned(),
            no_trace,
        }
    }
}

/// Milliseconds since the kernel started, 0 if it does not say.
pub fn uptime_ms() -> u64 {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds = text.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
    seconds.map_or(0, |seconds| (seconds * 1000.0) as u64)
}

/// Numbers of the vCPUs that are online; vCPU 0 if the kernel does not say.
pub fn online_vcpus() -> Vec<usize> {
    let list = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let vcpus = vcpu_list(list.trim());
    if vcpus.is_empty() { vec![0] } else { vcpus }
}

/// Parses `0-3,5`.
fn vcpu_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

fn flags(cpuinfo: &str) -> Vec<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("flags"));
    let has = line.and_then(|line| line.split_once(':')).map_or("", |(_, flags)| flags);
    let known = has.split_whitespace().filter(|flag| FLAGS.contains(flag));
    known.map(str::to_owned).collect()
}

/// Counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    vmstat: BTreeMap<String, u64>,
    interrupts: Vec<u64>,
    reasons: Option<BTreeMap<String, u64>>,
}

/// What the counters gained between two moments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delta {
    /// `nr_tlb_*` of /proc/vmstat (CONFIG_DEBUG_TLBFLUSH), by name.
    pub vmstat: BTreeMap<String, u64>,
    /// The TLB line of /proc/interrupts, by column: shootdown interrupts taken.
    pub interrupts: Vec<u64>,
    /// tlb:tlb_flush events by reason; `None` if they are not counted.
    pub reasons: Option<BTreeMap<String, u64>>,
}

impl Snapshot {
    /// Reads all counters; the events only if there is a trace.
    pub fn take(trace: Option<&Trace>) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self {
            vmstat: vmstat(&read("/proc/vmstat")),
            interrupts: tlb_interrupts(&read("/proc/interrupts")),
            reasons: trace.and_then(|trace| trace.read().ok()),
        }
    }

    /// The gain since `before`.
    pub fn since(&self, before: &Self) -> Delta {
        let gain = |now: &BTreeMap<String, u64>, then: &BTreeMap<String, u64>| {
            let since = |name: &String| then.get(name).copied().unwrap_or(0);
            now.iter().map(|(name, n)| (name.clone(), n.saturating_sub(since(name)))).collect()
        };
        let column = |(i, n): (usize, &u64)| {
            n.saturating_sub(before.interrupts.get(i).copied().unwrap_or(0))
        };
        Delta {
            vmstat: gain(&self.vmstat, &before.vmstat),
            interrupts: self.interrupts.iter().enumerate().map(column).collect(),
            reasons: match (&self.reasons, &before.reasons) {
                (Some(now), Some(then)) => Some(gain(now, then)),
                _ => None,
            },
        }
    }
}

fn vmstat(text: &str) -> BTreeMap<String, u64> {
    let lines = text.lines().filter(|line| line.starts_with("nr_tlb_"));
    lines
        .filter_map(|line| {
            let (name, value) = line.split_once(' ')?;
            Some((name.to_owned(), value.trim().parse().ok()?))
        })
        .collect()
}

fn tlb_interrupts(text: &str) -> Vec<u64> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("TLB:"));
    let words = line.unwrap_or_default().split_whitespace();
    words.map_while(|word| word.parse().ok()).collect()
}

/// A histogram of tlb:tlb_flush events, kept by the kernel.
pub struct Trace {
    folder: PathBuf,
}

impl Trace {
    /// Lets the kernel count from now on. Fails if tracefs is not mounted, or has
    /// neither the event nor histograms.
    pub fn start() -> io::Result<Self> {
        let folders = TRACE_FOLDERS.iter().map(|folder| Path::new(folder).join(EVENT));
        let Some(folder) = folders.into_iter().find(|folder| folder.exists()) else {
            let text = format!("No {EVENT} in {}", TRACE_FOLDERS.join(" or "));
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        };
        fs::write(folder.join("trigger"), TRIGGER)?;
        Ok(Self { folder })
    }

    fn read(&self) -> io::Result<BTreeMap<String, u64>> {
        Ok(reasons(&fs::read_to_string(self.folder.join("hist"))?))
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // If it fails the kernel goes on counting, which harms nobody.
        let _ = fs::write(self.folder.join("trigger"), format!("!{TRIGGER}"));
    }
}

/// Parses lines like `{ reason:          1 } hitcount:         42`.
fn reasons(hist: &str) -> BTreeMap<String, u64> {
    let entry = |line: &str| {
        let (key, rest) = line.split_once('}')?;
        let number: usize = key.split_once("reason:")?.1.trim().parse().ok()?;
        let hits = rest.split_once("hitcount:")?.1.split_whitespace().next()?.parse().ok()?;
        let name = REASONS.get(number).map_or_else(|| format!("reason-{number}"), |n| (*n).into());
        Some((name, hits))
    };
    hist.lines().filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_is_counted_by_reason_and_unknown_ones_keep_their_number() {
        let text = "# event histogram\n#\n\n{ reason:          4 } hitcount:         12\n\
                    { reason:          9 } hitcount:          1\n\nTotals:\n    Hits: 13\n";
        let expected = [("remote-send-ipi".to_owned(), 12), ("reason-9".to_owned(), 1)];
        assert_eq!(reasons(text), expected.into());
        assert!(reasons("").is_empty());
    }

    #[test]
    fn the_tlb_line_is_read_by_column_up_to_its_text() {
        let text = "           CPU0       CPU1\n RES:  9 9  Rescheduling\n TLB:         17          5   TLB shootdowns\n";
        assert_eq!(tlb_interrupts(text), [17, 5]);
        assert!(tlb_interrupts("").is_empty());
    }

    #[test]
    fn only_tlb_counters_of_vmstat_count() {
        let text = "nr_free_pages 7\nnr_tlb_remote_flush 12\nnr_tlb_local_flush_one 3\n";
        let counters = vmstat(text);
        assert_eq!(counters.len(), 2);
        assert_eq!(counters["nr_tlb_remote_flush"], 12);
    }

    #[test]
    fn gains_are_differences_and_what_is_not_counted_stays_absent() {
        let before = Snapshot {
            vmstat: [("nr_tlb_remote_flush".to_owned(), 5)].into(),
            interrupts: vec![1, 2],
            reasons: None,
        };
        let after = Snapshot {
            vmstat: [("nr_tlb_remote_flush".to_owned(), 8)].into(),
            interrupts: vec![1, 9, 4],
            reasons: Some(BTreeMap::new()),
        };
        let delta = after.since(&before);
        assert_eq!(delta.vmstat["nr_tlb_remote_flush"], 3);
        assert_eq!(delta.interrupts, [0, 7, 4]);
        assert_eq!(delta.reasons, None);
    }

    #[test]
    fn lists_of_vcpus_have_ranges_and_gaps() {
        assert_eq!(vcpu_list("0-2,5"), [0, 1, 2, 5]);
        assert!(vcpu_list("").is_empty());
    }

    #[test]
    fn only_flags_of_interest_are_kept() {
        let text = "processor : 0\nflags\t\t: fpu pcid sse invlpgb\nflags : pge\n";
        assert_eq!(flags(text), ["pcid", "invlpgb"]);
    }
}
