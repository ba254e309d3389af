//! A valid file with a few changes: each record that is read is one that was appended, and the
//! store is usable. With corrected checksums the former cannot be expected.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use runlog_fuzz::allow_panics_of_the_index_library;
use runlog_fuzz::checks::repair_file;
use runlog_fuzz::exercise::{SPACE, open_and_use};
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
    open_and_use(bytes, |agent, run, seq, payload| {
        if agent == SPACE && !input.believed {
            let written = payload == b"written together" || payload == b"new";
            let same = payload.iter().all(|byte| Some(byte) == payload.first());
            assert!(written || same, "document {run} is as some write left it");
        }
        let Some(payloads) = sample.runs.get(&(agent.to_owned(), run.to_owned())) else { return };
        if !input.believed {
            let expected = payloads.get(seq as usize).map(Vec::as_slice);
            assert_eq!(Some(payload), expected, "record {seq} of {run} is as it was appended");
        }
    });
});
