//! The tables of the index by name, and their keys. Keys compare as bytes, in the order that the
//! lists need.
//!
//! ```text
//! run_ids      id(run) id(agent) run_no           runs       run_no
//! by_agent     id(agent) state time run_no        by_state   state time run_no
//! agents       the agent id as it is              spans      run_no segment
//! documents    id(namespace) id(key) run_no     segments   segment
//!
//! id(x)    x with each 00 written as 00 FF, then 00 00; keeps the order of the ids, and no id is
//!          the beginning of another
//! state    1 byte: the code of the status, plus 8 if the run is held
//! time     8 bytes, big-endian, the sign bit flipped
//! run_no   8 bytes, big-endian          segment   4 bytes, big-endian
//! ```

use core::fmt;
use core::ops::Bound;

use redb::TableDefinition;

use crate::error::Damage;
use crate::format::codec::{Decoded, Reader};
use crate::types::{RunNo, RunStatus, SegmentId, Timestamp};

/// The type of keys and values in all tables: bytes, which this crate reads and writes itself.
pub(crate) type Bytes = &'static [u8];

/// A table of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub(crate) enum Table {
    /// The row of each run, by number.
    Runs,
    /// Agent, state, creation time and run number.
    ByAgent,
    /// State, creation time and run number.
    ByState,
    /// The number of runs of each agent.
    Agents,
    /// Namespace, key and number of each version of a document.
    Documents,
    /// The stamp of each segment that was applied.
    Segments,
    /// The store that the index belongs to, and how far it goes.
    Meta,
}

impl Table {
    /// All tables.
    pub(crate) const ALL: [Self; 7] = [
        Self::Runs,
        Self::ByAgent,
        Self::ByState,
        Self::Agents,
        Self::Documents,
        Self::Segments,
        Self::Meta,
    ];

    /// The name in the index.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Runs => "runs",
            Self::ByAgent => "by_agent",
            Self::ByState => "by_state",
            Self::Agents => "agents",
            Self::Documents => "documents",
            Self::Segments => "segments",
            Self::Meta => "meta",
        }
    }

    /// The byte that is first in the checksums of the table's values.
    pub(crate) fn tag(self) -> u8 {
        match self {
            Self::Runs => 2,
            Self::ByAgent => 3,
            Self::Agents => 6,
            Self::Meta => 8,
            Self::Documents => 9,
            Self::ByState => 10,
            Self::Segments => 11,
        }
    }

    pub(crate) fn definition(self) -> TableDefinition<'static, Bytes, Bytes> {
        TableDefinition::new(self.name())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What divides the lists of runs: each state has a range of its own, in the order of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct State {
    /// Whether the run is in progress, or how it ended.
    pub(crate) status: RunStatus,
    /// Whether it is held.
    pub(crate) held: bool,
}

impl State {
    /// The byte in keys.
    pub(crate) fn code(self) -> u8 {
        self.status.code() | if self.held { HELD } else { 0 }
    }
}

/// The bit in the byte of a state that is set if the run is held.
const HELD: u8 = 8;
/// All codes of states are below this.
const STATES: u8 = 16;

/// The length of the time and the run number, with which the keys of both lists of runs end.
pub(crate) const TIME_KEY_LEN: usize = 16;

const NUL: u8 = 0;
const ESCAPED: u8 = 0xFF;
const END: u8 = 0;
const SIGN: u64 = 1 << 63;

/// Appends an id in a form that preserves the order and marks its own end.
pub(crate) fn push_id(out: &mut Vec<u8>, id: &str) {
    for &byte in id.as_bytes() {
        out.push(byte);
        if byte == NUL {
            out.push(ESCAPED);
        }
    }
    out.extend_from_slice(&[NUL, END]);
}

/// Splits an id that [`push_id`] wrote off the start of `key`; returns it and the rest.
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

/// A key of `runs`.
pub(crate) fn run_key(run_no: RunNo) -> [u8; 8] {
    run_no.0.to_be_bytes()
}

/// The reverse of [`run_key`].
pub(crate) fn read_run_key(key: &[u8]) -> Decoded<RunNo> {
    let bytes = <[u8; 8]>::try_from(key).map_err(|_| Damage::Truncated)?;
    Ok(RunNo(u64::from_be_bytes(bytes)))
}

/// A key of `segments`.
pub(crate) fn segment_key(segment: SegmentId) -> [u8; 4] {
    segment.0.to_be_bytes()
}

/// The reverse of [`segment_key`].
pub(crate) fn read_segment_key(key: &[u8]) -> Decoded<SegmentId> {
    let bytes = <[u8; 4]>::try_from(key).map_err(|_| Damage::Truncated)?;
    Ok(SegmentId(u32::from_be_bytes(bytes)))
}

/// The place in the order of time, with which the keys of both lists of runs end.
fn time_key(at: Timestamp, run_no: RunNo) -> [u8; TIME_KEY_LEN] {
    let time = at.0.cast_unsigned() ^ SIGN;
    (u128::from(time) << 64 | u128::from(run_no.0)).to_be_bytes()
}

/// The reverse of [`time_key`].
fn read_time_key(key: &[u8]) -> Decoded<(Timestamp, RunNo)> {
    let mut reader = Reader::new(key);
    let time = u64::from_be_bytes(reader.array()?) ^ SIGN;
    Ok((Timestamp(time.cast_signed()), read_run_key(reader.rest())?))
}

/// A key of `by_agent`, or without an agent of `by_state`.
pub(crate) fn state_key(
    agent: Option<&str>,
    state: State,
    (at, run_no): (Timestamp, RunNo),
) -> Vec<u8> {
    let mut key = agent_prefix(agent);
    key.push(state.code());
    key.extend_from_slice(&time_key(at, run_no));
    key
}

/// The range of the keys of an agent in `by_agent`: the start of it, and the end, which is
/// excluded.
pub(crate) fn agent_range(agent: &str) -> (Vec<u8>, Vec<u8>) {
    id_range(agent, None)
}

/// The code of the state in a key of `by_state`.
pub(crate) fn read_state_code(key: &[u8]) -> Decoded<u8> {
    match *key {
        [code, ..] if code < STATES => Ok(code),
        [code, ..] => Err(Damage::UnknownCode { found: code.into() }),
        [] => Err(Damage::Truncated),
    }
}

/// The prefix of all keys of an agent in `by_agent`, which no other key has; that of all keys of
/// `by_state` is empty.
fn agent_prefix(agent: Option<&str>) -> Vec<u8> {
    let mut key = Vec::with_capacity(agent.map_or(0, str::len) + 2 + 1 + TIME_KEY_LEN);
    if let Some(agent) = agent {
        push_id(&mut key, agent);
    }
    key
}

/// The time and the run number of a key of `by_agent` or `by_state`.
pub(crate) fn read_state_key(key: &[u8]) -> Decoded<(Timestamp, RunNo)> {
    read_time_key(key.last_chunk::<TIME_KEY_LEN>().ok_or(Damage::Truncated)?)
}

/// A key of `documents`.
pub(crate) fn document_key(namespace: &str, key: &str, run_no: RunNo) -> Vec<u8> {
    let mut all = id_prefix(namespace, Some(key));
    all.extend_from_slice(&run_key(run_no));
    all
}

/// The prefix of all keys of a namespace, or of one document, in `documents`; no other key has it.
fn id_prefix(namespace: &str, key: Option<&str>) -> Vec<u8> {
    let mut prefix = Vec::with_capacity(namespace.len() + key.map_or(0, str::len) + 12);
    push_id(&mut prefix, namespace);
    if let Some(key) = key {
        push_id(&mut prefix, key);
    }
    prefix
}

/// The range of the keys of a namespace, or of one document, in `documents`, or of an agent in
/// `by_agent`: the first key of it, and the end, which is excluded.
pub(crate) fn id_range(namespace: &str, key: Option<&str>) -> (Vec<u8>, Vec<u8>) {
    let start = id_prefix(namespace, key);
    let mut end = start.clone();
    // The prefix ends with 00 00, and in each key a 00 is followed by 00 or FF only.
    if let Some(last) = end.last_mut() {
        *last = END + 1;
    }
    (start, end)
}

/// The range of `documents` keys from `from` on: the first key of it, and the end, which is
/// excluded.
pub(crate) fn document_range(namespace: &str, from: Bound<&str>) -> (Vec<u8>, Vec<u8>) {
    let (mut start, end) = id_range(namespace, None);
    match from {
        Bound::Unbounded => {}
        Bound::Included(key) => {
            push_id(&mut start, key);
            // Without the end mark of the id, since longer keys come after it.
            start.truncate(start.len() - 2);
        }
        Bound::Excluded(key) => start = id_range(namespace, Some(key)).1,
    }
    (start, end)
}

/// The document's key and the run number in a key of `documents`.
pub(crate) fn read_document_key(key: &[u8]) -> Decoded<(String, RunNo)> {
    let (_, rest) = split_id(key)?;
    let (key, rest) = split_id(rest)?;
    Ok((key, read_run_key(rest)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every string of up to four characters of an alphabet of the characters that need escapes.
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

    proptest! {
        #[test]
        fn state_keys_order_by_agent_then_hold_then_status_then_time_then_number(
            a in (any::<String>(), any::<bool>(), 0_u8..5, any::<i64>(), any::<u64>()),
            b in (any::<String>(), any::<bool>(), 0_u8..5, any::<i64>(), any::<u64>()),
        ) {
            let state = |held, code| State { status: RunStatus::from_code(code).unwrap(), held };
            let at = |time, number| (Timestamp(time), RunNo(number));
            let key = |agent| {
                let left = state_key(agent, state(a.1, a.2), at(a.3, a.4));
                (left, state_key(agent.map(|_| &*b.0), state(b.1, b.2), at(b.3, b.4)))
            };
            let (left, right) = key(Some(&*a.0));
            prop_assert_eq!(a.cmp(&b), left.cmp(&right));
            prop_assert_eq!(read_state_key(&left), Ok(at(a.3, a.4)));
            let (start, end) = agent_range(&b.0);
            prop_assert_eq!(start <= left && left < end, a.0 == b.0);
            let (left, right) = key(None);
            prop_assert_eq!((a.1, a.2, a.3, a.4).cmp(&(b.1, b.2, b.3, b.4)), left.cmp(&right));
            prop_assert_eq!(read_state_key(&left), Ok(at(a.3, a.4)));
            prop_assert_eq!(read_state_code(&left), Ok(state(a.1, a.2).code()));
        }

        #[test]
        fn document_keys_order_by_namespace_then_key_then_number(
            a in (any::<String>(), any::<String>(), any::<u64>()),
            b in (any::<String>(), any::<String>(), any::<u64>()),
        ) {
            let left = document_key(&a.0, &a.1, RunNo(a.2));
            let right = document_key(&b.0, &b.1, RunNo(b.2));
            prop_assert_eq!(a.cmp(&b), left.cmp(&right));
            prop_assert_eq!(read_document_key(&left), Ok((a.1.clone(), RunNo(a.2))));
            for (agent, same) in [(None, a.0 == b.0), (Some(&*b.1), (&a.0, &a.1) == (&b.0, &b.1))] {
                let (start, end) = id_range(&b.0, agent);
                prop_assert_eq!(start <= left && left < end, same);
            }
        }

        #[test]
        fn time_keys_come_back_in_order(
            a in (any::<i64>(), any::<u64>()),
            b in (any::<i64>(), any::<u64>()),
        ) {
            let left = time_key(Timestamp(a.0), RunNo(a.1));
            prop_assert_eq!(a.cmp(&b), left.cmp(&time_key(Timestamp(b.0), RunNo(b.1))));
            prop_assert_eq!(read_time_key(&left), Ok((Timestamp(a.0), RunNo(a.1))));
        }

        #[test]
        fn any_bytes_as_a_key_are_read_or_refused(bytes in any::<Vec<u8>>()) {
            let _ = split_id(&bytes);
            let _ = read_run_key(&bytes);
            let _ = read_time_key(&bytes);
            let _ = read_state_key(&bytes);
            let _ = read_state_code(&bytes);
        }
    }
}
