//! What a compaction copies: the frames of living runs in the victims, and what is still needed
//! of their evictions.
//!
//! - Every frame is checked before it is copied. A victim with damage in it is left alone: its
//!   bytes are evidence, and a copy would hide that a record is missing.
//! - A large record and its pieces move together, since the record says where the pieces are. So a
//!   segment that has one of them brings the segments that have the others.
//! - COMMITs are not copied: in a sealed segment the records of a batch count without. Neither are
//!   BINDs, which the output has of its own, nor holds that a later one replaced, nor pieces that
//!   no record came to refer to.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::engine::catalog::Catalog;
use crate::engine::recovery::{Item, lex, payload_of};
use crate::engine::segment::Segment;
use crate::error::{Error, Place, Result};
use crate::format::eviction::{Eviction, decode_evictions};
use crate::format::frame::{FLAG_PIECES, PieceRef, decode_pieces};
use crate::format::{FrameHeader, FrameKind};
use crate::types::{LogPosition, Lsn, RunNo, SegmentId};

/// A frame to be copied.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    /// The place of its segment among the victims.
    pub(super) victim: usize,
    pub(super) header: FrameHeader,
    /// The number of its payload among those that were compressed, if it was: the header is then
    /// that of the new frame, but for its position, which is still that of the first old one.
    pub(super) packed: Option<usize>,
}

/// What is copied of one run.
#[derive(Debug)]
pub(super) struct Moved {
    pub(super) run_no: RunNo,
    /// In the order of the log.
    pub(super) frames: Vec<Found>,
}

/// A segment that gives up its place.
#[derive(Debug)]
pub(super) struct Victim {
    pub(super) segment: Arc<Segment>,
    /// Its bytes, where the storage has no views.
    copy: Option<Vec<u8>>,
}

impl Victim {
    /// The payload of one of its frames.
    pub(super) fn payload(&self, header: &FrameHeader) -> &[u8] {
        let bytes = self.copy.as_deref().or_else(|| self.segment.mapped());
        payload_of(bytes.unwrap_or_default(), header)
    }
}

/// Evictions and their places in the order of the log.
pub(super) type Evictions = Vec<(Lsn, Eviction)>;

/// Everything that the victims have and the outputs will.
#[derive(Debug)]
pub(super) struct Gathered {
    pub(super) victims: Vec<Victim>,
    /// By run number.
    pub(super) runs: Vec<Moved>,
    /// Runs that the victims' directories list and that live, also those of which no frame is
    /// worth a copy.
    pub(super) listed: BTreeSet<RunNo>,
    pub(super) evictions: Evictions,
    /// Payloads that stand in the place of those of the victims.
    pub(super) packed: Vec<Vec<u8>>,
}

/// Why a set of victims does not do.
#[derive(Debug)]
pub(super) enum Obstacle {
    /// These must be victims too.
    Missing(BTreeSet<SegmentId>),
    /// This one cannot be a victim as things are.
    Unmovable(SegmentId),
}

/// What the engine knows besides the victims.
pub(super) struct Around<'a> {
    pub(super) catalog: &'a Catalog,
    pub(super) deleted: &'a HashSet<RunNo>,
    /// Whether a record that is in no segment of the catalog refers to a piece in this segment, or
    /// may come to do so.
    pub(super) is_awaited: &'a dyn Fn(RunNo, SegmentId) -> Result<bool>,
    /// Leaves out the evictions, and the receipts, that are not worth a copy.
    pub(super) keep_needed: &'a dyn Fn(&mut Evictions) -> Result<()>,
}

/// Reads the victims.
pub(super) fn gather(
    segments: &[Arc<Segment>],
    around: &Around<'_>,
) -> Result<core::result::Result<Gathered, Obstacle>> {
    let mut gathered = Gathered {
        victims: Vec::new(),
        runs: Vec::new(),
        listed: BTreeSet::new(),
        evictions: Vec::new(),
        packed: Vec::new(),
    };
    let mut runs: BTreeMap<RunNo, Vec<Found>> = BTreeMap::new();
    for segment in segments {
        if let Err(obstacle) = gathered.read(segment, around.deleted, &mut runs)? {
            return Ok(Err(obstacle));
        }
    }
    for (run_no, mut frames) in runs {
        // Each keeps its order for ever, so that this is the order in which they were appended.
        frames.sort_by_key(|found| found.header.lsn);
        keep_last_hold(&mut frames);
        if let Err(obstacle) = gathered.keep_used_pieces(run_no, &mut frames, around)? {
            return Ok(Err(obstacle));
        }
        if !frames.is_empty() {
            gathered.runs.push(Moved { run_no, frames });
        }
    }
    (around.keep_needed)(&mut gathered.evictions)?;
    Ok(Ok(gathered))
}

impl Gathered {
    /// Reads one victim.
    fn read(
        &mut self,
        segment: &Arc<Segment>,
        deleted: &HashSet<RunNo>,
        runs: &mut BTreeMap<RunNo, Vec<Found>>,
    ) -> Result<core::result::Result<(), Obstacle>> {
        let victim = self.victims.len();
        let bytes = segment.read_all()?;
        let end = segment.sealed().map_or(0, |sealed| sealed.end);
        self.list(segment, deleted)?;
        let damaged = Ok(Err(Obstacle::Unmovable(segment.id())));
        if segment.directory_damage().is_some() {
            return damaged;
        }
        let items = lex(&bytes, segment.frames());
        for item in items.iter().take_while(|item| item.offset() < end) {
            let Item::Frame(lexed) = item else { return damaged };
            let header = lexed.header;
            let dead = deleted.contains(&header.run_no);
            if lexed.payload.is_err() && !dead {
                return damaged;
            }
            match header.kind {
                FrameKind::Evict => self.read_evictions(&bytes, &header)?,
                FrameKind::Bind
                | FrameKind::Commit
                | FrameKind::Seal
                | FrameKind::Watermark
                | FrameKind::Origin => {}
                _ if dead => {}
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
        Ok(Ok(()))
    }

    fn read_evictions(&mut self, bytes: &[u8], header: &FrameHeader) -> Result<()> {
        let place = Place::Frame(header.position);
        let items = decode_evictions(payload_of(bytes, header))
            .map_err(|damage| Error::corrupt(place, damage))?;
        self.evictions.extend(items.into_iter().map(|item| (header.lsn, item)));
        Ok(())
    }

    fn list(&mut self, segment: &Arc<Segment>, deleted: &HashSet<RunNo>) -> Result<()> {
        let place = Place::Directory { segment: segment.id() };
        let directory = segment.directory(crate::engine::recovery::rebuild_directory)?;
        for slot in 0..directory.run_count() {
            let run_no = directory.run_no(slot);
            let run_no = run_no.map_err(|damage| Error::corrupt(place, damage))?;
            if !deleted.contains(&run_no) {
                self.listed.insert(run_no);
            }
        }
        Ok(())
    }

    /// The payload of a frame, as it is to be written.
    pub(super) fn payload(&self, found: &Found) -> &[u8] {
        let payload = match found.packed {
            Some(number) => self.packed.get(number).map(Vec::as_slice),
            None => self.victims.get(found.victim).map(|victim| victim.payload(&found.header)),
        };
        payload.unwrap_or_default()
    }

    /// The references of a record in pieces.
    fn references(&self, found: &Found) -> Result<Vec<PieceRef>> {
        let header = &found.header;
        let stored = self.payload(found);
        decode_pieces(stored.get(usize::from(header.name_len)..).unwrap_or_default())
            .map_err(|damage| Error::corrupt(Place::Frame(header.position), damage))
    }

    /// Leaves out the pieces that no record refers to. Records and pieces that belong together
    /// must all be here.
    fn keep_used_pieces(
        &self,
        run_no: RunNo,
        frames: &mut Vec<Found>,
        around: &Around<'_>,
    ) -> Result<core::result::Result<(), Obstacle>> {
        let is_piece = |found: &Found| found.header.kind == FrameKind::Piece;
        let in_pieces = |found: &Found| {
            found.header.kind == FrameKind::Record && found.header.flags & FLAG_PIECES != 0
        };
        if !frames.iter().any(|found| is_piece(found) || in_pieces(found)) {
            return Ok(Ok(()));
        }
        let mut used: HashSet<LogPosition> = HashSet::new();
        for found in frames.iter().filter(|found| in_pieces(found)) {
            used.extend(self.references(found)?.into_iter().map(|piece| piece.at));
        }
        let here: BTreeSet<SegmentId> =
            self.victims.iter().map(|victim| victim.segment.id()).collect();
        let mut missing: BTreeSet<SegmentId> =
            used.iter().map(|at| at.segment).filter(|id| !here.contains(id)).collect();
        let unused: BTreeSet<SegmentId> = frames
            .iter()
            .filter(|found| is_piece(found) && !used.contains(&found.header.position))
            .map(|found| found.header.position.segment)
            .collect();
        if !unused.is_empty() {
            missing.extend(owners(around.catalog, run_no, &here, &unused)?);
        }
        if let Some(gone) = missing.iter().find(|id| around.catalog.segment(**id).is_none()) {
            // Nothing is known of where the rest is: leave what refers to it alone.
            let at = used.iter().find(|at| at.segment == *gone);
            let held = at.and_then(|_| frames.iter().find(|found| in_pieces(found)));
            let id = held.map_or(*gone, |found| found.header.position.segment);
            return Ok(Err(Obstacle::Unmovable(id)));
        }
        if !missing.is_empty() {
            return Ok(Err(Obstacle::Missing(missing)));
        }
        for id in unused {
            if (around.is_awaited)(run_no, id)? {
                return Ok(Err(Obstacle::Unmovable(id)));
            }
        }
        frames.retain(|found| !is_piece(found) || used.contains(&found.header.position));
        Ok(Ok(()))
    }
}

/// The segments of the catalog with records of the run that refer to pieces in `pieces`.
fn owners(
    catalog: &Catalog,
    run_no: RunNo,
    here: &BTreeSet<SegmentId>,
    pieces: &BTreeSet<SegmentId>,
) -> Result<BTreeSet<SegmentId>> {
    let mut owners = BTreeSet::new();
    for span in catalog.run_state(run_no)?.spans {
        let Some(segment) = catalog.segment(span.segment).filter(|_| !here.contains(&span.segment))
        else {
            continue;
        };
        let directory = segment.directory(crate::engine::recovery::rebuild_directory)?;
        let place = Place::Directory { segment: segment.id() };
        let wrong = |damage| Error::corrupt(place, damage);
        let Some(slot) = directory.find_no(run_no).map_err(wrong)? else { continue };
        let mut before = None;
        for index in 0..directory.record_list(slot).map_err(wrong)?.1 {
            let offset = directory.record_offset(slot, index).map_err(wrong)?;
            // All records of a block are at one.
            if before.replace(offset) == Some(offset) {
                continue;
            }
            if refers_to(segment, offset, pieces)? {
                owners.insert(segment.id());
                break;
            }
        }
    }
    Ok(owners)
}

/// Whether the record at `offset` has a piece in one of these segments.
pub(super) fn refers_to(
    segment: &Segment,
    offset: u32,
    pieces: &BTreeSet<SegmentId>,
) -> Result<bool> {
    let header = segment.read_header(offset)?;
    if header.kind != FrameKind::Record || header.flags & FLAG_PIECES == 0 {
        return Ok(false);
    }
    let stored = segment.read_payload(&header)?;
    let references = decode_pieces(stored.get(usize::from(header.name_len)..).unwrap_or_default())
        .map_err(|damage| Error::corrupt(Place::Frame(header.position), damage))?;
    Ok(references.iter().any(|piece| pieces.contains(&piece.at.segment)))
}

/// Of several holds of a run only the latest says anything.
fn keep_last_hold(frames: &mut Vec<Found>) {
    let is_hold = |found: &Found| found.header.kind == FrameKind::Hold;
    let Some(last) = frames.iter().rev().find(|found| is_hold(found)) else { return };
    let last = last.header.lsn;
    frames.retain(|found| !is_hold(found) || found.header.lsn == last);
}

/// Where frames go and what their payloads are then, by where they were.
pub(super) type Places = HashMap<LogPosition, PieceRef>;
