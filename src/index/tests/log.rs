//! A generated log: directories with random runs, records, starts, ends, holds and evictions.

use core::ops::Bound;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use redb::StorageBackend;

use crate::format::codec::Decoded;
use crate::format::segments::directory::{EndAt, EvictionAt, HoldAt, StartAt};
use crate::format::segments::segment::Purpose;
use crate::format::{Directory, DirectoryBuilder, RunEntry};
use crate::index::row::RunState;
use crate::index::scan::is_behind;
use crate::index::{
    Applied, Catalog, Directories, IndexError, IndexIdentity, Order, RowSummary, RunKey, RunList,
    RunRow, SegmentChange, Span,
};
use crate::types::{AgentId, Lsn, RunId, RunNo, RunRef, RunStatus, SegmentId, Seq, Timestamp};

pub(super) const IDENTITY: IndexIdentity = IndexIdentity { uuid: [0x5A; 16] };
pub(super) const CACHE: usize = 1 << 20;

/// Behind all orders of entries.
pub(super) const LAST_ORDER: Lsn = Lsn(1 << 40);

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

/// A log as its directories.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// By number.
    pub(super) segments: Vec<SegmentId>,
    pub(super) purposes: Vec<Purpose>,
    pub(super) directories: Vec<Vec<u8>>,
}

impl Log {
    /// A log that was never compacted.
    pub(super) fn generate(seed: u64, segments: u32, runs: u64) -> Self {
        let mut writer = Writer::new(seed, runs);
        for _ in 0..segments {
            writer.seal();
        }
        writer.log
    }

    pub(super) fn insert(&mut self, segment: SegmentId, purpose: Purpose, directory: Vec<u8>) {
        let at = self.segments.partition_point(|id| *id < segment);
        self.segments.insert(at, segment);
        self.purposes.insert(at, purpose);
        self.directories.insert(at, directory);
    }

    pub(super) fn remove(&mut self, segment: SegmentId) {
        let at = self.segments.binary_search(&segment).unwrap();
        self.segments.remove(at);
        self.purposes.remove(at);
        self.directories.remove(at);
    }

    pub(super) fn view(&self, index: usize) -> Directory<'_> {
        Directory::new(&self.directories[index]).unwrap()
    }

    /// Everything that it covers.
    pub(super) fn applied(&self) -> Applied {
        let last = |purpose| {
            let of = self.segments.iter().zip(&self.purposes).rev();
            of.filter(|(_, found)| **found == purpose).map(|(id, _)| *id).next()
        };
        Applied { log: last(Purpose::Log), outputs: last(Purpose::Output) }
    }

    /// The runs that are evicted in directories that `applied` covers.
    pub(super) fn evicted(&self, applied: Applied) -> BTreeSet<RunNo> {
        (0..self.segments.len())
            .filter(|index| applied.covers(self.segments[*index], self.purposes[*index]))
            .flat_map(|index| self.view(index).evictions().collect::<Vec<_>>())
            .map(|eviction| eviction.unwrap().run_no)
            .collect()
    }

    /// Outputs first, as in a rebuild.
    pub(super) fn changes(&self) -> Vec<SegmentChange> {
        self.changes_without(&BTreeSet::new())
    }

    pub(super) fn changes_without(&self, deleted: &BTreeSet<RunNo>) -> Vec<SegmentChange> {
        let read = |index: usize| {
            let (segment, purpose) = (self.segments[index], self.purposes[index]);
            let is_deleted = |run_no: RunNo| deleted.contains(&run_no);
            let key = (segment, purpose, self.stamp(index));
            SegmentChange::read(key, &self.view(index), &is_deleted).unwrap()
        };
        let mut changes: Vec<_> = (0..self.segments.len()).map(read).collect();
        changes.sort_by_key(|change| change.purpose == Purpose::Log);
        changes
    }
}

impl Directories for Log {
    fn stamp(&self, index: usize) -> u64 {
        crc32fast::hash(&self.directories[index]).into()
    }

    fn segments(&self) -> &[SegmentId] {
        &self.segments
    }

    fn purpose(&self, index: usize) -> Purpose {
        self.purposes[index]
    }

    fn with<R>(&self, index: usize, read: impl FnOnce(Directory<'_>) -> Decoded<R>) -> Decoded<R> {
        read(Directory::new(&self.directories[index]).unwrap())
    }
}

/// A run that was not evicted.
#[derive(Debug, Clone)]
struct Alive {
    agent: AgentId,
    run: RunId,
    next_seq: u64,
}

/// What makes a log, segment by segment. The number of the next one is taken before, as that of
/// the tail is, so that numbers of outputs lie on both sides of it.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) log: Log,
    pub(super) random: Random,
    runs: u64,
    alive: BTreeMap<RunNo, Alive>,
    clock: i64,
    pub(super) next_no: u64,
    lsn: u64,
    last_id: u32,
    tail: SegmentId,
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
            last_id: 1,
            tail: SegmentId(1),
        }
    }

    pub(super) fn next_id(&mut self) -> SegmentId {
        self.last_id += 1 + u32::try_from(self.random.below(2)).unwrap();
        SegmentId(self.last_id)
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
        let segment = self.tail;
        self.tail = self.next_id();
        self.log.insert(segment, Purpose::Log, builder.encode(RunNo(self.next_no)));
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
        let entry = builder.run_mut(run_no).unwrap();
        // By the number, so that it is the same for all entries.
        entry.document = run_no.0 % 5 == 3;
        if is_new {
            entry.created_at = Some(Timestamp(self.clock));
        }
        fill(entry, random, alive, self.clock, &mut self.lsn);
    }
}

/// Adds some frames to what a segment says of a run.
fn fill(entry: &mut RunEntry, random: &mut Random, alive: &mut Alive, clock: i64, lsn: &mut u64) {
    *lsn += 1;
    entry.first_lsn = entry.first_lsn.min(Lsn(4 * *lsn));
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
    let records = random.below(4);
    if records > 0 {
        // Some records may be lost.
        let first = alive.next_seq + random.below(2);
        alive.next_seq = first + records;
        entry.first_seq.get_or_insert(Seq(first));
        entry.next_seq = Seq(alive.next_seq);
        entry.records += u32::try_from(records).unwrap();
        entry.bytes += random.below(1000);
    }
    entry.stored += 64 + random.below(1000);
    entry.last_at = entry.last_at.max(Timestamp(clock + 1));
}

/// What the answers should be, in the plainest way: all runs in one map.
#[derive(Debug, Clone, Default)]
pub(super) struct Model {
    pub(super) runs: BTreeMap<RunNo, RunState>,
}

impl Model {
    /// What the directories say that `applied` covers.
    pub(super) fn of(log: &Log, applied: Applied) -> Self {
        let evicted = log.evicted(applied);
        let mut model = Self::default();
        for change in log.changes_without(&evicted) {
            if applied.covers(change.segment, change.purpose) {
                model.apply(&change);
            }
        }
        model
    }

    pub(super) fn apply(&mut self, change: &SegmentChange) {
        for (slot, entry) in &change.runs {
            let state = self.runs.entry(entry.run_no).or_default();
            state.apply(change.segment, *slot, entry);
            *state = core::mem::take(state).sorted();
        }
        for run_no in &change.evicted {
            self.runs.remove(run_no);
        }
    }

    fn rows(&self) -> impl Iterator<Item = &RunRow> {
        self.all_rows().filter(|row| !row.document)
    }

    fn all_rows(&self) -> impl Iterator<Item = &RunRow> {
        self.runs.values().filter_map(|state| state.row.as_ref())
    }
}

impl Catalog for Model {
    fn run_numbers(&self, run: RunRef<'_>) -> Result<Vec<RunNo>, IndexError> {
        let mut found: Vec<_> = self
            .rows()
            .filter(|row| row.run == run.run() && run.agent().is_none_or(|id| row.agent == id))
            .map(|row| (row.agent.clone(), row.run_no))
            .collect();
        found.sort();
        Ok(found.into_iter().map(|(_, run_no)| run_no).collect())
    }

    fn row(&self, run_no: RunNo) -> Result<Option<RunRow>, IndexError> {
        Ok(self.runs.get(&run_no).and_then(|state| state.row.clone()))
    }

    fn spans(&self, run_no: RunNo) -> Result<Vec<Span>, IndexError> {
        Ok(self.run_state(run_no)?.spans)
    }

    fn run_state(&self, run_no: RunNo) -> Result<RunState, IndexError> {
        Ok(self.runs.get(&run_no).cloned().unwrap_or_default())
    }

    fn runs_page(&self, list: &RunList<'_>, limit: usize) -> Result<Vec<RunKey>, IndexError> {
        let is_wanted = |row: &&RunRow| {
            let key = row.time_key();
            list.agent.is_none_or(|agent| row.agent == agent)
                && list.statuses.each().any(|status| status == row.status)
                && list.held.is_none_or(|held| held == row.hold.is_some_and(|hold| hold.held))
                && list.keys.0 <= key
                && key <= list.keys.1
        };
        let mut keys: Vec<_> = self.rows().filter(is_wanted).map(RunRow::time_key).collect();
        keys.sort_unstable();
        if list.order == Order::Descending {
            keys.reverse();
        }
        keys.truncate(limit);
        Ok(keys)
    }

    fn has_run_of(
        &self,
        agent: &str,
        is_wanted: &dyn Fn(RunNo) -> bool,
    ) -> Result<bool, IndexError> {
        Ok(self.rows().any(|row| row.agent == agent && is_wanted(row.run_no)))
    }

    fn agents_page(&self, after: Option<&str>, limit: usize) -> Result<Vec<AgentId>, IndexError> {
        let mut agents: Vec<_> = self.rows().map(|row| row.agent.clone()).collect();
        agents.sort();
        agents.dedup();
        agents.retain(|agent| after.is_none_or(|after| agent.as_str() > after));
        agents.truncate(limit);
        Ok(agents)
    }

    fn document_numbers(&self, namespace: &str, key: &str) -> Result<Vec<RunNo>, IndexError> {
        let documents = self.all_rows().filter(|row| row.document);
        let same = documents.filter(|row| row.agent == namespace && row.run == key);
        Ok(same.map(|row| row.run_no).collect())
    }

    fn documents_page(
        &self,
        namespace: &str,
        from: Bound<&str>,
        limit: usize,
    ) -> Result<Vec<(String, RunNo)>, IndexError> {
        let documents = self.all_rows().filter(|row| row.document && row.agent == namespace);
        let mut all: Vec<_> =
            documents.map(|row| (row.run.as_str().to_owned(), row.run_no)).collect();
        all.retain(|(key, _)| is_behind(from, key.as_str()));
        all.sort();
        let mut keys: Vec<&String> = all.iter().map(|(key, _)| key).collect();
        keys.dedup();
        match keys.get(limit).map(|&key| key.clone()) {
            Some(end) => Ok(all.into_iter().filter(|(key, _)| *key < end).collect()),
            None => Ok(all),
        }
    }

    fn count_runs(&self) -> Result<u64, IndexError> {
        Ok(self.rows().count() as u64)
    }

    fn each_summary(&self, visit: &mut dyn FnMut(RowSummary<'_>)) -> Result<(), IndexError> {
        self.all_rows().for_each(|row| visit(row.summary()));
        Ok(())
    }
}
