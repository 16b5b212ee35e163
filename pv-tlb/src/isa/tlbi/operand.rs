//! The 64-bit operands of the address forms, below the ASID.
//!
//! Pure functions. One page: TTL in bits 47:44, VA\[55:12\] in bits 43:0. A range:
//! TG 47:46, SCALE 45:44, NUM 43:39, TTL 38:37, BaseADDR 36:0; it names
//! (NUM + 1) << (5 * SCALE + 1) pages and never runs from one half of the address
//! space into the other.

use super::{Doubtful, Features, Granule, Regime, extent};
use crate::addr::Gva;
use crate::invalidation::Extent;
use crate::isa::fault::{Unsayable, say};

const VA_BITS: u32 = 44;
const BASE_BITS: u32 = 37;
const MAX_NUM: u64 = 31;

/// `field`, `bits` wide, as an address in units of `1 << shift`, sign-extended.
const fn address(field: u64, bits: u32, shift: u32) -> u64 {
    let top = 64 - bits;
    (((field << top) as i64) >> top << shift) as u64
}

/// The field of `bits` bits for `start`, if it can name it.
fn field(start: u64, bits: u32, shift: u32) -> Result<u64, Unsayable> {
    let field = start >> shift & ((1 << bits) - 1);
    say(address(field, bits, shift) == start, Unsayable::Extent)?;
    Ok(field)
}

/// Extent and leaf level of a one-page operand; `None` for no obligation.
pub(super) fn page(value: u64, regime: &Regime) -> Option<(Extent, Option<u8>)> {
    let start = address(value, VA_BITS, 12) & !(regime.granule.bytes() - 1);
    let ttl = if regime.features.contains(Features::TTL) { value >> 44 & 15 } else { 0 };
    let level = match Granule::from_field(ttl >> 2) {
        None => None,
        Some(granule) if granule == regime.granule => level(ttl & 3),
        Some(_) => match regime.doubtful {
            Doubtful::Nothing => return None,
            Doubtful::Drops => None,
        },
    };
    Some((extent(start, 1, regime.granule), level))
}

/// The level a hint names; 0 is reserved where no block can be, and no hint.
const fn level(field: u64) -> Option<u8> {
    if field == 0 { None } else { Some(field as u8) }
}

/// The operand, without ASID, that names the page at `start`.
pub(super) fn encode_page(
    start: Gva,
    level: Option<u8>,
    regime: &Regime,
) -> Result<u64, Unsayable> {
    say(start.0 & (regime.granule.bytes() - 1) == 0, Unsayable::Extent)?;
    let ttl = match level {
        None => 0,
        Some(level @ 1..=3) if regime.features.contains(Features::TTL) => {
            regime.granule.field() << 2 | u64::from(level)
        }
        Some(_) => return Err(Unsayable::Extent),
    };
    Ok(ttl << 44 | field(start.0, VA_BITS, 12)?)
}

/// Extent and leaf level of a range operand; `None` for no obligation.
pub(super) fn range(value: u64, regime: &Regime) -> Option<(Extent, Option<u8>)> {
    let named = Granule::from_field(value >> 46);
    let shift = regime.base_shift();
    let start = address(value, BASE_BITS, shift);
    let mut level = level(value >> 37 & 3);
    let aligned = level.is_none_or(|level| is_aligned(start, level, regime.granule));
    if named != Some(regime.granule) || !aligned {
        if regime.doubtful == Doubtful::Nothing {
            return None;
        }
        level = None;
    }
    let granule = named.unwrap_or(regime.granule);
    let (scale, num) = (value >> 44 & 3, value >> 39 & MAX_NUM);
    let count = (num + 1) << (5 * scale + 1);
    // Where the half that the range begins in ends: at the top of BaseADDR's
    // positive numbers, or at the end of the address space, which wraps to 0.
    let end = if start >> 63 == 0 { 1 << (BASE_BITS - 1 + shift) } else { 0_u64 };
    let left = end.wrapping_sub(start).div_ceil(granule.bytes());
    Some((extent(start, count.min(left), granule), level))
}

/// A level below 3 promises blocks, and a range of blocks begins with one.
fn is_aligned(start: u64, level: u8, granule: Granule) -> bool {
    start & ((1 << granule.block_bits(level)) - 1) == 0
}

/// The operand, without ASID, that names `pages` small pages from `start` on.
pub(super) fn encode_range(
    start: Gva,
    pages: u64,
    level: Option<u8>,
    regime: &Regime,
) -> Result<u64, Unsayable> {
    let granule = regime.granule;
    say(pages.is_multiple_of(granule.small_pages()), Unsayable::Extent)?;
    let count = pages / granule.small_pages();
    let (scale, num) = scale_and_num(count).ok_or(Unsayable::Extent)?;
    let ttl = match level {
        None => 0,
        Some(level @ 1..=3) if is_aligned(start.0, level, granule) => u64::from(level),
        Some(_) => return Err(Unsayable::Extent),
    };
    let shift = regime.base_shift();
    let base = field(start.0, BASE_BITS, shift)?;
    let value = granule.field() << 46 | scale << 44 | num << 39 | ttl << 37 | base;
    // Reading it back finds the range that would be cut at the end of its half.
    let whole = Some((extent(start.0, count, granule), level));
    say(range(value, regime) == whole, Unsayable::Extent)?;
    Ok(value)
}

/// The smallest scale that says exactly `count` pages.
fn scale_and_num(count: u64) -> Option<(u64, u64)> {
    (0..4).find_map(|scale| {
        let unit = 1 << (5 * scale + 1);
        let num = (count / unit).checked_sub(1)?;
        (count.is_multiple_of(unit) && num <= MAX_NUM).then_some((scale, num))
    })
}

/// The most pages, at most `count`, that one range operand can name.
pub(super) fn most_at_once(count: u64) -> u64 {
    (0..4)
        .rev()
        .map(|scale| 1 << (5 * scale + 1))
        .find(|unit| *unit <= count)
        .map_or(0, |unit| (count / unit).min(MAX_NUM + 1) * unit)
}
