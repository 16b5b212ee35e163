//! Declarations: what exists and how it stands at the start.
//!
//! Works on the [`Draft`]; keeps nothing.

use pv_tlb::addr::{Gva, PageSize};

use super::cursor::Cursor;
use super::error::ScriptError;
use super::names::Draft;
use crate::scenario::{
    Fills, Isa, MAX_PCPUS, MAX_VCPUS, MAX_VMS, Mapping, Page, Space, Start, Table,
};

/// Where pages without an address of their own begin.
const FIRST_PAGE: u64 = 0x10_0000;

impl Draft {
    pub(super) fn declare(
        &mut self,
        cursor: &mut Cursor<'_>,
        word: &str,
    ) -> Result<(), ScriptError> {
        cursor.any(word)?;
        match word {
            "scenario" => {
                let (name, _) = cursor.word("a name for the scenario")?;
                self.scenario.name = name.to_owned();
                self.scenario.title = cursor.text("a title")?.to_owned();
            }
            "case" => {
                self.scenario.case = Some(cursor.number("a case number", 1..=9999)? as u32);
            }
            "link" => self.scenario.links.push(cursor.text("a link")?.to_owned()),
            "about" => self.scenario.about.push(cursor.text("a sentence")?.to_owned()),
            "isa" => {
                let name = cursor.one_of(&Isa::ALL.map(Isa::name))?;
                let isa = Isa::ALL.into_iter().find(|isa| isa.name() == name);
                self.scenario.isa = isa.unwrap_or(Isa::X86);
            }
            "vcpus" => self.vcpus(cursor)?,
            "devices" => self.devices(cursor)?,
            "pcpus" => {
                let span = here(cursor);
                let count = cursor.number("a number of pCPUs", 1..=MAX_PCPUS as u64)?;
                said_once("pcpus", self.scenario.pcpus, span)?;
                self.scenario.pcpus = count as usize;
            }
            "vm" => self.vm(cursor)?,
            "fills" => {
                let is_demand = cursor.one_of(&["speculative", "demand"])? == "demand";
                self.scenario.fills = if is_demand { Fills::Demand } else { Fills::Speculative };
            }
            "tlb" => {
                self.scenario.split_tlb = cursor.one_of(&["combined", "split"])? == "split";
            }
            "space" => self.declare_space(cursor)?,
            "page" => self.declare_page(cursor)?,
            "table" => self.declare_table(cursor)?,
            "option" => self.declare_option(cursor)?,
            "map" => self.initial_map(cursor)?,
            _ => self.start(cursor)?,
        }
        Ok(())
    }

    fn vcpus(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ScriptError> {
        let span = here(cursor);
        let count = cursor.number("a number of vCPUs", 1..=MAX_VCPUS as u64)? as usize;
        if self.scenario.devices > 0 {
            let error = ScriptError::new("The devices are counted already", span);
            return Err(error.help("Write the `vcpus` line before the `devices` line"));
        }
        said_once("vcpus", self.scenario.vcpus, span)?;
        self.scenario.vcpus = count;
        self.scenario.vm_of = vec![0; count];
        self.scenario.free_moves = vec![0; count];
        Ok(())
    }

    fn devices(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ScriptError> {
        let span = here(cursor);
        said_once("devices", self.scenario.devices, span.clone())?;
        let room = MAX_VCPUS - self.scenario.vcpus;
        if room == 0 {
            let message = format!("{MAX_VCPUS} vCPUs leave no room for devices");
            return Err(ScriptError::new(message, span));
        }
        let count = cursor.number("a number of devices", 1..=room as u64)? as usize;
        self.scenario.devices = count;
        self.scenario.vcpus += count;
        self.scenario.vm_of.resize(self.scenario.vcpus, 0);
        self.scenario.free_moves.resize(self.scenario.vcpus, 0);
        Ok(())
    }

    /// `vm 1 has v2 v3`: the other vCPUs belong to VM 0.
    fn vm(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ScriptError> {
        let vm = cursor.number("a VM number", 0..=MAX_VMS as u64 - 1)? as usize;
        cursor.keyword("has")?;
        while cursor.peek().is_some() {
            let vcpu = self.vcpu(cursor)?;
            self.scenario.vm_of[vcpu] = vm;
        }
        Ok(())
    }

    fn declare_space(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ScriptError> {
        let (name, span) = cursor.word("a name for the address space")?;
        if self.scenario.spaces.iter().any(|space| space.name == name) {
            return Err(ScriptError::new(format!("The name `{name}` is taken"), span));
        }
        cursor.keyword("asid")?;
        let asid = cursor.number("an ASID or PCID", 0..=65_535)? as u16;
        self.scenario.spaces.push(Space { name: name.to_owned(), asid });
        Ok(())
    }

    /// The page of that name, which comes to be with its first mention here.
    fn new_page(&mut self, cursor: &mut Cursor<'_>) -> Result<usize, ScriptError> {
        let (name, _) = cursor.word("a page")?;
        let pages = &mut self.scenario.pages;
        Ok(pages.iter().position(|page| page.name == name).unwrap_or_else(|| {
            let at = Gva(FIRST_PAGE + pages.len() as u64 * PageSize::Small.bytes());
            pages.push(Page { name: name.to_owned(), at, size: PageSize::Small });
            pages.len() - 1
        }))
    }

    fn declare_page(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ScriptError> {
        let page = self.new_page(cursor)?;
        cursor.keyword("at")?;
        let span = here(cursor);
        let at = cursor.number("an address", 0..=u64::MAX)?;
        let size = page_size(cursor, "size")?.unwrap_or_default();
        if at % size.bytes() != 0 {
            let error = ScriptError::new(
                format!("The address {at:#x} is not a multiple of its page size"),
                span,
            );
            return Err(error.help(format!("Nearest below: {:#x}", at - at % size.bytes())));
        }
        let page = &mut self.scenario.pages[page];
        page.at = Gva(at);
        page.size = size;
        Ok(())
    }

    /// `table T of X, Y in M`: the frame that holds it has its name too.
    fn declare_table(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ScriptError> {
        let name = cursor.peek().map(|token| token.text()).unwrap_or_default();
        let frame = self.new_frame(cursor)?;
        cursor.keyword("of")?;
        let mut pages = vec![self.page(cursor)?];
        while cursor.accept(",") {
            pages.push(self.page(cursor)?);
        }
        let space = self.in_space(cursor, 0)?;
        self.scenario.tables.push(Table { name, space, pages, frame });
        Ok(())
    }

    fn declare_option(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ScriptError> {
        let (name, span) = cursor.word("a name for the option")?;
        let about = cursor.text("what the option does")?.to_owned();
        let is_taken = self.scenario.options.iter().any(|(other, _)| other == name)
            || crate::world::Dial::ALL.iter().any(|dial| dial.name() == name);
        if is_taken || self.scenario.options.len() == 32 {
            return Err(ScriptError::new(format!("The name `{name}` is taken"), span));
        }
        self.scenario.options.push((name.to_owned(), about));
        self.options_at.push(span);
        Ok(())
    }

    fn initial_map(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ScriptError> {
        let page = self.new_page(cursor)?;
        let mapping = self.mapping(cursor, page, 0)?;
        self.scenario.initial.push(mapping);
        Ok(())
    }

    /// `-> F in M read-only global`, behind a page: a new translation.
    pub(super) fn mapping(
        &mut self,
        cursor: &mut Cursor<'_>,
        page: usize,
        space: usize,
    ) -> Result<usize, ScriptError> {
        cursor.punct("->")?;
        let frame = self.new_frame(cursor)?;
        let space = self.in_space(cursor, space)?;
        let writable = !cursor.accept("read-only");
        let global = cursor.accept("global");
        self.scenario.mappings.push(Mapping { page, space, frame, writable, global });
        Ok(self.scenario.mappings.len() - 1)
    }

    /// `start v0 on p0 in M` or `start v0 off`.
    fn start(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ScriptError> {
        let span = here(cursor);
        let vcpu = self.vcpu(cursor)?;
        if self.scenario.starts.iter().any(|start| start.vcpu == vcpu) {
            return Err(ScriptError::new(format!("v{vcpu} has started already"), span));
        }
        let is_device = vcpu + self.scenario.devices >= self.scenario.vcpus;
        let pcpu = if is_device || cursor.one_of(&["on", "off"])? == "off" {
            None
        } else {
            let at = here(cursor);
            let pcpu = self.pcpu(cursor)?;
            let mut starts = self.scenario.starts.iter();
            if let Some(other) = starts.find(|start| start.pcpu == Some(pcpu)) {
                let message = format!("p{pcpu} is occupied: v{} starts there", other.vcpu);
                return Err(ScriptError::new(message, at)
                    .help(format!("Write `start v{vcpu} off` and let the host run it later")));
            }
            Some(pcpu)
        };
        let space = self.in_space(cursor, 0)?;
        self.scenario.starts.push(Start { vcpu, pcpu, space });
        Ok(())
    }

    /// `host may move v0 anywhere up to 2 times`.
    pub(super) fn free_moves(&mut self, cursor: &mut Cursor<'_>) -> Result<(), ScriptError> {
        cursor.keyword("host")?;
        cursor.keyword("may")?;
        cursor.keyword("move")?;
        let vcpu = self.vcpu(cursor)?;
        cursor.accept("anywhere");
        let mut moves = 2;
        if cursor.accept("up") {
            cursor.keyword("to")?;
            moves = cursor.number("a number of moves", 1..=9)?;
            if !cursor.accept("time") {
                cursor.keyword("times")?;
            }
        }
        self.scenario.free_moves[vcpu] = moves as u8;
        Ok(())
    }
}

/// Where the next token stands.
fn here(cursor: &Cursor<'_>) -> core::ops::Range<usize> {
    cursor.peek().map(|token| token.span.clone()).unwrap_or_default()
}

/// Sizes are fixed once: what was said before may depend on them.
fn said_once(word: &str, before: usize, span: core::ops::Range<usize>) -> Result<(), ScriptError> {
    match before {
        0 => Ok(()),
        _ => Err(ScriptError::new(format!("`{word}` has been said already: {before}"), span)
            .help("Keep one of the two lines")),
    }
}

/// `keyword 2m` if it stands here.
pub(super) fn page_size(
    cursor: &mut Cursor<'_>,
    keyword: &'static str,
) -> Result<Option<PageSize>, ScriptError> {
    if !cursor.accept(keyword) {
        return Ok(None);
    }
    Ok(Some(match cursor.one_of(&["4k", "2m", "1g"])? {
        "2m" => PageSize::Large,
        "1g" => PageSize::Huge,
        _ => PageSize::Small,
    }))
}
