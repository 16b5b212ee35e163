//! Intel Remote Action Request: payloads, the action vector and the MSRs.
//!
//! Pure functions over copies; who owns which byte is said at [`Action`]. A payload
//! must be visible before its action byte says PENDING, which is the commit point.
//!
//! Sources: Linux RFC "Intel RAR TLB invalidation" v4 (van Riel, 2025-06-19) and
//! the reviews of it that quote Intel document 341431, which was not read itself;
//! Intel's code of 2019. What they leave open is a switch in [`Rules`].

use crate::addr::{Gva, PageCount, PageSize};
use crate::id::Pcid;
use crate::invalidation::{Context, Depth, Extent, Globals, Invalidation, Reach};
use crate::isa::fault::{Cause, GuestFault, Unsayable, permits, say};

/// IA32_RAR_CTRL.
pub const MSR_CTRL: u32 = 0xed;
/// IA32_RAR_ACT_VEC: physical address of this pCPU's action vector.
pub const MSR_ACT_VEC: u32 = 0xee;
/// IA32_RAR_PAYLOAD_BASE: physical address of the payload table.
pub const MSR_PAYLOAD_BASE: u32 = 0xef;
/// IA32_RAR_INFO, read-only.
pub const MSR_INFO: u32 = 0xf0;
/// IA32_CORE_CAPABILITIES, present with CPUID.7.0:EDX\[30\].
pub const MSR_CORE_CAPABILITIES: u32 = 0xcf;
/// Bit 1 of [`MSR_CORE_CAPABILITIES`]: RAR exists.
pub const CORE_CAPABILITY_RAR: u64 = 1 << 1;
/// ICR delivery mode 011b, in bits 10:8.
pub const ICR_DELIVERY_MODE: u32 = 0x300;
/// The one vector a RAR message has.
pub const VECTOR: u8 = 0xe0;
/// 64-bit words of a payload.
pub const PAYLOAD_WORDS: usize = 8;
/// Most pages of one payload, a plain count.
pub const MAX_PAGES: u64 = 63;

/// A byte of an action vector.
///
/// The initiator that owns the slot stores PENDING into the vector of each target;
/// each target answers in its own vector and nobody else writes there meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Action {
    /// Done, and the value before the first request.
    Success = 0x00,
    /// Asked; the target has not answered.
    Pending = 0x01,
    /// Seen by the target (early versions of the interface only).
    Acked = 0x02,
    /// The payload was not performed.
    Failure = 0x80,
}

impl TryFrom<u8> for Action {
    type Error = u8;

    /// Fails with the byte itself if it is none of the four.
    fn try_from(byte: u8) -> Result<Self, u8> {
        [Self::Success, Self::Pending, Self::Acked, Self::Failure]
            .into_iter()
            .find(|action| *action as u8 == byte)
            .ok_or(byte)
    }
}

impl Action {
    /// True if the slot's owner may store PENDING over it.
    #[must_use]
    pub const fn may_be_armed(self) -> bool {
        matches!(self, Self::Success | Self::Failure)
    }

    /// True if the initiator must go on waiting.
    #[must_use]
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Pending | Self::Acked)
    }

    /// The target's answer to a payload's outcome.
    #[must_use]
    pub const fn answer<T>(outcome: &Result<T, GuestFault>) -> Self {
        if outcome.is_ok() { Self::Success } else { Self::Failure }
    }
}

/// The slots of an action vector that a scan serves: those whose byte is PENDING.
/// Any other byte, known or not, is left alone.
pub fn pending(vector: &[u8]) -> impl Iterator<Item = usize> {
    vector
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == Action::Pending as u8)
        .map(|(slot, _)| slot)
}

/// What a payload's pages or contexts are matched against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// Type 0, INVPG: targets that have this CR3 loaded; others need do nothing.
    Cr3(u64),
    /// Type 1, INVPG without CR3 match: whatever each target has loaded.
    AnyCr3,
    /// Type 2, INVPCID: the PCID in the invalidation's context, if it has one.
    Pcid,
}

/// A decoded payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    /// What each target is asked to drop. Local: the targets are those that the
    /// message goes to.
    pub ask: Invalidation,
    /// To be matched besides. Ignoring it drops more than was asked.
    pub matching: Match,
}

/// What a page range with a page count of 0 means, which no source says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroPages {
    /// The payload fails, so that nobody believes a flush that did not happen.
    Fails,
    /// One page, as if the count were of pages after the first.
    OnePage,
    /// No page; the payload succeeds.
    NoPage,
}

/// What the sources leave open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// CR4.PCIDE of the guest: a CR3's low twelve bits are a PCID.
    pub pcide: bool,
    /// Default [`ZeroPages::Fails`].
    pub zero_pages: ZeroPages,
    /// INVPCID of an address that is not canonical fails, as the instruction does.
    /// Default true.
    pub checks_address: bool,
    /// IA32_RAR_ACT_VEC must be 64-byte and IA32_RAR_PAYLOAD_BASE 4 KiB aligned, as
    /// the RFC has them. Default true.
    pub checks_alignment: bool,
}

impl Rules {
    /// The defaults, with PCIDs.
    pub const DEFAULT: Self = Self {
        pcide: true,
        zero_pages: ZeroPages::Fails,
        checks_address: true,
        checks_alignment: true,
    };
}

const TYPE_SHIFT: u32 = 8;
const SUBTYPE_SHIFT: u32 = 32;
const STRIDE_SHIFT: u32 = 35;
const PAGES_SHIFT: u32 = 37;
const RESERVED: u64 = 0xffff_f800_ffff_0000;

const INVPG: u64 = 0;
const INVPG_ANY_CR3: u64 = 1;
const INVPCID: u64 = 2;
const SUBTYPE_RANGE: u64 = 0;
const SUBTYPE_CONTEXT: u64 = 1;
const SUBTYPE_ALL: u64 = 2;
const SUBTYPE_ALL_BUT_GLOBALS: u64 = 3;

fn works(holds: bool, rule: &'static str, value: u64) -> Result<(), GuestFault> {
    if holds { Ok(()) } else { Err(GuestFault::RarFailure(Cause { rule, value })) }
}

/// What a payload asks for.
///
/// # Errors
/// FAILURE for reserved bits and for request types other than page and PCID
/// invalidation: EPT, VPID and MSR requests are a host's business and their layout
/// is not public.
pub fn decode(words: &[u64; PAYLOAD_WORDS], rules: &Rules) -> Result<Payload, GuestFault> {
    let [head, second, context, address, ..] = *words;
    works(head & RESERVED == 0, "Payload bits 31:16 and 63:43 must be 0", head)?;
    works(second == 0, "Payload bits 127:64 must be 0", second)?;
    let kind = head >> TYPE_SHIFT & 0xff;
    let subtype = head >> SUBTYPE_SHIFT & 7;
    let cr3_pcid = rules.pcide.then_some(Pcid((context & 0xfff) as u16));
    let (matching, pcid) = match kind {
        INVPG => (Match::Cr3(context), cr3_pcid),
        INVPG_ANY_CR3 => (Match::AnyCr3, None),
        INVPCID => (Match::Pcid, Some(Pcid((context & 0xfff) as u16))),
        _ => return Err(failure("The request type must be 0, 1 or 2", head)),
    };
    let (pcid, extent, globals) = match (kind, subtype) {
        (INVPCID, SUBTYPE_RANGE) => {
            let canonical = !rules.checks_address || Gva(address).is_canonical();
            works(canonical, "The address must be canonical", address)?;
            (pcid, range(head, address, rules)?, Globals::Spare)
        }
        (INVPCID, SUBTYPE_CONTEXT) => (pcid, Extent::Whole, Globals::Spare),
        (INVPCID, SUBTYPE_ALL) => (None, Extent::Whole, Globals::Include),
        (INVPCID, SUBTYPE_ALL_BUT_GLOBALS) => (None, Extent::Whole, Globals::Spare),
        (_, SUBTYPE_RANGE) => (pcid, range(head, address, rules)?, Globals::Include),
        (_, SUBTYPE_ALL) => (pcid, Extent::Whole, Globals::Include),
        (_, SUBTYPE_ALL_BUT_GLOBALS) => (pcid, Extent::Whole, Globals::Spare),
        _ => return Err(failure("The subtype must be one that the request type has", head)),
    };
    Ok(Payload {
        ask: Invalidation {
            reach: Reach::Local,
            context: Context { asid: None, pcid },
            extent,
            globals,
            depth: Depth::AllLevels,
            nested: false,
        },
        matching,
    })
}

fn failure(rule: &'static str, value: u64) -> GuestFault {
    GuestFault::RarFailure(Cause { rule, value })
}

fn range(head: u64, address: u64, rules: &Rules) -> Result<Extent, GuestFault> {
    let stride = match head >> STRIDE_SHIFT & 3 {
        0 => PageSize::Small,
        1 => PageSize::Large,
        2 => PageSize::Huge,
        _ => return Err(failure("The page size must be at most 2", head)),
    };
    let pages = match (head >> PAGES_SHIFT & MAX_PAGES, rules.zero_pages) {
        (0, ZeroPages::Fails) => return Err(failure("A range must have a page", head)),
        (0, ZeroPages::OnePage) => 1,
        (pages, _) => pages,
    };
    Ok(Extent::Range { start: Gva(address).page_base(), pages: PageCount(pages), stride })
}

/// The payload that asks for `payload.ask`; words that are the software's are 0.
///
/// # Errors
/// What a payload cannot say.
pub fn encode(payload: &Payload, rules: &Rules) -> Result<[u64; PAYLOAD_WORDS], Unsayable> {
    let Payload { ask, matching } = payload;
    say(ask.reach == Reach::Local, Unsayable::Reach)?;
    say(ask.context.asid.is_none(), Unsayable::Context)?;
    say(ask.depth == Depth::AllLevels, Unsayable::Depth)?;
    say(!ask.nested, Unsayable::Nested)?;
    let pcid = ask.context.pcid;
    let (kind, context) = match *matching {
        Match::Cr3(cr3) => {
            let own = rules.pcide.then_some(Pcid((cr3 & 0xfff) as u16));
            say(pcid == own, Unsayable::Context)?;
            (INVPG, cr3)
        }
        Match::AnyCr3 => {
            say(pcid.is_none(), Unsayable::Context)?;
            (INVPG_ANY_CR3, 0)
        }
        Match::Pcid => {
            let Pcid(raw) = pcid.unwrap_or_default();
            say(raw < 4096, Unsayable::Context)?;
            (INVPCID, u64::from(raw))
        }
    };
    let (subtype, size, address) = match ask.extent {
        Extent::Whole => (whole_subtype(*matching, pcid, ask.globals)?, 0, 0),
        Extent::Range { start, pages, stride } => {
            let globals = if kind == INVPCID { Globals::Spare } else { Globals::Include };
            say(ask.globals == globals, Unsayable::Globals)?;
            say(kind != INVPCID || pcid.is_some(), Unsayable::Context)?;
            say((1..=MAX_PAGES).contains(&pages.0), Unsayable::Extent)?;
            let checked = kind == INVPCID && rules.checks_address;
            say(!checked || start.is_canonical(), Unsayable::Extent)?;
            let size = (stride as u64) << STRIDE_SHIFT | pages.0 << PAGES_SHIFT;
            (SUBTYPE_RANGE, size, start.page_base().0)
        }
    };
    let head = kind << TYPE_SHIFT | subtype << SUBTYPE_SHIFT | size;
    Ok([head, 0, context, address, 0, 0, 0, 0])
}

fn whole_subtype(matching: Match, pcid: Option<Pcid>, globals: Globals) -> Result<u64, Unsayable> {
    match (matching, pcid, globals) {
        (Match::Pcid, Some(_), Globals::Spare) => Ok(SUBTYPE_CONTEXT),
        (Match::Pcid, Some(_), Globals::Include) => Err(Unsayable::Globals),
        (_, _, Globals::Include) => Ok(SUBTYPE_ALL),
        (_, _, Globals::Spare) => Ok(SUBTYPE_ALL_BUT_GLOBALS),
    }
}

bitflags::bitflags! {
    /// IA32_RAR_CTRL.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Control: u64 {
        /// Serve requests also while RFLAGS.IF is 0.
        const IGNORE_IF = 1 << 30;
        /// Serve requests.
        const ENABLE = 1 << 31;
    }
}

/// What a write of IA32_RAR_CTRL sets.
///
/// # Errors
/// #GP(0) for reserved bits. Real parts are reported to hang when the low byte is
/// not 0; a fault is the kinder answer.
pub fn write_control(value: u64) -> Result<Control, GuestFault> {
    let rule = "IA32_RAR_CTRL may set only bits 30 and 31";
    permits(Control::from_bits(value).is_some(), rule, value)?;
    Ok(Control::from_bits_truncate(value))
}

/// Checks a write of IA32_RAR_ACT_VEC.
///
/// # Errors
/// #GP(0) for an address that the rules find unaligned.
pub fn write_action_vector(value: u64, rules: &Rules) -> Result<(), GuestFault> {
    let aligned = !rules.checks_alignment || value.is_multiple_of(64);
    permits(aligned, "IA32_RAR_ACT_VEC must be 64-byte aligned", value)
}

/// Checks a write of IA32_RAR_PAYLOAD_BASE.
///
/// # Errors
/// #GP(0) for an address that the rules find unaligned.
pub fn write_payload_table(value: u64, rules: &Rules) -> Result<(), GuestFault> {
    let aligned = !rules.checks_alignment || value.is_multiple_of(4096);
    permits(aligned, "IA32_RAR_PAYLOAD_BASE must be 4 KiB aligned", value)
}

/// Number of payload slots that an IA32_RAR_INFO value announces, 1 to 64.
#[must_use]
pub const fn slots(msr_info: u64) -> usize {
    (msr_info >> 32 & 0x3f) as usize + 1
}

/// The IA32_RAR_INFO value for that many slots; `None` outside 1 to 64.
#[must_use]
pub const fn info(slots: usize) -> Option<u64> {
    match slots {
        1..=64 => Some((slots as u64 - 1) << 32),
        _ => None,
    }
}

/// True if a write of `icr` (low half) is a RAR message.
///
/// # Errors
/// The vector, if the delivery mode is RAR's and the vector is not.
pub const fn is_message(icr: u32) -> Result<bool, u8> {
    let vector = (icr & 0xff) as u8;
    match (icr & 0x700 == ICR_DELIVERY_MODE, vector) {
        (false, _) => Ok(false),
        (true, VECTOR) => Ok(true),
        (true, _) => Err(vector),
    }
}

#[cfg(test)]
#[path = "rar/tests.rs"]
mod tests;
