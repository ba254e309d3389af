//! From a batch to its frames: one lock covers checking the versions and writing new ones.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Batch, Committed, Expected, Write, most_urgent};
use crate::engine::read::documents::{StoredVersion, Versions, VersionsInMemory, document_ids};
use crate::engine::read::named::Detail;
use crate::engine::read::resolve::{bring_in, make_room};
use crate::engine::setup::due::Wanted;
use crate::engine::setup::locks::Held;
use crate::engine::state::active_runs::ActiveRun;
use crate::engine::state::log_state::{LogState, Urgency};
use crate::engine::state::stored_run::StoredRows;
use crate::engine::values::Allow;
use crate::engine::values::new_record::NewRecord;
use crate::engine::write::Log;
use crate::engine::write::append::{advance, next_seq};
use crate::engine::write::chunks::{Body, ChunksOf, Rows, pending_put, pending_record};
use crate::engine::write::pending_frame::PendingFrame;
use crate::engine::write::ticket::Ticket;
use crate::error::{Error, Result, Sized};
use crate::format::FrameKind;
use crate::format::frames::eviction::Eviction;
use crate::format::frames::frame::FLAG_BATCH;
use crate::format::frames::ids::{encode_put, ids_len};
use crate::types::{
    AgentId, Durability, LogPosition, Lsn, RunId, RunNo, SegmentId, Seq, Timestamp, Version,
};

/// The most evictions in one frame.
const EVICTIONS: usize = 1000;

/// The bytes of an eviction without a receipt.
const EVICTION_LEN: usize = 32;
/// About how many bytes the log has of a version of a document beside its value: in its frame, and
/// what directories list of it and of its eviction.
const VERSION_LEN: u64 = 320;

/// A write with checked ids, and its number.
struct Planned<'a> {
    space: AgentId,
    id: RunId,
    /// What the PUT of a document has in front of its record.
    front: Vec<u8>,
    /// The version that the PUT evicts.
    replaced: RunNo,
    write: Write<'a>,
    /// The version that a put will have, or the run of a record.
    run_no: RunNo,
    /// The payload as it will be stored in its frame.
    body: Option<Body<'a>>,
    /// Whether chunks of the version are being written.
    pending: bool,
}

/// The current version of each document that the batch writes, and the versions that it evicts.
#[derive(Default)]
struct Found {
    versions: Vec<Option<Version>>,
    evicted: Vec<RunNo>,
    /// Those of them that no PUT evicts.
    others: Vec<RunNo>,
    /// The segments in which the catalog knows frames of the evicted versions.
    stored: Vec<SegmentId>,
    /// The bytes of these versions.
    dead: u64,
}

/// What the catalog knows about the run or the document of a write.
enum Stored {
    Run(StoredRows),
    Document(Vec<StoredVersion>),
}

impl Log {
    /// Does all writes of a batch, or none.
    pub(crate) fn commit_batch(self: &Arc<Self>, batch: &Batch<'_>) -> Result<Committed> {
        let committed = self.write_batch(batch, batch.level());
        self.told(committed, batch.level())
    }

    /// The same, but waits only for this level.
    pub(crate) fn write_batch(
        self: &Arc<Self>,
        batch: &Batch<'_>,
        level: Durability,
    ) -> Result<Committed> {
        let mut planned = self.plan_batch(batch)?;
        let mut rows = self.rows_of(&planned)?;
        let now = rows.now;
        if planned.iter().any(|write| write.is_longer(rows.limit)) {
            // A batch that is refused anyway must leave no chunks behind.
            let _ = self.look(&mut planned)?;
        }
        let bodies = planned.iter_mut().try_for_each(|write| self.write_body(&mut rows, write));
        let placed = bodies.and_then(|()| {
            let (mut state, found) = self.look(&mut planned)?;
            Ok((self.place_batch(&mut state, batch, &mut planned, found, now)?, state))
        });
        drop(rows);
        let pending = planned.iter().filter(|write| write.pending).map(|write| write.run_no);
        let ((versions, lsn, end), state) = placed.inspect_err(|_| self.give_up(pending, now))?;
        self.finish(state, end, level)?;
        let is_write = |write: &Planned<'_>| !matches!(write.write, Write::Expect { .. });
        let versions = planned.iter().zip(versions).filter(|(write, _)| is_write(write));
        let versions = versions.map(|(_, version)| version).collect();
        let ticket = Ticket::new(Arc::clone(self), end);
        Ok(Committed { versions, lsn, ticket })
    }

    /// Refuses a batch that can never be stored.
    fn plan_batch<'a>(&self, batch: &Batch<'a>) -> Result<Vec<Planned<'a>>> {
        if batch.is_empty() {
            return Err(Error::InvalidArgument { what: "a batch needs at least one write" });
        }
        let mut seen = HashSet::new();
        let mut planned = Vec::with_capacity(batch.len());
        for write in &batch.writes {
            let (space, id, record) = match write {
                Write::Append { agent, run, record } => {
                    (AgentId::new(agent)?, RunId::new(run)?, Some(record))
                }
                Write::Put { namespace, key, value, .. } => {
                    let (space, key) = document_ids(namespace, key)?;
                    (space, key, Some(value))
                }
                Write::Delete { namespace, key, .. } | Write::Expect { namespace, key, .. } => {
                    let (space, key) = document_ids(namespace, key)?;
                    (space, key, None)
                }
            };
            if let Some(record) = record {
                self.check_record(record)?;
            }
            let is_document = matches!(write, Write::Put { .. } | Write::Delete { .. });
            if is_document && !seen.insert((space.clone(), id.clone())) {
                let what = "a batch must not write a document twice";
                return Err(Error::InvalidArgument { what });
            }
            planned.push(Planned {
                space,
                id,
                front: Vec::new(),
                replaced: RunNo(0),
                write: *write,
                run_no: RunNo(0),
                body: None,
                pending: false,
            });
        }
        Ok(planned)
    }

    /// The limit above which payloads are written in chunks, so that the batch fits a segment.
    fn rows_of(&self, planned: &[Planned<'_>]) -> Result<Rows<'_>> {
        let records: Vec<NewRecord<'_>> = planned.iter().filter_map(Planned::record).collect();
        // The ids of a document twice, since chunks need a BIND, or the BIND of a run, and one
        // version that is evicted.
        let others = planned.iter().map(|planned| match planned.write {
            Write::Put { .. } => {
                2 * FrameKind::Bind.frame_len(0, ids_len(planned.names_len())) + EVICTION_LEN
            }
            Write::Append { .. } => FrameKind::Bind.frame_len(0, ids_len(planned.names_len())),
            Write::Delete { .. } => EVICTION_LEN,
            Write::Expect { .. } => 0,
        });
        let limit =
            self.limit_for(&records, FrameKind::Evict.frame_len(0, 0) + others.sum::<usize>())?;
        Ok(self.rows_for(&records, limit, self.setup.now()))
    }

    /// Prepares the payload. A long one is written now, in chunks that count with the batch.
    fn write_body<'e>(
        self: &'e Arc<Self>,
        rows: &mut Rows<'e>,
        planned: &mut Planned<'_>,
    ) -> Result<()> {
        let Some(record) = planned.record() else { return Ok(()) };
        let of = match planned.write {
            Write::Append { .. } => ChunksOf::Run(Allow::nothing()),
            _ => ChunksOf::Document,
        };
        if matches!(of, ChunksOf::Document) && planned.is_longer(rows.limit) {
            let mut state = self.reader.open()?;
            planned.run_no = Self::new_version(&mut state, planned, rows.now);
            planned.pending = true;
            if let Some(version) = state.active.get_mut(planned.run_no) {
                version.pending = true;
            }
        }
        planned.body = Some(self.body(rows, planned.run_no, &record, of)?);
        Ok(())
    }

    /// Takes a number for a new version and puts the version into memory.
    fn new_version(state: &mut LogState, planned: &Planned<'_>, now: Timestamp) -> RunNo {
        let run_no = state.take_run_no();
        let at = planned.record().and_then(|record| record.time()).unwrap_or(now);
        let mut new = ActiveRun::new(run_no, planned.space.clone(), planned.id.clone(), at);
        new.document = true;
        state.active.insert(new);
        run_no
    }

    /// Refuses the batch unless all conditions hold and all runs exist. Returns the current
    /// versions, the versions to evict, and the state in which that is true. It asks the catalog
    /// without the lock.
    fn look(&self, planned: &mut [Planned<'_>]) -> Result<(Held<'_, LogState>, Found)> {
        loop {
            let is_loaded = |write: &Planned<'_>, state: &LogState| {
                matches!(write.write, Write::Append { .. })
                    && state.active.is_complete(write.id.as_str(), Some(&write.space))
            };
            let loaded: Vec<bool> = {
                let mut state = self.reader.open()?;
                make_room(&mut state);
                planned.iter().map(|write| is_loaded(write, &state)).collect()
            };
            // What is deleted meanwhile is left out under the lock.
            let (mut state, stored) = self.reader.asked(|moment| {
                let of = |(write, loaded): (&Planned<'_>, &bool)| match write.write {
                    Write::Append { .. } if *loaded => Ok(Stored::Run(StoredRows::default())),
                    Write::Append { .. } => moment.stored_rows(write.ids()).map(Stored::Run),
                    _ => StoredVersion::all(moment, write.ids()).map(Stored::Document),
                };
                planned.iter().zip(&loaded).map(of).collect::<Result<Vec<_>>>()
            })?;
            let is_still =
                |(write, loaded): (&Planned<'_>, &bool)| !loaded || is_loaded(write, &state);
            if planned.iter().zip(&loaded).all(is_still) {
                let found = look_in(&mut state, planned, stored)?;
                return Ok((state, found));
            }
        }
    }

    /// Places all frames of the batch.
    fn place_batch(
        &self,
        state: &mut LogState,
        batch: &Batch<'_>,
        planned: &mut [Planned<'_>],
        Found { mut versions, evicted, others, stored, dead }: Found,
        now: Timestamp,
    ) -> Result<(Vec<Option<Version>>, Lsn, LogPosition)> {
        let fresh = evicted.iter().flat_map(|run_no| state.fresh_segments(*run_no));
        let suspects: Vec<_> = stored.into_iter().chain(fresh).collect();
        let mut fresh = Vec::new();
        let puts = planned.iter_mut().zip(&mut versions);
        for (write, version) in puts.filter(|(write, _)| matches!(write.write, Write::Put { .. })) {
            if write.run_no == RunNo(0) {
                write.run_no = Self::new_version(state, write, now);
                fresh.push(write.run_no);
            }
            *version = Some(Version(write.run_no.0));
            encode_put(&write.space, &write.id, write.replaced, &mut write.front);
            if let Some(record) = write.record() {
                write.front.extend_from_slice(record.record_kind().as_bytes());
            }
        }
        let placed = self.place_writes(state, batch, planned, &others, now);
        let Ok((lsn, end)) = placed else {
            for run_no in fresh {
                state.active.remove(run_no);
            }
            return placed.map(|(lsn, end)| (versions, lsn, end));
        };
        state.dead = state.dead.saturating_add(dead);
        self.settle_batch(state, planned, &evicted, suspects);
        Ok((versions, lsn, end))
    }

    fn place_writes(
        &self,
        state: &mut LogState,
        batch: &Batch<'_>,
        planned: &[Planned<'_>],
        others: &[RunNo],
        now: Timestamp,
    ) -> Result<(Lsn, LogPosition)> {
        let mut pending = self.write_drafts(state, planned, now)?;
        let frames = pending.iter().map(|pending_frame| pending_frame.header.frame_len());
        let is_short = frames.sum::<usize>() <= most_urgent(self.extent_size);
        let gone: Vec<Vec<Eviction>> = others.chunks(EVICTIONS).map(without_receipts).collect();
        let mut bodies = vec![Vec::new(); gone.len()];
        let evicts =
            gone.iter().zip(&mut bodies).map(|(some, body)| PendingFrame::evict(some, now, body));
        pending.extend(evicts);
        if pending.is_empty() {
            // The batch deletes only documents that do not exist.
            return Ok((state.next_lsn, state.end_of_log()));
        }
        // Evictions free more space than they take.
        let urgency = if batch.only_deletes() || batch.is_urgent && is_short {
            Urgency::Reserve
        } else {
            Urgency::Normal
        };
        // One frame counts or does not, by itself.
        if pending.len() > 1 {
            for pending_frame in &mut pending {
                pending_frame.header.flags |= FLAG_BATCH;
            }
            let mut commit = PendingFrame::empty(FrameKind::Commit, RunNo(0), now);
            commit.header.extra = u32::try_from(pending.len()).map_err(|_| Error::TooLarge {
                what: Sized::Batch,
                len: pending.len() as u64,
                max: u32::MAX.into(),
            })?;
            pending.push(commit);
        }
        let end = self.place(state, &mut pending, urgency, batch.level())?;
        Ok((pending.last().map_or(Lsn(0), |pending_frame| pending_frame.header.lsn), end))
    }

    /// The frames of documents and records, in the order of the writes.
    fn write_drafts<'a>(
        &self,
        state: &LogState,
        planned: &'a [Planned<'_>],
        now: Timestamp,
    ) -> Result<Vec<PendingFrame<'a>>> {
        let mut next: Vec<(RunNo, Seq)> = Vec::new();
        let mut pending = Vec::with_capacity(planned.len() + 2);
        for write in planned {
            let (Some(record), Some(body)) = (write.record(), &write.body) else { continue };
            let at = record.time().unwrap_or(now);
            if matches!(write.write, Write::Put { .. }) {
                pending.push(pending_put(write.run_no, &record, (&write.front, body), at));
                continue;
            }
            let mut pending_frame = pending_record(write.run_no, &record, body, at);
            let place = next.iter().position(|(run_no, _)| *run_no == write.run_no);
            let place = place.unwrap_or_else(|| {
                let seq = state.active.get(write.run_no).map_or(Seq(0), |run| run.next_seq);
                next.push((write.run_no, seq));
                next.len() - 1
            });
            let Some((_, seq)) = next.get_mut(place) else { return Err(Error::Poisoned) };
            pending_frame.header.seq = *seq;
            seq.0 = seq.0.saturating_add(1);
            pending.push(pending_frame);
        }
        Ok(pending)
    }

    /// Notes a batch that was written.
    fn settle_batch(
        &self,
        state: &mut LogState,
        planned: &[Planned<'_>],
        evicted: &[RunNo],
        suspects: Vec<SegmentId>,
    ) {
        for write in planned {
            match write.write {
                Write::Put { .. } => {
                    if let Some(version) = state.active.get_mut(write.run_no) {
                        (version.next_seq, version.pending) = (Seq(1), false);
                    }
                }
                Write::Append { .. } => advance(state, write.run_no, 1),
                Write::Delete { .. } | Write::Expect { .. } => {}
            }
        }
        if evicted.is_empty() {
            return;
        }
        for run_no in evicted {
            state.active.remove(*run_no);
        }
        Arc::make_mut(&mut state.deleted).extend(evicted.iter().copied());
        // Only segments that the catalog covers can be freed.
        if suspects.iter().any(|id| state.catalog.segment(*id).is_some()) {
            self.due.want(Wanted::COMPACT);
        }
        state.suspects.extend(suspects);
    }
}

/// See [`Log::look`]. It first brings all runs of records into memory.
fn look_in(
    state: &mut LogState,
    planned: &mut [Planned<'_>],
    stored: Vec<Stored>,
) -> Result<Found> {
    let mut documents = Vec::with_capacity(planned.len());
    for (write, stored) in planned.iter().zip(stored) {
        documents.push(match stored {
            Stored::Run(runs) => {
                bring_in(state, write.ids(), runs)?;
                None
            }
            Stored::Document(stored) => {
                let in_memory = VersionsInMemory::of(state, &write.space, &write.id, Detail::Name)?;
                Some(Versions::new(stored, in_memory, &state.deleted))
            }
        });
    }
    // Pure conditions come first: they may decide whether the caller may write at all.
    for (write, versions) in planned.iter().zip(&documents) {
        if let (Write::Expect { expected, .. }, Some(versions)) = (write.write, versions) {
            let _ = check_expected(write, versions, expected)?;
        }
    }
    let mut found = Found::default();
    for (write, versions) in planned.iter_mut().zip(&documents) {
        let version = match (write.write, versions) {
            (Write::Put { expected, .. } | Write::Delete { expected, .. }, Some(versions)) => {
                let version = check_expected(write, versions, expected)?;
                let is_pending =
                    |run_no: &RunNo| state.active.get(*run_no).is_some_and(|run| run.pending);
                let mut numbers = versions.numbers().filter(|run_no| !is_pending(run_no));
                let mut evicted: Vec<RunNo> = numbers.by_ref().collect();
                found.evicted.extend_from_slice(&evicted);
                if matches!(write.write, Write::Put { .. }) {
                    write.replaced = evicted.pop().unwrap_or_default();
                }
                found.others.append(&mut evicted);
                found.stored.extend(versions.stored_in());
                let beside = VERSION_LEN * versions.numbers().count() as u64;
                found.dead = found.dead.saturating_add(versions.bytes()).saturating_add(beside);
                version
            }
            _ => None,
        };
        found.versions.push(version);
        if matches!(write.write, Write::Append { .. }) {
            write.run_no = run_of(state, write)?;
        }
    }
    Ok(found)
}

/// The current version of a document, if the condition holds.
fn check_expected(
    planned: &Planned<'_>,
    versions: &Versions,
    expected: Expected,
) -> Result<Option<Version>> {
    let found = versions.current().map(|version| Version(version.run_no.0));
    let as_expected = match expected {
        Expected::Anything => true,
        Expected::Absent => found.is_none(),
        Expected::Version(version) => found == Some(version),
    };
    if as_expected {
        return Ok(found);
    }
    let (namespace, key) = (planned.space.as_str().to_owned(), planned.id.as_str().to_owned());
    Err(Error::Conflict { namespace, key, found })
}

/// The run of a record, which must accept it; the one with the record's chunks, if any.
fn run_of(state: &mut LogState, planned: &Planned<'_>) -> Result<RunNo> {
    let run_no = state.active.find(&planned.space, &planned.id).ok_or_else(|| {
        Error::RunNotFound { run: planned.id.clone(), agent: Some(planned.space.clone()) }
    })?;
    if planned.run_no != RunNo(0) && planned.run_no != run_no {
        return Err(Error::Evicted { run: Some(planned.id.clone()) });
    }
    next_seq(state, run_no, Allow::nothing())?;
    Ok(run_no)
}

impl<'a> Planned<'a> {
    fn ids(&self) -> (&AgentId, &RunId) {
        (&self.space, &self.id)
    }

    fn record(&self) -> Option<NewRecord<'a>> {
        match self.write {
            Write::Put { value, .. } => Some(value),
            Write::Append { record, .. } => Some(record),
            Write::Delete { .. } | Write::Expect { .. } => None,
        }
    }

    /// Whether its record does not fit one frame of this many bytes.
    fn is_longer(&self, limit: usize) -> bool {
        self.record()
            .is_some_and(|record| record.record_kind().len() + record.payload().len() > limit)
    }

    fn names_len(&self) -> usize {
        self.space.as_str().len() + self.id.as_str().len()
    }
}

fn without_receipts(evicted: &[RunNo]) -> Vec<Eviction> {
    evicted.iter().map(|&run_no| Eviction { run_no, receipt: None }).collect()
}
