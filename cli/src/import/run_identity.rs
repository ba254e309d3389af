//! Which run is a file's.
//!
//! A file may have any of a row of ids: [`Source::run`], then those of [`Source::longer`], then the
//! last of these with a number. Ids that another file of this import has do not count. The first of
//! these rules that finds a run decides:
//!
//! 1. A run that was imported from this very path is the file's, or from one that leads to the same
//!    file by now and is not that of another file of this import.
//! 2. So is a run whose file had this name in a folder where no file of this import lies, if its
//!    records are what the file begins with: then the file was moved. If its path is still there,
//!    the file is a copy, and no longer once it has more. A run without records shows nothing, and
//!    only an empty file is what it was.
//! 3. Otherwise the file gets a new run, with the first of the ids that no run has. A run that was
//!    not imported, or that cannot be read, counts as one that no run has: to import the file tells
//!    what is wrong.
//!
//! So a run is never gone on with, or replaced, for a file that only has the name of its own, which
//! may be gone: the run may be the only copy.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use runlog::{Error, RunRef};

use crate::formats::origin::Origin;

use super::file::Importer;
use super::refusal::FileError;
use super::safe_open::located;
use super::tree::Source;

/// Gives each file a run of its own.
#[derive(Debug, Default)]
pub(crate) struct Names {
    taken: HashSet<(String, String)>,
    /// Of each agent with a new file in this round, the numbers that its runs have, by what is in
    /// front of them.
    numbers: HashMap<String, HashMap<String, BTreeSet<u64>>>,
}

/// The run of a file: its id, whether the store has no such run, and the path it came from if that
/// is another.
#[derive(Debug, Default)]
struct Chosen {
    run: String,
    is_new: bool,
    old_path: Option<PathBuf>,
}

/// What the ids of a file have shown so far.
#[derive(Debug, Default)]
struct Seen {
    /// The first one that is free, and whether the store has no such run.
    new: Option<(String, bool)>,
    /// Runs of files of this name.
    of_name: Vec<(String, Origin)>,
}

/// What a store has under ids.
#[derive(Debug)]
enum Run {
    /// No run.
    Nothing,
    /// A run that was not imported, or whose metadata cannot be read; or no run can have the ids.
    Unclear,
    /// The run of this file.
    Own,
    /// The run of a file of this name, which lay elsewhere and is none of this import.
    OfName(Origin),
    /// The run of another file.
    OfAnother,
}

impl Names {
    /// Chooses the run of a file. `present` are the paths of all files of this import.
    pub(crate) fn choose(
        &mut self,
        importer: &Importer<'_>,
        source: &mut Source,
        present: &HashSet<PathBuf>,
    ) -> runlog::Result<()> {
        // Standard input has no path: its run is the one that the user names.
        let chosen = if source.location.is_stdin() {
            Chosen { run: source.run.clone(), ..Chosen::default() }
        } else {
            self.find(importer, source, present)?
        };
        (source.run, source.is_new, source.old_path) = (chosen.run, chosen.is_new, chosen.old_path);
        self.taken.insert((source.agent.clone(), source.run.clone()));
        Ok(())
    }

    /// The run of a file.
    fn find(
        &mut self,
        importer: &Importer<'_>,
        source: &Source,
        present: &HashSet<PathBuf>,
    ) -> runlog::Result<Chosen> {
        let own = |run: String| Chosen { run, ..Chosen::default() };
        let mut seen = Seen::default();
        for run in [&source.run].into_iter().chain(&source.longer) {
            if self.is_own(importer, source, run, present, &mut seen)? {
                return Ok(own(run.clone()));
            }
        }
        // Those in front of one that has a number may be deleted by now.
        let last = source.longer.last().unwrap_or(&source.run);
        let known = self.numbers(importer, &source.agent, last)?;
        let others = (2_u64..).filter(|number| !known.contains(number));
        for number in known.iter().copied().chain(others) {
            if seen.new.is_some() && !known.contains(&number) {
                break;
            }
            let run = format!("{last}~{number}");
            if self.is_own(importer, source, &run, present, &mut seen)? {
                return Ok(own(run));
            }
        }
        for (run, origin) in seen.of_name {
            let known = Source { run, ..source.clone() };
            match importer.is_run_of(&known, &origin) {
                Ok(true) => {
                    let old_path = origin.path.map(PathBuf::from);
                    return Ok(Chosen { old_path, ..own(known.run) });
                }
                // A file that cannot be read is told of when it is imported.
                Ok(false) | Err(FileError::File(_)) => {}
                Err(FileError::Store(error)) => return Err(error),
            }
        }
        let (run, is_new) = seen.new.unwrap_or_else(|| (source.run.clone(), false));
        Ok(Chosen { is_new, ..own(run) })
    }

    /// Whether a run is that of a file; if not, what it shows is noted.
    fn is_own(
        &self,
        importer: &Importer<'_>,
        source: &Source,
        run: &str,
        present: &HashSet<PathBuf>,
        seen: &mut Seen,
    ) -> runlog::Result<bool> {
        let ids = (source.agent.clone(), run.to_owned());
        if self.taken.contains(&ids) {
            return Ok(false);
        }
        let found = find_run(importer, &ids, source, present)?;
        let is_nothing = matches!(found, Run::Nothing);
        match found {
            Run::Own => return Ok(true),
            Run::Nothing | Run::Unclear if seen.new.is_none() => {
                seen.new = Some((ids.1, is_nothing));
            }
            Run::OfName(origin) => seen.of_name.push((ids.1, origin)),
            Run::Nothing | Run::Unclear | Run::OfAnother => {}
        }
        Ok(false)
    }

    /// The numbers of the runs of an agent whose ids are otherwise this one. All of its runs are
    /// listed once a round.
    fn numbers(
        &mut self,
        importer: &Importer<'_>,
        agent: &str,
        last: &str,
    ) -> runlog::Result<BTreeSet<u64>> {
        if !self.numbers.contains_key(agent) {
            let mut numbers: HashMap<String, BTreeSet<u64>> = HashMap::new();
            for run in importer.runs_of(agent)? {
                let parts = run.as_str().rsplit_once('~');
                if let Some((last, Ok(number))) = parts.map(|(last, text)| (last, text.parse())) {
                    numbers.entry(last.to_owned()).or_default().insert(number);
                }
            }
            self.numbers.insert(agent.to_owned(), numbers);
        }
        let known = self.numbers.get(agent).and_then(|numbers| numbers.get(last));
        Ok(known.cloned().unwrap_or_default())
    }

    /// All files of a round have their runs: the next one lists the runs of the store anew.
    pub(crate) fn end_round(&mut self) {
        self.numbers.clear();
    }

    /// The file is gone.
    pub(crate) fn release(&mut self, source: &Source) {
        self.taken.remove(&(source.agent.clone(), source.run.clone()));
    }
}

fn find_run(
    importer: &Importer<'_>,
    (agent, run): &(String, String),
    source: &Source,
    present: &HashSet<PathBuf>,
) -> runlog::Result<Run> {
    let path = &*source.location.absolute_path();
    let metadata = match importer.metadata(RunRef::from((agent.as_str(), run.as_str()))) {
        Ok(metadata) => metadata,
        Err(error) if error.is_not_found() => return Ok(Run::Nothing),
        Err(Error::InvalidId { .. } | Error::Corrupt(_)) => return Ok(Run::Unclear),
        Err(error) => return Err(error),
    };
    let Some(origin) = Origin::of(metadata.as_ref()) else {
        return Ok(Run::Unclear);
    };
    let old = origin.path.as_ref().map(Path::new);
    if old == Some(path) {
        return Ok(Run::Own);
    }
    if source.file_name() != origin.imported_from {
        return Ok(Run::OfAnother);
    }
    // The path may lead there on another way, and may be stored as a user spelled it.
    let Some(old) = old.map(located) else {
        return Ok(Run::OfName(origin));
    };
    Ok(if old == path {
        Run::Own
    } else if present.contains(&old) {
        Run::OfAnother
    } else if is_same_file(&old, path) {
        Run::Own
    } else {
        Run::OfName(origin)
    })
}

/// Whether two paths lead to one file.
fn is_same_file(one: &Path, other: &Path) -> bool {
    let file = |path| fs::metadata(path).map(|file| (file.dev(), file.ino()));
    matches!((file(one), file(other)), (Ok(one), Ok(other)) if one == other)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::args::ImportArgs;
    use super::super::tree::{Choice, find};
    use super::*;

    #[test]
    fn files_that_want_the_same_id_get_two() {
        let root = tempfile::tempdir().expect("a folder");
        let logs = root.path().join("logs");
        fs::create_dir_all(logs.join("a/sessions")).expect("folders");
        for name in ["a/sessions/x.json", "a/sessions/x.jsonl", "a/x.jsonl", "a/y.jsonl"] {
            fs::write(logs.join(name), "").expect("a file");
        }
        let log = runlog::Options::new().create(root.path().join("store")).expect("a store");
        let origin = br#"{"imported_from":"y.log"}"#;
        drop(log.start_run("a", "y", runlog::Metadata::json(origin)).expect("a run"));
        let mut found = find(&[logs], &Choice::default());
        let args = ImportArgs::default();
        let importer = Importer { log: &log, reads: None, args: &args };
        let present = found.sources.iter().map(|source| source.location.absolute_path()).collect();
        let mut names = Names::default();
        for source in &mut found.sources {
            names.choose(&importer, source, &present).expect("a name");
        }
        let mut chosen: Vec<_> = found.sources.iter().map(|source| source.run.as_str()).collect();
        chosen.sort_unstable();
        assert_eq!(chosen, ["x", "x.jsonl", "x.jsonl~2", "y.jsonl"]);
        assert!(found.sources.iter().all(|source| source.agent == "a" && source.is_new));
    }
}
