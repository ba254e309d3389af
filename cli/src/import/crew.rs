//! Several files at a time: a few threads take the next file each, and what became of the files is
//! told in their order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use super::file::{Done, FileError, Importer};
use super::reading::Mark;
use super::tree::Source;

/// The most files at a time: more wait for one another in the store.
const MAX_THREADS: usize = 8;

/// How often the teller is asked to show how far it is.
const TICK: Duration = Duration::from_millis(100);

/// A file to import, and where to go on in it.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    pub(crate) source: &'a Source,
    pub(crate) mark: Option<&'a Mark>,
}

/// Who is told.
pub(crate) trait Teller {
    type Error;

    /// What became of a file: in the order of the files, each once.
    fn done(&mut self, job: usize, done: Result<Done, FileError>) -> Result<(), Self::Error>;

    /// So many bytes have been read by now.
    fn progress(&mut self, bytes: u64);
}

/// Imports the files. Stops at the first error of the teller.
pub(crate) fn import<T: Teller>(
    importer: &Importer<'_>,
    jobs: &[Job<'_>],
    teller: &mut T,
) -> Result<(), T::Error> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(MAX_THREADS).min(jobs.len());
    let (next, bytes) = (AtomicUsize::new(0), AtomicU64::new(0));
    let is_stopped = AtomicBool::new(false);
    let (sender, receiver) = channel();
    let work = |sender: std::sync::mpsc::Sender<_>| {
        let progress = |more: u64| {
            bytes.fetch_add(more, Ordering::Relaxed);
        };
        while !is_stopped.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(index) else {
                break;
            };
            let done = importer.import(job.source, job.mark, &progress);
            if sender.send((index, done)).is_err() {
                break;
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            let sender = sender.clone();
            scope.spawn(|| work(sender));
        }
        drop(sender);
        let mut waiting = BTreeMap::new();
        let mut told = 0;
        let mut tell = || loop {
            match receiver.recv_timeout(TICK) {
                Ok((index, done)) => {
                    waiting.insert(index, done);
                    while let Some(done) = waiting.remove(&told) {
                        teller.done(told, done)?;
                        told += 1;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            teller.progress(bytes.load(Ordering::Relaxed));
        };
        let result = tell();
        is_stopped.store(true, Ordering::Relaxed);
        result
    })
}
