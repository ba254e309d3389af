//! A simulated disk and a deterministic environment: they make everything happen to a store that
//! can happen.
//!
//! [`SimDisk`] implements `runlog::storage::Storage` in memory. It knows what a power loss, a
//! killed process, a full disk and a failing device do to a file, and everything it does follows
//! from a seed. The engine runs on it unmodified.
//!
//! # The fault model
//!
//! **Operations.** Each write, store, change of length, allocation, punch and sync is an operation
//! with a number: 0, 1, 2, ... in the order in which they were done, failed ones included.
//! Boundary `k` is the moment at which the first `k` operations are done. Reads have no number.
//! Operations are atomic towards each other: of two threads one comes first.
//!
//! **Images.** The *volatile* image is what reads see: all operations. The *durable* image is what
//! is certain to survive: all operations up to the last sync that succeeded. The operations behind
//! that are *unsynced*.
//!
//! **Process kill** at boundary `k`: the volatile image survives, and of the write in flight
//! (operation `k`) the first `n` bytes, for any `n`. Of a store in flight any of its words may be
//! there and others not; those before it are there as a whole. See [`CrashImages::killed`] and
//! [`CrashImages::killed_within_into`].
//!
//! **Power loss** at boundary `k`: the durable image survives, and of the unsynced operations
//! whatever the device happened to store. See [`CrashImages::image`].
//!
//! - A sector is 512 bytes at a multiple of 512. It is stored whole or not at all: writes tear
//!   between sectors, never within one.
//! - Each sector is stored or lost independently. Afterwards it holds what it held in the volatile
//!   image after *some* of the operations that touched it: after none (the durable content), after
//!   the first, after the first two, and so on. Sectors of later operations may be stored although
//!   those of earlier operations are not.
//! - A store through a window ([`Storage::map_tail`](runlog::storage::Storage::map_tail)) is torn
//!   between words of 8 bytes at multiples of 8, not between sectors: the device may take a sector
//!   while the process stores into it. So any words of an unsynced store may be missing, even if
//!   those of a later store into the same sector are there.
//! - A punch counts as a write of zeros.
//! - The length is independent too: it is the length after some of the operations that changed it,
//!   in their order, and it may have been stored before the bytes that it covers, which then read
//!   as zero. If a stored sector lies behind that length and was written after it was set, the file
//!   extends to the end of that write.
//! - Cutting the file off takes effect with the length: once the shorter length is stored, the
//!   bytes behind it are gone, and contents of an older write there do not come back.
//!
//! **Errors.** Any operation can be made to fail ([`SimDisk::fail_op`], [`SimDisk::fail_next`],
//! [`SimDisk::fail_from`]). A failed write may have stored a part of its bytes ([`Fault::short`]).
//! Other failed operations did nothing, but for the sync:
//!
//! **A failed sync.** Each of the unsynced sectors may have become durable or not, which is decided
//! at that moment. The others stay visible to reads, but the system takes them for clean: *no later
//! sync makes them durable*, unless they are written again. File systems behave in this way, so a
//! program must not continue after a failed sync as if the next one could make up for it.
//!
//! **Space.** [`SimDisk::set_capacity`] bounds the space in blocks of 4096 bytes. Writes and
//! allocations take the blocks that the file does not have yet; punches and shorter lengths give
//! whole blocks back; a longer length alone takes none. A store into a block that has no space
//! would end a real process with SIGBUS, so it panics. An allocation that does not fit changes
//! nothing; a write that does not fit stores the part that fits. Both report `StorageFull`. All
//! of a given image counts as taken.
//!
//! **Not modelled:** bytes that rot or land elsewhere (change the image by hand for that), sectors
//! that tear within, and syncs that report success without doing anything.
//!
//! # Overview
//!
//! - [`SimDisk`], [`Fault`], [`OpKind`], [`Counts`]: the disk and what is done to it.
//! - [`Recording`], [`Op`]: what was done, operation by operation.
//! - [`CrashImages`], [`Survivors`]: the images that crashes of a recording leave.
//! - [`SimClock`], [`SimEntropy`], [`SplitMix64`]: time and randomness.
//!
//! # Example
//!
//! ```
//! use runlog::storage::Storage;
//! use runlog_sim::{CrashImages, SimDisk, Survivors};
//!
//! let disk = SimDisk::recording();
//! disk.write_at(0, &[1; 1024])?;
//! disk.sync()?;
//! disk.write_at(0, &[2; 1024])?;
//!
//! let recording = disk.take_recording();
//! let mut crashes = CrashImages::new(&recording);
//! crashes.seek(3);
//! let image = crashes.image(Survivors::Half, 42);
//! assert!(image.chunks(512).all(|sector| sector == [1; 512] || sector == [2; 512]));
//! # Ok::<(), std::io::Error>(())
//! ```

mod crash;
mod disk;
mod durable;
mod env;
mod fault;
mod random;
mod record;
pub mod settings;
mod space;

pub use crash::CrashImages;
pub use disk::{Counts, SimDisk};
pub use durable::Survivors;
pub use env::{SimClock, SimEntropy};
pub use fault::Fault;
pub use random::SplitMix64;
pub use record::{Op, OpKind, Recording};

/// The bytes that a device stores whole or not at all.
pub const SECTOR_LEN: usize = 512;

/// The bytes of a store that are there as a whole or not at all.
pub const WORD_LEN: usize = 8;
