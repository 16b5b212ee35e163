//! Images that must be refused, each by its own message, and one that loads.

use super::*;
use crate::memory::MIN_BYTES;

/// An ELF with the given segments (physical address, bytes in file, in memory).
fn image(entry: u64, segments: &[(u64, u64, u64)]) -> Vec<u8> {
    let mut header = elf::Elf64_Ehdr::default();
    header.e_ident[..6].copy_from_slice(b"\x7fELF\x02\x01");
    header.e_machine = EM_X86_64;
    header.e_entry = entry;
    header.e_phoff = 64;
    header.e_ehsize = 64;
    header.e_phentsize = 56;
    header.e_phnum = segments.len() as u16;
    let mut out = header.as_slice().to_vec();
    let data = 64 + 56 * segments.len() as u64;
    for (gpa, in_file, in_memory) in segments {
        let program = elf::Elf64_Phdr {
            p_type: elf::PT_LOAD,
            p_offset: data,
            p_paddr: *gpa,
            p_vaddr: *gpa,
            p_filesz: *in_file,
            p_memsz: *in_memory,
            ..elf::Elf64_Phdr::default()
        };
        out.extend_from_slice(program.as_slice());
    }
    out.resize(data as usize + 64, 0x90);
    out
}

fn refused(image: &[u8]) -> String {
    let memory = GuestMemory::new(MIN_BYTES).expect("map");
    load("k", image, &memory).expect_err("refused").to_string()
}

#[test]
fn a_sound_image_loads_at_its_physical_addresses() {
    let memory = GuestMemory::new(MIN_BYTES).expect("map");
    let image = image(IMAGE_GPA + 4, &[(IMAGE_GPA, 64, 0x2000)]);
    let loaded = load("k", &image, &memory).expect("loads");
    assert_eq!((loaded.entry, loaded.end), (IMAGE_GPA + 4, IMAGE_GPA + 0x2000));
}

#[test]
fn what_is_not_an_elf_for_this_machine_is_refused() {
    assert!(refused(b"").contains("begins with []"));
    assert!(refused(b"MZ\0\0").contains("4d 5a"));
    assert!(refused(b"\x7fELF\x02\x01").contains("truncated"));
    let mut other = image(IMAGE_GPA, &[(IMAGE_GPA, 64, 64)]);
    other[18] = 183;
    assert!(refused(&other).contains("machine 183, expected 62"));
    other[4] = 1;
    assert!(refused(&other).contains("class 1"));
    assert!(refused(&image(IMAGE_GPA, &[])).contains("0 program headers"));
}

#[test]
fn a_truncated_image_is_refused_wherever_it_ends() {
    let whole = image(IMAGE_GPA, &[(IMAGE_GPA, 64, 64)]);
    for len in 0..whole.len() {
        let text = refused(&whole[..len]);
        assert!(text.contains("truncated") || len < 4, "{len}: {text}");
    }
}

#[test]
fn segments_outside_memory_or_over_each_other_are_refused() {
    let at = |gpa| refused(&image(gpa, &[(gpa, 64, 64)]));
    assert!(at(0x1000).contains("boot tables"));
    assert!(at(MIN_BYTES).contains("leaves low guest memory"));
    assert!(at(u64::MAX - 8).contains("wraps around"));
    let twice = image(IMAGE_GPA, &[(IMAGE_GPA, 64, 0x1000), (IMAGE_GPA + 0xfff, 64, 64)]);
    assert!(refused(&twice).contains("overlaps segment 0"));
    assert!(refused(&image(IMAGE_GPA, &[(IMAGE_GPA, 64, 8)])).contains("more bytes in the file"));
}

#[test]
fn an_entry_outside_every_segment_is_refused() {
    let text = refused(&image(IMAGE_GPA + 64, &[(IMAGE_GPA, 64, 64)]));
    assert!(text.contains("Entry 0x200040"), "{text}");
}
