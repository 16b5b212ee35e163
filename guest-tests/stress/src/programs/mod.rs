//! What the image does, by `BootParams::program`, and how vCPUs meet.
//!
//! vCPU 0 sets up and reports. States of a run: gathering (vCPUs arrive and idle),
//! going, stopping (vCPUs leave one by one and idle).

mod exit_cost;
mod garbage;
mod probe;

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};

use pv_tlb::abi::debug_exit::Verdict;
use pv_tlb::abi::stress::Program;

use crate::machine::{Machine, rules};
use crate::params::{params, program};
use crate::{access, apic, doorbell, gate, ports, stress, vcpu};

/// vCPUs other than 0 that have arrived.
static ARRIVED: AtomicU32 = AtomicU32::new(0);
/// Not 0 once vCPU 0 has set up.
static GO: AtomicU32 = AtomicU32::new(0);
/// vCPUs other than 0 that are done.
static STOPPED: AtomicU32 = AtomicU32::new(0);

/// An address that no table maps.
const UNMAPPED: u64 = 0x7f00_dead_0000;

/// Start of every vCPU at the program's level.
pub(crate) extern "C" fn main() -> ! {
    match program() {
        Program::Stress => stress::run(),
        Program::Probe => probe::run(),
        Program::ExitCost => only_first(exit_cost::run),
        Program::Garbage => only_first(garbage::run),
        Program::PageFault => only_first(page_fault),
        Program::Silent => loop {
            core::hint::spin_loop();
        },
        Program::TripleFault => unreachable!("Ended at boot"),
    }
}

fn page_fault() -> Verdict {
    // SAFETY: faults, which ends the run; no Rust object is there.
    unsafe { core::ptr::read_volatile(UNMAPPED as *const u64) };
    Verdict::Fail
}

/// Runs `program` on vCPU 0 once all others idle.
fn only_first(program: fn() -> Verdict) -> ! {
    if vcpu::me() == 0 {
        gather(|| ());
        ports::end(program());
    }
    arrive();
    idle_until(|| false);
    unreachable!("Idles for ever")
}

/// The time stamp counter, in ticks of `BootParams::tsc_khz`.
pub(crate) fn now() -> u64 {
    // SAFETY: every CPU of this architecture has the instruction, and CR4.TSD is 0.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// vCPU 0: runs `set_up` while the others arrive and idle, then starts them.
pub(crate) fn gather(set_up: impl FnOnce()) {
    set_up();
    // Partner: `arrive`.
    idle_until(|| ARRIVED.load(Acquire) == params().vcpus - 1);
    // Partner: `arrive`.
    GO.store(1, Release);
    apic::wake_others();
}

/// Other vCPUs: waits for the common start, or idles on if vCPU 0 starts nobody.
pub(crate) fn arrive() {
    // Partner: `gather`.
    if ARRIVED.fetch_add(1, AcqRel) + 1 == params().vcpus - 1 {
        apic::wake(0);
    }
    idle_until(|| GO.load(Acquire) != 0);
}

/// Says that this vCPU is done. vCPU 0 returns once all are, the others never do.
pub(crate) fn stop() {
    if vcpu::me() == 0 {
        // Partner: the increment below. What the others reported is visible now.
        return idle_until(|| STOPPED.load(Acquire) == params().vcpus - 1);
    }
    // Partner: vCPU 0 above.
    if STOPPED.fetch_add(1, AcqRel) + 1 == params().vcpus - 1 {
        apic::wake(0);
    }
    idle_until(|| false);
}

/// Halts until `done`; whoever makes it true interrupts this vCPU afterwards.
/// Requests are served meanwhile.
pub(crate) fn idle_until(done: impl Fn() -> bool) {
    let awake = &vcpu::mine().local.awake;
    loop {
        // Cleared before the look: an interrupt after it keeps `idle` from halting.
        awake.store(0, Relaxed);
        core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
        if done() {
            return;
        }
        halt(awake);
    }
}

/// Halts once, for at most `timer_ticks` of the APIC timer.
pub(crate) fn nap(timer_ticks: u32) {
    let awake = &vcpu::mine().local.awake;
    awake.store(0, Relaxed);
    core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
    apic::arm_timer(timer_ticks);
    halt(awake);
}

/// Halts unless `awake`, then does what others asked for meanwhile.
fn halt(awake: &AtomicU64) {
    let requested = doorbell::sleep();
    gate::idle(awake);
    if doorbell::wake(requested) {
        rules().drop_context(&Machine);
    }
    rules().on_interrupt(&Machine);
}

/// Adds one latency to a histogram that only this vCPU writes.
pub(crate) fn record(histogram: &[AtomicU32], ticks: u64) {
    let count = &histogram[pv_tlb::abi::stress::bucket(ticks)];
    count.store(count.load(Relaxed).wrapping_add(1), Relaxed);
}

/// The word at an address of the identity map or the window that must be there.
pub(crate) fn must_read(address: u64) -> u64 {
    access::read(address).expect("A page that is always present was denied")
}
