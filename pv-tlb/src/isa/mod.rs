//! Registers, operands and payloads of the instruction sets, to and from
//! [`Invalidation`](crate::invalidation::Invalidation).
//!
//! Pure functions: no state, no owner, no ordering. Decoders are fed by guests and
//! answer every input, with an invalidation or with the [`GuestFault`] that the
//! hardware would raise. Encoders are used by guests and tests; they refuse, with
//! [`Unsayable`], what the instruction cannot say. What the manuals leave open, or
//! what is not certain, is a switch in each module's rules.

pub mod fault;
pub mod invlpgb;
pub mod invpcid;
pub mod rar;
pub mod tlbi;

pub use fault::{Cause, GuestFault, HvStatus, Unsayable};

use crate::addr::PageCount;
use crate::invalidation::Extent;

/// Cuts `extent` into pieces of at most `most_pages` addresses each, for
/// instructions whose count is bounded. A whole extent is one piece; a range
/// without pages, or one that leaves the address space, ends where it ends.
///
/// # Panics
/// Never; `most_pages` of 0 is taken for 1.
#[must_use]
pub fn pieces(extent: Extent, most_pages: u64) -> Pieces {
    Pieces { rest: Some(extent), most_pages: most_pages.max(1) }
}

/// Iterator made by [`pieces`].
#[derive(Clone, Debug)]
pub struct Pieces {
    rest: Option<Extent>,
    most_pages: u64,
}

impl Iterator for Pieces {
    type Item = Extent;

    fn next(&mut self) -> Option<Extent> {
        let Extent::Range { start, pages, stride } = self.rest.take()? else {
            return Some(Extent::Whole);
        };
        let taken = pages.0.min(self.most_pages);
        if taken == 0 {
            return None;
        }
        self.rest = taken
            .checked_mul(stride.bytes())
            .and_then(|bytes| start.checked_add(bytes))
            .map(|start| Extent::Range { start, pages: PageCount(pages.0 - taken), stride });
        Some(Extent::Range { start, pages: PageCount(taken), stride })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{Gva, PageSize};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_pieces_of_a_range_name_its_addresses_once_and_in_order(
            start in any::<u64>(), pages in 0_u64..300, most in 0_u64..40, large in any::<bool>(),
        ) {
            let stride = if large { PageSize::Large } else { PageSize::Small };
            let range = Extent::Range { start: Gva(start), pages: PageCount(pages), stride };
            let named: Vec<u64> = pieces(range, most)
                .flat_map(|piece| match piece {
                    Extent::Range { start, pages, stride } => (0..pages.0)
                        .map_while(move |i| start.0.checked_add(i * stride.bytes()))
                        .collect::<Vec<_>>(),
                    Extent::Whole => unreachable!("a piece of a range is a range"),
                })
                .collect();
            let meant: Vec<u64> =
                (0..pages).map_while(|i| start.checked_add(i * stride.bytes())).collect();
            prop_assert_eq!(named, meant);
        }
    }

    #[test]
    fn a_whole_extent_is_one_piece() {
        assert!(pieces(Extent::Whole, 8).eq([Extent::Whole]));
    }
}
