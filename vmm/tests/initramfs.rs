//! The archive that a Linux guest starts from is one that a kernel can unpack.
//!
//! No state; read back by the crate's own reader, which checks the format.

use cpio::newc;
use pvtlb::initramfs::{AGENT, AddedFile, build};

/// Name, mode, device and content of each entry.
type Entry = (String, u32, (u32, u32), Vec<u8>);

fn entries(archive: &[u8]) -> Vec<Entry> {
    let mut rest = archive;
    let mut entries = Vec::new();
    loop {
        let reader = newc::Reader::new(rest).unwrap();
        if reader.entry().is_trailer() {
            return entries;
        }
        let entry = reader.entry().clone();
        let mut content = Vec::new();
        rest = reader.to_writer(&mut content).unwrap();
        let device = (entry.rdev_major(), entry.rdev_minor());
        entries.push((entry.name().to_owned(), entry.mode(), device, content));
    }
}

#[test]
fn it_holds_the_agent_as_init_and_a_console() {
    let entries = entries(&build(&[]).unwrap());
    let names: Vec<_> = entries.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, ["dev", "dev/console", "init"]);
    assert_eq!((entries[0].1, entries[1].1, entries[2].1), (0o040_755, 0o020_600, 0o100_755));
    assert_eq!(entries[1].2, (5, 1));
    assert_eq!(entries[2].3, AGENT);
}

#[test]
fn added_files_come_after_their_folders_and_keep_their_content() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let file: AddedFile = format!("{source}:/lib/modules/a.toml").parse().unwrap();
    let entries = entries(&build(&[file]).unwrap());
    let names: Vec<_> = entries[3..].iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, ["lib", "lib/modules", "lib/modules/a.toml"]);
    assert_eq!(entries[5].3, std::fs::read(source).unwrap());
}

#[test]
fn the_agent_needs_no_file_beside_it() {
    let elf = object::read::elf::ElfFile64::<object::Endianness>::parse(AGENT).unwrap();
    let segments = elf.elf_program_headers();
    let interpreter =
        segments.iter().any(|segment| segment.p_type.get(elf.endian()) == object::elf::PT_INTERP);
    assert!(!segments.is_empty() && !interpreter);
}
