//! Local x86 invalidations: scopes, faults, and encoders that decode to themselves.

use super::*;
use proptest::prelude::*;

const RULES: Rules = Rules::kernel(0x1000_0007);
const NO_PCID: Rules = Rules { cr4: CR4_PAE | CR4_PGE, cr3: 0x1000_0000, ..RULES };

fn is_gp<T: core::fmt::Debug>(result: Result<T, GuestFault>) -> bool {
    matches!(result, Err(GuestFault::GeneralProtection(_)))
}

#[test]
fn invlpg_takes_the_current_pcid_and_globals_at_one_page() {
    let ask = invlpg(Gva(0x7fff), &RULES).expect("legal").expect("acts");
    assert_eq!(ask.context.pcid, Some(Pcid(7)));
    assert_eq!((ask.reach, ask.globals), (Reach::Local, Globals::Include));
    assert!(ask.extent.covers(Gva(0x7000), PageSize::Small));
    assert!(ask.extent.covers(Gva(0), PageSize::Huge));
    assert!(!ask.extent.covers(Gva(0x8000), PageSize::Small));
    let untagged = invlpg(Gva(0x7fff), &NO_PCID).expect("legal").expect("acts");
    assert_eq!(untagged.context.pcid, Some(Pcid(0)));
}

#[test]
fn invlpg_of_a_noncanonical_address_does_nothing_unless_the_rules_say_so() {
    let hole = Gva(1 << 50);
    assert_eq!(invlpg(hole, &RULES), Ok(None));
    let other = Rules { invlpg_skips_noncanonical: false, ..RULES };
    assert!(invlpg(hole, &other).expect("legal").is_some());
}

#[test]
fn the_four_invpcid_types_have_their_scopes() {
    let ask = |kind| decode(Invpcid { kind, descriptor: [5, 0x7123] }, &RULES).expect("legal");
    let five = Some(Pcid(5));
    assert_eq!(ask(0), page(Gva(0x7000), Pcid(5), Globals::Spare));
    assert_eq!(ask(1), whole(five, Globals::Spare));
    assert_eq!(ask(2), Invalidation { reach: Reach::Local, ..Invalidation::EVERYTHING });
    assert_eq!(ask(3), whole(None, Globals::Spare));
}

#[test]
fn hostile_invpcid_operands_raise_what_the_manual_says() {
    let operands = |kind, low, address| Invpcid { kind, descriptor: [low, address] };
    assert!(is_gp(decode(operands(4, 0, 0), &RULES)));
    assert!(is_gp(decode(operands(u64::MAX, 0, 0), &RULES)));
    assert!(is_gp(decode(operands(2, 1 << 12, 0), &RULES)));
    assert!(is_gp(decode(operands(2, 1 << 63, 0), &RULES)));
    assert!(is_gp(decode(operands(0, 1, 1 << 47), &RULES)));
    assert!(is_gp(decode(operands(0, 1, 0), &NO_PCID)));
    assert!(is_gp(decode(operands(1, 1, 0), &NO_PCID)));
    assert!(decode(operands(2, 1, 0), &NO_PCID).is_ok());
    assert!(is_gp(decode(operands(2, 0, 0), &Rules { cpl: 3, ..RULES })));
    let absent = Rules { invpcid: false, ..RULES };
    assert!(matches!(decode(operands(2, 0, 0), &absent), Err(GuestFault::InvalidOpcode(_))));
}

#[test]
fn a_cr3_write_drops_the_loaded_pcid_unless_told_to_keep_it() {
    let loaded = mov_cr3(0x2000_0009, &RULES).expect("legal");
    assert_eq!(loaded, Some(whole(Some(Pcid(9)), Globals::Spare)));
    assert_eq!(mov_cr3(CR3_KEEP | 0x2000_0009, &RULES), Ok(None));
    let untagged = mov_cr3(0x2000_0009, &NO_PCID).expect("legal");
    assert_eq!(untagged, Some(whole(Some(Pcid(0)), Globals::Spare)));
}

#[test]
fn cr3_bits_that_are_reserved_raise_gp() {
    assert!(is_gp(mov_cr3(CR3_KEEP, &NO_PCID)));
    assert!(is_gp(mov_cr3(1 << 46, &RULES)));
    assert!(is_gp(mov_cr3(1 << 62, &RULES)));
    assert!(mov_cr3(1 << 45, &RULES).is_ok());
    assert!(is_gp(mov_cr3(0, &Rules { cpl: 1, ..RULES })));
    assert!(mov_cr3(1 << 62, &Rules { phys_bits: 64, ..RULES }).is_ok());
}

#[test]
fn cr4_changes_flush_by_the_bit_that_changes() {
    let everything = Ok(Some(whole(None, Globals::Include)));
    let cr4 = RULES.cr4;
    assert_eq!(mov_cr4(cr4 & !CR4_PGE, &RULES), everything);
    assert_eq!(mov_cr4(cr4 | CR4_PGE, &Rules { cr4: CR4_PAE | CR4_PCIDE, ..RULES }), everything);
    assert_eq!(mov_cr4(cr4 & !CR4_PCIDE, &RULES), everything);
    assert_eq!(mov_cr4(cr4, &RULES), Ok(None));
    assert_eq!(mov_cr4(cr4 | 1 << 9, &RULES), Ok(None));
    let smep = Ok(Some(whole(Some(Pcid(7)), Globals::Include)));
    assert_eq!(mov_cr4(cr4 | CR4_SMEP, &RULES), smep);
    let on = Rules { cr4: cr4 | CR4_SMEP, mode_change_drops_globals: false, ..RULES };
    assert_eq!(mov_cr4(cr4, &on), Ok(None));
    assert_eq!(mov_cr4(on.cr4 & !CR4_PAE, &on), Ok(Some(whole(Some(Pcid(7)), Globals::Spare))));
}

#[test]
fn pcide_may_be_set_only_in_long_mode_and_with_pcid_0() {
    assert_eq!(mov_cr4(NO_PCID.cr4 | CR4_PCIDE, &NO_PCID), Ok(None));
    assert!(is_gp(mov_cr4(NO_PCID.cr4 | CR4_PCIDE, &Rules { cr3: 0x1001, ..NO_PCID })));
    assert!(is_gp(mov_cr4(NO_PCID.cr4 | CR4_PCIDE, &Rules { long_mode: false, ..NO_PCID })));
}

#[test]
fn turning_paging_off_drops_everything_and_needs_pcide_off() {
    assert_eq!(mov_cr0(CR0_PG, 0, &NO_PCID), Ok(Some(whole(None, Globals::Include))));
    assert_eq!(mov_cr0(0, CR0_PG, &NO_PCID), Ok(None));
    assert_eq!(mov_cr0(CR0_PG, CR0_PG | 1, &NO_PCID), Ok(None));
    assert!(is_gp(mov_cr0(CR0_PG, 0, &RULES)));
}

#[test]
fn what_the_local_instructions_cannot_say_is_named() {
    let ask = whole(Some(Pcid(7)), Globals::Include);
    assert_eq!(encode(&ask, &RULES), Err(Unsayable::Globals));
    assert_eq!(encode_invlpg(&ask, &RULES), Err(Unsayable::Extent));
    assert_eq!(encode_cr3(Gpa(0), &ask, &RULES), Err(Unsayable::Globals));
    let elsewhere = page(Gva(0), Pcid(8), Globals::Include);
    assert_eq!(encode_invlpg(&elsewhere, &RULES), Err(Unsayable::Context));
    let all = Invalidation { reach: Reach::All, ..whole(None, Globals::Include) };
    assert_eq!(encode(&all, &RULES), Err(Unsayable::Reach));
}

proptest! {
    #[test]
    fn invpcid_encodes_and_decodes_to_itself(
        kind in 0_u64..4, pcid in 0_u16..4096, address in any::<u64>(),
    ) {
        let address = Gva(((address << 16) as i64 >> 16) as u64);
        let ask = match kind {
            0 => page(address, Pcid(pcid), Globals::Spare),
            1 => whole(Some(Pcid(pcid)), Globals::Spare),
            2 => whole(None, Globals::Include),
            _ => whole(None, Globals::Spare),
        };
        let operands = encode(&ask, &RULES).expect("sayable");
        prop_assert_eq!(operands.kind, kind);
        prop_assert_eq!(decode(operands, &RULES), Ok(ask));
    }

    #[test]
    fn invlpg_and_cr3_writes_encode_and_decode_to_themselves(
        pcid in 0_u16..4096, address in any::<u64>(), root in 0_u64..1 << 46,
    ) {
        let address = Gva(((address << 16) as i64 >> 16) as u64);
        let rules = Rules::kernel(0x5000 | u64::from(pcid));
        let at = page(address, Pcid(pcid), Globals::Include);
        let operand = encode_invlpg(&at, &rules).expect("sayable");
        prop_assert_eq!(invlpg(operand, &rules), Ok(Some(at)));
        let context = whole(Some(Pcid(pcid)), Globals::Spare);
        let cr3 = encode_cr3(Gpa(root), &context, &rules).expect("sayable");
        prop_assert_eq!(mov_cr3(cr3, &rules), Ok(Some(context)));
    }
}
