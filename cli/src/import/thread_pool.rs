//! Several files at a time: a few threads take the next file each, and what became of the files is
//! told in their order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::file::{Done, FileError, Importer};
use super::reading::Mark;
use super::safe_open::Opened;
use super::tree::Source;

/// The most files at a time: more wait for one another in the store.
const MAX_THREADS: usize = 8;

/// How often the sink is asked to show how far it is, and told what became of files.
const TICK: Duration = Duration::from_millis(100);

/// As soon as so many files are done, the sink is told of them.
const MANY: usize = 256;

/// A file to import, and where to go on in it.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    pub(crate) source: &'a Source,
    pub(crate) mark: Option<&'a Mark>,
}

/// Who is told.
pub(crate) trait Sink {
    type Error;

    /// What became of a file: in the order of the files, each once.
    fn done(&mut self, job: usize, done: Result<Done, FileError>) -> Result<(), Self::Error>;

    /// So many bytes have been read by now.
    fn progress(&mut self, bytes: u64);
}

/// What became of files, by the places of their jobs.
type AllDone = Vec<(usize, Result<Done, FileError>)>;

/// What the threads have done, until the sink takes it.
#[derive(Debug, Default)]
struct Results {
    done: AllDone,
    /// How many threads have ended.
    ended: usize,
}

/// Where the threads hand over what they did. The sink is woken rarely: to wake it takes as long
/// as to import a short file.
#[derive(Debug, Default)]
struct Tray {
    results: Mutex<Results>,
    filled: Condvar,
}

impl Tray {
    fn lock(&self) -> MutexGuard<'_, Results> {
        // A thread that panics has changed nothing halfway.
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, job: usize, done: Result<Done, FileError>) {
        let mut results = self.lock();
        results.done.push((job, done));
        let is_full = results.done.len() == MANY;
        drop(results);
        if is_full {
            self.filled.notify_one();
        }
    }

    /// Waits until there is much, a moment has passed, or `threads` have ended; then also answers
    /// that no more will come.
    fn take(&self, threads: usize) -> (AllDone, bool) {
        let is_little =
            |results: &mut Results| results.done.len() < MANY && results.ended < threads;
        let waited = self.filled.wait_timeout_while(self.lock(), TICK, is_little);
        let (mut results, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let is_last = results.ended == threads;
        (std::mem::take(&mut results.done), is_last)
    }
}

/// Notes that a thread has ended, also by a panic.
struct Ends<'t>(&'t Tray);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.lock().ended += 1;
        self.0.filled.notify_one();
    }
}

/// Imports the files. Stops at the first error of the sink.
pub(crate) fn import<T: Sink>(
    importer: &Importer<'_>,
    jobs: &[Job<'_>],
    sink: &mut T,
) -> Result<(), T::Error> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(MAX_THREADS).min(jobs.len());
    let (next, bytes) = (AtomicUsize::new(0), AtomicU64::new(0));
    let is_stopped = AtomicBool::new(false);
    let tray = Tray::default();
    let work = || {
        let _ends = Ends(&tray);
        let mut opened = Opened::default();
        let progress = |more: u64| {
            bytes.fetch_add(more, Ordering::Relaxed);
        };
        while !is_stopped.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(index) else {
                break;
            };
            tray.put(index, importer.import(job, &mut opened, &progress));
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
        let mut waiting = BTreeMap::new();
        let mut told = 0;
        let mut tell = || loop {
            let (results, is_last) = tray.take(threads);
            waiting.extend(results);
            while let Some(done) = waiting.remove(&told) {
                sink.done(told, done)?;
                told += 1;
            }
            sink.progress(bytes.load(Ordering::Relaxed));
            if is_last {
                return Ok(());
            }
        };
        let result = tell();
        is_stopped.store(true, Ordering::Relaxed);
        result
    })
}
