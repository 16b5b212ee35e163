//! The stress program: initiators change mappings, flush, and free what was mapped;
//! everybody reads, and reports what should no longer be there.
//!
//! A run on one vCPU: initiate until the time or the count is up, then read until
//! the last initiator is done, then leave the address space and stop. vCPU 0 gives
//! the verdict: PASS if nobody saw a violation.

mod layout;
mod verify;
mod work;

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use pv_tlb::abi::debug_exit::Verdict;
use pv_tlb::shootdown::{INIT_MM, MmId};

use crate::machine::{Machine, rules};
use crate::params::{params, report, report_of};
use crate::programs::{arrive, gather, nap, now, stop};
use crate::{ports, vcpu};

use layout::{World, home_mm, mms};
use verify::Reader;
use work::Initiator;

/// Initiators that are not done.
static INITIATING: AtomicU32 = AtomicU32::new(0);

/// vCPUs that have loaded their address space.
static ENTERED: AtomicU32 = AtomicU32::new(0);

/// Reads between two looks at the clock.
const CHUNK: u32 = 64;
/// Rounds (of one shootdown, or of one chunk) between two visits to another mm.
const ROUNDS_AT_HOME: u64 = 64;
/// Length of a nap in lazy mode, in timer ticks (1 ns under KVM).
const NAP_TICKS: u32 = 50_000;

/// Start of every vCPU.
pub(crate) fn run() -> ! {
    let me = vcpu::me();
    match me {
        0 => gather(|| {
            INITIATING.store(params().initiators, Relaxed);
            layout::build();
        }),
        _ => arrive(),
    }
    let world = layout::world();
    let rules = rules();
    rules.switch_mm(&Machine, home_mm(me));
    let mut reader = Reader::new(world, home_mm(me));
    let start = enter_together(&mut reader);
    report().start_tsc.store(now(), Relaxed);
    if me < params().initiators {
        initiate(world, &mut reader, start);
        // Partner: `still_initiating`.
        INITIATING.fetch_sub(1, AcqRel);
    }
    while still_initiating() {
        reader.read_some(CHUNK);
        visit_now_and_then(world, &mut reader, None);
    }
    rules.switch_mm(&Machine, INIT_MM);
    report().end_tsc.store(now(), Relaxed);
    stop();
    ports::end(verdict())
}

/// Reads until every vCPU has loaded its address space, so that even the first
/// shootdown has all its targets; returns the time.
fn enter_together(reader: &mut Reader) -> u64 {
    // Partner: the load below, in the other vCPUs.
    ENTERED.fetch_add(1, AcqRel);
    while ENTERED.load(Acquire) < params().vcpus {
        reader.read_some(CHUNK);
    }
    now()
}

fn still_initiating() -> bool {
    INITIATING.load(Acquire) != 0
}

/// Shoots down until the time or the count is up.
fn initiate(world: &'static World, reader: &mut Reader, start: u64) {
    let bound = match params().max_shootdowns {
        0 => u64::MAX,
        bound => bound,
    };
    let mut initiator = Initiator::new(world);
    while now().saturating_sub(start) < params().duration_ticks && initiator.shootdowns() < bound {
        initiator.work(reader);
        reader.read_some(CHUNK / 8);
        let resume_at = now() + params().gap_ticks;
        while now() < resume_at {
            reader.read_some(CHUNK / 8);
        }
        visit_now_and_then(world, reader, Some(&mut initiator));
    }
}

/// With several address spaces: leaves home for another, works there for a while
/// (an initiator changes its own mm from outside), comes back, and naps lazily.
fn visit_now_and_then(
    world: &'static World,
    reader: &mut Reader,
    initiator: Option<&mut Initiator>,
) {
    let count = mms();
    if count < 2 || params().targets != 0 || !reader.round().is_multiple_of(ROUNDS_AT_HOME) {
        return;
    }
    let home = home_mm(vcpu::me());
    let step = reader.round() / ROUNDS_AT_HOME % u64::from(count - 1) + 1;
    // User address spaces are numbered from 1.
    let away = MmId((home.0 - 1 + step as u32) % count + 1);
    let rules = rules();
    rules.switch_mm(&Machine, away);
    let mut guest_reader = Reader::new(world, away);
    guest_reader.read_some(CHUNK);
    if let Some(initiator) = initiator {
        initiator.work(&mut guest_reader);
    }
    rules.switch_mm(&Machine, home);
    rules.enter_lazy(&Machine);
    nap(NAP_TICKS);
    rules.switch_mm(&Machine, home);
}

fn verdict() -> Verdict {
    // Partner: `stop`; the counters are final.
    let clean = (0..params().vcpus).all(|vcpu| report_of(vcpu).violations.load(Relaxed) == 0);
    if clean { Verdict::Pass } else { Verdict::Fail }
}
