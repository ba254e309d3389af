//! A compaction as the engine does it, on directories alone: living runs move from victims to
//! outputs, and what the index is to be told of it.

use std::collections::{BTreeMap, BTreeSet};

use super::log::{LAST_ORDER, Log, Model, Writer};
use crate::format::segments::directory::{EvictionAt, HoldAt};
use crate::format::segments::segment::Purpose;
use crate::format::{DirectoryBuilder, RunEntry};
use crate::index::{
    Applied, Catalog, Directories, DirectoryScan, Relocation, RunRow, Span, fold_spans,
};
use crate::types::{LogPosition, RunNo, SegmentId};

/// Which evictions a compaction knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Eager {
    /// Those that the index applied.
    No,
    /// All of them.
    Yes,
}

impl Writer {
    /// Moves what lives in some victims that an index covers. None if there are no victims.
    pub(super) fn compact(&mut self, applied: Applied, eager: Eager) -> Option<Relocation> {
        let before = Model::of(&self.log, applied);
        let known = if eager == Eager::Yes { self.log.applied() } else { applied };
        let dead = self.log.evicted(known);
        let victims = self.choose_victims(applied);
        if victims.is_empty() {
            return None;
        }
        let mut moved = BTreeMap::new();
        for (run_no, state) in before.runs.iter().filter(|(run_no, _)| !dead.contains(run_no)) {
            let groups = self.groups(&state.spans, &victims);
            if !groups.is_empty() {
                moved.insert(*run_no, groups);
            }
        }
        let outputs = self.write_outputs(&moved, &victims);
        for victim in &victims {
            self.log.remove(*victim);
        }
        let written: Vec<SegmentId> = outputs.keys().copied().collect();
        let compacted = *written.last().unwrap();
        let mut places: BTreeMap<RunNo, Vec<SegmentId>> = BTreeMap::new();
        for (segment, mut builder) in outputs {
            builder.note_lsn(LAST_ORDER);
            for built in builder.runs() {
                places.entry(built.entry.run_no).or_default().push(segment);
            }
            let directory = builder.encode(RunNo(self.next_no));
            self.log.insert(segment, Purpose::Output, directory);
        }
        let now = Applied { outputs: applied.outputs.max(Some(compacted)), ..applied };
        let mut runs = Vec::new();
        for (run_no, segments) in places {
            let old = &before.runs[&run_no];
            runs.push(relocated(&self.log, now, &victims, &segments, old.clone()));
        }
        let index = |segment: &SegmentId| self.log.segments.binary_search(segment).unwrap();
        let stamp = |segment: &SegmentId| (*segment, self.log.stamp(index(segment)));
        let outputs = written.iter().map(stamp).collect();
        Some(Relocation { outputs, victims: victims.into_iter().collect(), runs })
    }

    fn choose_victims(&mut self, applied: Applied) -> BTreeSet<SegmentId> {
        let mut victims = BTreeSet::new();
        for (segment, purpose) in self.log.segments.iter().zip(&self.log.purposes) {
            if applied.covers(*segment, *purpose) && self.random.once_in(3) {
                victims.insert(*segment);
            }
        }
        victims
    }

    /// The entries of a run in victims, joined where nothing of the run is left between them.
    fn groups(&mut self, spans: &[Span], victims: &BTreeSet<SegmentId>) -> Vec<RunEntry> {
        let mut groups: Vec<RunEntry> = Vec::new();
        let mut joins = false;
        for span in spans {
            if !victims.contains(&span.segment) {
                joins = false;
                continue;
            }
            let at = self.log.segments.binary_search(&span.segment).unwrap();
            let entry = self.log.view(at).run(span.slot).unwrap();
            match groups.last_mut() {
                Some(last) if joins => join(last, &entry),
                _ => groups.push(entry),
            }
            joins = !self.random.once_in(4);
        }
        groups
    }

    /// Each group of a run goes to an output of its own, in no order.
    fn write_outputs(
        &mut self,
        moved: &BTreeMap<RunNo, Vec<RunEntry>>,
        victims: &BTreeSet<SegmentId>,
    ) -> BTreeMap<SegmentId, DirectoryBuilder> {
        let most = moved.values().map(Vec::len).max().unwrap_or(0);
        let count = most + 1 + usize::try_from(self.random.below(2)).unwrap();
        let mut outputs: Vec<_> =
            (0..count).map(|_| (self.next_id(), DirectoryBuilder::default())).collect();
        for (run_no, groups) in moved {
            let from = usize::try_from(self.random.below(count as u64)).unwrap();
            for (at, group) in groups.iter().enumerate() {
                let at = if self.random.once_in(2) { at } else { groups.len() - 1 - at };
                let free = (0..count).map(|step| (from + at + step) % count);
                let mut free = free.filter(|at| outputs[*at].1.run(*run_no).is_none());
                let at = free.next().unwrap();
                let builder = &mut outputs[at].1;
                builder.bind(*run_no, group.agent.clone(), group.run.clone());
                *builder.run_mut(*run_no).unwrap() = group.clone();
            }
        }
        for eviction in self.kept_evictions(victims) {
            let at = usize::try_from(self.random.below(count as u64)).unwrap();
            outputs[at].1.push_eviction(eviction);
        }
        outputs.into_iter().collect()
    }

    /// The evictions in victims that are still needed, and some more.
    fn kept_evictions(&mut self, victims: &BTreeSet<SegmentId>) -> Vec<EvictionAt> {
        let log = &self.log;
        let (gone, left): (Vec<usize>, Vec<usize>) =
            (0..log.segments.len()).partition(|index| victims.contains(&log.segments[*index]));
        let mut kept = Vec::new();
        let evictions = |index: &usize| log.view(*index).evictions().collect::<Vec<_>>();
        for eviction in gone.iter().flat_map(evictions) {
            let eviction = eviction.unwrap();
            let is_needed = left
                .iter()
                .any(|index| log.view(*index).find_no(eviction.run_no).unwrap().is_some());
            if is_needed || self.random.once_in(4) {
                kept.push(eviction);
            }
        }
        kept
    }
}

/// What one directory says of a run, of which two said it before.
fn join(entry: &mut RunEntry, next: &RunEntry) {
    entry.created_at = entry.created_at.into_iter().chain(next.created_at).min();
    entry.start = entry.start.into_iter().chain(next.start).min_by_key(|start| start.at);
    entry.end = entry.end.into_iter().chain(next.end).max_by_key(|end| end.lsn);
    entry.hold = entry.hold.into_iter().chain(next.hold).max_by_key(|hold: &HoldAt| hold.lsn);
    entry.first_seq = entry.first_seq.into_iter().chain(next.first_seq).min();
    entry.next_seq = entry.next_seq.max(next.next_seq);
    entry.records += next.records;
    entry.first_lsn = entry.first_lsn.min(next.first_lsn);
    entry.late += next.late;
    entry.bytes += next.bytes;
    entry.stored += next.stored;
    entry.last_at = entry.last_at.max(next.last_at);
}

/// The row and the spans of a run that moved; and that nothing but positions changed.
fn relocated(
    log: &Log,
    now: Applied,
    victims: &BTreeSet<SegmentId>,
    outputs: &[SegmentId],
    before: crate::index::RunState,
) -> (RunRow, Vec<Span>) {
    let old = before.row.unwrap();
    let scan = DirectoryScan::up_to(log, now);
    let (row, spans) = (scan.row(old.run_no).unwrap().unwrap(), scan.spans(old.run_no).unwrap());
    assert_eq!(without_positions(&row), without_positions(&old));
    let read: Vec<&Span> = spans.iter().filter(|span| span.records > 0).collect();
    let ascend = |pair: &[&Span]| Some(pair[0].next_seq) <= pair[1].first_seq;
    assert!(read.windows(2).all(ascend), "{spans:?}");

    // The spans that stay, and the outputs at a slot that is not known yet.
    let mut hints = before.spans;
    hints.retain(|span| !victims.contains(&span.segment));
    let hint = |segment: &SegmentId| Span { segment: *segment, slot: u32::MAX, ..spans[0] };
    hints.extend(outputs.iter().map(hint));
    let folded = fold_spans(log, old.run_no, &hints).unwrap();
    assert_eq!((folded.row.as_ref(), &folded.spans), (Some(&row), &spans));
    (row, spans)
}

fn without_positions(row: &RunRow) -> RunRow {
    let nowhere = LogPosition { segment: SegmentId(0), offset: 0 };
    let mut row = row.clone();
    row.start = row.start.map(|_| nowhere);
    row.end = row.end.map(|_| nowhere);
    if let Some(hold) = &mut row.hold {
        hold.at = nowhere;
    }
    row
}
