//! Operations: what vCPUs and the host do.
//!
//! Works on the [`Draft`]; keeps nothing.

use core::ops::Range;

use pv_tlb::addr::Gva;

use super::cursor::Cursor;
use super::declare::page_size;
use super::error::ScriptError;
use super::names::Draft;
use crate::scenario::{
    AccessKind, Actor, Addresses, Condition, Extent, Isa, Mapping, Must, Op, Way,
};

const GUEST: [&str; 17] = [
    "read", "write", "begin", "finish", "map", "unmap", "protect", "cut", "flush", "sync", "wait",
    "free", "freeze", "switch", "set", "await", "rar",
];
const HOST: [&str; 5] = ["preempt", "run", "move", "give", "flush"];
const MARKS: [&str; 2] = ["set", "await"];

impl Draft {
    pub(super) fn operation(
        &mut self,
        cursor: &mut Cursor<'_>,
        actor: Actor,
    ) -> Result<Op, ScriptError> {
        let (word, span) = cursor.word("what is done, such as `read X`")?;
        match actor {
            Actor::Host => self.host_operation(cursor, word, span),
            Actor::Vcpu(vcpu) => {
                self.check_access_order(vcpu, word, &span)?;
                if word != "flush" && HOST.contains(&word) {
                    let error = ScriptError::new(format!("`{word}` is the host's to do"), span);
                    return Err(error.help(format!("Write `host: {word} …`")));
                }
                self.guest_operation(cursor, vcpu, word, span)
            }
        }
    }

    /// A vCPU that has begun an access does nothing but finish it.
    fn check_access_order(
        &mut self,
        vcpu: usize,
        word: &str,
        span: &Range<usize>,
    ) -> Result<(), ScriptError> {
        let is_begun = self.begun[vcpu].is_some();
        match word {
            "finish" if !is_begun => {
                let error =
                    ScriptError::new(format!("v{vcpu} has no access to finish"), span.clone());
                Err(error.help("Write `begin read X` or `begin write X` before it"))
            }
            "finish" => {
                self.begun[vcpu] = None;
                Ok(())
            }
            _ if is_begun => {
                let message = format!("v{vcpu} is in the middle of an access");
                Err(ScriptError::new(message, span.clone())
                    .help(format!("Write `v{vcpu}: finish` before this line")))
            }
            _ => Ok(()),
        }
    }

    fn guest_operation(
        &mut self,
        cursor: &mut Cursor<'_>,
        vcpu: usize,
        word: &str,
        span: Range<usize>,
    ) -> Result<Op, ScriptError> {
        match word {
            "read" => self.access(cursor, AccessKind::Read),
            "write" => self.access(cursor, AccessKind::Write),
            "begin" => {
                self.begun[vcpu] = Some(span);
                let is_write = cursor.one_of(&["read", "write"])? == "write";
                let kind = if is_write { AccessKind::Write } else { AccessKind::Read };
                Ok(Op::Begin(kind, self.page(cursor)?))
            }
            "finish" => Ok(Op::Finish),
            "map" | "unmap" | "protect" => self.store(cursor, vcpu, word),
            "cut" => Ok(Op::CutTable(self.table(cursor)?)),
            "flush" => self.flush(cursor, vcpu),
            "sync" => Ok(Op::Sync(cursor.accept("locally"))),
            "wait" => Ok(Op::Wait),
            "free" => Ok(Op::Free(self.frame(cursor)?)),
            "freeze" => Ok(Op::Freeze(self.frame(cursor)?)),
            "switch" => {
                cursor.keyword("to")?;
                self.default_space();
                let space = self.space(cursor)?;
                Ok(Op::Switch(space, cursor.accept("flushing")))
            }
            "rar" => self.rar(cursor, span),
            _ => self.mark_operation(cursor, word, span, &GUEST),
        }
    }

    fn host_operation(
        &mut self,
        cursor: &mut Cursor<'_>,
        word: &str,
        span: Range<usize>,
    ) -> Result<Op, ScriptError> {
        match word {
            "preempt" => Ok(Op::Preempt(self.vcpu(cursor)?)),
            "run" | "move" => {
                let vcpu = self.vcpu(cursor)?;
                cursor.one_of(&["on", "to"])?;
                let pcpu = self.pcpu(cursor)?;
                if word == "move" {
                    return Ok(Op::Move(vcpu, pcpu));
                }
                if !cursor.accept("in") {
                    return Ok(Op::Run(vcpu, pcpu));
                }
                cursor.keyword("vain")?;
                Ok(Op::RunInVain(vcpu, pcpu))
            }
            "give" => {
                cursor.keyword("tag")?;
                cursor.keyword("of")?;
                let from = cursor.number("a VM number", 0..=1)? as usize;
                cursor.keyword("to")?;
                let to = cursor.number("a VM number", 0..=1)? as usize;
                Ok(Op::GiveTag(from, to))
            }
            "flush" => {
                cursor.keyword("own")?;
                cursor.keyword("entries")?;
                Ok(Op::HostFlush)
            }
            _ if GUEST.contains(&word) && !MARKS.contains(&word) => {
                let error = ScriptError::new(format!("`{word}` is a vCPU's to do"), span);
                Err(error.help(format!("Write `v0: {word} …`")))
            }
            _ => self.mark_operation(cursor, word, span, &HOST),
        }
    }

    /// What both can do; anything else is an error.
    fn mark_operation(
        &mut self,
        cursor: &mut Cursor<'_>,
        word: &str,
        span: Range<usize>,
        known: &[&'static str],
    ) -> Result<Op, ScriptError> {
        match word {
            "set" => {
                let (mark, _) = self.mark(cursor)?;
                self.set.push(mark);
                Ok(Op::Set(mark))
            }
            "await" => {
                let (mark, at) = self.mark(cursor)?;
                self.awaited.push((mark, at));
                Ok(Op::Await(mark))
            }
            _ => {
                let known = known.iter().copied().chain(MARKS);
                Err(ScriptError::unknown("operation", word, span, known))
            }
        }
    }

    fn access(&self, cursor: &mut Cursor<'_>, kind: AccessKind) -> Result<Op, ScriptError> {
        let page = self.page(cursor)?;
        let must = if !cursor.accept("must") {
            Must::Anything
        } else if cursor.one_of(&["fault", "reach"])? == "fault" {
            Must::Fault
        } else {
            Must::Reach(self.frame(cursor)?)
        };
        Ok(Op::Access(kind, page, must))
    }

    /// The space that `vcpu` has loaded at this point of its text.
    fn loaded(&self, vcpu: usize) -> usize {
        let lines = self.scenario.phases.iter().flat_map(|phase| &phase.lines);
        let mut switches =
            lines.filter(|line| line.actor == Actor::Vcpu(vcpu)).filter_map(|line| match line.op {
                Op::Switch(space, _) => Some(space),
                _ => None,
            });
        let start = self.scenario.starts.iter().find(|start| start.vcpu == vcpu);
        switches.next_back().unwrap_or_else(|| start.map_or(0, |start| start.space))
    }

    fn store(
        &mut self,
        cursor: &mut Cursor<'_>,
        vcpu: usize,
        word: &str,
    ) -> Result<Op, ScriptError> {
        let span = cursor.peek().map(|token| token.span.clone()).unwrap_or_default();
        let page = self.page(cursor)?;
        let loaded = self.loaded(vcpu);
        if word == "map" {
            let mapping = self.mapping(cursor, page, loaded)?;
            let space = self.scenario.mappings[mapping].space;
            return Ok(Op::SetPte { page, space, mapping: Some(mapping) });
        }
        let space = self.in_space(cursor, loaded)?;
        let Some(last) = self.last_mapping(page, space) else {
            let name = &self.scenario.pages[page].name;
            let of = &self.scenario.spaces[space].name;
            let error =
                ScriptError::new(format!("The page `{name}` is not mapped in `{of}`"), span);
            return Err(error.help("Name the space if it is mapped in another one: `in NAME`"));
        };
        let mapping = (word == "protect").then(|| {
            self.scenario.mappings.push(Mapping { writable: false, ..last });
            self.scenario.mappings.len() - 1
        });
        Ok(Op::SetPte { page, space, mapping })
    }

    fn flush(&mut self, cursor: &mut Cursor<'_>, vcpu: usize) -> Result<Op, ScriptError> {
        let extent = self.extent(cursor)?;
        let span = cursor.peek().map(|token| token.span.clone()).unwrap_or_default();
        let way = match cursor.one_of(&["locally", "everywhere", "on"])? {
            "locally" => Way::Locally,
            "everywhere" if self.scenario.isa == Isa::Riscv => {
                let error = ScriptError::new("riscv has no broadcast flush", span);
                return Err(error.help("Ask the host: `flush X on v1 by hypercall`"));
            }
            "everywhere" => Way::Everywhere,
            _ => self.remote(cursor, vcpu)?,
        };
        Ok(Op::Flush(extent, way))
    }

    /// `v1, v2 by ipi`.
    fn remote(&self, cursor: &mut Cursor<'_>, vcpu: usize) -> Result<Way, ScriptError> {
        let mut spans = Vec::new();
        let mut targets = Vec::new();
        loop {
            spans.push(cursor.peek().map(|token| token.span.clone()).unwrap_or_default());
            targets.push(self.vcpu(cursor)?);
            if !cursor.accept(",") {
                break;
            }
        }
        cursor.keyword("by")?;
        let way = cursor.one_of(&["ipi", "flag", "hypercall"])?;
        let cores = self.scenario.vcpus - self.scenario.devices;
        for (target, span) in targets.iter().zip(spans) {
            if *target == vcpu && way != "hypercall" {
                let message = format!("v{vcpu} cannot send itself a flush");
                return Err(
                    ScriptError::new(message, span).help("A vCPU flushes itself with `locally`")
                );
            }
            if *target >= cores && way != "hypercall" {
                return Err(ScriptError::new("A device takes no interrupt", span)
                    .help("Devices are reached by `everywhere` or `by hypercall`"));
            }
        }
        Ok(match way {
            "ipi" => Way::Ipi(targets),
            "flag" => Way::Flag(targets),
            _ => Way::Hypercall(targets),
        })
    }

    /// `leaf X, Y in M`, `everything`, `nonglobal`, `space`, `8 pages from X every 2m`.
    fn extent(&mut self, cursor: &mut Cursor<'_>) -> Result<Extent, ScriptError> {
        let leaf_only = cursor.accept("leaf");
        let is_count = cursor
            .peek()
            .is_some_and(|token| token.text().starts_with(|c: char| c.is_ascii_digit()));
        let addresses = if cursor.accept("everything") {
            Addresses::Everything
        } else if cursor.accept("nonglobal") {
            Addresses::NonGlobal
        } else if cursor.accept("space") {
            Addresses::Space
        } else if is_count {
            let pages = cursor.number("a number of pages", 1..=1 << 21)?;
            if !cursor.accept("page") {
                cursor.keyword("pages")?;
            }
            cursor.keyword("from")?;
            let start: Gva = {
                let page = self.page(cursor)?;
                self.scenario.pages[page].at
            };
            let stride = page_size(cursor, "every")?.unwrap_or_default();
            Addresses::Range { start, pages, stride }
        } else {
            let mut pages = vec![self.page(cursor)?];
            while cursor.accept(",") {
                pages.push(self.page(cursor)?);
            }
            Addresses::Pages(pages)
        };
        self.default_space();
        let space = if cursor.accept("in") { Some(self.space(cursor)?) } else { None };
        Ok(Extent { addresses, leaf_only, space })
    }

    fn rar(&mut self, cursor: &mut Cursor<'_>, span: Range<usize>) -> Result<Op, ScriptError> {
        if self.scenario.isa != Isa::X86 {
            let message =
                format!("`rar` is of x86, this script is of {}", self.scenario.isa.name());
            return Err(ScriptError::new(message, span));
        }
        match cursor.one_of(&["write", "arm", "ring", "wait"])? {
            "write" => {
                let slot = Self::slot(cursor)?;
                Ok(Op::RarPayload(slot, self.extent(cursor)?))
            }
            "ring" => Ok(Op::RarRing(self.vcpu(cursor)?)),
            word => {
                let target = self.vcpu(cursor)?;
                let slot = Self::slot(cursor)?;
                Ok(if word == "arm" { Op::RarArm(target, slot) } else { Op::RarWait(target, slot) })
            }
        }
    }

    /// `if NAME` or `unless NAME` at the end of a line.
    pub(super) fn condition(
        &mut self,
        cursor: &mut Cursor<'_>,
    ) -> Result<Option<Condition>, ScriptError> {
        let is = cursor.accept("if");
        if !is && !cursor.accept("unless") {
            return Ok(None);
        }
        let option = self.option(cursor)?;
        self.options_used |= 1 << option;
        Ok(Some(Condition { option, is }))
    }
}
