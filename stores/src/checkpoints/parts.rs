//! Stores only those parts of a state that the thread does not have yet.
//!
//! A state is JSON, cut into parts ([`cut`](super::cut)). A part is a document `p/<name>` of its
//! thread. Its name is a digest of its bytes, or the next free name if another part has that name.
//! Bytes are compared before a part counts as stored, so two parts with one digest are never
//! confused.
//!
//! A checkpoint names the parts of its state, up to [`NAMES`] of them. If there are more, their
//! names are cut into nodes, which are parts too, and the checkpoint names those; and so on, up to
//! [`DEPTH`] times. So a state of 64 MiB needs only a few levels, and reading it reads no other
//! checkpoint.
//!
//! The checkpoint itself has the bytes behind the last cut, if they are short.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};

use super::cut::{cuts, most_parts, node_cuts};
use super::error::{CheckpointError, Defect};
use crate::digest::digest;
use runlog::{Error, Result, RunLog, SizedThing};

/// The longest state, in bytes of JSON.
pub(super) const MAX_STATE: u64 = 1 << 30;

/// The longest rest of a state that its checkpoint has. A separate document would cost about as
/// much.
const REST: usize = 256;

/// The most names in a checkpoint.
const NAMES: usize = 16;

/// The most levels of nodes.
const DEPTH: u8 = 12;

/// The bytes of a name in a node.
const NAME_LEN: usize = 8;

/// The prefix of the keys of parts.
pub(super) const PREFIX: &str = "p/";

/// The name of a part within its thread. In JSON it is 16 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct PartName(u64);

impl PartName {
    /// The key of the document.
    pub(super) fn key(self) -> String {
        format!("{PREFIX}{:016x}", self.0)
    }
}

impl PartName {
    /// The name of the part that has a key.
    pub(super) fn of_key(key: &str) -> Option<Self> {
        key.strip_prefix(PREFIX).and_then(|name| Self::try_from(name.to_owned()).ok())
    }
}

impl From<PartName> for String {
    fn from(name: PartName) -> Self {
        format!("{:016x}", name.0)
    }
}

impl TryFrom<String> for PartName {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        let is_name = text.len() == 16 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let number = u64::from_str_radix(&text, 16).ok().filter(|_| is_name);
        number.map(Self).ok_or("a part has a name of 16 hexadecimal digits")
    }
}

/// How a state is put together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Layout {
    /// The bytes of the state.
    len: u64,
    /// Their checksum.
    crc32: u32,
    /// The levels of nodes between these names and the parts.
    depth: u8,
    parts: Vec<PartName>,
}

/// What must be stored for a state.
pub(super) struct Plan {
    pub(super) layout: Layout,
    /// Where the rest of the state begins that the checkpoint has itself.
    pub(super) rest: usize,
    /// The keys and bytes of parts that the thread does not have yet.
    pub(super) fresh: Vec<(String, Vec<u8>)>,
}

/// The parts of a thread.
pub(super) struct Parts<'a> {
    pub(super) log: &'a RunLog,
    pub(super) namespace: &'a str,
}

impl Parts<'_> {
    /// Finds out what must be stored for a state.
    pub(super) fn plan(&self, state: &[u8]) -> Result<Plan> {
        let len = state.len() as u64;
        if len > MAX_STATE {
            return Err(Error::TooLarge { what: SizedThing::Record, len, max: MAX_STATE });
        }
        let mut fresh = BTreeMap::new();
        let (mut names, mut begin) = (Vec::new(), 0);
        let mut ends = cuts(state);
        if state.len() - ends.last().copied().unwrap_or(0) > REST {
            ends.push(state.len());
        }
        for end in ends {
            names.push(self.place(&state[begin..end], &mut fresh)?.0);
            begin = end;
        }
        let mut depth = 0;
        while names.len() > NAMES {
            let (mut nodes, mut first) = (Vec::new(), 0);
            for end in node_cuts(&names) {
                let node: Vec<u8> =
                    names[first..end].iter().flat_map(|name| name.to_be_bytes()).collect();
                nodes.push(self.place(&node, &mut fresh)?.0);
                first = end;
            }
            names = nodes;
            depth += 1;
        }
        let parts = names.into_iter().map(PartName).collect();
        let layout = Layout { len, crc32: crc32fast::hash(state), depth, parts };
        let fresh = fresh.into_iter().map(|(name, bytes)| (PartName(name).key(), bytes)).collect();
        Ok(Plan { layout, rest: begin, fresh })
    }

    /// The name of a part with these bytes: one that is stored, or one that is free.
    fn place(&self, bytes: &[u8], fresh: &mut BTreeMap<u64, Vec<u8>>) -> Result<PartName> {
        let mut name = digest(bytes);
        loop {
            if let Some(part) = fresh.get(&name) {
                if part == bytes {
                    return Ok(PartName(name));
                }
            } else {
                match self.log.docs().get(self.namespace, &PartName(name).key()) {
                    Ok(Some(part)) if part.payload() == bytes => return Ok(PartName(name)),
                    Ok(Some(_)) => {}
                    Ok(None) => {
                        fresh.insert(name, bytes.to_vec());
                        return Ok(PartName(name));
                    }
                    // This state cannot use it; it stays unchanged.
                    Err(error) if error.is_corruption() => {}
                    Err(error) => return Err(error),
                }
            }
            name = name.wrapping_add(1);
        }
    }

    /// Puts a state together. `key` is the key of its checkpoint, for errors.
    pub(super) fn state(
        &self,
        layout: &Layout,
        rest: &[u8],
        key: &str,
    ) -> Result<Vec<u8>, CheckpointError> {
        let damaged = |defect| CheckpointError::damaged(self.namespace, key, defect);
        if layout.len > MAX_STATE || layout.depth > DEPTH {
            return Err(damaged(Defect::Shape));
        }
        let mut names = layout.parts.clone();
        for _ in 0..layout.depth {
            let mut next = Vec::new();
            for name in names {
                next.extend(self.node(name)?);
                if next.len() as u64 > most_parts(layout.len) {
                    return Err(damaged(Defect::Checksum));
                }
            }
            names = next;
        }
        let mut state = Vec::new();
        for name in names {
            state.extend_from_slice(self.part(name)?.payload());
            if state.len() as u64 > layout.len {
                return Err(damaged(Defect::Checksum));
            }
        }
        state.extend_from_slice(rest);
        if state.len() as u64 != layout.len || crc32fast::hash(&state) != layout.crc32 {
            return Err(damaged(Defect::Checksum));
        }
        Ok(state)
    }

    /// Adds the names of all parts of a state. `nodes` are the nodes that were visited.
    pub(super) fn mark(
        &self,
        layout: &Layout,
        marked: &mut HashSet<PartName>,
        nodes: &mut HashSet<(u8, PartName)>,
    ) -> Result<(), CheckpointError> {
        let mut names = layout.parts.clone();
        marked.extend(&names);
        for depth in (0..layout.depth.min(DEPTH)).rev() {
            let mut next = HashSet::new();
            for name in names {
                // Another state has it too, at the same level.
                if nodes.insert((depth, name)) {
                    next.extend(self.node(name)?);
                }
            }
            marked.extend(&next);
            names = next.into_iter().collect();
        }
        Ok(())
    }

    /// The names that a node has.
    fn node(&self, name: PartName) -> Result<Vec<PartName>, CheckpointError> {
        let node = self.part(name)?;
        let (names, behind) = node.payload().as_chunks::<NAME_LEN>();
        if !behind.is_empty() {
            return Err(CheckpointError::damaged(self.namespace, &name.key(), Defect::Shape));
        }
        Ok(names.iter().map(|name| PartName(u64::from_be_bytes(*name))).collect())
    }

    fn part(&self, name: PartName) -> Result<runlog::Document, CheckpointError> {
        let key = name.key();
        let missing = || CheckpointError::damaged(self.namespace, &key, Defect::Missing);
        self.log.docs().get(self.namespace, &key)?.ok_or_else(missing)
    }
}
