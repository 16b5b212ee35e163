//! Addresses and page counts of the guest, one type per meaning.
//!
//! Plain values: no state, no owner, no ordering. A guest virtual address and a
//! guest physical address never mix, and INVLPGB's "pages after the first" can
//! not be taken for a number of pages.

use core::fmt;

/// A guest virtual (linear) address, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Gva(pub u64);

/// A guest physical address, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Gpa(pub u64);

/// Bytes of the smallest x86 page, which is also the granule of a [`PageCount`]
/// unless a [`PageSize`] stands beside it.
pub const PAGE_BYTES: u64 = 4096;

impl Gva {
    /// True if bits 63:47 are all equal, as four-level paging requires
    /// (Intel SDM vol. 1, 3.3.7.1).
    #[must_use]
    pub const fn is_canonical(self) -> bool {
        let top = (self.0 as i64) >> 47;
        top == 0 || top == -1
    }

    /// The address with its offset inside a 4 KiB page cleared.
    #[must_use]
    pub const fn page_base(self) -> Self {
        Self(self.0 & !(PAGE_BYTES - 1))
    }

    /// The address `bytes` further on; `None` past the end of the address space.
    #[must_use]
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }
}

impl fmt::Debug for Gva {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gva({:#x})", self.0)
    }
}

impl fmt::Debug for Gpa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gpa({:#x})", self.0)
    }
}

impl fmt::Display for Gva {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for Gpa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A translation's page size; also the stride of a range invalidation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum PageSize {
    /// 4 KiB.
    #[default]
    Small,
    /// 2 MiB.
    Large,
    /// 1 GiB.
    Huge,
}

impl PageSize {
    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Small => PAGE_BYTES,
            Self::Large => 2 << 20,
            Self::Huge => 1 << 30,
        }
    }
}

/// A number of pages, the first included; zero names no page at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct PageCount(pub u64);

/// The number of pages AFTER the first, the unit of INVLPGB's ECX\[15:0\] and of
/// a Hyper-V GVA list entry: zero names one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct ExtraPages(pub u16);

impl From<ExtraPages> for PageCount {
    fn from(extra: ExtraPages) -> Self {
        Self(u64::from(extra.0) + 1)
    }
}

impl TryFrom<PageCount> for ExtraPages {
    type Error = PageCount;

    /// Fails with the count itself if it is zero or above 65,536, since neither
    /// can be said in "pages after the first" of sixteen bits.
    fn try_from(count: PageCount) -> Result<Self, Self::Error> {
        match count.0.checked_sub(1).map(u16::try_from) {
            Some(Ok(extra)) => Ok(Self(extra)),
            _ => Err(count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extra_pages_and_page_count_differ_by_one_and_refuse_what_they_cannot_say() {
        assert_eq!(PageCount::from(ExtraPages(0)), PageCount(1));
        assert_eq!(ExtraPages::try_from(PageCount(65_536)), Ok(ExtraPages(65_535)));
        assert_eq!(ExtraPages::try_from(PageCount(0)), Err(PageCount(0)));
        assert_eq!(ExtraPages::try_from(PageCount(65_537)), Err(PageCount(65_537)));
    }

    #[test]
    fn canonical_means_bits_63_to_47_agree() {
        assert!(Gva(0x7fff_ffff_ffff).is_canonical());
        assert!(Gva(0xffff_8000_0000_0000).is_canonical());
        assert!(!Gva(0x8000_0000_0000).is_canonical());
        assert!(!Gva(0x1234_8000_0000_0000).is_canonical());
    }
}
