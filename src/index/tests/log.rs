//! A generated log: directories with random runs, records, starts, ends and evictions.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use redb::StorageBackend;

use crate::format::directory::{EndAt, StartAt};
use crate::format::{Directory, DirectoryBuilder, RunEntry};
use crate::index::row::RunState;
use crate::index::{
    Catalog, Directories, IndexError, IndexIdentity, RunFilter, RunRow, SegmentChange, Span,
};
use crate::types::{AgentId, Lsn, RunId, RunNo, RunRef, RunStatus, SegmentId, Seq, Timestamp};

pub(super) const IDENTITY: IndexIdentity = IndexIdentity { uuid: [0x5A; 16] };
pub(super) const CACHE: usize = 1 << 20;

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

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        let at = self.below(of.len() as u64);
        of[usize::try_from(at).unwrap()]
    }
}

pub(super) const AGENTS: [&str; 6] = ["a", "a\0", "a\0b", "ab", "\u{10FFFF}", "planner"];
pub(super) const RUNS: [&str; 7] = ["1", "1\0", "10", "\0", "run", "run\u{1}", "z"];

/// How wild a generated log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// As the engine writes it.
    Proper,
    /// Segments are missing, and runs have entries behind their eviction: what only damage gives.
    Wild,
}

/// A log as its directories.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) segments: Vec<SegmentId>,
    pub(super) directories: Vec<Vec<u8>>,
}

impl Log {
    pub(super) fn generate(seed: u64, segments: u32, runs: u64, shape: Shape) -> Self {
        let mut random = Random(seed);
        let mut log = Self::default();
        let mut alive: BTreeMap<RunNo, (AgentId, RunId)> = BTreeMap::new();
        let (mut clock, mut next_no, mut lsn) = (-500_i64, 1, 1);
        let mut id = 0;
        for _ in 0..segments {
            id += 1 + u32::try_from(random.below(2)).unwrap();
            let mut builder = DirectoryBuilder::default();
            for _ in 0..random.below(runs) {
                let known: Vec<RunNo> = alive.keys().copied().collect();
                let is_new = known.is_empty() || random.once_in(2);
                let run_no = if is_new { RunNo(next_no) } else { random.pick(&known) };
                if is_new {
                    next_no += 1 + random.below(3);
                    let agent = AgentId::new(random.pick(&AGENTS)).unwrap();
                    alive.insert(run_no, (agent, RunId::new(random.pick(&RUNS)).unwrap()));
                }
                let (agent, run) = alive[&run_no].clone();
                builder.bind(run_no, agent, run);
                clock += i64::try_from(random.below(3)).unwrap();
                let entry = builder.run_mut(run_no).unwrap();
                fill(entry, &mut random, is_new, clock, &mut lsn);
            }
            let known: Vec<RunNo> = alive.keys().copied().collect();
            for run_no in known {
                if random.once_in(9) {
                    builder.push_eviction(run_no);
                    if shape == Shape::Proper || random.once_in(2) {
                        alive.remove(&run_no);
                    }
                }
            }
            if shape == Shape::Wild && random.once_in(4) {
                continue;
            }
            log.segments.push(SegmentId(id));
            log.directories.push(builder.encode(RunNo(next_no)));
        }
        log
    }

    pub(super) fn changes(&self) -> Vec<SegmentChange> {
        let read = |(index, &segment): (usize, &SegmentId)| {
            let change = self.with(index, |view| SegmentChange::read(segment, &view));
            change.unwrap().unwrap()
        };
        self.segments.iter().enumerate().map(read).collect()
    }
}

impl Directories for Log {
    fn segments(&self) -> &[SegmentId] {
        &self.segments
    }

    fn with<R>(&self, index: usize, read: impl FnOnce(Directory<'_>) -> R) -> Option<R> {
        self.directories.get(index).map(|bytes| read(Directory::new(bytes).unwrap()))
    }
}

fn fill(entry: &mut RunEntry, random: &mut Random, is_new: bool, clock: i64, lsn: &mut u64) {
    if is_new {
        entry.created_at = Some(Timestamp(clock));
    }
    if random.once_in(3) {
        entry.start = Some(StartAt { offset: 64, at: Timestamp(clock) });
    }
    if random.once_in(3) {
        let codes = [RunStatus::Completed, RunStatus::Failed, RunStatus::Cancelled];
        *lsn += 1;
        // Now and then an older end is met behind a newer one, as compaction may have it.
        let order = if random.once_in(5) { *lsn / 2 } else { *lsn };
        entry.end = Some(EndAt {
            offset: 128,
            at: Timestamp(clock),
            status: random.pick(&codes),
            lsn: Lsn(order),
        });
        entry.late = u32::try_from(random.below(2)).unwrap();
    }
    let records = u32::try_from(random.below(4)).unwrap();
    if records > 0 {
        entry.first_seq.get_or_insert(Seq(random.below(100)));
        entry.next_seq = Seq(entry.next_seq.0.max(random.below(100)) + u64::from(records));
        entry.records += records;
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
    pub(super) fn apply(&mut self, change: &SegmentChange) {
        for (slot, entry) in (0..).zip(&change.runs) {
            self.runs.entry(entry.run_no).or_default().apply(change.segment, slot, entry);
        }
        for run_no in &change.evicted {
            self.runs.remove(run_no);
        }
    }

    fn rows(&self) -> impl Iterator<Item = &RunRow> {
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
        Ok(self.runs.get(&run_no).map(|state| state.spans.clone()).unwrap_or_default())
    }

    fn runs_page(
        &self,
        filter: RunFilter<'_>,
        before: Option<(Timestamp, RunNo)>,
        limit: usize,
    ) -> Result<Vec<(Timestamp, RunNo)>, IndexError> {
        let is_wanted = |row: &&RunRow| match filter {
            RunFilter::All => true,
            RunFilter::Agent(agent) => row.agent == agent,
        };
        let mut keys: Vec<_> = self.rows().filter(is_wanted).map(RunRow::time_key).collect();
        keys.retain(|key| before.is_none_or(|before| *key < before));
        keys.sort_by(|left, right| right.cmp(left));
        keys.truncate(limit);
        Ok(keys)
    }

    fn in_progress_page(
        &self,
        after: Option<RunNo>,
        limit: usize,
    ) -> Result<Vec<RunNo>, IndexError> {
        let running = self.rows().filter(|row| row.status == RunStatus::InProgress);
        let numbers = running.map(|row| row.run_no).filter(|run_no| Some(*run_no) > after);
        Ok(numbers.take(limit).collect())
    }

    fn agents_page(&self, after: Option<&str>, limit: usize) -> Result<Vec<AgentId>, IndexError> {
        let mut agents: Vec<_> = self.rows().map(|row| row.agent.clone()).collect();
        agents.sort();
        agents.dedup();
        agents.retain(|agent| after.is_none_or(|after| agent.as_str() > after));
        agents.truncate(limit);
        Ok(agents)
    }

    fn count_runs(&self) -> Result<u64, IndexError> {
        Ok(self.rows().count() as u64)
    }
}
