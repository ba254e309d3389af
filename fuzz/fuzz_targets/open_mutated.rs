//! A valid file with a few changes: each record that comes back is the one that was appended, and
//! the store can be used. With checksums made right the former cannot be expected.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use runlog_fuzz::allow_panics_of_the_index_library;
use runlog_fuzz::checks::repair_file;
use runlog_fuzz::exercise::{SPACE, open_and_use};
use runlog_fuzz::sample::sample;

/// The most that a file grows.
const LONGEST: usize = 4 << 20;

#[derive(Debug, Arbitrary)]
struct Input {
    closed: bool,
    believed: bool,
    mutations: Vec<Mutation>,
}

#[derive(Debug, Arbitrary)]
enum Mutation {
    Write { at: u32, bytes: [u8; 4], len: u8 },
    Flip { at: u32, bit: u8 },
    Zero { at: u32, len: u16 },
    Copy { from: u32, to: u32, len: u16 },
    Cut { len: u32 },
    Extend { len: u16 },
}

impl Mutation {
    fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let total = bytes.len();
        let place = |at: u32| at as usize % total;
        match *self {
            Self::Write { at, bytes: new, len } => {
                let at = place(at);
                let end = (at + usize::from(len) % 5).min(total);
                bytes[at..end].copy_from_slice(&new[..end - at]);
            }
            Self::Flip { at, bit } => bytes[place(at)] ^= 1 << (bit % 8),
            Self::Zero { at, len } => {
                let at = place(at);
                let end = (at + usize::from(len)).min(total);
                bytes[at..end].fill(0);
            }
            Self::Copy { from, to, len } => {
                let (from, to) = (place(from), place(to));
                let len = usize::from(len).min(total - from).min(total - to);
                bytes.copy_within(from..from + len, to);
            }
            Self::Cut { len } => bytes.truncate(place(len)),
            Self::Extend { len } => bytes.resize((total + usize::from(len)).min(LONGEST), 0xee),
        }
    }
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
