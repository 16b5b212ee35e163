//! One payload of each compression, whole, truncated, corrupt and lying.

use std::io::Write;

use super::*;

/// Something to pack: the shape of a tiny kernel, with calls for the x86 filter.
fn kernel() -> Vec<u8> {
    let mut out = b"\x7fELF\x02\x01\x01".to_vec();
    for i in 0..40_000_u32 {
        out.push(0xe8);
        out.extend_from_slice(&(i.wrapping_mul(2_654_435_761) >> (i % 19)).to_le_bytes());
    }
    out
}

fn with_size(mut packed: Vec<u8>, bytes: usize) -> Vec<u8> {
    packed.extend_from_slice(&(bytes as u32).to_le_bytes());
    packed
}

fn pack(compression: Compression, data: &[u8]) -> Vec<u8> {
    let done = "writing to memory cannot fail";
    let packed = match compression {
        Compression::Gzip => {
            let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
            to.write_all(data).expect(done);
            return to.finish().expect(done);
        }
        Compression::Bzip2 => {
            let mut to = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::best());
            to.write_all(data).expect(done);
            to.finish().expect(done)
        }
        Compression::Lzma => {
            let options = lzma_rust2::LzmaOptions::with_preset(6);
            let mut to =
                lzma_rust2::LzmaWriter::new_use_header(Vec::new(), &options, None).expect(done);
            to.write_all(data).expect(done);
            to.finish().expect(done)
        }
        Compression::Xz => {
            let mut options = lzma_rust2::XzOptions::with_preset(6);
            options.set_check_sum_type(lzma_rust2::CheckType::Crc32);
            options.prepend_pre_filter(lzma_rust2::FilterType::BcjX86, 0);
            let mut to = lzma_rust2::XzWriter::new(Vec::new(), options).expect(done);
            to.write_all(data).expect(done);
            to.finish().expect(done)
        }
        Compression::Lz4 => {
            let mut out = 0x184c_2102_u32.to_le_bytes().to_vec();
            let block = lz4_flex::block::compress(data);
            out.extend_from_slice(&(block.len() as u32).to_le_bytes());
            out.extend_from_slice(&block);
            out
        }
        Compression::Zstd => {
            ruzstd::encoding::compress_to_vec(data, ruzstd::encoding::CompressionLevel::Fastest)
        }
        Compression::Lzo => [b"\x89LZO\0\r\n\x1a\n".as_slice(), data].concat(),
    };
    with_size(packed, data.len())
}

const SUPPORTED: [Compression; 6] = [
    Compression::Gzip,
    Compression::Bzip2,
    Compression::Lzma,
    Compression::Xz,
    Compression::Lz4,
    Compression::Zstd,
];

fn refused(payload: &[u8]) -> String {
    unpack("k", payload, MAX_UNPACKED_BYTES).expect_err("refused").to_string()
}

#[test]
fn every_compression_unpacks_to_what_was_packed() {
    let kernel = kernel();
    for compression in SUPPORTED {
        let payload = pack(compression, &kernel);
        assert_eq!(Compression::of(&payload), Some(compression));
        let unpacked = unpack("k", &payload, MAX_UNPACKED_BYTES);
        assert!(unpacked.is_ok_and(|u| u == kernel), "{compression}");
    }
}

#[test]
fn a_truncated_payload_is_refused_with_its_compression() {
    let kernel = kernel();
    for compression in SUPPORTED {
        let payload = pack(compression, &kernel);
        for length in [payload.len() / 2, payload.len() - 5, 12] {
            // The size field is kept: what is missing is the data before it.
            let cut = match compression {
                Compression::Gzip => payload[..length].to_vec(),
                _ => with_size(payload[..length - 4].to_vec(), kernel.len()),
            };
            let text = refused(&cut);
            let bytes = format!("{compression}");
            assert!(text.contains(&bytes) || text.contains("at most"), "{compression}: {text}");
        }
    }
}

#[test]
fn corrupt_data_is_refused_with_its_compression() {
    let kernel = kernel();
    for compression in SUPPORTED {
        let mut payload = pack(compression, &kernel);
        let middle = payload.len() / 2;
        for byte in &mut payload[middle..middle + 16] {
            *byte ^= 0xa5;
        }
        // lz4 and lzma carry no checksum: wrong bytes that have the right length
        // are seen by the ELF checks or by nobody.
        match unpack("k", &payload, MAX_UNPACKED_BYTES) {
            Err(error) => assert!(error.to_string().contains(&compression.to_string())),
            Ok(_) => assert!(matches!(compression, Compression::Lz4 | Compression::Lzma)),
        }
    }
}

#[test]
fn a_size_field_that_lies_is_refused_before_memory_is_used() {
    let kernel = kernel();
    for compression in SUPPORTED {
        let payload = pack(compression, &kernel);
        let data = &payload[..payload.len() - 4];
        let short = refused(&with_size(data.to_vec(), kernel.len() - 1));
        assert!(short.contains(&compression.to_string()), "{short}");
        // The checksum of gzip covers its size field, the others are compared.
        let long = refused(&with_size(data.to_vec(), kernel.len() + 1));
        assert!(long.contains(&compression.to_string()), "{long}");
        let huge = refused(&with_size(data.to_vec(), u32::MAX as usize));
        assert!(huge.contains("4294967295 bytes"), "{huge}");
        let text = unpack("k", &payload, 4096).expect_err("more than fits").to_string();
        assert!(text.contains("at most 4096"), "{text}");
    }
}

#[test]
fn a_dictionary_beyond_the_bound_is_refused() {
    let mut payload = pack(Compression::Lzma, &kernel());
    payload[1..5].copy_from_slice(&[0, 0, 0xff, 0xff]);
    assert!(refused(&payload).contains("lzma"), "{}", refused(&payload));
    // The window descriptor of a frame without a stated content size.
    let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xf8, 1, 0, 0];
    assert!(refused(&with_size(frame.to_vec(), 0)).contains("zstd"));
}

#[test]
fn unknown_and_unsupported_compressions_are_named() {
    assert!(refused(b"\0\x01\x02\x03\x04\x05\x06").contains("00 01 02 03 04 05"));
    assert!(refused(b"").contains("begins with []"));
    let lzo = refused(&pack(Compression::Lzo, &kernel()));
    assert!(lzo.contains("LZO is not supported"), "{lzo}");
}
