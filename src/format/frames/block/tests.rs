//! The bytes of blocks, which every later version reads.

use super::*;
use crate::format::frames::compression::Compressor;
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

fn open(block: &FrameHeader, payload: &[u8]) -> Decoded<(Vec<u8>, Vec<BlockRow>)> {
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
