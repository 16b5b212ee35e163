//! Looks at every instruction of the embedded guest image.
//!
//! The guest must run on a KVM that interprets CPL0 and knows no SSE, and its
//! interrupts push below the stack pointer. Whether an instruction that breaks this
//! is in the image depends on compiler flags and on which functions of `core` are
//! used, so it is checked on the result.

use iced_x86::{Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, Register};
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind};
use pv_tlb::abi::stress::IMAGE_GPA;

static IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/stress-guest.elf"));

fn image() -> object::File<'static> {
    object::File::parse(IMAGE).expect("The image is an ELF file")
}

/// Every instruction of the code section. The whole section is decoded, with a new
/// start at each function, so that no byte of it goes unseen.
fn instructions(visit: &mut dyn FnMut(&Instruction)) {
    let file = image();
    let text = file.section_by_name(".text").expect("The image has code");
    let end = text.address() + text.size();
    let mut starts: Vec<u64> = file
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text)
        .map(|symbol| symbol.address())
        .chain([text.address(), end])
        .collect();
    starts.sort_unstable();
    starts.dedup();
    for pair in starts.windows(2) {
        let code = text
            .data_range(pair[0], pair[1] - pair[0])
            .expect("The section is readable")
            .expect("Functions lie inside the section");
        let decoder = Decoder::with_ip(64, code, pair[0], DecoderOptions::NONE);
        decoder.into_iter().for_each(|instruction| visit(&instruction));
    }
}

/// Lists the instructions for which `bad` holds.
fn offenders(bad: impl Fn(&Instruction) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    instructions(&mut |instruction| {
        if bad(instruction) {
            found.push(format!("{:#x}: {instruction}", instruction.ip()));
        }
    });
    found
}

const NONE: Vec<String> = Vec::new();

#[test]
fn the_image_is_linked_where_the_monitor_loads_it() {
    let file = image();
    assert_eq!(file.segments().map(|segment| segment.address()).min(), Some(IMAGE_GPA));
    assert_eq!(file.entry(), IMAGE_GPA);
}

#[test]
fn all_code_decodes() {
    let mut count = 0;
    instructions(&mut |_| count += 1);
    assert!(count > 3000, "{count} instructions, expected the whole guest");
    assert_eq!(offenders(Instruction::is_invalid), NONE);
}

#[test]
fn no_instruction_touches_a_vector_mask_or_x87_register() {
    let refused = |r: Register| {
        r.is_vector_register() || r.is_mm() || r.is_st() || r.is_k() || r.is_tmm() || r.is_bnd()
    };
    let bad = |i: &Instruction| {
        let mut factory = InstructionInfoFactory::new();
        let registers = factory.info(i).used_registers();
        registers.iter().any(|used| refused(used.register()))
            || i.fpu_stack_increment_info().writes_top()
    };
    assert_eq!(offenders(bad), NONE);
}

#[test]
fn no_instruction_is_one_that_an_interpreted_cpl0_lacks_or_gets_wrong() {
    use Mnemonic as M;
    #[rustfmt::skip]
    const REFUSED: &[Mnemonic] = &[
        M::Popcnt, M::Tzcnt, M::Lzcnt, M::Cmpxchg16b, M::Andn, M::Bextr, M::Blsi, M::Blsmsk,
        M::Blsr, M::Bzhi, M::Mulx, M::Pdep, M::Pext, M::Rorx, M::Sarx, M::Shlx, M::Shrx, M::Adcx,
        M::Adox, M::Movbe, M::Crc32, M::Rdtscp, M::Rdpid, M::Xsave, M::Xrstor, M::Xgetbv,
        M::Xsetbv, M::Syscall, M::Vmcall, M::Vmmcall, M::Stac, M::Clac, M::Monitor, M::Mwait,
        M::Clwb, M::Int, M::Int1, M::Invpcid, M::Invlpgb, M::Tlbsync,
    ];
    assert_eq!(offenders(|i| REFUSED.contains(&i.mnemonic())), NONE);
}

#[test]
fn no_instruction_uses_the_red_zone() {
    let bad = |i: &Instruction| {
        // LEA only computes.
        i.mnemonic() != Mnemonic::Lea
            && i.memory_base() == Register::RSP
            && i.memory_index() == Register::None
            && (i.memory_displacement64() as i64) < 0
    };
    assert_eq!(offenders(bad), NONE);
}
