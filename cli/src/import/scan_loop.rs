//! Scans of the files: one for an import, and one after the other where files are followed. Each
//! looks only at the files that changed since the last one.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::in_order::in_order;

use super::done::{Done, How, Mark, Notice};
use super::file::Importer;
use super::refusal::FileError;
use super::report::Reporter;
use super::run_identity::Names;
use super::tree::{Found, Source};

/// The files as the scans before found them. Files that are gone are forgotten, so that memory is
/// bounded by the files that are there.
#[derive(Debug, Default)]
pub(crate) struct ScanLoop {
    names: Names,
    files: HashMap<PathBuf, Watched>,
    /// The paths that the last scan passed over and reported.
    passed: HashSet<PathBuf>,
    is_later: bool,
}

#[derive(Debug)]
struct Watched {
    source: Source,
    /// The file as it was before it was read last.
    stamp: Option<Stamp>,
    state: State,
}

/// The result of the last look at a file.
#[derive(Debug, Default)]
struct State {
    mark: Option<Mark>,
    /// Why it is no run, as that was reported last.
    reported: Option<String>,
}

/// Length, time and number of a file: one of them changes when it is written to.
type Stamp = (u64, i64, i64, u64);

/// The stamp of a file that is there.
fn stamp(path: &Path) -> Option<Stamp> {
    let file = fs::metadata(path).ok()?;
    Some((file.len(), file.mtime(), file.mtime_nsec(), file.ino()))
}

/// The most files that a thread takes at once: to hand over the result of one takes as long as to
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
        let is_later = std::mem::replace(&mut self.is_later, true);
        if !is_later {
            reporter.sidecars(&found.sidecars);
        }
        for (notice, path, why) in &found.notices {
            if !self.passed.contains(path) {
                reporter.notice(*notice, path, why)?;
            }
        }
        self.passed = found.notices.iter().map(|(_, path, _)| path.clone()).collect();
        let changed = self.changed(importer, found)?;
        let files: Vec<(&PathBuf, &Watched)> =
            changed.iter().filter_map(|(path, _)| self.files.get_key_value(path)).collect();
        let import =
            |(_, file): &(_, &Watched)| importer.import(&file.source, file.state.mark.as_ref());
        let mut parts = files.chunks((files.len() / PARTS).clamp(1, MANY));
        let (mut states, mut wrote) = (Vec::new(), false);
        in_order(
            || Ok(parts.next()),
            || (),
            |(), part, give| {
                give(part.iter().map(import).collect::<Vec<_>>());
            },
            |part| {
                for done in part.into_iter().flatten() {
                    let Some((path, file)) = files.get(states.len()) else { break };
                    let has_more =
                        matches!(&done, Ok(Done::Run(done)) if done.how != How::AlreadyThere);
                    wrote |= has_more;
                    // Later scans report only what is new.
                    states.push(file.report(reporter, path, done, has_more || !is_later)?);
                }
                reporter.progress(states.len(), files.len(), importer.bytes());
                Ok(true)
            },
        )?;
        for ((path, stamp), state) in changed.into_iter().zip(states) {
            if let Some(watched) = self.files.get_mut(&path) {
                (watched.stamp, watched.state) = (stamp, state);
                watched.source.is_new = false;
            }
        }
        if importer.args.follow {
            reporter.report_sidecars()?;
        }
        Ok(wrote)
    }

    /// The files that are new or changed, and what they are now. Forgets those that are gone.
    fn changed(
        &mut self,
        importer: &Importer<'_>,
        found: Found,
    ) -> Result<Vec<(PathBuf, Option<Stamp>)>, Failure> {
        let (mut changed, mut new, mut present) = (Vec::new(), Vec::new(), HashSet::new());
        for source in found.sources {
            let path = source.location.path();
            // Before the file is read, so that what is written meanwhile is seen next time.
            let stamp = if importer.args.follow { stamp(&path) } else { None };
            let known = self.files.get(&path);
            let is_same = |known: &Watched| stamp.is_some() && known.stamp == stamp;
            // A copy has the run of its original only as long as it is the same.
            let is_copy = known.is_some_and(|known| !is_same(known) && known.source.is_copy());
            if !known.is_some_and(is_same) {
                changed.push((path.clone(), stamp));
            }
            if known.is_none() || is_copy {
                new.push(source);
            }
            if !is_copy {
                present.insert(path);
            }
        }
        // Files in a folder that could not be read may still be there.
        let is_unread = |path: &PathBuf| {
            let mut notices = found.notices.iter();
            notices
                .any(|(notice, unread, _)| *notice == Notice::Refused && path.starts_with(unread))
        };
        for (_, gone) in
            self.files.extract_if(|path, _| !present.contains(path) && !is_unread(path))
        {
            self.names.release(&gone.source);
        }
        self.add(importer, new)?;
        Ok(changed)
    }

    /// Chooses the runs of files that are new.
    fn add(&mut self, importer: &Importer<'_>, new: Vec<Source>) -> Result<(), Failure> {
        let known = self.files.values().map(|watched| &watched.source);
        let present = known.chain(&new).map(|source| source.location.absolute_path()).collect();
        for mut source in new {
            self.names.choose(importer, &mut source, &present)?;
            let watched = Watched { source, stamp: None, state: State::default() };
            self.files.insert(watched.source.location.path(), watched);
        }
        self.names.end_round();
        Ok(())
    }
}

impl Watched {
    /// Reports what became of the file, if that is new.
    fn report(
        &self,
        reporter: &mut Reporter<'_>,
        path: &Path,
        done: Result<Done, FileError>,
        is_new: bool,
    ) -> Result<State, Failure> {
        let (notice, why) = match done {
            Ok(Done::Run(mut done)) => {
                let mark = done.mark.take();
                if is_new {
                    reporter.imported(&self.source, &done)?;
                }
                return Ok(State { mark, reported: None });
            }
            Ok(Done::NoRun(notice, why)) => (notice, why),
            Err(FileError::File(refusal)) => (Notice::Refused, refusal.to_string()),
            Err(FileError::Store(error)) => return Err(error.into()),
        };
        if self.state.reported.as_ref() != Some(&why) {
            reporter.notice(notice, path, &why)?;
        }
        Ok(State { mark: None, reported: Some(why) })
    }
}
