//! One step of a compaction: planning it, writing it, and making it count.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use super::{Compacted, Goal};
use crate::engine::compact::Compactor;
use crate::engine::compact::gather::{Evictions, Gathered, Obstacle, gather, living_runs};
use crate::engine::compact::output::{Layout, Writing, lay_out};
use crate::engine::compact::pack::pack;
use crate::engine::reclaim::Compacting;
use crate::engine::setup::options::Compression;
use crate::engine::state::segment::Segment;
use crate::engine::state::segment_directory::runs_among;
use crate::engine::state::stored_run::Name;
use crate::error::{Error, Result};
use crate::format::SegmentKey;
use crate::format::segments::directory::IdHash;
use crate::format::segments::run_set::RunSet;
use crate::format::segments::segment::{Purpose, SEGMENT_HEADER_LEN};
use crate::types::{RunNo, SegmentId};

/// The bytes of one write. During a write an append may wait for the file.
const CHUNK: usize = 128 << 10;

/// The order of the runs in the outputs.
pub(super) struct Order {
    /// Their indexes among the runs that move.
    runs: Vec<usize>,
    /// How many of them have all of their frames in the victims.
    whole: usize,
}

/// A planned step.
pub(super) struct Job {
    pub(super) gathered: Gathered,
    /// The segments of each run that moves, as of the plan, which may name one twice.
    segments: BTreeMap<RunNo, Vec<SegmentId>>,
    /// The runs that have ended.
    ended: HashSet<RunNo>,
}

impl Compactor {
    pub(super) fn plan_job(&self, wanted: &[SegmentId]) -> Result<Job, Obstacle> {
        let (catalog, deleted) = {
            let state = self.log.reader.open()?;
            (Arc::clone(&state.catalog), Arc::clone(&state.deleted))
        };
        let ids: BTreeSet<SegmentId> = wanted.iter().copied().collect();
        let victims: Vec<Arc<Segment>> =
            ids.iter().filter_map(|id| catalog.segment(*id)).cloned().collect();
        let is_stopping = || self.log.due.is_stopping();
        let living = living_runs(&victims, &deleted, is_stopping)?;
        let (mut segments, mut ended, mut open) = (BTreeMap::new(), HashSet::new(), Vec::new());
        let packs = self.log.setup.options.compression != Compression::None;
        for (&run_no, folded) in &living {
            let row = &folded.row;
            let stored = catalog.stored_run(
                Name::new(row.document, &row.agent, &row.run),
                run_no,
                &deleted,
            )?;
            let Some(stored) = stored else { continue };
            if packs && !row.document {
                let is_ended = row.status.is_ended() || stored.row()?.status.is_ended();
                if is_ended {
                    ended.insert(run_no);
                } else {
                    open.push(run_no);
                }
            }
            segments.insert(run_no, stored.segments().collect());
        }
        let mut gathered = gather(&victims, living, &deleted, is_stopping)?;
        // Retired segments have no headers at this point, so no eviction is needed for them.
        let others = catalog.segments().iter().filter(|segment| !ids.contains(&segment.id()));
        self.keep_needed(&mut gathered.evictions, others)?;
        if packs {
            ended.extend(self.ended_since(&open));
        }
        Ok(Job { gathered, segments, ended })
    }

    /// Removes the evictions and receipts that need no copy. A segment that cannot be read may have
    /// frames of any run.
    fn keep_needed<'s>(
        &self,
        evictions: &mut Evictions,
        others: impl Iterator<Item = &'s Arc<Segment>>,
    ) -> Result<()> {
        let (receipts, mut asked) = (self.log.reader.kept_receipts(), RunSet::default());
        for (_, eviction) in evictions.iter_mut() {
            if !receipts.keeps(eviction)? {
                eviction.receipt = None;
                asked.extend([eviction.run_no]);
            }
        }
        let mut elsewhere = RunSet::default();
        for segment in others {
            match runs_among(segment, &asked) {
                Err(Error::Io { .. } | Error::Corrupt(_)) => elsewhere.extend(asked.iter()),
                found => elsewhere.extend(found?),
            }
        }
        evictions.retain(|(_, eviction)| {
            eviction.receipt.is_some() || elsewhere.contains(eviction.run_no)
        });
        Ok(())
    }

    /// Compresses ended runs, if the options say so. Only the lock of compaction is held. False,
    /// and not all is compressed, if more than `most` bytes would wait in memory.
    pub(super) fn pack(&self, job: &mut Job, most: usize) -> bool {
        let Some(mut compressor) = self.log.setup.options.compression.compressor() else {
            return true;
        };
        let how = (self.log.extent_size, most, || self.log.due.is_stopping());
        pack(&mut job.gathered, &job.ended, &mut compressor, how)
    }

    /// The contents of each output; `None` if a frame does not fit.
    pub(super) fn lay_out(&self, job: &Job) -> Option<(Order, Vec<Layout>)> {
        let order = self.order_of(job);
        let layouts = lay_out(&job.gathered, (&order.runs, order.whole), self.log.extent_size)?;
        Some((order, layouts))
    }

    /// Does a step. `None` if the copies differ from the victims: then nothing has changed.
    pub(super) fn run_job(
        &self,
        compacting: &mut Compacting,
        job: &Job,
        goal: Goal,
        (order, layouts): (Order, Vec<Layout>),
    ) -> Result<Option<Compacted>> {
        // Before anything changes: the clock is code of the embedder and may panic.
        let (gathered, now) = (&job.gathered, self.log.setup.now());
        let outputs = self.reserve_outputs(layouts.len())?;
        let keys: Vec<SegmentKey> = outputs.iter().map(|segment| segment.key()).collect();
        let next_run_no = self.log.state.lock().next_run_no;
        let ids = IdHash::new(self.log.setup.uuid);
        let writing = Writing { gathered, layouts: &layouts, keys: &keys, ids, next_run_no, now };
        let written = self.write_outputs(compacting, &writing, &outputs);
        let counted = written.and_then(|bytes| Ok((bytes, self.count_outputs(job, &outputs)?)));
        let bytes = match counted {
            Ok((bytes, true)) => bytes,
            not_counted => {
                // They stay reserved and unsealed: nothing ever refers to them.
                self.log.state.lock().retired.extend(outputs);
                return not_counted.map(|_| None);
            }
        };
        if matches!(goal, Goal::Order(_)) {
            compacting.carried = carried(&layouts, &order, &keys);
        }
        let (segments, outputs) = (gathered.victims.len() as u64, outputs.len() as u64);
        Ok(Some(Compacted { segments, outputs, bytes }))
    }

    /// Runs that are here as a whole come first, by age; the others come last.
    fn order_of(&self, job: &Job) -> Order {
        let ids: BTreeSet<SegmentId> =
            job.gathered.victims.iter().map(|victim| victim.segment.id()).collect();
        let state = self.log.state.lock();
        let is_whole = |run_no: RunNo| {
            let segments = job.segments.get(&run_no);
            state.active.get(run_no).is_none()
                && segments.is_none_or(|all| all.iter().all(|segment| ids.contains(segment)))
        };
        let numbers = 0..job.gathered.runs.len();
        let (mut whole, rest): (Vec<usize>, Vec<usize>) = numbers.partition(|number| {
            job.gathered.runs.get(*number).is_some_and(|run| is_whole(run.run_no))
        });
        let count = whole.len();
        whole.extend(rest);
        Order { runs: whole, whole: count }
    }

    /// Reserves segments that are not part of the order of the log.
    fn reserve_outputs(&self, count: usize) -> Result<Vec<Arc<Segment>>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let (ids, next) = {
            let mut state = self.log.state.lock();
            let ids: Result<Vec<_>> = (0..count).map(|_| state.take_segment_id()).collect();
            (ids?, state.next_numbers())
        };
        // The state is unlocked from here on: a roll locks it before the allocator.
        self.log.set_aside(&ids, Purpose::Output, next)
    }

    /// C2: writes the outputs and syncs them.
    fn write_outputs(
        &self,
        compacting: &mut Compacting,
        writing: &Writing<'_>,
        outputs: &[Arc<Segment>],
    ) -> Result<u64> {
        let mut bytes = 0;
        for (place, segment) in outputs.iter().enumerate() {
            let written = writing.write(place)?;
            let mut at = segment.file_offset() + u64::from(SEGMENT_HEADER_LEN);
            for chunk in written.bytes.chunks(CHUNK) {
                if self.log.due.is_stopping() {
                    return Err(Error::Closed);
                }
                self.log.disk.check()?;
                self.log.disk.write_unguarded(at, chunk)?;
                at += chunk.len() as u64;
                self.pace(compacting, chunk.len());
            }
            let end = at.next_multiple_of(crate::format::PAGE);
            let behind = segment.file_offset() + self.log.extent_size.bytes();
            if end < behind {
                self.log.disk.punch(end, behind - end)?;
            }
            bytes += written.bytes.len() as u64;
            segment.seal(written.sealed);
        }
        self.log.disk.sync()?;
        Ok(bytes)
    }
}

/// The outputs with runs that are not here as a whole.
fn carried(layouts: &[Layout], order: &Order, keys: &[SegmentKey]) -> Vec<SegmentId> {
    let rest: HashSet<usize> = order.runs.iter().skip(order.whole).copied().collect();
    let is_open = |layout: &Layout| layout.runs.iter().any(|(run, _)| rest.contains(run));
    layouts.iter().zip(keys).filter(|(layout, _)| is_open(layout)).map(|(_, key)| key.id).collect()
}
