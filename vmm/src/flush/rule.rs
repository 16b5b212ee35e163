//! When a target counts as flushed: the completion rules, and which one is sound.
//!
//! Plain values, chosen once per VM.
//!
//! | rule | relies on | does not hold when |
//! |---|---|---|
//! | `ack` | the target has left KVM_RUN and arranged its flush before it enters again | never; but a target off its pCPU costs a scheduling period |
//! | `preempted` | KVM sets the byte only for a vCPU off its pCPU at an instruction boundary, and exchanges it before the next entry | KVM never sets the byte (then every target takes the ack) |
//! | `membarrier` | a signal is pending before the barrier; the barrier takes every running thread out of guest mode; KVM looks for signals before it enters | the target is inside an access that KVM emulates, whose address is already translated (hazard H4) |
//!
//! `auto` bounds the last case in two ways. A target whose exit left an access
//! unfinished is known to the monitor ([`Standing::MidAccess`]) and must ack under
//! every rule. For what KVM emulates without an exit, the guest declares sections
//! (docs/doorbell.md): the word is read after the barrier, and a target inside a
//! section must ack. A guest that declares nothing gets `ack` from every running
//! target. Where KVM reports preemption, `auto` uses `preempted` and needs no
//! declaration.
//!
//! [`Standing::MidAccess`]: crate::flush::standing::Standing::MidAccess

use std::fmt;
use std::str::FromStr;

/// The rule asked for on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompletionChoice {
    /// The cheapest rule that is sound for this KVM and this guest.
    #[default]
    Auto,
    /// Always wait for acks.
    Ack,
    /// Flag preempted targets, wait for the acks of the rest.
    Preempted,
    /// Signal and membarrier, without asking whether the guest is mid access.
    Membarrier,
}

impl CompletionChoice {
    /// Every choice.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Ack, Self::Preempted, Self::Membarrier];

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Ack => "ack",
            Self::Preempted => "preempted",
            Self::Membarrier => "membarrier",
        }
    }
}

impl fmt::Display for CompletionChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CompletionChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|choice| choice.name() == text).ok_or_else(|| {
            format!("Unknown completion rule {text:?}, expected auto, ack, preempted or membarrier")
        })
    }
}

/// The rule in force, with what it may assume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Flag targets whose `preempted` byte is set.
    pub flag_preempted: bool,
    /// Use signal and membarrier for running targets.
    pub membarrier: MembarrierUse,
}

/// Whether a membarrier may stand for an ack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MembarrierUse {
    /// No: wait for the ack.
    Never,
    /// If the target declares its sections and is in none.
    IfDeclared,
    /// Always; sound only if KVM emulates no access to memory under shootdown.
    Always,
}

impl Completion {
    /// The rule for `choice` on a KVM that reports preemption or does not.
    #[must_use]
    pub const fn new(choice: CompletionChoice, kvm_reports_preemption: bool) -> Self {
        let (flag_preempted, membarrier) = match choice {
            CompletionChoice::Ack => (false, MembarrierUse::Never),
            CompletionChoice::Preempted => (true, MembarrierUse::Never),
            CompletionChoice::Membarrier => (false, MembarrierUse::Always),
            CompletionChoice::Auto if kvm_reports_preemption => (true, MembarrierUse::Never),
            CompletionChoice::Auto => (false, MembarrierUse::IfDeclared),
        };
        Self { flag_preempted, membarrier }
    }

    /// The rule's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match (self.flag_preempted, self.membarrier) {
            (true, _) => "preempted",
            (false, MembarrierUse::Never) => "ack",
            (false, MembarrierUse::IfDeclared) => {
                "membarrier where the guest declares its sections, else ack"
            }
            (false, MembarrierUse::Always) => "membarrier",
        }
    }

    /// Why `auto` chose it, in a few words.
    #[must_use]
    pub const fn reason(kvm_reports_preemption: bool) -> &'static str {
        if kvm_reports_preemption {
            "this KVM reports preemption at instruction boundaries"
        } else {
            "this KVM does not report preemption, so an off-CPU target would cost a scheduling period"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_never_trusts_a_membarrier_blindly() {
        for reports in [false, true] {
            let rule = Completion::new(CompletionChoice::Auto, reports);
            assert_ne!(rule.membarrier, MembarrierUse::Always);
        }
    }

    #[test]
    fn choices_parse_and_an_unknown_one_is_named() {
        for choice in CompletionChoice::ALL {
            assert_eq!(choice.name().parse(), Ok(choice));
        }
        assert!(
            "barrier".parse::<CompletionChoice>().expect_err("refused").contains("\"barrier\"")
        );
    }
}
