//! AMD INVLPGB (0F 01 FE) and TLBSYNC (0F 01 FF): rAX, ECX, EDX to and from
//! [`Invalidation`].
//!
//! Pure functions: no state, no owner. Ordering is the caller's: an INVLPGB holds
//! only once a TLBSYNC on the same pCPU has returned.
//!
//! Sources: AMD APM vol. 3 "INVLPGB", vol. 2 table B-1 (VMCB 014h, 090h), Linux
//! `arch/x86/include/asm/tlb.h`.

use crate::addr::{ExtraPages, Gva, PAGE_BYTES, PageCount, PageSize};
use crate::id::{Asid, Pcid};
use crate::invalidation::{Context, Depth, Extent, Globals, Invalidation, Reach};
use crate::isa::fault::{GuestFault, Unsayable, exists, permits, say};

/// Bit 3 of CPUID Fn8000_0008 EBX: INVLPGB and TLBSYNC exist.
pub const CPUID_PRESENT: u32 = 1 << 3;
/// Bit 21 of CPUID Fn8000_0008 EBX: nested translations can be included.
pub const CPUID_NESTED: u32 = 1 << 21;

bitflags::bitflags! {
    /// rAX bits 11:0. Every combination of the low four is legal.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Flags: u64 {
        /// The address must match.
        const VA = 1 << 0;
        /// The PCID must match.
        const PCID = 1 << 1;
        /// The ASID must match.
        const ASID = 1 << 2;
        /// Global entries as well.
        const GLOBAL = 1 << 3;
        /// Leaf translations only.
        const FINAL_ONLY = 1 << 4;
        /// Guest-physical translations as well.
        const NESTED = 1 << 5;
    }

    /// Checks that raise #GP(0) and that the rules may leave out, because the
    /// sources name them without certainty. What is not checked is ignored.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Checks: u8 {
        /// rAX bits 11:6, ECX bits 30:16 and EDX bits 31:28 are 0.
        const RESERVED = 1 << 0;
        /// ECX bits 15:0 do not exceed InvlpgbCountMax.
        const COUNT = 1 << 1;
        /// Nested translations only with the CPUID bit, and never from a guest.
        const NESTED = 1 << 2;
        /// The PCID flag only with CR4.PCIDE.
        const PCIDE = 1 << 3;
        /// A host's ASID is below the number of ASIDs.
        const ASID_LIMIT = 1 << 4;
        /// The first and the last address are canonical. Not in the default: only
        /// the advice not to cross the hole is documented.
        const CANONICAL = 1 << 5;
    }
}

const VA_MASK: u64 = !(PAGE_BYTES - 1);
const LEGACY_VA_MASK: u64 = 0xffff_f000;
const RAX_RESERVED: u64 = 0xfc0;
const ECX_RESERVED: u32 = 0x7fff_0000;
const ECX_LARGE: u32 = 1 << 31;
const EDX_RESERVED: u32 = 0xf000_0000;

/// The operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// [`Flags`] in bits 5:0, first page in bits 63:12.
    pub rax: u64,
    /// Pages after the first in bits 15:0, 2 MiB steps in bit 31.
    pub ecx: u32,
    /// ASID in bits 15:0, PCID in bits 27:16.
    pub edx: u32,
}

/// Who executes, which decides what the ASID means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executor {
    /// The host: EDX names any of this many ASIDs.
    Host {
        /// CPUID Fn8000_000A EBX.
        asids: u32,
    },
    /// A guest: whatever EDX holds, its own ASID is used and must match.
    Guest(Asid),
}

/// What the processor offers and how strictly it checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// CPUID Fn8000_0008 EBX\[3\], and in a guest the VMCB's enable bit.
    pub present: bool,
    /// CPUID Fn8000_0008 EBX\[21\].
    pub nested: bool,
    /// InvlpgbCountMax, the largest ECX\[15:0\].
    pub count_max: ExtraPages,
    /// CR4.PCIDE.
    pub pcide: bool,
    /// 64-bit mode; otherwise the address is rAX\[31:12\].
    pub long_mode: bool,
    /// Current privilege level.
    pub cpl: u8,
    /// Who executes.
    pub executor: Executor,
    /// Checks in force.
    pub checks: Checks,
}

impl Rules {
    /// A guest kernel in 64-bit mode with PCIDs on a processor that takes eight
    /// pages (InvlpgbCountMax 7, as Zen 3 servers report).
    #[must_use]
    pub const fn guest(own: Asid) -> Self {
        Self {
            present: true,
            nested: false,
            count_max: ExtraPages(7),
            pcide: true,
            long_mode: true,
            cpl: 0,
            executor: Executor::Guest(own),
            checks: Checks::all().difference(Checks::CANONICAL),
        }
    }

    /// The same with presence, nesting and count taken from CPUID Fn8000_0008.
    #[must_use]
    pub const fn with_cpuid(mut self, ebx: u32, edx: u32) -> Self {
        self.present = ebx & CPUID_PRESENT != 0;
        self.nested = ebx & CPUID_NESTED != 0;
        self.count_max = ExtraPages((edx & 0xffff) as u16);
        self
    }

    const fn checks(&self, check: Checks) -> bool {
        self.checks.contains(check)
    }
}

/// What an INVLPGB asks for.
///
/// Without [`Flags::VA`] the count and the step are ignored, save for their checks.
///
/// # Errors
/// #UD if the instruction is absent, #GP(0) for CPL and for the checks in force.
pub fn decode(registers: Registers, rules: &Rules) -> Result<Invalidation, GuestFault> {
    let Registers { rax, ecx, edx } = registers;
    privileged(rules)?;
    check_reserved(registers, rules)?;
    let flags = Flags::from_bits_truncate(rax);
    let extra = ExtraPages((ecx & 0xffff) as u16);
    permits(
        !rules.checks(Checks::COUNT) || extra <= rules.count_max,
        "ECX bits 15:0 must not exceed InvlpgbCountMax",
        u64::from(ecx),
    )?;
    permits(
        !rules.checks(Checks::PCIDE) || rules.pcide || !flags.contains(Flags::PCID),
        "A PCID may be given only if CR4.PCIDE is 1",
        rax,
    )?;
    let pcid = Pcid((edx >> 16 & 0xfff) as u16);
    let invalidation = Invalidation {
        reach: Reach::All,
        context: Context {
            asid: asid(flags, edx, rules)?,
            pcid: flags.contains(Flags::PCID).then_some(pcid),
        },
        extent: match flags.contains(Flags::VA) {
            true => range(rax, extra, ecx & ECX_LARGE != 0, rules)?,
            false => Extent::Whole,
        },
        globals: match flags.contains(Flags::GLOBAL) {
            true => Globals::Include,
            false => Globals::Spare,
        },
        depth: match flags.contains(Flags::FINAL_ONLY) {
            true => Depth::FinalOnly,
            false => Depth::AllLevels,
        },
        nested: flags.contains(Flags::NESTED) && may_nest(rules),
    };
    Ok(invalidation)
}

/// Whether a TLBSYNC may execute.
///
/// # Errors
/// #UD if the instruction is absent, #GP(0) if CPL is not 0.
pub fn tlbsync(rules: &Rules) -> Result<(), GuestFault> {
    privileged(rules)
}

fn privileged(rules: &Rules) -> Result<(), GuestFault> {
    exists(rules.present, "CPUID Fn8000_0008 EBX bit 3 must be 1", 0)?;
    permits(rules.cpl == 0, "CPL must be 0", u64::from(rules.cpl))
}

fn may_nest(rules: &Rules) -> bool {
    rules.nested && matches!(rules.executor, Executor::Host { .. })
}

fn check_reserved(registers: Registers, rules: &Rules) -> Result<(), GuestFault> {
    let Registers { rax, ecx, edx } = registers;
    if rules.checks(Checks::RESERVED) {
        permits(rax & RAX_RESERVED == 0, "rAX bits 11:6 must be 0", rax)?;
        permits(ecx & ECX_RESERVED == 0, "ECX bits 30:16 must be 0", u64::from(ecx))?;
        permits(edx & EDX_RESERVED == 0, "EDX bits 31:28 must be 0", u64::from(edx))?;
    }
    permits(
        !rules.checks(Checks::NESTED) || rax & Flags::NESTED.bits() == 0 || may_nest(rules),
        "Nested translations may be included only by a host whose CPUID offers it",
        rax,
    )
}

fn asid(flags: Flags, edx: u32, rules: &Rules) -> Result<Option<Asid>, GuestFault> {
    match rules.executor {
        // The hardware puts the guest's ASID in place of the requested one and sets
        // the valid bit, so that a guest reaches its own entries only; that is also
        // why a guest's ASID is never out of range.
        Executor::Guest(own) => Ok(Some(own)),
        Executor::Host { .. } if !flags.contains(Flags::ASID) => Ok(None),
        Executor::Host { asids } => {
            let asid = edx & 0xffff;
            permits(
                !rules.checks(Checks::ASID_LIMIT) || asid < asids,
                "The ASID must be below the number of ASIDs",
                u64::from(edx),
            )?;
            Ok(Some(Asid(asid as u16)))
        }
    }
}

fn range(rax: u64, extra: ExtraPages, large: bool, rules: &Rules) -> Result<Extent, GuestFault> {
    let start = Gva(rax & if rules.long_mode { VA_MASK } else { LEGACY_VA_MASK });
    let stride = if large { PageSize::Large } else { PageSize::Small };
    if rules.checks(Checks::CANONICAL) {
        let last = start.checked_add(u64::from(extra.0) * stride.bytes());
        let inside = last.is_some_and(|last| last.is_canonical() && last.0 >> 63 == start.0 >> 63);
        let rule = "The range must stay inside one canonical half";
        permits(start.is_canonical() && inside, rule, rax)?;
    }
    Ok(Extent::Range { start, pages: PageCount::from(extra), stride })
}

/// The operands that ask for `ask`.
///
/// A range's start is cut to its page. [`decode`] under the same rules gives `ask`
/// back.
///
/// # Errors
/// What the instruction cannot say, for example more pages than it counts (see
/// [`super::pieces`]), or a guest's request for another ASID than its own.
pub fn encode(ask: &Invalidation, rules: &Rules) -> Result<Registers, Unsayable> {
    say(rules.present, Unsayable::Absent)?;
    say(ask.reach == Reach::All, Unsayable::Reach)?;
    say(!ask.nested || may_nest(rules), Unsayable::Nested)?;
    say(ask.context.pcid.is_none() || rules.pcide, Unsayable::Context)?;
    let mut flags = Flags::empty();
    flags.set(Flags::PCID, ask.context.pcid.is_some());
    flags.set(Flags::ASID, ask.context.asid.is_some());
    flags.set(Flags::GLOBAL, ask.globals == Globals::Include);
    flags.set(Flags::FINAL_ONLY, ask.depth == Depth::FinalOnly);
    flags.set(Flags::NESTED, ask.nested);
    let (va, ecx) = match ask.extent {
        Extent::Whole => (0, 0),
        Extent::Range { start, pages, stride } => {
            flags |= Flags::VA;
            range_operands(start, pages, stride, rules)?
        }
    };
    let Pcid(pcid) = ask.context.pcid.unwrap_or_default();
    say(pcid < 4096, Unsayable::Context)?;
    let asid = ask.context.asid.map_or(0, |Asid(raw)| raw);
    say(
        match rules.executor {
            Executor::Guest(own) => ask.context.asid == Some(own),
            Executor::Host { asids } => ask.context.asid.is_none() || u32::from(asid) < asids,
        },
        Unsayable::Context,
    )?;
    let edx = u32::from(asid) | u32::from(pcid) << 16;
    Ok(Registers { rax: va | flags.bits(), ecx, edx })
}

fn range_operands(
    start: Gva,
    pages: PageCount,
    stride: PageSize,
    rules: &Rules,
) -> Result<(u64, u32), Unsayable> {
    let step = match stride {
        PageSize::Small => 0,
        PageSize::Large => ECX_LARGE,
        PageSize::Huge => return Err(Unsayable::Extent),
    };
    let extra = ExtraPages::try_from(pages).map_err(|_| Unsayable::Extent)?;
    say(extra <= rules.count_max, Unsayable::Extent)?;
    let start = start.page_base().0;
    say(rules.long_mode || start <= LEGACY_VA_MASK, Unsayable::Extent)?;
    Ok((start, step | u32::from(extra.0)))
}

#[cfg(test)]
#[path = "invlpgb/tests.rs"]
mod tests;
