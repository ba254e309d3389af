//! A simulated disk and a deterministic environment: what can happen to a store, made to happen.
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
//! - Each sector fares on its own. What it holds afterwards is what it held in the volatile image
//!   after *some* of the operations that touched it: after none (the durable content), after the
//!   first, after the first two, and so on. Sectors of later operations may be stored although
//!   those of earlier operations are not.
//! - A store through a window ([`Storage::map_tail`](runlog::storage::Storage::map_tail)) is torn
//!   between words of 8 bytes at multiples of 8, not between sectors: the device may take a sector
//!   while the process stores into it. So of an unsynced store any words may be missing, also where
//!   those of a later store into the same sector are there.
//! - A punch is a write of zeros in this respect.
//! - The length fares on its own too: it is the length after some of the operations that changed
//!   it, in their order, and it may have been stored before the bytes that it covers; those read
//!   as zero then. Where a stored sector lies behind that length and was written after it was
//!   set, the file reaches to the end of what was written there.
//! - Cutting the file off takes effect with the length: when the shorter length was stored, the
//!   bytes behind it are gone, and what an old write left there does not come back.
//!
//! **Errors.** Any operation can be made to fail ([`SimDisk::fail_op`], [`SimDisk::fail_next`],
//! [`SimDisk::fail_from`]). A failed write may have stored a part of its bytes ([`Fault::short`]).
//! Other failed operations did nothing, but for the sync:
//!
//! **A failed sync.** Of the unsynced sectors each may have become durable or not, and which is
//! decided at that moment. Those that did not stay visible to reads, but the system takes them for
//! clean: *no later sync makes them durable*, unless they are written again. This is what file
//! systems do, and why a program must not go on after a failed sync as if the next one could make
//! up for it.
//!
//! **Space.** [`SimDisk::set_capacity`] bounds the space in blocks of 4096 bytes. Writes and
//! allocations take the blocks that the file does not have yet; punches and shorter lengths give
//! whole blocks back; a longer length alone takes none. A store into a block that has no space
//! would end a real process with SIGBUS, so it panics. An allocation that does not fit changes
//! nothing; a write that does not fit stores the part that fits. Both report `StorageFull`. All
//! of a given image counts as taken.
//!
//! **Not modelled:** bytes that rot or land elsewhere (change the image by hand for that), sectors
//! that tear within, and syncs that report success without being one.
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

/// The bytes of a store that are there whole or not at all.
pub const WORD_LEN: usize = 8;
