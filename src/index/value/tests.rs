//! Values of the index: their bytes, and what is damage.

use proptest::prelude::*;

use super::*;
use crate::index::tables::key::State;
use crate::types::RunNo;

fn row() -> RunRow {
    RunRow {
        run_no: RunNo(258),
        agent: AgentId::new("planner").unwrap(),
        run: RunId::new("run-7").unwrap(),
        document: false,
        created_at: Timestamp(-2),
        started_at: Some(Timestamp(1)),
        start: Some(LogPosition::default()),
        ended_at: None,
        end: None,
        end_lsn: Lsn(0),
        hold: Some(HOLD),
        status: RunStatus::InProgress,
        records: 5,
        late: 1,
        bytes: 350,
        stored: 630,
        next_seq: Seq(5),
        last_at: Timestamp(40),
        segments: vec![SegmentId(3), SegmentId(0x0102)],
    }
}

const HOLD: Hold =
    Hold { at: LogPosition { segment: SegmentId(0), offset: 0 }, lsn: Lsn(6), held: true };

fn hex(bytes: &[u8]) -> String {
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(digit).collect()
}

fn digit(value: u8) -> char {
    char::from_digit(value.into(), 16).unwrap()
}

#[test]
fn the_bytes_of_a_row_are_these() {
    let expected = [
        "0700000000000000",
        "706c616e6e6572", // agent
        "0500000000000000",
        "72756e2d37",       // run
        "feffffffffffffff", // created_at
        "01",
        "0100000000000000", // started_at
        "00",               // ended_at
        "0000000000000000", // end_lsn
        "01",
        "0600000000000000",
        "01", // hold: lsn, held
        "00", // status
        "0500000000000000",
        "0100000000000000", // records, late
        "5e01000000000000",
        "7602000000000000", // bytes, stored
        "0500000000000000",
        "2800000000000000", // next_seq, last_at
        "00",               // document
        "0800000000000000",
        "03000000",
        "02010000", // segments
    ];
    let value = row_value(&row());
    let (body, stored) = value.split_last_chunk::<4>().unwrap();
    assert_eq!(hex(body), expected.concat());
    let covered = [&[2], &[0, 0, 0, 0, 0, 0, 1, 2][..], body].concat();
    assert_eq!(u32::from_le_bytes(*stored), crc32fast::hash(&covered));
    assert_eq!(hex(stored), "4c88ad46");
}

#[test]
fn the_bytes_of_the_other_values_are_these() {
    assert_eq!(hex(&agent_value("planner", 3)), "03000000000000006ec4ee68");
    let applied = Applied { log: Some(SegmentId(9)), outputs: Some(SegmentId(12)) };
    let meta = Meta { uuid: [0xAB; 16], schema: 2, applied, runs: 2 };
    let expected = [
        &"ab".repeat(16),
        "02000000",
        "01",
        "09000000",
        "01",
        "0c000000",
        "0200000000000000",
        "e5ecf5ff",
    ];
    assert_eq!(hex(&meta_value(b"index", &meta)), expected.concat());
    let state = State { status: RunStatus::Failed, held: true };
    let by_state = key::state_key(None, state, (Timestamp(-2), RunNo(258)));
    assert_eq!(hex(&by_state), "0a7ffffffffffffffe0000000000000102");
    assert_eq!(hex(&mark(Table::ByState, &by_state)), "7bf14f6c");
}

#[test]
fn the_bytes_of_a_stamp_and_of_its_key_are_these() {
    let (segment, stamp) = (SegmentId(0x0102_0304), 0x0123_4567_89ab_cdef);
    let (key, value) = (key::segment_key(segment), stamp_value(segment, stamp));
    assert_eq!((hex(&key).as_str(), Table::Segments.tag()), ("01020304", 11));
    assert_eq!(hex(&value), ["efcdab8967452301", "aedbb6bc"].concat());
    assert_eq!(read_stamp(&key, &value), Ok((segment, stamp)));
    let other = read_stamp(&key::segment_key(SegmentId(0x0102_0305)), &value);
    assert!(matches!(other, Err(Damage::Checksum { .. })), "{other:?}");
}

#[test]
fn values_come_back() {
    let key = key::run_key(RunNo(258));
    assert_eq!(read_row(&key, &row_value(&row())), Ok(row()));
    assert_eq!(read_summary(&key, &row_value(&row())), Ok(row().summary()));
    let mut ended = row();
    ended.status = RunStatus::Failed;
    (ended.ended_at, ended.end_lsn) = (Some(Timestamp(i64::MAX)), Lsn(u64::MAX));
    ended.end = Some(LogPosition::default());
    ended.hold = None;
    ended.agent = AgentId::new(&"a".repeat(MAX_ID_LEN)).unwrap();
    ended.run = RunId::new(&"r".repeat(MAX_ID_LEN)).unwrap();
    ended.segments = (0..).map(SegmentId).take(MAX_SEGMENTS).collect();
    assert_eq!(read_summary(&key, &row_value(&ended)), Ok(ended.summary()));
    assert_eq!(read_row(&key, &row_value(&ended)), Ok(ended.clone()));
    // One more, and none are listed: then it can be in any of them.
    ended.segments.push(SegmentId(u32::MAX));
    let many = read_row(&key, &row_value(&ended)).unwrap();
    assert!(many.segments.is_empty() && many.can_be_in(SegmentId(7)));
    assert_eq!(read_agent(b"x", &agent_value("x", 7)), Ok(7));
    let (uuid, schema) = ([7; 16], SCHEMA_VERSION);
    let meta = Meta { uuid, schema, applied: Applied::default(), runs: 0 };
    assert_eq!(read_meta(b"index", &meta_value(b"index", &meta)), Ok(meta));
}

#[test]
fn a_value_counts_only_under_its_key_and_in_its_table() {
    let value = row_value(&row());
    let other = read_row(&key::run_key(RunNo(259)), &value);
    assert!(matches!(other, Err(Damage::Checksum { .. })), "{other:?}");
    let key = key::run_key(RunNo(1));
    let mark = mark(Table::Runs, &key);
    assert_eq!(read_mark(Table::Runs, &key, &mark), Ok(()));
    let other = read_mark(Table::ByState, &key, &mark);
    assert!(matches!(other, Err(Damage::Checksum { .. })), "{other:?}");
}

#[test]
fn every_flipped_bit_is_found() {
    let key = key::run_key(RunNo(258));
    let value = row_value(&row());
    for bit in 0..value.len() * 8 {
        let mut flipped = value.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let read = read_row(&key, &flipped);
        assert!(matches!(read, Err(Damage::Checksum { .. })), "bit {bit}: {read:?}");
    }
}

proptest! {
    #[test]
    fn any_bytes_as_a_value_are_refused(key: Vec<u8>, value: Vec<u8>) {
        prop_assert!(read_row(&key, &value).is_err());
        prop_assert!(read_summary(&key, &value).is_err());
        prop_assert!(read_agent(&key, &value).is_err());
        prop_assert!(read_meta(&key, &value).is_err());
    }

    #[test]
    fn any_body_with_a_good_checksum_is_read_or_refused(key: [u8; 8], body: Vec<u8>) {
        let _ = read_row(&key, &seal(Table::Runs, &key, body.clone()));
        let _ = read_summary(&key, &seal(Table::Runs, &key, body.clone()));
        let _ = read_agent(&key, &seal(Table::Agents, &key, body.clone()));
        let _ = read_meta(&key, &seal(Table::Meta, &key, body));
    }
}
