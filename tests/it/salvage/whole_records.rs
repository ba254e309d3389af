//! Salvage: of a damaged store every record whose bytes are whole comes out, byte for byte and in
//! its order, none is invented, and what was deleted stays deleted.
//!
//! The test walks the frames of the store before it is damaged, so it knows where the bytes of each
//! record are, in all copies. Then it damages the file, salvages it, and compares.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;

use runlog::format::frames::frame::{Chunks, FLAG_CHUNKS, FLAG_DOCUMENT, FrameCheck};
use runlog::format::frames::ids::names_in;
use runlog::format::segments::segment::{SEGMENT_HEADER_LEN, SegmentHeader};
use runlog::format::{FrameHeader, FrameKind};
use runlog::salvaged::{Caveat, Missing};
use runlog::storage::MemoryStorage;
use runlog::{
    Allow, Compaction, Compression, ContentType, Durability, Error, Metadata, NewRecord, Options,
    Outcome, Reader, ReaderOptions, Retention, RunLog, RunQuery, RunStatus, SalvageReport,
    Timestamp, salvage_storage,
};
use runlog_sim::{SimDisk, SplitMix64, Survivors};

use crate::support::frames::{EXTENT, frames_in, records_of, unindexed};

const FRONT: usize = 64 << 10;
const PAGE: usize = 4096;

/// A record: late, time, content type, kind, payload.
type Record = (bool, Timestamp, ContentType, String, Vec<u8>);

/// A run: status, metadata, outcome, whether it is held, and its records.
type Run = (RunStatus, Option<Vec<u8>>, Option<Vec<u8>>, bool, Vec<Record>);

/// All that a store answers.
#[derive(Debug, PartialEq, Eq, Default)]
struct Answers {
    runs: BTreeMap<(String, String), Run>,
    documents: BTreeMap<(String, String), Record>,
    receipts: Vec<(String, String, Timestamp, u64)>,
}

const NAMESPACES: [&str; 2] = ["plans", "state"];

fn reader(image: &[u8]) -> runlog::Result<Reader> {
    ReaderOptions::new().open_storage(Arc::new(MemoryStorage::from_bytes(image.to_vec())))
}

fn answers(image: &[u8]) -> Answers {
    let reader = reader(image).unwrap();
    let mut all = Answers::default();
    let held: BTreeSet<_> =
        reader.held_runs().unwrap().into_iter().map(|held| (held.agent, held.run)).collect();
    for run in reader.runs(&RunQuery::new()) {
        let run = run.unwrap();
        let name = (run.agent.clone(), run.run.clone());
        let named = (&run.agent, &run.run);
        let metadata = reader.metadata(named).unwrap().map(|known| known.payload().to_vec());
        let outcome = reader.outcome(named).unwrap().map(|known| known.payload().to_vec());
        let records = reader.trace(named).unwrap().map(|record| {
            let record = record.unwrap();
            let kind = record.kind().unwrap_or_default().to_owned();
            let payload = record.payload().to_vec();
            (record.is_late(), record.timestamp(), record.content_type(), kind, payload)
        });
        let records = records.collect();
        let is_held = held.contains(&name);
        let known = (run.status, metadata, outcome, is_held, records);
        all.runs.insert((name.0.to_string(), name.1.to_string()), known);
    }
    for namespace in NAMESPACES.into_iter().chain(["salvaged"]) {
        for document in reader.docs().list(namespace, "", None, 1000).unwrap().documents {
            let found = reader.docs().get(namespace, document.key.as_str()).unwrap().unwrap();
            let kind = found.kind().unwrap_or_default().to_owned();
            let payload = found.payload().to_vec();
            let known = (false, found.timestamp(), found.content_type(), kind, payload);
            all.documents.insert((namespace.to_owned(), document.key.to_string()), known);
        }
    }
    let receipts = reader.receipts(10_000).unwrap().into_iter();
    all.receipts = receipts
        .map(|known| {
            (known.agent.to_string(), known.run.to_string(), known.deleted_at, known.bytes)
        })
        .collect();
    all.receipts.sort();
    all
}

fn salvage(image: Vec<u8>) -> runlog::Result<(SalvageReport, Vec<u8>)> {
    let out = Arc::new(MemoryStorage::new());
    let report = salvage_storage(Arc::new(MemoryStorage::from_bytes(image)), out.clone())?;
    let bytes = out.to_bytes();
    let found = reader(&bytes).unwrap();
    assert!(found.verify().unwrap().is_clean(), "{:?}", found.verify().unwrap().problems);
    Ok((report, bytes))
}

fn payload(random: &mut SplitMix64, most: u64) -> Vec<u8> {
    let len = usize::try_from(1 + random.below(most)).unwrap();
    let mut bytes = vec![0; len];
    if random.coin() {
        random.fill(&mut bytes);
    } else {
        // It compresses, and has no zeros.
        let word = format!("step {} of {}, ", random.below(1000), random.below(1000));
        bytes = word.bytes().cycle().take(len).collect();
    }
    bytes
}

/// A store of many shapes, and whether it was closed. Everything follows from the seed.
fn store(seed: u64) -> Vec<u8> {
    let mut random = SplitMix64::new(seed);
    let storage = Arc::new(MemoryStorage::new());
    let extent = (64_u64 << 10) << random.below(2);
    let mut options = Options::new().extent_size(extent).background(false).index(random.coin());
    if random.coin() {
        options = options.compression(Compression::Zstd { level: 3 });
    }
    let log = options.create_storage(storage.clone()).unwrap();
    let mut time = 1_000_000_000_i64;
    let mut going: Vec<String> = Vec::new();
    let mut ended: Vec<String> = Vec::new();
    let steps = 200 + random.below(500);
    for step in 0..steps {
        time += 1 + i64::try_from(random.below(1_000_000)).unwrap();
        let at = Timestamp(time);
        match random.below(24) {
            0..3 => {
                let run = format!("run-{seed}-{step}");
                let bytes = payload(&mut random, 300);
                let metadata = Metadata::new(&bytes).at(at).durability(Durability::Process);
                let _ = log.start_run(agent(&run), &run, metadata).unwrap();
                going.push(run);
            }
            3 if random.coin() => {
                let run = format!("implicit-{step}");
                append(&log, &mut random, &run, at, Allow::everything());
                going.push(run);
            }
            3..18 if !going.is_empty() => {
                let run = going[random.index(going.len())].clone();
                append(&log, &mut random, &run, at, Allow::nothing());
            }
            18 if !going.is_empty() => {
                let run = going.swap_remove(random.index(going.len()));
                let outcome = Outcome::failed().bytes(&payload(&mut random, 99)).at(at);
                let _ = log.end_run(agent(&run), &run, &outcome, Allow::nothing()).unwrap();
                ended.push(run);
            }
            19 if !ended.is_empty() => {
                let run = ended[random.index(ended.len())].clone();
                append(&log, &mut random, &run, at, Allow::everything());
            }
            20 if !ended.is_empty() => {
                let run = ended.swap_remove(random.index(ended.len()));
                match log.delete_run((agent(&run), run.as_str())) {
                    Ok(_) | Err(Error::RunHeld { .. }) => {}
                    other => panic!("{other:?}"),
                }
            }
            21 if !ended.is_empty() => {
                let run = &ended[random.index(ended.len())];
                let _ = log.hold((agent(run), run.as_str()), "a reason").unwrap();
            }
            22 => {
                let (namespace, key) =
                    (NAMESPACES[random.index(2)], format!("key-{}", random.below(9)));
                let value = payload(&mut random, 20_000);
                let value = NewRecord::new(&value).kind("plan").at(at);
                let _ = log.docs().put(namespace, &key, &value).unwrap();
                if random.below(4) == 0 {
                    let _ = log.docs().delete(namespace, &key).unwrap();
                }
            }
            23 if random.below(6) == 0 => {
                let _ = log.gc(&Retention::new().keep_newest(5)).unwrap();
                ended.retain(|run| log.run((agent(run), run.as_str())).is_ok());
                log.compact().unwrap();
            }
            _ => log.sync().unwrap(),
        }
    }
    if random.coin() {
        log.close().unwrap();
    }
    storage.to_bytes()
}

fn agent(run: &str) -> &'static str {
    if run.len() % 2 == 0 { "planner" } else { "reviewer" }
}

fn append(log: &RunLog, random: &mut SplitMix64, run: &str, at: Timestamp, allow: Allow) {
    let most = if random.below(12) == 0 { 40_000 } else { 1_500 };
    let bytes = payload(random, most);
    let record = NewRecord::new(&bytes).kind(["", "turn", "tool_call"][random.index(3)]).at(at);
    let record = record.content_type([ContentType::BYTES, ContentType::TEXT][random.index(2)]);
    if random.below(5) == 0 && allow == Allow::nothing() {
        let _ = log.append_batch_to(agent(run), run, &[record, record], allow).unwrap();
    } else {
        let _ = log.append_to(agent(run), run, &record, allow).unwrap();
    }
}

/// Where the bytes of one copy of a record are: for each part, the places that have its bytes.
type Copy = Vec<Vec<Range<usize>>>;

/// Where the bytes of the frames of a store are.
#[derive(Debug, Default)]
struct Places {
    names: BTreeMap<u64, (String, String)>,
    documents: BTreeSet<u64>,
    /// By the number of the run and the sequence.
    records: BTreeMap<(u64, u64), Vec<Copy>>,
}

/// Walks the frames of all segments.
fn places(image: &[u8]) -> Places {
    let extent = extent_size(image);
    let mut places = Places::default();
    let mut chunks: BTreeMap<(u64, u64, u32), Vec<Range<usize>>> = BTreeMap::new();
    let mut long: Vec<(FrameHeader, Chunks, Range<usize>)> = Vec::new();
    for start in (FRONT..image.len()).step_by(extent) {
        let segment = &image[start..image.len().min(start + extent)];
        let Ok(header) = SegmentHeader::decode(segment) else { continue };
        let check = FrameCheck::new(header.key);
        let mut at = SEGMENT_HEADER_LEN as usize;
        let (mut blocks, mut pieces) = (Vec::new(), Vec::new());
        while let Some(Ok(header)) =
            segment.get(at..).map(|rest| FrameHeader::decode_with(rest, &check, at as u32))
        {
            let range = start + at..start + at + header.frame_len();
            let from = at + header.header_len();
            let payload = &segment[from..from + header.payload_len as usize];
            at += header.frame_len();
            let run = header.run_no.0;
            if let Some((agent, name)) = names_in(header.kind, payload) {
                places.names.insert(run, (agent.to_string(), name.to_string()));
            }
            if header.flags & FLAG_DOCUMENT != 0 {
                places.documents.insert(run);
            }
            match header.kind {
                FrameKind::Record | FrameKind::Put if header.flags & FLAG_CHUNKS != 0 => {
                    let record = header.record_in(payload);
                    let row = Chunks::decode(&record[usize::from(header.name_len)..]).unwrap();
                    long.push((header, row, range));
                }
                FrameKind::Record | FrameKind::Put => {
                    places.records.entry((run, header.seq.0)).or_default().push(vec![vec![range]]);
                }
                FrameKind::Block => blocks.push((range.clone(), header)),
                FrameKind::Piece => pieces.push((range.clone(), header)),
                FrameKind::Chunk => {
                    let first = if header.extra == 0 { header.lsn.0 } else { header.seq.0 };
                    chunks.entry((run, first, header.extra)).or_default().push(range);
                }
                _ => {}
            }
        }
        for block in &blocks {
            for (seq, mut copy) in records_of(image, &pieces, block) {
                copy.push(vec![block.0.clone()]);
                places.records.entry((block.1.run_no.0, seq)).or_default().push(copy);
            }
        }
    }
    for (header, row, range) in long {
        let run = header.run_no.0;
        let mut copy = vec![vec![range]];
        // Copies of chunks are rare; the first one stands for all.
        let found = (0..row.count).map_while(|number| chunks.get(&(run, row.first.0, number)));
        copy.extend(found.map(|copies| vec![copies[0].clone()]));
        if copy.len() as u32 <= row.count {
            // The segment of a chunk is free: the run was deleted.
            continue;
        }
        places.records.entry((run, header.seq.0)).or_default().push(copy);
    }
    places
}

fn extent_size(image: &[u8]) -> usize {
    1 << image[56]
}

impl Places {
    /// The payloads of the records of each living run whose bytes are the same in both images.
    fn whole(
        &self,
        before: &[u8],
        after: &[u8],
        all: &Answers,
        by_headers: bool,
    ) -> BTreeMap<(String, String), Vec<Record>> {
        let extent = extent_size(before);
        let is_same = |part: Range<usize>| before[part.clone()] == after[part];
        let has_header = |part: &Range<usize>| {
            let start = FRONT + (part.start - FRONT) / extent * extent;
            !by_headers || is_same(start..start + SEGMENT_HEADER_LEN as usize)
        };
        let is_whole = |copy: &Copy| {
            copy.iter().all(|all| all.iter().any(|part| is_same(part.clone()) && has_header(part)))
        };
        let mut whole: BTreeMap<_, Vec<Record>> = BTreeMap::new();
        for ((run, seq), copies) in &self.records {
            let Some(name) = self.names.get(run).filter(|_| !self.documents.contains(run)) else {
                continue;
            };
            let Some((.., records)) = all.runs.get(name) else { continue };
            if copies.iter().any(is_whole) {
                whole.entry(name.clone()).or_default().push(records[*seq as usize].clone());
            }
        }
        whole
    }
}

/// How a file is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Harm {
    Front,
    Manifests,
    /// Every so manieth page from this one on, by zeros or by noise.
    Pages(usize, usize, bool),
    FrontAndPages(usize, usize, bool),
}

fn harm(image: &mut [u8], how: Harm, random: &mut SplitMix64) {
    match how {
        Harm::Front => image[..FRONT].fill(0),
        Harm::Manifests => {
            image[16 << 10..FRONT].fill(0);
            for start in (FRONT..image.len()).step_by(1 << 16) {
                if image[start..].starts_with(b"RLOGMAN1") {
                    image[start..start + PAGE].fill(0);
                }
            }
        }
        Harm::Pages(first, step, is_noise) => {
            for page in (first * PAGE..image.len()).step_by(step * PAGE) {
                let end = image.len().min(page + PAGE);
                image[page..end].fill(0);
                if is_noise {
                    random.fill(&mut image[page..end]);
                }
            }
        }
        Harm::FrontAndPages(first, step, is_noise) => {
            harm(image, Harm::Front, random);
            harm(image, Harm::Pages(first, step, is_noise), random);
        }
    }
}

/// Checks what came out of a damaged store against what was whole in it.
fn check(seed: u64, before: &[u8], how: Harm) {
    let mut random = SplitMix64::new(seed);
    let mut after = before.to_vec();
    harm(&mut after, how, &mut random);
    let all = answers(before);
    let (report, out) = salvage(after.clone()).unwrap_or_else(|error| panic!("{how:?}: {error}"));
    let found = answers(&out);
    let told = format!("seed {seed}, {how:?}, {report:?}");
    let places = places(before);
    // What lost its name goes by its number.
    let mut renamed: BTreeMap<(String, String), (String, String)> = BTreeMap::new();
    for missing in &report.missing {
        if let Missing::Name { agent, run, number } = missing {
            let name = places.names[&number.0].clone();
            renamed.insert(name, (agent.to_string(), run.to_string()));
        }
    }
    let is_unfinished =
        report.caveats.iter().any(|caveat| matches!(caveat, Caveat::Unfinished { .. }));
    let mut known: BTreeSet<(String, String)> = BTreeSet::new();
    for (name, records) in places.whole(before, &after, &all, !report.has_manifest) {
        let name = renamed.get(&name).cloned().unwrap_or(name);
        let Some((.., got)) = found.runs.get(&name) else {
            assert!(is_unfinished, "{name:?} lacks, {told}");
            continue;
        };
        let mut records = records;
        if is_unfinished {
            // Those of the lost batches are left out.
            let mut left = got.iter().peekable();
            records.retain(|record| left.next_if(|next| next.4 == record.4).is_some());
        }
        let lens = |records: &[Record]| -> Vec<usize> {
            records.iter().map(|record| record.4.len()).collect()
        };
        assert_eq!(lens(got), lens(&records), "{name:?}, {told}");
        for (got, record) in got.iter().zip(&records) {
            assert_eq!((&got.1, &got.2, &got.3), (&record.1, &record.2, &record.3), "{told}");
            assert!(got.4 == record.4, "the bytes differ in {name:?}, {told}");
        }
        known.insert(name);
    }
    let in_doubt = report.caveats.contains(&Caveat::Deletions);
    for (name, (.., records)) in &found.runs {
        let is_known = all.runs.contains_key(name) || known.contains(name);
        assert!(is_known || in_doubt, "{name:?} came back, {told}");
        assert!(known.contains(name) || records.is_empty() || !is_known, "{name:?}, {told}");
    }
    // No record is missing without a word.
    let count = |answers: &Answers| answers.runs.values().map(|run| run.4.len()).sum::<usize>();
    let lost: u64 = report
        .missing
        .iter()
        .map(|missing| match missing {
            Missing::Records { count, .. } => *count,
            _ => 0,
        })
        .sum();
    let has_bytes = report.missing.iter().any(|missing| matches!(missing, Missing::Bytes { .. }));
    assert!(has_bytes <= in_doubt, "{told}");
    assert!(count(&found) as u64 + lost >= count(&all) as u64 || has_bytes, "{told}");
    for (name, document) in &found.documents {
        assert!(in_doubt || all.documents.get(name) == Some(document), "{name:?}, {told}");
    }
    if matches!(how, Harm::Front | Harm::Manifests) {
        assert!(report.is_complete() && !report.has_manifest, "{told}");
        assert!(found == all, "{told}");
    }
}

#[test]
fn a_sound_store_comes_out_as_it_was() {
    for seed in 0..12 {
        let image = store(seed);
        let (report, out) = salvage(image.clone()).unwrap();
        assert!(report.is_complete() && report.has_manifest, "seed {seed}: {report:?}");
        assert!(report.caveats.is_empty() && report.damaged.is_empty(), "seed {seed}: {report:?}");
        assert!(answers(&out) == answers(&image), "seed {seed}");
    }
}

#[test]
fn without_its_first_64_kib_a_store_comes_out_whole() {
    for seed in 20..44 {
        check(seed, &store(seed), Harm::Front);
    }
}

#[test]
fn without_any_manifest_a_store_comes_out_whole() {
    for seed in 50..62 {
        check(seed, &store(seed), Harm::Manifests);
    }
}

#[test]
fn with_many_pages_and_the_front_damaged_all_whole_records_come_out() {
    for seed in 100..124 {
        let image = store(seed);
        for step in [3, 7, 31] {
            let first = seed as usize % step;
            check(seed, &image, Harm::FrontAndPages(first, step, step != 7));
            check(seed, &image, Harm::Pages(first, step, step == 7));
        }
    }
}

/// A store with a run that was deleted and one that was not, in one segment.
fn with_a_deleted_run() -> Vec<u8> {
    let storage = Arc::new(MemoryStorage::new());
    let options = Options::new().extent_size(1 << 16).background(false).index(false);
    let log = options.create_storage(storage.clone()).unwrap();
    for run in ["deleted", "kept"] {
        let writer = log.start_run("planner", run, ()).unwrap();
        let _ = writer.append(format!("what {run} did").as_bytes()).unwrap();
        let _ = writer.end(&Outcome::completed()).unwrap();
    }
    log.delete_run("deleted").unwrap();
    log.close().unwrap();
    storage.to_bytes()
}

#[test]
fn a_deleted_run_stays_deleted_while_anything_tells_of_its_deletion() {
    let mut image = with_a_deleted_run();
    image[..FRONT].fill(0);
    let (report, out) = salvage(image.clone()).unwrap();
    assert_eq!((report.runs, report.deleted, report.receipts), (1, 1, 1), "{report:?}");
    let found = answers(&out);
    assert!(found.runs.keys().all(|(_, run)| run == "kept"), "{found:?}");
    assert_eq!(found.receipts[0].1, "deleted");

    // The receipt has the ids of the run in another order than a start has.
    let item = b"deletedplanner";
    let at = image.windows(item.len()).position(|part| part == item).unwrap();
    image[at] ^= 1;
    let (report, out) = salvage(image).unwrap();
    assert!(report.caveats.contains(&Caveat::Deletions), "{report:?}");
    assert_eq!((report.runs, report.deleted, report.receipts), (2, 0, 0), "{report:?}");
    assert!(answers(&out).runs.keys().any(|(_, run)| run == "deleted"));
}

#[test]
fn of_two_runs_with_one_name_the_later_one_proves_that_the_earlier_one_was_deleted() {
    let storage = Arc::new(MemoryStorage::new());
    let options = Options::new().extent_size(1 << 16).background(false).index(false);
    let log = options.create_storage(storage.clone()).unwrap();
    for text in ["first", "second"] {
        let writer = log.start_run("planner", "run", ()).unwrap();
        let _ = writer.append(text.as_bytes()).unwrap();
        let _ = writer.end(&Outcome::completed()).unwrap();
        if text == "first" {
            log.delete_run("run").unwrap();
        }
    }
    log.close().unwrap();
    let mut image = storage.to_bytes();
    image[..FRONT].fill(0);
    let item = b"runplanner";
    let at = image.windows(item.len()).position(|part| part == item).unwrap();
    image[at] ^= 1;
    let (report, out) = salvage(image).unwrap();
    assert_eq!((report.runs, report.deleted), (1, 1), "{report:?}");
    let found = answers(&out);
    let (.., records) = &found.runs[&("planner".to_owned(), "run".to_owned())];
    assert_eq!(records[0].4, b"second");
}

/// The victims are still there, because the compaction was killed before it freed them.
#[test]
fn without_a_manifest_a_record_of_a_compaction_and_of_its_victim_comes_out_once() {
    let storage = Arc::new(MemoryStorage::new());
    let manual = Compaction::new().automatic(false);
    let options = Options::new().extent_size(1 << 16).background(false).compaction(manual);
    let log = options.create_storage(storage.clone()).unwrap();
    for number in 0..12_u8 {
        let writer = log.start_run("planner", &format!("run-{number}"), ()).unwrap();
        (0..3).for_each(|_| drop(writer.append(&[number; 7_000]).unwrap()));
        let _ = writer.end(&Outcome::completed()).unwrap();
    }
    for number in (0..12).step_by(2) {
        log.delete_run(format!("run-{number}").as_str()).unwrap();
    }
    log.checkpoint().unwrap();
    let before = storage.to_bytes();
    assert!(log.compact().unwrap().segments > 1);
    log.checkpoint().unwrap();
    log.close().unwrap();
    let mut image = storage.to_bytes();
    let all = answers(&image);
    image[..FRONT].fill(0);
    let mut victims = 0;
    for start in (FRONT..before.len()).step_by(1 << 16) {
        let had = SegmentHeader::decode(&before[start..]).is_ok();
        if had && SegmentHeader::decode(&image[start..]).is_err() {
            image[start..start + (1 << 16)].copy_from_slice(&before[start..start + (1 << 16)]);
            victims += 1;
        }
    }
    assert!(victims > 1, "{victims}");
    let (report, out) = salvage(image).unwrap();
    assert!(report.is_complete() && report.caveats.contains(&Caveat::NoManifest), "{report:?}");
    assert!(answers(&out) == all, "{report:?}");
}

/// Goal: the new file is named only after all of it is durable, and the damaged one stays as it is.
#[test]
fn a_salvage_that_says_it_is_done_survives_a_power_cut_whatever_failed_meanwhile() {
    let mut image = with_a_deleted_run();
    image[..FRONT].fill(0);
    let whole = answers(&salvage(image.clone()).unwrap().1);
    // Which operation fails, and whether all behind it do; at first none.
    let mut failing = None;
    loop {
        let (broken, out) = (SimDisk::untracked(image.clone()), SimDisk::new());
        match failing {
            Some((number, true)) => out.fail_from(number, ErrorKind::Other),
            Some((number, false)) => out.fail_op(number, ErrorKind::Other),
            None => {}
        }
        let done = salvage_storage(Arc::new(broken.clone()), Arc::new(out.clone()));
        assert!(done.is_ok() || failing.is_some(), "{done:?}");
        assert!(broken.op_count() == 0 && broken.image() == image, "{failing:?}");
        if done.is_ok() {
            for survivors in Survivors::ALL {
                let left = out.crash(survivors, 7);
                assert!(answers(&left) == whole, "{failing:?}, {survivors:?}");
            }
        }
        failing = match failing {
            None => Some((0, false)),
            Some((number, false)) => Some((number, true)),
            // Without its last operations the salvage has not failed any more.
            Some((number, true)) if number > out.op_count() => break,
            Some((number, true)) => Some((number + 1, false)),
        };
    }
}

#[test]
fn stores_of_newer_versions_and_other_files_are_refused() {
    let image = with_a_deleted_run();
    let mut newer = image.clone();
    newer[20] = 9;
    let checksum = crc32(&newer[..80]);
    newer[80..84].copy_from_slice(&checksum.to_le_bytes());
    let refused = salvage(newer).unwrap_err();
    assert!(matches!(refused, Error::UnsupportedVersion { found: 9, .. }), "{refused:?}");

    for other in [vec![0; 300_000], vec![7; 300_000], b"text".repeat(100_000)] {
        let refused = salvage(other).unwrap_err();
        assert!(matches!(refused, Error::NotAStore { .. }), "{refused:?}");
    }
}

/// The crc32 of zlib, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |state: u32| if state & 1 == 1 { (state >> 1) ^ 0xedb8_8320 } else { state >> 1 };
    !bytes
        .iter()
        .fold(u32::MAX, |state, byte| (0..8).fold(state ^ u32::from(*byte), |state, _| step(state)))
}

#[test]
fn the_new_file_appears_whole_and_the_damaged_one_is_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    let (broken, out) = (folder.path().join("broken"), folder.path().join("out"));
    let mut image = with_a_deleted_run();
    image[..FRONT].fill(0);
    std::fs::write(&broken, &image).unwrap();
    let report = runlog::salvage(&broken, &out).unwrap();
    assert_eq!((report.runs, report.records), (1, 1));
    assert!(std::fs::read(&broken).unwrap() == image);
    assert_eq!(Reader::open(&out).unwrap().trace("kept").unwrap().count(), 1);
    let log = Options::new().open_existing(&out).unwrap();
    assert!(log.verify().unwrap().is_clean());

    // Never over what is there, and nothing is left of a salvage that fails.
    let refused = runlog::salvage(&broken, &out).unwrap_err();
    assert!(matches!(refused, Error::AlreadyExists { .. }), "{refused:?}");
    std::fs::write(&broken, vec![7; 300_000]).unwrap();
    let refused = runlog::salvage(&broken, folder.path().join("new")).unwrap_err();
    assert!(matches!(refused, Error::NotAStore { .. }), "{refused:?}");
    let names = std::fs::read_dir(folder.path()).unwrap();
    let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["broken", "out"]);
    // A store that a process writes is not salvaged.
    if cfg!(target_os = "linux") {
        let refused = runlog::salvage(&out, folder.path().join("new")).unwrap_err();
        assert!(matches!(refused, Error::Busy { .. }), "{refused:?}");
    }
    log.close().unwrap();
}

/// Zeros at the end are no end of the log where more was durable.
#[test]
fn a_last_frame_of_a_closed_store_that_damage_zeroed_is_told() {
    for last in ["a record", "an end", "a hold"] {
        let storage = Arc::new(MemoryStorage::new());
        let log = unindexed().create_storage(storage.clone()).unwrap();
        let run = log.start_run("agent", "run", ()).unwrap();
        (0..3).for_each(|_| drop(run.append(b"record").unwrap()));
        match last {
            "a record" => {}
            "an end" => drop(run.end(&Outcome::completed()).unwrap()),
            _ => assert!(log.hold("run", "why").unwrap()),
        }
        drop(run);
        log.close().unwrap();
        let mut image = storage.to_bytes();
        assert!(salvage(image.clone()).unwrap().0.is_complete(), "{last}");
        let (range, _) = frames_in(&image, 0).pop().unwrap();
        image[range.clone()].fill(0);
        let (report, _) = salvage(image).unwrap();
        let is_told = |missing: &Missing| match missing {
            Missing::Bytes { offset, len } => {
                *offset <= range.start as u64 && range.end as u64 <= offset + len
            }
            _ => false,
        };
        assert!(report.missing.iter().any(is_told), "{last}: {report:?}");
    }
}

/// A loss of power left the deletion of the old version and the COMMIT.
#[test]
fn a_document_whose_next_version_was_torn_is_salvaged_as_it_was() {
    let (record, chunk) = ((FrameKind::Put, 2000), (FrameKind::Chunk, 20_000));
    // It begins in the segment in front.
    let rolled = (FrameKind::Chunk, 100_000);
    let parts = [(record, 1024), (chunk, 0), (chunk, 1024), (rolled, 0)];
    for ((kind, len), from) in parts {
        let storage = Arc::new(MemoryStorage::new());
        let log = unindexed().create_storage(storage.clone()).unwrap();
        log.docs().put("state", "key", &NewRecord::new(b"durable")).unwrap();
        log.sync().unwrap();
        let value = vec![7; len];
        let next = NewRecord::new(&value).durability(Durability::Process);
        log.docs().put("state", "key", &next).unwrap();
        let mut image = storage.to_bytes();
        let frames = frames_in(&image, usize::from(len > EXTENT));
        assert_eq!(frames.last().unwrap().1.kind, FrameKind::Put);
        let mut torn = frames.iter().filter(|frame| frame.1.kind == kind);
        let torn = torn.next_back().unwrap().0.clone();
        image[torn.start + from..torn.end].fill(0);
        let (report, out) = salvage(image).unwrap();
        let found = reader(&out).unwrap().docs().get("state", "key").unwrap().unwrap();
        assert_eq!(found.payload(), b"durable", "{kind:?}, {from}");
        assert!(!report.is_complete(), "{report:?}");
    }
}
