//! A mode of the sweep: a guest strategy, what it must be offered, and, for the
//! doorbell, the completion rule.

use std::fmt;
use std::str::FromStr;

use pv_tlb::abi::stress::Strategy;

use crate::boot::Offered;
use crate::flush::rule::CompletionChoice;

/// One column of the sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// What the guest does.
    pub strategy: Strategy,
    /// The completion rule named with the mode, as in "doorbell@ack".
    pub completion: Option<CompletionChoice>,
}

impl Mode {
    /// What the guest must be offered.
    #[must_use]
    pub const fn offered(self) -> Offered {
        match self.strategy {
            Strategy::Ipi | Strategy::IpiGenRead | Strategy::None | Strategy::Late => Offered::Off,
            Strategy::KvmPv => Offered::Kvm,
            Strategy::Doorbell | Strategy::DoorbellAdaptive => Offered::Doorbell,
        }
    }

    /// True for a strategy that must be caught.
    #[must_use]
    pub const fn is_control(self) -> bool {
        matches!(self.strategy, Strategy::None | Strategy::Late)
    }

    /// The modes of a sweep that names none.
    #[must_use]
    pub fn defaults() -> Vec<Self> {
        [
            Strategy::Ipi,
            Strategy::IpiGenRead,
            Strategy::KvmPv,
            Strategy::Doorbell,
            Strategy::DoorbellAdaptive,
        ]
        .map(Self::from)
        .to_vec()
    }
}

impl From<Strategy> for Mode {
    fn from(strategy: Strategy) -> Self {
        Self { strategy, completion: None }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.completion {
            Some(rule) => f.pad(&format!("{}@{rule}", self.strategy.name())),
            None => f.pad(self.strategy.name()),
        }
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, rule) = match text.split_once('@') {
            Some((name, rule)) => (name, Some(rule.parse()?)),
            None => (text, None),
        };
        let strategy = Strategy::ALL.iter().find(|s| s.name() == name).ok_or_else(|| {
            let known: Vec<&str> = Strategy::ALL.iter().map(|s| s.name()).collect();
            let later = match name {
                "invlpgb" | "rar" | "hyperv" => ", which is not there yet",
                _ => "",
            };
            format!("Unknown mode {name:?}{later}, expected one of {}", known.join(", "))
        })?;
        let mode = Self { strategy: *strategy, completion: rule };
        match rule {
            Some(_) if mode.offered() != Offered::Doorbell => Err(format!(
                "Mode {text:?} names a completion rule, but only doorbell modes have one"
            )),
            _ => Ok(mode),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_strategy_is_a_mode_and_shows_as_it_is_written() {
        for strategy in Strategy::ALL {
            let mode: Mode = strategy.name().parse().expect("known");
            assert_eq!(mode, Mode::from(*strategy));
        }
        let mode: Mode = "doorbell@ack".parse().expect("with a rule");
        assert_eq!(mode.to_string(), "doorbell@ack");
    }

    #[test]
    fn unknown_modes_are_named_and_planned_ones_said_to_be_planned() {
        assert!(
            "ipx".parse::<Mode>().expect_err("unknown").contains("\"ipx\", expected one of ipi")
        );
        assert!("rar".parse::<Mode>().expect_err("planned").contains("not there yet"));
        assert!("ipi@ack".parse::<Mode>().expect_err("no rule").contains("only doorbell"));
        assert!("doorbell@x".parse::<Mode>().is_err());
    }
}
