//! The monitor's flush-on-entry probe: vCPU 1 reads through a mapping all the time,
//! vCPU 0 changes the mapping at the monitor's command and never flushes.
//!
//! Words and their order: `pv_tlb::abi::stress::ProbeWords`.

use core::hint::spin_loop;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use pv_tlb::abi::debug_exit::Verdict;
use pv_tlb::abi::stress::PROBE_FRAMES;
use pv_tlb::shootdown::MmId;

use super::{arrive, gather, idle_until, must_read};
use crate::heap::Heap;
use crate::machine::{Machine, rules};
use crate::paging::{self, READ_WRITE, WINDOW};
use crate::params::probe_words;
use crate::{ports, vcpu};

const MM: MmId = MmId(1);

/// The frames that are mapped in turn. Written in set-up.
static FRAMES: [AtomicU64; PROBE_FRAMES as usize] =
    [const { AtomicU64::new(0) }; PROBE_FRAMES as usize];

pub(crate) fn run() -> ! {
    match vcpu::me() {
        0 => {
            let mut entry = None;
            gather(|| entry = Some(set_up()));
            obey(entry.expect("Set up"));
            ports::end(Verdict::Pass)
        }
        1 => {
            arrive();
            rules().switch_mm(&Machine, MM);
            read_for_ever()
        }
        _ => {
            arrive();
            idle_until(|| false);
            unreachable!("Idles for ever")
        }
    }
}

fn set_up() -> &'static AtomicU64 {
    let heap = &mut Heap::new();
    paging::build_mm(heap, MM);
    for (i, slot) in FRAMES.iter().enumerate() {
        let frame = heap.frame();
        // SAFETY: the frame is fresh, and only read from now on.
        unsafe { (frame as *mut u64).write(i as u64 + 1) };
        slot.store(frame, Relaxed);
    }
    let entry = paging::entry(heap, MM, WINDOW);
    entry.store(FRAMES[0].load(Relaxed) | READ_WRITE, Relaxed);
    entry
}

/// vCPU 0.
fn obey(entry: &AtomicU64) {
    let words = probe_words();
    let mut obeyed = 0;
    // Partners: the monitor's stores.
    while words.stop.load(Acquire) == 0 {
        let command = words.command.load(Acquire);
        if command == obeyed {
            spin_loop();
            continue;
        }
        let frame = FRAMES[(command % PROBE_FRAMES) as usize].load(Relaxed);
        entry.store(frame | READ_WRITE, Release);
        // Partner: the monitor's load.
        words.done.store(command, Release);
        obeyed = command;
    }
}

/// vCPU 1.
fn read_for_ever() -> ! {
    let words = probe_words();
    let mut reads = 0;
    loop {
        words.seen.store(must_read(WINDOW), Relaxed);
        reads += 1;
        // Partner: the monitor's load; `seen` is at least as new as the count.
        words.reads.store(reads, Release);
    }
}
