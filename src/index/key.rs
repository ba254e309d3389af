//! The tables of the index by name, and their keys. Keys compare as bytes, in the order that the
//! lists need.
//!
//! ```text
//! run_ids      id(run) id(agent) run_no      runs, in_progress   run_no
//! by_agent     id(agent) time run_no         by_time             time run_no
//! agents       the agent id as it is         spans               run_no segment
//! documents    id(namespace) id(key) run_no
//!
//! id(x)    x with each 00 written as 00 FF, then 00 00; keeps the order of the ids, and no id is
//!          the beginning of another
//! time     8 bytes, big-endian, the sign bit flipped
//! run_no   8 bytes, big-endian          segment   4 bytes, big-endian
//! ```

use core::fmt;
use core::ops::Bound;

use redb::TableDefinition;

use crate::error::Damage;
use crate::format::codec::{Decoded, Reader};
use crate::types::{RunNo, SegmentId, Timestamp};

/// How all tables are typed: keys and values are bytes that this crate reads and writes itself.
pub(super) type Bytes = &'static [u8];

/// A table of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub(crate) enum Table {
    /// Run id, agent id and run number.
    RunIds,
    /// The row of each run, by number.
    Runs,
    /// Agent, creation time and run number.
    ByAgent,
    /// Creation time and run number.
    ByTime,
    /// The numbers of the runs that have not ended.
    InProgress,
    /// The number of runs of each agent.
    Agents,
    /// Which segments hold frames of a run.
    Spans,
    /// Namespace, key and number of each version of a document.
    Documents,
    /// Which log this is the index of, and how far it goes.
    Meta,
}

impl Table {
    /// All tables.
    pub(crate) const ALL: [Self; 9] = [
        Self::RunIds,
        Self::Runs,
        Self::ByAgent,
        Self::ByTime,
        Self::InProgress,
        Self::Agents,
        Self::Spans,
        Self::Documents,
        Self::Meta,
    ];

    /// The name in the index.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::RunIds => "run_ids",
            Self::Runs => "runs",
            Self::ByAgent => "by_agent",
            Self::ByTime => "by_time",
            Self::InProgress => "in_progress",
            Self::Agents => "agents",
            Self::Spans => "spans",
            Self::Documents => "documents",
            Self::Meta => "meta",
        }
    }

    /// The byte that the checksums of the table's values start with.
    pub(super) fn tag(self) -> u8 {
        match self {
            Self::RunIds => 1,
            Self::Runs => 2,
            Self::ByAgent => 3,
            Self::ByTime => 4,
            Self::InProgress => 5,
            Self::Agents => 6,
            Self::Spans => 7,
            Self::Meta => 8,
            Self::Documents => 9,
        }
    }

    pub(super) fn definition(self) -> TableDefinition<'static, Bytes, Bytes> {
        TableDefinition::new(self.name())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The length of a key of `by_time`, and of the part of a `by_agent` key behind the agent.
pub(crate) const TIME_KEY_LEN: usize = 16;

const NUL: u8 = 0;
const ESCAPED: u8 = 0xFF;
const END: u8 = 0;
const SIGN: u64 = 1 << 63;

/// Appends an id in the form that keeps the order and ends itself.
pub(crate) fn push_id(out: &mut Vec<u8>, id: &str) {
    for &byte in id.as_bytes() {
        out.push(byte);
        if byte == NUL {
            out.push(ESCAPED);
        }
    }
    out.extend_from_slice(&[NUL, END]);
}

/// Takes an id that [`push_id`] wrote from the start of `key`; returns it and what follows.
pub(crate) fn split_id(key: &[u8]) -> Decoded<(String, &[u8])> {
    let mut id = Vec::new();
    let mut reader = Reader::new(key);
    loop {
        match reader.u8()? {
            NUL => match reader.u8()? {
                END => break,
                ESCAPED => id.push(NUL),
                other => {
                    return Err(Damage::UnknownCode { found: u32::from(other) });
                }
            },
            byte => id.push(byte),
        }
    }
    let id = String::from_utf8(id).map_err(|_| Damage::NotUtf8)?;
    Ok((id, reader.rest()))
}

/// A key of `runs` and `in_progress`.
pub(crate) fn run_key(run_no: RunNo) -> [u8; 8] {
    run_no.0.to_be_bytes()
}

/// The reverse of [`run_key`].
pub(crate) fn read_run_key(key: &[u8]) -> Decoded<RunNo> {
    let bytes = <[u8; 8]>::try_from(key).map_err(|_| Damage::Truncated)?;
    Ok(RunNo(u64::from_be_bytes(bytes)))
}

/// A key of `by_time`.
pub(crate) fn time_key(at: Timestamp, run_no: RunNo) -> [u8; TIME_KEY_LEN] {
    let time = at.0.cast_unsigned() ^ SIGN;
    (u128::from(time) << 64 | u128::from(run_no.0)).to_be_bytes()
}

/// The reverse of [`time_key`].
pub(crate) fn read_time_key(key: &[u8]) -> Decoded<(Timestamp, RunNo)> {
    let mut reader = Reader::new(key);
    let time = u64::from_be_bytes(reader.array()?) ^ SIGN;
    Ok((Timestamp(time.cast_signed()), read_run_key(reader.rest())?))
}

/// A key of `by_agent`.
pub(crate) fn agent_key(agent: &str, at: Timestamp, run_no: RunNo) -> Vec<u8> {
    let mut key = agent_prefix(agent);
    key.extend_from_slice(&time_key(at, run_no));
    key
}

/// What all keys of an agent start with in `by_agent`, and no other key does.
fn agent_prefix(agent: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(agent.len() + 2 + TIME_KEY_LEN);
    push_id(&mut key, agent);
    key
}

/// The part of a `by_agent` key behind the agent.
pub(crate) fn read_agent_key(key: &[u8]) -> Decoded<(Timestamp, RunNo)> {
    read_time_key(key.last_chunk::<TIME_KEY_LEN>().ok_or(Damage::Truncated)?)
}

/// A key of `run_ids`.
pub(crate) fn id_key(run: &str, agent: &str, run_no: RunNo) -> Vec<u8> {
    let mut key = id_prefix(run, Some(agent));
    key.extend_from_slice(&run_key(run_no));
    key
}

/// What all keys of a run id, or of a run id of one agent, start with in `run_ids`, and no other
/// key does.
fn id_prefix(run: &str, agent: Option<&str>) -> Vec<u8> {
    let mut key = Vec::with_capacity(run.len() + agent.map_or(0, str::len) + 12);
    push_id(&mut key, run);
    if let Some(agent) = agent {
        push_id(&mut key, agent);
    }
    key
}

/// The keys of a run id, or of a run id of one agent, in `run_ids`: from the first of the pair up
/// to but without the second.
pub(crate) fn id_range(run: &str, agent: Option<&str>) -> (Vec<u8>, Vec<u8>) {
    let start = id_prefix(run, agent);
    let mut end = start.clone();
    // The prefix ends with 00 00, and no key has anything else than 00 or FF behind a 00.
    if let Some(last) = end.last_mut() {
        *last = END + 1;
    }
    (start, end)
}

/// A key of `documents`.
pub(crate) fn document_key(namespace: &str, key: &str, run_no: RunNo) -> Vec<u8> {
    id_key(namespace, key, run_no)
}

/// The keys of `documents` from `from` on: from the first of the pair up to but without the second.
pub(crate) fn document_range(namespace: &str, from: Bound<&str>) -> (Vec<u8>, Vec<u8>) {
    let (mut start, end) = id_range(namespace, None);
    match from {
        Bound::Unbounded => {}
        Bound::Included(key) => {
            push_id(&mut start, key);
            // Without what ends an id: keys that go on behind it come after it.
            start.truncate(start.len() - 2);
        }
        Bound::Excluded(key) => start = id_range(namespace, Some(key)).1,
    }
    (start, end)
}

/// The document's key, and the number, in a key of `documents`.
pub(crate) fn read_document_key(key: &[u8]) -> Decoded<(String, RunNo)> {
    let (_, rest) = split_id(key)?;
    let (key, rest) = split_id(rest)?;
    Ok((key, read_run_key(rest)?))
}

/// The run number at the end of a `run_ids` key.
pub(crate) fn read_id_key(key: &[u8]) -> Decoded<RunNo> {
    read_run_key(key.last_chunk::<8>().ok_or(Damage::Truncated)?)
}

/// A key of `spans`.
pub(crate) fn span_key(run_no: RunNo, segment: SegmentId) -> [u8; 12] {
    let number = u128::from(run_no.0) << 32 | u128::from(segment.0);
    let [_, _, _, _, key @ ..] = number.to_be_bytes();
    key
}

/// The reverse of [`span_key`].
pub(crate) fn read_span_key(key: &[u8]) -> Decoded<(RunNo, SegmentId)> {
    let mut reader = Reader::new(key);
    let run_no = RunNo(u64::from_be_bytes(reader.array()?));
    let segment = <[u8; 4]>::try_from(reader.rest()).map_err(|_| Damage::Truncated)?;
    Ok((run_no, SegmentId(u32::from_be_bytes(segment))))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every string of up to four characters of an alphabet that holds the troublesome ones.
    fn ids() -> Vec<String> {
        let alphabet = ['\0', '\u{1}', 'a', 'b', '\u{7f}', '\u{10FFFF}'];
        let mut ids = vec![String::new()];
        let mut from = 0;
        for _ in 0..3 {
            let to = ids.len();
            for at in from..to {
                for next in alphabet {
                    ids.push(format!("{}{next}", ids[at]));
                }
            }
            from = to;
        }
        ids
    }

    fn escaped(id: &str) -> Vec<u8> {
        let mut out = Vec::new();
        push_id(&mut out, id);
        out
    }

    #[test]
    fn ids_keep_their_order_and_none_starts_another() {
        let ids = ids();
        for left in &ids {
            let left_key = escaped(left);
            for right in &ids {
                let right_key = escaped(right);
                assert_eq!(left.cmp(right), left_key.cmp(&right_key), "{left:?} {right:?}");
                assert_eq!(left == right, right_key.starts_with(&left_key), "{left:?} {right:?}");
            }
        }
    }

    #[test]
    fn ids_come_back_with_what_follows_them() {
        for id in ids() {
            let mut key = escaped(&id);
            key.extend_from_slice(b"\0\xFFrest");
            assert_eq!(split_id(&key).unwrap(), (id, &b"\0\xFFrest"[..]));
        }
    }

    #[test]
    fn damaged_ids_are_told_apart() {
        assert_eq!(split_id(b"abc"), Err(Damage::Truncated));
        assert_eq!(split_id(b"abc\0"), Err(Damage::Truncated));
        assert_eq!(split_id(b"abc\0\x01"), Err(Damage::UnknownCode { found: 1 }));
        assert_eq!(split_id(b"\xF0\0\0"), Err(Damage::NotUtf8));
    }

    #[test]
    fn keys_of_other_lengths_are_refused() {
        assert_eq!(read_run_key(&[0; 7]), Err(Damage::Truncated));
        assert_eq!(read_run_key(&[0; 9]), Err(Damage::Truncated));
        assert_eq!(read_time_key(&[0; 15]), Err(Damage::Truncated));
        assert_eq!(read_time_key(&[0; 17]), Err(Damage::Truncated));
        assert_eq!(read_span_key(&[0; 11]), Err(Damage::Truncated));
        assert_eq!(read_span_key(&[0; 13]), Err(Damage::Truncated));
        assert_eq!(read_agent_key(&[0; 15]), Err(Damage::Truncated));
        assert_eq!(read_id_key(&[0; 7]), Err(Damage::Truncated));
    }

    #[test]
    fn times_keep_their_order_across_zero() {
        let times = [i64::MIN, i64::MIN + 1, -2, -1, 0, 1, 2, i64::MAX - 1, i64::MAX];
        for pair in times.windows(2) {
            let early = time_key(Timestamp(pair[0]), RunNo(u64::MAX));
            let late = time_key(Timestamp(pair[1]), RunNo(0));
            assert!(early < late, "{pair:?}");
        }
    }

    proptest! {
        #[test]
        fn agent_keys_order_by_agent_then_time_then_number(
            a in (any::<String>(), any::<i64>(), any::<u64>()),
            b in (any::<String>(), any::<i64>(), any::<u64>()),
        ) {
            let left = agent_key(&a.0, Timestamp(a.1), RunNo(a.2));
            let right = agent_key(&b.0, Timestamp(b.1), RunNo(b.2));
            prop_assert_eq!(a.cmp(&b), left.cmp(&right));
            prop_assert_eq!(read_agent_key(&left), Ok((Timestamp(a.1), RunNo(a.2))));
        }

        #[test]
        fn id_keys_order_by_run_then_agent_then_number(
            a in (any::<String>(), any::<String>(), any::<u64>()),
            b in (any::<String>(), any::<String>(), any::<u64>()),
        ) {
            let left = id_key(&a.0, &a.1, RunNo(a.2));
            let right = id_key(&b.0, &b.1, RunNo(b.2));
            prop_assert_eq!(a.cmp(&b), left.cmp(&right));
            prop_assert_eq!(read_id_key(&left), Ok(RunNo(a.2)));
            for (agent, same) in [(None, a.0 == b.0), (Some(&*b.1), (&a.0, &a.1) == (&b.0, &b.1))] {
                let (start, end) = id_range(&b.0, agent);
                prop_assert_eq!(start <= left && left < end, same);
            }
        }

        #[test]
        fn time_and_span_keys_come_back_in_order(
            a in (any::<i64>(), any::<u64>()),
            b in (any::<i64>(), any::<u64>()),
            s in any::<u32>(),
            t in any::<u32>(),
        ) {
            let left = time_key(Timestamp(a.0), RunNo(a.1));
            prop_assert_eq!(a.cmp(&b), left.cmp(&time_key(Timestamp(b.0), RunNo(b.1))));
            prop_assert_eq!(read_time_key(&left), Ok((Timestamp(a.0), RunNo(a.1))));
            let left = span_key(RunNo(a.1), SegmentId(s));
            let right = span_key(RunNo(b.1), SegmentId(t));
            prop_assert_eq!((a.1, s).cmp(&(b.1, t)), left.cmp(&right));
            prop_assert_eq!(read_span_key(&left), Ok((RunNo(a.1), SegmentId(s))));
        }

        #[test]
        fn any_bytes_as_a_key_are_read_or_refused(bytes in any::<Vec<u8>>()) {
            let _ = split_id(&bytes);
            let _ = read_run_key(&bytes);
            let _ = read_time_key(&bytes);
            let _ = read_agent_key(&bytes);
            let _ = read_id_key(&bytes);
            let _ = read_span_key(&bytes);
        }
    }
}
