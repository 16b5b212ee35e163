//! A set of pCPUs by value: [`CpuSet`] with the other kind of number.

use crate::cpuset::CpuSet;
use crate::id::{PcpuId, VcpuId};
use core::fmt;

/// A set of pCPU numbers below [`crate::cpuset::MAX_CPUS`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PcpuSet(CpuSet);

impl PcpuSet {
    /// The set without members.
    pub const EMPTY: Self = Self(CpuSet::EMPTY);

    /// Adds `id`; false, and no change, if it is out of range.
    pub fn insert(&mut self, id: PcpuId) -> bool {
        self.0.insert(VcpuId(id.0))
    }

    /// Takes `id` out; true if it was a member.
    pub fn remove(&mut self, id: PcpuId) -> bool {
        self.0.remove(VcpuId(id.0))
    }

    /// True if `id` is a member.
    #[must_use]
    pub fn contains(&self, id: PcpuId) -> bool {
        self.0.contains(VcpuId(id.0))
    }

    /// Number of members.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.0.len()
    }

    /// True if there is no member.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the members of `other`.
    pub fn insert_all(&mut self, other: &Self) {
        self.0 = self.0.or(&other.0);
    }

    /// Members of `self` that are not in `other`.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        Self(self.0.minus(&other.0))
    }

    /// The members in rising order.
    pub fn iter(&self) -> impl Iterator<Item = PcpuId> {
        self.0.iter().map(|id| PcpuId(id.0))
    }
}

impl FromIterator<PcpuId> for PcpuSet {
    /// Ids out of range are left out.
    fn from_iter<I: IntoIterator<Item = PcpuId>>(ids: I) -> Self {
        Self(ids.into_iter().map(|id| VcpuId(id.0)).collect())
    }
}

impl fmt::Debug for PcpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}
