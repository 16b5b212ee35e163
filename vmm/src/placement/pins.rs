//! Where vCPU threads may run, and for how long at a time: `--pin`, `--pcpus` and
//! `--slice`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pv_tlb::id::{PcpuId, VcpuId};

/// Allowed pCPUs of each vCPU thread, and the time slices they ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pins {
    /// For every vCPU that `own` does not name.
    all: BTreeSet<PcpuId>,
    own: BTreeMap<VcpuId, PcpuId>,
    slice: Option<Duration>,
}

impl Pins {
    /// Every vCPU may run on each of `pcpus`.
    #[must_use]
    pub fn anywhere_in(pcpus: BTreeSet<PcpuId>) -> Self {
        Self { all: pcpus, own: BTreeMap::new(), slice: None }
    }

    /// Reads `--pin`: a list of pCPUs and ranges for all vCPUs ("0-1,3"), or
    /// vCPU:pCPU pairs ("0:0,1:1"). Pairs leave other vCPUs on `allowed`.
    ///
    /// # Errors
    /// Names the part that is wrong and what was expected.
    pub fn parse(text: &str, allowed: &BTreeSet<PcpuId>) -> Result<Self, String> {
        let mut all = BTreeSet::new();
        let mut own = BTreeMap::new();
        for part in text.split(',') {
            if let Some((vcpu, pcpu)) = part.split_once(':') {
                let vcpu = VcpuId(number(vcpu, text)?);
                if own.insert(vcpu, PcpuId(number(pcpu, text)?)).is_some() {
                    return Err(format!("Pin {text:?} names vCPU {} twice", vcpu.0));
                }
            } else {
                let (first, last) = part.split_once('-').unwrap_or((part, part));
                let (first, last) = (number(first, text)?, number(last, text)?);
                if first > last || last - first >= 4096 {
                    return Err(format!("Range {part:?} of pin {text:?} is empty or too long"));
                }
                all.extend((first..=last).map(PcpuId));
            }
        }
        match (all.is_empty(), own.is_empty()) {
            (false, false) => Err(format!("Pin {text:?} mixes pCPU lists and vCPU:pCPU pairs")),
            (true, _) => Self { all: allowed.clone(), own, slice: None }.checked(allowed),
            (false, true) => Self { all, own, slice: None }.checked(allowed),
        }
    }

    /// Reads `--pcpus`: a number of pCPUs to use, or a list.
    ///
    /// # Errors
    /// Names the value and what was expected.
    pub fn parse_pcpus(text: &str, allowed: &BTreeSet<PcpuId>) -> Result<Self, String> {
        match text.parse::<usize>() {
            Ok(count) if (1..=allowed.len()).contains(&count) => {
                Ok(Self::anywhere_in(allowed.iter().take(count).copied().collect()))
            }
            Ok(count) => Err(format!(
                "Cannot use {count} pCPUs, expected 1 to {} (the pCPUs this process may use)",
                allowed.len()
            )),
            Err(_) => Self::parse(text, allowed),
        }
    }

    /// The same, with threads that ask for slices of this length.
    #[must_use]
    pub fn with_slice(self, slice: Option<Duration>) -> Self {
        Self { slice, ..self }
    }

    /// The slices that vCPU threads ask for; `None` for the kernel's default.
    #[must_use]
    pub fn slice(&self) -> Option<Duration> {
        self.slice
    }

    /// The pCPUs of one vCPU thread.
    #[must_use]
    pub fn of(&self, vcpu: VcpuId) -> BTreeSet<PcpuId> {
        match self.own.get(&vcpu) {
            Some(pcpu) => BTreeSet::from([*pcpu]),
            None => self.all.clone(),
        }
    }

    /// All pCPUs that vCPUs 0 to `vcpus`-1 may use.
    #[must_use]
    pub fn pcpus(&self, vcpus: u32) -> BTreeSet<PcpuId> {
        (0..vcpus).flat_map(|id| self.of(VcpuId(id))).collect()
    }

    /// True if some of `vcpus` vCPUs must share a pCPU.
    #[must_use]
    pub fn overcommits(&self, vcpus: u32) -> bool {
        let mut pinned = BTreeSet::new();
        let own = self.own.iter().filter(|(vcpu, _)| vcpu.0 < vcpus);
        let shared_pin = own.clone().any(|(_, pcpu)| !pinned.insert(*pcpu));
        let free = vcpus as usize - own.count();
        shared_pin || free > self.all.difference(&pinned).count()
    }

    /// The largest vCPU number that a pair names.
    #[must_use]
    pub fn highest_vcpu(&self) -> Option<VcpuId> {
        self.own.keys().next_back().copied()
    }

    fn checked(self, allowed: &BTreeSet<PcpuId>) -> Result<Self, String> {
        match self.all.iter().chain(self.own.values()).find(|id| !allowed.contains(id)) {
            Some(id) => {
                let have: Vec<String> = allowed.iter().map(|id| id.0.to_string()).collect();
                Err(format!(
                    "pCPU {} does not exist or is not allowed, expected one of {}",
                    id.0,
                    have.join(", ")
                ))
            }
            None => Ok(self),
        }
    }
}

fn number(part: &str, whole: &str) -> Result<u32, String> {
    part.parse().map_err(|_| {
        format!(
            "{part:?} in pin {whole:?} is not a number, expected pCPUs (0-1) or pairs (0:0,1:1)"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> BTreeSet<PcpuId> {
        BTreeSet::from([PcpuId(0), PcpuId(1)])
    }

    #[test]
    fn lists_apply_to_all_and_pairs_to_one() {
        let list = Pins::parse("0-1", &two()).expect("list");
        assert_eq!(list.of(VcpuId(5)), two());
        let pairs = Pins::parse("0:1,1:0", &two()).expect("pairs");
        assert_eq!(pairs.of(VcpuId(0)), BTreeSet::from([PcpuId(1)]));
        assert_eq!(pairs.of(VcpuId(2)), two());
        assert_eq!(pairs.highest_vcpu(), Some(VcpuId(1)));
    }

    #[test]
    fn bad_pins_are_refused_with_the_part_that_is_wrong() {
        for (text, part) in [
            ("9", "pCPU 9"),
            ("0:7", "pCPU 7"),
            ("a", "\"a\""),
            ("0:0,0:1", "twice"),
            ("0,0:1", "mixes"),
            ("1-0", "\"1-0\""),
            ("0-4294967295", "too long"),
            ("", "\"\""),
        ] {
            let error = Pins::parse(text, &two()).expect_err(text);
            assert!(error.contains(part), "{text:?}: {error}");
        }
        assert!(Pins::parse_pcpus("3", &two()).expect_err("3").contains("1 to 2"));
        assert!(Pins::parse_pcpus("0", &two()).is_err());
    }

    #[test]
    fn overcommit_means_that_somebody_must_share() {
        let free = Pins::anywhere_in(two());
        assert!(!free.overcommits(2));
        assert!(free.overcommits(3));
        assert!(Pins::parse("0:0,1:0", &two()).expect("pairs").overcommits(2));
        assert!(!Pins::parse("0:0,1:1", &two()).expect("pairs").overcommits(2));
        assert!(Pins::parse_pcpus("1", &two()).expect("one").overcommits(2));
    }
}
