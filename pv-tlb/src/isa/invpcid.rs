//! The local invalidations of x86: INVLPG, INVPCID and writes to CR0, CR3, CR4.
//!
//! Pure functions: no state, no owner. All of them are serialising or order later
//! fills after themselves on the executing vCPU, and none reaches another one.
//!
//! Source: Intel SDM vol. 3, 4.10.4 (from memory where [`Rules`] has a switch, and
//! for the reach of SMEP and PAE changes), vol. 2 "INVLPG", "INVPCID", "MOV to CR".

use crate::addr::{Gpa, Gva, PageCount, PageSize};
use crate::id::Pcid;
use crate::invalidation::{Context, Depth, Extent, Globals, Invalidation, Reach};
use crate::isa::fault::{GuestFault, Unsayable, exists, permits, say};

/// CR0.PG.
pub const CR0_PG: u64 = 1 << 31;
/// CR4.PAE.
pub const CR4_PAE: u64 = 1 << 5;
/// CR4.PGE.
pub const CR4_PGE: u64 = 1 << 7;
/// CR4.PCIDE.
pub const CR4_PCIDE: u64 = 1 << 17;
/// CR4.SMEP.
pub const CR4_SMEP: u64 = 1 << 20;
/// CR3 bit 63 with PCIDs: the loaded PCID's entries may stay.
pub const CR3_KEEP: u64 = 1 << 63;
const CR3_PCID: u64 = 0xfff;

/// What the executing vCPU is and how strictly it checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// CPUID.7.0:EBX\[10\], INVPCID exists.
    pub invpcid: bool,
    /// Current privilege level.
    pub cpl: u8,
    /// IA32_EFER.LMA.
    pub long_mode: bool,
    /// CR4 before the instruction.
    pub cr4: u64,
    /// CR3 before the instruction.
    pub cr3: u64,
    /// Physical address bits; CR3 bits above them are reserved.
    pub phys_bits: u8,
    /// INVPCID type 0 raises #GP(0) for an address that is not canonical.
    /// Default true.
    pub invpcid_checks_address: bool,
    /// INVLPG of an address that is not canonical does nothing; if false it is taken
    /// as it stands. Default true.
    pub invlpg_skips_noncanonical: bool,
    /// Global entries are dropped too when CR4.SMEP is set or CR4.PAE changed.
    /// Default true, which over-flushes if it is wrong.
    pub mode_change_drops_globals: bool,
}

impl Rules {
    /// A 64-bit kernel with PCIDs on a processor with 46 physical address bits.
    #[must_use]
    pub const fn kernel(cr3: u64) -> Self {
        Self {
            invpcid: true,
            cpl: 0,
            long_mode: true,
            cr4: CR4_PAE | CR4_PGE | CR4_PCIDE,
            cr3,
            phys_bits: 46,
            invpcid_checks_address: true,
            invlpg_skips_noncanonical: true,
            mode_change_drops_globals: true,
        }
    }

    const fn pcide(&self) -> bool {
        self.cr4 & CR4_PCIDE != 0
    }

    /// The PCID in use; 0 without CR4.PCIDE.
    #[must_use]
    pub const fn current_pcid(&self) -> Pcid {
        Pcid(if self.pcide() { (self.cr3 & CR3_PCID) as u16 } else { 0 })
    }

    fn privileged(&self) -> Result<(), GuestFault> {
        permits(self.cpl == 0, "CPL must be 0", u64::from(self.cpl))
    }
}

/// All addresses of one PCID, or of all, on the executing vCPU.
const fn whole(pcid: Option<Pcid>, globals: Globals) -> Invalidation {
    Invalidation {
        reach: Reach::Local,
        context: Context { asid: None, pcid },
        extent: Extent::Whole,
        globals,
        depth: Depth::AllLevels,
        nested: false,
    }
}

const fn page(address: Gva, pcid: Pcid, globals: Globals) -> Invalidation {
    let start = address.page_base();
    let extent = Extent::Range { start, pages: PageCount(1), stride: PageSize::Small };
    Invalidation { extent, ..whole(Some(pcid), globals) }
}

/// What INVLPG of `address` asks for; `None` if it does nothing.
///
/// The paging-structure entries that go are those of the whole current PCID, more
/// than [`Depth::AllLevels`] of one page demands.
///
/// # Errors
/// #GP(0) if CPL is not 0.
pub fn invlpg(address: Gva, rules: &Rules) -> Result<Option<Invalidation>, GuestFault> {
    rules.privileged()?;
    if rules.invlpg_skips_noncanonical && rules.long_mode && !address.is_canonical() {
        return Ok(None);
    }
    Ok(Some(page(address, rules.current_pcid(), Globals::Include)))
}

/// The operand of the INVLPG that asks for `ask`.
///
/// # Errors
/// What INVLPG cannot say: it takes one page, the current PCID and globals.
pub fn encode_invlpg(ask: &Invalidation, rules: &Rules) -> Result<Gva, Unsayable> {
    say(ask.globals == Globals::Include, Unsayable::Globals)?;
    say(ask.context.pcid == Some(rules.current_pcid()), Unsayable::Context)?;
    let address = one_page(ask)?;
    let skipped = rules.invlpg_skips_noncanonical && rules.long_mode && !address.is_canonical();
    say(!skipped, Unsayable::Extent)?;
    local(ask)?;
    Ok(address)
}

/// The register and the 128-bit memory operand of INVPCID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invpcid {
    /// 0 one address, 1 one PCID, 2 everything, 3 everything but globals.
    pub kind: u64,
    /// Bits 63:0 (PCID in 11:0) and bits 127:64 (linear address).
    pub descriptor: [u64; 2],
}

/// What an INVPCID asks for.
///
/// # Errors
/// #UD if the instruction is absent; #GP(0) for CPL, type, reserved bits, a PCID
/// without CR4.PCIDE, and an address that is not canonical.
pub fn decode(operands: Invpcid, rules: &Rules) -> Result<Invalidation, GuestFault> {
    let Invpcid { kind, descriptor: [low, address] } = operands;
    exists(rules.invpcid, "CPUID.7.0:EBX bit 10 must be 1", 0)?;
    rules.privileged()?;
    permits(kind <= 3, "The INVPCID type must be at most 3", kind)?;
    permits(low & !CR3_PCID == 0, "INVPCID descriptor bits 63:12 must be 0", low)?;
    let pcid = Pcid(low as u16);
    if kind <= 1 {
        let rule = "The PCID must be 0 while CR4.PCIDE is 0";
        permits(rules.pcide() || pcid == Pcid(0), rule, low)?;
    }
    match kind {
        0 => {
            let canonical = !rules.invpcid_checks_address || Gva(address).is_canonical();
            permits(canonical, "The address must be canonical", address)?;
            Ok(page(Gva(address), pcid, Globals::Spare))
        }
        1 => Ok(whole(Some(pcid), Globals::Spare)),
        2 => Ok(whole(None, Globals::Include)),
        _ => Ok(whole(None, Globals::Spare)),
    }
}

/// The operands of the INVPCID that asks for `ask`.
///
/// # Errors
/// What INVPCID cannot say, for example a page with globals.
pub fn encode(ask: &Invalidation, rules: &Rules) -> Result<Invpcid, Unsayable> {
    say(rules.invpcid, Unsayable::Absent)?;
    local(ask)?;
    let Pcid(pcid) = ask.context.pcid.unwrap_or_default();
    say(pcid < 4096 && (pcid == 0 || rules.pcide()), Unsayable::Context)?;
    let kind = match (ask.extent, ask.context.pcid, ask.globals) {
        (Extent::Range { .. }, Some(_), Globals::Spare) => 0,
        (Extent::Whole, Some(_), Globals::Spare) => 1,
        (Extent::Whole, None, Globals::Include) => 2,
        (Extent::Whole, None, Globals::Spare) => 3,
        (_, Some(_), Globals::Include) => return Err(Unsayable::Globals),
        (Extent::Range { .. }, None, _) => return Err(Unsayable::Context),
    };
    let address = if kind == 0 { one_page(ask)? } else { Gva(0) };
    say(!rules.invpcid_checks_address || address.is_canonical(), Unsayable::Extent)?;
    Ok(Invpcid { kind, descriptor: [u64::from(pcid), address.0] })
}

/// What MOV to CR3 of `value` asks for; `None` if bit 63 says that all may stay.
///
/// # Errors
/// #GP(0) for CPL and for reserved bits.
pub fn mov_cr3(value: u64, rules: &Rules) -> Result<Option<Invalidation>, GuestFault> {
    rules.privileged()?;
    let keep = rules.pcide() && value & CR3_KEEP != 0;
    if rules.long_mode {
        let flag = if rules.pcide() { CR3_KEEP } else { 0 };
        let above = u64::MAX.checked_shl(u32::from(rules.phys_bits)).unwrap_or(0);
        let rule = "CR3 bits above the physical address width must be 0";
        permits(value & above & !flag == 0, rule, value)?;
    }
    let pcid = Pcid(if rules.pcide() { (value & CR3_PCID) as u16 } else { 0 });
    Ok((!keep).then_some(whole(Some(pcid), Globals::Spare)))
}

/// The CR3 value that loads the tables at `root` and asks for `ask`.
///
/// # Errors
/// What a CR3 write cannot say: it takes one whole PCID without globals.
pub fn encode_cr3(root: Gpa, ask: &Invalidation, rules: &Rules) -> Result<u64, Unsayable> {
    say(ask.extent == Extent::Whole, Unsayable::Extent)?;
    say(ask.globals == Globals::Spare, Unsayable::Globals)?;
    local(ask)?;
    let Pcid(pcid) = ask.context.pcid.ok_or(Unsayable::Context)?;
    say(pcid < 4096 && (pcid == 0 || rules.pcide()), Unsayable::Context)?;
    Ok(root.0 & !CR3_PCID | u64::from(pcid))
}

/// What MOV to CR4 of `value` asks for; `None` if no bit that matters changes.
///
/// Only the bits that bear on translations are looked at: reserved ones are the
/// business of whoever emulates CR4.
///
/// # Errors
/// #GP(0) for CPL, and for setting PCIDE outside long mode or with a PCID loaded.
pub fn mov_cr4(value: u64, rules: &Rules) -> Result<Option<Invalidation>, GuestFault> {
    rules.privileged()?;
    let set = value & !rules.cr4;
    let cleared = rules.cr4 & !value;
    if set & CR4_PCIDE != 0 {
        permits(rules.long_mode, "CR4.PCIDE may be set only in long mode", value)?;
        permits(rules.cr3 & CR3_PCID == 0, "CR3 bits 11:0 must be 0 to set PCIDE", rules.cr3)?;
    }
    if (set | cleared) & CR4_PGE != 0 || cleared & CR4_PCIDE != 0 {
        return Ok(Some(whole(None, Globals::Include)));
    }
    if set & CR4_SMEP != 0 || (set | cleared) & CR4_PAE != 0 {
        let globals = match rules.mode_change_drops_globals {
            true => Globals::Include,
            false => Globals::Spare,
        };
        return Ok(Some(whole(Some(rules.current_pcid()), globals)));
    }
    Ok(None)
}

/// What MOV to CR0 asks for, given CR0 before and after: everything if paging goes
/// off.
///
/// # Errors
/// #GP(0) for CPL, and for clearing PG while CR4.PCIDE is 1.
pub fn mov_cr0(old: u64, value: u64, rules: &Rules) -> Result<Option<Invalidation>, GuestFault> {
    rules.privileged()?;
    let off = old & !value & CR0_PG != 0;
    permits(!off || !rules.pcide(), "CR0.PG may not be cleared while CR4.PCIDE is 1", value)?;
    Ok(off.then_some(whole(None, Globals::Include)))
}

/// Checks what all local x86 instructions share.
fn local(ask: &Invalidation) -> Result<(), Unsayable> {
    say(ask.reach == Reach::Local, Unsayable::Reach)?;
    say(ask.context.asid.is_none(), Unsayable::Context)?;
    say(ask.depth == Depth::AllLevels, Unsayable::Depth)?;
    say(!ask.nested, Unsayable::Nested)
}

/// The page, if exactly one small page is named.
fn one_page(ask: &Invalidation) -> Result<Gva, Unsayable> {
    match ask.extent {
        Extent::Range { start, pages: PageCount(1), stride: PageSize::Small } => {
            Ok(start.page_base())
        }
        _ => Err(Unsayable::Extent),
    }
}

#[cfg(test)]
#[path = "invpcid/tests.rs"]
mod tests;
