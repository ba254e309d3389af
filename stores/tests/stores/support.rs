//! What the tests of several stores share: a store that does not live long, all the runtime that is
//! needed, and crashes.
//!
//! A crash is a pair: a boundary between two operations of the disk, and one of 8 kinds, which are
//! the 7 choices of what a power cut leaves, and a kill within the next operation.
//! `RUNLOG_SCALE=700` takes every pair; a plain `cargo test` takes one in 7, which is each boundary
//! at least once, and each kind every 7 boundaries.

pub(crate) mod haunted;

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread::{self, Thread};

use runlog::storage::MemoryStorage;
use runlog::{Options, RunLog};
use runlog_sim::{CrashImages, Recording, SimDisk, SplitMix64, Survivors, settings};

/// The options of a store that does everything by itself.
pub(crate) fn options() -> Options {
    Options::new().extent_size(64 << 10).max_record_len(2 << 20).background(false)
}

pub(crate) fn in_memory() -> RunLog {
    options().create_storage(Arc::new(MemoryStorage::new())).unwrap()
}

/// Does something with a store that is new, reopened before each look, or killed before each look.
pub(crate) fn in_each_life(test: impl Fn(&dyn Fn() -> RunLog)) {
    in_each_life_of(&options(), test);
}

/// The same, with these options.
pub(crate) fn in_each_life_of(options: &Options, test: impl Fn(&dyn Fn() -> RunLog)) {
    for closes in [None, Some(true), Some(false)] {
        let storage = Arc::new(MemoryStorage::new());
        let log = options.create_storage(storage.clone()).unwrap();
        let current = Mutex::new((storage, log));
        test(&|| {
            let mut current = current.lock().unwrap();
            if closes == Some(true) {
                current.1.clone().close().unwrap();
            }
            if closes.is_some() {
                // What a killed process leaves is what it wrote.
                current.0 = Arc::new(MemoryStorage::from_bytes(current.0.to_bytes()));
                current.1 = options.open_storage(current.0.clone()).unwrap();
            }
            current.1.clone()
        });
    }
}

struct Unpark(Thread);

impl std::task::Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// All the runtime that is needed.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// A store whose disk records each operation, and which does none by itself.
pub(crate) fn recording() -> (SimDisk, RunLog) {
    let disk = SimDisk::recording();
    let log = options().sync_interval(None).create_storage(Arc::new(disk.clone())).unwrap();
    (disk, log)
}

/// Opens what a crash leaves.
pub(crate) fn open_after(image: Vec<u8>) -> (SimDisk, RunLog) {
    let disk = SimDisk::from_image(image);
    let log = options().open_storage(Arc::new(disk.clone())).unwrap();
    (disk, log)
}

/// What a crash does to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Crash {
    PowerCut(Survivors),
    /// Within the next operation.
    Kill,
}

impl Crash {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Survivors::ALL.into_iter().map(Self::PowerCut).chain([Self::Kill])
    }

    fn image(self, images: &mut CrashImages<'_>) -> Vec<u8> {
        let seed = images.boundary() as u64;
        match self {
            Self::PowerCut(survivors) => images.image(survivors, seed),
            Self::Kill => {
                let mut image = Vec::new();
                images.killed_within_into(&mut SplitMix64::new(seed), &mut image);
                image
            }
        }
    }
}

/// One in how many crashes is taken.
fn stride() -> usize {
    // An even stride never comes to some of the 8 kinds of crashes.
    usize::try_from(settings::stride(7, 7) | 1).unwrap()
}

/// Looks at what crashes from the boundary `first` on leave; `look` gets the store, its disk, the
/// operations that were done, and what to say of the crash.
pub(crate) fn in_crashes(
    recording: &Recording,
    first: usize,
    look: impl Fn(&RunLog, &SimDisk, usize, &str),
) {
    let mut images = CrashImages::new(recording);
    let pairs = (first..=recording.ops.len())
        .flat_map(|boundary| Crash::all().map(move |crash| (boundary, crash)));
    for (boundary, crash) in pairs.step_by(stride()) {
        images.seek(boundary);
        let (disk, log) = open_after(crash.image(&mut images));
        look(&log, &disk, boundary, &format!("boundary {boundary}, {crash:?}"));
    }
}
