//! How a vCPU spends a run: shooting down, reading, and visiting.
//!
//! A flush can only fail on a vCPU that holds old entries and goes on to use them. So
//! every vCPU, the initiators too, reads for a while between two things it does, and
//! before it turns lazy. Owner of all state: the executing vCPU.

use pv_tlb::shootdown::MmId;

use super::layout::{World, home_mm, mms};
use super::verify::Reader;
use super::work::Initiator;
use crate::machine::{Machine, rules};
use crate::params::params;
use crate::programs::{nap, now};
use crate::vcpu;

/// Least time of reading after a shootdown, in microseconds.
const READ_US: u64 = 10;
/// Time of reading before the clock is looked at, where there is nothing else to do.
const IDLE_READ_US: u64 = 20;
/// Time at home between two visits to another address space.
const HOME_US: u64 = 4_000;
/// Time of reading at each stop of a visit.
const VISIT_US: u64 = 100;
/// Length of a nap in lazy mode, in timer ticks (1 ns under KVM).
const NAP_TICKS: u32 = 300_000;

/// One vCPU's part of a run.
pub(crate) struct Thread {
    world: &'static World,
    home: MmId,
    reader: Reader,
    next_visit: u64,
    visits: u32,
}

impl Thread {
    /// The executing vCPU, at home.
    pub(crate) fn new(world: &'static World) -> Self {
        let home = home_mm(vcpu::me());
        let reader = Reader::new(world, home);
        Self { world, home, reader, next_visit: now() + ticks(HOME_US), visits: 0 }
    }

    /// Reads for a moment, and visits if it is time.
    pub(crate) fn read(&mut self) {
        self.reader.read_for(ticks(IDLE_READ_US));
        self.visit_if_due(None);
    }

    /// Shoots down from `start` until the time or the count is up.
    pub(crate) fn initiate(&mut self, start: u64) {
        let bound = match params().max_shootdowns {
            0 => u64::MAX,
            bound => bound,
        };
        let pause = params().gap_ticks.max(ticks(READ_US));
        let mut initiator = Initiator::new(self.world);
        while now().saturating_sub(start) < params().duration_ticks
            && initiator.shootdowns() < bound
        {
            initiator.work(&mut self.reader);
            self.reader.read_for(pause);
            self.visit_if_due(Some(&mut initiator));
        }
    }

    /// With several address spaces: leaves home for another, works there for a while
    /// (an initiator changes its own mm from outside), comes back, and naps lazily.
    fn visit_if_due(&mut self, initiator: Option<&mut Initiator>) {
        let others = mms() - 1;
        if others == 0 || params().targets != 0 || now() < self.next_visit {
            return;
        }
        let step = self.visits % others + 1;
        self.visits += 1;
        // Address spaces with a window are numbered from 1.
        let away = MmId((self.home.0 - 1 + step) % mms() + 1);
        let rules = rules();
        rules.switch_mm(&Machine, away);
        let mut reader = Reader::new(self.world, away);
        reader.read_for(ticks(VISIT_US));
        if let Some(initiator) = initiator {
            initiator.work(&mut reader);
            reader.read_for(ticks(VISIT_US));
        }
        rules.switch_mm(&Machine, self.home);
        self.reader.read_for(ticks(VISIT_US));
        rules.enter_lazy(&Machine);
        nap(NAP_TICKS);
        rules.switch_mm(&Machine, self.home);
        self.reader.read_for(ticks(VISIT_US));
        self.next_visit = now() + ticks(HOME_US);
    }
}

fn ticks(us: u64) -> u64 {
    us * params().tsc_khz / 1000
}
