//! The storage of the index: a file within the file, made of INDEX extents, for redb.
//!
//! Ordering, and what breaks otherwise:
//!
//! 1. A map that grew is written *before* redb's sync, and made durable by that sync (O5).
//!    Otherwise, after a power cut, redb's newest pages would lie outside of its file.
//! 2. Freed extents are recorded in the same batch as the smaller length, and reused only once it
//!    is synced. Otherwise a power cut would bring the larger map back over other bytes.
//! 3. Bytes that a growing length uncovers are zeroed *before* the length is published.
//!
//! A failed write of a page poisons only the index. After [`RedbBackend::detach`] each access
//! fails, so that a reader of a dropped index never sees bytes of an extent's next owner.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use redb::StorageBackend;

use crate::engine::space::Space;
use crate::engine::space::allocator::Allocator;
use crate::error::Error;
use crate::format::map::manifest::Change;
use crate::types::ExtentNo;

/// The storage of the index.
#[derive(Debug, Clone)]
pub(crate) struct RedbBackend(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    space: Arc<Space>,
    state: RwLock<State>,
    reads: AtomicU64,
}

#[derive(Debug)]
struct State {
    map: Vec<ExtentNo>,
    len: u64,
    /// The number of extents and the length that the manifest knows.
    published: (usize, u64),
    detached: bool,
}

impl RedbBackend {
    /// The index as recorded in the manifest.
    pub(crate) fn new(space: &Arc<Space>, map: Vec<ExtentNo>, len: u64) -> Self {
        let published = (map.len(), len);
        let state = RwLock::new(State { map, len, published, detached: false });
        let reads = AtomicU64::new(0);
        Self(Arc::new(Inner { space: Arc::clone(space), state, reads }))
    }

    /// How many pages redb has read from the file.
    pub(crate) fn reads(&self) -> u64 {
        self.0.reads.load(Ordering::Relaxed)
    }

    /// Whether the index was dropped, so that every access fails.
    pub(crate) fn is_detached(&self) -> bool {
        self.0.state.read().detached
    }

    /// Ends all access. Returns once no access is running.
    pub(crate) fn detach(&self) {
        let mut state = self.0.state.write();
        state.detached = true;
        let published = state.published.0;
        let mut allocator = self.0.space.allocator.lock();
        // Extents that were chosen but never published are given back.
        for extent in state.map.drain(..).skip(published) {
            allocator.let_go(extent);
        }
    }

    /// Calls `act` for each part of a range: its offset in the file, its range in the buffer.
    fn pieces(
        &self,
        state: &State,
        offset: u64,
        len: usize,
        mut act: impl FnMut(u64, core::ops::Range<usize>) -> io::Result<()>,
    ) -> io::Result<()> {
        state.check()?;
        let end = offset.checked_add(len as u64).filter(|&end| end <= state.len);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let size = self.0.space.setup.extent_size.bytes();
        let mut at = offset;
        while at < end {
            let slot = usize::try_from(at / size).unwrap_or(usize::MAX);
            let extent = *state.map.get(slot).ok_or(io::ErrorKind::UnexpectedEof)?;
            let within = at % size;
            let part = (size - within).min(end - at);
            let start = usize::try_from(at - offset).unwrap_or(usize::MAX);
            let stop = start + usize::try_from(part).unwrap_or(usize::MAX);
            act(self.0.space.setup.extent_size.offset_of(extent) + within, start..stop)?;
            at += part;
        }
        Ok(())
    }

    fn grow(&self, state: &mut State, len: u64) -> io::Result<()> {
        let size = self.0.space.setup.extent_size.bytes();
        // The rest of the last extent may contain data of an earlier, longer index.
        let covered = state.map.len() as u64 * size;
        let uncovered = len.min(covered);
        if uncovered > state.len
            && let Some(&last) = state.map.last()
        {
            let within = state.len - (state.map.len() as u64 - 1) * size;
            let at = self.0.space.setup.extent_size.offset_of(last) + within;
            self.zero(at, uncovered - state.len)?;
        }
        while (state.map.len() as u64) * size < len {
            let mut allocator = self.0.space.allocator.lock();
            let extent = allocator.claim().map_err(plain)?;
            if let Err(error) = self.reach(self.0.space.setup.extent_size.end_of(extent)) {
                allocator.let_go(extent);
                return Err(error);
            }
            state.map.push(extent);
        }
        state.len = len;
        Ok(())
    }

    /// Makes the range read as zero and lie within the file.
    fn zero(&self, at: u64, len: u64) -> io::Result<()> {
        let file_len = self.0.space.disk.len().map_err(plain)?;
        let there = file_len.saturating_sub(at).min(len);
        if there > 0 {
            self.0.space.disk.punch(at, there).map_err(plain)?;
        }
        self.reach(at + len)
    }

    /// Makes the file at least as long. Space is taken when pages are written: redb grows by
    /// doubling, far ahead of its use.
    fn reach(&self, end: u64) -> io::Result<()> {
        if self.0.space.disk.len().map_err(plain)? < end {
            self.0.space.disk.write_unguarded(end - 1, &[0]).map_err(plain)?;
        }
        Ok(())
    }
}

impl State {
    /// An error once the index was dropped.
    fn check(&self) -> io::Result<()> {
        if self.detached { Err(io::Error::other("the index was dropped")) } else { Ok(()) }
    }

    /// Writes the changes of the map and the length that the manifest does not know.
    fn publish(&mut self, allocator: &mut Allocator) -> Result<(), Error> {
        if self.published == (self.map.len(), self.len) {
            return Ok(());
        }
        let mut changes = Vec::new();
        for (slot, &extent) in (0..).zip(&self.map).skip(self.published.0) {
            changes.push(Change::Map { extent, slot });
        }
        changes.push(Change::IndexLen { len: self.len });
        allocator.commit(&changes)?;
        self.published = (self.map.len(), self.len);
        Ok(())
    }
}

/// redb expects plain I/O errors.
fn plain(error: Error) -> io::Error {
    match error {
        Error::Io { source, .. } => io::Error::new(source.kind(), source.to_string()),
        Error::DiskFull { .. } => io::ErrorKind::StorageFull.into(),
        other => io::Error::other(other.to_string()),
    }
}

impl StorageBackend for RedbBackend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.state.read().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.reads.fetch_add(1, Ordering::Relaxed);
        let state = self.0.state.read();
        let len = out.len();
        self.pieces(&state, offset, len, |at, range| {
            let part = out.get_mut(range).ok_or(io::ErrorKind::UnexpectedEof)?;
            // A page is copied from a view if possible: redb never reads what it is writing.
            match self.0.space.disk.map(at, part.len(), part.len()) {
                Ok(Some(view)) if view.len() == part.len() => part.copy_from_slice(&view),
                _ => self.0.space.disk.read(at, part).map_err(plain)?,
            }
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.0.state.write();
        state.check()?;
        if len >= state.len {
            return self.grow(&mut state, len);
        }
        let size = self.0.space.setup.extent_size.bytes();
        let keep = usize::try_from(len.div_ceil(size)).unwrap_or(usize::MAX);
        let mut allocator = self.0.space.allocator.lock();
        let published = state.published.0;
        let behind = state.map.get(keep..published).unwrap_or_default().iter().rev();
        let mut freed: Vec<_> = behind.map(|&extent| Change::Free { extent }).collect();
        if !freed.is_empty() {
            freed.push(Change::IndexLen { len });
            // Synced at once, so that the extents can be reused.
            allocator.commit_durably(&freed).map_err(plain)?;
            state.published = (keep, len);
        }
        // Nothing is shorter before the manifest says so.
        for &extent in state.map.iter().skip(keep.max(published)) {
            allocator.let_go(extent);
        }
        state.map.truncate(keep);
        state.len = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let committed = {
            let mut state = self.0.state.write();
            state.check()?;
            let mut allocator = self.0.space.allocator.lock();
            state.publish(&mut allocator).map_err(plain)?;
            allocator.manifest.committed()
        };
        // Without the locks, so that no reader of a page waits for the disk.
        self.0.space.disk.sync().map_err(plain)?;
        self.0.space.allocator.lock().manifest.synced_up_to(committed);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let state = self.0.state.read();
        self.pieces(&state, offset, data.len(), |at, range| {
            let part = data.get(range).ok_or(io::ErrorKind::UnexpectedEof)?;
            self.0.space.disk.write_unguarded(at, part).map_err(plain)
        })
    }
}
