//! A scenario in the course of being read, and the names declared so far.
//!
//! Owned by the call that reads the script.

use core::ops::Range;

use super::cursor::Cursor;
use super::error::ScriptError;
use crate::scenario::{
    Actor, Fills, Isa, MAX_NAMES, MAX_PCPUS, MAX_SLOTS, MAX_VCPUS, Mapping, Op, Scenario, Space,
};

/// The scenario, and what is needed only while it is read.
pub(super) struct Draft {
    pub(super) scenario: Scenario,
    /// Where the open `par` block began.
    pub(super) par_opened: Option<Range<usize>>,
    /// Per vCPU: where it began an access that it has not finished.
    pub(super) begun: [Option<Range<usize>>; MAX_VCPUS],
    /// Marks awaited, and where.
    pub(super) awaited: Vec<(usize, Range<usize>)>,
    /// Marks set.
    pub(super) set: Vec<usize>,
    /// Options declared, and where; used ones.
    pub(super) options_at: Vec<Range<usize>>,
    pub(super) options_used: u32,
    source_end: usize,
}

impl Draft {
    pub(super) fn new(source: &str) -> Self {
        let scenario = Scenario {
            name: String::new(),
            title: String::new(),
            case: None,
            links: Vec::new(),
            about: Vec::new(),
            isa: Isa::X86,
            vcpus: 0,
            devices: 0,
            pcpus: 0,
            vm_of: Vec::new(),
            fills: Fills::Speculative,
            split_tlb: false,
            spaces: Vec::new(),
            pages: Vec::new(),
            frames: Vec::new(),
            marks: Vec::new(),
            tables: Vec::new(),
            mappings: Vec::new(),
            initial: Vec::new(),
            starts: Vec::new(),
            phases: Vec::new(),
            free_moves: Vec::new(),
            options: Vec::new(),
            matrix_options: 0,
            expectations: Vec::new(),
        };
        Self {
            scenario,
            par_opened: None,
            begun: Default::default(),
            awaited: Vec::new(),
            set: Vec::new(),
            options_at: Vec::new(),
            options_used: 0,
            source_end: source.trim_end().len(),
        }
    }

    /// What can only be said once everything is read.
    pub(super) fn finish(&mut self) -> Vec<ScriptError> {
        let mut errors = Vec::new();
        if let Some(at) = self.par_opened.take() {
            errors.push(ScriptError::new("This `par` block is never closed", at).help("Add `end`"));
        }
        for at in self.begun.iter_mut().filter_map(Option::take) {
            let error = ScriptError::new("This access is begun and never finished", at);
            errors.push(error.help("Add a `finish` line for the same vCPU"));
        }
        for (mark, at) in core::mem::take(&mut self.awaited) {
            if !self.set.contains(&mark) {
                let name = &self.scenario.marks[mark];
                let error = ScriptError::new(format!("Nobody ever sets the mark `{name}`"), at);
                errors.push(error.help(format!("Some other actor needs a line `set {name}`")));
            }
        }
        for (option, at) in self.options_at.iter().enumerate() {
            if self.options_used & 1 << option == 0 {
                let name = &self.scenario.options[option].0;
                let error =
                    ScriptError::new(format!("No line depends on the option `{name}`"), at.clone());
                errors.push(error.help(format!("Append `if {name}` or `unless {name}` to a line")));
            }
        }
        if errors.is_empty() {
            errors.extend(self.missing());
        }
        errors
    }

    fn missing(&self) -> Option<ScriptError> {
        let at = self.source_end..self.source_end;
        let missing = |what: &str, help: &str| {
            Some(ScriptError::new(format!("The script has no {what}"), at.clone()).help(help))
        };
        let scenario = &self.scenario;
        if scenario.name.is_empty() {
            missing("`scenario` line", "Begin with: scenario NAME \"What happens, in one line\"")
        } else if scenario.vcpus == 0 {
            missing("vCPUs", "Say how many there are: vcpus 2")
        } else if scenario.pcpus == 0 {
            missing("pCPUs", "Say how many there are: pcpus 2")
        } else if scenario.phases.is_empty() {
            missing("events", "Say what happens: v0: read X")
        } else {
            None
        }
    }

    /// Space 0 exists even if no line declares it.
    pub(super) fn default_space(&mut self) {
        if self.scenario.spaces.is_empty() {
            self.scenario.spaces.push(Space { name: "main".to_owned(), asid: 1 });
        }
    }

    /// `in NAME` if it stands here; otherwise `default`.
    pub(super) fn in_space(
        &mut self,
        cursor: &mut Cursor<'_>,
        default: usize,
    ) -> Result<usize, ScriptError> {
        self.default_space();
        if cursor.accept("in") { self.space(cursor) } else { Ok(default) }
    }

    pub(super) fn space(&self, cursor: &mut Cursor<'_>) -> Result<usize, ScriptError> {
        find("address space", cursor, self.scenario.spaces.iter().map(|space| &space.name))
    }

    pub(super) fn page(&self, cursor: &mut Cursor<'_>) -> Result<usize, ScriptError> {
        find("page", cursor, self.scenario.pages.iter().map(|page| &page.name))
            .map_err(|error| error.or_help("Pages are introduced by a line `map PAGE -> FRAME`"))
    }

    pub(super) fn frame(&self, cursor: &mut Cursor<'_>) -> Result<usize, ScriptError> {
        find("frame", cursor, self.scenario.frames.iter())
    }

    pub(super) fn table(&self, cursor: &mut Cursor<'_>) -> Result<usize, ScriptError> {
        find("table", cursor, self.scenario.tables.iter().map(|table| &table.name))
    }

    pub(super) fn option(&self, cursor: &mut Cursor<'_>) -> Result<usize, ScriptError> {
        find("option", cursor, self.scenario.options.iter().map(|(name, _)| name))
    }

    /// A frame that is new or known.
    pub(super) fn new_frame(&mut self, cursor: &mut Cursor<'_>) -> Result<usize, ScriptError> {
        let (name, span) = cursor.word("a frame")?;
        intern(&mut self.scenario.frames, "frames", name, span)
    }

    pub(super) fn mark(
        &mut self,
        cursor: &mut Cursor<'_>,
    ) -> Result<(usize, Range<usize>), ScriptError> {
        let (name, span) = cursor.word("a mark")?;
        Ok((intern(&mut self.scenario.marks, "marks", name, span.clone())?, span))
    }

    pub(super) fn actor(&self, cursor: &mut Cursor<'_>) -> Result<Actor, ScriptError> {
        if cursor.accept("host") { Ok(Actor::Host) } else { self.vcpu(cursor).map(Actor::Vcpu) }
    }

    /// `v0`, or a device: `d0`.
    pub(super) fn vcpu(&self, cursor: &mut Cursor<'_>) -> Result<usize, ScriptError> {
        let (name, span) = cursor.word("a vCPU such as `v0`")?;
        let scenario = &self.scenario;
        let cores = scenario.vcpus - scenario.devices;
        let (first, count) =
            if name.starts_with('d') { (cores, scenario.devices) } else { (0, cores) };
        let digits = name.strip_prefix(['v', 'd']).unwrap_or("");
        match digits.parse::<usize>() {
            Ok(number) if number < count => Ok(first + number),
            Ok(_) => Err(ScriptError::new(
                format!("There is no `{name}`: the script has {cores} vCPUs"),
                span,
            )
            .help(match cores {
                0 => format!("Say how many there are before this line: vcpus {}", digits),
                1 => "The only one is v0".to_owned(),
                _ => format!("They are v0 to v{}", cores - 1),
            })),
            Err(_) => {
                Err(ScriptError::new(format!("Expected a vCPU such as `v0`, found `{name}`"), span))
            }
        }
    }

    pub(super) fn pcpu(&self, cursor: &mut Cursor<'_>) -> Result<usize, ScriptError> {
        let (name, span) = cursor.word("a pCPU such as `p0`")?;
        let count = self.scenario.pcpus;
        match name.strip_prefix('p').map(str::parse::<usize>) {
            Some(Ok(number)) if number < count => Ok(number),
            Some(Ok(_)) => {
                let message = format!("There is no `{name}`: the script has {count} pCPUs");
                let error = ScriptError::new(message, span);
                Err(match count {
                    0 => error.help(format!(
                        "Say how many there are before this line: pcpus {MAX_PCPUS}"
                    )),
                    1 => error.help("The only one is p0"),
                    _ => error.help(format!("They are p0 to p{}", count - 1)),
                })
            }
            _ => {
                Err(ScriptError::new(format!("Expected a pCPU such as `p0`, found `{name}`"), span))
            }
        }
    }

    /// A payload slot.
    pub(super) fn slot(cursor: &mut Cursor<'_>) -> Result<usize, ScriptError> {
        let slot = cursor.number("a payload slot", 0..=MAX_SLOTS as u64 - 1)?;
        Ok(slot as usize)
    }

    /// What the page's entry in `space` was last set to, in the order of the text.
    pub(super) fn last_mapping(&self, page: usize, space: usize) -> Option<Mapping> {
        let lines = self.scenario.phases.iter().flat_map(|phase| &phase.lines);
        let stores = lines.filter_map(|line| match line.op {
            Op::SetPte { page: p, space: s, mapping } if p == page && s == space => mapping,
            _ => None,
        });
        let initial = self.scenario.initial.iter().copied();
        let of_page = initial.filter(|mapping| {
            let mapping = &self.scenario.mappings[*mapping];
            mapping.page == page && mapping.space == space
        });
        of_page.chain(stores).last().map(|mapping| self.scenario.mappings[mapping])
    }
}

/// The index of the name that stands here among `known`.
fn find<'a>(
    what: &str,
    cursor: &mut Cursor<'_>,
    known: impl Iterator<Item = &'a String>,
) -> Result<usize, ScriptError> {
    let article = if what.starts_with(['a', 'o']) { "an" } else { "a" };
    let (name, span) = cursor.word(&format!("{article} {what}"))?;
    let known: Vec<&str> = known.map(String::as_str).collect();
    let found = known.iter().position(|other| *other == name);
    found.ok_or_else(|| ScriptError::unknown(what, name, span, known))
}

/// The index of `name` in `names`, where it is put if it is new.
fn intern(
    names: &mut Vec<String>,
    what: &str,
    name: &str,
    span: Range<usize>,
) -> Result<usize, ScriptError> {
    if let Some(known) = names.iter().position(|other| other == name) {
        return Ok(known);
    }
    if names.len() == MAX_NAMES {
        let message = format!("`{name}` is one too many: a script has at most {MAX_NAMES} {what}");
        return Err(ScriptError::new(message, span));
    }
    names.push(name.to_owned());
    Ok(names.len() - 1)
}
