//! Scans of the files: one for an import, and one after the other where files are followed. Each
//! looks only at the files that changed since the last one.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

use super::file::{Done, FileError, How, Importer};
use super::reading::Mark;
use super::report::Reporter;
use super::run_identity::Names;
use super::thread_pool::{self, Job, Sink};
use super::tree::{Found, Source};

/// What is known of the files from the scans before. Files that are gone are forgotten: so what is
/// kept is bounded by the files that are there.
#[derive(Debug, Default)]
pub(crate) struct ScanLoop {
    names: Names,
    files: HashMap<PathBuf, Watched>,
    /// What was passed over and told of, and the last round that found it.
    passed: HashMap<PathBuf, u64>,
    /// The number of this round, from 1.
    round: u64,
}

#[derive(Debug)]
struct Watched {
    source: Source,
    /// The last round that found it.
    found: u64,
    /// What the file was when it was looked at last.
    stamp: Option<Stamp>,
    mark: Option<Mark>,
    /// What was told of it last, if it is no run.
    told: Option<String>,
}

/// What changes when a file is written to.
type Stamp = (u64, i64, i64, u64);

/// What a file is now, if it is there.
fn stamp(path: &Path) -> Option<Stamp> {
    let file = fs::metadata(path).ok()?;
    Some((file.len(), file.mtime(), file.mtime_nsec(), file.ino()))
}

/// Why a round stops.
#[derive(Debug)]
pub(crate) struct Stop(pub(crate) Failure);

impl<E: Into<Failure>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl ScanLoop {
    /// Imports the files that changed; answers whether anything was written.
    pub(crate) fn run(
        &mut self,
        importer: &Importer<'_>,
        found: Found,
        reporter: &mut Reporter<'_>,
    ) -> Result<bool, Failure> {
        self.round += 1;
        let is_later = self.round > 1;
        if !is_later {
            reporter.sidecars(&found.sidecars);
        }
        for skipped in &found.skipped {
            if self.passed.insert(skipped.path.clone(), self.round).is_none() {
                reporter.skipped(&skipped.path, skipped.why)?;
            }
        }
        for path in &found.missing {
            if self.passed.insert(path.clone(), self.round).is_none() {
                reporter.missing(path)?;
            }
        }
        for (path, error) in &found.errors {
            if self.passed.insert(path.clone(), self.round).is_none() {
                reporter.refused(path, error)?;
            }
        }
        let changed = self.changed(importer, found.sources, &found.errors)?;
        let known: Vec<(&PathBuf, &Watched)> =
            changed.iter().filter_map(|(path, _)| self.files.get_key_value(path)).collect();
        let jobs: Vec<Job<'_>> = known
            .iter()
            .map(|(_, watched)| Job { source: &watched.source, mark: watched.mark.as_ref() })
            .collect();
        let looks = known.iter().map(|_| Look::default()).collect();
        reporter.expects(jobs.len());
        let mut sink = ScanSink { known: &known, looks, reporter, is_later, wrote: false };
        let told = thread_pool::import(importer, &jobs, &mut sink);
        let (looks, wrote) = (sink.looks, sink.wrote);
        told.map_err(|Stop(failure)| failure)?;
        for ((path, stamp), look) in changed.into_iter().zip(looks) {
            if let Some(watched) = self.files.get_mut(&path) {
                (watched.stamp, watched.mark) = (stamp, look.mark);
                watched.source.is_new = false;
                watched.told = look.told;
            }
        }
        if importer.follows {
            reporter.report_sidecars()?;
        }
        Ok(wrote)
    }

    /// The files that are new or changed, and what they are now.
    fn changed(
        &mut self,
        importer: &Importer<'_>,
        sources: Vec<Source>,
        errors: &[(PathBuf, String)],
    ) -> Result<Vec<(PathBuf, Option<Stamp>)>, Failure> {
        let (mut changed, mut new) = (Vec::new(), Vec::new());
        for source in sources {
            let path = source.location.path();
            // Before the file is read, so that what is written meanwhile is seen next time.
            let stamp = if importer.follows { stamp(&path) } else { None };
            match self.files.get_mut(&path) {
                Some(watched) => {
                    watched.found = self.round;
                    if stamp.is_some() && watched.stamp == stamp {
                        continue;
                    }
                    // What a copy has more than its original is not the original's.
                    if watched.source.is_copy() {
                        self.names.release(&watched.source);
                        self.files.remove(&path);
                        new.push(source);
                    }
                }
                None => new.push(source),
            }
            changed.push((path, stamp));
        }
        self.forget(errors);
        self.add(importer, new)?;
        Ok(changed)
    }

    /// Forgets what is gone. What is in a folder that could not be read may still be there.
    fn forget(&mut self, errors: &[(PathBuf, String)]) {
        let (names, round) = (&mut self.names, self.round);
        let stays = |path: &PathBuf, found: u64| {
            found == round || errors.iter().any(|(unread, _)| path.starts_with(unread))
        };
        self.files.retain(|path, watched| {
            let stays = stays(path, watched.found);
            if !stays {
                names.release(&watched.source);
            }
            stays
        });
        self.passed.retain(|path, found| stays(path, *found));
    }

    /// Chooses the runs of files that are new.
    fn add(&mut self, importer: &Importer<'_>, new: Vec<Source>) -> Result<(), Failure> {
        if new.is_empty() {
            return Ok(());
        }
        let known = self.files.values().map(|watched| &watched.source);
        let present = known.chain(&new).map(|source| source.location.absolute_path()).collect();
        for mut source in new {
            self.names.choose(importer, &mut source, &present)?;
            let path = source.location.path();
            let found = self.round;
            let watched = Watched { source, found, stamp: None, mark: None, told: None };
            self.files.insert(path, watched);
        }
        self.names.end_round();
        Ok(())
    }
}

/// What a look at a file gave.
#[derive(Debug, Default)]
struct Look {
    mark: Option<Mark>,
    told: Option<String>,
}

/// Tells of the files of one round.
struct ScanSink<'t, 'r, 'o> {
    known: &'t [(&'t PathBuf, &'t Watched)],
    looks: Vec<Look>,
    reporter: &'r mut Reporter<'o>,
    is_later: bool,
    wrote: bool,
}

impl Sink for ScanSink<'_, '_, '_> {
    type Error = Stop;

    fn done(&mut self, job: usize, done: Result<Done, FileError>) -> Result<(), Stop> {
        let (Some((path, watched)), Some(look)) = (self.known.get(job), self.looks.get_mut(job))
        else {
            return Ok(());
        };
        // Later scans report only what is new.
        let is_new = |message: &String| watched.told.as_ref() != Some(message);
        match done {
            Ok(Done::Run(mut done)) => {
                look.mark = done.mark.take();
                self.wrote |= done.how != How::AlreadyThere;
                if !(self.is_later && done.how == How::AlreadyThere) {
                    self.reporter.imported(&watched.source, &done)?;
                }
            }
            Ok(Done::Unknown(why)) => {
                if is_new(&why) {
                    self.reporter.unknown(path, &why)?;
                }
                look.told = Some(why);
            }
            Ok(Done::Skipped(why)) => {
                if is_new(&why.to_owned()) {
                    self.reporter.skipped(path, why)?;
                }
                look.told = Some(why.to_owned());
            }
            Ok(Done::Sidecar(kind)) => {
                let why = "a sidecar".to_owned();
                if is_new(&why) {
                    self.reporter.sidecar(kind);
                }
                look.told = Some(why);
            }
            Ok(Done::Waits) => {
                // A file that is gone on with stays where it is.
                look.mark.clone_from(&watched.mark);
                let why = "nothing in it is whole yet".to_owned();
                if is_new(&why) && watched.mark.is_none() {
                    self.reporter.waits(path, &why)?;
                }
                look.told = Some(why);
            }
            Err(FileError::Store(error)) => {
                self.reporter.clear();
                return Err(error.into());
            }
            Err(FileError::File(refusal)) => {
                let message = refusal.to_string();
                if is_new(&message) {
                    self.reporter.refused(path, &message)?;
                }
                look.told = Some(message);
            }
        }
        self.reporter.file_done()?;
        Ok(())
    }

    fn progress(&mut self, bytes: u64) {
        self.reporter.progress(bytes);
    }
}
