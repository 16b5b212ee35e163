//! RAR payloads: subtypes, hostile words, and encoding that decodes to itself.

use super::*;
use proptest::prelude::*;

const RULES: Rules = Rules::DEFAULT;

fn words(kind: u64, subtype: u64, stride: u64, pages: u64) -> [u64; PAYLOAD_WORDS] {
    let head = kind << 8 | subtype << 32 | stride << 35 | pages << 37;
    [head, 0, 0x1234_5007, 0x7f00_1fff, 0, 0, 0, 0]
}

fn payload(kind: u64, subtype: u64) -> Payload {
    decode(&words(kind, subtype, 0, 3), &RULES).expect("legal")
}

#[test]
fn each_subtype_has_the_scope_of_the_instruction_it_stands_for() {
    let range =
        Extent::Range { start: Gva(0x7f00_1000), pages: PageCount(3), stride: PageSize::Small };
    let seven = Some(Pcid(7));
    for (kind, subtype, pcid, extent, globals) in [
        (0, 0, seven, range, Globals::Include),
        (0, 2, seven, Extent::Whole, Globals::Include),
        (0, 3, seven, Extent::Whole, Globals::Spare),
        (1, 0, None, range, Globals::Include),
        (1, 3, None, Extent::Whole, Globals::Spare),
        (2, 0, seven, range, Globals::Spare),
        (2, 1, seven, Extent::Whole, Globals::Spare),
        (2, 2, None, Extent::Whole, Globals::Include),
        (2, 3, None, Extent::Whole, Globals::Spare),
    ] {
        let ask = payload(kind, subtype).ask;
        assert_eq!(ask.context.pcid, pcid, "{kind}.{subtype}");
        assert_eq!((ask.extent, ask.globals), (extent, globals), "{kind}.{subtype}");
        assert_eq!(ask.reach, Reach::Local);
    }
    assert_eq!(payload(0, 0).matching, Match::Cr3(0x1234_5007));
    assert_eq!(payload(1, 0).matching, Match::AnyCr3);
}

#[test]
fn without_pcids_a_cr3_names_no_pcid() {
    let rules = Rules { pcide: false, ..RULES };
    let ask = decode(&words(0, 0, 0, 1), &rules).expect("legal").ask;
    assert_eq!(ask.context.pcid, None);
}

#[test]
fn hostile_words_are_answered_with_failure() {
    let mut hostile = vec![
        words(3, 0, 0, 1),
        words(4, 0, 0, 1),
        words(5, 0, 0, 1),
        words(0xff, 0, 0, 1),
        words(0, 1, 0, 1),
        words(1, 4, 0, 1),
        words(2, 4, 0, 1),
        words(0, 0, 3, 1),
        words(0, 0, 0, 0),
    ];
    for bit in (16..32).chain(43..64) {
        let mut payload = words(0, 0, 0, 1);
        payload[0] |= 1 << bit;
        hostile.push(payload);
    }
    let mut second = words(0, 0, 0, 1);
    second[1] = 1 << 63;
    hostile.push(second);
    let mut hole = words(2, 0, 0, 1);
    hole[3] = 1 << 47;
    hostile.push(hole);
    for words in hostile {
        let outcome = decode(&words, &RULES);
        assert!(matches!(outcome, Err(GuestFault::RarFailure(_))), "{words:x?}");
        assert_eq!(Action::answer(&outcome), Action::Failure);
    }
}

#[test]
fn what_the_software_may_use_is_ignored() {
    let mut words = words(2, 1, 0, 0);
    words[0] |= 0xa5;
    words[2] |= 0xffff_0000;
    words[4..].fill(u64::MAX);
    assert_eq!(decode(&words, &RULES), Ok(payload(2, 1)));
}

#[test]
fn a_count_of_zero_means_what_the_rules_say() {
    let pages = |zero_pages| {
        let ask = decode(&words(0, 0, 0, 0), &Rules { zero_pages, ..RULES }).expect("legal").ask;
        let Extent::Range { pages, .. } = ask.extent else { panic!("a range") };
        pages.0
    };
    assert_eq!(pages(ZeroPages::OnePage), 1);
    assert_eq!(pages(ZeroPages::NoPage), 0);
}

#[test]
fn a_scan_serves_pending_slots_and_no_other_byte() {
    let vector = [0x00, 0x01, 0x80, 0x02, 0x01, 0xff, 0x03];
    assert!(pending(&vector).eq([1, 4]));
    assert_eq!(Action::try_from(0x01), Ok(Action::Pending));
    assert_eq!(Action::try_from(0x03), Err(0x03));
    let states = [Action::Success, Action::Pending, Action::Acked, Action::Failure];
    assert_eq!(states.map(Action::may_be_armed), [true, false, false, true]);
    assert_eq!(states.map(Action::is_open), [false, true, true, false]);
}

#[test]
fn registers_refuse_reserved_bits_and_bad_alignment() {
    assert_eq!(write_control(1 << 31 | 1 << 30), Ok(Control::all()));
    for bit in (0..30).chain(32..64) {
        assert!(matches!(write_control(1 << bit), Err(GuestFault::GeneralProtection(_))));
    }
    let lax = Rules { checks_alignment: false, ..RULES };
    assert!(write_action_vector(0x1040, &RULES).is_ok());
    assert!(write_action_vector(0x1020, &RULES).is_err());
    assert!(write_action_vector(0x1020, &lax).is_ok());
    assert!(write_payload_table(0x1000, &RULES).is_ok());
    assert!(write_payload_table(0x1040, &RULES).is_err());
    assert!(write_payload_table(0x1040, &lax).is_ok());
}

#[test]
fn slot_counts_and_messages_decode() {
    for count in 1..=64 {
        assert_eq!(info(count).map(slots), Some(count));
    }
    assert_eq!((info(0), info(65)), (None, None));
    assert_eq!(is_message(0x3e0), Ok(true));
    assert_eq!(is_message(0x4e0), Ok(false));
    assert_eq!(is_message(0x3df), Err(0xdf));
}

prop_compose! {
    fn sayable()(kind in 0_u8..3, cr3 in any::<u64>(), pcid in 0_u16..4096, shape in 0_u8..4,
                 start in any::<u64>(), pages in 1_u64..=MAX_PAGES, stride in 0_usize..3) -> Payload {
        let range = Extent::Range {
            start: Gva(((start << 16) as i64 >> 16) as u64).page_base(),
            pages: PageCount(pages),
            stride: [PageSize::Small, PageSize::Large, PageSize::Huge][stride],
        };
        let (matching, own) = match kind {
            0 => (Match::Cr3(cr3), Some(Pcid((cr3 & 0xfff) as u16))),
            1 => (Match::AnyCr3, None),
            _ => (Match::Pcid, Some(Pcid(pcid))),
        };
        let by_pcid = matching == Match::Pcid;
        let (pcid, extent, globals) = match shape {
            0 if by_pcid => (own, range, Globals::Spare),
            0 => (own, range, Globals::Include),
            1 if by_pcid => (own, Extent::Whole, Globals::Spare),
            1 | 2 => (if by_pcid { None } else { own }, Extent::Whole, Globals::Include),
            _ => (if by_pcid { None } else { own }, Extent::Whole, Globals::Spare),
        };
        Payload {
            ask: Invalidation {
                reach: Reach::Local,
                context: Context { asid: None, pcid },
                extent,
                globals,
                depth: Depth::AllLevels,
                nested: false,
            },
            matching,
        }
    }
}

proptest! {
    #[test]
    fn what_is_encoded_decodes_to_itself(payload in sayable()) {
        let words = encode(&payload, &RULES).expect("sayable");
        prop_assert_eq!(decode(&words, &RULES), Ok(payload));
    }

    #[test]
    fn a_payload_names_exactly_its_pages_for_every_count_and_size(
        pages in 1_u64..=MAX_PAGES, stride in 0_u64..3, start in 0_u64..1 << 40,
    ) {
        let mut words = words(0, 0, stride, pages);
        words[3] = start;
        let step = 4096_u64 << (9 * stride);
        let extent = decode(&words, &RULES).expect("legal").ask.extent;
        let base = start & !4095;
        for i in 0..pages {
            prop_assert!(extent.covers(Gva(base + i * step), PageSize::Small));
        }
        prop_assert!(!extent.covers(Gva(base + pages * step), PageSize::Small));
        prop_assert!(base == 0 || !extent.covers(Gva(base - 4096), PageSize::Small));
    }
}
