//! The set of virtual processors: a 64-bit mask, or HV_VP_SET.
//!
//! Pure functions. HV_VP_SET is a format word (0 sparse, 1 all), a mask of the valid
//! banks, and one word of 64 VPs for each of these. Banks past what the monitor can
//! name are read and never indexed with: an implementation that did was XSA-475.

use super::{Rules, check, read};
use crate::cpuset::{CpuSet, WORDS};
use crate::invalidation::Reach;
use crate::isa::fault::{GuestFault, HvStatus, Unsayable, say};

const SPARSE: u64 = 0;
const ALL: u64 = 1;

/// A set as the guest names it.
pub(super) struct Named {
    everybody: bool,
    set: CpuSet,
    /// A word of a bank above the set's last one, if one has members.
    beyond: u64,
}

impl Named {
    pub(super) fn mask(mask: u64) -> Self {
        let mut words = [0; WORDS];
        words[0] = mask;
        Self { everybody: false, set: CpuSet::from_words(words), beyond: 0 }
    }

    pub(super) fn reach(&self, present: &CpuSet, rules: &Rules) -> Result<Reach, GuestFault> {
        if self.everybody {
            return Ok(Reach::All);
        }
        let absent = self.set.minus(present);
        let ghost = absent.iter().next().map_or(self.beyond, |vcpu| u64::from(vcpu.0));
        let refused = rules.refuses_absent_vps && (self.beyond != 0 || !absent.is_empty());
        check(!refused, HvStatus::InvalidVpIndex, "Every VP named must exist", ghost)?;
        Ok(Reach::Set(self.set.and(present)))
    }
}

/// The set at the start of `words`, and the number of words from the start of the
/// input to its end.
pub(super) fn decode(words: &[u64], variable_words: u16) -> Result<(Named, usize), GuestFault> {
    let format = read(words, 0)?;
    let known = format == SPARSE || format == ALL;
    check(known, HvStatus::InvalidParameter, "The set's format must be 0 or 1", format)?;
    let banks = read(words, 1)?;
    let counted = banks.count_ones() == u32::from(variable_words);
    let rule = "The variable header must hold one word for each valid bank";
    check(counted, HvStatus::InvalidHypercallInput, rule, banks)?;
    let mut set = [0; WORDS];
    let mut beyond = 0;
    let mut next = 2;
    for bank in (0..64).filter(|bank| banks >> bank & 1 != 0) {
        let members = read(words, next)?;
        next += 1;
        match set.get_mut(bank) {
            Some(word) => *word = members,
            None if members != 0 => beyond = members,
            None => {}
        }
    }
    let named = Named { everybody: format == ALL, set: CpuSet::from_words(set), beyond };
    Ok((named, 2 + next))
}

/// The mask of the plain form.
pub(super) fn encode_mask(reach: &Reach) -> Result<u64, Unsayable> {
    match reach {
        Reach::Local => Err(Unsayable::Reach),
        Reach::All => Ok(0),
        Reach::Set(set) => {
            let [mask, rest @ ..] = set.words();
            say(rest.iter().all(|word| *word == 0), Unsayable::Reach)?;
            Ok(*mask)
        }
    }
}

/// Writes a sparse set, or "all", and returns the number of words.
pub(super) fn encode(reach: &Reach, words: &mut [u64]) -> Result<usize, Unsayable> {
    let set = match reach {
        Reach::Local => return Err(Unsayable::Reach),
        Reach::All => &CpuSet::EMPTY,
        Reach::Set(set) => set,
    };
    let used = set.words().iter().filter(|word| **word != 0).count();
    say(words.len() >= 2 + used, Unsayable::Reach)?;
    words[0] = if *reach == Reach::All { ALL } else { SPARSE };
    words[1] = 0;
    let mut next = 2;
    for (bank, members) in set.words().iter().enumerate().filter(|(_, word)| **word != 0) {
        words[1] |= 1 << bank;
        words[next] = *members;
        next += 1;
    }
    Ok(next)
}
