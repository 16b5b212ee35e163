//! A setup for every mutant, small enough to be explored and rich enough to catch it.
//!
//! Plain values.

use pv_tlb::shootdown::rar::Sending;

use super::cases::{
    BATCH, BOTH, COMES_BACK, INVLPGB, IPI, MOVES, MOVES_AND_LEAVES, Programs, REUSES_SLOT,
    SECOND_USER, TABLES, TWICE, TWO_SEND, USES, active_cpu, doorbell, invlpgb, kvm_pv, membarrier,
    rar, warm,
};
use super::mutant::Mutant::{self, *};
use super::program::Algorithm;
use super::program::Op::{Switch, Touch, Unmap, UnmapTable};
use super::setup::Setup;

/// A late request finds the mm left with its slot up to date.
const COMES_BACK_TWICE: Programs = (
    "the target leaves and comes back twice",
    &[
        &[Unmap(1, 0), Unmap(1, 0)],
        &[Switch(2), Switch(1), Touch(0), Switch(2), Switch(1), Touch(0)],
    ],
);
const NEXT_MM: Programs = ("another mm takes the slot", &[&[], &[Touch(0), Switch(2), Touch(0)]]);
const TABLES_IN_USE: Programs =
    ("tables are freed under a target", &[&[UnmapTable(1, 1)], &[Touch(0)]]);
const ALONE: Programs = ("the initiator uses the mm", &[&[Unmap(1, 0), Touch(0)], &[]]);

fn ipi(programs: Programs) -> Setup {
    Setup::new("ipi", Algorithm::Shootdown(IPI), programs)
}

fn setup(mutant: Mutant) -> Setup {
    match mutant {
        GenerationZeroServed => ipi(BATCH),
        GenerationReadAfterFlush | RangeAloneSuffices => warm(ipi(BOTH)),
        GenerationBeforeMask => ipi(COMES_BACK_TWICE),
        SwitchSkipsGeneration | SwitchingPassedOver => ipi(COMES_BACK),
        SlotKeepsEntries => Setup { slots: 1, ..ipi(NEXT_MM) },
        LazySparedTablesFreed => Setup { speculates: true, ..ipi(TABLES) },
        AckBeforeFlush => Setup { speculates: true, ..ipi(TABLES_IN_USE) },
        WaitWithInterruptsOff => ipi(BOTH),
        InterruptBeforePost | FreeBeforeAck => ipi(USES),
        TablesChangedLate | FlagStoredPlainly | HostLoadsThenStores | HostOverwritesFlag
        | HostFlushesLate => kvm_pv(USES, &[1, 2]),
        LookBeforePost | InboxBeforeRunning | NoSignal => doorbell(USES),
        MembarrierBeforeSignal => membarrier(USES),
        NoReread | StoreFenceOnly | WriterWithoutBarrier | MarkAfterLoad => active_cpu(SECOND_USER),
        SyncAfterMigration => Setup { migrates: true, ..invlpgb(MOVES) },
        NoSync | TransitionIgnored => invlpgb(MOVES),
        OneSyncOfTwo => {
            Setup { algorithm: Algorithm::Invlpgb(INVLPGB), erratum_1718: true, ..invlpgb(MOVES) }
        }
        TransitionEndsEarly => invlpgb(MOVES_AND_LEAVES),
        RolloverWithoutFlush => invlpgb(REUSES_SLOT),
        UnlatchedScan => rar(Sending::Always, TWICE),
        OwnerPolledOnce => rar(Sending::Shared, TWO_SEND),
        RequestNotSent => rar(Sending::Always, USES),
        NotFlushedHere => rar(Sending::Always, ALONE),
    }
}

/// Every mutant, in a setup that catches it.
#[must_use]
pub fn broken() -> Vec<Setup> {
    Mutant::ALL.iter().map(|mutant| setup(*mutant).with(*mutant)).collect()
}
