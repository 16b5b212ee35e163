//! INVLPGB against the flag table, the fault rules and its own encoder.

use super::*;
use crate::isa::fault::Cause;
use crate::isa::pieces;
use proptest::prelude::*;

const HOST: Rules =
    Rules { nested: true, executor: Executor::Host { asids: 0x1000 }, ..Rules::guest(Asid(0)) };

fn host(flags: u64) -> Invalidation {
    let registers = Registers { rax: 0x7000 | flags, ecx: 1 << 31 | 3, edx: 0x0123_0042 };
    decode(registers, &HOST).expect("legal")
}

#[test]
fn every_combination_of_the_low_flags_is_legal_and_constrains_only_what_it_names() {
    for flags in 0..16 {
        let ask = host(flags);
        let has = |bit: u64| flags & bit != 0;
        assert_eq!(matches!(ask.extent, Extent::Range { .. }), has(1), "{flags:#x}");
        assert_eq!(ask.context.pcid, has(2).then_some(Pcid(0x123)), "{flags:#x}");
        assert_eq!(ask.context.asid, has(4).then_some(Asid(0x42)), "{flags:#x}");
        assert_eq!(ask.globals == Globals::Include, has(8), "{flags:#x}");
        assert_eq!(ask.reach, Reach::All);
        assert_eq!((ask.depth, ask.nested), (Depth::AllLevels, false));
    }
}

#[test]
fn final_only_and_nested_are_flags_of_their_own() {
    assert_eq!(host(0x10).depth, Depth::FinalOnly);
    assert!(host(0x20).nested);
}

#[test]
fn the_count_is_of_pages_after_the_first() {
    let range = Extent::Range { start: Gva(0x7000), pages: PageCount(4), stride: PageSize::Large };
    assert_eq!(host(1).extent, range);
}

#[test]
fn every_count_names_that_many_pages_and_one_more() {
    let rules = Rules { count_max: ExtraPages(u16::MAX), ..HOST };
    for (bit, stride) in [(0, PageSize::Small), (1 << 31, PageSize::Large)] {
        for count in 0..=u16::MAX {
            let registers = Registers { rax: 0x7001, ecx: bit | u32::from(count), edx: 0 };
            let pages = PageCount(u64::from(count) + 1);
            let named = Extent::Range { start: Gva(0x7000), pages, stride };
            assert_eq!(decode(registers, &rules).map(|ask| ask.extent), Ok(named));
            let beyond = 0x7000 + pages.0 * stride.bytes();
            assert!(named.covers(Gva(beyond - stride.bytes()), PageSize::Small));
            assert!(!named.covers(Gva(beyond), PageSize::Small));
        }
    }
}

#[test]
fn a_guest_reaches_its_own_asid_whatever_it_writes() {
    let rules = Rules::guest(Asid(9));
    for (rax, edx) in [(0xc, 0), (0x8, 0), (0x4, 0xffff), (0x0, 77)] {
        let ask = decode(Registers { rax, ecx: 0, edx }, &rules).expect("legal");
        assert_eq!(ask.context.asid, Some(Asid(9)));
    }
}

#[test]
fn outside_64_bit_mode_the_address_has_32_bits() {
    let rules = Rules { long_mode: false, ..HOST };
    let registers = Registers { rax: 0xffff_ffff_8000_1001, ecx: 0, edx: 0 };
    let ask = decode(registers, &rules).expect("legal");
    assert!(matches!(ask.extent, Extent::Range { start: Gva(0x8000_1000), .. }));
}

fn cause(result: Result<Invalidation, GuestFault>) -> Option<Cause> {
    match result {
        Err(GuestFault::GeneralProtection(cause)) => Some(cause),
        other => panic!("expected #GP(0), got {other:?}"),
    }
}

#[test]
fn each_check_raises_gp_and_can_be_left_out() {
    let clear = Registers { rax: 0, ecx: 0, edx: 0 };
    let cases = [
        (Checks::RESERVED, Registers { rax: 1 << 6, ..clear }),
        (Checks::RESERVED, Registers { rax: 1 << 11, ..clear }),
        (Checks::RESERVED, Registers { ecx: 1 << 16, ..clear }),
        (Checks::RESERVED, Registers { ecx: 1 << 30, ..clear }),
        (Checks::RESERVED, Registers { edx: 1 << 28, ..clear }),
        (Checks::RESERVED, Registers { edx: 1 << 31, ..clear }),
        (Checks::COUNT, Registers { ecx: 8, ..clear }),
        (Checks::PCIDE, Registers { rax: 2, ..clear }),
        (Checks::ASID_LIMIT, Registers { rax: 4, edx: 0x1000, ..clear }),
        (Checks::NESTED, Registers { rax: 0x20, ..clear }),
        (Checks::CANONICAL, Registers { rax: 0x7fff_ffff_f001, ecx: 1, ..clear }),
        (Checks::CANONICAL, Registers { rax: 0x8000_0000_0001, ..clear }),
    ];
    let strict = Rules { nested: false, pcide: false, checks: Checks::all(), ..HOST };
    for (check, registers) in cases {
        assert!(cause(decode(registers, &strict)).is_some(), "{registers:x?}");
        let lenient = Rules { checks: Checks::all().difference(check), ..strict };
        assert!(decode(registers, &lenient).is_ok(), "{registers:x?}");
    }
}

#[test]
fn a_guest_may_not_name_nested_translations_and_never_gets_them() {
    let rules = Rules { nested: true, ..Rules::guest(Asid(1)) };
    let registers = Registers { rax: 0x24, ecx: 0, edx: 0 };
    cause(decode(registers, &rules));
    let lenient = Rules { checks: Checks::empty(), ..rules };
    assert!(!decode(registers, &lenient).expect("ignored").nested);
}

#[test]
fn absence_is_ud_and_privilege_is_gp_for_both_instructions() {
    let absent = Rules::guest(Asid(1)).with_cpuid(0, 7);
    let user = Rules { cpl: 3, ..HOST };
    let registers = Registers { rax: 0, ecx: 0, edx: 0 };
    assert!(matches!(decode(registers, &absent), Err(GuestFault::InvalidOpcode(_))));
    assert!(matches!(tlbsync(&absent), Err(GuestFault::InvalidOpcode(_))));
    assert!(matches!(decode(registers, &user), Err(GuestFault::GeneralProtection(_))));
    assert!(matches!(tlbsync(&user), Err(GuestFault::GeneralProtection(_))));
    assert_eq!(tlbsync(&HOST), Ok(()));
}

#[test]
fn what_the_instruction_cannot_say_is_named() {
    let ask = Invalidation::EVERYTHING;
    let with = |extent| encode(&Invalidation { extent, ..ask }, &HOST);
    let range = |pages, stride| Extent::Range { start: Gva(0), pages: PageCount(pages), stride };
    assert_eq!(with(range(9, PageSize::Small)), Err(Unsayable::Extent));
    assert_eq!(with(range(0, PageSize::Small)), Err(Unsayable::Extent));
    assert_eq!(with(range(1, PageSize::Huge)), Err(Unsayable::Extent));
    let local = Invalidation { reach: Reach::Local, ..ask };
    assert_eq!(encode(&local, &HOST), Err(Unsayable::Reach));
    assert_eq!(encode(&ask, &Rules::guest(Asid(3))), Err(Unsayable::Context));
    assert_eq!(encode(&ask, &Rules { present: false, ..HOST }), Err(Unsayable::Absent));
}

prop_compose! {
    fn askable()(asid in 0_u16..0x1000, tagged in any::<bool>(),
                 pcid in proptest::option::of(0_u16..4096), ranged in any::<bool>(),
                 start in any::<u64>(), extra in any::<u16>(), large in any::<bool>(),
                 global in any::<bool>(), leaf in any::<bool>(), nested in any::<bool>())
                 -> Invalidation {
        let stride = if large { PageSize::Large } else { PageSize::Small };
        Invalidation {
            reach: Reach::All,
            context: Context { asid: tagged.then_some(Asid(asid)), pcid: pcid.map(Pcid) },
            extent: match ranged {
                true => Extent::Range {
                    start: Gva(start).page_base(),
                    pages: PageCount::from(ExtraPages(extra)),
                    stride,
                },
                false => Extent::Whole,
            },
            globals: if global { Globals::Include } else { Globals::Spare },
            depth: if leaf { Depth::FinalOnly } else { Depth::AllLevels },
            nested,
        }
    }
}

proptest! {
    #[test]
    fn what_is_encoded_decodes_to_itself(ask in askable()) {
        let rules = Rules { count_max: ExtraPages(u16::MAX), ..HOST };
        let registers = encode(&ask, &rules).expect("sayable");
        prop_assert_eq!(decode(registers, &rules), Ok(ask));
    }

    #[test]
    fn a_guests_request_decodes_to_itself(ask in askable(), own in 1_u16..64) {
        let rules = Rules { count_max: ExtraPages(u16::MAX), ..Rules::guest(Asid(own)) };
        let context = Context { asid: Some(Asid(own)), ..ask.context };
        let ask = Invalidation { context, nested: false, ..ask };
        let registers = encode(&ask, &rules).expect("sayable");
        prop_assert_eq!(decode(registers, &rules), Ok(ask));
    }

    #[test]
    fn pieces_of_the_processors_size_name_a_long_range_exactly(
        start in 0_u64..1 << 40, pages in 1_u64..2000, count_max in 0_u16..64,
    ) {
        let rules = Rules { count_max: ExtraPages(count_max), ..HOST };
        let whole = Extent::Range {
            start: Gva(start).page_base(),
            pages: PageCount(pages),
            stride: PageSize::Small,
        };
        let mut named = Vec::new();
        for extent in pieces(whole, PageCount::from(rules.count_max).0) {
            let ask = Invalidation { extent, ..Invalidation::EVERYTHING };
            let registers = encode(&ask, &rules).expect("a piece fits");
            let decoded = decode(registers, &rules).expect("legal").extent;
            let Extent::Range { start, pages, .. } = decoded else { unreachable!("a range") };
            named.extend((0..pages.0).map(|i| start.0 + i * PAGE_BYTES));
        }
        let base = Gva(start).page_base().0;
        let meant: Vec<u64> = (0..pages).map(|i| base + i * PAGE_BYTES).collect();
        prop_assert_eq!(named, meant);
    }
}
