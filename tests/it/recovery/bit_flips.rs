//! Every bit of a small store, flipped: the flip is detected, or hits bytes without a meaning.
//!
//! A store with a sealed segment and a tail, closed cleanly, is opened once for each bit with that
//! bit flipped. Opening, the report, `verify` or reading must find the damage, unless all answers
//! are as before. A flip in the frame of a record affects only that record, and is reported with
//! its place or its name. No flip causes a panic or a wrong answer.
//!
//! A plain `cargo test` takes one bit in 997, and CI one in 397.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use runlog::format::frames::frame::{Chunks, FLAG_CHUNKS, FRAME_HEADER_LEN, decode_ids};
use runlog::format::segments::segment::{Purpose, SEGMENT_HEADER_LEN, SegmentHeader};
use runlog::format::{EXTENTS_AT, FrameHeader, FrameKind, MANIFEST_AT};
use runlog::{Compression, Corruption, Error, LogPosition, Place, ReadLog, RunNo, RunQuery};
use runlog_sim::{SimDisk, settings};

use crate::support::cuts::open;
use crate::support::world::{EXTENT, Machine, World};

type Name = (String, String);

/// All answers of a store, and the damage that it reports.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Answers {
    pub(crate) runs: BTreeMap<Name, Run>,
    damage: Vec<Corruption>,
    pub(crate) errors: Vec<String>,
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Run {
    pub(crate) summary: String,
    ends: String,
    records: BTreeMap<u64, Vec<u8>>,
}

/// A range of the file, and what a flip in it may affect.
#[derive(Debug)]
struct Part {
    start: usize,
    end: usize,
    cost: Cost,
}

#[derive(Debug, Clone, PartialEq)]
enum Cost {
    /// Only speed.
    Nothing,
    /// This record; the position of its frame, and of the damaged frame.
    Record { run: Name, seq: u64, at: LogPosition },
    /// This run, except for its records: END, START, COMMIT.
    OfRun { run: Name },
    /// Any deletion.
    Deletions,
}

#[test]
fn each_flipped_bit_of_a_small_store_is_found_or_means_nothing() {
    flip_all(11, false);
}

#[test]
fn each_flipped_bit_of_a_store_with_an_index_is_found_or_means_nothing() {
    flip_all(12, true);
}

/// The manifest is then in doubt and may be old: the extents decide.
#[test]
fn no_flipped_bit_of_the_manifest_costs_a_store_that_was_compacted_anything() {
    let area = usize::try_from(MANIFEST_AT).unwrap()..usize::try_from(EXTENTS_AT).unwrap();
    let stride = (stride() / 8).max(1);
    let mut outputs = 0;
    for seed in 0..16 {
        let machine = Machine::new(seed, 1);
        let image = compacted_store(seed, &machine);
        outputs += segments(&image).filter(|header| header.purpose == Purpose::Output).count();
        let original = answers(&open(&SimDisk::untracked(image.clone()), &machine).unwrap().1);
        assert!(original.damage.is_empty() && original.errors.is_empty(), "{original:?}");
        let used = area.clone().filter(|&at| image[at] != 0);
        let skipped = usize::try_from(seed).unwrap();
        let bits = used.flat_map(|at| at * 8..at * 8 + 8).skip(skipped).step_by(stride);
        flip(&image, &machine, &original, &[], &bits.collect::<Vec<_>>());
    }
    assert!(outputs > 16, "{outputs} segments were written by compactions");
}

fn flip_all(seed: u64, index: bool) {
    // Damage of a block affects several records: `compressed` tests that.
    let machine = Machine { compression: Compression::None, ..Machine::new(seed, 1) };
    let image = small_store(seed, &machine, index);
    let original = answers(&open(&SimDisk::untracked(image.clone()), &machine).unwrap().1);
    assert!(original.damage.is_empty() && original.errors.is_empty(), "{original:?}");
    let parts = layout(&image);
    let used = used_bytes(&image, &parts);
    let bits: Vec<usize> = (0..used.len() * 8)
        .step_by(stride())
        .map(|bit| used[bit / 8] * 8 + bit % 8)
        .chain((0..image.len()).step_by(stride()).map(|at| at * 8 + at % 8))
        .collect();
    flip(&image, &machine, &original, &parts, &bits);
}

fn stride() -> usize {
    usize::try_from(settings::stride(997, 397)).unwrap()
}

/// Flips each of these bits, one at a time.
fn flip(image: &[u8], machine: &Machine, original: &Answers, parts: &[Part], bits: &[usize]) {
    let (next, undetected, refused) =
        (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, |count| count.get().min(8)) {
            scope.spawn(|| {
                let mut flipped = image.to_vec();
                while let Some(&bit) = bits.get(next.fetch_add(1, Ordering::SeqCst)) {
                    flipped[bit / 8] ^= 1 << (bit % 8);
                    let cost =
                        parts.iter().find(|part| (part.start..part.end).contains(&(bit / 8)));
                    let cost = cost.map_or(&Cost::Nothing, |part| &part.cost);
                    let check = || check_flip(&flipped, machine, original, cost);
                    match catch_unwind(AssertUnwindSafe(check)) {
                        Ok(Ok(Verdict::Detected)) => {}
                        Ok(Ok(Verdict::Refused)) => _ = refused.fetch_add(1, Ordering::Relaxed),
                        Ok(Ok(Verdict::NoEffect)) => _ = undetected.fetch_add(1, Ordering::Relaxed),
                        Ok(Err(error)) => {
                            panic!("bit {} of byte {:#x}, {cost:?}: {error}", bit % 8, bit / 8)
                        }
                        Err(_) => panic!("bit {} of byte {:#x}: panic", bit % 8, bit / 8),
                    }
                    flipped[bit / 8] ^= 1 << (bit % 8);
                }
            });
        }
    });
    let (undetected, refused) = (undetected.into_inner(), refused.into_inner());
    println!("{} flips, {refused} refused to open, {undetected} without effect", bits.len());
    assert!(refused < bits.len().max(20) / 20, "opening is refused too easily");
}

/// A store in which segments were replaced and their extents reused; closed, or left by a killed
/// process.
fn compacted_store(seed: u64, machine: &Machine) -> Vec<u8> {
    let mut world = World::create(seed, machine.clone(), seed % 2 == 0);
    for round in 0..4 {
        for _ in 0..40 {
            world.step();
        }
        world.end_oldest(3);
        for _ in 0..3 {
            world.delete_run();
        }
        world.compact();
        for _ in 0..(seed + round) % 7 {
            world.step();
        }
    }
    if seed % 3 == 0 { world.abandon().disk.image() } else { world.close() }
}

/// A store with a sealed segment and a tail, closed cleanly.
fn small_store(seed: u64, machine: &Machine, index: bool) -> Vec<u8> {
    let mut world = World::create(seed, machine.clone(), index);
    world.documents = false;
    for _ in 0..4 {
        world.start_run();
    }
    while world.log().stats().unwrap().sealed_segments == 0 {
        world.step();
    }
    for _ in 0..10 {
        world.step();
    }
    world.close()
}

/// The headers of all segments in a file.
fn segments(image: &[u8]) -> impl Iterator<Item = SegmentHeader> + '_ {
    let first = usize::try_from(EXTENTS_AT).unwrap();
    let extents = image.get(first..).unwrap_or_default().chunks(usize::try_from(EXTENT).unwrap());
    extents.filter_map(|extent| SegmentHeader::decode(extent).ok())
}

enum Verdict {
    Detected,
    Refused,
    NoEffect,
}

fn check_flip(
    image: &[u8],
    machine: &Machine,
    original: &Answers,
    cost: &Cost,
) -> Result<Verdict, String> {
    let gate_and_log = {
        let gate = crate::support::gate::Gate::new(&SimDisk::untracked(image.to_vec()));
        let opened = machine.options().open_storage(std::sync::Arc::new(gate.clone()));
        opened.map(|log| (gate, log))
    };
    let (gate, log) = match gate_and_log {
        Ok(opened) => opened,
        Err(
            Error::Corrupt(_)
            | Error::NotAStore { .. }
            | Error::UnsupportedVersion { .. }
            | Error::UnsupportedFeatures { .. }
            | Error::Truncated { .. },
        ) if *cost == Cost::Nothing => return Ok(Verdict::Refused),
        Err(error) => return Err(format!("not opened: {error}")),
    };
    let report = log.recovery_report().clone();
    let mut found = answers(&log);
    found.damage.extend(report.damaged.iter().cloned());
    let lost = compare(&found, original, cost)?;
    let mut detected = !report.is_clean() || !found.damage.is_empty();
    let named = |found: &Answers| match cost {
        Cost::Record { run, seq, at } => found.damage.iter().any(|damage| {
            damage.place == Place::Frame(*at)
                || damage.run.as_ref().is_some_and(|name| *name.as_str() == *run.1)
                    && damage.seq.is_some_and(|found| found.0 == *seq)
        }),
        _ => true,
    };
    if !detected || !named(&found) {
        let verified = log.verify().map_err(|error| format!("verify: {error}"))?;
        detected |= !verified.is_clean();
        found.damage.extend(verified.problems);
    }
    gate.shut();
    match (detected, lost) {
        (false, false) if *cost == Cost::Nothing => Ok(Verdict::NoEffect),
        (false, false) => Err("nobody sees the damage".to_owned()),
        (false, true) => Err("an answer is missing and nobody says so".to_owned()),
        (true, _) if named(&found) => Ok(Verdict::Detected),
        (true, _) => Err(format!("the record is not named: {:?}", found.damage)),
    }
}

/// Fails for every wrong answer, and for every missing one that the flip must not affect. Returns
/// whether anything is missing or different.
fn compare(found: &Answers, original: &Answers, cost: &Cost) -> Result<bool, String> {
    let mut lost = false;
    let costs = |run: &Name| match cost {
        Cost::Nothing => false,
        Cost::Record { run: hit, .. } | Cost::OfRun { run: hit } => run == hit,
        Cost::Deletions => true,
    };
    for (name, run) in &original.runs {
        let none = Run::default();
        let other = found.runs.get(name).unwrap_or(&none);
        if other == run {
            continue;
        }
        lost = true;
        if !costs(name) {
            return Err(format!("{name:?} is hit too: {other:?}"));
        }
        for (seq, payload) in &run.records {
            match (other.records.get(seq), cost) {
                (Some(same), _) if same == payload => {}
                (Some(_), _) => return Err(format!("{name:?} record {seq} is another one")),
                (None, Cost::Record { seq: hit, .. }) if hit == seq => {}
                (None, Cost::Deletions) => {}
                (None, _) => return Err(format!("{name:?} record {seq} is lost too")),
            }
        }
        if other.records.keys().any(|seq| !run.records.contains_key(seq)) {
            return Err(format!("{name:?} has more records than it had"));
        }
    }
    let more = found.runs.keys().find(|name| !original.runs.contains_key(*name));
    match more {
        Some(name) if *cost != Cost::Deletions => Err(format!("{name:?} came up")),
        more => Ok(lost || more.is_some() || !found.errors.is_empty()),
    }
}

/// Asks all questions.
pub(crate) fn answers(log: &impl ReadLog) -> Answers {
    let mut answers = Answers::default();
    let note = |answers: &mut Answers, error: Error| match error {
        Error::Corrupt(corruption) => answers.damage.push(corruption),
        error => answers.errors.push(error.to_string()),
    };
    let page = match log.list_runs(&RunQuery::new().limit(1000)) {
        Ok(page) => page.runs,
        Err(error) => {
            note(&mut answers, error);
            Vec::new()
        }
    };
    for summary in page {
        let name = (summary.agent.to_string(), summary.run.to_string());
        let reference = (summary.agent.as_str(), summary.run.as_str());
        let mut run = Run { summary: format!("{summary:?}"), ..Run::default() };
        match log.metadata(reference) {
            Ok(metadata) => run.ends = format!("{metadata:?}"),
            Err(error) => note(&mut answers, error),
        }
        match log.outcome(reference) {
            Ok(outcome) => {
                run.ends += &format!("{:?}", outcome.map(|found| found.payload().to_vec()))
            }
            Err(error) => note(&mut answers, error),
        }
        match log.trace(reference) {
            Ok(trace) => {
                for record in trace {
                    match record {
                        Ok(record) => {
                            run.records.insert(record.seq().0, record.payload().to_vec());
                        }
                        Err(error) => note(&mut answers, error),
                    }
                }
            }
            Err(error) => note(&mut answers, error),
        }
        answers.runs.insert(name, run);
    }
    answers
}

/// Finds the frames of the log in the file.
fn layout(image: &[u8]) -> Vec<Part> {
    let extent_len = usize::try_from(EXTENT).unwrap();
    let mut frames: Vec<(usize, FrameHeader)> = Vec::new();
    for base in (64 << 10..image.len()).step_by(extent_len) {
        let extent = &image[base..(base + extent_len).min(image.len())];
        let Ok(header) = SegmentHeader::decode(extent) else { continue };
        let mut at = SEGMENT_HEADER_LEN;
        while let Ok(frame) = FrameHeader::decode(&extent[at as usize..], header.key, at) {
            frames.push((base + at as usize, frame));
            at += u32::try_from(frame.frame_len()).unwrap();
        }
    }
    let payload = |at: usize, header: &FrameHeader| {
        &image[at + FRAME_HEADER_LEN..][..header.payload_len as usize]
    };
    let mut names: BTreeMap<RunNo, Name> = BTreeMap::new();
    // By the order of the first chunk.
    let mut owners: BTreeMap<u64, (Name, u64)> = BTreeMap::new();
    for (at, header) in &frames {
        if matches!(header.kind, FrameKind::Bind | FrameKind::Start) {
            let (agent, run, _) = decode_ids(payload(*at, header)).unwrap();
            names.insert(header.run_no, (agent.to_string(), run.to_string()));
        }
        if header.kind == FrameKind::Record && header.flags & FLAG_CHUNKS != 0 {
            let chunks = Chunks::decode(&payload(*at, header)[usize::from(header.name_len)..]);
            let owner = (names[&header.run_no].clone(), header.seq.0);
            owners.insert(chunks.unwrap().first.0, owner);
        }
    }
    let part = |(at, header): &(usize, FrameHeader)| {
        let run = || names[&header.run_no].clone();
        let cost = match header.kind {
            FrameKind::Record => {
                Cost::Record { run: run(), seq: header.seq.0, at: header.position }
            }
            FrameKind::Chunk => match owners.get(&header.seq.0.max(if header.extra == 0 {
                header.lsn.0
            } else {
                0
            })) {
                Some((run, seq)) => {
                    Cost::Record { run: run.clone(), seq: *seq, at: header.position }
                }
                None => Cost::Nothing,
            },
            FrameKind::Start
            | FrameKind::End
            | FrameKind::Commit
            | FrameKind::Hold
            | FrameKind::Block => Cost::OfRun { run: run() },
            FrameKind::Evict => Cost::Deletions,
            _ => Cost::Nothing,
        };
        Part { start: *at, end: at + header.frame_len(), cost }
    };
    frames.iter().map(part).collect()
}

/// The bytes with a meaning: those of frames, and all others that are not zero.
fn used_bytes(image: &[u8], parts: &[Part]) -> Vec<usize> {
    let framed = parts.iter().flat_map(|part| part.start..part.end);
    let written = (0..image.len()).filter(|at| image[*at] != 0);
    framed.chain(written).collect::<BTreeSet<_>>().into_iter().collect()
}
