//! Any bytes as a file: opening them returns an error or a usable store.
//!
//! The first byte chooses how the others are used: as the file; over the front of a valid file; or
//! in the same way with corrected checksums, so that they are trusted.

#![no_main]

use libfuzzer_sys::fuzz_target;
use runlog_fuzz::allow_panics_of_the_index_library;
use runlog_fuzz::checks::repair_file;
use runlog_fuzz::exercise::open_and_use;
use runlog_fuzz::sample::sample;

/// The shortest file that can be a store.
const SHORTEST: usize = 64 << 10;

fuzz_target!(init: allow_panics_of_the_index_library(), |data: &[u8]| {
    let Some((&choice, rest)) = data.split_first() else { return };
    let mut bytes = if choice & 1 == 0 { Vec::new() } else { sample().killed.clone() };
    let at = usize::from(choice >> 4) * 4096;
    bytes.resize(bytes.len().max(at + rest.len()).max(SHORTEST), 0);
    bytes[at..at + rest.len()].copy_from_slice(rest);
    if choice & 2 != 0 {
        repair_file(&mut bytes);
    }
    open_and_use(bytes, |_, _, _, _| ());
});
