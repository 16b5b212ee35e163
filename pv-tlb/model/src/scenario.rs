//! A scenario: what vCPUs, pCPUs, page tables and flushes do, with names resolved.
//!
//! Plain values without state or ordering, made by the script parser or by the
//! random generator, and compiled for one [`crate::world::World`] by
//! [`crate::program`].

use pv_tlb::addr::{Gva, PageSize};

use crate::verdict::Verdict;
use crate::world::World;

/// Most vCPUs, shared devices included, that one scenario can name.
pub const MAX_VCPUS: usize = 4;
/// Most pCPUs that one scenario can name.
pub const MAX_PCPUS: usize = 4;
/// Most frames, and most handshake marks.
pub const MAX_NAMES: usize = 32;
/// Most RAR payload slots.
pub const MAX_SLOTS: usize = 4;
/// Most VMs.
pub const MAX_VMS: usize = 2;

/// The instruction set of guest and host, as far as flushes differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// TLBI is open until a DSB on the issuing pCPU; broadcast exists.
    Arm64,
    /// A local flush is done when it retires; INVLPGB is open until TLBSYNC.
    X86,
    /// tlbiel and tlbie are open until ptesync on the issuing pCPU.
    Ppc,
    /// A local fence is done when it retires; remote fences go through the host.
    Riscv,
}

impl Isa {
    /// Every instruction set.
    pub const ALL: [Self; 4] = [Self::Arm64, Self::X86, Self::Ppc, Self::Riscv];

    /// The name used in scripts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Arm64 => "arm64",
            Self::X86 => "x86",
            Self::Ppc => "ppc",
            Self::Riscv => "riscv",
        }
    }

    /// True if a local flush has taken effect when the instruction retires.
    #[must_use]
    pub const fn local_flush_is_synchronous(self) -> bool {
        matches!(self, Self::X86 | Self::Riscv)
    }
}

/// When a TLB takes up a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fills {
    /// At any moment at which it is valid in the loaded address space: speculation.
    Speculative,
    /// Only when an access needs it.
    Demand,
}

/// A guest address space and the tag (ASID, PCID) that its entries carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    /// Name in the script.
    pub name: String,
    /// ASID or PCID; two spaces may carry the same one.
    pub asid: u16,
}

/// A page of guest virtual addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Name in the script.
    pub name: String,
    /// First address.
    pub at: Gva,
    /// Size of a translation for it.
    pub size: PageSize,
}

/// A page-table page one level above some pages of one space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Name in the script.
    pub name: String,
    /// Space whose walk goes through it.
    pub space: usize,
    /// Pages reached through it.
    pub pages: Vec<usize>,
    /// Frame that holds it.
    pub frame: usize,
}

/// One value that a leaf page-table entry has at some time: a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Page translated.
    pub page: usize,
    /// Space whose tables hold it.
    pub space: usize,
    /// Frame it leads to.
    pub frame: usize,
    /// Whether it allows writes.
    pub writable: bool,
    /// Whether it matches under every ASID.
    pub global: bool,
}

/// Who executes a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Actor {
    /// A vCPU, or a device that shares an address space, by index.
    Vcpu(usize),
    /// The hypervisor.
    Host,
}

/// Reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// A load or instruction fetch.
    Read,
    /// A store.
    Write,
}

/// What an access is required to do, besides never using a stale translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Must {
    /// Nothing in particular.
    Anything,
    /// Find no translation.
    Fault,
    /// Reach this frame and no other.
    Reach(usize),
}

/// Which entries a flush names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The addresses.
    pub addresses: Addresses,
    /// Spare the paging-structure caches.
    pub leaf_only: bool,
    /// Space whose tag is meant; `None` is the space loaded by the flusher.
    pub space: Option<usize>,
}

/// The addresses a flush names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// Every entry of the VM, globals included.
    Everything,
    /// Every non-global entry of the VM.
    NonGlobal,
    /// Every non-global entry of one space.
    Space,
    /// These pages.
    Pages(Vec<usize>),
    /// `pages` addresses from `start`, `stride` apart.
    Range {
        /// First address.
        start: Gva,
        /// Number of addresses.
        pages: u64,
        /// Distance.
        stride: PageSize,
    },
}

/// How a flush is carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// By a local instruction of the executing vCPU.
    Locally,
    /// By a broadcast instruction (TLBI …IS, INVLPGB, tlbie).
    Everywhere,
    /// By an interrupt whose routine flushes locally on each of these vCPUs.
    Ipi(Vec<usize>),
    /// As `Ipi`, but a preempted vCPU is only marked in its `preempted` byte.
    Flag(Vec<usize>),
    /// By a call to the host, which flushes for each of these vCPUs.
    Hypercall(Vec<usize>),
}

/// One thing that an actor does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// An access that translates and completes at once.
    Access(AccessKind, usize, Must),
    /// The first half of an access: the translation is latched.
    Begin(AccessKind, usize),
    /// The second half: the latched translation is used.
    Finish,
    /// A store to a leaf page-table entry; `None` makes it invalid.
    SetPte {
        /// Page whose entry is stored to.
        page: usize,
        /// Space whose tables are meant.
        space: usize,
        /// New value, an index into [`Scenario::mappings`].
        mapping: Option<usize>,
    },
    /// The entry that points to this table is made invalid.
    CutTable(usize),
    /// A flush.
    Flush(Extent, Way),
    /// The completion barrier; `true`: only for flushes of this CPU's own TLB.
    Sync(bool),
    /// Waits until every vCPU interrupted by this one has answered.
    Wait,
    /// The frame goes back to the allocator: no access through a mapping made so far
    /// may reach it any more.
    Free(usize),
    /// Somebody relies on the frame's contents: no write through a mapping made so
    /// far may reach it any more.
    Freeze(usize),
    /// Loads another address space, dropping its old non-global entries if `true`.
    Switch(usize, bool),
    /// Sets a handshake mark.
    Set(usize),
    /// Waits for a handshake mark.
    Await(usize),
    /// Writes what RAR payload slot asks for.
    RarPayload(usize, Extent),
    /// Marks the slot pending in the action vector of a vCPU.
    RarArm(usize, usize),
    /// Sends the RAR event to a vCPU.
    RarRing(usize),
    /// Waits until the vCPU has cleared the slot.
    RarWait(usize, usize),
    /// The host takes the vCPU off its pCPU.
    Preempt(usize),
    /// The host runs a vCPU that is off, on this pCPU.
    Run(usize, usize),
    /// The host takes the vCPU to this pCPU and off again before it has entered.
    RunInVain(usize, usize),
    /// The host takes a running vCPU off and runs it on this pCPU.
    Move(usize, usize),
    /// The host gives the tag of the first VM to the second.
    GiveTag(usize, usize),
    /// The host flushes its own entries by broadcast.
    HostFlush,
}

/// A condition on the options of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Index into [`Scenario::options`].
    pub option: usize,
    /// The line is executed if the option is set to this.
    pub is: bool,
}

/// One line of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Who.
    pub actor: Actor,
    /// Does what.
    pub op: Op,
    /// Only under this condition.
    pub only_if: Option<Condition>,
    /// How it reads in the script; used in traces.
    pub text: String,
    /// Line number in the script, from 1; 0 if there is no script.
    pub number: usize,
}

/// Lines whose actors run concurrently; the next phase starts when all are done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Phase {
    /// In program order per actor.
    pub lines: Vec<Line>,
}

/// A vCPU that runs from the start on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Which vCPU.
    pub vcpu: usize,
    /// On which pCPU; `None` if it is off at the start.
    pub pcpu: Option<usize>,
    /// With which space loaded.
    pub space: usize,
}

/// What the host is expected to make of the scenario in one world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// Host policy, dials and options.
    pub world: World,
    /// The verdict to be reached.
    pub verdict: Verdict,
    /// Prices to be met exactly, where given.
    pub price: ExpectedPrice,
    /// Line number in the script, from 1.
    pub number: usize,
}

/// Exact prices of an in-order run, where an expectation names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpectedPrice {
    /// Flushes sent to every pCPU.
    pub broadcasts: Option<u32>,
    /// Remote pCPUs reached by flushes, summed.
    pub disturbed: Option<u32>,
    /// Entries dropped, summed.
    pub dropped: Option<u32>,
}

/// A scenario with names resolved to indices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// Name used on the command line.
    pub name: String,
    /// One line that says what happens.
    pub title: String,
    /// Number in the project's list of public reports, if it comes from there.
    pub case: Option<u32>,
    /// Where it was reported.
    pub links: Vec<String>,
    /// What it is about, line by line.
    pub about: Vec<String>,
    /// Instruction set.
    pub isa: Isa,
    /// Number of vCPUs, devices included (they come last).
    pub vcpus: usize,
    /// How many of them are devices that share an address space.
    pub devices: usize,
    /// Number of pCPUs, without the devices' own.
    pub pcpus: usize,
    /// VM of each vCPU.
    pub vm_of: Vec<usize>,
    /// When translations are taken up.
    pub fills: Fills,
    /// True if stage-1 entries are also cached apart from combined ones.
    pub split_tlb: bool,
    /// Address spaces.
    pub spaces: Vec<Space>,
    /// Pages.
    pub pages: Vec<Page>,
    /// Names of frames.
    pub frames: Vec<String>,
    /// Names of handshake marks.
    pub marks: Vec<String>,
    /// Page-table pages.
    pub tables: Vec<Table>,
    /// Every value a leaf entry takes.
    pub mappings: Vec<Mapping>,
    /// Those valid at the start.
    pub initial: Vec<usize>,
    /// Where the vCPUs start.
    pub starts: Vec<Start>,
    /// What happens.
    pub phases: Vec<Phase>,
    /// Per vCPU, how often the host may move it at will.
    pub free_moves: Vec<u8>,
    /// Switchable guest behaviour: name and meaning.
    pub options: Vec<(String, String)>,
    /// Options in force in the policy matrix.
    pub matrix_options: u32,
    /// Verdicts to be reached.
    pub expectations: Vec<Expectation>,
}
