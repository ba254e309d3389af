//! Any bytes for the decoder, which must agree with that of the C library; and for the encoder of
//! each level, whose frames both decoders must read.

#![no_main]

use libfuzzer_sys::fuzz_target;
use runlog::format::frames::compression::{Compressor, ZSTD, decompress};

/// The longest output.
const MOST: usize = 256 << 10;

fuzz_target!(|data: &[u8]| {
    let Some((&[choice, low, high], rest)) = data.split_first_chunk() else { return };
    if choice % 5 == 0 {
        let len = usize::from(u16::from_le_bytes([low, high])) * 4;
        let mut out = Vec::new();
        let done = decompress(ZSTD, rest, len, &mut out);
        assert!(out.len() <= len && out.capacity() < MOST + (512 << 10));
        // The C library accepts several frames, and frames with skipped bytes.
        let by_c = zstd::bulk::decompress(rest, len);
        if done.is_ok() && by_c.is_ok() {
            assert!(by_c.is_ok_and(|raw| raw == out));
        }
        return;
    }
    // Bytes that repeat themselves have more to find.
    let times = usize::from(low) + 1;
    let raw: Vec<u8> = rest.iter().copied().cycle().take((rest.len() * times).min(MOST)).collect();
    let (mut packed, mut back) = (Vec::new(), Vec::new());
    let mut compressor = Compressor::new(i32::from(choice % 5)).expect("each build has it");
    assert!(compressor.compress(&raw, raw.len() + 1024, &mut packed), "it fits");
    decompress(ZSTD, &packed, raw.len(), &mut back).expect("it was written just now");
    assert!(back == raw);
    assert!(zstd::bulk::decompress(&packed, raw.len()).is_ok_and(|by_c| by_c == raw));
});
