//! Elements of a flush list: ranges of guest addresses.
//!
//! Pure functions. Plain: page number in bits 63:12, pages after the first in 11:0.
//! Extended: pages after the first in 10:0, large pages in bit 11, and then 1 GiB
//! pages in bit 12 and the address in 63:21.
//!
//! Large pages are decoded as the small pages they consist of: a nested page table
//! may have splintered them, so that one address a page would miss entries.

use super::{Control, cut, refusal};
use crate::addr::{Gva, PageCount, PageSize};
use crate::invalidation::Extent;
use crate::isa::fault::{GuestFault, HvStatus, Unsayable, say};

const MOST_PLAIN: u64 = 1 << 12;
const MOST_EXTENDED: u64 = 1 << 11;
const LARGE: u64 = 1 << 11;
const GIGABYTE: u64 = 1 << 12;

/// The elements still to be done.
pub(super) fn slice(
    input: &[u64],
    header_words: usize,
    control: Control,
) -> Result<&[u64], GuestFault> {
    let first = header_words + usize::from(control.start);
    let end = header_words + usize::from(control.reps);
    let rule = "The input must hold every element of the list";
    let refusal = refusal(HvStatus::InvalidHypercallInput, rule, input.len() as u64);
    input.get(first..end).ok_or(refusal)
}

/// Iterator over what a flush asks for, see [`super::Flush::extents`].
#[derive(Clone, Debug)]
pub struct Extents<'a> {
    whole: bool,
    list: core::slice::Iter<'a, u64>,
    extended: bool,
}

impl<'a> Extents<'a> {
    pub(super) fn new(list: Option<&'a [u64]>, extended: bool) -> Self {
        Self { whole: list.is_none(), list: list.unwrap_or_default().iter(), extended }
    }
}

impl Iterator for Extents<'_> {
    type Item = Extent;

    fn next(&mut self) -> Option<Extent> {
        if core::mem::take(&mut self.whole) {
            return Some(Extent::Whole);
        }
        self.list.next().map(|element| decode(*element, self.extended))
    }
}

fn decode(element: u64, extended: bool) -> Extent {
    let (size, most) = match (extended, element & LARGE != 0) {
        (false, _) => (PageSize::Small, MOST_PLAIN),
        (true, false) => (PageSize::Small, MOST_EXTENDED),
        (true, true) if element & GIGABYTE == 0 => (PageSize::Large, MOST_EXTENDED),
        (true, true) => (PageSize::Huge, MOST_EXTENDED),
    };
    let count = (element & (most - 1)) + 1;
    let bits = size.bytes().trailing_zeros();
    small(cut(element, bits), count * (size.bytes() / PageSize::Small.bytes()))
}

fn small(start: Gva, pages: u64) -> Extent {
    Extent::Range { start, pages: PageCount(pages), stride: PageSize::Small }
}

/// True if a plain element can name it.
pub(super) fn is_plain(extent: Extent) -> bool {
    matches!(extent, Extent::Range { pages, stride: PageSize::Small, .. } if pages.0 <= MOST_PLAIN)
}

/// The element for a range; its start is cut to its page.
pub(super) fn encode(extent: Extent, extended: bool) -> Result<u64, Unsayable> {
    let Extent::Range { start, pages, stride: PageSize::Small } = extent else {
        return Err(Unsayable::Extent);
    };
    say(pages.0 > 0, Unsayable::Extent)?;
    let start = start.page_base().0;
    if !extended {
        say(pages.0 <= MOST_PLAIN, Unsayable::Extent)?;
        return Ok(start | (pages.0 - 1));
    }
    // The smallest size that names exactly these pages.
    [(PageSize::Small, 0), (PageSize::Large, LARGE), (PageSize::Huge, LARGE | GIGABYTE)]
        .into_iter()
        .find_map(|(size, bits)| {
            let each = size.bytes() / PageSize::Small.bytes();
            let count = pages.0 / each;
            let fits = (1..=MOST_EXTENDED).contains(&count)
                && pages.0.is_multiple_of(each)
                && start.is_multiple_of(size.bytes());
            fits.then(|| start | bits | (count - 1))
        })
        .ok_or(Unsayable::Extent)
}
