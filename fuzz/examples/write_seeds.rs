//! Writes the seed inputs anew: `cargo run --example write_seeds` in the folder `fuzz`.

use std::path::Path;

use runlog::format::segments::directory::{DIRECTORY_MAGIC, TRAILER_LEN};
use runlog::format::{EXTENTS_AT, MANIFEST_AT, OWNER_AT, SUPERBLOCK_AT, map::owner};
use runlog::{Owner, Timestamp};
use runlog_fuzz::sample::sample;

fn main() -> std::io::Result<()> {
    let mut file = sample().closed.clone();
    // Whatever machine this runs on, the seeds are the same.
    let owner = Owner::new(1, "host", Timestamp(0));
    let page = owner::encode(&owner);
    file[OWNER_AT as usize..][..page.len()].copy_from_slice(&page);
    let part = |at: u64, len: usize| file[at as usize..at as usize + len].to_vec();
    let pages = [
        part(0, 84),
        part(SUPERBLOCK_AT, 156),
        part(OWNER_AT, 284),
        part(MANIFEST_AT, 64),
        part(EXTENTS_AT, 64),
        part(MANIFEST_AT + 64, 40),
        part(MANIFEST_AT, 64 + 12 * 40),
        part(EXTENTS_AT + 64, 400),
        part(EXTENTS_AT + 64 + 48, 200),
        part(EXTENTS_AT + 64 + 48, 200),
        directory(&file).to_vec(),
    ];
    for (number, page) in (0_u8..).zip(&pages) {
        write("decoders", &format!("structure-{number}"), number << 1, page)?;
        write("decoders", &format!("repaired-{number}"), number << 1 | 1, page)?;
    }
    for (number, block) in (0_u8..).zip([0_usize, 1, 2, 4, 10]) {
        let page = part(block as u64 * 4096, 300);
        write("open_any", &format!("front-{number}"), (block as u8) << 4 | 3, &page)?;
    }
    write("open_any", "whole-front", 0, &file[..(MANIFEST_AT + 400) as usize])?;
    let text = b"{\"role\":\"assistant\",\"text\":\"I read it, and run the tests.\"}\n".repeat(4);
    let quarter = u8::try_from(text.len() / 4).expect("it is short");
    for (choice, bytes) in [(0, &zstd::bulk::compress(&text, 3)?), (3, &text), (4, &text)] {
        write("compression", &format!("text-{choice}"), choice, &[&[quarter, 0], &bytes[..]].concat())?;
    }
    let mut state = 7_u64;
    for target in ["ops", "open_mutated", "salvage", "reader"] {
        for number in 0..12 {
            let mut bytes = vec![0; 40 + 30 * number];
            for byte in &mut bytes {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = (state >> 56) as u8;
            }
            write(target, &format!("random-{number}"), number as u8 & 1, &bytes)?;
        }
    }
    Ok(())
}

/// The directory of the first sealed segment.
fn directory(file: &[u8]) -> &[u8] {
    let magic = |bytes: &[u8]| bytes == DIRECTORY_MAGIC;
    let trailer = file.windows(DIRECTORY_MAGIC.len()).position(magic).expect("one is sealed");
    let word = |at: usize| -> usize {
        u32::from_le_bytes(file[trailer + at..][..4].try_into().expect("four bytes")) as usize
    };
    let (places, runs, evictions, sections) = (word(8), word(12), word(16), word(20));
    let front = places + 12 * runs + 16 * evictions + sections;
    &file[trailer - front..trailer + TRAILER_LEN]
}

fn write(target: &str, name: &str, first: u8, rest: &[u8]) -> std::io::Result<()> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    std::fs::create_dir_all(&dir)?;
    let mut bytes = vec![first];
    bytes.extend_from_slice(rest);
    std::fs::write(dir.join(name), bytes)
}
