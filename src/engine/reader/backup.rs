//! A copy of a store as of one moment, while it is written: segment by segment, each checked. What
//! an earlier copy in the same file has stays where it is.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use crate::engine::reader::Replica;
use crate::engine::reader::copied::{Copied, segments};
use crate::engine::reader::target::{Has, Listed, Owed, Target, frames_that_count, is_same};
use crate::engine::state::scan::records_in;
use crate::engine::state::segment::Segment;
#[cfg(any(test, feature = "unstable-internals"))]
use crate::engine::storage::Storage;
#[cfg(any(test, feature = "unstable-internals"))]
use crate::engine::storage::disk::Disk;
use crate::engine::storage::{Creation, FileStorage, OpenedFile};
use crate::error::{Corruption, Damage, Error, Place, Result};
use crate::format::codec::len_u32;
use crate::format::frames::block::seq_in;
use crate::format::frames::frame::SegmentKey;
use crate::format::map::manifest::Change;
use crate::format::map::superblock::{FLAG_CLEAN, FLAG_COPY, FLAG_DAMAGED_COPY, FLAG_UNRETURNED};
use crate::format::segments::segment::{Purpose, SEGMENT_HEADER_LEN};
use crate::format::{FrameHeader, FrameKind};
use crate::types::{ExtentNo, LogPosition, RunNo, SegmentId};

/// How often the copy goes on from a later moment, because the writer has moved what was to be
/// copied.
const MOMENTS: usize = 64;

/// Where the log ends. The ids of outputs say nothing about its order.
fn end_of(wanted: &[Copied]) -> LogPosition {
    let last = wanted.iter().rfind(|one| !one.segment.is_output());
    last.map_or(LogPosition::default(), |one| {
        let whole = one.segment.extent_size().bytes_u32();
        one.segment.position(one.sealed.map_or(one.end, |_| whole))
    })
}

/// What a backup copied.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
#[must_use = "what could not be read whole is in the report"]
pub struct Backup {
    /// Segments that were copied, or of which more was copied.
    pub copied_segments: u64,
    /// The bytes of these.
    pub copied_bytes: u64,
    /// Segments that the file had already.
    pub kept_segments: u64,
    /// Everything in front of this position is in the copy, and survives power loss there.
    pub end: LogPosition,
    /// Damage of what was copied. The copy has the damaged bytes as they are, until a later call
    /// finds whole ones in the store; until then each call names them. Also what the store has lost
    /// at the end of a segment, or with all of it, which the copy cannot have, until a writer has
    /// opened the store.
    pub damaged: Vec<Corruption>,
}

/// Copies the store to `path`.
pub(crate) fn backup(source: &Replica, path: &Path) -> Result<Backup> {
    match FileStorage::open_locked(path) {
        Err(Error::NotFound { .. }) => {
            let creation = Creation::begin(path)?;
            let storage = Arc::<FileStorage>::clone(creation.storage());
            let mut report = Backup::default();
            let mut target = Target::new(source, storage)?;
            target.fill(source, &mut report)?;
            drop(target);
            drop(creation.finish()?);
            Ok(report)
        }
        Ok(OpenedFile::Locked(storage)) => {
            let taken = || Error::AlreadyExists { path: path.to_owned() };
            let mut target = Target::open(source, Arc::new(storage))?.ok_or_else(taken)?;
            let mut report = Backup::default();
            target.fill(source, &mut report)?;
            Ok(report)
        }
        Ok(OpenedFile::Busy(_)) => Err(Error::Busy { path: path.to_owned(), owner: None }),
        Err(error) => Err(error),
    }
}

/// The same into a storage: an empty one, or one that has an earlier copy.
#[cfg(any(test, feature = "unstable-internals"))]
pub(crate) fn backup_to_storage(source: &Replica, storage: Arc<dyn Storage>) -> Result<Backup> {
    let is_empty = Disk::new(Arc::clone(&storage)).len()? == 0;
    let mut target = if is_empty {
        Target::new(source, storage)?
    } else {
        let what = "the storage must be empty or have an earlier copy of this store";
        Target::open(source, storage)?.ok_or(Error::InvalidArgument { what })?
    };
    let mut report = Backup::default();
    target.fill(source, &mut report)?;
    Ok(report)
}

impl Target {
    /// Copies what the file does not have, until all of one moment is there, and makes it count.
    fn fill(&mut self, source: &Replica, report: &mut Backup) -> Result<()> {
        source.refresh()?;
        let mut refused = None;
        for _ in 0..MOMENTS {
            let view = source.number();
            report.kept_segments = 0;
            self.take_back();
            let mut wanted = match self.wanted(source) {
                // A view of which the writer changed a part while it was read may lack something.
                Err(Error::CopyHasMore { at })
                    if refused.replace(at) != Some(at) && source.was_overtaken(view)? =>
                {
                    continue;
                }
                wanted => wanted?,
            };
            refused = None;
            self.begin()?;
            self.expect_segments(source)?;
            if self.copy_all(source, view, &mut wanted, report)? {
                return self.make_it_count(source, &wanted, report);
            }
        }
        Err(Error::Overtaken { attempts: MOMENTS as u64 })
    }

    /// What is to be copied, if the store owes the copy nothing else.
    fn wanted(&mut self, source: &Replica) -> Result<Vec<Copied>> {
        self.owed = self.owed(source)?;
        self.refuse_shorter(source)?;
        let wanted = segments(source)?;
        self.refuse_unlisted(source, &wanted)?;
        Ok(wanted)
    }

    /// What the store cannot miss of the earlier copy, as the source is now.
    fn owed(&self, source: &Replica) -> Result<Owed> {
        let Some(earlier) = self.earlier else { return Ok(Owed::default()) };
        let (block, report) = (source.superblock()?, source.report());
        let went_on = block.salvage != earlier.salvage;
        let segments = went_on;
        if block.flags & FLAG_COPY != 0 {
            return Ok(Owed { segments, ..Owed::default() });
        }
        // What a reader leaves out that is not durable may be in the copy.
        let wants_all = source.wants_all();
        let all = false;
        let has_lost = went_on || !report.damaged.is_empty();
        let went_on = wants_all && went_on;
        let has_lost = wants_all && has_lost;
        Ok(Owed { by_store: true, all, floor: earlier.floor, segments, has_lost, went_on })
    }

    /// Refuses if the log ends in front of the end of the copy, and not for a loss of power.
    fn refuse_shorter(&self, source: &Replica) -> Result<()> {
        let (owed, end) = (self.owed, source.end()?);
        let is_shorter = self.earlier.is_some_and(|earlier| end < earlier.end);
        let is_owed = owed.all || owed.has_lost || end < source.floor().max(owed.floor);
        if is_shorter && is_owed { Err(Error::CopyHasMore { at: end }) } else { Ok(()) }
    }

    /// Refuses if the store may have lost a segment that the copy has, or what was moved out of it:
    /// it has another one under its id, or less of its runs, or tells of a loss.
    fn refuse_unlisted(&self, source: &Replica, wanted: &[Copied]) -> Result<()> {
        let owed = self.owed;
        let is_wanted = |key| wanted.iter().any(|one| key_of(&one.segment) == key);
        let is_other = |id| wanted.iter().any(|one| key_of(&one.segment).0 == id);
        let listed = self.has.iter().filter(|(_, has)| has.listed != Listed::No);
        let gone: BTreeMap<_, _> = listed.filter(|(key, _)| !is_wanted(**key)).collect();
        let mut records = HashMap::new();
        let next = source.superblock()?.next_segment;
        for (&(id, salt), has) in gone {
            let key = SegmentKey { id: SegmentId(id), salt };
            let at = LogPosition { segment: key.id, offset: SEGMENT_HEADER_LEN };
            // The store knew of it durably in front of its first frame (O4), so it was set back.
            let is_unknown = owed.by_store && key.id >= next && has.end > SEGMENT_HEADER_LEN;
            if owed.segments || is_unknown || (owed.has(at) && is_other(id)) {
                return Err(Error::CopyHasMore { at });
            }
            if owed.by_store {
                self.refuse_shortened(source, (key, *has), &mut records)?;
            }
        }
        Ok(())
    }

    /// Refuses if a run of the store has fewer records than a segment of the copy, from which the
    /// store has moved it. `records` has those of the runs that were asked for already.
    fn refuse_shortened(
        &self,
        source: &Replica,
        (key, has): (SegmentKey, Has),
        records: &mut HashMap<RunNo, Option<u64>>,
    ) -> Result<()> {
        let bytes = self.read(has)?;
        // What compaction has moved had survived power loss.
        let is_output = has.purpose == Purpose::Output;
        for lexed in frames_that_count(&bytes, key, has) {
            let FrameHeader { kind, run_no, position: at, .. } = lexed.header;
            let last = records_in(&lexed.header).and_then(|count| count.checked_sub(1));
            // Of a damaged block some records may be whole.
            let is_lost = kind == FrameKind::Record && lexed.payload.is_err();
            let is_owed = is_output || self.owed.has(at);
            let is_record = run_no.0 != 0 && is_owed && !is_lost;
            let Some(last) = last.filter(|_| is_record) else { continue };
            let seq = seq_in(&lexed.header, last);
            let there = match records.get(&run_no) {
                Some(known) => *known,
                None => source.answers.row_of(run_no)?.map(|row| row.next_seq.0),
            };
            records.insert(run_no, there);
            if there.is_some_and(|next| next <= seq.0) {
                return Err(Error::CopyHasMore { at });
            }
        }
        Ok(())
    }

    /// Says, durably and in front of the first byte, that free extents may have bytes, so that the
    /// next update clears them if this one breaks off (O23). Also if an earlier one said so, since
    /// its sync may have failed.
    fn begin(&mut self) -> Result<()> {
        if !self.has_begun {
            // This may overwrite the slot with the larger position.
            let end = self.stated.end;
            self.allocator.write_superblock(|block| {
                block.durable = block.durable.max(end);
                block.flags |= FLAG_UNRETURNED;
            })?;
            self.has_begun = true;
        }
        Ok(())
    }

    /// Sees to it that both superblocks know the numbers of all segments to be copied: frames of a
    /// segment that they do not know, in a free extent, would tell of a lost manifest (R1).
    fn expect_segments(&mut self, source: &Replica) -> Result<()> {
        let next = source.superblock()?.next_segment;
        if self.stated.next_segment < next {
            for _ in 0..2 {
                self.allocator.write_superblock(|block| block.next_segment = next)?;
            }
            self.stated.next_segment = next;
        }
        Ok(())
    }

    /// Copies what the file does not have; answers whether the writer has left all of it alone.
    fn copy_all(
        &mut self,
        source: &Replica,
        view: u64,
        wanted: &mut [Copied],
        report: &mut Backup,
    ) -> Result<bool> {
        for one in wanted {
            let key = key_of(&one.segment);
            let known = self.has.get(&key).copied();
            let same = known.filter(|has| is_same(has.sealed, one.sealed));
            // What is wrong with the copy of it, also if this call made it a moment ago.
            let mut there = Vec::new();
            if let Some(has) = same {
                if self.is_damaged() || self.damaged.contains_key(&key) {
                    one.check((has.extent, &self.read(has)?), &mut there);
                }
                if there.is_empty() {
                    self.damaged.remove(&key);
                    report.kept_segments += 1;
                    continue;
                }
            }
            let mut odd = Vec::new();
            let mut bytes = one.read(&mut odd)?;
            let seen = one.within_segment(&odd);
            if !self.doubt.confirms(&seen, view, source.number()) && source.was_overtaken(view)? {
                return Ok(false);
            }
            let is_odd = !odd.is_empty();
            if let Some(has) = same.filter(|_| is_odd) {
                // Each of the two may have what the other one lost, and what is replaced is gone.
                let Some(united) = one.united(&bytes, &self.read(has)?) else {
                    self.damaged.insert(key, there);
                    report.kept_segments += 1;
                    continue;
                };
                bytes = united;
            } else {
                // What this call copied before does not count yet.
                let counted = known.filter(|has| has.listed != Listed::No);
                self.mend(source, one, &mut bytes, counted.filter(|_| is_odd))?;
                one.close(&mut bytes);
                self.refuse_other(one, &bytes, counted)?;
            }
            let (extent, from) = self.place_for(key, one.sealed, &bytes)?;
            if is_odd {
                odd.clear();
                one.check((extent, &bytes), &mut odd);
            }
            self.damaged.remove(&key);
            if !odd.is_empty() {
                self.damaged.insert(key, odd);
            }
            let at = one.segment.extent_size().offset_of(extent);
            let new = bytes.get(from..).unwrap_or_default();
            if new.is_empty() {
                report.kept_segments += 1;
            } else {
                self.disk.write(at + from as u64, new)?;
                report.copied_segments += 1;
                report.copied_bytes += new.len() as u64;
            }
            let is_here = known.filter(|has| has.extent == extent);
            let listed = is_here.map_or(Listed::No, |has| has.listed);
            let (sealed, purpose, end) = (one.sealed, one.segment.purpose(), len_u32(bytes.len()));
            self.has.insert(key, Has { extent, end, sealed, purpose, listed });
        }
        Ok(true)
    }

    /// Puts what the copy has of a segment in place of what the store has lost of it since. A
    /// process that had the store open meanwhile may have given numbers again, or gone on with
    /// what was lost: then the copy stays as it is.
    fn mend(
        &self,
        source: &Replica,
        one: &mut Copied,
        bytes: &mut [u8],
        has: Option<Has>,
    ) -> Result<()> {
        let Some(has) = has else { return Ok(()) };
        let there = self.read(has)?;
        one.mend_header(bytes, &there);
        let lost = one.lost(bytes, &there);
        let Some(first) = lost.first() else { return Ok(()) };
        let used = one.last_order(&there);
        let earlier = self.earlier.map(|earlier| earlier.is_same_session(source, used));
        if earlier.transpose()? != Some(true) || !lost.is_same_log {
            return Err(Error::CopyHasMore { at: one.segment.position(first) });
        }
        one.mend(bytes, &there, &lost)
    }

    /// Refuses to replace a segment of the copy by bytes without a frame that is there, unless a
    /// loss of power may have taken that away.
    fn refuse_other(&self, one: &Copied, bytes: &[u8], counted: Option<Has>) -> Result<()> {
        let Some(has) = counted else { return Ok(()) };
        let other = one.first_other(bytes, &self.read(has)?).map(|at| one.segment.position(at));
        let is_owed = |at: &LogPosition| self.owed.went_on || self.owed.has(*at);
        other.filter(is_owed).map_or(Ok(()), |at| Err(Error::CopyHasMore { at }))
    }

    /// Whether the file may have damaged bytes.
    fn is_damaged(&self) -> bool {
        self.allocator.superblock.flags & FLAG_DAMAGED_COPY != 0
    }

    /// Makes what was copied the state of the file, durably, and frees what it does not need.
    fn make_it_count(
        &mut self,
        source: &Replica,
        wanted: &[Copied],
        report: &mut Backup,
    ) -> Result<()> {
        let mut changes = Vec::new();
        let mut needed: BTreeMap<(u32, u64), ExtentNo> = BTreeMap::new();
        for one in wanted {
            let key = key_of(&one.segment);
            let Some(has) = self.has.get(&key).copied() else { continue };
            needed.insert(key, has.extent);
            let (segment, extent) = (one.segment.id(), has.extent);
            if has.listed == Listed::No {
                let (salt, purpose) = (one.segment.key().salt, one.segment.purpose());
                changes.push(Change::Reserve { extent, segment, salt, purpose });
            }
            if let Some(at) = has.sealed.filter(|_| has.listed != Listed::Sealed) {
                changes.push(Change::Seal { extent, segment, at });
            }
        }
        let end = end_of(wanted);
        let is_needed = |id: u32| needed.range((id, 0)..=(id, u64::MAX)).next().is_some();
        let gone = self.has.iter().filter(|(key, _)| !needed.contains_key(*key));
        // No two extents have the same segment: what is replaced is free at once.
        let (same, others): (Vec<_>, Vec<_>) = gone.partition(|(key, _)| is_needed(key.0));
        let replaced = core::mem::take(&mut self.replaced).into_iter();
        let replaced = replaced.chain(core::mem::take(&mut self.counted).into_values());
        let replaced: Vec<Has> = replaced.chain(same.into_iter().map(|(_, has)| *has)).collect();
        let others: Vec<Has> = others.into_iter().map(|(_, has)| *has).collect();
        let is_listed = |has: &&Has| has.listed != Listed::No;
        let free = |has: &Has| Change::Free { extent: has.extent };
        let retire = |has: &Has| Change::Retire { extent: has.extent };
        let first = replaced.iter().filter(is_listed).map(free);
        let retired: Vec<Has> = others.iter().filter(is_listed).copied().collect();
        let changes: Vec<Change> = first.chain(retired.iter().map(retire)).chain(changes).collect();
        for has in replaced.iter().chain(&others).filter(|has| has.listed == Listed::No) {
            self.allocator.let_go(has.extent);
        }
        self.disk.sync()?;
        self.state_less(end)?;
        let damaged = wanted.iter().filter_map(|one| self.damaged.get(&key_of(&one.segment)));
        report.damaged = damaged.flatten().cloned().collect();
        let is_damaged = !report.damaged.is_empty();
        report.damaged.extend(lost_behind(end, wanted, source));
        if is_damaged && !self.is_damaged() {
            // Whichever slot is lost.
            for _ in 0..2 {
                self.allocator.write_superblock(|block| block.flags |= FLAG_DAMAGED_COPY)?;
            }
        }
        self.allocator.commit_durably(&changes)?;
        let now = source.superblock()?;
        let damaged = if is_damaged { FLAG_DAMAGED_COPY } else { 0 };
        self.allocator.write_superblock(|block| {
            block.flags = FLAG_CLEAN | FLAG_COPY | FLAG_UNRETURNED | damaged;
            block.durable = end;
            (block.next_run_no, block.next_lsn) = (now.next_run_no, now.next_lsn);
            (block.next_segment, block.boot_id) = (now.next_segment, now.boot_id);
            (block.salvage, block.dead) = (now.salvage, now.dead);
        })?;
        self.free(&retired)?;
        report.end = end;
        Ok(())
    }

    /// If the file is to have less than it states, states less. The floor is the larger position of
    /// both slots. It stays as far as frames are there before and after: without it, damage would
    /// end the log in another boot (R4).
    fn state_less(&mut self, end: LogPosition) -> Result<()> {
        if end < self.stated.end {
            for _ in 0..2 {
                self.allocator.write_superblock(|block| block.durable = end)?;
            }
            self.stated.end = end;
        }
        Ok(())
    }

    /// Frees segments that were retired, as a writer does (O6).
    fn free(&mut self, retired: &[Has]) -> Result<()> {
        let size = self.allocator.superblock.extent_size;
        if !retired.is_empty() {
            for has in retired {
                self.disk.zero(size.offset_of(has.extent), SEGMENT_HEADER_LEN as usize)?;
            }
            self.disk.sync()?;
            let free = |has: &Has| Change::Free { extent: has.extent };
            let changes: Vec<Change> = retired.iter().map(free).collect();
            self.allocator.commit_durably(&changes)?;
            self.allocator.cover()?;
        }
        let end = self.allocator.manifest.end_in_use();
        if self.disk.len()? > end {
            self.disk.set_len(end)?;
        }
        let mut freed = core::mem::take(&mut self.allocator.freed);
        // What was let go may have an owner again by now: a segment or the manifest.
        freed.retain(|extent| self.allocator.manifest.is_free(*extent));
        let freed: Vec<ExtentNo> = freed.into_iter().collect();
        for row in freed.chunk_by(|one, next| one.0 + 1 == next.0) {
            let first = row.first().copied().unwrap_or_default();
            self.allocator.punch(first, row.len() as u64)?;
        }
        self.disk.sync()?;
        self.allocator.write_superblock(|block| block.flags &= !FLAG_UNRETURNED)
    }
}

/// What the store has lost behind the last frame of a segment, or with all of it, so that it is in
/// nothing that is copied.
fn lost_behind(end: LogPosition, wanted: &[Copied], source: &Replica) -> Vec<Corruption> {
    let is_cut = |at: LogPosition| {
        let mut same = wanted.iter().filter(|one| one.segment.id() == at.segment);
        at >= end || same.any(|one| at.offset >= one.end)
    };
    // What was not durable is told of only if neither a kill nor a loss of power explains it.
    let is_gone = |damage| matches!(damage, Damage::Missing | Damage::Truncated);
    let is_copied = |extent| wanted.iter().any(|one| one.segment.extent() == extent);
    let is_lost = |damage: &&Corruption| match damage.place {
        Place::Frame(at) => is_gone(damage.damage) && is_cut(at),
        // A segment with its header.
        Place::Extent { extent } => is_gone(damage.damage) && !is_copied(extent),
        _ => false,
    };
    source.report().damaged.iter().filter(is_lost).cloned().collect()
}

fn key_of(segment: &Segment) -> (u32, u64) {
    let SegmentKey { id, salt } = segment.key();
    (id.0, salt)
}
