//! The translations that a scenario can ever cache, and what a flush covers.
//!
//! Plain values without state or ordering.

use pv_tlb::addr::PageCount;
use pv_tlb::invalidation;

use crate::scenario::{Addresses, Extent, Mapping, Scenario};

/// Something that a TLB or a paging-structure cache can hold.
#[derive(Clone, Debug)]
pub(crate) struct Translation {
    /// What it translates.
    pub(crate) pages: Vec<usize>,
    /// Where an access through it ends up: a page's frame, or a table's.
    pub(crate) frame: usize,
    pub(crate) space: usize,
    pub(crate) asid: u16,
    pub(crate) global: bool,
    pub(crate) writable: bool,
    /// Upper level: an entry of a paging-structure cache.
    pub(crate) is_table: bool,
    /// Cached apart from the stage-2 translation.
    pub(crate) stage1_only: bool,
    pub(crate) text: String,
}

/// All translations of a scenario: leaves in the order of its mappings, tables,
/// then the stage-1-only copies of the leaves if the TLB is split.
pub(crate) fn translations(scenario: &Scenario) -> Vec<Translation> {
    let mut all: Vec<Translation> =
        scenario.mappings.iter().map(|mapping| leaf(scenario, mapping)).collect();
    all.extend(scenario.tables.iter().map(|table| {
        let asid = scenario.spaces[table.space].asid;
        Translation {
            pages: table.pages.clone(),
            frame: table.frame,
            space: table.space,
            asid,
            global: false,
            writable: true,
            is_table: true,
            stage1_only: false,
            text: format!("table {} (asid {asid})", table.name),
        }
    }));
    if scenario.split_tlb {
        let copies: Vec<_> = all
            .iter()
            .filter(|translation| !translation.is_table)
            .map(|translation| Translation {
                stage1_only: true,
                text: format!("stage 1 of {}", translation.text),
                ..translation.clone()
            })
            .collect();
        all.extend(copies);
    }
    all
}

fn leaf(scenario: &Scenario, mapping: &Mapping) -> Translation {
    let asid = scenario.spaces[mapping.space].asid;
    let tag = if mapping.global { "global".to_owned() } else { format!("asid {asid}") };
    let access = if mapping.writable { "" } else { ", read-only" };
    Translation {
        pages: vec![mapping.page],
        frame: mapping.frame,
        space: mapping.space,
        asid,
        global: mapping.global,
        writable: mapping.writable,
        is_table: false,
        stage1_only: false,
        text: format!(
            "{}->{} ({tag}{access})",
            scenario.pages[mapping.page].name, scenario.frames[mapping.frame]
        ),
    }
}

impl Translation {
    /// True if a flush of `extent` by somebody who has `loaded` loaded must drop it.
    pub(crate) fn is_covered(&self, scenario: &Scenario, extent: &Extent, loaded: usize) -> bool {
        if self.is_table && extent.leaf_only {
            return false;
        }
        let asid = scenario.spaces[extent.space.unwrap_or(loaded)].asid;
        match &extent.addresses {
            Addresses::Everything => true,
            Addresses::NonGlobal => !self.global,
            Addresses::Space => !self.global && self.asid == asid,
            Addresses::Pages(pages) => {
                self.matches(asid) && self.pages.iter().any(|page| pages.contains(page))
            }
            Addresses::Range { start, pages, stride } => {
                let range = invalidation::Extent::Range {
                    start: *start,
                    pages: PageCount(*pages),
                    stride: *stride,
                };
                let is_hit = |page: &usize| {
                    let page = &scenario.pages[*page];
                    range.covers(page.at, page.size)
                };
                self.matches(asid) && self.pages.iter().any(is_hit)
            }
        }
    }

    /// True if an access under `asid` can hit it.
    pub(crate) fn matches(&self, asid: u16) -> bool {
        self.global || self.asid == asid
    }
}
