//! A store in which any fields were changed, and every checksum above them was corrected. The code
//! in `tests/it/recovery/structures` interprets the input.

#![no_main]

use libfuzzer_sys::fuzz_target;
use runlog_fuzz::{allow_panics_of_the_index_library, hostile_structures};

fuzz_target!(init: allow_panics_of_the_index_library(), |input: &[u8]| {
    let _ = hostile_structures(input);
});
