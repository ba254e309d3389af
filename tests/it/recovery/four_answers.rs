//! A writer with an index, one without, a process that only reads, and a salvage are asked about
//! the same damaged file. Their answers are compared with what the store had, and with each other.
//!
//! Goal: what one of them knows, none of the others denies. What is gone, each of them tells, and
//! what was deleted comes back in none of them without a word.
//!
//! Method: a store lives, with deletions, documents and background work at any moment, and is
//! killed, closed, or loses power. What is in its file then is known. A part of the file is damaged
//! and each of the four gets a copy. A writer goes on, is killed or closed, and its file is read,
//! damaged again and salvaged too: nothing that the writer answered may be gone. Another one is
//! killed within its opening.
//!
//! One thing may be missing without a word: the end of the log, from a frame on of which no byte
//! says that it was durable. It may never have been written whole.
//!
//! - `RUNLOG_FOUR`: how many stores.
//! - `RUNLOG_FOUR_SEED`: the first of their seeds; a failure names its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::{Bound, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use runlog::format::frames::frame::{FLAG_DOCUMENT, FRAME_HEADER_LEN, decode_ids};
use runlog::format::segments::segment::{Purpose, SEGMENT_HEADER_LEN, SegmentHeader};
use runlog::format::{EXTENTS_AT, FrameHeader, FrameKind};
use runlog::storage::MemoryStorage;
use runlog::{
    LogPosition, ReadLog, Reader, ReaderOptions, RunQuery, RunRef, SalvageReport, Seq, Trace,
    salvage_storage,
};
use runlog_sim::{CrashImages, SimDisk, SplitMix64, Survivors};

use crate::recovery::agreeing::{damage, damage_pair, frames};
use crate::support::background::Background;
use crate::support::campaign::variable;
use crate::support::cuts::open;
use crate::support::gate::Gate;
use crate::support::harm::{Harm, newest};
use crate::support::model::{Model, SPACE};
use crate::support::world::{EXTENT, Machine, World};

type Name = (String, String);

/// A part of an answer, if it can be read.
type Part<T> = Result<T, ()>;

/// What is said of a run.
#[derive(Clone, PartialEq, Eq)]
struct OfRun {
    has_ended: bool,
    is_held: bool,
    metadata: Part<Option<Vec<u8>>>,
    outcome: Part<Option<Vec<u8>>>,
    records: BTreeMap<u64, Vec<u8>>,
    /// A record cannot be read.
    is_broken: bool,
}

/// All that is said.
#[derive(Clone, PartialEq, Eq, Default)]
struct Said {
    runs: BTreeMap<Name, OfRun>,
    documents: BTreeMap<String, Part<Vec<u8>>>,
    /// The list fails.
    is_unlisted: bool,
}

fn of_run(log: &impl ReadLog, run: RunRef<'_>, is_held: bool, has_ended: bool) -> OfRun {
    let metadata = log.metadata(run).map(|found| found.map(|found| found.payload().to_vec()));
    let outcome = log.outcome(run).map(|found| found.map(|found| found.payload().to_vec()));
    let (mut records, mut is_broken) = (BTreeMap::new(), false);
    match log.trace(run) {
        Err(_) => is_broken = true,
        Ok(trace) => {
            for record in trace {
                match record {
                    Err(_) => is_broken = true,
                    Ok(record) => {
                        let payload = record.payload().to_vec();
                        assert!(records.insert(record.seq().0, payload).is_none(), "twice");
                    }
                }
            }
        }
    }
    let (metadata, outcome) = (metadata.map_err(drop), outcome.map_err(drop));
    OfRun { has_ended, is_held, metadata, outcome, records, is_broken }
}

impl fmt::Debug for OfRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len =
            |part: &Part<Option<Vec<u8>>>| part.as_ref().map(|it| it.as_ref().map(Vec::len)).ok();
        let seqs: Vec<_> = self.records.keys().collect();
        write!(
            f,
            "ended {} held {} {:?} {:?} {seqs:?} broken {}",
            self.has_ended,
            self.is_held,
            len(&self.metadata),
            len(&self.outcome),
            self.is_broken
        )
    }
}

impl OfRun {
    fn payloads(&self) -> impl Iterator<Item = &[u8]> {
        self.records.values().map(Vec::as_slice)
    }
}

/// Parts of a trace have the records that the whole one has there, forwards and backwards.
fn check_parts(log: &impl ReadLog, run: RunRef<'_>, records: &BTreeMap<u64, Vec<u8>>) {
    let numbers = |trace: runlog::Result<Trace>, range: (Bound<Seq>, Bound<Seq>)| {
        let within = trace.and_then(|trace| trace.range(range)).ok();
        let all = within.into_iter().flatten().filter_map(Result::ok);
        all.map(|record| record.seq().0).collect::<Vec<_>>()
    };
    let seqs: Vec<u64> = records.keys().copied().collect();
    let mut backwards: Vec<_> = log.trace(run).ok().into_iter().flat_map(Trace::rev).collect();
    backwards.reverse();
    let backwards: Vec<_> = backwards.into_iter().flatten().map(|it| it.seq().0).collect();
    assert_eq!(backwards, seqs, "{run:?} backwards");
    for at in [0, seqs.len() / 2, seqs.len().saturating_sub(1)] {
        let Some(&seq) = seqs.get(at) else { return };
        let of = |range| numbers(log.trace(run), range);
        let (from, to) = (Bound::Included(Seq(seq)), Bound::Excluded(Seq(seq)));
        assert_eq!(of((from, Bound::Included(Seq(seq)))), [seq], "{run:?}, {seq} alone");
        assert_eq!(of((Bound::Unbounded, to)), seqs[..at], "{run:?} in front of {seq}");
        assert_eq!(of((from, Bound::Unbounded)), seqs[at..], "{run:?} from {seq} on");
    }
}

impl Said {
    fn by(log: &impl ReadLog) -> Self {
        let mut said = Self::default();
        for run in log.runs(&RunQuery::new()) {
            let Ok(run) = run else {
                said.is_unlisted = true;
                continue;
            };
            let found = of_run(log, RunRef::from(&run), run.held, run.status.is_ended());
            check_parts(log, RunRef::from(&run), &found.records);
            let name = (run.agent.to_string(), run.run.to_string());
            assert!(said.runs.insert(name, found).is_none(), "{run:?} is listed twice");
        }
        for number in 0..KEYS {
            let key = format!("key {number}");
            let found =
                log.document(SPACE, &key).map(|found| found.map(|it| it.payload().to_vec()));
            if let Some(found) = found.map_err(drop).transpose() {
                said.documents.insert(key, found);
            }
        }
        said
    }
}

const KEYS: u64 = 6;

/// How a store ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Killed,
    Closed,
    PowerCut,
}

/// A store that has ended, and what was in it.
struct Story {
    seed: u64,
    fate: Fate,
    machine: Machine,
    had: Said,
    /// What happened to it, and what is behind the end of its log too.
    model: Model,
    ever: Model,
    /// What is damaged.
    what: String,
    image: Vec<u8>,
    named: Named,
    /// The versions of its documents.
    versions: BTreeMap<String, u64>,
}

fn machine_of(seed: u64) -> (Machine, Background) {
    let background = Background::default();
    let mut machine = Machine { background: Some(background.clone()), ..Machine::new(seed, 1) };
    machine.automatic = seed % 3 == 0;
    (machine, background)
}

fn live(seed: u64, random: &mut SplitMix64) -> World {
    let (machine, background) = machine_of(seed);
    let disk = SimDisk::new();
    let mut world = World::create_on(seed, disk, machine, random.below(4) < 3);
    for _ in 0..1 + random.below(5) {
        match random.below(4) {
            0 => (0..random.index(80)).for_each(|_| world.wide_step()),
            1 => {
                world.is_queue = true;
                (0..random.index(60)).for_each(|_| world.wide_step());
                world.is_queue = false;
            }
            2 => {
                (0..random.index(40)).for_each(|_| world.step());
                world.end_oldest(2);
                (0..random.index(6)).for_each(|_| world.delete_run());
            }
            _ => (0..random.index(200)).for_each(|_| world.wide_step()),
        }
        match random.below(5) {
            0 => world.compact(),
            1 => world.checkpoint(),
            2 => world.reclaim(),
            _ => background.run_some(random, 4),
        }
    }
    if random.below(4) == 0 {
        // The index has not applied these deletions, and what they delete is in no segment.
        world.checkpoint();
        world.end_oldest(random.index(3));
        (0..1 + random.index(4)).for_each(|_| world.delete_run());
        world.compact();
        return world;
    }
    (0..random.index(20)).for_each(|_| world.step());
    world
}

/// Damages one place, or two, in a way that the seed decides.
fn spoil(image: &mut Vec<u8>, random: &mut SplitMix64) -> String {
    match random.below(10) {
        0..=2 => damage(image, random),
        3 => [damage(image, random), damage(image, random)].join(", "),
        4 => damage_pair(image, random).unwrap_or_else(|| damage(image, random)),
        5 if random.coin() => damage_in_one(image, random),
        5 => {
            let kind = Harm::ALL[random.index(Harm::ALL.len())];
            kind.on_image(image, random);
            let also = if random.coin() { damage(image, random) } else { String::new() };
            format!("{kind:?} {also}")
        }
        6 => lose_eviction(image, random),
        7 if random.coin() => {
            let extents = image.len().div_ceil(EXTENT as usize);
            let left = extents.saturating_sub(1 + random.index(3)).max(1) * EXTENT as usize;
            image.truncate(left);
            format!("the file ends at {left:#x}")
        }
        _ => {
            harm(image, random);
            "one or two places".to_owned()
        }
    }
}

/// Damages one of the last frames that delete something, if there is one.
fn lose_eviction(image: &mut [u8], random: &mut SplitMix64) -> String {
    let mut all = frames(image);
    all.retain(|(_, kind)| *kind == FrameKind::Evict);
    let Some((range, _)) = all.iter().rev().nth(random.index(all.len().clamp(1, 3))) else {
        return damage(image, random);
    };
    let byte = if random.coin() { 0 } else { 0x55 };
    image[range.clone()].fill(byte);
    format!("the eviction at {:#x} is {byte:#x}", range.start)
}

/// What the frames of a file name.
#[derive(Default)]
struct Named {
    /// The runs that a BIND or START names.
    runs: BTreeSet<Name>,
    /// The versions of documents of which each START and its segment are as they were.
    versions: BTreeSet<u64>,
}

impl Named {
    fn of(whole: &[u8], image: &[u8]) -> Self {
        let (mut named, mut harmed) = (Self::default(), BTreeSet::new());
        let is_same = |range: Range<usize>| image.get(range.clone()) == whole.get(range);
        for (range, kind) in frames(whole) {
            let base = range.start / EXTENT as usize * EXTENT as usize;
            let key = SegmentHeader::decode(&whole[base..]).unwrap().key;
            let at = u32::try_from(range.start - base).unwrap();
            let header = FrameHeader::decode(&whole[range.start..], key, at).unwrap();
            if !matches!(kind, FrameKind::Bind | FrameKind::Start) {
                continue;
            }
            let payload = &whole[range.start + FRAME_HEADER_LEN..][..header.payload_len as usize];
            if let Ok((agent, run, _)) = decode_ids(payload) {
                named.runs.insert((agent.to_string(), run.to_string()));
            }
            if kind == FrameKind::Start && header.flags & FLAG_DOCUMENT != 0 {
                let heads = base..base + SEGMENT_HEADER_LEN as usize;
                named.versions.insert(header.run_no.0);
                if !is_same(heads) || !is_same(range) {
                    harmed.insert(header.run_no.0);
                }
            }
        }
        named.versions.retain(|version| !harmed.contains(version));
        named
    }
}

/// Damages a frame that is no record, if there is one, and the directory of its segment.
fn damage_in_one(image: &mut [u8], random: &mut SplitMix64) -> String {
    let all = frames(image);
    let extent = |at: usize| at as u64 / EXTENT * EXTENT;
    let seals = all.iter().filter(|(_, kind)| *kind == FrameKind::Seal);
    let seals: Vec<_> = seals.map(|(range, _)| range.clone()).collect();
    let Some(seal) = seals.get(random.index(seals.len().max(1))) else {
        return damage(image, random);
    };
    let beside = all.iter().filter(|(range, kind)| {
        let is_record = matches!(kind, FrameKind::Record | FrameKind::Chunk | FrameKind::Seal);
        extent(range.start) == extent(seal.start) && !is_record
    });
    let beside: Vec<_> = beside.collect();
    let at = seal.start + FRAME_HEADER_LEN;
    image[at + random.index(seal.end - at)] ^= 1 << random.below(8);
    let Some((range, kind)) = beside.get(random.index(beside.len().max(1))) else {
        return format!("the directory at {at:#x}");
    };
    let whole = random.coin();
    let place = range.start + random.index(range.len());
    if whole {
        image[range.clone()].fill(0x55)
    } else {
        image[place] ^= 1 << random.below(8)
    }
    format!("{kind:?} at {:#x}, the whole of it: {whole}, and the directory", range.start)
}

fn reader(image: &[u8], machine: &Machine) -> Result<Reader, String> {
    let storage = Arc::new(MemoryStorage::from_bytes(image.to_vec()));
    let options = ReaderOptions::new().environment(machine.environment());
    options.open_storage(storage).map_err(|error| error.to_string())
}

fn salvage(image: &[u8]) -> Result<(SalvageReport, Said), String> {
    let out = Arc::new(MemoryStorage::new());
    let from = Arc::new(MemoryStorage::from_bytes(image.to_vec()));
    let report = salvage_storage(from, out.clone()).map_err(|error| error.to_string())?;
    let found = ReaderOptions::new().open_storage(out).map_err(|error| error.to_string())?;
    Ok((report, Said::by(&found)))
}

impl Story {
    fn tell(seed: u64) -> Result<Self, String> {
        let mut random = SplitMix64::for_case(seed, 51);
        let world = live(seed, &mut random);
        let fate = [Fate::Killed, Fate::Killed, Fate::Closed, Fate::PowerCut][random.index(4)];
        let mut machine = world.machine.clone();
        let (model, whole) = match fate {
            Fate::Closed => (world.model.clone(), world.close()),
            Fate::Killed => {
                let left = world.abandon();
                (left.model, left.disk.image())
            }
            Fate::PowerCut => {
                let left = world.abandon();
                machine.boot += 1;
                let survivors = Survivors::ALL[random.index(Survivors::ALL.len())];
                (left.model, left.disk.crash(survivors, seed))
            }
        };
        let least = if fate == Fate::PowerCut { 0 } else { model.events.len() };
        let whole_reader = reader(&whole, &machine)?;
        let most = model.events.len();
        let mut found = model.check(&whole_reader, least, most)?;
        // Of moments that are alike the last one: what is damaged may be the deletion of a document
        // that was written since the first.
        while let Ok(later) = model.check(&whole_reader, found.prefix + 1, most) {
            found = later;
        }
        let ever = model;
        let model = ever.recovered(found.prefix);
        let had = Said::by(&whole_reader);
        let mut image = whole.clone();
        let what = spoil(&mut image, &mut random);
        let named = Named::of(&whole, &image);
        let version = |key: &String| {
            let found = whole_reader.document(SPACE, key).ok().flatten();
            Some((key.clone(), found?.version().0))
        };
        let versions = had.documents.keys().filter_map(version).collect();
        Ok(Self { seed, fate, machine, had, model, ever, what, image, named, versions })
    }
}

/// Who answers.
struct Answer {
    who: &'static str,
    said: Said,
    /// It says that something is missing or damaged.
    tells: bool,
    /// It says that deletions may be missing.
    doubts: bool,
    /// The end of the log.
    end: Option<LogPosition>,
    /// The numbers of records are others.
    is_renumbered: bool,
}

impl Answer {
    fn of_reader(reader: &Reader, who: &'static str) -> Self {
        let report = reader.recovery_report();
        let tells = !report.damaged.is_empty() || report.salvaged;
        let said = Said::by(reader);
        let end = reader.stats().ok().map(|stats| stats.end);
        Self { who, said, tells, doubts: tells, end, is_renumbered: false }
    }

    fn of_salvage(image: &[u8], who: &'static str) -> Result<Self, String> {
        let (report, said) = salvage(image)?;
        let tells = !report.is_complete() || !report.damaged.is_empty();
        let doubts = !report.doubts.is_empty();
        Ok(Self { who, said, tells, doubts, end: None, is_renumbered: true })
    }

    /// What of the store is not in the answer, without an error in its place.
    fn lacks(&self, had: &Said) -> Vec<String> {
        let mut lacks = Vec::new();
        for (name, run) in &had.runs {
            let Some(found) = self.said.runs.get(name) else {
                if !self.said.is_unlisted {
                    lacks.push(format!("{name:?}"));
                }
                continue;
            };
            let has_all = if self.is_renumbered {
                is_within(run.records.values(), found.payloads())
            } else {
                run.records.keys().all(|seq| found.records.contains_key(seq))
            };
            if !has_all && !found.is_broken {
                lacks.push(format!("records of {name:?}"));
            }
            let is_gone = |had: &Part<Option<Vec<u8>>>, found: &Part<Option<Vec<u8>>>| {
                matches!((had, found), (Ok(Some(_)), Ok(None)))
            };
            if is_gone(&run.metadata, &found.metadata) {
                lacks.push(format!("metadata of {name:?}"));
            }
            if run.has_ended && !found.has_ended {
                lacks.push(format!("the end of {name:?}"));
            }
            if found.has_ended && is_gone(&run.outcome, &found.outcome) {
                lacks.push(format!("the outcome of {name:?}"));
            }
            if run.is_held != found.is_held {
                lacks.push(format!("held {} of {name:?}", run.is_held));
            }
        }
        for (key, value) in &had.documents {
            match (value, self.said.documents.get(key)) {
                (Ok(_), None) => lacks.push(key.clone()),
                (Ok(had), Some(Ok(found))) if had != found => {
                    lacks.push(format!("the version of {key}"));
                }
                _ => {}
            }
        }
        lacks
    }

    /// What was deleted, and is there.
    fn ghosts(&self, had: &Said) -> Vec<String> {
        let runs = self.said.runs.keys().filter(|name| !had.runs.contains_key(*name));
        let keys = self.said.documents.iter();
        let keys = keys.filter(|(key, found)| found.is_ok() && !had.documents.contains_key(*key));
        runs.map(|name| format!("{name:?}")).chain(keys.map(|(key, _)| key.clone())).collect()
    }

    /// What is in the answer and was never so.
    fn wrong(&self, had: &Said, model: &Model, ever: &Model) -> Result<(), String> {
        for (name, found) in &self.said.runs {
            let Some(run) = had.runs.get(name) else { continue };
            let may_end = self.is_renumbered && ever.has_ever_ended(name);
            if found.has_ended && !run.has_ended && !may_end {
                return Err(format!("{name:?} has ended"));
            }
            let is_other = |had: &Part<Option<Vec<u8>>>, found: &Part<Option<Vec<u8>>>| match found
            {
                // A salvage says that it is missing.
                Ok(Some(found)) if self.is_renumbered && found.is_empty() && self.tells => false,
                Ok(Some(found)) => !matches!(had, Ok(Some(had)) if had == found),
                _ => false,
            };
            // A salvage starts each run.
            let is_started = self.is_renumbered && found.metadata == Ok(Some(Vec::new()));
            if is_other(&run.metadata, &found.metadata) && !is_started {
                return Err(format!("{name:?} has other metadata"));
            }
            if is_other(&run.outcome, &found.outcome) && run.has_ended {
                return Err(format!("{name:?} has another outcome"));
            }
            let all_right = if self.is_renumbered {
                is_within(found.records.values(), ever.payloads(name))
            } else {
                found.records.iter().all(|(seq, payload)| run.records.get(seq) == Some(payload))
            };
            if !all_right {
                return Err(format!("{name:?} has records that it had not"));
            }
        }
        for (key, found) in &self.said.documents {
            let Ok(found) = found else { continue };
            let written = if self.is_renumbered { ever } else { model };
            if !written.has_written(key, found) {
                return Err(format!("{key} was never so"));
            }
        }
        Ok(())
    }
}

/// Whether the first are among the second, in their order.
fn is_within<'a>(
    mut first: impl Iterator<Item = &'a Vec<u8>>,
    mut second: impl Iterator<Item = &'a [u8]>,
) -> bool {
    first.all(|one| second.any(|other| one == other))
}

/// Where two differ. What an index has beside a damaged directory, the others may not know.
fn differ(one: &Answer, other: &Answer, knows_more: Option<&Said>) -> Result<(), String> {
    let pair = format!("{} and {}", one.who, other.who);
    let names: BTreeSet<_> = one.said.runs.keys().chain(other.said.runs.keys()).collect();
    for name in names {
        let (first, second) = (one.said.runs.get(name), other.said.runs.get(name));
        let is_unknown =
            knows_more.is_some_and(|had| first != had.runs.get(name) || first.is_none());
        if first != second && !(is_unknown && one.tells) {
            return Err(format!("{pair}: {name:?}: {first:.300?} / {second:.300?}"));
        }
    }
    let documents = (&one.said.documents, &other.said.documents);
    let keys: BTreeSet<_> = documents.0.keys().chain(documents.1.keys()).collect();
    for key in keys {
        let (first, second) = (documents.0.get(key), documents.1.get(key));
        let is_unknown =
            knows_more.is_some_and(|had| first != had.documents.get(key) || first.is_none());
        if first != second && !(is_unknown && one.tells) {
            let len =
                |found: Option<&Part<Vec<u8>>>| found.map(|it| it.as_ref().map(Vec::len).ok());
            return Err(format!("{pair}: {key}: {:?} / {:?}", len(first), len(second)));
        }
    }
    if one.said.is_unlisted != other.said.is_unlisted {
        return Err(format!("{pair}: one of the lists fails"));
    }
    Ok(())
}

impl Story {
    fn check(&self) -> Result<(), String> {
        let Self { machine, image, .. } = self;
        let read = reader(image, machine);
        let salvaged = Answer::of_salvage(image, "a salvage");
        let read = match (read, salvaged.is_ok()) {
            (Ok(read), _) => read,
            (Err(_), true) => return self.check_salvaged(None, &salvaged?),
            (Err(error), false) => return Err(format!("{error}, {:?}", salvaged.err())),
        };
        let read = Answer::of_reader(&read, "a reader");
        let salvaged = salvaged?;
        self.check_one(&read)?;
        self.check_salvaged(Some(&read), &salvaged)?;
        for index in [true, false] {
            self.check_writer(&read, index)?;
        }
        if self.seed % 2 == 0 {
            self.check_killed(&read)?;
        }
        Ok(())
    }

    /// Whether what is missing is the end of the log, which may never have been written.
    fn is_an_end(&self, answer: &Answer) -> bool {
        let Some(end) = answer.end else { return false };
        end >= said_durable_at(&self.image)
    }

    fn check_one(&self, answer: &Answer) -> Result<(), String> {
        let Self { had, model, ever, .. } = self;
        let who = answer.who;
        answer.wrong(had, model, ever).map_err(|error| format!("{who}: {error}"))?;
        let ghosts = answer.ghosts(had);
        if !ghosts.is_empty() && !answer.doubts && !self.is_an_end(answer) {
            return Err(format!("{who}: there again: {ghosts:?}"));
        }
        // A caller that puts it unless it is there must not be told that it is not.
        let is_absent = |(key, version): &(&String, &u64)| {
            self.named.versions.contains(version) && !answer.said.documents.contains_key(*key)
        };
        if let Some((key, _)) = self.versions.iter().find(is_absent)
            && !self.is_an_end(answer)
        {
            return Err(format!("{who}: {key} is said to be absent"));
        }
        let lacks = answer.lacks(had);
        if !lacks.is_empty() && !answer.tells && !self.is_an_end(answer) {
            return Err(format!("{who}: gone: {lacks:?}"));
        }
        Ok(())
    }

    fn check_salvaged(&self, read: Option<&Answer>, salvaged: &Answer) -> Result<(), String> {
        let Self { had, model, ever, .. } = self;
        let who = salvaged.who;
        salvaged.wrong(had, model, ever).map_err(|error| format!("{who}: {error}"))?;
        let may_end = read.is_some_and(|read| self.is_an_end(read) && !read.tells);
        let ghosts = salvaged.ghosts(had);
        if !ghosts.is_empty() && !salvaged.doubts && !salvaged.tells && !may_end {
            return Err(format!("{who}: there again: {ghosts:?}"));
        }
        let lacks = salvaged.lacks(had);
        if !lacks.is_empty() && !salvaged.tells && !may_end {
            return Err(format!("{who}: gone: {lacks:?}"));
        }
        let Some(read) = read else { return Ok(()) };
        let lacks = self.not_salvaged(read, salvaged);
        if !lacks.is_empty() {
            return Err(format!("{who} lacks what {} has: {lacks:?}", read.who));
        }
        Ok(())
    }

    /// What one of them has, and a salvage does not.
    fn not_salvaged(&self, read: &Answer, salvaged: &Answer) -> Vec<String> {
        let had = &self.had;
        let mut lacks = Vec::new();
        for (name, run) in read.said.runs.iter().filter(|(name, _)| had.runs.contains_key(*name)) {
            let Some(found) = salvaged.said.runs.get(name) else {
                lacks.push(format!("{name:?}"));
                continue;
            };
            if !is_within(run.records.values(), found.payloads()) {
                lacks.push(format!("records of {name:?}"));
            }
            if matches!(run.metadata, Ok(Some(_))) && run.metadata != found.metadata {
                lacks.push(format!("metadata of {name:?}"));
            }
            if run.has_ended && !found.has_ended {
                lacks.push(format!("the end of {name:?}"));
            }
            if matches!(run.outcome, Ok(Some(_))) && run.outcome != found.outcome {
                lacks.push(format!("the outcome of {name:?}"));
            }
            let may_be = self.fate == Fate::PowerCut && self.ever.has_ever_been_released(name);
            if run.is_held && !found.is_held && !may_be {
                lacks.push(format!("the hold of {name:?}"));
            }
        }
        for (key, value) in &read.said.documents {
            let was_so =
                |found: &Vec<u8>| matches!(had.documents.get(key), Some(Ok(had)) if had == found);
            let found = salvaged.said.documents.get(key);
            let came = found.and_then(|found| found.as_deref().ok());
            let mut later = self.ever.writes_since(self.model.events.len(), key);
            // A loss of power may leave what is behind the end of the log.
            if value.as_ref().is_ok_and(was_so)
                && found != Some(value)
                && !later.any(|it| it == came)
            {
                lacks.push(key.clone());
            }
        }
        lacks
    }

    /// A writer with an index, after one that was killed within its opening.
    fn check_killed(&self, read: &Answer) -> Result<(), String> {
        let who = "a writer behind one that was killed within its opening";
        let (mut machine, _) = machine_of(self.seed);
        machine.boot = self.machine.boot;
        let disk = SimDisk::recording_from(self.image.clone());
        drop(open(&disk, &machine)?);
        let recording = disk.take_recording();
        let mut random = SplitMix64::for_case(self.seed, 56);
        let mut crashes = CrashImages::new(&recording);
        crashes.seek(random.index(recording.ops.len() + 1));
        let disk = SimDisk::untracked(crashes.killed(0));
        let (_gate, log) = open(&disk, &machine).map_err(|error| format!("{who}: {error}"))?;
        log.checkpoint().map_err(|error| format!("{who}: {error}"))?;
        let report = log.recovery_report();
        let tells = !report.damaged.is_empty() || report.salvaged || read.tells;
        let said = Said::by(&log);
        let answer =
            Answer { who, said, tells, doubts: tells, end: read.end, is_renumbered: false };
        self.check_one(&answer)?;
        let is_nowhere = |name: &&Name| !self.named.runs.contains(*name);
        if let Some(name) = answer.said.runs.keys().find(is_nowhere) {
            return Err(format!("{who}: no frame names {name:?}"));
        }
        differ(read, &answer, Some(&self.had))
    }

    /// A writer, and what others say once it has gone.
    fn check_writer(&self, read: &Answer, index: bool) -> Result<(), String> {
        let who = if index { "a writer with an index" } else { "a writer without an index" };
        let (mut machine, background) = machine_of(self.seed);
        machine.boot = self.machine.boot;
        machine.index = index;
        let disk = SimDisk::untracked(self.image.clone());
        let (gate, log): (Gate, _) =
            open(&disk, &machine).map_err(|error| format!("{who}: {error}"))?;
        let mut random = SplitMix64::for_case(self.seed, 52 + u64::from(index));
        let mut background_work = || background.run_some(&mut random, 3);
        if index {
            background_work();
        }
        let report = log.recovery_report();
        let tells = !report.damaged.is_empty() || report.salvaged;
        let end = read.end;
        let said = Said::by(&log);
        let answer = Answer { who, said, tells, doubts: tells, end, is_renumbered: false };
        self.check_one(&answer)?;
        let is_nowhere = |name: &&Name| !self.named.runs.contains(*name);
        if let Some(name) = answer.said.runs.keys().find(is_nowhere) {
            return Err(format!("{who}: no frame names {name:?}"));
        }
        differ(read, &answer, index.then_some(&self.had))?;
        let mut random = SplitMix64::for_case(self.seed, 54 + u64::from(index));
        if random.coin() {
            background.run_some(&mut random, 6);
        }
        if random.coin() {
            gate.shut();
        } else {
            log.close().map_err(|error| format!("{who}: close: {error}"))?;
        }
        let image = disk.image();
        let mut harmed = image.clone();
        damage(&mut harmed, &mut random);
        if let Ok(reader) = reader(&harmed, &machine) {
            drop(Said::by(&reader));
        }
        let again = Answer::of_reader(&reader(&image, &machine)?, "a reader behind it");
        differ(read, &again, None)?;
        let salvaged = Answer::of_salvage(&image, "a salvage behind it")?;
        salvaged
            .wrong(&self.had, &self.model, &self.ever)
            .map_err(|error| format!("{}: {error}", salvaged.who))?;
        let lacks = self.not_salvaged(&again, &salvaged);
        if !lacks.is_empty() {
            return Err(format!("{} lacks what {} has: {lacks:?}", salvaged.who, again.who));
        }
        let ghosts = salvaged.ghosts(&again.said);
        if !ghosts.is_empty() && !salvaged.doubts && !salvaged.tells {
            return Err(format!("{}: there again: {ghosts:?}", salvaged.who));
        }
        Ok(())
    }
}

#[test]
fn each_opening_and_a_salvage_say_the_same_of_a_damaged_file_or_tell_what_is_missing() {
    let (stores, first) = (variable("RUNLOG_FOUR", 300_u64), variable("RUNLOG_FOUR_SEED", 0));
    let mut wrong = Vec::new();
    for seed in first..first + stores {
        let checked = catch_unwind(AssertUnwindSafe(|| {
            let story = Story::tell(seed)?;
            story.check().map_err(|error| format!("{:?}, {}: {error}", story.fate, story.what))
        }));
        let checked = checked.unwrap_or_else(|_| Err("a panic".to_owned()));
        if let Err(error) = checked {
            println!("RUNLOG_FOUR_SEED={seed} RUNLOG_FOUR=1: {error:.700}");
            wrong.push(seed);
        }
    }
    assert!(wrong.is_empty(), "{} of {stores} stores: {wrong:?}", wrong.len());
}

/// Damages one or two places behind the front of the file.
fn harm(image: &mut [u8], random: &mut SplitMix64) {
    let used: Vec<usize> =
        (EXTENTS_AT as usize..image.len()).filter(|at| image[*at] != 0).collect();
    for _ in 0..1 + random.below(2) {
        let at = used[random.index(used.len())];
        let (at, len) = match random.below(5) {
            0 => (at, 1),
            1 => (at, 100),
            2 => (at / 512 * 512, 512),
            3 => (at / 4096 * 4096, 4096),
            _ => (at / 65536 * 65536, 65536),
        };
        let end = (at + len).min(image.len());
        let is_zeroed = random.coin();
        image[at..end].iter_mut().for_each(|byte| *byte = if is_zeroed { 0 } else { !*byte });
    }
}

/// The order and the position of each frame of the log that can be found, without what compaction
/// has moved.
fn headers_in(image: &[u8]) -> Vec<FrameHeader> {
    let mut found = Vec::new();
    for start in (EXTENTS_AT as usize..image.len()).step_by(EXTENT as usize) {
        let Ok(header) = SegmentHeader::decode(&image[start..]) else { continue };
        let mut at = SEGMENT_HEADER_LEN;
        while let Ok(frame) = FrameHeader::decode(&image[start + at as usize..], header.key, at) {
            found.extend((header.purpose == Purpose::Log).then_some(frame));
            at += u32::try_from(frame.frame_len()).unwrap();
        }
    }
    found
}

/// The position in front of which everything is durable, as a file says.
fn said_durable_at(image: &[u8]) -> LogPosition {
    let block = newest(&image[..EXTENTS_AT as usize]).map(|block| block.durable);
    let said = headers_in(image).into_iter().map(|frame| frame.durable).chain(block);
    said.max().unwrap_or_default()
}
