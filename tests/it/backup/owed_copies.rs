//! What a backup says of a store that was killed, lost power, was damaged or was set back, beside
//! what the store had acknowledged.
//!
//! Goal: what is not in a copy, the report or an error tells. A backup into an earlier copy leaves
//! there what the store owes it, or refuses.
//!
//! Method: a store lives, with blocks, deletions, compactions and background work at any moment. It
//! is killed, loses power, or is closed; or an earlier state is put back. Perhaps parts of the file
//! are damaged, and a process goes on with it. Then a reader makes a backup into an empty file, and
//! one into a copy from before.
//!
//! One thing may be missing without a word: the end of the log, from a record on of which no byte
//! says that it was durable. It may never have been written whole.
//!
//! - `RUNLOG_OWED`: how many stores.
//! - `RUNLOG_OWED_SEED`: the first of their seeds; a failure names its own.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use runlog::env::{BootId, Environment, Step};
use runlog::format::segments::segment::{Purpose, SEGMENT_HEADER_LEN, SegmentHeader};
use runlog::format::{EXTENTS_AT, FrameHeader};
use runlog::storage::MemoryStorage;
use runlog::{
    Backup, Batch, Compression, Durability, Error, LogPosition, Metadata, NewRecord, Options,
    Outcome, Place, ReadLog, Reader, ReaderOptions, RunLog, RunQuery, Timestamp,
};
use runlog_sim::{SimClock, SimDisk, SimEntropy, SplitMix64, Survivors};

use crate::backup::lost_after_a_copy::harm as harm_places;
use crate::support::background::Background;
use crate::support::campaign::variable;
use crate::support::frames::EXTENT;
use crate::support::harm::newest;

const SPACE: &str = "space";
const RUNS: u64 = 8;
const KEYS: u64 = 5;

/// A record, by the number of its run and its own; or a document.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    Record(u64, u64),
    Document(String),
}

/// Its order in the log, or the version of the document; and its payload.
type Value = (u64, Vec<u8>);
type Contents = BTreeMap<Item, Value>;

/// What can be read.
fn contents(log: &impl ReadLog) -> Contents {
    let mut all = Contents::new();
    for run in log.runs(&RunQuery::new()).filter_map(Result::ok) {
        for record in log.trace(&run).into_iter().flatten().filter_map(Result::ok) {
            let item = Item::Record(run.number().0, record.seq().0);
            all.insert(item, (record.lsn().0, record.payload().to_vec()));
        }
    }
    for key in 0..KEYS {
        let key = format!("key-{key}");
        if let Ok(Some(found)) = log.document(SPACE, &key) {
            let value = (found.version().0, found.payload().to_vec());
            all.insert(Item::Document(key), value);
        }
    }
    all
}

/// What of the first is not in the second as it is.
fn missing(had: &Contents, has: &Contents) -> Contents {
    let is_gone = |(item, value): &(&Item, &Value)| has.get(*item) != Some(*value);
    had.iter().filter(is_gone).map(|(item, value)| (item.clone(), value.clone())).collect()
}

fn environment(boot: u8, seed: u64) -> Environment {
    Environment::system()
        .clock(Arc::new(SimClock::new(Timestamp(1_000_000_000))))
        .entropy(Arc::new(SimEntropy::new(seed)))
        .boot_id(Some(BootId([boot; 16])))
}

fn reader(image: &[u8], boot: u8) -> runlog::Result<Reader> {
    let storage = Arc::new(MemoryStorage::from_bytes(image.to_vec()));
    ReaderOptions::new().environment(environment(boot, 1)).open_storage(storage)
}

/// A store, and what it acknowledged.
struct Life {
    disk: SimDisk,
    log: RunLog,
    background: Background,
    random: SplitMix64,
    /// Of what survives power loss.
    durable: Contents,
    /// Of what an earlier copy has.
    copied: Contents,
    /// The places of documents in the whole log.
    orders: HashMap<Vec<u8>, u64>,
    fillers: u64,
    /// Nothing is synced, and no background work is done but reserving space.
    is_quiet: bool,
}

impl Life {
    fn options(random: &mut SplitMix64, background: &Background, boot: u8) -> Options {
        let zstd = Compression::Zstd { level: 1 };
        Options::new()
            .extent_size(EXTENT as u64)
            .environment(environment(boot, random.next_u64()))
            .index(random.below(3) == 0)
            .receipts(0, Duration::ZERO)
            .compression(if random.below(3) > 0 { zstd } else { Compression::None })
            .scheduler(Arc::new(background.clone()))
    }

    fn begin(mut random: SplitMix64) -> Self {
        let (disk, background) = (SimDisk::new(), Background::default());
        let options = Self::options(&mut random, &background, 1);
        let log = options.create_storage(Arc::new(disk.clone())).unwrap();
        let (durable, copied) = (Contents::new(), Contents::new());
        let orders = HashMap::new();
        Self { disk, log, background, random, durable, copied, orders, fillers: 0, is_quiet: false }
    }

    /// Goes on with a file. What was durable when it was opened is of no interest any more.
    fn resume(mut random: SplitMix64, image: &[u8], boot: u8) -> runlog::Result<Self> {
        let (disk, background) = (SimDisk::from_image(image.to_vec()), Background::default());
        let options = Self::options(&mut random, &background, boot);
        let log = options.open_storage(Arc::new(disk.clone()))?;
        let (durable, copied) = (Contents::new(), Contents::new());
        let orders = HashMap::new();
        Ok(Self {
            disk,
            log,
            background,
            random,
            durable,
            copied,
            orders,
            fillers: 1000,
            is_quiet: false,
        })
    }

    fn payload(&mut self) -> Vec<u8> {
        let most = [30, 300, 3000, 9000][self.random.index(4)];
        let mut payload = vec![0; 9 + self.random.index(most)];
        let head = self.random.next_u64().to_le_bytes();
        payload.chunks_mut(64).for_each(|part| part[0] = head[0]);
        payload[1..9].copy_from_slice(&head);
        payload
    }

    fn level(&mut self) -> Durability {
        let is_durable = !self.is_quiet && self.random.below(6) == 0;
        if is_durable { Durability::Disk } else { Durability::Process }
    }

    /// No copy is owed what is deleted or written again.
    fn forget(&mut self, is_gone: impl Fn(&Item) -> bool) {
        self.durable.retain(|item, _| !is_gone(item));
        self.copied.retain(|item, _| !is_gone(item));
    }

    /// The log goes on in another segment.
    fn erase(&mut self, run: &str) {
        self.delete(run);
        let _ = self.log.erase_run(run);
    }

    fn delete(&mut self, run: &str) {
        let Ok(number) = self.log.run(run).map(|run| run.number().0) else { return };
        let outcome = Outcome::completed().durability(Durability::Process);
        let _ = self.log.writer(run).and_then(|run| run.end(&outcome));
        self.forget(|item| matches!(item, Item::Record(run, _) if *run == number));
        let _ = self.log.delete_run(run);
    }

    fn write(&mut self, run: &str, records: usize) {
        let level = self.level();
        let about = Metadata::default().durability(level);
        let Ok(writer) = self.log.start_run("agent", run, about) else { return };
        if self.log.run(run).is_ok_and(|run| run.ended_at.is_some()) {
            return;
        }
        for _ in 0..records {
            let payload = self.payload();
            let record = NewRecord::new(&payload).durability(level);
            let pair = [record, NewRecord::new(b"two").durability(level)];
            let appended = match self.random.below(5) {
                0 => writer.append_batch(&pair).map(drop),
                _ => writer.append_record(&record).map(drop),
            };
            if let Err(error) = appended {
                // What ended it can be read only in part.
                assert!(matches!(error, Error::RunEnded { .. } | Error::Corrupt(_)), "{error}");
                return;
            }
        }
    }

    fn document(&mut self) {
        let key = format!("key-{}", self.random.below(KEYS));
        let payload = self.payload();
        let level = self.level();
        self.forget(|item| matches!(item, Item::Document(name) if *name == key));
        if self.random.below(4) == 0 {
            let _ = self.log.docs().delete(SPACE, &key).unwrap();
        } else {
            let mut batch = Batch::new();
            batch.put(SPACE, &key, NewRecord::new(&payload)).durability(level);
            let order = self.log.commit(&batch).unwrap().lsn.0;
            self.orders.insert(payload, order);
        }
    }

    /// Runs that come and go, until the store has given the numbers of some segments.
    fn pass_segments(&mut self) {
        for _ in 0..2 + self.random.below(12) {
            let name = format!("filler-{}", self.fillers);
            self.fillers += 1;
            self.write(&name, 12);
            self.delete(&name);
            self.log.checkpoint().unwrap();
            self.log.reclaim().unwrap();
        }
    }

    fn step(&mut self) {
        let run = format!("run-{}", self.random.below(RUNS));
        match self.random.below(40) {
            0..=7 | 13..=16 if self.is_quiet => drop(self.background.run(Step::Reserve)),
            0 => self.delete(&run),
            1 => self.erase(&run),
            2..=4 => {
                let outcome = Outcome::completed().durability(Durability::Process);
                let _ = self.log.writer(&*run).and_then(|run| run.end(&outcome));
            }
            5 => self.sync(),
            6 => self.log.checkpoint().unwrap(),
            7 => drop(self.log.compact().unwrap()),
            8..=12 => self.document(),
            13..=16 => self.background.run_some(&mut self.random, 2),
            _ => {
                let records = 1 + self.random.index(4);
                self.write(&run, records);
            }
        }
    }

    fn sync(&mut self) {
        self.log.sync().unwrap();
        self.durable = contents(&self.log);
    }

    fn steps(&mut self, most: usize) {
        (0..self.random.index(most)).for_each(|_| self.step());
    }
}

/// What happens to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Killed,
    PowerCut,
    Closed,
    /// An earlier state is put back, and a process goes on with it.
    SetBack,
}

/// The order and the position of each frame of the log that can be found, without what compaction
/// has moved.
fn frames(image: &[u8]) -> Vec<FrameHeader> {
    let mut found = Vec::new();
    for start in (EXTENTS_AT as usize..image.len()).step_by(EXTENT) {
        let Ok(header) = SegmentHeader::decode(&image[start..]) else { continue };
        let mut at = SEGMENT_HEADER_LEN;
        while let Ok(frame) = FrameHeader::decode(&image[start + at as usize..], header.key, at) {
            found.extend((header.purpose == Purpose::Log).then_some(frame));
            at += u32::try_from(frame.frame_len()).unwrap();
        }
    }
    found
}

/// What of the file says that it is durable, in a file that is damaged now: everything in front of
/// this order.
fn said_durable(whole: &[u8], damaged: &[u8]) -> u64 {
    let block = newest(&damaged[..EXTENTS_AT as usize]).map(|block| block.durable);
    said_by_frames(whole, damaged, block)
}

/// The same by what frames say, and a position.
fn said_by_frames(whole: &[u8], damaged: &[u8], also: Option<LogPosition>) -> u64 {
    let said = frames(damaged).into_iter().map(|frame| frame.durable).chain(also);
    let floor = said.max().unwrap_or_default();
    let is_behind = |frame: &FrameHeader| frame.position >= floor && frame.lsn.0 > 0;
    let behind = frames(whole).into_iter().filter(is_behind);
    behind.map(|frame| frame.lsn.0).min().unwrap_or(u64::MAX)
}

/// Damages the file behind its front: one or two places; or the end or the header of one of the
/// last segments.
fn harm(image: &mut [u8], random: &mut SplitMix64) {
    if random.coin() && harm_segment(image, random) {
        return;
    }
    harm_places(image, random);
}

fn harm_segment(image: &mut [u8], random: &mut SplitMix64) -> bool {
    let all = frames(image);
    let mut segments: Vec<_> = all.iter().map(|frame| frame.position.segment).collect();
    segments.sort_unstable();
    segments.dedup();
    let last = random.index(3).min(segments.len().saturating_sub(1));
    let Some(&segment) = segments.iter().rev().nth(last) else { return false };
    let mut starts = (EXTENTS_AT as usize..image.len()).step_by(EXTENT);
    let is_it = |at: &usize| {
        SegmentHeader::decode(&image[*at..]).is_ok_and(|found| found.key.id == segment)
    };
    let Some(start) = starts.find(is_it) else { return false };
    let of_it = all.iter().filter(|frame| frame.position.segment == segment);
    let places: Vec<_> = of_it.map(|frame| frame.position.offset as usize).collect();
    let (from, end) = match random.below(3) {
        0 => (start, start + SEGMENT_HEADER_LEN as usize),
        _ => (start + places[places.len() - 1 - random.index(places.len().min(6))], start + EXTENT),
    };
    let end = end.min(image.len());
    let fill = if random.coin() { 0 } else { 0x55 };
    let written = image[from..end].iter_mut().filter(|byte| **byte != 0);
    written.for_each(|byte| *byte = fill);
    true
}

fn back_up(reader: &Reader, copy: &Arc<MemoryStorage>) -> runlog::Result<Backup> {
    reader.backup_to_storage(Arc::<MemoryStorage>::clone(copy))
}

fn of_copy(copy: &Arc<MemoryStorage>) -> Contents {
    contents(&reader(&copy.to_bytes(), 9).unwrap())
}

/// Whether a reader tells of frames or segments that are missing.
fn tells_of_loss(source: &Reader) -> bool {
    let is_part = |place: &Place| matches!(place, Place::Frame(_) | Place::Extent { .. });
    source.recovery_report().damaged.iter().any(|one| is_part(&one.place))
}

/// A store of which a copy was made before, perhaps.
struct Story {
    seed: u64,
    fate: Fate,
    is_damaged: bool,
    went_on: bool,
    whole: Vec<u8>,
    image: Vec<u8>,
    boot: u8,
    /// What must be there.
    has: Contents,
    /// What of the earlier copy was not deleted since.
    owed: Contents,
    copy: Option<Arc<MemoryStorage>>,
    /// The places of documents in the log.
    orders: HashMap<Vec<u8>, u64>,
}

impl Story {
    fn tell(seed: u64) -> Option<Self> {
        let mut random = SplitMix64::for_case(seed, 41);
        let mut life = Life::begin(SplitMix64::for_case(seed, 42));
        life.steps(120);
        let mut states = vec![(life.disk.image(), contents(&life.log))];
        let mut copy = None;
        for _ in 0..random.below(4) {
            life.steps(60);
            if random.coin() {
                match random.below(4) {
                    0 | 1 => drop(life.log.compact().unwrap()),
                    2 => life.erase("run-0"),
                    _ => {}
                }
                copy = Some(Arc::new(MemoryStorage::new()));
                let source = reader(&life.disk.image(), 1).unwrap();
                assert!(back_up(&source, copy.as_ref().unwrap()).unwrap().damaged.is_empty());
                life.copied = contents(&life.log);
                assert!(of_copy(copy.as_ref().unwrap()) == life.copied, "seed {seed}");
            } else {
                states.push((life.disk.image(), contents(&life.log)));
            }
        }
        if random.coin() {
            life.is_quiet = true;
            life.steps(200);
        }
        let orders = life.orders.clone();
        let fate = match random.below(6) {
            0 | 1 => Fate::Killed,
            2 => Fate::PowerCut,
            3 => Fate::Closed,
            _ => Fate::SetBack,
        };
        let mut boot = 1 + random.below(2) as u8;
        let (image, has, mut owed) = match fate {
            Fate::Killed => {
                boot = 1;
                (life.disk.image(), contents(&life.log), life.copied)
            }
            Fate::PowerCut => {
                boot = 2;
                let survivors = Survivors::ALL[random.index(Survivors::ALL.len())];
                (life.disk.crash(survivors, seed), life.durable, life.copied)
            }
            Fate::Closed => {
                let has = contents(&life.log);
                life.log.close().unwrap();
                (life.disk.image(), has, life.copied)
            }
            Fate::SetBack => {
                let (image, has) = states.swap_remove(random.index(states.len()));
                (image, has, life.copied)
            }
        };
        let whole = image.clone();
        let (mut image, mut has) = (image, has);
        let is_damaged = fate != Fate::SetBack && random.below(3) > 0;
        if is_damaged {
            harm(&mut image, &mut random);
        }
        let went_on = random.below(4) == 0 || (fate == Fate::SetBack && random.below(5) > 0);
        if went_on {
            let more = SplitMix64::for_case(seed, 43);
            let mut life = Life::resume(more, &image, boot).ok()?;
            life.copied = owed;
            for _ in 0..1 + random.below(3) {
                life.steps(60);
                if fate == Fate::SetBack || random.coin() {
                    life.pass_segments();
                }
            }
            if random.coin() {
                life.log.sync().unwrap();
            }
            (image, has, owed) = (life.disk.image(), contents(&life.log), life.copied);
        }
        Some(Self { seed, fate, is_damaged, went_on, whole, image, boot, has, owed, copy, orders })
    }

    fn name(&self) -> String {
        let Self { seed, fate, is_damaged, went_on, boot, .. } = self;
        format!(
            "RUNLOG_OWED_SEED={seed}: {fate:?}, boot {boot}, damaged: {is_damaged}, \
             went on: {went_on}"
        )
    }

    fn order(&self, item: &Item, (order, payload): &Value) -> u64 {
        match item {
            Item::Record(..) => *order,
            Item::Document(_) => self.orders.get(payload).copied().unwrap_or(0),
        }
    }

    /// Whether the store must have noticed that something of a copy is not there, however it went
    /// on: one that was set back, and has given the numbers of all segments of the copy to others
    /// that are gone too, knows only how many records its runs have.
    fn must_notice(&self, item: &Item) -> bool {
        if self.fate != Fate::SetBack || !self.went_on {
            return true;
        }
        let Item::Record(run, seq) = item else { return false };
        let mut of_run = self.has.range(Item::Record(*run, 0)..=Item::Record(*run, u64::MAX));
        let last = of_run.next_back();
        last.is_some_and(|(last, _)| *last < Item::Record(*run, *seq))
    }

    /// Whether this is the end of the log, which may never have been written whole.
    fn is_an_end(&self, lost: &Contents) -> bool {
        let Some(first) = lost.iter().map(|(item, value)| self.order(item, value)).min() else {
            return true;
        };
        let mut behind = self.has.iter().filter(|(item, value)| self.order(item, value) >= first);
        let is_all = behind.all(|(item, _)| lost.contains_key(item));
        self.is_damaged && is_all && first >= said_durable(&self.whole, &self.image)
    }

    /// A copy in an empty file.
    fn check_new(&self, source: &Reader) -> Result<bool, String> {
        let copy = Arc::new(MemoryStorage::new());
        let report = back_up(source, &copy).map_err(|error| error.to_string())?;
        let now = of_copy(&copy);
        let lost = missing(&self.has, &now);
        if !lost.is_empty() && report.damaged.is_empty() && tells_of_loss(source) {
            return Err(format!("{} are missing, which the reader tells", lost.len()));
        }
        if !lost.is_empty() && report.damaged.is_empty() && (self.went_on || !self.is_an_end(&lost))
        {
            return Err(format!("{} of {} are missing", lost.len(), self.has.len()));
        }
        let read = contents(source);
        if read != now {
            return Err(format!("{} read, {} copied", read.len(), now.len()));
        }
        let is_exact = !self.is_damaged && self.fate != Fate::PowerCut;
        if is_exact && (now != self.has || !report.damaged.is_empty()) {
            return Err(format!("{} copied, not {}: {report:?}", now.len(), self.has.len()));
        }
        Ok(lost.is_empty())
    }
}

/// What came of a backup.
#[derive(Debug, Default)]
struct Counts {
    whole: u64,
    told: u64,
    refused: u64,
    kept: u64,
    silent: u64,
    passed: u64,
    unread: u64,
}

impl Story {
    /// A copy in a file that has an earlier one.
    fn check_again(&self, source: &Reader, counts: &mut Counts) -> Result<(), String> {
        let Some(copy) = &self.copy else { return Ok(()) };
        let before = of_copy(copy);
        // Its superblock says that all of it is durable there.
        let from = said_by_frames(&copy.to_bytes(), &copy.to_bytes(), None);
        let done = back_up(source, copy);
        let now = of_copy(copy);
        match done {
            Err(Error::CopyHasMore { at }) => {
                counts.refused += 1;
                if now != before {
                    return Err(format!("{at}: a refused backup changed the copy"));
                }
                if !self.is_damaged && self.fate != Fate::SetBack {
                    return Err(format!("{at}: refused without a reason"));
                }
            }
            Err(error) => return Err(error.to_string()),
            Ok(report) => {
                let mut lost = missing(&self.owed, &now);
                // A loss of power may have taken the end.
                lost.retain(|item, value| self.boot == 1 || self.order(item, value) < from);
                counts.passed += lost.len() as u64;
                lost.retain(|item, _| self.must_notice(item));
                counts.passed -= lost.len() as u64;
                if !lost.is_empty() && report.damaged.is_empty() {
                    if !self.is_damaged {
                        let all = self.owed.len();
                        return Err(format!("{} of {all} went: {:?}", lost.len(), lost.keys()));
                    }
                    counts.silent += 1;
                }
                counts.kept += 1;
            }
        }
        Ok(())
    }
}

#[test]
fn a_copy_has_what_the_store_had_or_something_tells() {
    let (stores, first) = (variable("RUNLOG_OWED", 1_200), variable("RUNLOG_OWED_SEED", 0));
    let mut counts = Counts::default();
    let mut failures = Vec::new();
    for seed in first..first + stores {
        let Some(story) = Story::tell(seed) else { continue };
        let Ok(source) = reader(&story.image, story.boot) else {
            counts.unread += 1;
            assert!(story.is_damaged, "{}", story.name());
            continue;
        };
        match story.check_new(&source) {
            Ok(true) => counts.whole += 1,
            Ok(false) => counts.told += 1,
            Err(error) => failures.push(format!("{}: new: {error}", story.name())),
        }
        if let Err(error) = story.check_again(&source, &mut counts) {
            failures.push(format!("{}: again: {error}", story.name()));
        }
    }
    println!("{counts:?}");
    failures.iter().take(30).for_each(|failure| println!("{failure}"));
    assert!(failures.is_empty(), "{} failures", failures.len());
    // No byte tells that the end was durable if a kill may have left it half written.
    assert!(counts.silent <= 2 + stores / 200, "{counts:?}");
    let is_rich =
        counts.told > stores / 10 && counts.refused > stores / 20 && counts.kept > stores / 4;
    assert!(is_rich || stores < 100, "{counts:?}");
}
