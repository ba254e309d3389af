//! How much lives in each segment, and how much of that can still be compressed.

use std::collections::HashSet;
use std::sync::Arc;

use crate::engine::compact::{Compactor, Goal};
use crate::engine::reclaim::Compacting;
use crate::engine::setup::options::Compression;
use crate::engine::state::catalog::Catalog;
use crate::engine::state::segment::Segment;
use crate::error::Result;
use crate::format::codec::Decoded;
use crate::format::frames::ids::ids_len;
use crate::format::{Directory, FrameKind};
use crate::gc::choose::SegmentUse;
use crate::index::{RunList, Statuses};
use crate::types::{RunNo, RunStatus};

/// How many runs are looked up in memory under one lock.
const LOOKED_UP: usize = 512;

impl Compactor {
    /// The living bytes of each sealed segment of the catalog, and how many of them are
    /// compressible if that is the goal. Those that cannot be read are left out, and stay.
    pub(super) fn segment_uses(
        &self,
        compacting: &mut Compacting,
        goal: Goal,
    ) -> Result<Vec<SegmentUse>> {
        let (catalog, deleted) = {
            let state = self.log.reader.open()?;
            (Arc::clone(&state.catalog), Arc::clone(&state.deleted))
        };
        compacting.settled.retain(|id, _| catalog.segment(*id).is_some());
        compacting.incompressible.retain(|id, _| catalog.segment(*id).is_some());
        let wanted = matches!(goal, Goal::Pack(_));
        let open = if wanted { self.in_progress(&catalog)? } else { HashSet::new() };
        let receipts = self.log.reader.kept_receipts();
        let mut uses = Vec::with_capacity(catalog.segments().len());
        for segment in catalog.segments() {
            if self.log.due.is_stopping() {
                // The step that asks moves nothing any more.
                break;
            }
            let id = segment.id();
            if compacting.unmovable.contains(&id) && compacting.damaged.contains_key(&id) {
                continue;
            }
            let known = compacting.live.get(&id).copied();
            let read = || {
                let is_deleted = |run_no| deleted.contains(run_no);
                let (live, loose) = match known {
                    Some(known) => known,
                    None => {
                        let live = live_bytes(segment, is_deleted)? + receipts.bytes_in(segment)?;
                        let packs = self.log.setup.options.compression != Compression::None;
                        (live, if packs { loose_bytes(segment, is_deleted)? } else { 0 })
                    }
                };
                let stays = |run_no| is_deleted(run_no) || open.contains(&run_no);
                let cold = if wanted && loose > 0 { loose_bytes(segment, stays)? } else { 0 };
                Ok((live, loose, cold))
            };
            if let Some((live, loose, cold)) = compacting.unless_unread(id, read())? {
                compacting.live.insert(id, (live, loose));
                let (extent, is_output) = (segment.extent(), segment.is_output());
                uses.push(SegmentUse { id, extent, is_output, live, cold });
            }
        }
        compacting.live.retain(|id, _| catalog.segment(*id).is_some());
        Ok(uses)
    }

    /// The runs of the catalog that are in progress. The step itself uses the same rule a moment
    /// later, and an ended run never continues, so no compressible frame is left behind.
    fn in_progress(&self, catalog: &Catalog) -> Result<HashSet<RunNo>> {
        let statuses = Statuses::NONE.with(RunStatus::InProgress);
        let list = RunList { statuses, ..RunList::ALL };
        let open = catalog.ask(|catalog| catalog.runs_page(&list, usize::MAX))?;
        let mut open: Vec<RunNo> = open.into_iter().map(|key| key.1).collect();
        let ended = self.ended_since(&open);
        open.retain(|run_no| !ended.contains(run_no));
        Ok(open.into_iter().collect())
    }

    /// Which of these runs, in progress in the catalog, have ended since. Their ends survive power
    /// loss, so no crash makes them continue.
    pub(super) fn ended_since(&self, runs: &[RunNo]) -> HashSet<RunNo> {
        let mut ended = HashSet::new();
        let durable = self.log.commit.durable();
        for some in runs.chunks(LOOKED_UP) {
            let state = self.log.state.lock();
            let active = some.iter().filter_map(|run_no| state.active.get(*run_no));
            for run in active.filter(|run| run.status.is_ended()) {
                let row = run.row(state.tail.segment.id(), &state.tail.builder);
                let end = row.ok().flatten().and_then(|row| row.end);
                if end.is_some_and(|end| end < durable) {
                    ended.insert(run.run_no);
                }
            }
        }
        ended
    }
}

/// The bytes of a run in a segment: its frames, its BIND, and its directory entry.
fn cost(directory: &Directory<'_>, slot: u32) -> Decoded<u64> {
    let (agent, run) = directory.ids(slot)?;
    let ids = agent.len() + run.len();
    let entry = directory.entry_cost(slot)?;
    Ok(directory
        .stored(slot)?
        .saturating_add((entry + FrameKind::Bind.frame_len(0, ids_len(ids))) as u64))
}

/// The sum of `of_run` over all runs of a segment that are not deleted.
fn sum_living(
    segment: &Segment,
    is_deleted: impl Fn(RunNo) -> bool,
    of_run: impl Fn(&Directory<'_>, u32) -> Decoded<u64>,
) -> Result<u64> {
    segment.in_directory(|directory| {
        let mut sum = 0_u64;
        for slot in 0..directory.run_count() {
            if !is_deleted(directory.run_no(slot)?) {
                sum = sum.saturating_add(of_run(&directory, slot)?);
            }
        }
        Ok(sum)
    })
}

/// The bytes of living runs in a segment that can still be compressed once the runs have ended.
fn loose_bytes(segment: &Segment, is_deleted: impl Fn(RunNo) -> bool) -> Result<u64> {
    fn loose(directory: &Directory<'_>, slot: u32) -> Decoded<u64> {
        directory.loose(slot)
    }
    sum_living(segment, is_deleted, loose)
}

/// The bytes that living runs take in a segment.
pub(crate) fn live_bytes(segment: &Segment, is_deleted: impl Fn(RunNo) -> bool) -> Result<u64> {
    sum_living(segment, is_deleted, cost)
}
