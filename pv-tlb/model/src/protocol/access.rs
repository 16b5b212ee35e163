//! What a vCPU's code does in one step.
//!
//! Plain values: an access is recorded when the code asks for it, and performed
//! later, when the explorer chooses the vCPU.

use core::fmt;

use pv_tlb::id::VcpuId;
use pv_tlb::shootdown::{MmId, SWITCHING, Word};

/// One access to shared state, or one act on the TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Load(Word),
    /// A store that may wait in the store buffer.
    Store(Word, u64),
    Swap(Word, u64),
    CompareExchange(Word, u64, u64),
    Add(Word, u64),
    Or(Word, u64),
    And(Word, u64),
    /// Waits until every earlier store is visible.
    Fence,
    /// Later stores, and acts on the TLB, wait until every earlier store is visible.
    FenceStores,
    DropPage(u8),
    DropContext,
    /// Slot, page.
    DropSlot(u8, Option<u8>),
    LoadMm(MmId, u8, bool),
    /// Targets, one bit each.
    Ipi(u8),
    Relax,
    /// Either answer, whatever the state: a hint proves nothing.
    Hint(VcpuId),
    /// A user access to a page.
    Touch(u8),
    /// Stores the next version of a page's entry; gives the version.
    SetPte(MmId, u8),
    /// The flush for the version has returned.
    Returned(MmId, u8, u8),
    /// The frame, or the table, of earlier versions goes to somebody else.
    Free(MmId, u8, u8, bool),
    /// Interrupts off, or on again, in hardware.
    IrqsOff(bool),
    /// The vCPU's thread is in the monitor, or leaves it.
    InCall(bool),
    Post(VcpuId),
    /// 1 if the target says that it runs.
    Observe(VcpuId),
    Kick(VcpuId),
    /// Signalled threads leave guest mode.
    Membarrier,
    /// 1 while this vCPU's request waits in the target's inbox.
    Waiting(VcpuId),
    /// Sends an invalidation to every vCPU: slot, page.
    Broadcast(Option<u8>, Option<u8>),
    /// Waits for the broadcasts issued from this pCPU.
    Sync,
    /// Sends a remote action request to the targets.
    ActionRequest(u8),
}

impl Access {
    /// True for accesses that a wait repeats until they give something else. (One that
    /// changes memory instead of failing ends the wait.)
    pub(super) fn is_look(self) -> bool {
        matches!(self, Self::Load(_) | Self::Waiting(_) | Self::CompareExchange(..))
    }

    /// True if no other vCPU can tell when the access happens, and neither can an
    /// interrupt of this vCPU, as long as it holds requests back.
    pub(super) fn is_private(self, me: VcpuId, shows_slot: bool) -> bool {
        match self {
            Self::Store(Word::LoadedSlot(_), _) if shows_slot => false,
            Self::Load(word) => {
                is_own_record(word, me) || word == Word::LoadedMm(me) || word == Word::Lazy(me)
            }
            Self::Store(word, _) => is_own_record(word, me),
            _ => false,
        }
    }
}

/// Words that nobody but their vCPU ever touches.
fn is_own_record(word: Word, me: VcpuId) -> bool {
    match word {
        Word::LoadedSlot(v) | Word::SlotMm(v, _) | Word::SlotGen(v, _) | Word::NextSlot(v) => {
            v == me
        }
        _ => false,
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Load(word) => write!(f, "load {word:?}"),
            Self::Store(word, SWITCHING) => write!(f, "store {word:?} = switching"),
            Self::Store(word, value) => write!(f, "store {word:?} = {value}"),
            Self::Swap(word, value) => write!(f, "swap {word:?} = {value}"),
            Self::CompareExchange(word, old, new) => {
                write!(f, "compare-and-swap {word:?} {old} to {new}")
            }
            Self::Add(word, value) => write!(f, "add {value} to {word:?}"),
            Self::Or(word, bits) => write!(f, "set {bits:#b} in {word:?}"),
            Self::And(word, bits) => write!(f, "clear {:#b} in {word:?}", !bits),
            Self::Ipi(targets) => write!(f, "interrupt {targets:#b}"),
            Self::Touch(page) => write!(f, "access page {page}"),
            Self::SetPte(mm, page) => write!(f, "change page {page} of mm {}", mm.0),
            Self::Returned(_, page, version) => {
                write!(f, "flush of page {page} for version {version} returned")
            }
            other => write!(f, "{other:?}"),
        }
    }
}
