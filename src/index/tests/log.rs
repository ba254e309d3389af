//! A generated log: directories with random runs, records, starts, ends, holds and evictions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use redb::StorageBackend;

use crate::format::codec::Decoded;
use crate::format::segments::directory::{
    DirectoryKey, EndAt, EvictionAt, HoldAt, IdHash, StartAt,
};
use crate::format::segments::directory_builder::RecordsAt;
use crate::format::segments::segment::Purpose;
use crate::format::{Directory, DirectoryBuilder, RunEntry};
use crate::index::{Applied, Directories, IndexIdentity, SegmentChange};
use crate::types::{AgentId, Lsn, RunId, RunNo, RunStatus, SegmentId, Seq, Timestamp};

pub(super) const IDENTITY: IndexIdentity = IndexIdentity { uuid: [0x5A; 16] };
pub(super) const CACHE: usize = 1 << 20;

/// The key of all directories.
pub(super) const KEY: DirectoryKey =
    DirectoryKey { salt: 7, end: 4096, ids: IdHash::new([0x5A; 16]) };

/// Behind all orders of entries.
const LAST_ORDER: Lsn = Lsn(1 << 40);

/// A storage in memory that outlives the index in it.
#[derive(Debug, Clone, Default)]
pub(super) struct SharedBytes {
    bytes: Arc<Mutex<Vec<u8>>>,
    is_full: Arc<AtomicBool>,
}

type Outcome<T> = Result<T, std::io::Error>;

impl SharedBytes {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        Self { bytes: Arc::new(Mutex::new(bytes)), is_full: Arc::default() }
    }

    /// From now on writing fails.
    pub(super) fn fill_up(&self) {
        self.is_full.store(true, Ordering::Relaxed);
    }

    pub(super) fn copy(&self) -> Vec<u8> {
        self.bytes.lock().unwrap().clone()
    }
}

impl StorageBackend for SharedBytes {
    fn len(&self) -> Outcome<u64> {
        Ok(self.bytes.lock().unwrap().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Outcome<()> {
        let bytes = self.bytes.lock().unwrap();
        let found = usize::try_from(offset)
            .ok()
            .and_then(|from| bytes.get(from..from.checked_add(out.len())?))
            .ok_or(std::io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(found);
        Ok(())
    }

    fn set_len(&self, len: u64) -> Outcome<()> {
        // A damaged header may ask for any length; a real storage is limited too.
        let len = usize::try_from(len).ok().filter(|len| *len <= 1 << 30);
        self.bytes.lock().unwrap().resize(len.ok_or(std::io::ErrorKind::StorageFull)?, 0);
        Ok(())
    }

    fn sync_data(&self) -> Outcome<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Outcome<()> {
        if self.is_full.load(Ordering::Relaxed) {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        let mut bytes = self.bytes.lock().unwrap();
        let place = usize::try_from(offset)
            .ok()
            .and_then(|from| bytes.get_mut(from..from.checked_add(data.len())?))
            .ok_or(std::io::ErrorKind::UnexpectedEof)?;
        place.copy_from_slice(data);
        Ok(())
    }
}

/// A small generator of numbers; one seed gives one sequence on every machine.
#[derive(Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(super) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        let at = self.below(of.len() as u64);
        of[usize::try_from(at).unwrap()]
    }
}

pub(super) const AGENTS: [&str; 6] = ["a", "a\0", "a\0b", "ab", "\u{10FFFF}", "planner"];
pub(super) const RUNS: [&str; 7] = ["1", "1\0", "10", "\0", "run", "run\u{1}", "z"];

/// A log as its directories. No segment is an output of a compaction.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// By number.
    pub(super) segments: Vec<SegmentId>,
    pub(super) directories: Vec<Vec<u8>>,
}

impl Log {
    pub(super) fn stamp(&self, index: usize) -> u64 {
        crc32fast::hash(&self.directories[index]).into()
    }

    pub(super) fn generate(seed: u64, segments: u32, runs: u64) -> Self {
        let mut writer = Writer::new(seed, runs);
        for _ in 0..segments {
            writer.seal();
        }
        writer.log
    }

    fn view(&self, index: usize) -> Directory<'_> {
        Directory::new(&self.directories[index], &KEY).unwrap()
    }

    /// Everything that it covers.
    pub(super) fn applied(&self) -> Applied {
        Applied { log: self.segments.last().copied(), outputs: None }
    }

    /// The runs that are evicted in directories that `applied` covers.
    pub(super) fn evicted(&self, applied: Applied) -> BTreeSet<RunNo> {
        (0..self.segments.len())
            .filter(|index| applied.covers(self.segments[*index], Purpose::Log))
            .flat_map(|index| self.view(index).evictions().collect::<Vec<_>>())
            .map(|eviction| eviction.unwrap().run_no)
            .collect()
    }

    pub(super) fn changes(&self) -> Vec<SegmentChange> {
        self.changes_without(&BTreeSet::new())
    }

    pub(super) fn changes_without(&self, deleted: &BTreeSet<RunNo>) -> Vec<SegmentChange> {
        let read = |index: usize| {
            let is_deleted = |run_no: RunNo| deleted.contains(&run_no);
            let key = (self.segments[index], Purpose::Log, self.stamp(index));
            SegmentChange::read(key, &self.view(index), &is_deleted).unwrap()
        };
        (0..self.segments.len()).map(read).collect()
    }
}

impl Directories for Log {
    fn segments(&self) -> &[SegmentId] {
        &self.segments
    }

    fn purpose(&self, _: usize) -> Purpose {
        Purpose::Log
    }

    fn with<R>(&self, index: usize, read: impl FnOnce(Directory<'_>) -> Decoded<R>) -> Decoded<R> {
        read(Directory::new(&self.directories[index], &KEY).unwrap())
    }
}

/// A run that was not evicted.
#[derive(Debug, Clone)]
struct Alive {
    agent: AgentId,
    run: RunId,
    next_seq: u64,
}

/// What makes a log, segment by segment.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) log: Log,
    random: Random,
    runs: u64,
    alive: BTreeMap<RunNo, Alive>,
    clock: i64,
    next_no: u64,
    lsn: u64,
    last_id: u32,
}

impl Writer {
    pub(super) fn new(seed: u64, runs: u64) -> Self {
        Self {
            log: Log::default(),
            random: Random(seed),
            runs,
            alive: BTreeMap::new(),
            clock: -500,
            next_no: 1,
            lsn: 1,
            last_id: 0,
        }
    }

    /// Adds a segment of the log.
    pub(super) fn seal(&mut self) {
        let mut builder = DirectoryBuilder::default();
        for _ in 0..self.random.below(self.runs) {
            self.append(&mut builder);
        }
        for run_no in self.alive.keys().copied().collect::<Vec<_>>() {
            if self.random.once_in(9) {
                builder.push_eviction(EvictionAt { run_no, offset: 64, with_receipt: false });
                self.alive.remove(&run_no);
            }
        }
        builder.note_lsn(LAST_ORDER);
        self.last_id += 1 + u32::try_from(self.random.below(2)).unwrap();
        self.log.segments.push(SegmentId(self.last_id));
        self.log.directories.push(builder.encode(&KEY, RunNo(self.next_no)));
    }

    fn append(&mut self, builder: &mut DirectoryBuilder) {
        let random = &mut self.random;
        let known: Vec<RunNo> = self.alive.keys().copied().collect();
        let is_new = known.is_empty() || random.once_in(2);
        let run_no = if is_new { RunNo(self.next_no) } else { random.pick(&known) };
        if is_new {
            self.next_no += 1 + random.below(3);
            let agent = AgentId::new(random.pick(&AGENTS)).unwrap();
            let run = RunId::new(random.pick(&RUNS)).unwrap();
            self.alive.insert(run_no, Alive { agent, run, next_seq: 0 });
        }
        let alive = self.alive.get_mut(&run_no).unwrap();
        builder.bind(run_no, alive.agent.clone(), alive.run.clone());
        self.clock += i64::try_from(random.below(3)).unwrap();
        let (clock, mut lsn) = (self.clock, self.lsn);
        builder.update(run_no, |entry| {
            // By the number, so that it is the same for all entries.
            entry.document = run_no.0 % 5 == 3;
            if is_new {
                entry.created_at = Some(Timestamp(clock));
            }
            fill(entry, random, clock, &mut lsn);
        });
        let count = u32::try_from(random.below(4)).unwrap();
        if count > 0 {
            // Some records may be lost.
            let seq = Seq(alive.next_seq + random.below(2));
            alive.next_seq = seq.0 + u64::from(count);
            lsn += 1;
            let lsn = Lsn(4 * lsn);
            let at = RecordsAt { offset: 256, lsn, seq, count };
            let bytes = random.below(1000);
            builder.push_records_at(builder.slot(run_no).unwrap(), at, |entry| {
                entry.bytes += bytes;
            });
        }
        self.lsn = lsn + 1;
    }
}

/// Adds some frames to what a segment says of a run.
fn fill(entry: &mut RunEntry, random: &mut Random, clock: i64, lsn: &mut u64) {
    let mut order = |random: &mut Random| {
        *lsn += 1;
        // Now and then an older frame is met behind a newer one, as compaction may have it.
        let older = random.once_in(5);
        Lsn(if older { 4 * (*lsn / 2) + 1 + *lsn % 2 } else { 4 * *lsn })
    };
    if random.once_in(3) {
        let start = StartAt { offset: 64, at: Timestamp(clock) };
        entry.start.get_or_insert(start);
    }
    if random.once_in(3) {
        let codes = [RunStatus::Completed, RunStatus::Failed, RunStatus::Cancelled];
        let (at, lsn) = (Timestamp(clock), order(random));
        let end = EndAt { offset: 128, at, status: random.pick(&codes), lsn };
        if entry.end.is_none_or(|known| known.lsn < lsn) {
            entry.end = Some(end);
        }
        entry.late = u32::try_from(random.below(2)).unwrap();
    }
    if random.once_in(6) {
        let hold = HoldAt { offset: 192, lsn: order(random), held: random.once_in(2) };
        if entry.hold.is_none_or(|known| known.lsn < hold.lsn) {
            entry.hold = Some(hold);
        }
    }
    entry.stored += 64 + random.below(1000);
    entry.last_at = entry.last_at.max(Timestamp(clock + 1));
}
