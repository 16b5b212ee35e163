//! Fuzz targets: whatever bits a guest gives, each decoder answers, and what it
//! understood can be said again to the same meaning.
//!
//! They run as ordinary tests for a moment each. `BOLERO_RANDOM_ITERATIONS` or
//! `BOLERO_RANDOM_TEST_TIME_MS` makes them run longer, and `--nocapture` shows how
//! many inputs each has seen and understood. No state is shared but these counters.

use std::panic::RefUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};

use bolero::TypeGenerator;
use pv_tlb::CpuSet;
use pv_tlb::abi::{doorbell, hyperv};
use pv_tlb::addr::{ExtraPages, Gva, PageSize};
use pv_tlb::id::Asid;
use pv_tlb::invalidation::{Extent, Invalidation};
use pv_tlb::isa::invlpgb::{Checks, Executor};
use pv_tlb::isa::tlbi::{Domain, Doubtful, Encoding, Features, Granule, Regime};
use pv_tlb::isa::{invlpgb, invpcid, rar, tlbi};

/// Runs `target`, which says whether its decoder understood the input.
fn fuzz<T>(name: &str, target: fn(&T) -> bool)
where
    T: TypeGenerator + core::fmt::Debug + RefUnwindSafe + 'static,
{
    let (seen, understood) = (AtomicU64::new(0), AtomicU64::new(0));
    bolero::check!(name = name).with_type::<T>().for_each(|input: &T| {
        seen.fetch_add(1, Ordering::Relaxed);
        understood.fetch_add(target(input).into(), Ordering::Relaxed);
    });
    let (seen, understood) = (seen.into_inner(), understood.into_inner());
    eprintln!("{name}: {seen} inputs, {understood} understood");
    assert!(seen < 1_000 || understood > 0, "no input got past the checks");
}

/// Keeps all bits for a quarter of the inputs and only `meaningful` ones for the
/// rest, so that not nearly every input ends at the first reserved bit.
fn tame(bits: u64, meaningful: u64, shape: u8) -> u64 {
    if shape & 3 == 0 { bits } else { bits & meaningful }
}

fn touch(ask: &Invalidation, probe: u64) {
    for size in [PageSize::Small, PageSize::Large, PageSize::Huge] {
        let _ = ask.extent.covers(Gva(probe), size);
    }
}

#[derive(Clone, Copy, Debug, TypeGenerator)]
struct InvlpgbInput {
    shape: u8,
    rax: u64,
    ecx: u32,
    edx: u32,
    checks: u8,
    count_max: u16,
    cpl: u8,
    flags: [bool; 4],
    guest: bool,
    asids: u16,
}

#[test]
fn invlpgb_answers_any_registers_under_any_rules() {
    fuzz("invlpgb", |input: &InvlpgbInput| {
        let [present, nested, pcide, long_mode] = input.flags;
        let rules = invlpgb::Rules {
            present: present || input.shape & 4 != 0,
            nested,
            count_max: ExtraPages(input.count_max),
            pcide,
            long_mode,
            cpl: if input.shape & 8 == 0 { input.cpl } else { 0 },
            executor: match input.guest {
                true => Executor::Guest(Asid(input.asids)),
                false => Executor::Host { asids: u32::from(input.asids) },
            },
            checks: Checks::from_bits_truncate(input.checks),
        };
        let registers = invlpgb::Registers {
            rax: tame(input.rax, !0xfc0, input.shape),
            ecx: tame(input.ecx.into(), 0x8000_ffff, input.shape) as u32,
            edx: tame(input.edx.into(), 0x0fff_ffff, input.shape) as u32,
        };
        let Ok(ask) = invlpgb::decode(registers, &rules) else { return false };
        touch(&ask, input.rax);
        let strict = Checks::all().difference(Checks::CANONICAL);
        match invlpgb::encode(&ask, &rules) {
            Ok(again) => assert_eq!(invlpgb::decode(again, &rules), Ok(ask)),
            Err(why) => assert!(!rules.checks.contains(strict), "{why}: {ask:?}"),
        }
        true
    });
}

#[derive(Clone, Copy, Debug, TypeGenerator)]
struct LocalInput {
    shape: u8,
    operands: [u64; 3],
    cr0: u64,
    cr3: u64,
    cr4: u64,
    phys_bits: u8,
    flags: [bool; 5],
}

#[test]
fn local_x86_instructions_answer_any_operand_in_any_mode() {
    fuzz("invpcid", |input: &LocalInput| {
        let [invpcid, long_mode, checks, skips, globals] = input.flags;
        let rules = invpcid::Rules {
            invpcid,
            cpl: input.shape >> 6,
            long_mode,
            cr4: input.cr4,
            cr3: input.cr3,
            phys_bits: input.phys_bits,
            invpcid_checks_address: checks,
            invlpg_skips_noncanonical: skips,
            mode_change_drops_globals: globals,
        };
        let [kind, low, address] = input.operands;
        let kind = tame(kind, 3, input.shape);
        let operands =
            invpcid::Invpcid { kind, descriptor: [tame(low, 0xfff, input.shape), address] };
        let decoded = invpcid::decode(operands, &rules);
        if let Ok(ask) = decoded {
            touch(&ask, low);
            let again = invpcid::encode(&ask, &rules).expect("INVPCID says what INVPCID said");
            assert_eq!(invpcid::decode(again, &rules), decoded);
        }
        if let Ok(Some(ask)) = invpcid::invlpg(Gva(address), &rules) {
            let again = invpcid::encode_invlpg(&ask, &rules).expect("INVLPG says what INVLPG said");
            assert_eq!(invpcid::invlpg(again, &rules), Ok(Some(ask)));
        }
        let written = invpcid::mov_cr3(tame(low, (1 << 36) - 1, input.shape), &rules);
        if let Ok(Some(ask)) = written {
            let root = pv_tlb::addr::Gpa(0);
            let again = invpcid::encode_cr3(root, &ask, &rules).expect("CR3 says what CR3 said");
            assert_eq!(invpcid::mov_cr3(again, &rules), Ok(Some(ask)));
        }
        let _ = invpcid::mov_cr4(address, &rules);
        let _ = invpcid::mov_cr0(input.cr0, address, &rules);
        decoded.is_ok()
    });
}

#[derive(Clone, Copy, Debug, TypeGenerator)]
struct TlbiInput {
    shape: u8,
    word: u32,
    value: u64,
    vmid: u16,
    granule: u8,
    features: u8,
    flags: [bool; 3],
}

#[test]
fn tlbi_answers_any_instruction_and_operand_in_any_regime() {
    fuzz("tlbi", |input: &TlbiInput| {
        let [wide, asid16, lenient] = input.flags;
        let regime = Regime {
            vmid: Asid(input.vmid),
            granule: Granule::ALL[usize::from(input.granule) % 3],
            wide,
            asid16,
            features: Features::from_bits_truncate(input.features | input.shape),
            doubtful: if lenient { Doubtful::Drops } else { Doubtful::Nothing },
        };
        // SYS, op1 = 0, CRn = 8 or 9 and CRm below 8 for the tame ones.
        let word = match input.shape & 3 {
            0 => input.word,
            _ => 0xd508_8000 | input.word & 0x17ff,
        };
        let Some((encoding, rt)) = Encoding::from_instruction(word) else { return false };
        assert_eq!(encoding.instruction(rt), word);
        let Ok(Some(tlbi)) = tlbi::decode(encoding, input.value, &regime) else { return false };
        touch(&tlbi.ask, input.value);
        if let Ok((encoding, value)) = tlbi::encode(&tlbi, &regime) {
            assert_eq!(tlbi::decode(encoding, value, &regime), Ok(Some(tlbi)));
        }
        for step in tlbi::steps(&tlbi.ask, Domain::Inner, &regime).take(32) {
            touch(&step.ask, input.value);
        }
        true
    });
}

#[derive(Clone, Copy, Debug, TypeGenerator)]
struct RarInput {
    shape: u8,
    words: [u64; rar::PAYLOAD_WORDS],
    vector: [u8; 16],
    flags: [bool; 3],
    zero: u8,
}

#[test]
fn rar_answers_any_payload_vector_and_register() {
    fuzz("rar", |input: &RarInput| {
        let [pcide, checks_address, checks_alignment] = input.flags;
        let zero = [rar::ZeroPages::Fails, rar::ZeroPages::OnePage, rar::ZeroPages::NoPage];
        let zero_pages = zero[usize::from(input.zero) % 3];
        let rules = rar::Rules { pcide, zero_pages, checks_address, checks_alignment };
        let mut words = input.words;
        words[0] = tame(words[0], 0x7ff_0000_03ff, input.shape);
        words[1] = tame(words[1], 0, input.shape);
        let decoded = rar::decode(&words, &rules);
        if let Ok(payload) = decoded {
            touch(&payload.ask, words[3]);
            let no_pages =
                matches!(payload.ask.extent, Extent::Range { pages, .. } if pages.0 == 0);
            match rar::encode(&payload, &rules) {
                Ok(again) => assert_eq!(rar::decode(&again, &rules), decoded),
                Err(why) => assert!(no_pages, "{why}: {payload:?}"),
            }
        }
        assert!(rar::pending(&input.vector).all(|slot| input.vector[slot] == 1));
        for byte in input.vector {
            assert_eq!(rar::Action::try_from(byte).map_or(byte, |action| action as u8), byte);
        }
        for word in input.words {
            let _ = rar::write_control(word);
            let _ = rar::write_action_vector(word, &rules);
            let _ = rar::write_payload_table(word, &rules);
            assert!(rar::info(rar::slots(word)).is_some());
            let _ = rar::is_message(word as u32);
        }
        decoded.is_ok()
    });
}

#[derive(Clone, Debug, TypeGenerator)]
struct HypervInput {
    shape: u8,
    control: u64,
    input: Vec<u64>,
    present: u16,
    flags: [bool; 3],
}

#[test]
fn hyperv_answers_any_control_word_and_input() {
    fuzz("hyperv", |raw: &HypervInput| {
        let [refuses_absent_vps, refuses_non_global_lists, extended_ranges] = raw.flags;
        let rules = hyperv::Rules { refuses_absent_vps, refuses_non_global_lists, extended_ranges };
        let present = CpuSet::first(u32::from(raw.present));
        let (mut control, mut input) = (raw.control, raw.input.clone());
        if raw.shape & 3 != 0 {
            tame_call(&mut control, &mut input, raw.shape);
        }
        let Ok(control) = hyperv::Control::decode(control) else { return false };
        let Ok(flush) = hyperv::decode(control, &input, &present, &rules) else { return false };
        for ask in flush.invalidations() {
            touch(&ask, raw.control);
        }
        let is_list = matches!(control.code, hyperv::FLUSH_LIST | hyperv::FLUSH_LIST_EX);
        let extents: Vec<Extent> = if is_list { flush.extents().collect() } else { Vec::new() };
        let mut again = [0; hyperv::MAX_INPUT_WORDS];
        let (header, space) = (flush.header, flush.address_space);
        let form = hyperv::Form::Ex;
        let Ok((call, words)) = hyperv::encode(&header, space, &extents, form, &mut again) else {
            assert!(extents.len() > 400, "a short list fits a page");
            return true;
        };
        let rules = hyperv::Rules { extended_ranges: true, ..rules };
        let decoded = hyperv::decode(call, &again[..words], &present, &rules).expect("legal");
        assert_eq!((decoded.header, decoded.address_space), (header, space));
        assert!(decoded.extents().eq(flush.extents()));
        true
    });
}

/// Turns random words into a call whose counts mostly agree.
fn tame_call(control: &mut u64, input: &mut Vec<u64>, shape: u8) {
    let codes =
        [hyperv::FLUSH_SPACE, hyperv::FLUSH_LIST, hyperv::FLUSH_SPACE_EX, hyperv::FLUSH_LIST_EX];
    let code = codes[usize::from(shape >> 2) % 4];
    input.resize(input.len().max(8), 1);
    input[1] &= 0xf;
    let ex = code >= hyperv::FLUSH_SPACE_EX;
    let mut variable_words = 0;
    if ex {
        input[2] &= 1;
        input[3] &= 0x8000_0000_0001_0003;
        variable_words = input[3].count_ones() as u16;
    }
    let header = 3 + usize::from(ex) + usize::from(variable_words);
    let left = input.len().saturating_sub(header) as u16;
    let list = matches!(code, hyperv::FLUSH_LIST | hyperv::FLUSH_LIST_EX);
    let reps = if list { left.min(0xfff) } else { 0 };
    let start = if reps == 0 { 0 } else { (*control >> 48) as u16 % reps };
    *control =
        hyperv::Control { code, fast: shape & 0x80 != 0, variable_words, reps, start }.encode();
}

#[derive(Clone, Copy, Debug, TypeGenerator)]
struct DoorbellInput {
    shape: u8,
    scope: u32,
    flags: u32,
    tags: u32,
    stride: u32,
    start: u64,
    pages: u64,
    set: [u64; 16],
    present: u16,
}

#[test]
fn the_doorbell_answers_any_request() {
    use std::sync::atomic::Ordering::Relaxed;
    fuzz("doorbell", |input: &DoorbellInput| {
        let request = doorbell::Request::default();
        let small = |word: u32, mask: u32| tame(word.into(), mask.into(), input.shape) as u32;
        request.scope.store(small(input.scope, 3), Relaxed);
        request.flags.store(small(input.flags, 0x1f), Relaxed);
        request.tags.store(small(input.tags, 0x0fff_ffff), Relaxed);
        request.stride.store(small(input.stride, 3), Relaxed);
        request.start.store(tame(input.start, 0x7fff_ffff_ffff, input.shape), Relaxed);
        request.pages.store(tame(input.pages, 0xffff, input.shape), Relaxed);
        for (word, value) in request.set.iter().zip(input.set) {
            word.store(if input.shape & 4 == 0 { value } else { 0 }, Relaxed);
        }
        let present = CpuSet::first(u32::from(input.present));
        let Ok((ask, seq)) = request.read(&present) else { return false };
        touch(&ask, input.start);
        let again = doorbell::Request::default();
        again.write(&ask, seq);
        assert_eq!(again.read(&present), Ok((ask, seq)));
        true
    });
}
