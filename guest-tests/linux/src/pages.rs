//! What has been promised about each test page, and the judgement of what was seen.
//!
//! Owner of a page's words: its initiator, who alone writes them. They lie in a file
//! that all workers map. States of a page: [`State`]. A reader loads state and floor
//! (acquire), reads the page, loads the state again (acquire): if it has not changed,
//! the page held still and its content is known exactly; if it has, the floor still
//! binds. The owner stores `Changing` and a SeqCst fence before it touches the page,
//! so that a reader that sees the touch sees the state as well.

use std::fs::File;
use std::io;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, fence};

use serde::{Deserialize, Serialize};

use crate::memory::SharedWords;

/// Bits of a stamp that count; the page's number, plus one, is above them.
const SEQUENCE_BITS: u32 = 40;
/// Words of a page's entry: a cache line of its own.
const ENTRY_WORDS: usize = 8;
const HEADER_WORDS: usize = 2 * ENTRY_WORDS;
/// Header: workers that are ready, on a line of its own.
const READY: usize = 0;
/// Header: initiators that are done, on a line of its own.
const DONE: usize = ENTRY_WORDS;

/// The first stamp of `page`. Each change adds one.
pub fn first_stamp(page: usize) -> u64 {
    (page as u64 + 1) << SEQUENCE_BITS | 1
}

/// What the owner says about its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Anything at or above the floor, zero or a fault.
    Changing,
    /// Exactly this stamp.
    Holds(u64),
    /// Given up after this stamp: zero, or a fault where pages are unmapped.
    Empty(u64),
}

impl State {
    fn encode(self) -> u64 {
        match self {
            Self::Changing => 0,
            Self::Holds(stamp) => stamp << 1 | 1,
            Self::Empty(stamp) => stamp << 1,
        }
    }

    fn decode(word: u64) -> Self {
        match (word >> 1, word & 1) {
            (0, _) => Self::Changing,
            (stamp, 1) => Self::Holds(stamp),
            (stamp, _) => Self::Empty(stamp),
        }
    }
}

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ViolationKind {
    /// A stamp, or a state of the page, that a returned system call had ended.
    StaleRead,
    /// A word that no owner of this page ever wrote: the frame had been given away.
    FreedFrame,
    /// A write that went through after the right to write was taken.
    StaleWrite,
    /// Zero, or a fault, where the owner's stamp stands.
    LostWrite,
}

/// One violation, in full.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// What went wrong.
    pub kind: ViolationKind,
    /// Virtual address of the word.
    pub address: u64,
    /// The worker that owns the page.
    pub owner: usize,
    /// The worker that saw it.
    pub reader: usize,
    /// vCPU on which the seeing worker ran just after.
    pub vcpu: usize,
    /// The lowest stamp allowed, or the word that should not have changed.
    pub expected: u64,
    /// What was read; `None` if the access faulted.
    pub seen: Option<u64>,
    /// The owner's number of its last flush of this page.
    pub flush: u64,
}

/// Judges one read. `stable` is the state if it was the same before and after;
/// `seen` is `None` if the access faulted; `holes` if an empty page is a hole, which
/// must fault, rather than zero.
pub fn judge(
    page: usize,
    floor: u64,
    stable: Option<State>,
    seen: Option<u64>,
    holes: bool,
) -> Option<ViolationKind> {
    let stamp = seen.unwrap_or(0);
    if stamp != 0 && stamp >> SEQUENCE_BITS != page as u64 + 1 {
        return Some(ViolationKind::FreedFrame);
    }
    if stamp != 0 && stamp < floor {
        return Some(ViolationKind::StaleRead);
    }
    match stable {
        Some(State::Holds(exact)) if stamp == 0 && exact != 0 => Some(ViolationKind::LostWrite),
        Some(State::Holds(exact)) if stamp != exact => Some(ViolationKind::StaleRead),
        Some(State::Empty(_)) if stamp != 0 => Some(ViolationKind::StaleRead),
        Some(State::Empty(_)) if holes && seen.is_some() => Some(ViolationKind::StaleRead),
        _ => None,
    }
}

/// The words of all pages, and the two counts that start and end a phase.
pub struct Promises {
    words: SharedWords,
}

impl Promises {
    /// Bytes of a file that holds the promises for `pages` pages.
    pub fn file_bytes(pages: usize) -> usize {
        (HEADER_WORDS + pages * ENTRY_WORDS) * size_of::<u64>()
    }

    /// Maps the promises for `pages` pages.
    pub fn new(file: &File, pages: usize) -> io::Result<Self> {
        Ok(Self { words: SharedWords::new(file, HEADER_WORDS + pages * ENTRY_WORDS)? })
    }

    /// Says that a worker is ready.
    pub fn arrive(&self) {
        // Partner: `arrived`. What was prepared before is seen by all who start.
        self.words.word(READY).fetch_add(1, AcqRel);
    }

    /// Workers that are ready.
    pub fn arrived(&self) -> u64 {
        self.words.word(READY).load(Acquire)
    }

    /// Says that an initiator is done.
    pub fn finish(&self) {
        // Partner: `finished`.
        self.words.word(DONE).fetch_add(1, AcqRel);
    }

    /// Initiators that are done.
    pub fn finished(&self) -> u64 {
        self.words.word(DONE).load(Acquire)
    }

    /// The words of `page`.
    pub fn of(&self, page: usize) -> Promise<'_> {
        let word = |index| self.words.word(HEADER_WORDS + page * ENTRY_WORDS + index);
        Promise { page, state: word(0), floor: word(1), flush: word(2) }
    }
}

/// The words of one page.
pub struct Promise<'a> {
    page: usize,
    state: &'a AtomicU64,
    floor: &'a AtomicU64,
    flush: &'a AtomicU64,
}

impl Promise<'_> {
    /// Owner: the page is about to change.
    pub fn change(&self) {
        self.state.store(State::Changing.encode(), Release);
        // Partner: the acquire of a page's content in a reader, which then loads the
        // state again.
        fence(SeqCst);
    }

    /// Owner: flush number `flush` has returned; no stamp below `floor` may be seen.
    pub fn promise(&self, floor: u64, flush: u64) {
        self.flush.store(flush, Relaxed);
        // Partner: `look`.
        self.floor.store(floor, Release);
    }

    /// Owner: from now on the page is exactly this.
    pub fn settle(&self, state: State) {
        // Partner: `look`.
        self.state.store(state.encode(), Release);
    }

    /// The owner's number of the last flush.
    pub fn flush(&self) -> u64 {
        self.flush.load(Relaxed)
    }

    /// Reader: reads the page by `read`; what was seen, the floor, and the verdict.
    pub fn look(
        &self,
        holes: bool,
        read: impl FnOnce() -> io::Result<Option<u64>>,
    ) -> io::Result<(Option<u64>, u64, Option<ViolationKind>)> {
        // Partners: `settle` and `promise`.
        let before = self.state.load(Acquire);
        let floor = self.floor.load(Acquire);
        let seen = read()?;
        // Not moved before the read, which is an acquire.
        let after = self.state.load(Acquire);
        let stable = (before == after).then(|| State::decode(before));
        Ok((seen, floor, judge(self.page, floor, stable, seen, holes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::memory_file;

    const PAGE: usize = 3;

    fn stamp(n: u64) -> u64 {
        first_stamp(PAGE) + n
    }

    fn verdict(stable: Option<State>, seen: Option<u64>) -> Option<ViolationKind> {
        judge(PAGE, stamp(5), stable, seen, false)
    }

    #[test]
    fn a_changing_page_may_show_zero_a_fault_or_what_is_at_or_above_the_floor() {
        for stable in [None, Some(State::Changing)] {
            for seen in [None, Some(0), Some(stamp(5)), Some(stamp(6))] {
                assert_eq!(verdict(stable, seen), None, "{stable:?} {seen:?}");
            }
            assert_eq!(verdict(stable, Some(stamp(4))), Some(ViolationKind::StaleRead));
            assert_eq!(verdict(stable, Some(!0)), Some(ViolationKind::FreedFrame));
            assert_eq!(
                verdict(stable, Some(first_stamp(PAGE + 1))),
                Some(ViolationKind::FreedFrame)
            );
        }
    }

    #[test]
    fn a_page_that_holds_still_shows_its_stamp_only() {
        let holds = Some(State::Holds(stamp(7)));
        assert_eq!(verdict(holds, Some(stamp(7))), None);
        assert_eq!(verdict(holds, Some(stamp(6))), Some(ViolationKind::StaleRead));
        assert_eq!(verdict(holds, Some(0)), Some(ViolationKind::LostWrite));
        assert_eq!(verdict(holds, None), Some(ViolationKind::LostWrite));
    }

    #[test]
    fn an_empty_page_shows_zero_and_a_hole_shows_nothing() {
        let empty = Some(State::Empty(stamp(6)));
        assert_eq!(verdict(empty, Some(0)), None);
        assert_eq!(verdict(empty, Some(stamp(6))), Some(ViolationKind::StaleRead));
        assert_eq!(judge(PAGE, 0, empty, None, true), None);
        assert_eq!(judge(PAGE, 0, empty, Some(0), true), Some(ViolationKind::StaleRead));
    }

    #[test]
    fn states_survive_their_encoding() {
        for state in [State::Changing, State::Holds(stamp(0)), State::Empty(stamp(1))] {
            assert_eq!(State::decode(state.encode()), state);
        }
    }

    #[test]
    fn a_state_that_changes_during_the_read_leaves_only_the_floor() {
        let file = memory_file(Promises::file_bytes(PAGE + 1)).unwrap();
        let promises = Promises::new(&file, PAGE + 1).unwrap();
        let page = promises.of(PAGE);
        page.promise(stamp(1), 1);
        page.settle(State::Holds(stamp(1)));
        let seen = page.look(false, || {
            page.change();
            Ok(Some(0))
        });
        assert_eq!(seen.unwrap(), (Some(0), stamp(1), None));
        page.settle(State::Holds(stamp(1)));
        let seen = page.look(false, || Ok(Some(0)));
        assert_eq!(seen.unwrap().2, Some(ViolationKind::LostWrite));
    }
}
