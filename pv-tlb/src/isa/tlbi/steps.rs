//! A range of any length as a series of TLBIs.
//!
//! Plain iterator, owned by whoever issues the instructions. It takes the largest
//! SCALE first, so that with 64 KiB addresses every later base stays aligned, and an
//! odd last page by itself.

use super::{Domain, Features, Regime, Tlbi, extent, operand};
use crate::addr::{PAGE_BYTES, PageCount, PageSize};
use crate::invalidation::{Extent, Invalidation, Reach};

/// The TLBIs that together ask for `ask` in `domain`; each can be encoded if its
/// addresses can. A range's ends are rounded outwards to the granule; a stride
/// above 4 KiB takes one instruction an address. `ask.reach` is set by `domain`.
#[must_use]
pub fn steps(ask: &Invalidation, domain: Domain, regime: &Regime) -> Steps {
    let reach = if domain == Domain::Local { Reach::Local } else { Reach::All };
    let ask = Invalidation { reach, ..*ask };
    Steps {
        tlbi: Tlbi { ask, domain, nxs: false, level: None },
        regime: *regime,
        rest: Some(ask.extent),
    }
}

/// Iterator made by [`steps`].
#[derive(Clone, Debug)]
pub struct Steps {
    tlbi: Tlbi,
    regime: Regime,
    rest: Option<Extent>,
}

impl Iterator for Steps {
    type Item = Tlbi;

    fn next(&mut self) -> Option<Tlbi> {
        let Extent::Range { start, pages, stride } = self.rest.take()? else {
            return Some(self.tlbi);
        };
        if pages.0 == 0 {
            return None;
        }
        let granule = self.regime.granule;
        let first = start.0 & !(granule.bytes() - 1);
        let (count, taken) = if stride == PageSize::Small {
            let skipped = (start.page_base().0 - first) / PAGE_BYTES;
            let left = pages.0.saturating_add(skipped).div_ceil(granule.small_pages());
            let count = self.at_once(first, left);
            (count, (count * granule.small_pages() - skipped).min(pages.0))
        } else {
            (1, 1)
        };
        self.rest = start
            .page_base()
            .checked_add(taken * stride.bytes())
            .map(|start| Extent::Range { start, pages: PageCount(pages.0 - taken), stride });
        let ask = Invalidation { extent: extent(first, count, granule), ..self.tlbi.ask };
        Some(Tlbi { ask, ..self.tlbi })
    }
}

impl Steps {
    /// Pages of the regime for the next instruction, 1 for a single-page form.
    fn at_once(&self, first: u64, left: u64) -> u64 {
        let aligned = first & ((1 << self.regime.base_shift()) - 1) == 0;
        match aligned && self.regime.features.contains(Features::RANGE) {
            true => operand::most_at_once(left).max(1),
            false => 1,
        }
    }
}
