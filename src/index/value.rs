//! The values of the index's tables, and the only place where bincode is used.
//!
//! A value is a body and a checksum. The body is one of the private structs below in bincode's
//! legacy configuration: fields in order, integers little-endian and of fixed width, an `Option`
//! is one byte 0 or 1 and then the value, text is an 8-byte length and UTF-8. So the bytes are a
//! plain table in the specification, and any other encoder can write them. Tables that only say
//! that a key is there have an empty body.
//!
//! Invariants:
//!
//! - The checksum is the crc32 of the table's tag, the key and the body. So a value counts only in
//!   the table and under the key it was written for.
//! - It is verified before anything is decoded; a body must be consumed to its last byte; what a
//!   body may ask for is limited to [`MAX_BODY_LEN`].
//! - Only the engine's own small structs are encoded so, never what a user stored.

use bincode::config::{Configuration, Fixint, Limit, LittleEndian};
use bincode::error::DecodeError;
use bincode::{BorrowDecode, Encode};

use super::key;
use super::key::Table;
use super::merge::Applied;
use super::row::{Hold, RowSummary, RunRow, Span};
use crate::error::Damage;
use crate::format::codec::{Decoded, check_crc};
use crate::types::{
    AgentId, LogPosition, Lsn, MAX_ID_LEN, RunId, RunNo, RunStatus, SegmentId, Seq, Timestamp,
};

/// The longest body: a row with two ids of the longest kind, and room to spare.
pub(crate) const MAX_BODY_LEN: usize = 2048;
/// The length of the checksum behind a body.
pub(crate) const CHECKSUM_LEN: usize = 4;
/// The version of the tables, keys and values. An index of another version is dropped and rebuilt.
pub(crate) const SCHEMA_VERSION: u32 = 4;

const CONFIG: Configuration<LittleEndian, Fixint, Limit<MAX_BODY_LEN>> =
    bincode::config::legacy().with_limit::<MAX_BODY_LEN>();

const _: () = assert!(MAX_BODY_LEN >= 2 * (8 + MAX_ID_LEN) + 128);

/// Which log the index belongs to, and how far it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Meta {
    /// The identity of the store.
    pub(crate) uuid: [u8; 16],
    /// The version of tables, keys and values.
    pub(crate) schema: u32,
    /// How far the index goes.
    pub(crate) applied: Applied,
    /// How many runs there are.
    pub(crate) runs: u64,
}

#[derive(Encode, BorrowDecode)]
struct RowBody<'a> {
    agent: &'a str,
    run: &'a str,
    created_at: i64,
    created_said: bool,
    started_at: Option<i64>,
    start: Option<u64>,
    ended_at: Option<i64>,
    end: Option<u64>,
    end_lsn: u64,
    hold: Option<HoldBody>,
    status: u8,
    records: u64,
    late: u64,
    bytes: u64,
    stored: u64,
    next_seq: u64,
    last_at: i64,
    document: bool,
}

#[derive(Encode, BorrowDecode)]
struct HoldBody {
    at: u64,
    lsn: u64,
    held: bool,
}

#[derive(Encode, BorrowDecode)]
struct SpanBody {
    slot: u32,
    first_seq: Option<u64>,
    next_seq: u64,
    records: u32,
    chunks: u32,
    stored: u64,
    first_lsn: u64,
}

#[derive(Encode, BorrowDecode)]
struct AgentBody {
    runs: u64,
}

#[derive(Encode, BorrowDecode)]
struct MetaBody {
    uuid: [u8; 16],
    schema: u32,
    applied: Option<u32>,
    compacted: Option<u32>,
    runs: u64,
}

/// The value of a row in `runs`.
pub(crate) fn row_value(row: &RunRow) -> Vec<u8> {
    let body = RowBody {
        agent: row.agent.as_str(),
        run: row.run.as_str(),
        created_at: row.created_at.0,
        created_said: row.created_said,
        started_at: row.started_at.map(|at| at.0),
        start: row.start.map(LogPosition::to_u64),
        ended_at: row.ended_at.map(|at| at.0),
        end: row.end.map(LogPosition::to_u64),
        end_lsn: row.end_lsn.0,
        hold: row.hold.map(|hold| HoldBody {
            at: hold.at.to_u64(),
            lsn: hold.lsn.0,
            held: hold.held,
        }),
        status: row.status.code(),
        records: row.records,
        late: row.late,
        bytes: row.bytes,
        stored: row.stored,
        next_seq: row.next_seq.0,
        last_at: row.last_at.0,
        document: row.document,
    };
    encode(Table::Runs, &key::run_key(row.run_no), &body)
}

/// The row of an entry of `runs`.
pub(crate) fn read_row(key: &[u8], value: &[u8]) -> Decoded<RunRow> {
    let body: RowBody<'_> = decode(Table::Runs, key, value)?;
    let id_damage = |len: usize| Damage::OutOfRange { found: len as u64, max: MAX_ID_LEN as u64 };
    Ok(RunRow {
        run_no: key::read_run_key(key)?,
        agent: AgentId::new(body.agent).map_err(|_| id_damage(body.agent.len()))?,
        run: RunId::new(body.run).map_err(|_| id_damage(body.run.len()))?,
        document: body.document,
        created_at: Timestamp(body.created_at),
        created_said: body.created_said,
        started_at: body.started_at.map(Timestamp),
        start: body.start.map(LogPosition::from_u64),
        ended_at: body.ended_at.map(Timestamp),
        end: body.end.map(LogPosition::from_u64),
        end_lsn: Lsn(body.end_lsn),
        hold: body.hold.map(|hold| Hold {
            at: LogPosition::from_u64(hold.at),
            lsn: Lsn(hold.lsn),
            held: hold.held,
        }),
        status: read_status(body.status)?,
        records: body.records,
        late: body.late,
        bytes: body.bytes,
        stored: body.stored,
        next_seq: Seq(body.next_seq),
        last_at: Timestamp(body.last_at),
    })
}

/// What retention asks of an entry of `runs`, without copies.
pub(crate) fn read_summary<'a>(key: &[u8], value: &'a [u8]) -> Decoded<RowSummary<'a>> {
    let body: RowBody<'a> = decode(Table::Runs, key, value)?;
    Ok(RowSummary {
        run_no: key::read_run_key(key)?,
        agent: body.agent,
        run: body.run,
        document: body.document,
        status: read_status(body.status)?,
        created_at: Timestamp(body.created_at),
        ended_at: body.ended_at.map(Timestamp),
        last_at: Timestamp(body.last_at),
        bytes: body.bytes,
        stored: body.stored,
        held: body.hold.is_some_and(|hold| hold.held),
    })
}

fn read_status(code: u8) -> Decoded<RunStatus> {
    RunStatus::from_code(code).ok_or(Damage::UnknownCode { found: u32::from(code) })
}

/// The value of a span of a run in `spans`.
pub(crate) fn span_value(run_no: RunNo, span: &Span) -> Vec<u8> {
    let body = SpanBody {
        slot: span.slot,
        first_seq: span.first_seq.map(|seq| seq.0),
        next_seq: span.next_seq.0,
        records: span.records,
        chunks: span.chunks,
        stored: span.stored,
        first_lsn: span.first_lsn.0,
    };
    encode(Table::Spans, &key::span_key(run_no, span.segment), &body)
}

/// The span of an entry of `spans`.
pub(crate) fn read_span(key: &[u8], value: &[u8]) -> Decoded<Span> {
    let body: SpanBody = decode(Table::Spans, key, value)?;
    let (_, segment) = key::read_span_key(key)?;
    Ok(Span {
        segment,
        slot: body.slot,
        first_seq: body.first_seq.map(Seq),
        next_seq: Seq(body.next_seq),
        records: body.records,
        chunks: body.chunks,
        stored: body.stored,
        first_lsn: Lsn(body.first_lsn),
    })
}

/// The value of an agent with this many runs in `agents`.
pub(crate) fn agent_value(agent: &str, runs: u64) -> Vec<u8> {
    encode(Table::Agents, agent.as_bytes(), &AgentBody { runs })
}

/// The number of runs in an entry of `agents`.
pub(crate) fn read_agent(key: &[u8], value: &[u8]) -> Decoded<u64> {
    Ok(decode::<AgentBody>(Table::Agents, key, value)?.runs)
}

/// The value of the one entry of `meta`.
pub(crate) fn meta_value(key: &[u8], meta: &Meta) -> Vec<u8> {
    let body = MetaBody {
        uuid: meta.uuid,
        schema: meta.schema,
        applied: meta.applied.log.map(|id| id.0),
        compacted: meta.applied.outputs.map(|id| id.0),
        runs: meta.runs,
    };
    encode(Table::Meta, key, &body)
}

/// The entry of `meta`.
pub(crate) fn read_meta(key: &[u8], value: &[u8]) -> Decoded<Meta> {
    let body: MetaBody = decode(Table::Meta, key, value)?;
    Ok(Meta {
        uuid: body.uuid,
        schema: body.schema,
        applied: Applied {
            log: body.applied.map(SegmentId),
            outputs: body.compacted.map(SegmentId),
        },
        runs: body.runs,
    })
}

/// The value that says no more than that the key is there.
pub(crate) fn mark(table: Table, key: &[u8]) -> Vec<u8> {
    seal(table, key, Vec::with_capacity(CHECKSUM_LEN))
}

/// Checks a value that says no more than that the key is there.
pub(crate) fn read_mark(table: Table, key: &[u8], value: &[u8]) -> Decoded<()> {
    match unseal(table, key, value)? {
        [] => Ok(()),
        body => Err(Damage::OutOfRange { found: body.len() as u64, max: 0 }),
    }
}

fn encode(table: Table, key: &[u8], body: &impl Encode) -> Vec<u8> {
    let body = bincode::encode_to_vec(body, CONFIG).expect("plain fields and checked ids encode");
    assert!(body.len() <= MAX_BODY_LEN, "ids are at most {MAX_ID_LEN} bytes");
    seal(table, key, body)
}

fn decode<'a, T: BorrowDecode<'a, ()>>(table: Table, key: &[u8], value: &'a [u8]) -> Decoded<T> {
    let body = unseal(table, key, value)?;
    let max = MAX_BODY_LEN as u64;
    if body.len() > MAX_BODY_LEN {
        return Err(Damage::OutOfRange { found: body.len() as u64, max });
    }
    let (decoded, consumed) =
        bincode::borrow_decode_from_slice(body, CONFIG).map_err(|error| match error {
            DecodeError::UnexpectedEnd { .. } => Damage::Truncated,
            DecodeError::Utf8 { .. } => Damage::NotUtf8,
            DecodeError::InvalidBooleanValue(found) => Damage::UnknownCode { found: found.into() },
            DecodeError::UnexpectedVariant { found, .. } => Damage::UnknownCode { found },
            DecodeError::LimitExceeded => Damage::OutOfRange { found: u64::MAX, max },
            _ => Damage::Mismatch,
        })?;
    if consumed != body.len() {
        return Err(Damage::OutOfRange { found: body.len() as u64, max: consumed as u64 });
    }
    Ok(decoded)
}

fn seal(table: Table, key: &[u8], mut body: Vec<u8>) -> Vec<u8> {
    let checksum = checksum(table, key, &body);
    body.extend_from_slice(&checksum.to_le_bytes());
    body
}

fn unseal<'a>(table: Table, key: &[u8], value: &'a [u8]) -> Decoded<&'a [u8]> {
    let (body, stored) = value.split_last_chunk::<CHECKSUM_LEN>().ok_or(Damage::Truncated)?;
    check_crc(u32::from_le_bytes(*stored), checksum(table, key, body))?;
    Ok(body)
}

fn checksum(table: Table, key: &[u8], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[table.tag()]);
    hasher.update(key);
    hasher.update(body);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row() -> RunRow {
        RunRow {
            run_no: RunNo(258),
            agent: AgentId::new("planner").unwrap(),
            run: RunId::new("run-7").unwrap(),
            document: false,
            created_at: Timestamp(-2),
            created_said: true,
            started_at: Some(Timestamp(1)),
            start: Some(LogPosition { segment: SegmentId(3), offset: 64 }),
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
        }
    }

    const HOLD: Hold =
        Hold { at: LogPosition { segment: SegmentId(4), offset: 128 }, lsn: Lsn(6), held: true };

    const SPAN: Span = Span {
        segment: SegmentId(3),
        slot: 9,
        first_seq: Some(Seq(2)),
        next_seq: Seq(5),
        records: 3,
        chunks: 1,
        stored: 480,
        first_lsn: Lsn(7),
    };

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
            "72756e2d37", // run
            "feffffffffffffff",
            "01", // created_at, created_said
            "01",
            "0100000000000000", // started_at
            "01",
            "4000000003000000", // start
            "00",
            "00",               // ended_at, end
            "0000000000000000", // end_lsn
            "01",
            "8000000004000000",
            "0600000000000000",
            "01", // hold: at, lsn, held
            "00", // status
            "0500000000000000",
            "0100000000000000", // records, late
            "5e01000000000000",
            "7602000000000000", // bytes, stored
            "0500000000000000",
            "2800000000000000", // next_seq, last_at
            "00",               // document
        ];
        let value = row_value(&row());
        let (body, stored) = value.split_last_chunk::<4>().unwrap();
        assert_eq!(hex(body), expected.concat());
        let covered = [&[2], &[0, 0, 0, 0, 0, 0, 1, 2][..], body].concat();
        assert_eq!(u32::from_le_bytes(*stored), crc32fast::hash(&covered));
        assert_eq!(hex(stored), "07e8a52d");
    }

    #[test]
    fn the_bytes_of_the_other_values_are_these() {
        let span = hex(&span_value(RunNo(258), &SPAN));
        let expected = [
            "09000000",
            "01",
            "0200000000000000",
            "0500000000000000",
            "03000000",
            "01000000",
            "e001000000000000",
            "0700000000000000",
            "c8d4b9c9",
        ];
        assert_eq!(span, expected.concat());
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
        assert_eq!(hex(&mark(Table::InProgress, &key::run_key(RunNo(258)))), "8c018b5b");
    }

    #[test]
    fn values_come_back() {
        let key = key::run_key(RunNo(258));
        assert_eq!(read_row(&key, &row_value(&row())), Ok(row()));
        assert_eq!(read_summary(&key, &row_value(&row())), Ok(row().summary()));
        let mut ended = row();
        ended.status = RunStatus::Failed;
        ended.end = Some(LogPosition { segment: SegmentId(u32::MAX), offset: u32::MAX });
        (ended.ended_at, ended.end_lsn) = (Some(Timestamp(i64::MAX)), Lsn(u64::MAX));
        (ended.created_said, ended.hold) = (false, None);
        ended.agent = AgentId::new(&"a".repeat(MAX_ID_LEN)).unwrap();
        ended.run = RunId::new(&"r".repeat(MAX_ID_LEN)).unwrap();
        assert_eq!(read_summary(&key, &row_value(&ended)), Ok(ended.summary()));
        assert_eq!(read_row(&key, &row_value(&ended)), Ok(ended));
        let key = key::span_key(RunNo(258), SPAN.segment);
        assert_eq!(read_span(&key, &span_value(RunNo(258), &SPAN)), Ok(SPAN));
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
        let mark = mark(Table::InProgress, &key);
        assert_eq!(read_mark(Table::InProgress, &key, &mark), Ok(()));
        let other = read_mark(Table::ByTime, &key, &mark);
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

    /// What is behind the checksum is checked too, since a checksum can be forged.
    #[test]
    fn bodies_with_a_good_checksum_are_still_checked() {
        let key = key::run_key(RunNo(258));
        let value = row_value(&row());
        let body = &value[..value.len() - CHECKSUM_LEN];
        let forge = |body: &[u8]| read_row(&key, &seal(Table::Runs, &key, body.to_vec()));

        assert_eq!(forge(&body[..body.len() - 1]), Err(Damage::Truncated));
        let longer = [body, &[0]].concat();
        let max = body.len() as u64;
        assert_eq!(forge(&longer), Err(Damage::OutOfRange { found: max + 1, max }));
        let mut wrong = body.to_vec();
        wrong[..8].fill(0xFF);
        let huge = forge(&wrong);
        assert!(matches!(huge, Err(Damage::OutOfRange { .. })), "{huge:?}");
        let mut wrong = body.to_vec();
        wrong[8] = 0xFF;
        assert_eq!(forge(&wrong), Err(Damage::NotUtf8));
        let status_at = body.len() - 1 - 6 * 8 - 1;
        let mut wrong = body.to_vec();
        wrong[status_at] = 200;
        assert_eq!(forge(&wrong), Err(Damage::UnknownCode { found: 200 }));
        let started_at = 8 + 7 + 8 + 5 + 8 + 1;
        let mut wrong = body.to_vec();
        wrong[started_at] = 2;
        assert_eq!(forge(&wrong), Err(Damage::UnknownCode { found: 2 }));
        assert!(forge(&vec![1; MAX_BODY_LEN + 1]).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_as_a_value_are_refused(key: Vec<u8>, value: Vec<u8>) {
            prop_assert!(read_row(&key, &value).is_err());
            prop_assert!(read_summary(&key, &value).is_err());
            prop_assert!(read_span(&key, &value).is_err());
            prop_assert!(read_agent(&key, &value).is_err());
            prop_assert!(read_meta(&key, &value).is_err());
        }

        #[test]
        fn any_body_with_a_good_checksum_is_read_or_refused(key: [u8; 8], body: Vec<u8>) {
            let _ = read_row(&key, &seal(Table::Runs, &key, body.clone()));
            let _ = read_summary(&key, &seal(Table::Runs, &key, body.clone()));
            let _ = read_span(&key, &seal(Table::Spans, &key, body.clone()));
            let _ = read_agent(&key, &seal(Table::Agents, &key, body.clone()));
            let _ = read_meta(&key, &seal(Table::Meta, &key, body));
        }
    }
}
