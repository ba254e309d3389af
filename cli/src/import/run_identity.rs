//! Which run is a file's.
//!
//! A file may have any of a row of ids: [`Source::run`], then those of [`Source::longer`], then the
//! last of these with a number. Ids that another file of this import has do not count. The first of
//! these rules that finds a run decides:
//!
//! 1. A run that was imported from this very path is the file's, or from one that leads to the same
//!    file by now and is not that of another file of this import.
//! 2. So is a run whose file had this name in a folder where no file of this import lies, if the
//!    file begins with its records: then the file was moved. If the old path is still there, the
//!    file is a copy until it has more. A run without records is that of an empty file only.
//! 3. Otherwise the file gets a new run, with the first of the ids that no run has. A run that was
//!    not imported, or that cannot be read, counts as one that no run has: the import of the file
//!    reports what is wrong.
//!
//! So a run is never continued or replaced by a file that only has the name of its own file, which
//! may be gone: the run may be the only copy.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use runlog::Error;

use crate::formats::origin::Origin;

use super::file::Importer;
use super::refusal::FileError;
use super::safe_open::located;
use super::tree::Source;

/// Gives each file a run of its own.
#[derive(Debug, Default)]
pub(crate) struct Names {
    taken: HashSet<(String, String)>,
    /// The ids of the runs of each agent with a new file in this round.
    ids: HashMap<String, BTreeSet<String>>,
}

/// The run that has the ids of a file.
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
        if !source.location.is_stdin() {
            self.find(importer, source, present)?;
        }
        self.taken.insert((source.agent.clone(), source.run.clone()));
        Ok(())
    }

    fn is_taken(&self, source: &Source, run: &str) -> bool {
        self.taken.contains(&(source.agent.clone(), run.to_owned()))
    }

    fn find(
        &mut self,
        importer: &Importer<'_>,
        source: &mut Source,
        present: &HashSet<PathBuf>,
    ) -> runlog::Result<()> {
        let last = source.longer.last().unwrap_or(&source.run).clone();
        let numbered = |number: u64| format!("{last}~{number}");
        let mut ids: Vec<String> =
            [&source.run].into_iter().chain(&source.longer).cloned().collect();
        let (first, mut known) = (ids.len(), BTreeSet::new());
        let (mut new, mut of_name) = (None, Vec::new());
        for at in 0.. {
            if at == first {
                known = self.numbers(importer, &source.agent, &last)?;
                ids.extend(known.iter().copied().map(numbered));
            }
            let Some(run) = ids.get(at).cloned() else { break };
            if self.is_taken(source, &run) {
                continue;
            }
            match find_run(importer, (&source.agent, &run), source, present)? {
                Run::Own => {
                    source.run = run;
                    return Ok(());
                }
                Run::Nothing if new.is_none() => new = Some((run, true)),
                Run::Unclear if new.is_none() => new = Some((run, false)),
                Run::OfName(origin) => of_name.push((run, origin)),
                Run::Nothing | Run::Unclear | Run::OfAnother => {}
            }
        }
        let free = || {
            let numbers = (2_u64..).filter(|number| !known.contains(number));
            numbers.map(numbered).find(|run| !self.is_taken(source, run)).map(|run| (run, true))
        };
        let new = new.or_else(free);
        for (run, origin) in of_name {
            let moved = Source { run, ..source.clone() };
            match importer.is_run_of(&moved, &origin) {
                Ok(true) => {
                    *source = Source { old_path: origin.path.map(PathBuf::from), ..moved };
                    return Ok(());
                }
                // A file that cannot be read is reported when it is imported.
                Ok(false) | Err(FileError::File(_)) => {}
                Err(FileError::Store(error)) => return Err(error),
            }
        }
        if let Some((run, is_new)) = new {
            (source.run, source.is_new) = (run, is_new);
        }
        Ok(())
    }

    /// The numbers of the runs of an agent whose ids are otherwise this one. All of its runs are
    /// listed once a round.
    fn numbers(
        &mut self,
        importer: &Importer<'_>,
        agent: &str,
        last: &str,
    ) -> runlog::Result<BTreeSet<u64>> {
        if !self.ids.contains_key(agent) {
            self.ids.insert(agent.to_owned(), importer.runs_of(agent)?);
        }
        let begin = format!("{last}~");
        let ids = self.ids.get(agent).into_iter().flat_map(|ids| ids.range(begin.clone()..));
        let numbered = ids.map_while(|id| id.strip_prefix(&begin));
        Ok(numbered.filter_map(|number| number.parse().ok()).collect())
    }

    /// All files of a round have their runs: the next one lists the runs of the store anew.
    pub(crate) fn end_round(&mut self) {
        self.ids.clear();
    }

    /// The file is gone.
    pub(crate) fn release(&mut self, source: &Source) {
        self.taken.remove(&(source.agent.clone(), source.run.clone()));
    }
}

fn find_run(
    importer: &Importer<'_>,
    ids: (&str, &str),
    source: &Source,
    present: &HashSet<PathBuf>,
) -> runlog::Result<Run> {
    let path = &*source.location.absolute_path();
    let metadata = match importer.metadata(ids.into()) {
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
        let importer = Importer::new(&log, None, &args);
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
