//! The stress program: initiators change mappings, flush, and free what was mapped;
//! everybody reads, and reports what should no longer be there.
//!
//! A run on one vCPU: initiate until the time or the count is up, then read until
//! the last initiator is done, then leave the address space and stop. vCPU 0 gives
//! the verdict: PASS if nobody saw a violation.

mod layout;
mod thread;
mod verify;
mod work;

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use pv_tlb::abi::debug_exit::Verdict;
use pv_tlb::shootdown::INIT_MM;

use crate::machine::{Machine, rules};
use crate::params::{params, report, report_of};
use crate::programs::{arrive, gather, now, stop};
use crate::{ports, vcpu};

use layout::home_mm;
use thread::Thread;

/// Initiators that are not done.
static INITIATING: AtomicU32 = AtomicU32::new(0);

/// vCPUs that have loaded their address space.
static ENTERED: AtomicU32 = AtomicU32::new(0);

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
    rules().switch_mm(&Machine, home_mm(me));
    let mut thread = Thread::new(layout::world());
    let start = enter_together(&mut thread);
    report().start_tsc.store(now(), Relaxed);
    if me < params().initiators {
        thread.initiate(start);
        // Partner: `still_initiating`.
        INITIATING.fetch_sub(1, AcqRel);
    }
    while still_initiating() {
        thread.read();
    }
    rules().switch_mm(&Machine, INIT_MM);
    report().end_tsc.store(now(), Relaxed);
    stop();
    ports::end(verdict())
}

/// Reads until every vCPU has loaded its address space, so that even the first
/// shootdown has all its targets; returns the time.
fn enter_together(thread: &mut Thread) -> u64 {
    // Partner: the load below, in the other vCPUs.
    ENTERED.fetch_add(1, AcqRel);
    while ENTERED.load(Acquire) < params().vcpus {
        thread.read();
    }
    now()
}

fn still_initiating() -> bool {
    INITIATING.load(Acquire) != 0
}

fn verdict() -> Verdict {
    // Partner: `stop`; the counters are final.
    let clean = (0..params().vcpus).all(|vcpu| report_of(vcpu).violations.load(Relaxed) == 0);
    if clean { Verdict::Pass } else { Verdict::Fail }
}
