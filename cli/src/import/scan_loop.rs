//! Scans of the files: one for an import, and one after the other where files are followed. Each
//! looks only at the files that changed since the last one.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::failure::Failure;
use crate::in_order::in_order;

use super::done::{Done, How, Mark, Notice};
use super::file::Importer;
use super::refusal::FileError;
use super::report::Reporter;
use super::run_identity::Names;
use super::safe_open::Opened;
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

/// The most files that a thread takes at once: to hand over what became of one takes as long as to
/// import a short one.
const MANY: usize = 32;

/// In how many parts the files are handed out at least, so that no thread waits long for another.
const PARTS: usize = 64;

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
        for (notice, path, why) in &found.notices {
            if self.passed.insert(path.clone(), self.round).is_none() {
                reporter.notice(*notice, path, why)?;
            }
        }
        let changed = self.changed(importer, found)?;
        let files: Vec<(&PathBuf, &Watched)> =
            changed.iter().filter_map(|(path, _)| self.files.get_key_value(path)).collect();
        reporter.expects(files.len());
        let bytes = AtomicU64::new(0);
        let import = |files: &[(&PathBuf, &Watched)]| {
            let opened = &mut Opened::default();
            let progress = |more| {
                bytes.fetch_add(more, Ordering::Relaxed);
            };
            let import = |(_, file): &(_, &Watched)| {
                importer.import(&file.source, file.mark.as_ref(), opened, &progress)
            };
            files.iter().map(import).collect::<Vec<_>>()
        };
        let mut parts = files.chunks((files.len() / PARTS).clamp(1, MANY));
        let mut looks = Vec::new();
        in_order(
            || Ok(parts.next()),
            || (),
            |(), part, give| {
                give(import(part));
            },
            |part| {
                for done in part.into_iter().flatten() {
                    let Some((path, file)) = files.get(looks.len()) else { break };
                    looks.push(file.report(reporter, path, done, is_later)?);
                }
                reporter.progress(bytes.load(Ordering::Relaxed));
                Ok(true)
            },
        )?;
        let wrote = looks.iter().any(|look| look.wrote);
        for ((path, stamp), look) in changed.into_iter().zip(looks) {
            if let Some(watched) = self.files.get_mut(&path) {
                (watched.stamp, watched.mark) = (stamp, look.mark);
                watched.source.is_new = false;
                watched.told = look.told;
            }
        }
        if importer.args.follow {
            reporter.report_sidecars()?;
        }
        Ok(wrote)
    }

    /// The files that are new or changed, and what they are now.
    fn changed(
        &mut self,
        importer: &Importer<'_>,
        found: Found,
    ) -> Result<Vec<(PathBuf, Option<Stamp>)>, Failure> {
        let (mut changed, mut new) = (Vec::new(), Vec::new());
        for source in found.sources {
            let path = source.location.path();
            // Before the file is read, so that what is written meanwhile is seen next time.
            let stamp = if importer.args.follow { stamp(&path) } else { None };
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
        self.forget(&found.notices);
        self.add(importer, new)?;
        Ok(changed)
    }

    /// Forgets what is gone. What is in a folder that could not be read may still be there.
    fn forget(&mut self, notices: &[(Notice, PathBuf, String)]) {
        let (names, round) = (&mut self.names, self.round);
        let stays = |path: &PathBuf, found: u64| {
            let mut unread = notices.iter().filter(|(notice, ..)| *notice == Notice::Refused);
            found == round || unread.any(|(_, unread, _)| path.starts_with(unread))
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
    wrote: bool,
}

impl Watched {
    /// Reports what became of the file. Later scans report only what is new.
    fn report(
        &self,
        reporter: &mut Reporter<'_>,
        path: &Path,
        done: Result<Done, FileError>,
        is_later: bool,
    ) -> Result<Look, Failure> {
        let (notice, why) = match done {
            Ok(Done::Run(mut done)) => {
                let (mark, wrote) = (done.mark.take(), done.how != How::AlreadyThere);
                if wrote || !is_later {
                    reporter.imported(&self.source, &done)?;
                }
                reporter.file_done()?;
                return Ok(Look { mark, told: None, wrote });
            }
            Ok(Done::NoRun(notice, why)) => (notice, why),
            Err(FileError::File(refusal)) => (Notice::Refused, refusal.to_string()),
            Err(FileError::Store(error)) => {
                reporter.clear();
                return Err(error.into());
            }
        };
        // A file that is gone on with stays where it is.
        let mark = self.mark.clone().filter(|_| notice == Notice::Waits);
        if mark.is_none() && self.told.as_ref() != Some(&why) {
            reporter.notice(notice, path, &why)?;
        }
        reporter.file_done()?;
        Ok(Look { mark, told: Some(why), wrote: false })
    }
}
