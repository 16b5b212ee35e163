//! `pvtlb scenario`.

use crate::error::Error;
use crate::scenario::args::ScenarioArgs;

pub(super) fn execute(args: &ScenarioArgs) -> Result<(), Error> {
    crate::scenario::run(args, &mut std::io::stdout().lock())
}
