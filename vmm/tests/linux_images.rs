//! Linux images that must be refused, each by its own message, through the public
//! functions; and those that must be found.

use pvtlb::boot::linux::unpack::MAX_UNPACKED_BYTES;
use pvtlb::boot::linux::{LinuxBoot, bzimage, is_linux};

mod support;
use support::{bzimage as build, elf};

const MEMORY: u64 = 64 << 20;

fn refused(image: Vec<u8>) -> String {
    LinuxBoot::open("k", image, MEMORY).expect_err("refused").to_string()
}

#[test]
fn a_bzimage_gives_back_the_elf_that_was_packed_in_it() {
    let kernel = elf(&[0xf4; 64]);
    let image = build(&kernel);
    assert!(is_linux(&image));
    let boot = LinuxBoot::open("k", image, MEMORY).expect("unpacks");
    assert_eq!(boot.elf, kernel);
    assert_eq!(boot.compression.map(|c| c.to_string()).as_deref(), Some("gzip"));
    let header = boot.header.expect("a bzImage has one");
    assert_eq!({ header.cmdline_size }, 2047);
}

#[test]
fn only_an_elf_with_a_note_of_linux_or_xen_is_taken_for_linux() {
    let bare = elf(&[0xf4; 64]);
    assert!(!is_linux(&bare));
    for (owner, linux) in [(&b"Linux\0"[..], true), (b"Xen\0", true), (b"GNU\0", false)] {
        let mut code = owner.to_vec();
        code.resize(64, 0xf4);
        let mut noted = elf(&code);
        // The one segment becomes a note.
        noted[64] = 4;
        assert_eq!(is_linux(&noted), linux);
        noted[64] = 1;
        assert!(!is_linux(&noted), "bytes of a loadable segment are no note");
    }
    for junk in [&b""[..], b"\x7fELF", &[0; 600]] {
        assert!(!is_linux(junk));
    }
}

#[test]
fn a_truncated_bzimage_is_refused_wherever_it_ends() {
    let image = build(&elf(&[0xf4; 64]));
    for length in 0x206..image.len() {
        let text = refused(image[..length].to_vec());
        assert!(text.contains("truncated") || text.contains("bzImage"), "{length}: {text}");
    }
}

#[test]
fn wrong_fields_of_the_setup_header_are_named() {
    let image = build(&elf(&[0xf4; 64]));
    let with = |at: usize, bytes: &[u8]| {
        let mut image = image.clone();
        image[at..at + bytes.len()].copy_from_slice(bytes);
        image
    };
    assert!(refused(with(0x206, &[0x05, 0x02])).contains("2.05"));
    assert!(refused(with(0x236, &[0, 0])).contains("64-bit entry"));
    assert!(refused(with(0x248, &[0xff; 4])).contains("truncated"));
    assert!(refused(with(0x24c, &[0xff; 4])).contains("truncated"));
    assert!(refused(with(0x24c, &[0; 4])).contains("begins with []"));
    // A header that says to end before these fields leaves them zero.
    assert!(refused(with(0x201, &[4])).contains("boot protocol"));
    assert!(bzimage::parse("k", b"MZ").is_err_and(|e| e.to_string().contains("HdrS")));
}

#[test]
fn a_kernel_larger_than_memory_is_refused_by_its_size_field() {
    let image = build(&vec![0; 3 << 20]);
    let error = LinuxBoot::open("k", image, 2 << 20).expect_err("too large").to_string();
    assert!(error.contains("3145728 bytes") && error.contains("at most 2097152"), "{error}");
    const { assert!(MAX_UNPACKED_BYTES <= 1 << 30) };
}
