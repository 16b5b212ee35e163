//! The doorbell's bytes: what is written is read back, and nothing else is.

use super::*;
use crate::id::VcpuId;
use proptest::prelude::*;

fn present() -> CpuSet {
    CpuSet::first(200)
}

prop_compose! {
    fn extent()(range in any::<bool>(), high in any::<bool>(), start in 0_u64..1 << 46,
                pages in 1_u64..1 << 16, stride in 0_usize..3) -> Extent {
        let stride = [PageSize::Small, PageSize::Large, PageSize::Huge][stride];
        let base = if high { 0xffff_8000_0000_0000 } else { 0 };
        match range {
            true => Extent::Range { start: Gva(base + start), pages: PageCount(pages), stride },
            false => Extent::Whole,
        }
    }
}

prop_compose! {
    fn invalidation()(scope in 0..3, ids in proptest::collection::vec(0_u32..200, 0..20),
                      asid in proptest::option::of(any::<u16>()),
                      pcid in proptest::option::of(0_u16..4096),
                      extent in extent(), global in any::<bool>(), leaf in any::<bool>())
                      -> Invalidation {
        Invalidation {
            reach: match scope {
                0 => Reach::Local,
                1 => Reach::Set(ids.into_iter().map(VcpuId).collect()),
                _ => Reach::All,
            },
            context: Context { asid: asid.map(Asid), pcid: pcid.map(Pcid) },
            extent,
            globals: if global { Globals::Include } else { Globals::Spare },
            depth: if leaf { Depth::FinalOnly } else { Depth::AllLevels },
            nested: false,
        }
    }
}

proptest! {
    #[test]
    fn what_a_guest_writes_is_what_the_host_reads(ask in invalidation(), seq in any::<u64>()) {
        let request = Request::default();
        request.write(&ask, FlushSeq(seq));
        prop_assert_eq!(request.read(&present()), Ok((ask, FlushSeq(seq))));
    }

    #[test]
    fn garbage_is_refused_or_means_exactly_what_its_bytes_say(
        scope in 0_u32..5, flags in any::<u32>(), small_flags in any::<bool>(),
        tags in any::<u32>(), stride in 0_u32..5, start in any::<u64>(), pages in any::<u64>(),
        set in proptest::array::uniform16(any::<u64>()),
    ) {
        let request = Request::default();
        request.scope.store(scope, Relaxed);
        request.flags.store(if small_flags { flags & 0x1f } else { flags }, Relaxed);
        request.tags.store(tags, Relaxed);
        request.stride.store(stride, Relaxed);
        request.start.store(start, Relaxed);
        request.pages.store(pages, Relaxed);
        for (word, value) in request.set.iter().zip(set) {
            word.store(value, Relaxed);
        }
        if let Ok((ask, seq)) = request.read(&present()) {
            let again = Request::default();
            again.write(&ask, seq);
            prop_assert_eq!(again.read(&present()), Ok((ask, seq)));
            prop_assert_eq!(again.flags.load(Relaxed), request.flags.load(Relaxed));
        }
    }
}

fn refused(change: impl Fn(&Request)) -> Status {
    let request = Request::default();
    let extent = Extent::Range { start: Gva(0x1000), pages: PageCount(1), stride: PageSize::Small };
    request.write(&Invalidation { extent, ..Invalidation::EVERYTHING }, FlushSeq(1));
    change(&request);
    request.read(&present()).expect_err("refused")
}

#[test]
fn every_rule_has_its_own_status() {
    assert_eq!(refused(|r| r.scope.store(3, Relaxed)), Status::BadScope);
    assert_eq!(refused(|r| r.flags.store(1 << 5, Relaxed)), Status::Reserved);
    assert_eq!(refused(|r| r.tags.store(1, Relaxed)), Status::Reserved);
    assert_eq!(refused(|r| r.tags.store(0x1000 << 16, Relaxed)), Status::BadPcid);
    assert_eq!(refused(|r| r.pages.store(0, Relaxed)), Status::BadRange);
    assert_eq!(refused(|r| r.pages.store(u64::MAX, Relaxed)), Status::BadRange);
    assert_eq!(refused(|r| r.start.store(1 << 50, Relaxed)), Status::BadRange);
    assert_eq!(refused(|r| r.stride.store(3, Relaxed)), Status::BadStride);
    assert_eq!(refused(|r| r.flags.store(0, Relaxed)), Status::Reserved);
    assert_eq!(refused(|r| r.set[0].store(1, Relaxed)), Status::Reserved);
    let ghost = |r: &Request| {
        r.scope.store(1, Relaxed);
        r.set[15].store(1 << 63, Relaxed);
    };
    assert_eq!(refused(ghost), Status::BadVcpu);
}

#[test]
fn a_range_may_not_leave_its_canonical_half() {
    let across = |r: &Request| {
        r.start.store(0x7fff_ffff_f000, Relaxed);
        r.pages.store(2, Relaxed);
    };
    assert_eq!(refused(across), Status::BadRange);
    let around = |r: &Request| {
        r.start.store(0xffff_ffff_ffff_f000, Relaxed);
        r.pages.store(2, Relaxed);
    };
    assert_eq!(refused(around), Status::BadRange);
}

#[test]
fn statuses_decode_to_themselves() {
    for raw in 0..9 {
        assert_eq!(Status::try_from(raw).map(|s| s as u32), Ok(raw));
    }
    assert_eq!(Status::try_from(9), Err(9));
}

#[test]
fn the_signature_spells_pvtlbpvtlb() {
    let bytes: Vec<u8> = SIGNATURE.iter().flat_map(|w| w.to_le_bytes()).collect();
    assert_eq!(&bytes, b"pvtlbpvtlb\0\0");
}
