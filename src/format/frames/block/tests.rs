//! Blocks and compressed chunks: what comes back, and what is damage.

use super::*;
use crate::format::codec::flips;
use crate::format::frames::compression::{Compressor, ZSTD, absent};
use crate::types::{LogPosition, RunNo, SegmentId};

/// The header of a record's frame.
fn record(seq: u64, lsn: u64, at: i64, late: bool, kind: &[u8], bytes: &[u8]) -> FrameHeader {
    let mut header = FrameHeader::new(FrameKind::Record, RunNo(9), Timestamp(at));
    header.flags = if late { FLAG_LATE } else { 0 };
    header.content = ContentType::JSON;
    header.set_payload(kind, bytes);
    (header.seq, header.lsn) = (Seq(seq), Lsn(lsn));
    header.position = LogPosition { segment: SegmentId(3), offset: 640 };
    header
}

/// Headers of frames, with their payloads.
type Frames = Vec<(FrameHeader, Vec<u8>)>;

/// A block of three records, and their headers, kinds and bytes.
fn sample() -> (FrameHeader, Vec<u8>, Frames) {
    let long = b"again and ".repeat(60);
    let records = [
        (record(4, 70, 1_000, false, b"turn", b"{}"), b"turn{}".to_vec()),
        (record(5, 71, 500, false, b"", &long), long.clone()),
        (record(6, 90, i64::MAX, true, b"end", b""), b"end".to_vec()),
    ];
    let mut builder = BlockBuilder::default();
    for (header, stored) in &records {
        assert!(builder.takes(header, BLOCK_RAW));
        builder.push(header, stored);
    }
    let mut compressor = Compressor::new(3).unwrap();
    let (mut block, payload) = builder.finish(&mut compressor, 1_000).unwrap();
    assert!(builder.is_empty());
    block.position = LogPosition { segment: SegmentId(3), offset: 640 };
    (block, payload, records.to_vec())
}

fn open(block: &FrameHeader, payload: &[u8]) -> Result<(Vec<u8>, Vec<BlockRow>), Unreadable> {
    let (mut raw, mut rows) = (Vec::new(), Vec::new());
    let (head, compressed) = BlockHead::decode(block, payload)?;
    head.open(block, compressed, &mut raw, &mut rows)?;
    Ok((raw, rows))
}

fn assert_sample(block: &FrameHeader, payload: &[u8], records: &[(FrameHeader, Vec<u8>)]) {
    let (raw, rows) = open(block, payload).unwrap();
    assert_eq!(rows.len(), records.len());
    for (rank, (row, (header, stored))) in (0..).zip(rows.iter().zip(records)) {
        assert_eq!(row.header(block, rank), *header);
        assert_eq!(row.bytes(&raw), Ok(stored.as_slice()));
    }
}

#[test]
fn records_come_out_of_a_block_as_they_went_into_it() {
    let (block, payload, records) = sample();
    assert_eq!((block.seq, block.lsn, block.extra), (Seq(4), Lsn(70), 3));
    assert_eq!(block.at, Timestamp(i64::MAX));
    let (head, _) = BlockHead::decode(&block, &payload).unwrap();
    assert_eq!((head.last_lsn, head.bytes, head.late), (Lsn(90), 602, 1));
    assert_sample(&block, &payload, &records);
}

/// The bytes of a block, which every later version must read. Those behind the first 40 are up
/// to the version of zstd that wrote them.
const GOLDEN: &str = concat!(
    "010000009302000032000000d35d40fe5a000000000000005a0200000000000001000000b46f7996",
    "28b52ffd6093012d0200940300adf0ff01000104064aa2437101e707000100d80469bcad741396f8",
    "ff0102010303b133fc007475726e7b7d616761696e20616e6420656e6403002d69a92330f000b2",
);

#[test]
fn a_block_that_was_written_long_ago_is_read() {
    let (block, written, records) = sample();
    let golden: Vec<u8> = (0..GOLDEN.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&GOLDEN[at..at + 2], 16).unwrap())
        .collect();
    assert_sample(&block, &golden, &records);
    assert_eq!(written[..BLOCK_HEAD_LEN], golden[..BLOCK_HEAD_LEN]);
}

#[test]
fn no_flipped_bit_makes_other_records_of_a_block() {
    let (block, payload, records) = sample();
    for (bit, flipped) in flips(&payload, payload.len()) {
        let Ok((raw, rows)) = open(&block, &flipped) else { continue };
        for (rank, (row, (header, stored))) in (0..).zip(rows.iter().zip(&records)) {
            assert_eq!(row.header(&block, rank), *header, "bit {bit}");
            if let Ok(bytes) = row.bytes(&raw) {
                assert_eq!(bytes, stored, "bit {bit}");
            }
        }
    }
}

#[test]
fn a_head_is_read_without_the_codec_and_the_rest_is_refused_with_its_name() {
    let (block, payload, _) = sample();
    absent::during(|| {
        assert!(BlockHead::decode(&block, &payload).is_ok());
        assert_eq!(open(&block, &payload), Err(Unreadable::NeedsFeature("zstd")));
    });
}

#[test]
fn lengths_above_the_limits_are_refused_before_anything_is_allocated() {
    let block = FrameHeader { extra: 1, ..record(0, 1, 0, false, b"", b"") };
    let sane = BlockHead {
        codec: ZSTD,
        raw_len: 20,
        rows_len: 10,
        rows_crc: 0,
        last_lsn: Lsn(1),
        bytes: 10,
        late: 0,
    };
    let read = |block: &FrameHeader, head: BlockHead| {
        BlockHead::decode(block, &head.encode()).map(|(head, _)| head)
    };
    assert_eq!(read(&block, sane), Ok(sane));
    let too_long = [
        BlockHead { raw_len: MAX_BLOCK_RAW + 1, ..sane },
        BlockHead { raw_len: u32::MAX, rows_len: u32::MAX, ..sane },
        BlockHead { rows_len: 21, ..sane },
        BlockHead { late: 2, ..sane },
    ];
    for head in too_long {
        assert!(matches!(read(&block, head), Err(Damage::OutOfRange { .. })), "{head:?}");
    }
    let many = FrameHeader { extra: MAX_BLOCK_RECORDS + 1, ..block };
    assert!(matches!(read(&many, sane), Err(Damage::OutOfRange { .. })));
    for (block, head) in [
        (FrameHeader { extra: 0, ..block }, sane),
        (block, BlockHead { bytes: 11, ..sane }),
        (block, BlockHead { last_lsn: Lsn(0), ..sane }),
    ] {
        assert_eq!(read(&block, head), Err(Damage::Mismatch));
    }
    let mut chunk = vec![ZSTD, 0, 0, 0];
    chunk.extend_from_slice(&(MAX_CHUNK_RAW + 1).to_le_bytes());
    chunk.extend_from_slice(&[0; 40]);
    let refused = unpack_chunk(&chunk, u64::MAX, &mut Vec::new());
    assert!(matches!(refused, Err(Unreadable::Damaged(Damage::OutOfRange { .. }))));
}

#[test]
fn a_block_takes_the_next_record_of_its_run_only() {
    let mut builder = BlockBuilder::default();
    builder.push(&record(4, 70, 0, false, b"", b"one"), b"one");
    let next = record(5, 71, 0, false, b"", b"two");
    assert!(builder.takes(&next, 1_000));
    assert!(!builder.takes(&next, 20), "it is full");
    assert!(!builder.takes(&FrameHeader { seq: Seq(6), ..next }, 1_000));
    assert!(!builder.takes(&FrameHeader { lsn: Lsn(70), ..next }, 1_000));
    assert!(!builder.takes(&FrameHeader { run_no: RunNo(8), ..next }, 1_000));
}

#[test]
fn numbers_are_read_in_their_shortest_form_only() {
    for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
        let mut bytes = Vec::new();
        put_varint(value, &mut bytes);
        let mut reader = Reader::new(&bytes);
        assert_eq!(varint(&mut reader), Ok(value));
        assert!(reader.rest().is_empty());
        assert!(varint(&mut Reader::new(&bytes[..bytes.len() - 1])).is_err());
    }
    for long in [&[0x80, 0][..], &[0xff; 11], &[0xff; 9], &[0x81, 0x80, 0]] {
        assert!(varint(&mut Reader::new(long)).is_err(), "{long:?}");
    }
    for value in [0, 1, -1, i64::MAX, i64::MIN] {
        assert_eq!(unzigzag(zigzag(value)), value);
    }
}

#[test]
fn a_chunk_comes_back_and_grows_by_no_more_than_it_may() {
    let raw = b"a chunk of a large record ".repeat(400);
    let mut compressor = Compressor::new(3).unwrap();
    let crc = crc32fast::hash(&raw);
    let packed = pack_chunk(&mut compressor, &raw, crc, raw.len()).unwrap();
    let mut out = b"kind".to_vec();
    assert_eq!(unpack_chunk(&packed, raw.len() as u64, &mut out), Ok(()));
    assert_eq!(out.strip_prefix(b"kind"), Some(raw.as_slice()));
    let refused = unpack_chunk(&packed, raw.len() as u64 - 1, &mut Vec::new());
    assert_eq!(refused, Err(Unreadable::Damaged(Damage::Mismatch)));
    for (bit, flipped) in flips(&packed, packed.len()) {
        let mut out = Vec::new();
        if unpack_chunk(&flipped, u64::MAX, &mut out).is_ok() {
            assert_eq!(out, raw, "bit {bit}");
        }
    }
}
