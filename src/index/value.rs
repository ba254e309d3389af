//! The values of the index's tables, and the only place where bincode is used.
//!
//! A value is a body and a checksum. The body is one of the private structs below in bincode's
//! legacy configuration: fields in order, integers little-endian with a fixed width, an `Option` as
//! one byte 0 or 1 and then the value, text as an 8-byte length and UTF-8. So FORMAT.md can specify
//! the bytes as a plain table, and any other encoder can write them. In tables where only the key
//! matters, the body is empty.
//!
//! Invariants:
//!
//! - The checksum is the crc32 of the table's tag, the key and the body. So a value is valid only
//!   in the table and under the key that it was written for.
//! - The checksum is verified before anything is decoded. A body must be consumed to its last byte,
//!   and it can require at most [`MAX_BODY_LEN`] bytes of memory.
//! - Only the engine's own small structs are encoded this way, never user data.

use bincode::config::{Configuration, Fixint, Limit, LittleEndian};
use bincode::error::DecodeError;
use bincode::{BorrowDecode, Encode};

use super::merge::Applied;
use super::row::{Hold, MAX_SEGMENTS, RowSummary, RunRow};
use super::tables::key;
use super::tables::key::Table;
use crate::error::Damage;
use crate::format::codec::{Decoded, check_crc};
use crate::types::{
    AgentId, LogPosition, Lsn, MAX_ID_LEN, RunId, RunStatus, SegmentId, Seq, Timestamp,
};

/// The longest body: a row with two ids of maximum length and the most segments, and some room.
pub(crate) const MAX_BODY_LEN: usize = 2048 + MAX_SEGMENTS * SEGMENT_LEN;
/// The length of the number of a segment in a row.
const SEGMENT_LEN: usize = 4;
/// The length of the checksum behind a body.
pub(crate) const CHECKSUM_LEN: usize = 4;
/// The version of the tables, keys and values. An index of another version is dropped and rebuilt.
pub(crate) const SCHEMA_VERSION: u32 = 8;

const CONFIG: Configuration<LittleEndian, Fixint, Limit<MAX_BODY_LEN>> =
    bincode::config::legacy().with_limit::<MAX_BODY_LEN>();

const _: () = assert!(MAX_BODY_LEN >= 2 * (8 + MAX_ID_LEN) + 128);

/// The store that the index belongs to, and how far it goes.
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
    started_at: Option<i64>,
    ended_at: Option<i64>,
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
    /// Numbers of 4 bytes.
    segments: &'a [u8],
}

#[derive(Encode, BorrowDecode)]
struct HoldBody {
    lsn: u64,
    held: bool,
}

#[derive(Encode, BorrowDecode)]
struct AgentBody {
    runs: u64,
}

#[derive(Encode, BorrowDecode)]
struct StampBody {
    stamp: u64,
}

#[derive(Encode, BorrowDecode)]
struct MetaBody {
    uuid: [u8; 16],
    schema: u32,
    applied: Option<u32>,
    compacted: Option<u32>,
    runs: u64,
}

/// The value of a row in `runs`. The places of frames are left out.
pub(crate) fn row_value(row: &RunRow) -> Vec<u8> {
    let few = Some(&row.segments).filter(|segments| segments.len() <= MAX_SEGMENTS);
    let segments = few.into_iter().flatten().flat_map(|segment| segment.0.to_le_bytes());
    let segments: Vec<u8> = segments.collect();
    let body = RowBody {
        agent: row.agent.as_str(),
        run: row.run.as_str(),
        created_at: row.created_at.0,
        started_at: row.started_at.map(|at| at.0),
        ended_at: row.ended_at.map(|at| at.0),
        end_lsn: row.end_lsn.0,
        hold: row.hold.map(|hold| HoldBody { lsn: hold.lsn.0, held: hold.held }),
        status: row.status.code(),
        records: row.records,
        late: row.late,
        bytes: row.bytes,
        stored: row.stored,
        next_seq: row.next_seq.0,
        last_at: row.last_at.0,
        document: row.document,
        segments: &segments,
    };
    encode(Table::Runs, &key::run_key(row.run_no), &body)
}

/// The row of an entry of `runs`, without the places of frames.
pub(crate) fn read_row(key: &[u8], value: &[u8]) -> Decoded<RunRow> {
    let body: RowBody<'_> = decode(Table::Runs, key, value)?;
    let id_damage = |len: usize| Damage::OutOfRange { found: len as u64, max: MAX_ID_LEN as u64 };
    Ok(RunRow {
        run_no: key::read_run_key(key)?,
        agent: AgentId::new(body.agent).map_err(|_| id_damage(body.agent.len()))?,
        run: RunId::new(body.run).map_err(|_| id_damage(body.run.len()))?,
        document: body.document,
        created_at: Timestamp(body.created_at),
        started_at: body.started_at.map(Timestamp),
        start: body.started_at.map(|_| LogPosition::default()),
        ended_at: body.ended_at.map(Timestamp),
        end: body.ended_at.map(|_| LogPosition::default()),
        end_lsn: Lsn(body.end_lsn),
        hold: body.hold.map(|hold| Hold {
            at: LogPosition::default(),
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
        segments: read_segments(body.segments)?,
    })
}

/// The segments of a row, which must ascend.
fn read_segments(bytes: &[u8]) -> Decoded<Vec<SegmentId>> {
    let (numbers, rest) = bytes.as_chunks::<SEGMENT_LEN>();
    let ids: Vec<_> = numbers.iter().map(|id| SegmentId(u32::from_le_bytes(*id))).collect();
    if rest.is_empty() && ids.is_sorted_by(|one, two| one < two) {
        return Ok(ids);
    }
    Err(Damage::Misplaced)
}

/// The fields of an entry of `runs` that retention needs, without copies.
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

/// The value of an agent with this many runs in `agents`.
pub(crate) fn agent_value(agent: &str, runs: u64) -> Vec<u8> {
    encode(Table::Agents, agent.as_bytes(), &AgentBody { runs })
}

/// The number of runs in an entry of `agents`.
pub(crate) fn read_agent(key: &[u8], value: &[u8]) -> Decoded<u64> {
    Ok(decode::<AgentBody>(Table::Agents, key, value)?.runs)
}

/// The value of a segment in `segments`.
pub(crate) fn stamp_value(segment: SegmentId, stamp: u64) -> Vec<u8> {
    encode(Table::Segments, &key::segment_key(segment), &StampBody { stamp })
}

/// The segment of an entry of `segments`, and its stamp.
pub(crate) fn read_stamp(key: &[u8], value: &[u8]) -> Decoded<(SegmentId, u64)> {
    let body: StampBody = decode(Table::Segments, key, value)?;
    Ok((key::read_segment_key(key)?, body.stamp))
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

/// The value of an entry in a table where only the key matters.
pub(crate) fn mark(table: Table, key: &[u8]) -> Vec<u8> {
    seal(table, key, Vec::with_capacity(CHECKSUM_LEN))
}

/// Checks the value of an entry in a table where only the key matters.
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
mod tests;
