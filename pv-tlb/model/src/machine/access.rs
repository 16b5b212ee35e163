//! Accesses, and what makes one illegal.
//!
//! Works on the state of one [`Moment`]; keeps nothing.

use super::{Hardware, Moment};
use crate::program::{Program, bits};
use crate::scenario::{AccessKind, Fills, Must};
use crate::verdict::Verdict;

/// A broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    /// The access can use a translation that the guest, on CPUs of its own, could
    /// not use any more.
    NotOnBareMetal {
        /// Who accesses.
        vcpu: u8,
        /// Translation used.
        translation: u8,
    },
    /// The access goes through a translation to a frame that was freed.
    Freed {
        /// Who accesses.
        vcpu: u8,
        /// Translation used.
        translation: u8,
    },
    /// The write goes to a frame whose contents somebody relies on.
    Frozen {
        /// Who writes.
        vcpu: u8,
        /// Translation used.
        translation: u8,
    },
    /// The access must fault and can use this translation.
    MustFault {
        /// Who accesses.
        vcpu: u8,
        /// Translation used.
        translation: u8,
    },
    /// The access must reach another frame than this translation leads to.
    WrongFrame {
        /// Who accesses.
        vcpu: u8,
        /// Translation used.
        translation: u8,
    },
    /// The access must reach a frame and finds no translation.
    Unmapped {
        /// Who accesses.
        vcpu: u8,
    },
    /// An instruction that CPUID offers does not exist.
    Undefined {
        /// Who executed it.
        vcpu: u8,
    },
}

impl Fault {
    /// The verdict it leads to.
    #[must_use]
    pub const fn verdict(self) -> Verdict {
        match self {
            Self::Unmapped { .. } | Self::Undefined { .. } => Verdict::Fault,
            _ => Verdict::Stale,
        }
    }

    /// What is wrong, as a sentence.
    #[must_use]
    pub fn explain(self, program: &Program) -> String {
        let name = |translation: u8| program.describe(translation.into());
        let who = |vcpu: u8| program.vcpu_name(vcpu.into());
        match self {
            Self::NotOnBareMetal { vcpu, translation } => format!(
                "{} can use {}, which it was told is gone: on a CPU of its own it could not",
                who(vcpu),
                name(translation)
            ),
            Self::Freed { vcpu, translation } => {
                format!("{} can use {} although its frame was freed", who(vcpu), name(translation))
            }
            Self::Frozen { vcpu, translation } => format!(
                "{} can write through {} although the frame's contents are relied on",
                who(vcpu),
                name(translation)
            ),
            Self::MustFault { vcpu, translation } => {
                format!("{} can use {} where it must fault", who(vcpu), name(translation))
            }
            Self::WrongFrame { vcpu, translation } => {
                format!(
                    "{} can use {} where it must reach another frame",
                    who(vcpu),
                    name(translation)
                )
            }
            Self::Unmapped { vcpu } => {
                format!("{} faults where a translation is in place", who(vcpu))
            }
            Self::Undefined { vcpu } => {
                format!("{} takes #UD on an instruction that CPUID offers", who(vcpu))
            }
        }
    }
}

impl Moment<'_> {
    /// The translations that an access of a running vCPU could use now.
    fn candidates(&mut self, vcpu: usize, kind: AccessKind, page: usize) -> u64 {
        let (space, tag, pcpu) = {
            let vcpu = &self.state.vcpus[vcpu];
            (usize::from(vcpu.space), vcpu.tag, usize::from(vcpu.pcpu))
        };
        let hits = self.program.hits[page][space];
        let walk = self.state.valid & self.program.in_space[space] & hits;
        if self.program.fills == Fills::Demand {
            self.reference_takes_up(vcpu, walk);
        }
        let found = self.program.untagged(self.state.tlb[pcpu], tag) & hits;
        if self.program.fills == Fills::Demand || self.hardware == Hardware::Literal {
            // Only a miss walks.
            if found == 0 {
                self.take_up(vcpu, walk);
            }
        }
        let found = self.program.untagged(self.state.tlb[pcpu], tag) & hits;
        match kind {
            AccessKind::Read => found,
            // A write through a read-only entry walks again and, at worst, faults.
            AccessKind::Write => found & self.program.writable,
        }
    }

    pub(super) fn access(
        &mut self,
        vcpu: usize,
        kind: AccessKind,
        page: usize,
        must: Must,
    ) -> Result<(), Fault> {
        let found = self.candidates(vcpu, kind, page);
        self.check_reference(vcpu, found)?;
        self.check_frame(vcpu, kind, found)?;
        let vcpu = vcpu as u8;
        match must {
            Must::Anything => Ok(()),
            Must::Fault => match first(found) {
                Some(translation) => Err(Fault::MustFault { vcpu, translation }),
                None => Ok(()),
            },
            Must::Reach(frame) => {
                let leaves = found & self.program.leaves;
                match first(leaves & !self.program.to_frame[frame]) {
                    Some(translation) => Err(Fault::WrongFrame { vcpu, translation }),
                    None if leaves == 0 => Err(Fault::Unmapped { vcpu }),
                    None => Ok(()),
                }
            }
        }
    }

    pub(super) fn begin(
        &mut self,
        vcpu: usize,
        kind: AccessKind,
        page: usize,
        choice: usize,
    ) -> Result<(), Fault> {
        let found = self.candidates(vcpu, kind, page);
        self.check_reference(vcpu, found)?;
        self.check_frame(vcpu, kind, found)?;
        let chosen = bits(found).nth(choice);
        self.state.vcpus[vcpu].latch(chosen, kind);
        Ok(())
    }

    pub(super) fn finish(&mut self, vcpu: usize) -> Result<(), Fault> {
        let latch = self.state.vcpus[vcpu].latch;
        let kind =
            if self.state.vcpus[vcpu].latch_writes { AccessKind::Write } else { AccessKind::Read };
        self.state.vcpus[vcpu].unlatch();
        match latch.checked_sub(1) {
            Some(translation) => self.check_frame(vcpu, kind, 1 << translation),
            None => Ok(()),
        }
    }

    fn check_reference(&self, vcpu: usize, found: u64) -> Result<(), Fault> {
        let vcpu_id = vcpu as u8;
        match first(found & !self.state.reference[vcpu]) {
            Some(translation) => Err(Fault::NotOnBareMetal { vcpu: vcpu_id, translation }),
            None => Ok(()),
        }
    }

    fn check_frame(&self, vcpu: usize, kind: AccessKind, found: u64) -> Result<(), Fault> {
        let vcpu = vcpu as u8;
        if let Some(translation) = first(found & self.state.dead) {
            return Err(Fault::Freed { vcpu, translation });
        }
        let frozen = if kind == AccessKind::Write { self.state.frozen } else { 0 };
        match first(found & frozen) {
            Some(translation) => Err(Fault::Frozen { vcpu, translation }),
            None => Ok(()),
        }
    }
}

fn first(translations: u64) -> Option<u8> {
    bits(translations).next().map(|translation| translation as u8)
}

/// How many translations an access could latch in `state`; at least 1, since an
/// access that finds none still happens.
pub(super) fn choices(
    program: &Program,
    hardware: Hardware,
    state: &super::State,
    vcpu: usize,
    kind: AccessKind,
    page: usize,
) -> u8 {
    let mut scratch = state.clone();
    let price = &mut crate::verdict::Price::default();
    let mut moment = Moment { program, hardware, state: &mut scratch, price };
    (moment.candidates(vcpu, kind, page).count_ones() as u8).max(1)
}
