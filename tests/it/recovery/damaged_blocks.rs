//! Compressed blocks that cannot be read: each record of them is told, and the bytes of a block are
//! read once or twice, not once for each record.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use runlog::format::frames::block::BLOCK_HEAD_LEN;
use runlog::format::frames::frame::{FRAME_HEADER_LEN, SegmentKey};
use runlog::format::segments::segment::SegmentHeader;
use runlog::format::{EXTENTS_AT, FrameKind};
use runlog::storage::MemoryStorage;
use runlog::{
    Compression, Durability, Error, Follow, LogCursor, LogEventKind, Metadata, NewRecord, Options,
    Outcome, Reader, ReaderOptions,
};
use runlog_sim::SplitMix64;

use crate::support::frames::{EXTENT, frames_in};
use crate::support::reads::OnlyReads;

const RECORDS: u64 = 3_000;

/// Characters that compress to about three quarters, so that a block has bytes.
fn payload(random: &mut SplitMix64) -> Vec<u8> {
    (0..60).map(|_| b'a' + u8::try_from(random.below(26)).unwrap()).collect()
}

/// A compressed run in one block or more.
fn compressed() -> Vec<u8> {
    let storage = Arc::new(MemoryStorage::new());
    let options = Options::new().extent_size(1 << 20).background(false);
    let options = options.compression(Compression::Zstd { level: 1 });
    let log = options.create_storage(storage.clone()).unwrap();
    let mut random = SplitMix64::new(5);
    let metadata = Metadata::new(b"").durability(Durability::Process);
    let run = log.start_run("agent", "run", metadata).unwrap();
    for _ in 0..RECORDS {
        let _ = run.append_record(&NewRecord::new(&payload(&mut random))).unwrap();
    }
    let _ = run.end(&Outcome::completed().durability(Durability::Process)).unwrap();
    let filler = log.start_run("agent", "filler", ()).unwrap();
    while log.stats().unwrap().sealed_segments == 0 {
        let _ = filler.append(&[7; 5_000]).unwrap();
    }
    log.compact().unwrap();
    log.close().unwrap();
    storage.to_bytes()
}

/// The keys of all segments.
fn keys(image: &[u8]) -> Vec<SegmentKey> {
    let starts = (usize::try_from(EXTENTS_AT).unwrap()..image.len()).step_by(EXTENT);
    starts.filter_map(|at| Some(SegmentHeader::decode(&image[at..]).ok()?.key)).collect()
}

/// Changes the payload of each block. With `repaired` the frame counts as whole all the same.
fn with_blocks(image: &[u8], change: impl Fn(&mut [u8]), repaired: bool) -> Vec<u8> {
    let keys = keys(image);
    let frames: Vec<_> = (0..keys.len()).flat_map(|number| frames_in(image, number)).collect();
    let (mut image, mut changed) = (image.to_vec(), 0);
    for (at, mut header) in frames {
        if header.kind != FrameKind::Block {
            continue;
        }
        let from = at.start + FRAME_HEADER_LEN;
        let payload = &mut image[from..from + header.payload_len as usize];
        change(payload);
        if repaired {
            let (name, body) = payload.split_at(usize::from(header.name_len));
            header.set_payload(name, body);
            let key = keys.iter().find(|key| key.id == header.position.segment).unwrap();
            image[at.start..from].copy_from_slice(&header.encode(key.salt));
        }
        changed += 1;
    }
    assert!(changed > 0, "no block");
    image
}

fn counted(image: Vec<u8>) -> (Reader, Arc<AtomicUsize>) {
    let read = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&read);
    let storage = OnlyReads::new(Arc::new(MemoryStorage::from_bytes(image)), move |_, len| {
        counts.fetch_add(len, Ordering::Relaxed);
        Ok(())
    });
    (ReaderOptions::new().open_storage(storage).unwrap(), read)
}

/// All records of the run are lost, one by one.
fn check(what: &str, image: Vec<u8>) {
    let whole = image.len();
    let (reader, read) = counted(image);
    for is_back in [false, true] {
        read.store(0, Ordering::Relaxed);
        let trace = reader.trace("run").unwrap();
        let items: Vec<_> = if is_back { trace.rev().collect() } else { trace.collect() };
        let read = read.load(Ordering::Relaxed);
        assert_eq!(items.len() as u64, RECORDS, "{what}");
        let mut seqs: Vec<_> = items
            .iter()
            .map(|item| match item {
                Err(Error::Corrupt(found)) => found.seq.map(|seq| seq.0),
                item => panic!("{what}: {item:?}"),
            })
            .collect();
        if is_back {
            seqs.reverse();
        }
        assert_eq!(seqs, (0..RECORDS).map(Some).collect::<Vec<_>>(), "{what}");
        // Headers are read for each record, not the block.
        let most = 3 * whole + 400 * items.len();
        println!("{what}, from the back: {is_back}: {read} bytes of at most {most}");
        assert!(read < most, "{what}, from the back: {is_back}: {read} bytes, at most {most}");
    }
    let mut follower = reader.follow(Follow::Everything, LogCursor::START).unwrap();
    read.store(0, Ordering::Relaxed);
    let (mut lost, mut nothing) = (0, 0);
    while nothing < 2 {
        match follower.try_next() {
            Ok(Some(event)) => {
                let is_record = matches!(event.kind, LogEventKind::Record(_));
                assert!(!is_record || event.run.as_str() == "filler", "{what}");
            }
            Ok(None) => nothing += 1,
            Err(Error::Corrupt(found)) => {
                lost += u64::from(found.run.is_some_and(|run| run.as_str() == "run"));
            }
            Err(error) => panic!("{what}: {error}"),
        }
    }
    let read = read.load(Ordering::Relaxed);
    assert_eq!(lost, RECORDS, "{what}");
    let most = 8 * whole + 1_000 * usize::try_from(RECORDS).unwrap();
    println!("{what}, a follower: {read} bytes of at most {most}");
    assert!(read < most, "{what}: a follower read {read} bytes, at most {most}");
}

#[test]
fn each_record_of_a_damaged_block_is_told_and_the_block_is_not_read_for_each() {
    let image = compressed();
    let flip = |at: usize| move |payload: &mut [u8]| payload[at] ^= 1;
    check("compressed bytes", with_blocks(&image, flip(100), false));
    check("compressed bytes, a whole frame", with_blocks(&image, flip(BLOCK_HEAD_LEN), true));
    check("the head", with_blocks(&image, flip(2), false));
    check("the head, a whole frame", with_blocks(&image, flip(2), true));
}
