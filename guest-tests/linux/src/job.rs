//! The agent's orders: the kernel command line, the job in it, and the phases that
//! the job stands for.
//!
//! Pure functions; no state.

use serde::{Deserialize, Serialize};

use crate::memory::{MAX_PAGES, PAGE_WORDS};

/// Most workers of a phase: each needs a word of every page.
const MAX_WORKERS: usize = PAGE_WORDS / 2;
const MAX_MS: u64 = 600_000;
const MAX_COUNT: u64 = 100_000_000;

/// Why the orders cannot be followed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// A word without `=`.
    #[error("`{0}` in the job has no value, expected key=value")]
    NoValue(String),
    /// A key that means nothing.
    #[error(
        "Unknown key `{0}`, expected workload, kind, workers, initiators, pin, ms, count, pages, sabotage or trace"
    )]
    UnknownKey(String),
    /// A value that does not fit its key.
    #[error("{key}={value}: expected {expected}")]
    BadValue {
        /// The key.
        key: String,
        /// What was given.
        value: String,
        /// What it takes.
        expected: String,
    },
}

/// How the pages change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// madvise(MADV_DONTNEED) of private anonymous pages.
    Madvise,
    /// mmap(MAP_FIXED) over private anonymous pages: unmap and map in one call.
    Remap,
    /// munmap, then mmap at the same place.
    Unmap,
    /// mprotect to read-only and back, while others write.
    Mprotect,
    /// Hole punching in a shared file on tmpfs.
    File,
}

impl Workload {
    const ALL: [(&'static str, Self); 5] = [
        ("madvise", Self::Madvise),
        ("remap", Self::Remap),
        ("unmap", Self::Unmap),
        ("mprotect", Self::Mprotect),
        ("file", Self::File),
    ];
}

/// What a worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Threads of one process: one address space.
    Threads,
    /// Processes, started by fork and exec; they share pages in [`Workload::File`] only.
    Processes,
}

/// A number of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workers {
    /// So many.
    Exactly(usize),
    /// As many as vCPUs are online.
    EveryVcpu,
}

/// What to run: each combination of the lists is a phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Ways to change pages.
    pub workloads: Vec<Workload>,
    /// Threads, processes or both.
    pub kinds: Vec<Kind>,
    /// Numbers of workers.
    pub workers: Vec<Workers>,
    /// Whether worker i stays on vCPU i modulo their number.
    pub pin: Vec<bool>,
    /// Of the workers, so many change pages; 0: all. The others read only.
    pub initiators: usize,
    /// Length of a phase.
    pub ms: u64,
    /// Most changes of one initiator in a phase.
    pub count: u64,
    /// Pages of each initiator.
    pub pages_each: usize,
    /// Leaves out the system call that would flush: every phase must then FAIL.
    pub sabotage: bool,
    /// Whether to count tlb:tlb_flush events.
    pub trace: bool,
}

impl Default for Job {
    fn default() -> Self {
        let exactly = [1, 2, 3, 4, 5].map(Workers::Exactly);
        Self {
            workloads: Workload::ALL.map(|(_, workload)| workload).into(),
            kinds: vec![Kind::Threads, Kind::Processes],
            workers: exactly.into_iter().chain([Workers::EveryVcpu]).collect(),
            pin: vec![true, false],
            initiators: 0,
            ms: 200,
            count: 1_000_000,
            pages_each: 8,
            sabotage: false,
            trace: true,
        }
    }
}

/// One phase: all workers do the same for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    /// How the pages change.
    pub workload: Workload,
    /// What a worker is.
    pub kind: Kind,
    /// Number of workers.
    pub workers: usize,
    /// The first so many change pages.
    pub initiators: usize,
    /// Whether workers stay on their vCPU.
    pub pinned: bool,
    /// Its length.
    pub ms: u64,
    /// Most changes of one initiator.
    pub count: u64,
    /// Pages of each initiator.
    pub pages_each: usize,
    /// See [`Job::sabotage`].
    pub sabotage: bool,
}

impl Phase {
    /// Pages of all initiators.
    pub fn pages(&self) -> usize {
        self.initiators * self.pages_each
    }

    /// True if all workers see the same pages.
    pub fn shares_pages(&self) -> bool {
        self.kind == Kind::Threads || self.workload == Workload::File
    }
}

impl Job {
    /// Reads `key=value` pairs with commas between them; the values of lists have a
    /// `+` between them. What is not named keeps its default.
    pub fn parse(text: &str) -> Result<Self, JobError> {
        let mut job = Self::default();
        for pair in text.split(',').filter(|pair| !pair.is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(JobError::NoValue(pair.to_owned()));
            };
            job.set(key, value)?;
        }
        Ok(job)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), JobError> {
        let kinds = [("threads", Kind::Threads), ("processes", Kind::Processes)];
        let switch = [("on", true), ("off", false)];
        match key {
            "workload" => self.workloads = list(key, value, &Workload::ALL)?,
            "kind" => self.kinds = list(key, value, &kinds)?,
            "pin" => self.pin = list(key, value, &switch)?,
            "workers" => self.workers = value.split('+').map(workers).collect::<Result<_, _>>()?,
            "initiators" => self.initiators = number(key, value, 0, MAX_WORKERS as u64)? as usize,
            "ms" => self.ms = number(key, value, 1, MAX_MS)?,
            "count" => self.count = number(key, value, 1, MAX_COUNT)?,
            "pages" => self.pages_each = number(key, value, 1, 256)? as usize,
            "sabotage" => self.sabotage = word(key, value, &switch)?,
            "trace" => self.trace = word(key, value, &switch)?,
            _ => return Err(JobError::UnknownKey(key.to_owned())),
        }
        Ok(())
    }

    /// The phases on a machine with `vcpus` vCPUs, without repetitions.
    pub fn phases(&self, vcpus: usize) -> Vec<Phase> {
        let mut phases = Vec::new();
        for &workload in &self.workloads {
            for &kind in &self.kinds {
                for &count in &self.workers {
                    for &pinned in &self.pin {
                        let phase = self.phase(workload, kind, count, pinned, vcpus);
                        if !phases.contains(&phase) {
                            phases.push(phase);
                        }
                    }
                }
            }
        }
        phases
    }

    fn phase(
        &self,
        workload: Workload,
        kind: Kind,
        count: Workers,
        pinned: bool,
        vcpus: usize,
    ) -> Phase {
        let workers = match count {
            Workers::Exactly(workers) => workers,
            Workers::EveryVcpu => vcpus.clamp(1, MAX_WORKERS),
        };
        let initiators = match self.initiators {
            0 => workers,
            some => some.min(workers),
        };
        Phase {
            workload,
            kind,
            workers,
            initiators,
            pinned,
            ms: self.ms,
            count: self.count,
            pages_each: self.pages_each.min(MAX_PAGES / initiators),
            sabotage: self.sabotage,
        }
    }
}

fn workers(value: &str) -> Result<Workers, JobError> {
    match value {
        "n" => Ok(Workers::EveryVcpu),
        _ => Ok(Workers::Exactly(number("workers", value, 1, MAX_WORKERS as u64)? as usize)),
    }
}

fn number(key: &str, value: &str, least: u64, most: u64) -> Result<u64, JobError> {
    value
        .parse()
        .ok()
        .filter(|number| (least..=most).contains(number))
        .ok_or_else(|| bad(key, value, format!("a number from {least} to {most}")))
}

fn list<T: Copy>(key: &str, value: &str, words: &[(&str, T)]) -> Result<Vec<T>, JobError> {
    value.split('+').map(|one| word(key, one, words)).collect()
}

fn word<T: Copy>(key: &str, value: &str, words: &[(&str, T)]) -> Result<T, JobError> {
    let found = words.iter().find(|(name, _)| *name == value);
    found.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let names: Vec<_> = words.iter().map(|(name, _)| *name).collect();
        bad(key, value, names.join(", "))
    })
}

fn bad(key: &str, value: &str, expected: String) -> JobError {
    JobError::BadValue { key: key.to_owned(), value: value.to_owned(), expected }
}

/// How the machine ends after the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// reboot(RB_POWER_OFF).
    PowerOff,
    /// reboot(RB_AUTOBOOT), for machines without a power switch.
    Reboot,
}

/// What the kernel command line says to the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orders {
    /// `pvtlb.job`: not parsed yet, so that a bad job can be reported on the right port.
    pub job: String,
    /// `pvtlb.out`: the device for results; the console without it.
    pub out: Option<String>,
    /// `pvtlb.limit_s`: the machine ends after so long, whatever happens.
    pub limit_s: u64,
    /// `pvtlb.end`: `poweroff` or `reboot`.
    pub ending: Ending,
}

impl Orders {
    /// Reads a command line. Words of others, and values that mean nothing, are left
    /// alone: an agent that cannot start cannot say why.
    pub fn parse(command_line: &str) -> Self {
        let mut orders =
            Self { job: String::new(), out: None, limit_s: 600, ending: Ending::PowerOff };
        for (key, value) in command_line.split_whitespace().filter_map(|w| w.split_once('=')) {
            match key {
                "pvtlb.job" => orders.job = value.to_owned(),
                "pvtlb.out" => orders.out = Some(value.to_owned()),
                "pvtlb.limit_s" => orders.limit_s = value.parse().unwrap_or(orders.limit_s),
                "pvtlb.end" if value == "reboot" => orders.ending = Ending::Reboot,
                _ => {}
            }
        }
        orders
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_names_what_differs_from_the_default() {
        let job = Job::parse("workload=madvise+file,workers=1+n,pin=off,ms=50,initiators=1");
        let job = job.unwrap();
        assert_eq!(job.workloads, [Workload::Madvise, Workload::File]);
        assert_eq!(job.workers, [Workers::Exactly(1), Workers::EveryVcpu]);
        assert_eq!((job.pin.as_slice(), job.ms, job.initiators), (&[false][..], 50, 1));
        assert_eq!(job.kinds, Job::default().kinds);
        assert_eq!(Job::parse("").unwrap(), Job::default());
    }

    #[test]
    fn bad_jobs_name_the_value_and_what_was_expected() {
        for (text, part) in [
            ("ms", "`ms`"),
            ("colour=red", "`colour`"),
            ("ms=0", "1 to 600000"),
            ("workload=madvise+fly", "fly"),
            ("workers=0", "1 to 256"),
            ("pin=", "on, off"),
        ] {
            let error = Job::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn phases_do_not_repeat_when_n_is_one_of_the_numbers() {
        let job = Job::parse("workload=unmap,kind=threads,pin=on").unwrap();
        let workers = |vcpus| job.phases(vcpus).iter().map(|p| p.workers).collect::<Vec<_>>();
        assert_eq!(workers(4), [1, 2, 3, 4, 5]);
        assert_eq!(workers(8), [1, 2, 3, 4, 5, 8]);
    }

    #[test]
    fn all_pages_of_a_phase_fit_an_arena() {
        let job = Job::parse("workers=256,pages=256").unwrap();
        assert!(job.phases(1).iter().all(|phase| phase.pages() <= MAX_PAGES));
    }

    #[test]
    fn the_command_line_is_searched_for_our_words_only() {
        let orders = Orders::parse(
            "console=ttyS0 pvtlb.job=ms=5,pin=on pvtlb.out=/dev/ttyS1 quiet pvtlb.limit_s=x\n",
        );
        assert_eq!(orders.job, "ms=5,pin=on");
        assert_eq!(orders.out.as_deref(), Some("/dev/ttyS1"));
        assert_eq!((orders.limit_s, orders.ending), (600, Ending::PowerOff));
        assert_eq!(Orders::parse("pvtlb.end=reboot").ending, Ending::Reboot);
    }
}
