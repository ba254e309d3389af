//! The only access to the file: everything that the engine does to bytes goes through [`Storage`].
//!
//! - [`Storage`]: positioned reads and writes, sync, length, space. A real file is one
//!   implementation, memory another, and a simulated disk in tests a third; engine and index run
//!   unmodified on each.
//! - [`Region`]: a read-only view of bytes that stays valid as long as it is held.
//! - [`TailWindow`]: a range of the file into which bytes can be stored without a system call.
//!
//! What an implementation must guarantee:
//!
//! - A completed write is visible to each later read, also through a [`Region`].
//! - After [`Storage::sync`] returned `Ok`, all writes, lengths, allocations and punches that had
//!   returned before it was called survive a power loss. After `Err`, nothing is known.
//! - Without a sync, a power loss may keep or lose each 512-byte sector of a write independently.
//! - A completed store is like a completed write: reads see it, a sync covers it, and it survives
//!   the death of the process. But if the process dies during a store, each 8 bytes of it may be
//!   kept or lost independently, as in a power loss.

pub(crate) mod create;
pub(crate) mod disk;
pub(crate) mod file;
pub(crate) mod fork;
mod handle;
pub(crate) mod holes;
mod lock;
mod memory;
mod mmap_append;
pub(crate) mod mmap_read;
mod system;

use core::fmt;
use core::ops::{Deref, Range};
use std::io;
use std::sync::Arc;

pub(crate) use create::Creation;
pub use file::FileStorage;
pub(crate) use file::OpenedFile;
#[cfg(feature = "unstable-internals")]
pub use holes::FileSystem;
pub use memory::MemoryStorage;
pub(crate) use mmap_read::prefetch;

/// Zeros to write.
pub(crate) static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Positioned access to the bytes of one store.
pub trait Storage: fmt::Debug + Send + Sync + 'static {
    /// The length of the file in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// `UnexpectedEof` if the range extends behind the end of the file.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Writes all of `data` at `offset`, and grows the file if the range extends behind its end.
    ///
    /// On an error any part of `data` may have been written.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Makes everything durable that was written (`fdatasync`: the bytes and the length).
    fn sync(&self) -> io::Result<()>;

    /// Sets the length of the file; new bytes read as zero.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Reserves space for a range, so that writing it later cannot fail for lack of space. Bytes
    /// that were never written read as zero; written ones stay. Grows the file if the range extends
    /// behind its end.
    ///
    /// # Errors
    /// `StorageFull` if there is no space; the file is then unchanged.
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Returns the space of a range; it reads as zero afterwards, and the length of the file stays.
    /// An implementation that cannot do that writes zeros.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()>;

    /// The end of the data in a range: all bytes from there to the end of the range are known to be
    /// zero without reading them. Implementations that cannot tell return the end of the range.
    ///
    /// # Errors
    /// `FileTooLarge` for a range that no file can have.
    fn data_end(&self, offset: u64, len: u64) -> io::Result<u64> {
        offset.checked_add(len).ok_or_else(|| io::ErrorKind::FileTooLarge.into())
    }

    /// Whether looking at the range through a view takes space of the file system: the range has a
    /// hole, and this file system fills holes that are looked at, or ends the process (`SIGBUS`) if
    /// it is full. Reading by a call never takes space.
    ///
    /// # Errors
    /// Those of [`Storage::data_end`].
    fn looking_takes_space(&self, offset: u64, len: u64) -> io::Result<bool> {
        let _ = (offset, len);
        Ok(false)
    }

    /// A read-only view of a range within the file, or `None` if views are not supported. Later
    /// writes show through the view. The caller makes sure that nothing it looks at is rewritten or
    /// cut off meanwhile, or is a hole that looking would fill.
    fn map(&self, offset: u64, len: usize) -> io::Result<Option<Region>> {
        let _ = (offset, len);
        Ok(None)
    }

    /// Prepares views of a range within the file for reading, as far as its bytes are in memory.
    /// It only affects speed. Returns how many bytes it prepared.
    fn prefault(&self, offset: u64, len: usize) -> u64 {
        let _ = (offset, len);
        0
    }

    /// A window for stores into a range, or `None` if that is not supported. The range may extend
    /// behind the end of the file; the stores may not.
    ///
    /// The caller stores only into bytes that it has allocated and then written since the file was
    /// opened, so that their space is allocated. It lets no thread read them before the store has
    /// returned, and does not cut the file off while the window lives.
    fn map_tail(&self, offset: u64, len: usize) -> io::Result<Option<Arc<dyn TailWindow>>> {
        let _ = (offset, len);
        Ok(None)
    }

    /// Closes the file. From then on each other method may fail. Views stay readable, and the last
    /// one releases the writer lock. Returns how many views live. The caller has dropped all
    /// windows for stores.
    fn release(&self) -> usize {
        0
    }
}

/// A range of a file for stores, which need no system call.
pub trait TailWindow: fmt::Debug + Send + Sync + 'static {
    /// Stores all of `data` at `at` within the window. Both are multiples of 8. Stores of one
    /// thread reach the file in their order.
    ///
    /// # Errors
    /// `InvalidInput` if the range does not lie within the window or does not consist of whole
    /// words, `UnexpectedEof` if it does not lie within the file.
    fn store(&self, at: usize, data: &[u8]) -> io::Result<()>;

    /// Stores `head`, which consists of whole words, then `rest`, and zeros up to the end of its
    /// last word, like one store of all that.
    ///
    /// # Errors
    /// Those of [`TailWindow::store`].
    fn store_frame(&self, at: usize, head: &[u8], rest: &[u8]) -> io::Result<()> {
        let mut frame = [head, rest].concat();
        frame.resize(frame.len().next_multiple_of(8), 0);
        self.store(at, &frame)
    }

    /// A hint that the caller does other work before the next store, so the window may too: nothing
    /// before the end of the last store will be stored into again. It only affects speed.
    fn pause(&self) {}

    /// A hint that the next stores go to `start..end` of the window, which has space. It only
    /// affects speed.
    fn map_ahead(&self, start: usize, end: usize) {
        let _ = (start, end);
    }
}

/// Read-only bytes that stay valid as long as the region or a clone of it lives.
#[derive(Clone)]
pub struct Region {
    owner: Owner,
    range: Range<usize>,
}

/// The owner of a region's bytes. Windows are a variant, since traces ask so often.
#[derive(Clone)]
enum Owner {
    Window(Arc<mmap_read::Window>),
    Other(Arc<dyn AsRef<[u8]> + Send + Sync>),
}

impl Owner {
    #[inline]
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Window(window) => window.bytes(),
            Self::Other(owner) => (**owner).as_ref(),
        }
    }
}

impl Region {
    /// The bytes of `owner` within `range`; `None` if the range does not lie within them.
    pub fn new(owner: Arc<dyn AsRef<[u8]> + Send + Sync>, range: Range<usize>) -> Option<Self> {
        Self::of(Owner::Other(owner), range)
    }

    fn of(owner: Owner, range: Range<usize>) -> Option<Self> {
        owner.bytes().get(range.clone())?;
        Some(Self { owner, range })
    }

    /// A part of this region; `None` if the range does not lie within it.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        let start = self.range.start.checked_add(range.start)?;
        let end = self.range.start.checked_add(range.end)?;
        if start > end || end > self.range.end {
            return None;
        }
        Some(Self { owner: self.owner.clone(), range: start..end })
    }
}

impl Deref for Region {
    type Target = [u8];

    #[allow(clippy::inline_always, reason = "a trace asks for each record")]
    #[inline(always)]
    fn deref(&self) -> &[u8] {
        self.owner.bytes().get(self.range.clone()).unwrap_or_default()
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("len", &self.range.len()).finish_non_exhaustive()
    }
}
