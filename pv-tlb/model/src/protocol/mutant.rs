//! Broken variants of the protocols, each of which exploration has to catch.
//!
//! Most are said between the code and its platform: an access is dropped, moved,
//! weakened or given another answer, while the shipped code stays as it is. The rest
//! belong to the modelled host, hardware or caller, which look for their mutant by
//! name. Plain values; a mutant's memory lies in the recorder of one run.

use pv_tlb::shootdown::{HardwareWord, INIT_MM, MmId, SWITCHING, Word};

use super::access::Access;
use super::replay::Recorder;

macro_rules! mutants {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal;)+) => {
        /// One mistake.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Mutant {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Mutant {
            /// Every mutant.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The mistake in a few words.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

mutants! {
    /// Requests without a generation look served (as first posted, in 2022).
    GenerationZeroServed = "generation-0 guard removed";
    /// The handler notes the generation that it reads after its flush.
    GenerationReadAfterFlush = "generation read after the flush is recorded";
    /// A range is taken for all that is missing.
    RangeAloneSuffices = "range flush without generation = local + 1";
    /// The switch reads the generation before it sets its bit in the mask.
    GenerationBeforeMask = "generation read before the mask bit is set";
    /// The switch does not compare generations.
    SwitchSkipsGeneration = "switch without a look at the generation";
    /// A vCPU between two address spaces counts as one that has another mm.
    SwitchingPassedOver = "vCPU between two mms passed over";
    /// A slot keeps the entries of the mm that had it before.
    SlotKeepsEntries = "slot taken over without a flush";
    /// Lazy vCPUs are spared although page tables go.
    LazySparedTablesFreed = "lazy vCPU skipped although tables are freed";
    /// The initiator waits with interrupts off.
    WaitWithInterruptsOff = "wait with interrupts off";
    /// The interrupt is sent before the request is posted.
    InterruptBeforePost = "interrupt before the request is posted";
    /// The handler acks before it flushes.
    AckBeforeFlush = "ack before the flush";
    /// The frame goes to somebody else before the flush.
    FreeBeforeAck = "frame freed before the acks";
    /// The page tables are changed after the flush.
    TablesChangedLate = "page tables changed after the flag is set";
    /// The guest stores the flush flag instead of comparing and swapping.
    FlagStoredPlainly = "guest stores 3 instead of compare-and-swap";
    /// The host reads the byte and clears it in two steps.
    HostLoadsThenStores = "host loads and stores instead of exchanging";
    /// The host says "preempted" again and loses the flag.
    HostOverwritesFlag = "host writes 1 over 3";
    /// The host flushes after it has entered the guest.
    HostFlushesLate = "host flushes after entry";
    /// The monitor looks who runs before it posts.
    LookBeforePost = "standing read before the post";
    /// The target looks at its inbox before it says that it runs.
    InboxBeforeRunning = "inbox looked at before running is stored";
    /// The membarrier comes before the signals.
    MembarrierBeforeSignal = "membarrier before the signal";
    /// Running targets are not signalled.
    NoSignal = "running target not signalled";
    /// The flusher believes its first look at the word.
    NoReread = "no re-read of the active vCPU";
    /// The flusher waits for stores only, which does not hold back its re-read.
    StoreFenceOnly = "flusher's barrier orders stores only";
    /// The second vCPU does not wait until its mark is visible.
    WriterWithoutBarrier = "no barrier between mark and table load";
    /// The second vCPU marks the mm after it has loaded the tables.
    MarkAfterLoad = "active vCPU stored after the switch";
    /// The wait happens on another pCPU than the broadcast.
    SyncAfterMigration = "TLBSYNC after migration, host does not drain";
    /// Nobody waits for the broadcast.
    NoSync = "no TLBSYNC";
    /// Hardware with erratum 1718, guest without the workaround.
    OneSyncOfTwo = "erratum 1718: one TLBSYNC where two are needed";
    /// A flush in transition tells nobody who lags.
    TransitionIgnored = "laggards of a transition not interrupted";
    /// The end of a transition does not wait for vCPUs that switch.
    TransitionEndsEarly = "transition ends while a vCPU switches";
    /// Global slots of dead mms are handed out with their entries.
    RolloverWithoutFlush = "global slots reused without a flush";
    /// A request that arrives during a scan is lost.
    UnlatchedScan = "RAR that arrives during a scan is dropped";
    /// A waiter looks at the owner once.
    OwnerPolledOnce = "owner polled once";
    /// The bytes are armed and nobody is sent a request.
    RequestNotSent = "armed but no RAR sent";
    /// The initiator leaves its own entries to the message.
    NotFlushedHere = "initiator does not flush itself";
}

impl Mutant {
    /// Performs what this mutant makes of `access`.
    pub(super) fn alter(self, p: &Recorder<'_>, access: Access) -> u64 {
        match self {
            Self::GenerationZeroServed
            | Self::GenerationReadAfterFlush
            | Self::RangeAloneSuffices
            | Self::GenerationBeforeMask
            | Self::SwitchSkipsGeneration => self.alter_generation(p, access),
            Self::NoReread | Self::WriterWithoutBarrier | Self::MarkAfterLoad => {
                self.alter_active(p, access)
            }
            Self::OwnerPolledOnce => poll_owner_once(p, access),
            _ => self.alter_message(p, access),
        }
    }

    fn alter_generation(self, p: &Recorder<'_>, access: Access) -> u64 {
        let loaded = || p.perform(Access::Load(Word::LoadedMm(p.me)));
        let here = || {
            let slot = p.perform(Access::Load(Word::LoadedSlot(p.me))) as u8;
            p.perform(Access::Load(Word::SlotGen(p.me, slot)))
        };
        match (self, access) {
            (Self::GenerationZeroServed, Access::Load(Word::RequestGen(_))) => {
                match p.perform(access) {
                    0 => here(),
                    generation => generation,
                }
            }
            (Self::GenerationReadAfterFlush, Access::Store(Word::SlotGen(v, slot), value)) => {
                let noted = match loaded() {
                    SWITCHING => value,
                    mm => p.perform(Access::Load(Word::MmGen(MmId(mm as u32)))),
                };
                p.perform(Access::Store(Word::SlotGen(v, slot), noted))
            }
            (Self::RangeAloneSuffices, Access::Load(Word::RequestGen(_))) => {
                let generation = p.perform(access);
                p.memory.set(Some(generation));
                generation
            }
            (Self::RangeAloneSuffices, Access::Add(Word::MmGen(_), _)) => {
                let old = p.perform(access);
                p.memory.set(Some(old + 1));
                old
            }
            (Self::RangeAloneSuffices, Access::Load(Word::SlotGen(..))) => {
                let here = p.perform(access);
                here.max(p.memory.get().map_or(0, |generation| generation.saturating_sub(1)))
            }
            (Self::GenerationBeforeMask, Access::Or(Word::MmMask(mm, _), _)) => {
                p.memory.set(Some(p.perform(Access::Load(Word::MmGen(mm)))));
                p.perform(access)
            }
            (Self::GenerationBeforeMask, Access::Load(Word::MmGen(_))) => {
                p.memory.take().unwrap_or_else(|| p.perform(access))
            }
            (Self::SwitchSkipsGeneration, Access::Load(Word::MmGen(_))) => match loaded() {
                SWITCHING => 0,
                _ => p.perform(access),
            },
            _ => p.perform(access),
        }
    }

    fn alter_active(self, p: &Recorder<'_>, access: Access) -> u64 {
        let is_mark = |word| matches!(word, Word::Hardware(HardwareWord::ActiveVcpu(_)));
        match (self, access) {
            (Self::NoReread, Access::Load(word)) if is_mark(word) => {
                let seen = p.memory.get().unwrap_or_else(|| p.perform(access));
                p.memory.set(Some(seen));
                seen
            }
            (Self::WriterWithoutBarrier | Self::MarkAfterLoad, Access::FenceStores) => 0,
            (Self::MarkAfterLoad, Access::Store(word, value)) if is_mark(word) => {
                p.memory.set(Some(value));
                0
            }
            (Self::MarkAfterLoad, Access::LoadMm(mm, ..)) => {
                p.perform(access);
                if let Some(mark) = p.memory.take() {
                    let word = Word::Hardware(HardwareWord::ActiveVcpu(mm));
                    p.perform(Access::Store(word, mark));
                }
                0
            }
            _ => p.perform(access),
        }
    }

    fn alter_message(self, p: &Recorder<'_>, access: Access) -> u64 {
        match (self, access) {
            (Self::WaitWithInterruptsOff, Access::IrqsOff(off)) => {
                p.memory.set(off.then_some(1));
                p.perform(access)
            }
            // With interrupts off the end of a masked stretch serves nobody either.
            (Self::WaitWithInterruptsOff, Access::Load(Word::Masked(_))) => {
                p.memory.get().unwrap_or_else(|| p.perform(access))
            }
            (Self::SlotKeepsEntries, Access::LoadMm(mm, slot, _)) => {
                p.perform(Access::LoadMm(mm, slot, false))
            }
            (Self::InterruptBeforePost, Access::Or(Word::Pending(target, _), _)) => {
                p.perform(Access::Ipi(1 << target.0));
                p.perform(access)
            }
            (Self::AckBeforeFlush, Access::Load(Word::RequestGen(sender))) => {
                let generation = p.perform(access);
                p.perform(Access::And(Word::Owing(sender, 0), !(1 << p.me.0)));
                generation
            }
            (Self::FlagStoredPlainly, Access::CompareExchange(word, current, new)) => {
                p.perform(Access::Store(word, new));
                current
            }
            (Self::StoreFenceOnly, Access::Fence) => p.perform(Access::FenceStores),
            (
                Self::SwitchingPassedOver | Self::TransitionEndsEarly,
                Access::Load(Word::LoadedMm(target)),
            ) if target != p.me => match p.perform(access) {
                SWITCHING => u64::from(INIT_MM.0),
                mm => mm,
            },
            (
                Self::TransitionIgnored,
                Access::Load(Word::Hardware(HardwareWord::InTransition(_))),
            ) => 0,
            (Self::NotFlushedHere, Access::DropPage(_) | Access::DropSlot(..))
            | (Self::InterruptBeforePost, Access::Ipi(_))
            | (Self::AckBeforeFlush, Access::And(Word::Owing(..), _))
            | (Self::NoSync, Access::Sync)
            | (Self::RequestNotSent, Access::ActionRequest(_))
            | (Self::RolloverWithoutFlush, Access::Broadcast(None, None)) => 0,
            _ => p.perform(access),
        }
    }
}

/// The first look of a wait at the owner counts; later ones find it still there.
fn poll_owner_once(p: &Recorder<'_>, access: Access) -> u64 {
    let turns = p.memory.get().unwrap_or(0);
    match access {
        Access::Relax => p.memory.set(Some(turns + 1)),
        Access::ActionRequest(_) => p.memory.set(None),
        Access::Load(Word::Hardware(HardwareWord::ActionOwner(_))) if turns > 1 => return u64::MAX,
        _ => {}
    }
    p.perform(access)
}
