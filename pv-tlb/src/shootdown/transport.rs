//! How a request reaches its targets and how the sender learns that all served it.
//!
//! Each sender has one request record and a set of targets that owe it an ack;
//! each target has a set of senders whose request it has not served. The record is
//! the sender's while nobody owes; from the post of the bit until the ack it is
//! only read.
//!
//! A target is interrupted only by the sender that makes its pending word not
//! empty. That interrupt comes after the bit, so the target's exchange after the
//! interrupt finds the bit and all that were added to it; an exchange that came
//! earlier served it and makes the interrupt idle.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use super::{Event, MmId, Platform, Request, Word, place, set_words};
use crate::addr::{Gva, PageCount};
use crate::cpuset::CpuSet;
use crate::id::VcpuId;

/// Posts `request` to `targets` and interrupts those that need it.
pub(super) fn send<P: Platform>(p: &P, request: &Request, targets: &CpuSet) {
    if targets.is_empty() {
        return;
    }
    let me = p.me();
    // Partner of the four stores: `read`, after the bit in `Pending` was seen.
    p.store(Word::RequestMm(me), request.mm.map_or(0, |mm| u64::from(mm.0) + 1), Relaxed);
    p.store(Word::RequestStart(me), request.start.0, Relaxed);
    p.store(Word::RequestPages(me), request.pages.0, Relaxed);
    p.store(Word::RequestGen(me), request.generation, Relaxed);
    for word in 0..set_words(p) {
        let bits = targets.words()[usize::from(word)];
        if bits != 0 {
            // Partner: the ack in `serve`, which must find the bit set.
            p.fetch_or(Word::Owing(me, word), bits, Relaxed);
        }
    }
    let (word, bit) = place(me);
    let mut sleeping = CpuSet::EMPTY;
    for target in targets {
        // Partner: the exchange in `serve`.
        if p.fetch_or(Word::Pending(target, word), bit, AcqRel) == 0 {
            sleeping.insert(target);
        }
    }
    if !sleeping.is_empty() {
        p.send_ipi(&sleeping);
    }
}

/// Waits until nobody owes this vCPU an ack.
pub(super) fn wait<P: Platform>(p: &P) {
    for word in 0..set_words(p) {
        // Partner: the ack in `serve`.
        while p.load(Word::Owing(p.me(), word), Acquire) != 0 {
            p.relax();
        }
    }
}

/// True if some sender waits for this vCPU.
pub(super) fn any_pending<P: Platform>(p: &P) -> bool {
    // The exchange in `serve` orders what follows; this only looks.
    (0..set_words(p)).any(|word| p.load(Word::Pending(p.me(), word), Relaxed) != 0)
}

/// Takes all pending requests, flushes as `flush` says, and acks each.
pub(super) fn serve<P: Platform>(p: &P, flush: impl Fn(&Request)) {
    let me = p.me();
    let (my_word, my_bit) = place(me);
    for word in 0..set_words(p) {
        // Partner: the post in `send`.
        let senders = p.swap(Word::Pending(me, word), 0, AcqRel);
        let mut words = [0; crate::cpuset::WORDS];
        words[usize::from(word)] = senders;
        for sender in &CpuSet::from_words(words) {
            flush(&read(p, sender));
            p.count(Event::Served, 1);
            // Partner: `wait`. The flush comes before it in program order, and the
            // sender's next record only after it.
            p.fetch_and(Word::Owing(sender, my_word), !my_bit, AcqRel);
        }
    }
}

fn read<P: Platform>(p: &P, sender: VcpuId) -> Request {
    let mm = p.load(Word::RequestMm(sender), Relaxed);
    Request {
        mm: mm.checked_sub(1).map(|mm| MmId(mm as u32)),
        start: Gva(p.load(Word::RequestStart(sender), Relaxed)),
        pages: PageCount(p.load(Word::RequestPages(sender), Relaxed)),
        generation: p.load(Word::RequestGen(sender), Relaxed),
    }
}
