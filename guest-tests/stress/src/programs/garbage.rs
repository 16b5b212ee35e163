//! Rings the doorbell with requests that must be refused, each with its status, and
//! then with noise, which may be refused or not but must be answered. A good request
//! must still work afterwards.
//!
//! On failure `extra[0]` of the report holds the number of the case, counted from 1,
//! and `extra[1]` the status seen.

use core::sync::atomic::Ordering::Relaxed;

use pv_tlb::abi::debug_exit::Verdict;
use pv_tlb::abi::doorbell::{COMMAND_FLUSH, Request, RequestFlags, Status};
use pv_tlb::id::FlushSeq;
use pv_tlb::invalidation::Invalidation;

use crate::params::{params, report};
use crate::{doorbell, ports, vcpu};

/// Spoils a good request for everything.
type Spoil = fn(&Request);

const CASES: &[(Status, Spoil)] = &[
    (Status::BadScope, |r| r.scope.store(3, Relaxed)),
    (Status::BadScope, |r| r.scope.store(u32::MAX, Relaxed)),
    (Status::Reserved, |r| r.flags.store(1 << 5, Relaxed)),
    (Status::Reserved, |r| r.flags.store(u32::MAX, Relaxed)),
    (Status::Reserved, |r| r.tags.store(1, Relaxed)),
    (Status::Reserved, |r| r.tags.store(1 << 16, Relaxed)),
    (Status::BadPcid, |r| {
        r.flags.store(RequestFlags::PCID.bits(), Relaxed);
        r.tags.store(4096 << 16, Relaxed);
    }),
    (Status::Reserved, |r| r.start.store(4096, Relaxed)),
    (Status::Reserved, |r| r.pages.store(1, Relaxed)),
    (Status::Reserved, |r| r.stride.store(1, Relaxed)),
    (Status::BadStride, |r| r.stride.store(3, Relaxed)),
    (Status::BadRange, |r| range(r, 0, 0)),
    (Status::BadRange, |r| range(r, 1 << 47, 1)),
    (Status::BadRange, |r| range(r, 0x7fff_ffff_f000, 2)),
    (Status::BadRange, |r| range(r, u64::MAX - 4095, 2)),
    (Status::BadRange, |r| range(r, 0, u64::MAX)),
    (Status::Reserved, |r| r.set[0].store(1, Relaxed)),
    (Status::BadVcpu, |r| {
        r.scope.store(1, Relaxed);
        r.set[15].store(1 << 63, Relaxed);
    }),
];

/// Values of EAX that are no command.
const BAD_COMMANDS: [u32; 4] = [0, 2, 1 << 31, u32::MAX];
/// Requests made of noise.
const NOISE: u64 = 1000;

fn range(request: &Request, start: u64, pages: u64) {
    request.flags.store(RequestFlags::RANGE.bits(), Relaxed);
    request.start.store(start, Relaxed);
    request.pages.store(pages, Relaxed);
}

pub(crate) fn run() -> Verdict {
    let Some(port) = doorbell::port() else { return Verdict::Fail };
    match refused(port).and_then(|()| answered(port)).and_then(|()| works(port)) {
        Ok(()) => Verdict::Pass,
        Err((case, status)) => {
            report().extra[0].store(case, Relaxed);
            report().extra[1].store(u64::from(status), Relaxed);
            Verdict::Fail
        }
    }
}

fn refused(port: u16) -> Result<(), (u64, u32)> {
    let mut case = 0;
    for (expected, spoil) in CASES {
        case += 1;
        expect(case, *expected, ring(port, COMMAND_FLUSH, *spoil))?;
    }
    for command in BAD_COMMANDS {
        case += 1;
        expect(case, Status::BadCommand, ring(port, command, |_| ()))?;
    }
    Ok(())
}

/// Noise in every field, and accesses of the wrong width and direction, for which
/// no answer is promised.
fn answered(port: u16) -> Result<(), (u64, u32)> {
    ports::out8(port, COMMAND_FLUSH as u8);
    ports::in32(port);
    let mut noise = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        noise
    };
    for round in 0..NOISE {
        let request = &doorbell::page(vcpu::me()).request;
        request.scope.store(next() as u32 % 4, Relaxed);
        request.flags.store(next() as u32 % 64, Relaxed);
        request.tags.store(next() as u32, Relaxed);
        request.stride.store(next() as u32 % 4, Relaxed);
        request.start.store(next(), Relaxed);
        request.pages.store(next() % 1024, Relaxed);
        request.set[0].store(next() % (1 << (params().vcpus % 64)), Relaxed);
        let status = out(port, COMMAND_FLUSH);
        Status::try_from(status).map_err(|status| (1000 + round, status))?;
    }
    Ok(())
}

fn works(port: u16) -> Result<(), (u64, u32)> {
    let seq = FlushSeq(NOISE + 1);
    let page = doorbell::page(vcpu::me());
    page.request.write(&Invalidation::EVERYTHING, seq);
    expect(NOISE * 2, Status::Done, out(port, COMMAND_FLUSH))?;
    let echoed = page.response.seq.load(Relaxed) == seq.0;
    if echoed { Ok(()) } else { Err((NOISE * 2 + 1, 0)) }
}

fn expect(case: u64, expected: Status, status: u32) -> Result<(), (u64, u32)> {
    if status == expected as u32 { Ok(()) } else { Err((case, status)) }
}

/// Rings with a good request that `spoil` has spoiled; returns the status.
fn ring(port: u16, command: u32, spoil: impl Fn(&Request)) -> u32 {
    let request = &doorbell::page(vcpu::me()).request;
    request.write(&Invalidation::EVERYTHING, FlushSeq(1));
    spoil(request);
    out(port, command)
}

/// Rings; returns the status, which is overwritten first so that silence shows.
fn out(port: u16, command: u32) -> u32 {
    let response = &doorbell::page(vcpu::me()).response;
    response.status.store(u32::MAX, Relaxed);
    ports::out32(port, command);
    response.status.load(Relaxed)
}
