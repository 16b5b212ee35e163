//! Fuzz targets: whatever bytes a kernel file has, finding, unpacking and loading it
//! answers, and what is answered stays inside the bounds.
//!
//! They run as ordinary tests for a moment each. `BOLERO_RANDOM_ITERATIONS` or
//! `BOLERO_RANDOM_TEST_TIME_MS` makes them run longer, and `--nocapture` shows how
//! many inputs each has seen and accepted. No state is shared but these counters and
//! the guest memory that images are loaded into.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};

use pvtlb::boot::image;
use pvtlb::boot::linux::unpack::{Compression, unpack};
use pvtlb::boot::linux::{LinuxBoot, bzimage, is_linux};
use pvtlb::memory::{GuestMemory, MIN_BYTES};

use support::{bzimage as build, elf};

/// Changes to a sound file: (place, new byte), and where it ends.
type Damage = (Vec<(u16, u8)>, u16);

fn damaged(sound: &[u8], (changes, length): &Damage) -> Vec<u8> {
    let mut image = sound.to_vec();
    for (at, byte) in changes.iter().take(8) {
        let at = usize::from(*at) % image.len();
        image[at] = *byte;
    }
    // Half of the inputs keep their length.
    if length & 1 == 0 {
        image.truncate(usize::from(*length) % (image.len() + 1));
    }
    image
}

/// Runs `target`, which says whether it accepted the input, on damaged copies of
/// `sound`.
fn fuzz(name: &str, sound: &[u8], target: fn(&[u8]) -> bool) {
    let (seen, accepted) = (AtomicU64::new(0), AtomicU64::new(0));
    bolero::check!(name = name).with_type::<Damage>().for_each(|damage: &Damage| {
        seen.fetch_add(1, Ordering::Relaxed);
        accepted.fetch_add(target(&damaged(sound, damage)).into(), Ordering::Relaxed);
    });
    let (seen, accepted) = (seen.into_inner(), accepted.into_inner());
    eprintln!("{name}: {seen} inputs, {accepted} accepted");
    assert!(seen < 1_000 || accepted > 0, "no input got past the checks");
}

thread_local! {
    static MEMORY: GuestMemory = GuestMemory::new(MIN_BYTES).expect("map");
}

#[test]
fn elf_files_are_loaded_inside_memory_or_refused() {
    let mut sound = elf(&[0xf4; 64]);
    // A second header, a note with a PVH entry, behind the code.
    sound[56] = 2;
    let note = [4_u32.to_le_bytes(), 4_u32.to_le_bytes(), 18_u32.to_le_bytes(), *b"Xen\0"];
    let headers = sound.len() as u64;
    let mut program = sound[64..120].to_vec();
    sound[32..40].copy_from_slice(&headers.to_le_bytes());
    sound.extend_from_slice(&program.clone());
    program[0] = 4;
    program[8..16].copy_from_slice(&(headers + 112).to_le_bytes());
    program[32..40].copy_from_slice(&20_u64.to_le_bytes());
    sound.extend_from_slice(&program);
    sound.extend_from_slice(note.as_flattened());
    sound.extend_from_slice(&0x20_0000_u32.to_le_bytes());
    assert!(is_linux(&sound));
    fuzz("elf", &sound, |bytes| {
        let _ = is_linux(bytes);
        MEMORY.with(|memory| match image::load("k", bytes, memory) {
            Ok(loaded) => {
                assert!(loaded.end <= MIN_BYTES && loaded.entry < loaded.end);
                assert!(loaded.pvh_entry.is_none_or(|entry| entry < loaded.end));
                true
            }
            Err(_) => false,
        })
    });
}

#[test]
fn setup_headers_lead_to_a_payload_inside_the_file_or_are_refused() {
    let sound = build(&elf(&[0xf4; 64]));
    fuzz("setup header", &sound, |bytes| match bzimage::parse("k", bytes) {
        Ok(found) => {
            assert!(found.payload.len() <= bytes.len());
            true
        }
        Err(_) => false,
    });
}

#[test]
fn bzimages_unpack_within_their_bound_or_are_refused() {
    const BOUND: u64 = 4096;
    let sound = build(&elf(&[0xf4; 64]));
    fuzz("bzimage", &sound, |bytes| match LinuxBoot::open("k", bytes.to_vec(), BOUND) {
        Ok(boot) => {
            assert!(boot.elf.len() as u64 <= BOUND || boot.compression.is_none());
            true
        }
        Err(_) => false,
    });
}

/// The decoders themselves: sound streams of 32 bytes, damaged.
#[test]
fn decoders_answer_any_stream_within_the_bound() {
    const BOUND: u64 = 1 << 16;
    let target = |bytes: &[u8]| match unpack("k", bytes, BOUND) {
        Ok(out) => {
            assert!(out.len() as u64 <= BOUND);
            true
        }
        Err(_) => false,
    };
    for (compression, stream) in support::streams(&[0x90; 32]) {
        assert_eq!(Compression::of(&stream), Some(compression));
        assert!(target(&stream), "{compression}");
        fuzz(&compression.to_string(), &stream, target);
    }
}
