//! Hyper-V's flush hypercalls: control word, input and result, to and from
//! [`Invalidation`].
//!
//! Pure functions over a copy. The monitor copies the input out of guest memory (or
//! out of registers, for a fast call) once, in 64-bit words, and decodes the copy;
//! nothing here looks at the guest again. A virtual processor's index is its
//! [`crate::id::VcpuId`].
//!
//! Sources: Hypervisor Top Level Functional Specification (the four flush calls,
//! HV_VP_SET, hypercall input value); Linux `arch/x86/kvm/hyperv.c` for what KVM
//! checks; OpenVMM `vm/hv1/hvdef` for the extended range format, which the TLFS does
//! not describe.

mod list;
mod vpset;

use crate::addr::Gva;
use crate::cpuset::CpuSet;
use crate::invalidation::{Context, Depth, Extent, Globals, Invalidation, Reach};
use crate::isa::fault::{Cause, GuestFault, HvStatus, Unsayable, say};
pub use list::Extents;

/// HvCallFlushVirtualAddressSpace.
pub const FLUSH_SPACE: u16 = 0x0002;
/// HvCallFlushVirtualAddressList.
pub const FLUSH_LIST: u16 = 0x0003;
/// HvCallFlushVirtualAddressSpaceEx.
pub const FLUSH_SPACE_EX: u16 = 0x0013;
/// HvCallFlushVirtualAddressListEx.
pub const FLUSH_LIST_EX: u16 = 0x0014;

/// Most words an input can have: the page that it may not leave.
pub const MAX_INPUT_WORDS: usize = 512;

bitflags::bitflags! {
    /// Second word of the input.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Flags: u64 {
        /// The processor mask, or set, is ignored.
        const ALL_PROCESSORS = 1 << 0;
        /// AddressSpace is ignored.
        const ALL_SPACES = 1 << 1;
        /// Global entries stay. Without meaning for lists.
        const NON_GLOBAL_ONLY = 1 << 2;
        /// Ranges may be of large pages.
        const EXTENDED_RANGES = 1 << 3;
    }
}

/// The hypercall input value (RCX).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Control {
    /// Bits 15:0.
    pub code: u16,
    /// Bit 16: the input is in registers.
    pub fast: bool,
    /// Bits 26:17: length of the variable header in words.
    pub variable_words: u16,
    /// Bits 43:32: number of list elements.
    pub reps: u16,
    /// Bits 59:48: the first element not yet done.
    pub start: u16,
}

const CONTROL_RESERVED: u64 = 0xf000_f000_f800_0000;

impl Control {
    /// The fields of a control word.
    ///
    /// # Errors
    /// Invalid hypercall input if reserved bits are set. Bit 31, "nested", is one of
    /// them: it addresses a hypervisor that this one does not run under.
    pub fn decode(word: u64) -> Result<Self, GuestFault> {
        let rule = "Control bits 31:27, 47:44 and 63:60 must be 0";
        check(word & CONTROL_RESERVED == 0, HvStatus::InvalidHypercallInput, rule, word)?;
        Ok(Self {
            code: (word & 0xffff) as u16,
            fast: word >> 16 & 1 != 0,
            variable_words: (word >> 17 & 0x3ff) as u16,
            reps: (word >> 32 & 0xfff) as u16,
            start: (word >> 48 & 0xfff) as u16,
        })
    }

    /// The control word; bits of fields above their width are cut.
    #[must_use]
    pub const fn encode(self) -> u64 {
        self.code as u64
            | (self.fast as u64) << 16
            | (self.variable_words as u64 & 0x3ff) << 17
            | (self.reps as u64 & 0xfff) << 32
            | (self.start as u64 & 0xfff) << 48
    }

    fn is_list(self) -> bool {
        matches!(self.code, FLUSH_LIST | FLUSH_LIST_EX)
    }

    fn is_ex(self) -> bool {
        matches!(self.code, FLUSH_SPACE_EX | FLUSH_LIST_EX)
    }
}

/// The result value (RAX) of a call that did `reps` list elements.
#[must_use]
pub const fn result(status: Option<HvStatus>, reps: u16) -> u64 {
    let status = match status {
        None => 0,
        Some(status) => status as u64,
    };
    status | (reps as u64 & 0xfff) << 32
}

/// What the specification leaves open, and what a host may refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// A set that names a VP that does not exist is refused with invalid VP index;
    /// otherwise that VP is left out, as KVM does. Default false.
    pub refuses_absent_vps: bool,
    /// A list with [`Flags::NON_GLOBAL_ONLY`] is refused with invalid parameter;
    /// otherwise the flag is ignored and globals go. Default false: the text allows
    /// the flag only for spaces, but Windows sets it on lists.
    pub refuses_non_global_lists: bool,
    /// CPUID 0x40000003 EDX\[14\]; without it [`Flags::EXTENDED_RANGES`] is refused
    /// with invalid parameter. Default true.
    pub extended_ranges: bool,
}

impl Rules {
    /// The defaults.
    pub const DEFAULT: Self =
        Self { refuses_absent_vps: false, refuses_non_global_lists: false, extended_ranges: true };
}

/// A decoded flush; ranges are read from the copied input as they are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush<'a> {
    /// Reach and globals; its extent is whole even for a list, see
    /// [`Self::invalidations`].
    pub header: Invalidation,
    /// CR3 without PCID and flag bits; `None` for every address space. A host may
    /// ignore it and drop more.
    pub address_space: Option<u64>,
    list: Option<&'a [u64]>,
    extended: bool,
}

impl<'a> Flush<'a> {
    /// The extents asked for: [`Extent::Whole`] once, or a range for each element
    /// of the list from the control word's start on.
    #[must_use]
    pub fn extents(&self) -> Extents<'a> {
        Extents::new(self.list, self.extended)
    }

    /// One invalidation for each extent.
    pub fn invalidations(&self) -> impl Iterator<Item = Invalidation> + use<'a> {
        let header = self.header;
        self.extents().map(move |extent| Invalidation { extent, ..header })
    }
}

const fn refusal(status: HvStatus, rule: &'static str, value: u64) -> GuestFault {
    GuestFault::HyperV(status, Cause { rule, value })
}

fn check(holds: bool, status: HvStatus, rule: &'static str, value: u64) -> Result<(), GuestFault> {
    if holds { Ok(()) } else { Err(refusal(status, rule, value)) }
}

/// What a flush hypercall asks for. `input` holds the input's words: up to the end
/// of its page, or the registers of a fast call.
///
/// # Errors
/// The status to return; nothing may have been flushed then.
pub fn decode<'a>(
    control: Control,
    input: &'a [u64],
    present: &CpuSet,
    rules: &Rules,
) -> Result<Flush<'a>, GuestFault> {
    check_control(control)?;
    let flags = read(input, 1)?;
    let flags = Flags::from_bits(flags).ok_or(refusal(
        HvStatus::InvalidParameter,
        "Flags may set only bits 3:0",
        flags,
    ))?;
    check_flags(flags, control, rules)?;
    let (set, header_words) = match control.is_ex() {
        true => vpset::decode(&input[2..], control.variable_words)?,
        false => (vpset::Named::mask(read(input, 2)?), 3),
    };
    let everywhere = flags.contains(Flags::ALL_PROCESSORS);
    let reach = if everywhere { Reach::All } else { set.reach(present, rules)? };
    let list = match control.is_list() {
        true => Some(list::slice(input, header_words, control)?),
        false => None,
    };
    let spares_globals = flags.contains(Flags::NON_GLOBAL_ONLY) && !control.is_list();
    let space = read(input, 0)?;
    Ok(Flush {
        header: Invalidation {
            reach,
            context: Context::default(),
            extent: Extent::Whole,
            globals: if spares_globals { Globals::Spare } else { Globals::Include },
            depth: Depth::AllLevels,
            nested: false,
        },
        address_space: (!flags.contains(Flags::ALL_SPACES)).then_some(space),
        list,
        extended: flags.contains(Flags::EXTENDED_RANGES),
    })
}

fn check_control(control: Control) -> Result<(), GuestFault> {
    use HvStatus::{InvalidHypercallCode, InvalidHypercallInput};
    let word = control.encode();
    let known = control.is_list() || control.is_ex() || control.code == FLUSH_SPACE;
    check(known, InvalidHypercallCode, "The call code must be one of the four flushes", word)?;
    if control.is_list() {
        let rule = "A list call must start below its rep count";
        check(control.start < control.reps, InvalidHypercallInput, rule, word)?;
    } else {
        let simple = control.reps == 0 && control.start == 0;
        check(simple, InvalidHypercallInput, "A space call must not be a rep call", word)?;
    }
    let fits = control.is_ex() || control.variable_words == 0;
    check(fits, InvalidHypercallInput, "Only Ex calls have a variable header", word)
}

fn check_flags(flags: Flags, control: Control, rules: &Rules) -> Result<(), GuestFault> {
    use HvStatus::InvalidParameter;
    let refused = flags.contains(Flags::NON_GLOBAL_ONLY)
        && control.is_list()
        && rules.refuses_non_global_lists;
    let rule = "A list call must not ask for non-global entries only";
    check(!refused, InvalidParameter, rule, flags.bits())?;
    let offered = !flags.contains(Flags::EXTENDED_RANGES) || rules.extended_ranges;
    check(offered, InvalidParameter, "Extended ranges must be offered to be used", flags.bits())
}

/// The input word `index`.
fn read(input: &[u64], index: usize) -> Result<u64, GuestFault> {
    let rule = "The input must hold every word that the call needs";
    let refusal = refusal(HvStatus::InvalidHypercallInput, rule, input.len() as u64);
    input.get(index).copied().ok_or(refusal)
}

/// The form of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A 64-bit mask: VPs 0 to 63.
    Plain,
    /// A sparse set.
    Ex,
}

/// Writes the call that asks for `header` at each of `extents` (none: every address)
/// into `input`, and returns the control word and the number of words written.
///
/// `header.extent` is not looked at. Ranges above 4 KiB pages, and those too long
/// for a plain element, use the extended format.
///
/// # Errors
/// What the form cannot say, for example a set with VP 64 in the plain form, more
/// pages than an element counts (see [`crate::isa::pieces`]), or more words than
/// `input` has.
pub fn encode(
    header: &Invalidation,
    address_space: Option<u64>,
    extents: &[Extent],
    form: Form,
    input: &mut [u64],
) -> Result<(Control, usize), Unsayable> {
    let context = header.context == Context::default();
    say(context, Unsayable::Context)?;
    say(header.depth == Depth::AllLevels, Unsayable::Depth)?;
    say(!header.nested, Unsayable::Nested)?;
    let is_list = !extents.is_empty();
    say(!is_list || header.globals == Globals::Include, Unsayable::Globals)?;
    let extended = extents.iter().any(|extent| !list::is_plain(*extent));
    let mut flags = Flags::empty();
    flags.set(Flags::ALL_SPACES, address_space.is_none());
    flags.set(Flags::NON_GLOBAL_ONLY, header.globals == Globals::Spare);
    flags.set(Flags::EXTENDED_RANGES, extended);
    flags.set(Flags::ALL_PROCESSORS, header.reach == Reach::All);
    say(input.len() >= 4, Unsayable::Extent)?;
    input[0] = address_space.unwrap_or(0);
    input[1] = flags.bits();
    let words = match form {
        Form::Plain => {
            input[2] = vpset::encode_mask(&header.reach)?;
            1
        }
        Form::Ex => vpset::encode(&header.reach, &mut input[2..])?,
    };
    let elements = input.get_mut(2 + words..).unwrap_or_default();
    say(elements.len() >= extents.len(), Unsayable::Extent)?;
    say(extents.len() < 1 << 12, Unsayable::Extent)?;
    for (element, extent) in elements.iter_mut().zip(extents) {
        *element = list::encode(*extent, extended)?;
    }
    let control = Control {
        code: match (form, is_list) {
            (Form::Plain, false) => FLUSH_SPACE,
            (Form::Plain, true) => FLUSH_LIST,
            (Form::Ex, false) => FLUSH_SPACE_EX,
            (Form::Ex, true) => FLUSH_LIST_EX,
        },
        variable_words: if form == Form::Ex { (words - 2) as u16 } else { 0 },
        reps: extents.len() as u16,
        ..Control::default()
    };
    Ok((control, 2 + words + extents.len()))
}

/// An address of a list element, cut to pages of `bits` address bits.
const fn cut(raw: u64, bits: u32) -> Gva {
    Gva(raw >> bits << bits)
}

#[cfg(test)]
mod tests;
