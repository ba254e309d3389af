//! One step of a compaction: planned, written, and made to count.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use super::gather::{Around, Evictions, Gathered, Obstacle, Victim, gather, refers_to};
use super::output::{Layout, Names, Writing, lay_out, places};
use super::pack::pack;
use super::{Compacting, Goal, Step};
use crate::engine::catalog::Catalog;
use crate::engine::options::Compression;
use crate::engine::recovery::rebuild_directory;
use crate::engine::segment::Segment;
use crate::engine::shared::Engine;
use crate::error::{Error, Place, Result};
use crate::format::SegmentKey;
use crate::format::manifest::Change;
use crate::format::segment::Purpose;
use crate::index::Span;
use crate::types::{ExtentNo, Lsn, RunNo, SegmentId};

/// The bytes that are written at once. While they are, an append may wait for the file.
const CHUNK: usize = 128 << 10;

/// The order of the runs in the outputs.
pub(super) struct Order {
    /// Their places among the runs that move.
    runs: Vec<usize>,
    /// So many of them are here as a whole.
    whole: usize,
}

/// One step as it was planned.
pub(super) struct Job {
    pub(super) gathered: Gathered,
    /// Of each run that moves, where it was.
    pub(super) spans: BTreeMap<RunNo, Vec<Span>>,
    /// The runs among them that have ended.
    ended: HashSet<RunNo>,
    names: Names,
    pub(super) catalog: Arc<Catalog>,
}

impl Job {
    /// Nothing of it comes from the log as it was written.
    pub(super) fn is_in_order(&self) -> bool {
        self.gathered.victims.iter().all(|victim| victim.segment.is_output())
    }
}

impl Engine {
    pub(super) fn plan_job(
        &self,
        wanted: &[SegmentId],
    ) -> Result<core::result::Result<Job, Obstacle>> {
        let (catalog, deleted, retired) = {
            let core = self.core.lock();
            self.check_open(&core)?;
            (Arc::clone(&core.catalog), Arc::clone(&core.deleted), core.retired.clone())
        };
        let ids: BTreeSet<SegmentId> = wanted.iter().copied().collect();
        let victims: Vec<Arc<Segment>> =
            ids.iter().filter_map(|id| catalog.segment(*id)).cloned().collect();
        let others: Vec<Arc<Segment>> = catalog
            .segments()
            .iter()
            .chain(&retired)
            .filter(|segment| !ids.contains(&segment.id()))
            .cloned()
            .collect();
        drop(retired);
        let receipts = self.kept_receipts();
        let keep_needed = |evictions: &mut Evictions| {
            let mut asked = Vec::new();
            for (_, eviction) in evictions.iter_mut() {
                if !receipts.keeps(eviction)? {
                    eviction.receipt = None;
                    asked.push(eviction.run_no);
                }
            }
            asked.sort_unstable();
            let elsewhere = runs_in(&others, &asked)?;
            evictions.retain(|(_, eviction)| {
                eviction.receipt.is_some() || elsewhere.contains(&eviction.run_no)
            });
            Ok(())
        };
        let is_awaited = |run_no, piece| self.is_piece_awaited(&catalog, run_no, piece);
        let around = Around {
            catalog: &catalog,
            deleted: &deleted,
            is_awaited: &is_awaited,
            keep_needed: &keep_needed,
        };
        let gathered = match gather(&victims, &around)? {
            Ok(gathered) => gathered,
            Err(obstacle) => return Ok(Err(obstacle)),
        };
        let (mut spans, mut ended, mut open) = (BTreeMap::new(), HashSet::new(), Vec::new());
        for &run_no in &gathered.listed {
            let state = catalog.run_state(run_no)?;
            match state.row {
                Some(row) if row.document => {}
                Some(row) if row.status.is_ended() => drop(ended.insert(run_no)),
                _ => open.push(run_no),
            }
            let all = state.spans;
            if let Some(between) = stays_between(&all, &ids) {
                return Ok(Err(between));
            }
            spans.insert(run_no, all);
        }
        if self.options.compression != Compression::None {
            ended.extend(self.ended_since(&open));
        }
        let names = names_of(&victims, &gathered)?;
        Ok(Ok(Job { gathered, spans, ended, names, catalog }))
    }

    /// Whether a record that `catalog` does not know refers to a piece in this segment, or may come
    /// to do so.
    fn is_piece_awaited(&self, catalog: &Catalog, run_no: RunNo, piece: SegmentId) -> Result<bool> {
        let (segments, tail, offsets) = {
            let core = self.core.lock();
            if core.writing_pieces.values().any(|first| *first <= piece) {
                return Ok(true);
            }
            let offsets = core.tail.builder.run(run_no).map(|built| built.offsets.clone());
            // What was sealed when the step was planned may be in the catalog by now.
            let applied = core.catalog.segments().iter();
            let applied = applied.filter(|segment| catalog.segment(segment.id()).is_none());
            let segments: Vec<_> = applied.chain(&core.unapplied).cloned().collect();
            (segments, Arc::clone(&core.tail.segment), offsets.unwrap_or_default())
        };
        let pieces = BTreeSet::from([piece]);
        for offset in offsets {
            if refers_to(&tail, offset, &pieces)? {
                return Ok(true);
            }
        }
        for segment in segments {
            let directory = segment.directory(rebuild_directory)?;
            let place = Place::Directory { segment: segment.id() };
            let wrong = |damage| Error::corrupt(place, damage);
            let Some(slot) = directory.find_no(run_no).map_err(wrong)? else { continue };
            for index in 0..directory.record_list(slot).map_err(wrong)?.1 {
                let offset = directory.record_offset(slot, index).map_err(wrong)?;
                if refers_to(&segment, offset, &pieces)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Compresses what is cold, if that is asked for. No lock is held but that of compaction.
    pub(super) fn pack(&self, job: &mut Job) {
        if let Some(mut compressor) = self.options.compression.compressor() {
            pack(&mut job.gathered, &job.ended, &mut compressor, self.extent_size);
        }
    }

    /// What goes into which output.
    pub(super) fn lay_out(&self, job: &Job) -> (Order, Vec<Layout>) {
        let order = self.order_of(job);
        let layouts = lay_out(&job.gathered, &order.runs, &job.names, self.extent_size);
        (order, layouts)
    }

    pub(super) fn run_job(
        &self,
        compacting: &mut Compacting,
        job: &Job,
        goal: Goal,
        (order, layouts): (Order, Vec<Layout>),
    ) -> Result<Step> {
        let gathered = &job.gathered;
        let outputs = self.reserve_outputs(layouts.len())?;
        let keys: Vec<SegmentKey> = outputs.iter().map(|segment| segment.key()).collect();
        let next_run_no = self.core.lock().next_run_no;
        let writing = Writing {
            gathered,
            names: &job.names,
            layouts: &layouts,
            keys: &keys,
            places: places(gathered, &job.names, &layouts, &keys),
            next_run_no,
            now: self.now(),
        };
        let written = self.write_outputs(compacting, &writing, &outputs);
        let bytes = match written {
            Ok(bytes) => bytes,
            Err(error) => {
                // They are reserved and not sealed: nothing refers to them, ever.
                self.core.lock().retired.extend(outputs);
                return Err(error);
            }
        };
        self.commit_outputs(&gathered.victims, &outputs)?;
        self.relocate(job, &outputs)?;
        for output in &outputs {
            // A failure costs some space and nothing else.
            let _ = self.trim_sealed(output);
        }
        if matches!(goal, Goal::Order(_)) {
            compacting.carried = carried(&layouts, &order, &keys);
        }
        Ok(Step { victims: gathered.victims.len() as u64, outputs: outputs.len() as u64, bytes })
    }

    /// Runs of which all is here come first, by age; the rest comes last.
    fn order_of(&self, job: &Job) -> Order {
        let ids: BTreeSet<SegmentId> =
            job.gathered.victims.iter().map(|victim| victim.segment.id()).collect();
        let core = self.core.lock();
        let is_whole = |run_no: RunNo| {
            let spans = job.spans.get(&run_no).map(Vec::as_slice).unwrap_or_default();
            core.hot.get(run_no).is_none() && spans.iter().all(|span| ids.contains(&span.segment))
        };
        let numbers = 0..job.gathered.runs.len();
        let (mut whole, rest): (Vec<usize>, Vec<usize>) = numbers.partition(|number| {
            job.gathered.runs.get(*number).is_some_and(|run| is_whole(run.run_no))
        });
        let count = whole.len();
        whole.extend(rest);
        Order { runs: whole, whole: count }
    }

    /// Reserves segments that do not take part in the order of the log.
    fn reserve_outputs(&self, count: usize) -> Result<Vec<Arc<Segment>>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut ids = Vec::with_capacity(count);
        let next = {
            let mut core = self.core.lock();
            for _ in 0..count {
                ids.push(core.next_segment);
                core.next_segment = SegmentId(core.next_segment.0 + 1);
            }
            (core.next_run_no, core.next_lsn)
        };
        // The core is not locked from here on: whoever rolls locks it first.
        let mut keeper = self.keeper.lock();
        let mut extents: Vec<ExtentNo> = ids.iter().map(|_| keeper.manifest.claim()).collect();
        let mut prepared = self.prepare_outputs(&ids, &extents, next, false);
        if let (Err(Error::DiskFull { .. }), 1) = (&prepared, count)
            && let Some(spare) = keeper.take_spare()
        {
            for extent in extents {
                keeper.manifest.unclaim(extent);
            }
            extents = vec![spare];
            prepared = self.prepare_outputs(&ids, &extents, next, true);
        }
        let reserved = prepared.and_then(|segments| {
            let changes: Vec<Change> = segments.iter().map(|segment| reserve(segment)).collect();
            keeper.commit_durably(&changes)?;
            Ok(segments)
        });
        if reserved.is_err() {
            for extent in extents {
                keeper.manifest.unclaim(extent);
            }
        }
        reserved
    }

    fn prepare_outputs(
        &self,
        ids: &[SegmentId],
        extents: &[ExtentNo],
        (next_run_no, next_lsn): (RunNo, Lsn),
        prepared: bool,
    ) -> Result<Vec<Arc<Segment>>> {
        let mut segments = Vec::with_capacity(ids.len());
        for (&id, &extent) in ids.iter().zip(extents) {
            let key = SegmentKey { id, salt: self.new_salt()? };
            if !prepared {
                self.prepare_extent(extent)?;
            }
            let (disk, purpose) = (self.disk.clone(), Purpose::Output);
            segments.push(Arc::new(Segment::new(disk, self.extent_size, extent, key, purpose)));
        }
        for segment in &segments {
            self.write_segment_header(segment, next_run_no, next_lsn)?;
        }
        Ok(segments)
    }

    /// C2: the outputs, each checked against what it is to be, and synced.
    fn write_outputs(
        &self,
        compacting: &mut Compacting,
        writing: &Writing<'_>,
        outputs: &[Arc<Segment>],
    ) -> Result<u64> {
        let mut bytes = 0;
        for (place, segment) in outputs.iter().enumerate() {
            let written = writing.write(place)?;
            let start = segment.file_offset() + u64::from(SEGMENT_HEADER);
            let mut at = start;
            for chunk in written.bytes.chunks(CHUNK) {
                self.disk.check()?;
                self.disk.write_unguarded(at, chunk)?;
                at += chunk.len() as u64;
                self.pace(compacting, chunk.len());
            }
            let end = at.next_multiple_of(crate::format::PAGE);
            let behind = segment.file_offset() + self.extent_size.bytes();
            if end < behind {
                self.disk.punch(end, behind - end)?;
            }
            bytes += written.bytes.len() as u64;
            segment.seal(written.sealed);
        }
        self.disk.sync()?;
        Ok(bytes)
    }

    /// C3: from here on the outputs count and the victims do not.
    fn commit_outputs(&self, victims: &[Victim], outputs: &[Arc<Segment>]) -> Result<()> {
        self.secure_numbers()?;
        let sealed = outputs.iter().filter_map(|segment| {
            let at = segment.sealed()?;
            Some(Change::Seal { extent: segment.extent(), segment: segment.id(), at })
        });
        let retired =
            victims.iter().map(|victim| Change::Retire { extent: victim.segment.extent() });
        let changes: Vec<Change> = sealed.chain(retired).collect();
        self.keeper.lock().commit_durably(&changes)?;
        for segment in outputs {
            segment.note_durable();
        }
        Ok(())
    }

    /// Makes durable which numbers are in use: the segments that say so may go.
    pub(crate) fn secure_numbers(&self) -> Result<()> {
        let (next_segment, next_run_no, next_lsn) = {
            let core = self.core.lock();
            (core.next_segment, core.next_run_no, core.next_lsn)
        };
        self.keeper.lock().write_superblock(|block| {
            block.next_segment = block.next_segment.max(next_segment);
            block.next_run_no = block.next_run_no.max(next_run_no);
            block.next_lsn = block.next_lsn.max(next_lsn);
        })
    }
}

/// The length of a segment's header.
const SEGMENT_HEADER: u32 = crate::format::segment::SEGMENT_HEADER_LEN;

fn reserve(segment: &Segment) -> Change {
    let SegmentKey { id, salt } = segment.key();
    let (extent, purpose) = (segment.extent(), segment.purpose());
    Change::Reserve { extent, segment: id, salt, purpose }
}

/// The outputs with runs that are not whole.
fn carried(layouts: &[Layout], order: &Order, keys: &[SegmentKey]) -> Vec<SegmentId> {
    let rest: HashSet<usize> = order.runs.iter().skip(order.whole).copied().collect();
    let is_open = |layout: &Layout| layout.runs.iter().any(|(run, _)| rest.contains(run));
    layouts.iter().zip(keys).filter(|(layout, _)| is_open(layout)).map(|(_, key)| key.id).collect()
}

/// Whether frames of a run would change their order: segments that stay, with frames between those
/// that move. These must move too.
fn stays_between(spans: &[Span], victims: &BTreeSet<SegmentId>) -> Option<Obstacle> {
    let moves = |span: &Span| victims.contains(&span.segment);
    let with_records: Vec<&Span> = spans.iter().filter(|span| span.records > 0).collect();
    let first = with_records.iter().position(|span| moves(span))?;
    let last = with_records.iter().rposition(|span| moves(span))?;
    let between = with_records.get(first..last).unwrap_or_default();
    let stay: BTreeSet<SegmentId> =
        between.iter().filter(|span| !moves(span)).map(|span| span.segment).collect();
    (!stay.is_empty()).then_some(Obstacle::Missing(stay))
}

/// Which of these runs, sorted by their numbers, any of the segments has frames of, or may have.
fn runs_in(segments: &[Arc<Segment>], asked: &[RunNo]) -> Result<HashSet<RunNo>> {
    let mut found = HashSet::new();
    if asked.is_empty() {
        return Ok(found);
    }
    for segment in segments {
        if segment.sealed().is_none() {
            // Retired before the store was opened: what it has is not known.
            return Ok(asked.iter().copied().collect());
        }
        let directory = segment.directory(rebuild_directory)?;
        let place = Place::Directory { segment: segment.id() };
        let wrong = |damage| Error::corrupt(place, damage);
        if asked.len() < directory.run_count() as usize {
            for &run_no in asked {
                if directory.find_no(run_no).map_err(wrong)?.is_some() {
                    found.insert(run_no);
                }
            }
            continue;
        }
        for slot in 0..directory.run_count() {
            let run_no = directory.run_no(slot).map_err(wrong)?;
            if asked.binary_search(&run_no).is_ok() {
                found.insert(run_no);
            }
        }
    }
    Ok(found)
}

fn names_of(victims: &[Arc<Segment>], gathered: &Gathered) -> Result<Names> {
    let mut names = Names::new();
    for segment in victims {
        let directory = segment.directory(rebuild_directory)?;
        let place = Place::Directory { segment: segment.id() };
        let wrong = |damage| Error::corrupt(place, damage);
        for slot in 0..directory.run_count() {
            let run_no = directory.run_no(slot).map_err(wrong)?;
            if gathered.listed.contains(&run_no) && !names.contains_key(&run_no) {
                let entry = directory.run(slot).map_err(wrong)?;
                names.insert(run_no, (entry.agent, entry.run));
            }
        }
    }
    Ok(names)
}
