//! The doorbell: pvtlb's own flush ABI. A CPUID leaf to find it, one shared page
//! per vCPU, and one OUT that returns when the flush holds. docs/doorbell.md is
//! the text for guest authors; this file is the layout.
//!
//! Writers: the host writes [`HostArea`] and [`Response`], the guest's vCPU writes
//! its own [`GuestArea`] and [`Request`]. Nothing in the page is trusted by the
//! host: a request is copied out once, then decoded from the copy. The OUT orders
//! guest stores before host loads (the exit is serialising), so every access to
//! request and response is `Relaxed`; the hints in the other areas name their
//! partners.

use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::addr::{Gva, PageCount, PageSize};
use crate::cpuset::{CpuSet, WORDS};
use crate::id::{Asid, FlushSeq, Pcid};
use crate::invalidation::{Context, Depth, Extent, Globals, Invalidation, Reach};

/// Leaf whose EBX, ECX, EDX spell [`SIGNATURE`]; EAX is the highest doorbell leaf.
pub const CPUID_SIGNATURE: u32 = 0x4000_0100;
/// EAX version, EBX I/O port, ECX [`Features`], EDX number of shared pages.
pub const CPUID_FEATURES: u32 = 0x4000_0101;
/// EAX and EBX: low and high half of the first page's guest physical address;
/// ECX: bytes from one page to the next.
pub const CPUID_PAGES: u32 = 0x4000_0102;
/// "pvtlbpvtlb" and two NULs, little endian, in EBX, ECX, EDX.
pub const SIGNATURE: [u32; 3] = [0x6c74_7670, 0x7476_7062, 0x0000_626c];

/// The version this file describes.
pub const VERSION: u32 = 1;
/// First word of every shared page.
pub const MAGIC: u32 = 0x4254_5650;
/// The I/O port the monitor uses unless CPUID says otherwise.
pub const PORT: u16 = 0x520;
/// The only command, in EAX of the OUT: perform the request in the vCPU's page.
pub const COMMAND_FLUSH: u32 = 1;
/// Bytes from one vCPU's page to the next.
pub const PAGE_STRIDE: usize = 4096;

bitflags::bitflags! {
    /// ECX of [`CPUID_FEATURES`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Features: u32 {
        /// The host keeps [`HostArea::run_hint`] up to date.
        const RUN_HINT = 1 << 0;
    }

    /// [`HostArea::flags`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct HostFlags: u32 {
        /// More vCPUs than pCPUs: a target may have to wait for its turn, so that
        /// an IPI may cost a scheduling period.
        const OVERCOMMITTED = 1 << 0;
    }

    /// [`GuestArea::flags`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct GuestFlags: u32 {
        /// The guest sets [`GuestArea::section`] around every stretch of code that
        /// the host may emulate and that may touch memory whose translations are
        /// shot down.
        const DECLARES_SECTIONS = 1 << 0;
        /// The guest keeps [`GuestArea::idle`] and flushes by itself when it wakes.
        const DECLARES_IDLE = 1 << 1;
    }

    /// [`Request::flags`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RequestFlags: u32 {
        /// `asid` must match.
        const ASID = 1 << 0;
        /// `pcid` must match.
        const PCID = 1 << 1;
        /// Only `start`, `pages`, `stride`; otherwise every address.
        const RANGE = 1 << 2;
        /// Global entries as well.
        const GLOBAL = 1 << 3;
        /// Leave paging-structure caches alone.
        const FINAL_ONLY = 1 << 4;
    }
}

/// What the host says of the vCPU that owns the page.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct HostArea {
    /// [`MAGIC`].
    pub magic: AtomicU32,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// Number of the vCPU (its x2APIC id).
    pub vcpu: AtomicU32,
    /// [`HostFlags`]. A hint: it may be late, and correctness never rests on it.
    pub flags: AtomicU32,
    /// [`RunHint`]. A hint: it may be late, and correctness never rests on it.
    pub run_hint: AtomicU32,
    reserved: AtomicU32,
    /// The host's number of the newest flush it was asked for of this vCPU. A vCPU
    /// that declares when it idles looks here when it wakes.
    pub requested: AtomicU64,
    reserved_end: [AtomicU64; 4],
}

/// Values of [`HostArea::run_hint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum RunHint {
    /// The host cannot tell.
    Unknown = 0,
    /// On a pCPU of its own when last seen: an IPI is answered at once.
    OnPcpu = 1,
    /// Not running guest code when last seen.
    OffPcpu = 2,
}

/// What the guest says of itself.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct GuestArea {
    /// [`GuestFlags`], set once before the first request.
    pub flags: AtomicU32,
    /// Not 0 while the vCPU may be inside an access that the host emulates. The
    /// guest stores before the section and after it; the host loads after an
    /// expedited membarrier, which orders the two (see docs/doorbell.md).
    pub section: AtomicU32,
    /// Not 0 while the vCPU uses no translation that may be shot down and, before it
    /// uses one again, stores 0, fences, and drops all of them if
    /// [`HostArea::requested`] has changed. The host posts, fences, then loads this.
    pub idle: AtomicU32,
    reserved: [AtomicU32; 13],
}

/// An invalidation as bytes.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Request {
    /// 0 local, 1 the vCPUs in `set`, 2 all.
    pub scope: AtomicU32,
    /// [`RequestFlags`]; other bits must be 0.
    pub flags: AtomicU32,
    /// Bits 15:0 ASID, bits 31:16 PCID; each must be 0 without its flag.
    pub tags: AtomicU32,
    /// 0 for 4 KiB, 1 for 2 MiB, 2 for 1 GiB; 0 without `RANGE`.
    pub stride: AtomicU32,
    /// First address; 0 without `RANGE`.
    pub start: AtomicU64,
    /// Number of pages, the first included; 0 without `RANGE`.
    pub pages: AtomicU64,
    /// The guest's own number of this flush; echoed in the response.
    pub seq: AtomicU64,
    reserved: [AtomicU64; 3],
    /// vCPU 0 in bit 0 of word 0; all 0 unless `scope` is 1.
    pub set: [AtomicU64; WORDS],
}

/// What the host did.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Response {
    /// [`Status`].
    pub status: AtomicU32,
    /// Targets that were interrupted.
    pub kicked: AtomicU32,
    /// Targets that will flush before their next guest instruction.
    pub deferred: AtomicU32,
    /// Reserved, 0.
    pub reserved: AtomicU32,
    /// Echo of [`Request::seq`].
    pub seq: AtomicU64,
    /// Nanoseconds from the exit to the moment the flush held.
    pub waited_ns: AtomicU64,
    pad: [AtomicU64; 4],
}

/// One vCPU's shared page.
#[repr(C, align(4096))]
#[derive(Debug, Default)]
pub struct DoorbellPage {
    /// Host writes.
    pub host: HostArea,
    /// Guest writes.
    pub guest: GuestArea,
    /// Guest writes.
    pub request: Request,
    /// Host writes.
    pub response: Response,
}

const _: () = {
    assert!(size_of::<DoorbellPage>() == PAGE_STRIDE);
    assert!(offset_of!(DoorbellPage, host) == 0x000);
    assert!(offset_of!(DoorbellPage, guest) == 0x040);
    assert!(offset_of!(DoorbellPage, request) == 0x080);
    assert!(offset_of!(DoorbellPage, response) == 0x140);
    assert!(offset_of!(HostArea, run_hint) == 0x10);
    assert!(offset_of!(HostArea, requested) == 0x18);
    assert!(offset_of!(GuestArea, section) == 0x04);
    assert!(offset_of!(GuestArea, idle) == 0x08);
    assert!(offset_of!(Request, start) == 0x10);
    assert!(offset_of!(Request, seq) == 0x20);
    assert!(offset_of!(Request, set) == 0x40);
    assert!(size_of::<Request>() == 0xc0);
    assert!(offset_of!(Response, seq) == 0x10);
    assert!(offset_of!(Response, waited_ns) == 0x18);
};

/// Result of a request, in [`Response::status`]. Anything but `Done` means that
/// the guest may rely on nothing having been flushed; after `TimedOut` some targets
/// may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// The flush holds on every target.
    Done = 0,
    /// EAX of the OUT was not a command.
    BadCommand = 1,
    /// `scope` is above 2.
    BadScope = 2,
    /// A flag that is not defined, or a field that must be 0 is not.
    Reserved = 3,
    /// The PCID does not fit twelve bits.
    BadPcid = 4,
    /// No page, an address that is not canonical, or a range that leaves the
    /// canonical half it began in.
    BadRange = 5,
    /// `stride` is above 2.
    BadStride = 6,
    /// `set` names a vCPU that does not exist.
    BadVcpu = 7,
    /// A target did not answer before the monitor's deadline.
    TimedOut = 8,
}

impl TryFrom<u32> for Status {
    type Error = u32;

    /// Fails with the value itself if no status has it.
    fn try_from(raw: u32) -> Result<Self, u32> {
        use Status::*;
        [Done, BadCommand, BadScope, Reserved, BadPcid, BadRange, BadStride, BadVcpu, TimedOut]
            .into_iter()
            .find(|status| *status as u32 == raw)
            .ok_or(raw)
    }
}

const SCOPE_LOCAL: u32 = 0;
const SCOPE_SET: u32 = 1;
const SCOPE_ALL: u32 = 2;

impl Request {
    /// Writes `ask` and `seq` as the guest does before the OUT. Nested
    /// translations cannot be asked for and are left out.
    pub fn write(&self, ask: &Invalidation, seq: FlushSeq) {
        let mut flags = RequestFlags::empty();
        flags.set(RequestFlags::ASID, ask.context.asid.is_some());
        flags.set(RequestFlags::PCID, ask.context.pcid.is_some());
        flags.set(RequestFlags::GLOBAL, ask.globals == Globals::Include);
        flags.set(RequestFlags::FINAL_ONLY, ask.depth == Depth::FinalOnly);
        let (start, pages, stride) = match ask.extent {
            Extent::Whole => (0, 0, PageSize::Small),
            Extent::Range { start, pages, stride } => {
                flags |= RequestFlags::RANGE;
                (start.0, pages.0, stride)
            }
        };
        let asid = ask.context.asid.map_or(0, |Asid(raw)| u32::from(raw));
        let pcid = ask.context.pcid.map_or(0, |Pcid(raw)| u32::from(raw));
        let (scope, set) = match ask.reach {
            Reach::Local => (SCOPE_LOCAL, CpuSet::EMPTY),
            Reach::Set(set) => (SCOPE_SET, set),
            Reach::All => (SCOPE_ALL, CpuSet::EMPTY),
        };
        self.scope.store(scope, Relaxed);
        self.flags.store(flags.bits(), Relaxed);
        self.tags.store(asid | pcid << 16, Relaxed);
        self.stride.store(stride as u32, Relaxed);
        self.start.store(start, Relaxed);
        self.pages.store(pages, Relaxed);
        self.seq.store(seq.0, Relaxed);
        for (word, value) in self.set.iter().zip(set.words()) {
            word.store(*value, Relaxed);
        }
    }

    /// Copies the request out once and decodes the copy, so that a guest that
    /// changes the page meanwhile changes nothing but its own request.
    ///
    /// # Errors
    /// The status to answer with.
    pub fn read(&self, present: &CpuSet) -> Result<(Invalidation, FlushSeq), Status> {
        let flags = RequestFlags::from_bits(self.flags.load(Relaxed)).ok_or(Status::Reserved)?;
        let mut words = [0; WORDS];
        for (value, word) in words.iter_mut().zip(&self.set) {
            *value = word.load(Relaxed);
        }
        let ask = Invalidation {
            reach: reach(self.scope.load(Relaxed), CpuSet::from_words(words), present)?,
            context: context(self.tags.load(Relaxed), flags)?,
            extent: self.extent(flags)?,
            globals: match flags.contains(RequestFlags::GLOBAL) {
                true => Globals::Include,
                false => Globals::Spare,
            },
            depth: match flags.contains(RequestFlags::FINAL_ONLY) {
                true => Depth::FinalOnly,
                false => Depth::AllLevels,
            },
            nested: false,
        };
        Ok((ask, FlushSeq(self.seq.load(Relaxed))))
    }

    fn extent(&self, flags: RequestFlags) -> Result<Extent, Status> {
        let start = Gva(self.start.load(Relaxed));
        let pages = self.pages.load(Relaxed);
        let stride = match self.stride.load(Relaxed) {
            0 => PageSize::Small,
            1 => PageSize::Large,
            2 => PageSize::Huge,
            _ => return Err(Status::BadStride),
        };
        if !flags.contains(RequestFlags::RANGE) {
            let clear = start == Gva(0) && pages == 0 && stride == PageSize::Small;
            return if clear { Ok(Extent::Whole) } else { Err(Status::Reserved) };
        }
        let last = pages
            .checked_sub(1)
            .and_then(|steps| steps.checked_mul(stride.bytes()))
            .and_then(|bytes| start.checked_add(bytes))
            .ok_or(Status::BadRange)?;
        let same_half = start.0 >> 63 == last.0 >> 63;
        if !start.is_canonical() || !last.is_canonical() || !same_half {
            return Err(Status::BadRange);
        }
        Ok(Extent::Range { start, pages: PageCount(pages), stride })
    }
}

fn reach(scope: u32, set: CpuSet, present: &CpuSet) -> Result<Reach, Status> {
    match scope {
        SCOPE_SET if set.minus(present).is_empty() => Ok(Reach::Set(set)),
        SCOPE_SET => Err(Status::BadVcpu),
        SCOPE_LOCAL | SCOPE_ALL if !set.is_empty() => Err(Status::Reserved),
        SCOPE_LOCAL => Ok(Reach::Local),
        SCOPE_ALL => Ok(Reach::All),
        _ => Err(Status::BadScope),
    }
}

fn context(tags: u32, flags: RequestFlags) -> Result<Context, Status> {
    let asid = Asid((tags & 0xffff) as u16);
    let pcid = Pcid::new((tags >> 16) as u16).ok_or(Status::BadPcid)?;
    let field = |set: bool, clear: bool| if set || clear { Ok(set) } else { Err(Status::Reserved) };
    Ok(Context {
        asid: field(flags.contains(RequestFlags::ASID), asid.0 == 0)?.then_some(asid),
        pcid: field(flags.contains(RequestFlags::PCID), pcid.0 == 0)?.then_some(pcid),
    })
}

#[cfg(test)]
#[path = "doorbell/tests.rs"]
mod tests;
