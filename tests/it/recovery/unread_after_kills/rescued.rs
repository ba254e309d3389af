//! Salvaging what a disk cannot read: all that is whole comes out, and what is missing is told.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use runlog::format::frames::block::seq_in;
use runlog::format::frames::frame::{
    Chunks, FLAG_CHUNKS, FLAG_DOCUMENT, FRAME_HEADER_LEN, FrameCheck, SegmentKey, decode_ids,
};
use runlog::format::map::manifest::{Use, read_area};
use runlog::format::map::superblock::{ManifestAt, Superblock};
use runlog::format::segments::segment::{Purpose, SEGMENT_HEADER_LEN, SegmentHeader};
use runlog::format::{EXTENTS_AT, FrameHeader, FrameKind, PAGE, SUPERBLOCK_AT};
use runlog::salvaged::{Doubt, Missing};
use runlog::storage::MemoryStorage;
use runlog::{Error, ReadLog, ReaderOptions, RunQuery, SalvageReport, salvage_storage};

use super::Case;
use super::answers::number;
use super::story::{AGENT, KEYS, SPACE, identify, key_name};
use crate::support::frames::EXTENT;

/// Where the bytes of one copy of a record are: its parts, and for each the places that have it.
type Copy = Vec<Vec<Range<u64>>>;

/// Where the bytes of all records are.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// By the number of the run.
    runs: BTreeMap<u64, String>,
    /// By the number of the run, or the version, and the sequence.
    records: BTreeMap<(u64, u64), Vec<Copy>>,
}

impl Places {
    /// Those in segments that count.
    pub(super) fn of(image: &[u8]) -> Self {
        let mut places = Self::default();
        let counted = counted(image);
        let mut chunks: BTreeMap<(u64, u64, u32), Vec<Range<u64>>> = BTreeMap::new();
        let mut long = Vec::new();
        for start in (EXTENTS_AT as usize..image.len()).step_by(EXTENT) {
            let segment = &image[start..image.len().min(start + EXTENT)];
            let Ok(header) = SegmentHeader::decode(segment) else { continue };
            if !counted.contains(&header.key) {
                continue;
            }
            let check = FrameCheck::new(header.key);
            let mut at = SEGMENT_HEADER_LEN as usize;
            while let Some(Ok(header)) =
                segment.get(at..).map(|rest| FrameHeader::decode_with(rest, &check, at as u32))
            {
                let place = (start + at) as u64..(start + at + header.frame_len()) as u64;
                let from = at + FRAME_HEADER_LEN;
                let Some(payload) = segment.get(from..from + header.payload_len as usize) else {
                    break;
                };
                at += header.frame_len();
                let run = header.run_no.0;
                match header.kind {
                    FrameKind::Bind | FrameKind::Start => {
                        if header.flags & FLAG_DOCUMENT == 0
                            && let Ok((_, name, _)) = decode_ids(payload)
                            && name.as_str().starts_with("run ")
                        {
                            let _ = places.runs.insert(run, name.to_string());
                        }
                    }
                    FrameKind::Record if header.flags & FLAG_CHUNKS != 0 => {
                        let row = payload.get(usize::from(header.name_len)..).unwrap_or_default();
                        long.extend(Chunks::decode(row).ok().map(|row| (header, row, place)));
                    }
                    FrameKind::Record => places.note(run, header.seq.0, vec![vec![place]]),
                    FrameKind::Block => {
                        for rank in 0..header.extra {
                            let seq = seq_in(&header, rank).0;
                            places.note(run, seq, vec![vec![place.clone()]]);
                        }
                    }
                    FrameKind::Chunk => {
                        let first = if header.extra == 0 { header.lsn.0 } else { header.seq.0 };
                        chunks.entry((run, first, header.extra)).or_default().push(place);
                    }
                    _ => {}
                }
            }
        }
        for (header, row, place) in long {
            let run = header.run_no.0;
            let parts = (0..row.count).map(|number| chunks.get(&(run, row.first.0, number)));
            let parts: Option<Vec<_>> = parts.map(|places| places.cloned()).collect();
            if let Some(mut parts) = parts {
                parts.push(vec![place]);
                places.note(run, header.seq.0, parts);
            }
        }
        places
    }

    fn note(&mut self, run: u64, seq: u64, copy: Copy) {
        self.records.entry((run, seq)).or_default().push(copy);
    }
}

/// The segments that the manifest lists, but those that are being written by a compaction, or have
/// been moved or deleted.
fn counted(image: &[u8]) -> Vec<SegmentKey> {
    let slots = (0..2).filter_map(|slot| {
        let at = usize::try_from(SUPERBLOCK_AT + slot * PAGE).unwrap();
        Superblock::decode(&image[at..at + PAGE as usize]).ok()
    });
    let block = slots.max_by_key(|block| block.epoch).expect("there is one");
    let ManifestAt { offset, len, generation, .. } = block.manifest;
    let area = &image[offset as usize..(offset + len) as usize];
    let contents = read_area(area, block.uuid, generation).expect("it is whole");
    let key = |used: &Use| match *used {
        Use::Log { segment: id, salt, purpose, sealed } => {
            (purpose == Purpose::Log || sealed.is_some()).then_some(SegmentKey { id, salt })
        }
        _ => None,
    };
    contents.extents.uses.values().filter_map(key).collect()
}

fn meet(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// All that came out: the records by run or key, and which of it are documents.
struct Rescued {
    runs: BTreeMap<String, Vec<u64>>,
    documents: BTreeMap<String, u64>,
    ended: BTreeSet<String>,
}

impl Rescued {
    fn of(out: Vec<u8>) -> Self {
        let storage = Arc::new(MemoryStorage::from_bytes(out));
        let reader = ReaderOptions::new().open_storage(storage).unwrap();
        let verified = reader.verify().unwrap();
        assert!(verified.is_clean(), "the new store: {:?}", verified.problems);
        let (mut runs, mut documents) = (BTreeMap::new(), BTreeMap::new());
        let mut ended = BTreeSet::new();
        for run in reader.runs(&RunQuery::new()) {
            let run = run.unwrap();
            let records = reader.trace((&run.agent, &run.run)).unwrap().map(Result::unwrap);
            let ids = records.map(|record| identify(record.kind(), record.payload())).collect();
            assert!(run.agent.as_str() == AGENT || run.agent.as_str() == "salvaged");
            if run.status.is_ended() {
                let _ = ended.insert(run.run.to_string());
            }
            let _ = runs.insert(run.run.to_string(), ids);
        }
        for space in [SPACE, "salvaged"] {
            for key in reader.list_documents(space, "", None, 1_000).unwrap().documents {
                let found = reader.document(space, &key.key).unwrap().unwrap();
                let id = identify(found.kind(), found.payload());
                let _ = documents.insert(key.key.to_string(), id);
            }
        }
        Self { runs, documents, ended }
    }
}

impl Case {
    /// Salvages the store. Answers false if the device was refused.
    pub(super) fn salvage(&self) -> bool {
        let disk = self.disk();
        let out = Arc::new(MemoryStorage::new());
        let report = match salvage_storage(Arc::new(disk), out.clone()) {
            Ok(report) => report,
            Err(error) => {
                let is_read = matches!(error, Error::Io { .. });
                let has_none = self.may_have_no_store();
                assert!(is_read && has_none, "{self}: salvage answers {error:?}");
                return false;
            }
        };
        let rescued = Rescued::of(out.to_bytes());
        self.check_rescued(&rescued, &report);
        true
    }

    /// Whether the faults may take all that shows that this is a store.
    fn may_have_no_store(&self) -> bool {
        let is_whole = |at: &usize| {
            let place = *at as u64..*at as u64 + 4096;
            let is_header = SegmentHeader::decode(&self.image[*at..]).is_ok();
            is_header && !self.faults.unread.iter().any(|bad| meet(bad, &place))
        };
        let mut starts = (EXTENTS_AT as usize..self.image.len()).step_by(EXTENT);
        !starts.any(|at| is_whole(&at))
    }

    fn check_rescued(&self, rescued: &Rescued, report: &SalvageReport) {
        let told = || format!("{self}: {report:?}");
        let places = &self.places;
        let mut by_run: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (run, name) in &places.runs {
            by_run.entry(number(name)).or_default().push(*run);
        }
        let all: BTreeSet<u64> = rescued.runs.values().flatten().copied().collect();
        for (run, known) in &self.whole.runs {
            let numbers = by_run.get(run).cloned().unwrap_or_default();
            for (seq, id) in (0..).zip(&known.ids) {
                if all.contains(id) || self.deleted_later.contains(run) {
                    continue;
                }
                let copies = numbers.iter().filter_map(|of| places.records.get(&(*of, seq)));
                let copies: Vec<&Copy> = copies.flatten().collect();
                self.check_missing(&format!("record {id} of run {run}"), &numbers, &copies, report);
            }
        }
        for (name, ids) in &rescued.runs {
            assert!(ids.is_sorted(), "{name} has {ids:?}, {}", told());
        }
        let may_have = self.lost_power
            || !report.doubts.is_empty()
            || report.missing.iter().any(|one| matches!(one, Missing::Bytes { .. }))
            || self.faults.has_damage;
        for (name, ids) in &rescued.runs {
            let of = name.strip_prefix("run ").and_then(|number| number.parse::<u64>().ok());
            let known = of.and_then(|run| self.whole.runs.get(&run));
            let is_known = known.is_some_and(|known| ids.iter().all(|id| known.ids.contains(id)));
            // The frame of its start was being written.
            let is_begun = ids.is_empty()
                && report.missing.iter().any(|one| match one {
                    Missing::Metadata { run, .. } => run.as_str() == name,
                    _ => false,
                });
            let is_known = is_known || is_begun;
            assert!(is_known || may_have, "{name} came back with {ids:?}, {}", told());
            let should_end = known.is_some_and(|known| known.has_ended);
            assert!(!should_end || rescued.ended.contains(name) || may_have, "{name}, {}", told());
        }
        let ids: BTreeSet<u64> = rescued.documents.values().copied().collect();
        for (key, id) in &self.whole.docs {
            let found = rescued.documents.get(&key_name(*key));
            assert!(
                found.is_none_or(|found| found == id) || may_have,
                "{key}: {found:?}, {}",
                told()
            );
            if !ids.contains(id) && !self.is_replaced(*key, found.copied(), report) {
                let version = self.versions[key];
                let copies = places.records.get(&(version, 0));
                let copies: Vec<&Copy> = copies.into_iter().flatten().collect();
                self.check_missing(&format!("document {key}"), &[version], &copies, report);
            }
        }
        let keys: BTreeSet<String> = (0..KEYS).map(key_name).collect();
        for (key, id) in &rescued.documents {
            let is_known = keys.contains(key) && self.whole.docs.values().any(|known| known == id);
            assert!(is_known || may_have, "{key} came back as {id}, {}", told());
        }
    }

    /// Whether a later version, which does not count after a loss of power, may have taken the
    /// place of a document.
    fn is_replaced(&self, key: u64, found: Option<u64>, report: &SalvageReport) -> bool {
        let is_newer = found.is_some_and(|found| found > self.whole.docs[&key]);
        let is_told = report.missing.iter().any(|one| match one {
            Missing::Document { key: of, .. } => of.as_str() == key_name(key),
            Missing::Bytes { .. } => true,
            _ => false,
        });
        self.lost_power && (is_newer || is_told)
    }

    /// A record that did not come out has no whole copy, and the report names what is lost.
    fn check_missing(&self, what: &str, of: &[u64], copies: &[&Copy], report: &SalvageReport) {
        let hit = |place: &Range<u64>| self.hits().any(|bad| meet(bad, place));
        let is_unfinished = report.missing.iter().any(|one| match one {
            Missing::Unfinished { number, .. } => of.contains(&number.0),
            _ => false,
        });
        let is_unfinished = is_unfinished
            && report.doubts.iter().any(|doubt| matches!(doubt, Doubt::Unfinished { .. }));
        let is_whole =
            |copy: &&&Copy| copy.iter().all(|places| places.iter().any(|place| !hit(place)));
        let whole = copies.iter().find(is_whole);
        assert!(
            whole.is_none() || is_unfinished,
            "{self}: {what} at {whole:x?} is left out, {report:?}"
        );
        let touched: Vec<_> = self
            .faults
            .unread
            .iter()
            .filter(|bad| copies.iter().any(|copy| copy.iter().flatten().any(|at| meet(bad, at))))
            .collect();
        let is_told = report.missing.iter().any(|one| match one {
            Missing::Bytes { offset, len } => {
                touched.iter().any(|bad| meet(bad, &(*offset..offset + len)))
            }
            _ => false,
        });
        // What is damaged at the end of a log may look as if it was never written.
        let is_told = is_told || touched.is_empty();
        assert!(
            is_told || is_unfinished || copies.is_empty(),
            "{self}: {what} at {copies:x?} is missing and nothing tells of it, {report:?}"
        );
    }
}
