//! The TLBI instructions of EL1 as system-instruction encodings.
//!
//! Plain values. All have op0 = 1 and op1 = 0; CRn is 8, or 9 for the nXS forms;
//! CRm says where the operation reaches and op2 what it names.

use super::Features;

/// How far a TLBI reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Domain {
    /// The executing PE.
    Local,
    /// The Inner Shareable domain.
    Inner,
    /// The Outer Shareable domain.
    Outer,
}

impl Domain {
    /// Every domain.
    pub const ALL: [Self; 3] = [Self::Local, Self::Inner, Self::Outer];
}

/// What a TLBI names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// VMALLE1: the whole VMID.
    Vm,
    /// ASIDE1: the non-global entries of an ASID.
    Asid,
    /// VAE1, VALE1, VAAE1, VAALE1: one page.
    Page {
        /// Entries of every ASID.
        any_asid: bool,
        /// Leaf entries only.
        leaf: bool,
    },
    /// RVAE1, RVALE1, RVAAE1, RVAALE1: a range.
    Range {
        /// Entries of every ASID.
        any_asid: bool,
        /// Leaf entries only.
        leaf: bool,
    },
}

impl Target {
    /// True for the forms that spare upper levels.
    #[must_use]
    pub const fn is_leaf(self) -> bool {
        matches!(self, Self::Page { leaf: true, .. } | Self::Range { leaf: true, .. })
    }
}

/// One TLBI of EL1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// What it names.
    pub target: Target,
    /// How far it reaches as encoded.
    pub domain: Domain,
    /// The nXS form.
    pub nxs: bool,
}

impl Op {
    /// The features without which it is UNDEFINED.
    #[must_use]
    pub fn needs(self) -> Features {
        let mut needs = Features::empty();
        needs.set(Features::OUTER, self.domain == Domain::Outer);
        needs.set(Features::RANGE, matches!(self.target, Target::Range { .. }));
        needs.set(Features::XS, self.nxs);
        needs
    }

    /// Its encoding.
    #[must_use]
    pub const fn encoding(self) -> Encoding {
        let op2 = match self.target {
            Target::Vm => 0,
            Target::Asid => 2,
            Target::Page { any_asid, leaf } | Target::Range { any_asid, leaf } => {
                1 | (any_asid as u8) << 1 | (leaf as u8) << 2
            }
        };
        let crm = match (self.target, self.domain) {
            (Target::Range { .. }, Domain::Local) => 6,
            (Target::Range { .. }, Domain::Inner) => 2,
            (Target::Range { .. }, Domain::Outer) => 5,
            (_, Domain::Local) => 7,
            (_, Domain::Inner) => 3,
            (_, Domain::Outer) => 1,
        };
        Encoding { op1: 0, crn: if self.nxs { 9 } else { 8 }, crm, op2 }
    }
}

/// The fields of a SYS instruction with op0 = 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoding {
    /// Three bits.
    pub op1: u8,
    /// Four bits.
    pub crn: u8,
    /// Four bits.
    pub crm: u8,
    /// Three bits.
    pub op2: u8,
}

/// SYS with every field 0; L (bit 21) and op0 (bits 20:19) are in here.
const SYS: u32 = 0xd508_0000;
const SYS_MASK: u32 = 0xfff8_0000;

impl Encoding {
    /// The fields and Rt of an instruction word; `None` if it is not a SYS.
    #[must_use]
    pub const fn from_instruction(word: u32) -> Option<(Self, u8)> {
        if word & SYS_MASK != SYS {
            return None;
        }
        let encoding = Self {
            op1: (word >> 16 & 7) as u8,
            crn: (word >> 12 & 15) as u8,
            crm: (word >> 8 & 15) as u8,
            op2: (word >> 5 & 7) as u8,
        };
        Some((encoding, (word & 31) as u8))
    }

    /// The instruction word with operand register `rt`; 31 where there is none.
    /// Bits of fields above their width are cut.
    #[must_use]
    pub const fn instruction(self, rt: u8) -> u32 {
        SYS | (self.op1 as u32 & 7) << 16
            | (self.crn as u32 & 15) << 12
            | (self.crm as u32 & 15) << 8
            | (self.op2 as u32 & 7) << 5
            | (rt as u32 & 31)
    }

    /// The operation, if it is a TLBI of EL1.
    #[must_use]
    pub const fn op(self) -> Option<Op> {
        let nxs = match self.crn {
            8 => false,
            9 => true,
            _ => return None,
        };
        let (range, domain) = match self.crm {
            7 => (false, Domain::Local),
            3 => (false, Domain::Inner),
            1 => (false, Domain::Outer),
            6 => (true, Domain::Local),
            2 => (true, Domain::Inner),
            5 => (true, Domain::Outer),
            _ => return None,
        };
        let any_asid = self.op2 & 2 != 0;
        let leaf = self.op2 & 4 != 0;
        let target = match (range, self.op2) {
            (false, 0) => Target::Vm,
            (false, 2) => Target::Asid,
            (false, 1 | 3 | 5 | 7) => Target::Page { any_asid, leaf },
            (true, 1 | 3 | 5 | 7) => Target::Range { any_asid, leaf },
            _ => return None,
        };
        if self.op1 != 0 {
            return None;
        }
        Some(Op { target, domain, nxs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ops() -> Vec<Op> {
        let mut targets = vec![Target::Vm, Target::Asid];
        for (any_asid, leaf) in [(false, false), (false, true), (true, false), (true, true)] {
            targets.push(Target::Page { any_asid, leaf });
            targets.push(Target::Range { any_asid, leaf });
        }
        let mut ops = Vec::new();
        for target in targets {
            for domain in Domain::ALL {
                ops.extend([false, true].map(|nxs| Op { target, domain, nxs }));
            }
        }
        ops
    }

    #[test]
    fn the_sixty_operations_of_el1_have_distinct_encodings_and_nothing_else_decodes() {
        let ops = ops();
        assert_eq!(ops.len(), 60);
        for op in &ops {
            assert_eq!(op.encoding().op(), Some(*op));
        }
        let mut decoded = 0;
        for fields in 0..1_u32 << 14 {
            let encoding = Encoding {
                op1: (fields >> 11) as u8,
                crn: (fields >> 7 & 15) as u8,
                crm: (fields >> 3 & 15) as u8,
                op2: (fields & 7) as u8,
            };
            decoded += usize::from(encoding.op().is_some());
        }
        assert_eq!(decoded, 60);
    }

    #[test]
    fn instruction_words_are_those_of_an_assembler() {
        let word =
            |target, domain, rt| Op { target, domain, nxs: false }.encoding().instruction(rt);
        // tlbi vmalle1is; tlbi vale1is, x0; tlbi aside1, x3; tlbi rvae1is, x1
        assert_eq!(word(Target::Vm, Domain::Inner, 31), 0xd508_831f);
        let vale1 = Target::Page { any_asid: false, leaf: true };
        assert_eq!(word(vale1, Domain::Inner, 0), 0xd508_83a0);
        assert_eq!(word(Target::Asid, Domain::Local, 3), 0xd508_8743);
        let rvae1 = Target::Range { any_asid: false, leaf: false };
        assert_eq!(word(rvae1, Domain::Inner, 1), 0xd508_8221);
    }

    #[test]
    fn instruction_words_and_fields_convert_both_ways() {
        for op in ops() {
            let word = op.encoding().instruction(17);
            assert_eq!(Encoding::from_instruction(word), Some((op.encoding(), 17)));
        }
        // mrs x0, midr_el1; nop; dsb ish
        for word in [0xd538_0000, 0xd503_201f, 0xd503_3b9f] {
            assert_eq!(Encoding::from_instruction(word), None);
        }
    }
}
