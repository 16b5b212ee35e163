//! A set of up to 1,024 CPUs, by value and without allocation.
//!
//! Plain value, no sharing: a set is built, frozen and passed forward. The words
//! that are known to be empty are skipped, so that the usual sparse set costs
//! what its members cost.

use crate::id::VcpuId;
use core::fmt;

/// 64-bit words of a [`CpuSet`].
pub const WORDS: usize = 16;

/// Most CPUs a [`CpuSet`] can name; ids run from 0 to this minus one.
pub const MAX_CPUS: u32 = (WORDS as u32) * 64;

/// A set of CPU numbers below [`MAX_CPUS`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CpuSet {
    words: [u64; WORDS],
}

impl CpuSet {
    /// The set without members.
    pub const EMPTY: Self = Self { words: [0; WORDS] };

    /// The set {0, …, `count`-1}; counts above [`MAX_CPUS`] are cut to it.
    #[must_use]
    pub fn first(count: u32) -> Self {
        let mut set = Self::EMPTY;
        for (i, word) in set.words.iter_mut().enumerate() {
            let below = count.saturating_sub(i as u32 * 64).min(64);
            *word = if below == 64 { u64::MAX } else { (1 << below) - 1 };
        }
        set
    }

    /// The set with the one member `id`; empty if `id` is out of range.
    #[must_use]
    pub fn only(id: VcpuId) -> Self {
        let mut set = Self::EMPTY;
        set.insert(id);
        set
    }

    /// The set made of its 64-bit words, CPU 0 in bit 0 of word 0.
    #[must_use]
    pub const fn from_words(words: [u64; WORDS]) -> Self {
        Self { words }
    }

    /// The 64-bit words, CPU 0 in bit 0 of word 0.
    #[must_use]
    pub const fn words(&self) -> &[u64; WORDS] {
        &self.words
    }

    /// Adds `id`; false, and no change, if it is out of range.
    pub fn insert(&mut self, id: VcpuId) -> bool {
        match self.words.get_mut(id.index() / 64) {
            Some(word) => {
                *word |= 1 << (id.0 % 64);
                true
            }
            None => false,
        }
    }

    /// Takes `id` out; true if it was a member.
    pub fn remove(&mut self, id: VcpuId) -> bool {
        let was = self.contains(id);
        if let Some(word) = self.words.get_mut(id.index() / 64) {
            *word &= !(1 << (id.0 % 64));
        }
        was
    }

    /// True if `id` is a member.
    #[must_use]
    pub fn contains(&self, id: VcpuId) -> bool {
        self.words.get(id.index() / 64).is_some_and(|word| word & (1 << (id.0 % 64)) != 0)
    }

    /// Number of members.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// True if there is no member.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Members of both sets.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a & b)
    }

    /// Members of either set.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a | b)
    }

    /// Members of `self` that are not in `other`.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a & !b)
    }

    /// The set without `id`.
    #[must_use]
    pub fn without(mut self, id: VcpuId) -> Self {
        self.remove(id);
        self
    }

    /// The members in rising order.
    pub fn iter(&self) -> Iter<'_> {
        Iter { words: &self.words, next_word: 0, bits: 0 }
    }

    fn zip(&self, other: &Self, op: impl Fn(u64, u64) -> u64) -> Self {
        let mut words = self.words;
        for (a, b) in words.iter_mut().zip(other.words) {
            *a = op(*a, b);
        }
        Self { words }
    }
}

impl FromIterator<VcpuId> for CpuSet {
    /// Ids out of range are left out.
    fn from_iter<I: IntoIterator<Item = VcpuId>>(ids: I) -> Self {
        let mut set = Self::EMPTY;
        for id in ids {
            set.insert(id);
        }
        set
    }
}

impl<'a> IntoIterator for &'a CpuSet {
    type Item = VcpuId;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// Iterator over the members of a [`CpuSet`] in rising order.
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    words: &'a [u64; WORDS],
    next_word: usize,
    bits: u64,
}

impl Iterator for Iter<'_> {
    type Item = VcpuId;

    fn next(&mut self) -> Option<VcpuId> {
        while self.bits == 0 {
            self.bits = *self.words.get(self.next_word)?;
            self.next_word += 1;
        }
        let bit = self.bits.trailing_zeros();
        self.bits &= self.bits - 1;
        Some(VcpuId((self.next_word as u32 - 1) * 64 + bit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn model(ids: &[u32]) -> (CpuSet, BTreeSet<u32>) {
        let set = ids.iter().map(|id| VcpuId(*id)).collect();
        (set, ids.iter().copied().filter(|id| *id < MAX_CPUS).collect())
    }

    proptest! {
        #[test]
        fn set_algebra_agrees_with_a_tree_set(
            a in proptest::collection::vec(0..MAX_CPUS + 8, 0..80),
            b in proptest::collection::vec(0..MAX_CPUS + 8, 0..80),
        ) {
            let (sa, ta) = model(&a);
            let (sb, tb) = model(&b);
            let list = |s: CpuSet| s.iter().map(|id| id.0).collect::<BTreeSet<_>>();
            prop_assert_eq!(list(sa), ta.clone());
            prop_assert_eq!(sa.len() as usize, ta.len());
            prop_assert_eq!(list(sa.and(&sb)), &ta & &tb);
            prop_assert_eq!(list(sa.or(&sb)), &ta | &tb);
            prop_assert_eq!(list(sa.minus(&sb)), &ta - &tb);
            prop_assert_eq!(sa.is_empty(), ta.is_empty());
        }

        #[test]
        fn first_n_holds_exactly_the_first_n(n in 0..MAX_CPUS + 100) {
            let set = CpuSet::first(n);
            prop_assert_eq!(set.len(), n.min(MAX_CPUS));
            prop_assert_eq!(set.iter().last().map(|id| id.0), n.min(MAX_CPUS).checked_sub(1));
        }
    }

    #[test]
    fn ids_out_of_range_are_refused_and_never_members() {
        let mut set = CpuSet::EMPTY;
        assert!(!set.insert(VcpuId(MAX_CPUS)));
        assert!(!set.contains(VcpuId(MAX_CPUS)));
        assert!(!set.remove(VcpuId(u32::MAX)));
    }
}
