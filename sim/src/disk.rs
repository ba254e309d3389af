//! The simulated disk itself: one file in memory, and everything that can go wrong with it.

use core::fmt;
use core::ops::Range;
use std::io;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use runlog::storage::{Storage, TailWindow};

use crate::WORD_LEN;
use crate::crash::CrashImages;
use crate::durable::{Durable, Survivors};
use crate::fault::{Fault, Plan};
use crate::record::{Op, OpKind, Recording, write_into};
use crate::space::Space;

/// The longest file. A store that needs more has a bug, and memory is finite.
const MAX_LEN: u64 = 1 << 33;

/// A simulated disk with one file. Clones are handles of the same disk, so a test can keep one and
/// give another to the engine.
#[derive(Clone)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

/// How often a disk was called, failed calls included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Stores through windows.
    pub stores: u64,
    /// Syncs.
    pub syncs: u64,
    /// Changes of length.
    pub set_lens: u64,
    /// Allocations.
    pub allocations: u64,
    /// Punches.
    pub punches: u64,
}

impl Counts {
    /// The calls of a kind.
    #[must_use]
    pub fn of(&self, kind: OpKind) -> u64 {
        match kind {
            OpKind::Read => self.reads,
            OpKind::Write => self.writes,
            OpKind::Store => self.stores,
            OpKind::Sync => self.syncs,
            OpKind::SetLen => self.set_lens,
            OpKind::Allocate => self.allocations,
            OpKind::Punch => self.punches,
        }
    }
}

struct State {
    image: Vec<u8>,
    history: History,
    op_count: usize,
    plan: Plan,
    space: Space,
    /// The operation before which another program takes all remaining space.
    full_from: Option<usize>,
    counts: Counts,
}

/// What is tracked besides the volatile image.
enum History {
    Nothing,
    Durable(Durable),
    Recording(Recording),
}

impl SimDisk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self::from_image(Vec::new())
    }

    /// A disk with this content, all of it durable.
    #[must_use]
    pub fn from_image(image: Vec<u8>) -> Self {
        let durable = Durable::new(image.clone());
        Self::with_history(image, History::Durable(durable))
    }

    /// An empty disk that records each operation.
    #[must_use]
    pub fn recording() -> Self {
        Self::recording_from(Vec::new())
    }

    /// A disk with this content, all of it durable, that records each operation.
    #[must_use]
    pub fn recording_from(image: Vec<u8>) -> Self {
        let recording = Recording { initial: image.clone(), ops: Vec::new() };
        Self::with_history(image, History::Recording(recording))
    }

    /// A disk with this content that keeps only its volatile image: the cheapest one, for the last
    /// of several crashes in a row.
    #[must_use]
    pub fn untracked(image: Vec<u8>) -> Self {
        Self::with_history(image, History::Nothing)
    }

    fn with_history(image: Vec<u8>, history: History) -> Self {
        let state = State {
            space: Space::full(image.len()),
            image,
            history,
            op_count: 0,
            plan: Plan::default(),
            full_from: None,
            counts: Counts::default(),
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// A copy of the volatile image.
    #[must_use]
    pub fn image(&self) -> Vec<u8> {
        self.state.lock().image.clone()
    }

    /// Takes the volatile image out without a copy; the disk is empty and untracked afterwards.
    #[must_use]
    pub fn take_image(&self) -> Vec<u8> {
        let mut state = self.state.lock();
        state.history = History::Nothing;
        state.space.give_back(0, usize::MAX);
        core::mem::take(&mut state.image)
    }

    /// A copy of the durable image; on an untracked disk, of the volatile one.
    #[must_use]
    pub fn durable(&self) -> Vec<u8> {
        self.crash(Survivors::Nothing, 0)
    }

    /// The image that a power loss leaves now; on an untracked disk the volatile one. A recording
    /// disk replays its recording for this.
    #[must_use]
    pub fn crash(&self, survivors: Survivors, seed: u64) -> Vec<u8> {
        let mut out = Vec::new();
        let mut state = self.state.lock();
        match &mut state.history {
            History::Nothing => out.clone_from(&state.image),
            History::Durable(durable) => durable.image_into(survivors, seed, &mut out),
            History::Recording(recording) => {
                let mut crashes = CrashImages::new(recording);
                crashes.seek(usize::MAX);
                crashes.image_into(survivors, seed, &mut out);
            }
        }
        out
    }

    /// Loses power: afterwards the disk holds the result of [`SimDisk::crash`], all of it durable.
    /// The numbers of operations continue, and pending faults stay; a recording starts again.
    pub fn lose_power(&self, survivors: Survivors, seed: u64) {
        let image = self.crash(survivors, seed);
        let mut state = self.state.lock();
        state.history = match &state.history {
            History::Nothing => History::Nothing,
            History::Durable(_) => History::Durable(Durable::new(image.clone())),
            History::Recording(_) => {
                History::Recording(Recording { initial: image.clone(), ops: Vec::new() })
            }
        };
        state.space.give_back(image.len(), usize::MAX);
        state.image = image;
    }

    /// The cache drops clean pages: what a failed sync dropped reads as it is on the device.
    pub fn evict(&self) {
        let State { history, image, .. } = &mut *self.state.lock();
        if let History::Durable(durable) = history {
            durable.evict_into(image);
        }
    }

    /// Ends the recording and returns it; an empty one if there was none. The disk continues
    /// untracked.
    #[must_use]
    pub fn take_recording(&self) -> Recording {
        let mut state = self.state.lock();
        match core::mem::replace(&mut state.history, History::Nothing) {
            History::Recording(recording) => recording,
            _ => Recording::default(),
        }
    }

    /// How many operations were done, which is the number of the next one.
    #[must_use]
    pub fn op_count(&self) -> usize {
        self.state.lock().op_count
    }

    /// How many calls there were since the disk was made, or since the counts were taken.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.state.lock().counts
    }

    /// How many reads there were since the disk was made, or since the counts were taken.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.counts().reads
    }

    /// Returns the counts and resets them to zero.
    #[must_use]
    pub fn take_counts(&self) -> Counts {
        core::mem::take(&mut self.state.lock().counts)
    }

    /// Makes the operation with this number fail, whatever it is.
    pub fn fail_op(&self, number: usize, fault: impl Into<Fault>) {
        self.state.lock().plan.fail_op(number, fault.into());
    }

    /// Makes the next call of this kind fail; if that one fails already, the one after it.
    pub fn fail_next(&self, kind: OpKind, fault: impl Into<Fault>) {
        self.state.lock().plan.fail_next(kind, fault.into());
    }

    /// Makes one call of this kind fail after `passed` other calls of the kind.
    pub fn fail_nth(&self, kind: OpKind, passed: u64, fault: impl Into<Fault>) {
        self.state.lock().plan.fail_nth(kind, passed, fault.into());
    }

    /// Makes the operation with this number and all later ones fail.
    pub fn fail_from(&self, number: usize, fault: impl Into<Fault>) {
        self.state.lock().plan.fail_from(number, fault.into());
    }

    /// Makes the operation fail that follows a write that begins with these bytes, after `passed`
    /// other such writes: the engine's next write after a structure of this kind.
    pub fn fail_behind(&self, bytes: &'static [u8], passed: u64, fault: impl Into<Fault>) {
        self.state.lock().plan.fail_behind(bytes, passed, fault.into());
    }

    /// Makes each read fail that touches this range.
    pub fn fail_reads_in(&self, range: Range<u64>, error: io::ErrorKind) {
        self.state.lock().plan.fail_reads_in(range, error);
    }

    /// Removes all pending faults. The capacity stays.
    pub fn clear_faults(&self) {
        self.state.lock().plan = Plan::default();
    }

    /// Whether all pending faults are suspended: meanwhile calls count neither for them nor for
    /// [`SimDisk::counts`]. For tests that inspect the store in between.
    pub fn set_faults_aside(&self, aside: bool) {
        self.state.lock().plan.aside = aside;
    }

    /// Limits the space of the file, in bytes, rounded down to blocks of 4096. A limit below the
    /// present space only refuses more.
    pub fn set_capacity(&self, bytes: u64) {
        self.state.lock().space.set_limit(bytes);
    }

    /// Before the operation with this number another program takes all remaining space: from then
    /// on the file has only the space that it gives back itself.
    pub fn fill_from(&self, number: usize) {
        self.state.lock().full_from = Some(number);
    }

    /// The space that the file has, in bytes.
    #[must_use]
    pub fn allocated(&self) -> u64 {
        self.state.lock().space.taken()
    }

    /// Begins the next operation: counts it, and fails it if a fault is due. A fault of a write may
    /// require some work first, so it is returned instead.
    fn begin(&self, kind: OpKind) -> (MutexGuard<'_, State>, Option<Fault>) {
        let mut state = self.state.lock();
        let number = state.op_count;
        state.op_count += 1;
        if state.full_from.take_if(|from| *from <= number).is_some() {
            state.space.fill();
        }
        match kind {
            _ if state.plan.aside => {}
            OpKind::Write => state.counts.writes += 1,
            OpKind::Store => state.counts.stores += 1,
            OpKind::Sync => state.counts.syncs += 1,
            OpKind::SetLen => state.counts.set_lens += 1,
            OpKind::Allocate => state.counts.allocations += 1,
            OpKind::Punch => state.counts.punches += 1,
            OpKind::Read => {}
        }
        let fault = state.plan.for_op(kind, number);
        (state, fault)
    }
}

impl State {
    /// Does an operation and records it.
    fn commit(&mut self, op: Op) {
        op.apply(&mut self.image);
        self.remember(op);
    }

    fn remember(&mut self, op: Op) {
        match &mut self.history {
            History::Nothing => {}
            History::Durable(durable) => durable.push(&op),
            History::Recording(recording) => recording.ops.push(op),
        }
    }

    fn refuse(&mut self, error: io::ErrorKind) -> io::Result<()> {
        self.remember(Op::Refused);
        Err(error.into())
    }

    /// Writes the part that fits, and records that.
    fn store(&mut self, offset: usize, data: &[u8]) {
        write_into(&mut self.image, offset, data);
        if data.is_empty() {
            self.remember(Op::Refused);
        } else if !matches!(self.history, History::Nothing) {
            self.remember(Op::Write { offset, data: data.into() });
        }
    }
}

/// The range as places in memory.
fn range_of(offset: u64, len: u64) -> io::Result<Range<usize>> {
    let end = offset.checked_add(len).filter(|end| *end <= MAX_LEN);
    let end = end.ok_or(io::ErrorKind::FileTooLarge)?;
    let index = |at: u64| usize::try_from(at).map_err(|_| io::ErrorKind::FileTooLarge);
    Ok(index(offset)?..index(end)?)
}

impl Storage for SimDisk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state.lock().image.len() as u64)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut state = self.state.lock();
        if !state.plan.aside {
            state.counts.reads += 1;
            state.counts.read_bytes += buf.len() as u64;
        }
        let wanted = offset..offset.saturating_add(buf.len() as u64);
        if let Some(error) = state.plan.for_read(wanted) {
            return Err(error.into());
        }
        let found =
            range_of(offset, buf.len() as u64).ok().and_then(|range| state.image.get(range));
        buf.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let (mut state, fault) = self.begin(OpKind::Write);
        let Ok(range) = range_of(offset, data.len() as u64) else {
            return state.refuse(io::ErrorKind::FileTooLarge);
        };
        let wanted = fault.map_or(data.len(), |fault| fault.stored.min(data.len()));
        let end = state.space.take(range.start, range.start + wanted);
        let stored = &data[..end - range.start];
        state.counts.written_bytes += stored.len() as u64;
        state.store(range.start, stored);
        match fault {
            Some(fault) => Err(fault.error.into()),
            None if stored.len() < data.len() => Err(io::ErrorKind::StorageFull.into()),
            None => {
                let number = state.op_count - 1;
                state.plan.wrote(number, data);
                Ok(())
            }
        }
    }

    fn sync(&self) -> io::Result<()> {
        let (mut state, fault) = self.begin(OpKind::Sync);
        if let Some(fault) = fault {
            state.remember(Op::FailedSync);
            return Err(fault.error.into());
        }
        state.remember(Op::Sync);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let (mut state, fault) = self.begin(OpKind::SetLen);
        let range = range_of(0, len);
        let (None, Ok(range)) = (fault, range) else {
            return state.refuse(fault.map_or(io::ErrorKind::FileTooLarge, |fault| fault.error));
        };
        state.space.give_back(range.end, usize::MAX);
        state.commit(Op::SetLen { len: range.end });
        Ok(())
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        let (mut state, fault) = self.begin(OpKind::Allocate);
        let range = range_of(offset, len);
        let (None, Ok(range)) = (fault, range) else {
            return state.refuse(fault.map_or(io::ErrorKind::FileTooLarge, |fault| fault.error));
        };
        if range.is_empty() {
            state.remember(Op::Refused);
            return Ok(());
        }
        if !state.space.take_all(range.start, range.end) {
            return state.refuse(io::ErrorKind::StorageFull);
        }
        state.commit(Op::Allocate { end: range.end });
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let (mut state, fault) = self.begin(OpKind::Punch);
        let range = range_of(offset, len);
        let (None, Ok(range)) = (fault, range) else {
            return state.refuse(fault.map_or(io::ErrorKind::FileTooLarge, |fault| fault.error));
        };
        state.space.give_back(range.start, range.end);
        state.commit(Op::Punch { offset: range.start, end: range.end });
        Ok(())
    }

    fn map_tail(&self, offset: u64, len: usize) -> io::Result<Option<Arc<dyn TailWindow>>> {
        let range = range_of(offset, len as u64)?;
        Ok(Some(Arc::new(Window { disk: self.clone(), range })))
    }
}

/// A part of the file for stores.
#[derive(Debug)]
struct Window {
    disk: SimDisk,
    range: Range<usize>,
}

impl TailWindow for Window {
    fn store(&self, at: usize, data: &[u8]) -> io::Result<()> {
        let (mut state, fault) = self.disk.begin(OpKind::Store);
        let offset = self.range.start + at;
        let end = offset + data.len();
        if end > self.range.end
            || !offset.is_multiple_of(WORD_LEN)
            || !data.len().is_multiple_of(WORD_LEN)
        {
            return state.refuse(io::ErrorKind::InvalidInput);
        }
        // A real process would die: a store without space or behind the end causes a SIGBUS.
        let there = end <= state.image.len() && state.space.has(offset, end);
        assert!(there, "a store into {offset:#x}..{end:#x}, where the file has no space");
        let stored = fault.map_or(data.len(), |fault| fault.stored.min(data.len()));
        let stored = &data[..stored / WORD_LEN * WORD_LEN];
        write_into(&mut state.image, offset, stored);
        if stored.is_empty() {
            state.remember(Op::Refused);
        } else if !matches!(state.history, History::Nothing) {
            state.remember(Op::Store { offset, data: stored.into() });
        }
        fault.map_or(Ok(()), |fault| Err(fault.error.into()))
    }
}

impl Default for SimDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("SimDisk")
            .field("len", &state.image.len())
            .field("op_count", &state.op_count)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
