//! Arm TLBI at EL1: system instruction and operand to and from [`Invalidation`].
//!
//! Pure functions: no state, no owner. A TLBI holds only once a DSB of the same PE,
//! of a domain wide enough, has completed ([`hcr::BarrierDomain::covers`]).
//!
//! In an [`Invalidation`] the VMID stands in `context.asid` and the ASID in
//! `context.pcid`; addresses are counted in 4 KiB pages whatever the granule, so one
//! 64 KiB page is a range of sixteen. Ranges are aligned to the granule, so that
//! both ways of counting name the same entries.
//!
//! Sources: Arm ARM DDI 0487, D8.17 and the TLBI pages; Linux
//! `arch/arm64/include/asm/{sysreg,tlbflush}.h`.

pub mod encoding;
pub mod hcr;
mod operand;
mod steps;

pub use encoding::{Domain, Encoding, Op, Target};
pub use steps::{Steps, steps};

use crate::addr::{Gva, PAGE_BYTES, PageCount, PageSize};
use crate::id::{Asid, Pcid};
use crate::invalidation::{Context, Depth, Extent, Globals, Invalidation, Reach};
use crate::isa::fault::{Cause, GuestFault, Unsayable, say};

/// Size of the smallest page of a translation regime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granule {
    /// 4 KiB.
    Kib4,
    /// 16 KiB.
    Kib16,
    /// 64 KiB.
    Kib64,
}

impl Granule {
    /// Every granule.
    pub const ALL: [Self; 3] = [Self::Kib4, Self::Kib16, Self::Kib64];

    /// Address bits inside a page.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            Self::Kib4 => 12,
            Self::Kib16 => 14,
            Self::Kib64 => 16,
        }
    }

    /// Bytes of a page.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        1 << self.bits()
    }

    /// Address bits inside what one entry of `level` (1 to 3) maps.
    #[must_use]
    pub const fn block_bits(self, level: u8) -> u32 {
        self.bits() + (3 - level as u32) * (self.bits() - 3)
    }

    /// The value of the two-bit TG field, and of TTL\[3:2\].
    const fn field(self) -> u64 {
        match self {
            Self::Kib4 => 1,
            Self::Kib16 => 2,
            Self::Kib64 => 3,
        }
    }

    /// The granule of a TG field; 0 is reserved in a range and "no hint" in a TTL.
    const fn from_field(field: u64) -> Option<Self> {
        match field & 3 {
            1 => Some(Self::Kib4),
            2 => Some(Self::Kib16),
            3 => Some(Self::Kib64),
            _ => None,
        }
    }

    const fn small_pages(self) -> u64 {
        self.bytes() / PAGE_BYTES
    }
}

bitflags::bitflags! {
    /// Architecture features on which encodings depend.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Features: u8 {
        /// FEAT_TLBIOS: the Outer Shareable forms.
        const OUTER = 1 << 0;
        /// FEAT_TLBIRANGE: the range forms.
        const RANGE = 1 << 1;
        /// FEAT_XS: the nXS forms.
        const XS = 1 << 2;
        /// FEAT_TTL: the level hint of the address forms.
        const TTL = 1 << 3;
    }
}

/// What an operand does that puts the PE under no obligation: a hint that is wrong,
/// a reserved or foreign granule, a range that is not aligned to the level it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubtful {
    /// Nothing is dropped: the adversarial choice, and the default.
    Nothing,
    /// The addresses are dropped as if there were no hint.
    Drops,
}

/// The PE's EL1&0 regime, as far as a TLBI depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regime {
    /// The current VMID (VTTBR_EL2\[63:48\]).
    pub vmid: Asid,
    /// The granule in use.
    pub granule: Granule,
    /// TCR_EL1.DS or D128: range addresses are in units of 64 KiB.
    pub wide: bool,
    /// 16-bit ASIDs; otherwise the upper eight bits are taken for 0.
    pub asid16: bool,
    /// Features present.
    pub features: Features,
    /// What doubtful operands do.
    pub doubtful: Doubtful,
}

impl Regime {
    /// A 4 KiB regime with every feature, 48-bit addresses and 16-bit ASIDs.
    #[must_use]
    pub const fn new(vmid: Asid) -> Self {
        Self {
            vmid,
            granule: Granule::Kib4,
            wide: false,
            asid16: true,
            features: Features::all(),
            doubtful: Doubtful::Nothing,
        }
    }

    /// Address bits below the range operand's BaseADDR.
    const fn base_shift(&self) -> u32 {
        if self.wide { Granule::Kib64.bits() } else { self.granule.bits() }
    }

    const fn asid_mask(&self) -> u64 {
        if self.asid16 { 0xffff } else { 0xff }
    }
}

/// A decoded TLBI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tlbi {
    /// What is asked; its reach is local for [`Domain::Local`], else all.
    pub ask: Invalidation,
    /// As encoded; what is performed depends on [`hcr::Hcr`].
    pub domain: Domain,
    /// An nXS form: its barrier does not wait for accesses to XS memory.
    pub nxs: bool,
    /// The leaf's level by the hint; entries of other levels need not go.
    pub level: Option<u8>,
}

impl Tlbi {
    /// True if an entry of that size is bound to go, going by the hint (4 KiB
    /// granule only, whose three sizes [`PageSize`] has).
    #[must_use]
    pub const fn binds(&self, size: PageSize) -> bool {
        match (self.level, size) {
            (None, _) => true,
            (Some(level), PageSize::Small) => level == 3,
            (Some(level), PageSize::Large) => level == 2,
            (Some(level), PageSize::Huge) => level == 1,
        }
    }
}

/// What a TLBI executed at EL1 asks for; `None` if the operand puts the PE under no
/// obligation and [`Doubtful::Nothing`] holds.
///
/// # Errors
/// UNDEFINED for encodings that EL1 does not have, among them all of EL2's, and for
/// forms of absent features.
pub fn decode(encoding: Encoding, value: u64, regime: &Regime) -> Result<Option<Tlbi>, GuestFault> {
    let undefined =
        |rule| GuestFault::Undefined(Cause { rule, value: u64::from(encoding.instruction(31)) });
    let op = encoding.op().ok_or_else(|| undefined("The TLBI must be one that EL1 has"))?;
    let needs = op.needs();
    if !regime.features.contains(needs) {
        return Err(undefined("The form needs FEAT_TLBIOS, FEAT_TLBIRANGE or FEAT_XS"));
    }
    let asid = Pcid((value >> 48 & regime.asid_mask()) as u16);
    let (pcid, extent, level) = match op.target {
        Target::Vm => (None, Extent::Whole, None),
        Target::Asid => (Some(asid), Extent::Whole, None),
        Target::Page { any_asid, .. } => {
            let Some((extent, level)) = operand::page(value, regime) else { return Ok(None) };
            ((!any_asid).then_some(asid), extent, level)
        }
        Target::Range { any_asid, .. } => {
            let Some((extent, level)) = operand::range(value, regime) else { return Ok(None) };
            ((!any_asid).then_some(asid), extent, level)
        }
    };
    let ask = Invalidation {
        reach: if op.domain == Domain::Local { Reach::Local } else { Reach::All },
        context: Context { asid: Some(regime.vmid), pcid },
        extent,
        globals: if op.target == Target::Asid { Globals::Spare } else { Globals::Include },
        depth: if op.target.is_leaf() { Depth::FinalOnly } else { Depth::AllLevels },
        nested: false,
    };
    Ok(Some(Tlbi { ask, domain: op.domain, nxs: op.nxs, level }))
}

/// The instruction and operand of `tlbi`.
///
/// A range that one operand cannot name is cut by [`steps`].
///
/// # Errors
/// What no single TLBI can say.
pub fn encode(tlbi: &Tlbi, regime: &Regime) -> Result<(Encoding, u64), Unsayable> {
    let ask = &tlbi.ask;
    let reach = if tlbi.domain == Domain::Local { Reach::Local } else { Reach::All };
    say(ask.reach == reach, Unsayable::Reach)?;
    say(!ask.nested, Unsayable::Nested)?;
    say(ask.context.asid == Some(regime.vmid), Unsayable::Context)?;
    let Pcid(asid) = ask.context.pcid.unwrap_or_default();
    say(u64::from(asid) <= regime.asid_mask(), Unsayable::Context)?;
    let any_asid = ask.context.pcid.is_none();
    let leaf = ask.depth == Depth::FinalOnly;
    let (target, low) = match ask.extent {
        Extent::Whole => {
            say(!leaf, Unsayable::Depth)?;
            say(any_asid == (ask.globals == Globals::Include), Unsayable::Globals)?;
            say(tlbi.level.is_none(), Unsayable::Extent)?;
            (if any_asid { Target::Vm } else { Target::Asid }, 0)
        }
        Extent::Range { start, pages, stride } => {
            say(ask.globals == Globals::Include, Unsayable::Globals)?;
            say(stride == PageSize::Small, Unsayable::Extent)?;
            if pages.0 == regime.granule.small_pages() {
                let low = operand::encode_page(start, tlbi.level, regime)?;
                (Target::Page { any_asid, leaf }, low)
            } else {
                let low = operand::encode_range(start, pages.0, tlbi.level, regime)?;
                (Target::Range { any_asid, leaf }, low)
            }
        }
    };
    let op = Op { target, domain: tlbi.domain, nxs: tlbi.nxs };
    say(regime.features.contains(op.needs()), Unsayable::Absent)?;
    Ok((op.encoding(), u64::from(asid) << 48 | low))
}

/// `granules` pages of the regime from `start` on, as a range of small pages.
fn extent(start: u64, granules: u64, granule: Granule) -> Extent {
    let pages = PageCount(granules * granule.small_pages());
    Extent::Range { start: Gva(start), pages, stride: PageSize::Small }
}

#[cfg(test)]
#[path = "tlbi/tests.rs"]
mod tests;
