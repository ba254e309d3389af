//! What a compaction copies: the frames of living runs in the victims, and needed evictions.
//!
//! - Every frame is checked before it is copied. A victim with damage, or with a frame of a run
//!   that no directory names, is left alone: a copy would hide that a record is missing.
//! - What a PUT evicts is an item of its own, and the copy of the PUT evicts nothing.
//! - COMMITs are not copied: in a sealed segment the records of a batch count without it. BINDs are
//!   not copied, since the output has its own, nor holds that a later one replaced.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use crate::engine::state::scan::{Item, lex, payload_of};
use crate::engine::state::segment::Segment;
use crate::error::Error;
use crate::format::codec::Decoded;
use crate::format::frames::block::BlockHead;
use crate::format::frames::eviction::{Eviction, decode_evictions};
use crate::format::frames::ids::decode_put;
use crate::format::segments::run_set::RunSet;
use crate::format::{Directory, FrameHeader, FrameKind, RunEntry};
use crate::index::RunRow;
use crate::types::{Lsn, RunNo, SegmentId, Timestamp};

/// A frame to copy.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    /// The index of its segment among the victims.
    pub(super) victim: usize,
    pub(super) header: FrameHeader,
    /// The index of its compressed payload, if it was compressed. Then the header is that of the
    /// new frame, except for the position, which is still that of the first old frame.
    pub(super) packed: Option<usize>,
}

/// The frames of one run to copy.
#[derive(Debug)]
pub(super) struct Moved {
    pub(super) run_no: RunNo,
    /// In the order of the log.
    pub(super) frames: Vec<Found>,
}

/// A segment to replace.
#[derive(Debug)]
pub(super) struct Victim {
    pub(super) segment: Arc<Segment>,
    /// Its bytes, if the storage has no views.
    copy: Option<Vec<u8>>,
}

impl Victim {
    /// The payload of one of its frames.
    pub(super) fn payload(&self, header: &FrameHeader) -> &[u8] {
        let bytes = self.copy.as_deref().or_else(|| self.segment.mapped());
        payload_of(bytes.unwrap_or_default(), header)
    }
}

/// Evictions and their orders in the log.
pub(super) type Evictions = Vec<(Lsn, Eviction)>;

/// What the directories of some segments say of runs, by number.
pub(super) type Living = BTreeMap<RunNo, Folded>;

/// The fold of some of the entries of a run.
#[derive(Debug, Clone)]
pub(super) struct Folded {
    pub(super) row: RunRow,
    /// When the run was created, if one of the entries says it.
    created_at: Option<Timestamp>,
}

impl Folded {
    /// Whether both say the same of the contents of the run, wherever its frames are and however
    /// many bytes they take.
    pub(super) fn says_the_same(&self, other: &Self) -> bool {
        let contents = |folded: &Self| {
            let mut row = folded.row.clone().without_places();
            (row.created_at, row.stored) = (Timestamp::default(), 0);
            row.segments.clear();
            (folded.created_at, row)
        };
        contents(self) == contents(other)
    }
}

/// All contents of the victims that the outputs will have.
#[derive(Debug)]
pub(super) struct Gathered {
    pub(super) victims: Vec<Victim>,
    /// By run number.
    pub(super) runs: Vec<Moved>,
    /// The living runs in the victims' directories.
    pub(super) living: Living,
    pub(super) evictions: Evictions,
    /// Compressed payloads, which replace those of the victims.
    pub(super) packed: Vec<Vec<u8>>,
}

/// Why a set of victims cannot be compacted.
#[derive(Debug)]
pub(super) enum Obstacle {
    /// This one cannot be a victim in its present state, or could not be read.
    Unmovable(SegmentId, Option<Error>),
    /// They could not be read, or the store is being closed.
    Failed(Error),
}

impl From<Error> for Obstacle {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// The living runs in the directories of segments.
pub(super) fn living_runs(
    segments: &[Arc<Segment>],
    deleted: &RunSet,
    is_stopping: impl Fn() -> bool,
) -> Result<Living, Obstacle> {
    let mut all = Living::new();
    for segment in segments {
        if is_stopping() {
            return Err(Error::Closed.into());
        }
        let entries = segment.in_directory(|directory| entries_in(&directory, deleted));
        let entries = entries.map_err(|error| unreadable(segment.id(), error))?;
        for entry in entries {
            let new = || Folded { row: RunRow::first(segment.id(), &entry), created_at: None };
            let folded = match all.entry(entry.run_no) {
                Entry::Occupied(known) => {
                    let folded = known.into_mut();
                    folded.row.apply(segment.id(), &entry);
                    folded
                }
                Entry::Vacant(place) => place.insert(new()),
            };
            folded.created_at = folded.created_at.or(entry.created_at);
        }
    }
    Ok(all)
}

/// A segment that the disk cannot read, or that is damaged, stays: others can move.
fn unreadable(id: SegmentId, error: Error) -> Obstacle {
    match error {
        Error::Io { .. } => Obstacle::Unmovable(id, Some(error)),
        Error::Corrupt(_) => Obstacle::Unmovable(id, None),
        error => Obstacle::Failed(error),
    }
}

/// Reads the victims, in which these runs live.
pub(super) fn gather(
    segments: &[Arc<Segment>],
    living: Living,
    deleted: &RunSet,
    is_stopping: impl Fn() -> bool,
) -> Result<Gathered, Obstacle> {
    let mut gathered = Gathered {
        victims: Vec::new(),
        runs: Vec::new(),
        living,
        evictions: Vec::new(),
        packed: Vec::new(),
    };
    let mut runs: BTreeMap<RunNo, Vec<Found>> = BTreeMap::new();
    for segment in segments {
        if is_stopping() {
            return Err(Error::Closed.into());
        }
        let is_whole = gathered.read(segment, deleted, &mut runs);
        if !is_whole.map_err(|error| unreadable(segment.id(), error))? {
            return Err(Obstacle::Unmovable(segment.id(), None));
        }
    }
    for (run_no, mut frames) in runs {
        // Each frame keeps its order for ever, so this is the order of the appends.
        frames.sort_by_key(|found| gathered.place_of(found));
        keep_last_hold(&mut frames);
        gathered.runs.push(Moved { run_no, frames });
    }
    Ok(gathered)
}

impl Gathered {
    /// Reads one victim; returns whether it is whole.
    fn read(
        &mut self,
        segment: &Arc<Segment>,
        deleted: &RunSet,
        runs: &mut BTreeMap<RunNo, Vec<Found>>,
    ) -> Result<bool, Error> {
        let victim = self.victims.len();
        let bytes = segment.read_all()?;
        let end = segment.sealed().map_or(0, |sealed| sealed.end);
        let items = lex(&bytes, segment.frames());
        for item in items.iter().take_while(|item| item.offset() < end) {
            let Item::Frame(lexed) = item else { return Ok(false) };
            let header = lexed.header;
            let dead = deleted.contains(header.run_no);
            if lexed.payload.is_err() && !dead {
                return Ok(false);
            }
            if header.kind == FrameKind::Put {
                let Ok((.., replaced, _)) = decode_put(payload_of(&bytes, &header)) else {
                    return Ok(false);
                };
                let item = replaced.map(|run_no| Eviction { run_no, receipt: None });
                self.evictions.extend(item.map(|item| (header.lsn, item)));
            }
            match header.kind {
                FrameKind::Evict => match decode_evictions(payload_of(&bytes, &header)) {
                    Ok(items) => {
                        self.evictions.extend(items.into_iter().map(|item| (header.lsn, item)));
                    }
                    Err(_) => return Ok(false),
                },
                FrameKind::Bind | FrameKind::Commit | FrameKind::Seal | FrameKind::Watermark => {}
                _ if dead => {}
                _ if !self.living.contains_key(&header.run_no) => return Ok(false),
                _ => runs.entry(header.run_no).or_default().push(Found {
                    victim,
                    header,
                    packed: None,
                }),
            }
        }
        let copy = match bytes {
            Cow::Borrowed(_) => None,
            Cow::Owned(bytes) => Some(bytes),
        };
        self.victims.push(Victim { segment: Arc::clone(segment), copy });
        Ok(true)
    }

    /// The slice that a frame is a part of.
    pub(super) fn slice_of(&self, found: &Found) -> Option<Lsn> {
        match found.header.kind {
            FrameKind::Piece => Some(found.header.lsn),
            FrameKind::Block => {
                let (head, _) = BlockHead::decode(&found.header, self.payload(found)).ok()?;
                head.slice.map(|slice| slice.slice)
            }
            _ => None,
        }
    }

    /// Where a frame is among those of its run: the frames of a slice are where its first record
    /// is.
    pub(super) fn place_of(&self, found: &Found) -> Lsn {
        self.slice_of(found).unwrap_or(found.header.lsn)
    }

    /// The payload of a frame, as it will be written.
    pub(super) fn payload(&self, found: &Found) -> &[u8] {
        let payload = match found.packed {
            Some(number) => self.packed.get(number).map(Vec::as_slice),
            None => self.victims.get(found.victim).map(|victim| victim.payload(&found.header)),
        };
        payload.unwrap_or_default()
    }
}

/// The entries of the living runs in a directory.
fn entries_in(directory: &Directory<'_>, deleted: &RunSet) -> Decoded<Vec<RunEntry>> {
    let mut entries = Vec::new();
    for slot in 0..directory.run_count() {
        if !deleted.contains(directory.run_no(slot)?) {
            entries.push(directory.run(slot)?);
        }
    }
    Ok(entries)
}

/// Of several holds of a run only the latest counts.
fn keep_last_hold(frames: &mut Vec<Found>) {
    let is_hold = |found: &Found| found.header.kind == FrameKind::Hold;
    let Some(last) = frames.iter().rev().find(|found| is_hold(found)) else { return };
    let last = last.header.lsn;
    frames.retain(|found| !is_hold(found) || found.header.lsn == last);
}
