//! `pvtlb doctor`.

use crate::cli::DoctorArgs;
use crate::doctor::{examine, text};
use crate::error::Error;
use crate::kvm::system::System;

pub(super) fn execute(args: &DoctorArgs, system: &System) -> Result<(), Error> {
    let report = examine(system)?;
    if args.json {
        let json = serde_json::to_string_pretty(&report)
            .map_err(|e| Error::output("the report")(e.into()))?;
        return super::print(&format!("{json}\n"));
    }
    super::print(&text(&report))
}
