//! The same request in the host's vocabulary.
//!
//! Plain value, no sharing.

use super::Request;
use crate::addr::PageSize;
use crate::cpuset::CpuSet;
use crate::invalidation::{Context, Depth, Extent, Globals, Invalidation, Reach};

/// What to ask the host for. No PCID: the mm sits in another slot on each target.
pub(super) fn ask(request: &Request, freed_tables: bool, targets: CpuSet) -> Invalidation {
    let extent = match request.pages.0 {
        0 => Extent::Whole,
        _ => Extent::Range { start: request.start, pages: request.pages, stride: PageSize::Small },
    };
    Invalidation {
        reach: Reach::Set(targets),
        context: Context { asid: None, pcid: None },
        extent,
        globals: Globals::Spare,
        depth: if freed_tables { Depth::AllLevels } else { Depth::FinalOnly },
        nested: false,
    }
}
