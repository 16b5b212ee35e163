//! TLBI operands against an independent reading of their fields.

use super::*;
use proptest::prelude::*;

const REGIME: Regime = Regime::new(Asid(3));

fn page_op(any_asid: bool, leaf: bool) -> Encoding {
    Op { target: Target::Page { any_asid, leaf }, domain: Domain::Inner, nxs: false }.encoding()
}

fn range_op() -> Encoding {
    let target = Target::Range { any_asid: false, leaf: true };
    Op { target, domain: Domain::Inner, nxs: false }.encoding()
}

fn decoded(encoding: Encoding, value: u64, regime: &Regime) -> Tlbi {
    decode(encoding, value, regime).expect("legal").expect("binding")
}

#[test]
fn each_target_has_the_scope_of_the_table() {
    let value = 0x0042_0000_0000_7abc;
    let ask = |target| {
        let op = Op { target, domain: Domain::Local, nxs: false };
        decoded(op.encoding(), value, &REGIME).ask
    };
    let vm = ask(Target::Vm);
    assert_eq!((vm.context.pcid, vm.extent, vm.globals), (None, Extent::Whole, Globals::Include));
    let asid = ask(Target::Asid);
    assert_eq!((asid.context.pcid, asid.globals), (Some(Pcid(0x42)), Globals::Spare));
    let vae1 = ask(Target::Page { any_asid: false, leaf: false });
    assert_eq!(vae1.extent, extent(0x7ab_c000, 1, Granule::Kib4));
    assert_eq!((vae1.context.pcid, vae1.globals), (Some(Pcid(0x42)), Globals::Include));
    assert_eq!((vae1.depth, vae1.reach), (Depth::AllLevels, Reach::Local));
    assert_eq!(vae1.context.asid, Some(Asid(3)));
    let vaale1 = ask(Target::Page { any_asid: true, leaf: true });
    assert_eq!((vaale1.context.pcid, vaale1.depth), (None, Depth::FinalOnly));
}

#[test]
fn el2_operations_and_unallocated_encodings_are_undefined_at_el1() {
    for (op1, crm, op2) in [(4, 3, 4), (4, 0, 1), (4, 7, 6), (0, 7, 4), (0, 4, 1), (0, 6, 0)] {
        let encoding = Encoding { op1, crn: 8, crm, op2 };
        let fault = decode(encoding, 0, &REGIME).expect_err("undefined");
        assert!(matches!(fault, GuestFault::Undefined(_)), "{encoding:?}");
    }
}

#[test]
fn forms_of_absent_features_are_undefined() {
    for (domain, nxs, range, feature) in [
        (Domain::Outer, false, false, Features::OUTER),
        (Domain::Local, true, false, Features::XS),
        (Domain::Inner, false, true, Features::RANGE),
    ] {
        let target = match range {
            true => Target::Range { any_asid: false, leaf: false },
            false => Target::Page { any_asid: false, leaf: false },
        };
        let encoding = Op { target, domain, nxs }.encoding();
        let value = Granule::Kib4.field() << 46;
        let value = if range { value } else { 0 };
        assert!(decode(encoding, value, &REGIME).is_ok());
        let without = Regime { features: Features::all().difference(feature), ..REGIME };
        assert!(decode(encoding, value, &without).is_err(), "{feature:?}");
    }
}

#[test]
fn eight_bit_asids_ignore_the_upper_byte() {
    let narrow = Regime { asid16: false, ..REGIME };
    let ask = decoded(page_op(false, true), 0xab42 << 48, &narrow).ask;
    assert_eq!(ask.context.pcid, Some(Pcid(0x42)));
    let wide_tag =
        Invalidation { context: Context { pcid: Some(Pcid(0x142)), ..ask.context }, ..ask };
    let tlbi = Tlbi { ask: wide_tag, domain: Domain::Inner, nxs: false, level: None };
    assert_eq!(encode(&tlbi, &narrow), Err(Unsayable::Context));
}

#[test]
fn a_wrong_granule_hint_binds_to_nothing_or_is_no_hint() {
    let value = 0b1011 << 44 | 5;
    assert_eq!(decode(page_op(false, true), value, &REGIME), Ok(None));
    let lenient = Regime { doubtful: Doubtful::Drops, ..REGIME };
    let tlbi = decoded(page_op(false, true), value, &lenient);
    assert_eq!((tlbi.ask.extent, tlbi.level), (extent(0x5000, 1, Granule::Kib4), None));
    let blind = Regime { features: Features::all().difference(Features::TTL), ..REGIME };
    assert_eq!(decoded(page_op(false, true), value, &blind).level, None);
}

#[test]
fn a_level_hint_binds_only_entries_of_that_level() {
    let tlbi = decoded(page_op(false, true), 0b0110 << 44, &REGIME);
    assert_eq!(tlbi.level, Some(2));
    let bound = [PageSize::Small, PageSize::Large, PageSize::Huge].map(|size| tlbi.binds(size));
    assert_eq!(bound, [false, true, false]);
    assert!(decoded(page_op(false, true), 0, &REGIME).binds(PageSize::Huge));
}

#[test]
fn reserved_foreign_and_unaligned_ranges_bind_to_nothing() {
    let lenient = Regime { doubtful: Doubtful::Drops, ..REGIME };
    for value in [0, 2 << 46, 1 << 46 | 2 << 37 | 1, 1 << 46 | 1 << 37 | 0x200] {
        assert_eq!(decode(range_op(), value, &REGIME), Ok(None), "{value:#x}");
        assert!(decode(range_op(), value, &lenient).expect("legal").is_some(), "{value:#x}");
    }
    let aligned = decoded(range_op(), 1 << 46 | 2 << 37 | 0x200, &REGIME);
    assert_eq!(aligned.level, Some(2));
}

/// The pages of a range operand by the manual's formula, one by one, as 64-bit
/// addresses of the regime's own pages.
fn pages_by_hand(scale: u64, num: u64, base: u64, regime: &Regime) -> (u64, u64) {
    let shift = if regime.wide { 16 } else { regime.granule.bits() };
    let negative = base >> 36 == 1;
    let address = i128::from(base << shift) - if negative { 1 << (37 + shift) } else { 0 };
    let end = if negative { 0 } else { 1_i128 << (36 + shift) };
    let mut count = 0;
    while count < (num + 1) * 2_u64.pow(5 * scale as u32 + 1) {
        if address + i128::from(count) * i128::from(regime.granule.bytes()) >= end {
            break;
        }
        // One by one near the end of the half, by leaps where no end is near.
        let next = count + 65_536;
        let far = address + i128::from(next) * i128::from(regime.granule.bytes()) < end;
        let left = (num + 1) * 2_u64.pow(5 * scale as u32 + 1) - count;
        count += if far && left > 65_536 { 65_536 } else { 1 };
    }
    (address as u64, count)
}

#[test]
fn a_range_names_exactly_its_pages_for_every_num_scale_and_granule() {
    let bases =
        [0, 0x10, 0xf_ffff_ffff, 0xf_ffff_fff0, 0x10_0000_0000, 0x1f_ffff_ffff, 0x1f_ffff_ff00];
    for granule in Granule::ALL {
        for wide in [false, true] {
            let regime = Regime { granule, wide, ..REGIME };
            for (scale, num) in (0..4).flat_map(|scale| (0..32).map(move |num| (scale, num))) {
                for base in bases {
                    let value = granule.field() << 46 | scale << 44 | num << 39 | base;
                    let tlbi = decoded(range_op(), value, &regime);
                    let (start, count) = pages_by_hand(scale, num, base, &regime);
                    assert_eq!(tlbi.ask.extent, extent(start, count, granule), "{value:#x}");
                }
            }
        }
    }
}

prop_compose! {
    fn regime()(granule in 0_usize..3, wide in any::<bool>(), asid16 in any::<bool>(),
                features in any::<u8>(), lenient in any::<bool>(), vmid in any::<u16>()) -> Regime {
        Regime {
            vmid: Asid(vmid),
            granule: Granule::ALL[granule],
            wide,
            asid16,
            features: Features::from_bits_truncate(features),
            doubtful: if lenient { Doubtful::Drops } else { Doubtful::Nothing },
        }
    }
}

proptest! {
    #[test]
    fn a_range_names_exactly_its_pages_wherever_it_begins(
        regime in regime(), scale in 0_u64..4, num in 0_u64..32, base in 0_u64..1 << 37,
    ) {
        let regime = Regime { features: Features::all(), ..regime };
        let value = regime.granule.field() << 46 | scale << 44 | num << 39 | base;
        let tlbi = decoded(range_op(), value, &regime);
        let (start, count) = pages_by_hand(scale, num, base, &regime);
        prop_assert_eq!(tlbi.ask.extent, extent(start, count, regime.granule));
    }

    #[test]
    fn what_decodes_in_its_own_granule_encodes_to_the_same_meaning(
        regime in regime(), op1 in 0_u8..2, crn in 8_u8..10, crm in 0_u8..8, op2 in 0_u8..8,
        value in any::<u64>(), own_granule in any::<bool>(),
    ) {
        let encoding = Encoding { op1, crn, crm, op2 };
        let tg = regime.granule.field() << 46;
        let value = if own_granule { value & !(3 << 46) | tg } else { value };
        let Ok(Some(tlbi)) = decode(encoding, value, &regime) else { return Ok(()) };
        match encode(&tlbi, &regime) {
            Ok((encoding, value)) => {
                prop_assert_eq!(decode(encoding, value, &regime), Ok(Some(tlbi)));
            }
            // Only a range that was cut at its half, or that was read in a foreign
            // granule, or whose base is too fine for it, has no operand of its own.
            Err(why) => prop_assert_eq!(why, Unsayable::Extent),
        }
    }

    #[test]
    fn what_is_encoded_decodes_to_itself(
        regime in regime(), domain in 0_usize..3, nxs in any::<bool>(), leaf in any::<bool>(),
        asid in proptest::option::of(any::<u16>()), level in proptest::option::of(1_u8..4),
        scale in 0_u32..4, num in 0_u64..32, single in any::<bool>(), base in 0_u64..1 << 30,
        high in any::<bool>(), kind in 0_u8..3,
    ) {
        let regime = Regime { features: Features::all(), ..regime };
        let domain = Domain::ALL[domain];
        let pcid = asid.map(|asid| Pcid(if regime.asid16 { asid } else { asid & 0xff }));
        let shift = level.map_or(regime.base_shift(), |l| regime.granule.block_bits(l))
            .max(regime.base_shift());
        let half = if high { u64::MAX << (regime.base_shift() + 36) } else { 0 };
        let bits = regime.base_shift() + 35 - shift;
        let start = half + ((base & ((1 << bits) - 1)) << shift);
        let count = if single { 1 } else { (num + 1) << (5 * scale + 1) };
        let whole = kind == 0;
        let level = if whole { None } else { level };
        let ask = Invalidation {
            reach: if domain == Domain::Local { Reach::Local } else { Reach::All },
            context: Context { asid: Some(regime.vmid), pcid },
            extent: if whole { Extent::Whole } else { extent(start, count, regime.granule) },
            globals: match whole && pcid.is_some() {
                true => Globals::Spare,
                false => Globals::Include,
            },
            depth: if leaf && !whole { Depth::FinalOnly } else { Depth::AllLevels },
            nested: false,
        };
        let tlbi = Tlbi { ask, domain, nxs, level };
        let (encoding, value) = encode(&tlbi, &regime).expect("sayable");
        prop_assert_eq!(decode(encoding, value, &regime), Ok(Some(tlbi)));
    }

    #[test]
    fn steps_name_the_range_once_in_order_and_each_is_one_instruction(
        regime in regime(), start in 0_u64..1 << 34, pages in 0_u64..300_000, high in any::<bool>(),
    ) {
        let start = if high { start | 0xffff_8000_0000_0000 } else { start };
        let range = Extent::Range { start: Gva(start), pages: PageCount(pages), stride: PageSize::Small };
        let context = Context { asid: Some(regime.vmid), pcid: None };
        let ask = Invalidation { context, extent: range, ..Invalidation::EVERYTHING };
        let granule = regime.granule.bytes();
        let mut at = start & !(granule - 1);
        // Without range instructions each page takes a step; a part is enough.
        for tlbi in steps(&ask, Domain::Inner, &regime).take(2_000) {
            let (encoding, value) = encode(&tlbi, &regime).expect("one instruction");
            prop_assert_eq!(decode(encoding, value, &regime), Ok(Some(tlbi)));
            let Extent::Range { start, pages, .. } = tlbi.ask.extent else { unreachable!() };
            prop_assert_eq!(start.0, at);
            at += pages.0 * PAGE_BYTES;
        }
        let end = (Gva(start).page_base().0 + pages * PAGE_BYTES).div_ceil(granule) * granule;
        if pages > 0 && regime.features.contains(Features::RANGE) {
            prop_assert_eq!(at, end);
        }
    }
}

#[test]
fn steps_are_at_most_twenty_for_what_linux_flushes_by_range() {
    for granule in Granule::ALL {
        for wide in [false, true] {
            let regime = Regime { granule, wide, ..REGIME };
            let start = Gva(granule.bytes());
            let pages = PageCount(2_097_151 * granule.small_pages());
            let range = Extent::Range { start, pages, stride: PageSize::Small };
            let ask = Invalidation { extent: range, ..Invalidation::EVERYTHING };
            assert!(steps(&ask, Domain::Inner, &regime).count() <= 20, "{regime:?}");
        }
    }
}

#[test]
fn a_wide_stride_takes_one_instruction_an_address() {
    let extent = Extent::Range { start: Gva(0), pages: PageCount(3), stride: PageSize::Large };
    let ask = Invalidation { extent, ..Invalidation::EVERYTHING };
    let starts: Vec<u64> = steps(&ask, Domain::Local, &REGIME)
        .map(|tlbi| match tlbi.ask.extent {
            Extent::Range { start, pages: PageCount(1), .. } => start.0,
            other => panic!("one page expected, got {other:?}"),
        })
        .collect();
    assert_eq!(starts, [0, 2 << 20, 4 << 20]);
}
