//! The guest's side of the doorbell.
//!
//! vCPU 0 finds it at boot, by CPUID at CPL0; afterwards each vCPU writes its own
//! page and rings its own bell.

use core::arch::x86_64::__cpuid;
use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicU64, fence};

use pv_tlb::abi::doorbell::{
    COMMAND_FLUSH, CPUID_FEATURES, CPUID_PAGES, CPUID_SIGNATURE, DoorbellPage, GuestFlags,
    HostFlags, MAGIC, RunHint, SIGNATURE, Status, VERSION,
};
use pv_tlb::id::FlushSeq;
use pv_tlb::invalidation::Invalidation;

use crate::params::{add, params, report};
use crate::{gate, ports, vcpu};

// Written by vCPU 0 at boot, before the others go on.
static PORT: AtomicU32 = AtomicU32::new(0);
static PAGES: AtomicU64 = AtomicU64::new(0);
static STRIDE: AtomicU64 = AtomicU64::new(0);

/// Looks for the doorbell; at CPL0 on vCPU 0.
pub(crate) fn find() {
    let [highest, b, c, d] = cpuid(CPUID_SIGNATURE);
    if [b, c, d] != SIGNATURE || highest < CPUID_PAGES {
        return;
    }
    let [version, port, _, pages] = cpuid(CPUID_FEATURES);
    assert!(version == VERSION, "Doorbell version {version}, expected {VERSION}");
    assert!(pages >= params().vcpus, "{pages} doorbell pages for {} vCPUs", params().vcpus);
    let [low, high, stride, _] = cpuid(CPUID_PAGES);
    let first = u64::from(high) << 32 | u64::from(low);
    let end = first + u64::from(pages) * u64::from(stride);
    assert!(end <= 1 << 32, "Doorbell pages end at {end:#x}, expected below 4 GiB");
    PORT.store(port, Relaxed);
    PAGES.store(first, Relaxed);
    STRIDE.store(u64::from(stride), Relaxed);
}

fn cpuid(leaf: u32) -> [u32; 4] {
    let r = __cpuid(leaf);
    [r.eax, r.ebx, r.ecx, r.edx]
}

/// The port, if there is a doorbell.
pub(crate) fn port() -> Option<u16> {
    u16::try_from(PORT.load(Relaxed)).ok().filter(|port| *port != 0)
}

/// The shared page of `vcpu`; only if there is a doorbell.
pub(crate) fn page(vcpu: u32) -> &'static DoorbellPage {
    let address = PAGES.load(Relaxed) + u64::from(vcpu) * STRIDE.load(Relaxed);
    // SAFETY: the host says by CPUID that the page is there for ever; all its
    // fields are atomics.
    unsafe { &*(address as *const DoorbellPage) }
}

/// Greets the host on this vCPU's page, if there is one.
pub(crate) fn announce(interpreted: bool) {
    if port().is_none() {
        return;
    }
    let page = page(vcpu::me());
    let magic = page.host.magic.load(Relaxed);
    assert!(magic == MAGIC, "Doorbell page holds {magic:#x}, expected {MAGIC:#x}");
    // At CPL3 no access to a test page is ever emulated. At CPL0 each may be.
    page.guest.section.store(u32::from(interpreted), Relaxed);
    page.guest.flags.store(GuestFlags::all().bits(), Relaxed);
}

/// Says that this vCPU is about to halt, and returns what [`wake`] needs.
pub(crate) fn sleep() -> u64 {
    if port().is_none() {
        return 0;
    }
    let page = page(vcpu::me());
    let requested = page.host.requested.load(Relaxed);
    // Partner: the host's load after its post and fence.
    page.guest.idle.store(1, SeqCst);
    requested
}

/// Says that this vCPU has woken; true if it has to drop its translations, because
/// the host was asked for a flush meanwhile.
pub(crate) fn wake(requested: u64) -> bool {
    if port().is_none() {
        return false;
    }
    let page = page(vcpu::me());
    page.guest.idle.store(0, SeqCst);
    // The host posts, fences and loads `idle`: it saw 0 and interrupts this vCPU, or
    // the post is visible here.
    fence(SeqCst);
    page.host.requested.load(Acquire) != requested
}

/// Asks for `ask`; true once it holds.
pub(crate) fn ring(ask: &Invalidation) -> bool {
    let Some(port) = port() else { return false };
    let mine = vcpu::mine();
    let seq = mine.local.flush_seq.load(Relaxed) + 1;
    mine.local.flush_seq.store(seq, Relaxed);
    let page = page(vcpu::me());
    page.request.write(ask, FlushSeq(seq));
    ports::out32(port, COMMAND_FLUSH);
    add(&report().doorbells, 1);
    Status::try_from(page.response.status.load(Relaxed)) == Ok(Status::Done)
}

/// True if an interrupt to `target` should be answered at once. With more vCPUs
/// than pCPUs a hint may be a scheduling period old, so it is not looked at.
pub(crate) fn answers_at_once(target: u32) -> bool {
    let flags = HostFlags::from_bits_truncate(page(vcpu::me()).host.flags.load(Relaxed));
    let hint = page(target).host.run_hint.load(Relaxed);
    !flags.contains(HostFlags::OVERCOMMITTED) && hint != RunHint::OffPcpu as u32
}

/// True if the program runs where accesses may be emulated.
pub(crate) fn interpreted() -> bool {
    gate::DIRECT.load(Relaxed)
}
