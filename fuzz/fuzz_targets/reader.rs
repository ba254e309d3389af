//! A damaged file, read by a process that only reads: it answers what a process answers that opens
//! the file to write, or refuses it too; a follower ends; a copy fails or opens.
//! With corrected checksums agreement cannot be expected.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use runlog_fuzz::agreement::read_and_compare;
use runlog_fuzz::allow_panics_of_the_index_library;
use runlog_fuzz::checks::repair_file;
use runlog_fuzz::mutation::Mutation;
use runlog_fuzz::sample::sample;

#[derive(Debug, Arbitrary)]
struct Input {
    closed: bool,
    believed: bool,
    mutations: Vec<Mutation>,
}

fuzz_target!(init: allow_panics_of_the_index_library(), |input: Input| {
    let sample = sample();
    let mut bytes = if input.closed { sample.closed.clone() } else { sample.killed.clone() };
    for mutation in input.mutations.iter().take(16) {
        mutation.apply(&mut bytes);
    }
    if input.believed {
        repair_file(&mut bytes);
    }
    read_and_compare(bytes, !input.believed);
});
