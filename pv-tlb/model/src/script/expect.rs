//! Expectations: worlds, verdicts, prices.
//!
//! Works on the [`Draft`]; keeps nothing.

use pv_tlb::plan::HostPolicy;

use super::cursor::Cursor;
use super::error::ScriptError;
use super::names::Draft;
use crate::scenario::{Expectation, ExpectedPrice};
use crate::verdict::Verdict;
use crate::world::{Dial, World};

impl Draft {
    /// `expect arm64-kvm + no-drain: stale, broadcasts 1`.
    pub(super) fn expect(
        &mut self,
        cursor: &mut Cursor<'_>,
        number: usize,
    ) -> Result<(), ScriptError> {
        cursor.keyword("expect")?;
        let world = self.world(cursor)?;
        cursor.punct(":")?;
        let word = cursor.one_of(&Verdict::ALL.map(Verdict::name))?;
        let verdict = Verdict::ALL.into_iter().find(|verdict| verdict.name() == word);
        let verdict = verdict.unwrap_or(Verdict::Ok);
        let mut price = ExpectedPrice::default();
        while cursor.accept(",") {
            let what = cursor.one_of(&["broadcasts", "disturbed", "dropped"])?;
            let count = Some(cursor.number("a count", 0..=9999)? as u32);
            match what {
                "broadcasts" => price.broadcasts = count,
                "disturbed" => price.disturbed = count,
                _ => price.dropped = count,
            }
        }
        self.scenario.expectations.push(Expectation { world, verdict, price, number });
        Ok(())
    }

    /// `POLICY + DIAL + OPTION`; a policy's alias may have a plus in it.
    fn world(&mut self, cursor: &mut Cursor<'_>) -> Result<World, ScriptError> {
        let (first, span) = cursor.word("a host policy")?;
        let joined = cursor.peek_second().map(|second| format!("{first}+{}", second.text()));
        let longer = joined.and_then(|joined| HostPolicy::parse(&joined).ok());
        let policy = if let Some(policy) = longer.filter(|_| cursor.accept("+")) {
            cursor.any("the rest of the policy's name")?;
            policy
        } else {
            HostPolicy::parse(first).map_err(|_| {
                let known = HostPolicy::ALL.into_iter();
                let names = known.flat_map(|policy| [Some(policy.name()), policy.alias()]);
                ScriptError::unknown("host policy", first, span, names.flatten())
                    .or_help(format!("Known: {}", HostPolicy::ALL.map(HostPolicy::name).join(", ")))
            })?
        };
        let mut world = World::of(policy);
        while cursor.accept("+") {
            world = self.extra(cursor, world)?;
        }
        Ok(world)
    }

    /// A dial, or an option of this script.
    fn extra(&self, cursor: &mut Cursor<'_>, world: World) -> Result<World, ScriptError> {
        let (name, span) = cursor.word("a dial or an option")?;
        if let Some(dial) = Dial::ALL.into_iter().find(|dial| dial.name() == name) {
            return Ok(world.with(dial));
        }
        let options = &self.scenario.options;
        if let Some(option) = options.iter().position(|(other, _)| other == name) {
            return Ok(world.with_options(world.options | 1 << option));
        }
        let known = Dial::ALL.iter().map(|dial| dial.name());
        let known = known.chain(options.iter().map(|(name, _)| name.as_str()));
        Err(ScriptError::unknown("dial or option", name, span, known).or_help(
            "Dials are listed by `pvtlb scenario list --dials`; options by the script itself",
        ))
    }

    /// `matrix with OPTION, OPTION`.
    pub(super) fn matrix(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ScriptError> {
        cursor.keyword("matrix")?;
        cursor.keyword("with")?;
        loop {
            let option = self.option(cursor)?;
            self.scenario.matrix_options |= 1 << option;
            if !cursor.accept(",") {
                return Ok(());
            }
        }
    }
}
