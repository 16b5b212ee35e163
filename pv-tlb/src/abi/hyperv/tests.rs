//! Hyper-V flush calls: both forms, hostile input, and encoding that decodes to
//! itself.

use super::*;
use crate::addr::{PageCount, PageSize};
use crate::cpuset::WORDS;
use crate::id::VcpuId;
use proptest::prelude::*;

const RULES: Rules = Rules::DEFAULT;

fn present() -> CpuSet {
    CpuSet::first(200)
}

fn set(ids: &[u32]) -> Reach {
    Reach::Set(ids.iter().map(|id| VcpuId(*id)).collect())
}

fn control(code: u16, variable_words: u16, reps: u16) -> Control {
    Control { code, variable_words, reps, ..Control::default() }
}

fn range(start: u64, pages: u64) -> Extent {
    Extent::Range { start: Gva(start), pages: PageCount(pages), stride: PageSize::Small }
}

fn status(outcome: Result<Flush<'_>, GuestFault>) -> HvStatus {
    match outcome {
        Err(GuestFault::HyperV(status, _)) => status,
        other => panic!("a status was expected, got {other:?}"),
    }
}

#[test]
fn a_plain_space_call_names_vps_by_mask() {
    let input = [0x1000, 0, 0b101];
    let flush = decode(control(FLUSH_SPACE, 0, 0), &input, &present(), &RULES).expect("legal");
    assert_eq!(flush.header.reach, set(&[0, 2]));
    assert_eq!((flush.address_space, flush.header.globals), (Some(0x1000), Globals::Include));
    assert!(flush.extents().eq([Extent::Whole]));
}

#[test]
fn the_flags_widen_processors_and_spaces_and_spare_globals() {
    let input = [0x1000, 0b111, 0];
    let flush = decode(control(FLUSH_SPACE, 0, 0), &input, &present(), &RULES).expect("legal");
    assert_eq!(flush.header.reach, Reach::All);
    assert_eq!((flush.address_space, flush.header.globals), (None, Globals::Spare));
}

#[test]
fn a_list_is_read_from_its_start_index_on() {
    let input = [0, 0b10, 1, 0x1000, 0x7002, 0xffff_8000_0000_0fff];
    let call = Control { start: 1, ..control(FLUSH_LIST, 0, 3) };
    let flush = decode(call, &input, &present(), &RULES).expect("legal");
    assert!(flush.extents().eq([range(0x7000, 3), range(0xffff_8000_0000_0000, 4096)]));
    let asks: Vec<Invalidation> = flush.invalidations().collect();
    assert_eq!(asks[0].reach, set(&[0]));
    assert_eq!(asks[1].extent, range(0xffff_8000_0000_0000, 4096));
}

#[test]
fn extended_elements_name_large_pages_by_the_small_pages_inside() {
    let gigabytes = 0x40_0000_0000 | 1 << 12 | 1 << 11;
    let input = [0, 0b1010, 1, 0x20_0000 | 1 << 11 | 2, gigabytes, 0x7000 | 0x7ff];
    let flush = decode(control(FLUSH_LIST, 0, 3), &input, &present(), &RULES).expect("legal");
    let named = [range(0x20_0000, 3 * 512), range(0x40_0000_0000, 512 * 512), range(0x7000, 2048)];
    assert!(flush.extents().eq(named));
}

#[test]
fn every_count_of_an_element_names_that_many_pages_and_one_more() {
    let named = |flags: u64, element: u64| {
        let input = [0, flags, 1, element];
        let call = control(FLUSH_LIST, 0, 1);
        let flush = decode(call, &input, &present(), &RULES).expect("legal");
        flush.extents().next().expect("one element")
    };
    for count in 0..4096 {
        assert_eq!(named(0b10, 0x7000 | count), range(0x7000, count + 1));
    }
    for count in 0..2048 {
        assert_eq!(named(0b1010, 0x7000 | count), range(0x7000, count + 1));
        let large = 0x40_0000 | 1 << 11 | count;
        assert_eq!(named(0b1010, large), range(0x40_0000, (count + 1) << 9));
        let huge = 0x8000_0000 | 3 << 11 | count;
        assert_eq!(named(0b1010, huge), range(0x8000_0000, (count + 1) << 18));
    }
}

#[test]
fn a_sparse_set_names_banks_of_64() {
    let input = [0, 0b10, 0, 0b101, 1 << 63, 0b11];
    let flush = decode(control(FLUSH_SPACE_EX, 2, 0), &input, &present(), &RULES).expect("legal");
    assert_eq!(flush.header.reach, set(&[63, 128, 129]));
    let all = [0, 0b10, 1, 0];
    let flush = decode(control(FLUSH_SPACE_EX, 0, 0), &all, &present(), &RULES).expect("legal");
    assert_eq!(flush.header.reach, Reach::All);
}

#[test]
fn banks_past_the_monitors_sets_are_absent_vps_and_nothing_more() {
    let input = [0, 0b10, 0, 1 << 63 | 1, 1, u64::MAX];
    let call = control(FLUSH_SPACE_EX, 2, 0);
    let flush = decode(call, &input, &present(), &RULES).expect("legal");
    assert_eq!(flush.header.reach, set(&[0]));
    let strict = Rules { refuses_absent_vps: true, ..RULES };
    assert_eq!(status(decode(call, &input, &present(), &strict)), HvStatus::InvalidVpIndex);
    let absent = [0, 0b10, 0, 1 << 15, 1 << 63];
    let call = control(FLUSH_SPACE_EX, 1, 0);
    assert_eq!(status(decode(call, &absent, &present(), &strict)), HvStatus::InvalidVpIndex);
    let empty_bank = [0, 0b10, 0, 1 << 63, 0];
    assert!(decode(call, &empty_bank, &present(), &strict).is_ok());
}

#[test]
fn each_rule_has_its_status() {
    use HvStatus::{InvalidHypercallCode, InvalidHypercallInput, InvalidParameter};
    let input = [0, 0b10, 0, 0b1, 0b1, 0x1000];
    let outcome = |call, input: &[u64]| status(decode(call, input, &present(), &RULES));
    assert_eq!(outcome(control(0x5c, 0, 0), &input), InvalidHypercallCode);
    assert_eq!(outcome(control(0xaf, 0, 0), &input), InvalidHypercallCode);
    assert_eq!(outcome(control(FLUSH_SPACE, 0, 1), &input), InvalidHypercallInput);
    assert_eq!(outcome(control(FLUSH_SPACE, 1, 0), &input), InvalidHypercallInput);
    assert_eq!(outcome(control(FLUSH_LIST, 0, 0), &input), InvalidHypercallInput);
    assert_eq!(outcome(control(FLUSH_LIST, 0, 4), &input), InvalidHypercallInput);
    let late = Control { start: 2, ..control(FLUSH_LIST, 0, 2) };
    assert_eq!(outcome(late, &input), InvalidHypercallInput);
    assert_eq!(outcome(control(FLUSH_LIST_EX, 1, 2), &input), InvalidHypercallInput);
    assert_eq!(outcome(control(FLUSH_SPACE_EX, 2, 0), &input), InvalidHypercallInput);
    assert_eq!(outcome(control(FLUSH_SPACE_EX, 0, 0), &input), InvalidHypercallInput);
    assert_eq!(outcome(control(FLUSH_SPACE, 0, 0), &[0, 1 << 4, 0]), InvalidParameter);
    assert_eq!(outcome(control(FLUSH_SPACE, 0, 0), &[0, 1 << 63, 0]), InvalidParameter);
    assert_eq!(outcome(control(FLUSH_SPACE_EX, 0, 0), &[0, 0, 2, 0]), InvalidParameter);
    for words in 0..3 {
        let short = &input[..words];
        assert_eq!(outcome(control(FLUSH_SPACE, 0, 0), short), InvalidHypercallInput);
        assert_eq!(outcome(control(FLUSH_SPACE_EX, 0, 0), short), InvalidHypercallInput);
    }
}

#[test]
fn what_a_host_may_refuse_is_refused_only_if_it_says_so() {
    let call = control(FLUSH_LIST, 0, 1);
    let globals = [0, 0b110, 1, 0x1000];
    let flush = decode(call, &globals, &present(), &RULES).expect("legal");
    assert_eq!(flush.header.globals, Globals::Include);
    let strict = Rules { refuses_non_global_lists: true, extended_ranges: false, ..RULES };
    let refused = |input: &[u64]| status(decode(call, input, &present(), &strict));
    assert_eq!(refused(&globals), HvStatus::InvalidParameter);
    assert_eq!(refused(&[0, 0b1010, 1, 0x1000]), HvStatus::InvalidParameter);
}

#[test]
fn the_result_carries_status_and_reps() {
    assert_eq!(result(None, 4), 4 << 32);
    assert_eq!(result(Some(HvStatus::InvalidParameter), 0), 5);
}

#[test]
fn what_a_form_cannot_say_is_named() {
    let mut input = [0; 16];
    let mut say = |header, extents: &[Extent], form| {
        encode(header, None, extents, form, &mut input).map(|_| ())
    };
    let ask = Invalidation::EVERYTHING;
    let far = Invalidation { reach: set(&[64]), ..ask };
    assert_eq!(say(&far, &[], Form::Plain), Err(Unsayable::Reach));
    assert_eq!(say(&far, &[], Form::Ex), Ok(()));
    let local = Invalidation { reach: Reach::Local, ..ask };
    assert_eq!(say(&local, &[], Form::Ex), Err(Unsayable::Reach));
    assert_eq!(say(&ask, &[range(0, 4097)], Form::Plain), Err(Unsayable::Extent));
    assert_eq!(say(&ask, &[range(0, 1); 14], Form::Plain), Err(Unsayable::Extent));
    let spare = Invalidation { globals: Globals::Spare, ..ask };
    assert_eq!(say(&spare, &[range(0, 1)], Form::Plain), Err(Unsayable::Globals));
}

prop_compose! {
    fn some_range()(start in any::<u64>(), pages in 1_u64..=2048, size in 0_u32..3) -> Extent {
        let bits = 12 + 9 * size;
        range(start >> bits << bits, pages << (9 * size))
    }
}

prop_compose! {
    fn header()(all in any::<bool>(), ids in proptest::collection::vec(0_u32..200, 0..12),
                spare in any::<bool>()) -> Invalidation {
        Invalidation {
            reach: if all { Reach::All } else { set(&ids) },
            globals: if spare { Globals::Spare } else { Globals::Include },
            ..Invalidation::EVERYTHING
        }
    }
}

proptest! {
    #[test]
    fn what_is_encoded_decodes_to_itself(
        header in header(), extents in proptest::collection::vec(some_range(), 0..6),
        space in proptest::option::of(any::<u64>()), ex in any::<bool>(),
    ) {
        let list = !extents.is_empty();
        let globals = if list { Globals::Include } else { header.globals };
        let header = Invalidation { globals, ..header };
        let mut input = [0; MAX_INPUT_WORDS];
        let form = if ex { Form::Ex } else { Form::Plain };
        match encode(&header, space, &extents, form, &mut input) {
            Ok((call, words)) => {
                let call = Control::decode(call.encode()).expect("legal");
                let flush = decode(call, &input[..words], &present(), &RULES).expect("legal");
                prop_assert_eq!((flush.header, flush.address_space), (header, space));
                let meant = if list { extents } else { vec![Extent::Whole] };
                prop_assert!(flush.extents().eq(meant));
            }
            Err(why) => prop_assert_eq!((why, form), (Unsayable::Reach, Form::Plain)),
        }
    }

    #[test]
    fn a_set_decodes_to_the_present_vps_it_names(words in proptest::array::uniform16(any::<u64>())) {
        let named = CpuSet::from_words(words);
        let header = Invalidation { reach: Reach::Set(named), ..Invalidation::EVERYTHING };
        let mut input = [0; WORDS + 4];
        let (call, words) = encode(&header, None, &[], Form::Ex, &mut input).expect("sayable");
        let flush = decode(call, &input[..words], &present(), &RULES).expect("legal");
        prop_assert_eq!(flush.header.reach, Reach::Set(named.and(&present())));
    }

    #[test]
    fn control_words_decode_to_themselves_or_are_refused(word in any::<u64>()) {
        match Control::decode(word) {
            Ok(call) => prop_assert_eq!(call.encode(), word),
            Err(_) => prop_assert!(word & CONTROL_RESERVED != 0),
        }
        let call = Control::decode(word & !CONTROL_RESERVED).expect("legal");
        prop_assert_eq!(call.encode(), word & !CONTROL_RESERVED);
    }
}
