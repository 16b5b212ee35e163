//! What a guest asks to have invalidated, in human units: the one vocabulary
//! that every instruction set, payload and hypercall decodes into.
//!
//! Plain value: built by a decoder, frozen, and passed forward to the planner.
//! Matching follows the rule AMD states for INVLPGB and that the other forms can
//! be said in: an entry is in scope iff every field that is given matches, and it
//! is non-global or globals are included.

use crate::addr::{Gva, PageCount, PageSize};
use crate::cpuset::CpuSet;
use crate::id::{Asid, Pcid, VcpuId};

/// Whose TLBs are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The asking vCPU alone, wherever it runs.
    Local,
    /// These vCPUs; the asking one only if it is a member.
    Set(CpuSet),
    /// Every vCPU of the VM, the asking one included.
    All,
}

impl Reach {
    /// The vCPUs meant, given who asks and which exist.
    #[must_use]
    pub fn vcpus(&self, initiator: VcpuId, present: &CpuSet) -> CpuSet {
        match self {
            Self::Local => CpuSet::only(initiator).and(present),
            Self::Set(set) => set.and(present),
            Self::All => *present,
        }
    }
}

/// Which addresses are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Every address of the context.
    Whole,
    /// `pages` addresses, `stride` apart, from `start` on.
    Range {
        /// First address; its offset inside a page means nothing.
        start: Gva,
        /// How many addresses, the first included.
        pages: PageCount,
        /// Distance between two addresses.
        stride: PageSize,
    },
}

impl Extent {
    /// True if an entry that translates the `entry_size` page at `entry` is hit,
    /// that is, if one of the named addresses lies inside it.
    #[must_use]
    pub fn covers(&self, entry: Gva, entry_size: PageSize) -> bool {
        let Self::Range { start, pages, stride } = *self else {
            return true;
        };
        let first = entry.0 & !(entry_size.bytes() - 1);
        let last = first + (entry_size.bytes() - 1);
        let from = start.page_base().0;
        if pages.0 == 0 || from > last {
            return false;
        }
        // The first named address at or above the entry's first byte.
        let steps = first.saturating_sub(from).div_ceil(stride.bytes());
        steps < pages.0
            && steps
                .checked_mul(stride.bytes())
                .and_then(|offset| from.checked_add(offset))
                .is_some_and(|address| address <= last)
    }
}

/// Which address-space tags must match; a field that is `None` matches all.
///
/// On Arm `asid` stands for the VMID and `pcid` for the ASID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Context {
    /// The hardware's tag of the guest.
    pub asid: Option<Asid>,
    /// The guest's own tag of an address space.
    pub pcid: Option<Pcid>,
}

/// Whether entries marked global are in scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Globals {
    /// Only non-global entries.
    #[default]
    Spare,
    /// Global entries as well.
    Include,
}

/// Which cached levels of a walk are in scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Depth {
    /// Leaf translations and the paging-structure entries used to reach them.
    #[default]
    AllLevels,
    /// Leaf translations only.
    FinalOnly,
}

/// One request to invalidate translations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalidation {
    /// Whose TLBs.
    pub reach: Reach,
    /// Which tags.
    pub context: Context,
    /// Which addresses.
    pub extent: Extent,
    /// Global entries too?
    pub globals: Globals,
    /// Upper levels too?
    pub depth: Depth,
    /// Guest-physical (nested, stage-2) translations too? Never from a guest.
    pub nested: bool,
}

impl Invalidation {
    /// Everything a guest can ask for: all vCPUs, all tags, all addresses, globals.
    pub const EVERYTHING: Self = Self {
        reach: Reach::All,
        context: Context { asid: None, pcid: None },
        extent: Extent::Whole,
        globals: Globals::Include,
        depth: Depth::AllLevels,
        nested: false,
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn size() -> impl Strategy<Value = PageSize> {
        prop_oneof![Just(PageSize::Small), Just(PageSize::Large), Just(PageSize::Huge)]
    }

    proptest! {
        #[test]
        fn a_range_covers_an_entry_iff_one_of_its_addresses_lies_inside(
            start in 0_u64..1 << 32,
            pages in 0_u64..600,
            stride in size(),
            entry in 0_u64..1 << 32,
            entry_size in size(),
        ) {
            let extent = Extent::Range { start: Gva(start), pages: PageCount(pages), stride };
            let base = entry & !(entry_size.bytes() - 1);
            let by_hand = (0..pages)
                .map(|i| (start & !4095) + i * stride.bytes())
                .any(|a| (base..base + entry_size.bytes()).contains(&a));
            prop_assert_eq!(extent.covers(Gva(entry), entry_size), by_hand);
        }

        #[test]
        fn no_range_panics_however_absurd(
            start in any::<u64>(), pages in any::<u64>(), stride in size(),
            entry in any::<u64>(), entry_size in size(),
        ) {
            let extent = Extent::Range { start: Gva(start), pages: PageCount(pages), stride };
            let _ = extent.covers(Gva(entry), entry_size);
        }
    }

    #[test]
    fn reach_names_only_vcpus_that_exist() {
        let present = CpuSet::first(2);
        let set = Reach::Set(CpuSet::first(8));
        assert_eq!(set.vcpus(VcpuId(0), &present), present);
        assert_eq!(Reach::Local.vcpus(VcpuId(1), &present), CpuSet::only(VcpuId(1)));
        assert_eq!(Reach::Local.vcpus(VcpuId(9), &present), CpuSet::EMPTY);
        assert_eq!(Reach::All.vcpus(VcpuId(1), &present), present);
    }
}
