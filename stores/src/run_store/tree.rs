//! Imports and exports whole trees of JSON Lines files, `AGENT/RUN.jsonl`, byte for byte.
//!
//! Each line is a record, whether it is JSON or not; a last line without a newline is marked. So an
//! export gives the same file. The ids come from the file if its names may have been made of them;
//! otherwise they are the names.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::RunStore;
use super::error::{Result, RunStoreError};
use super::fold::{Found, Mark};
use super::line::NewLine;
use super::names::{is_name, may_be_of, name_of, numbered};
use super::open::Opened;
use super::records::{RunRecord, RunStarted};
use super::report::{Exported, Imported, Refusal, TreeProblem};
use crate::json_lines::{Ending, Lines, UNTERMINATED};
use crate::safe_open::Folder;
use runlog::{Error, Seq, Timestamp};

/// How many lines, and about how many bytes, are appended at once.
const BATCH_LINES: usize = 256;
const BATCH_BYTES: usize = 512 << 10;

impl RunStore {
    /// Imports a tree `AGENT/RUN.jsonl`: each file becomes a run, and stays where it is. The import
    /// compares lines that are already stored, and adds the rest of the file. So an interrupted
    /// import can be repeated, and so can an import of files that have grown.
    ///
    /// A file in which the original mixed several runs of the same name becomes one run.
    ///
    /// # Durability
    /// Survives power loss once the call returns.
    ///
    /// # Errors
    /// Why the folder could not be read, or the store not be written. [`Imported::problems`] has
    /// the problems of single files.
    pub fn import_tree(&self, folder: &Path) -> io::Result<Imported> {
        let mut imported = Imported::default();
        let opened = self.create()?;
        let root = Folder::open(folder)?;
        for agent in entries(&root, folder)? {
            if agent.kind == FileType::Directory && !agent.is_hidden() {
                let listed = root.folder(&agent.raw_name).and_then(|folder| {
                    let files = entries(&folder, &agent.path)?;
                    Ok((folder, files))
                });
                match listed {
                    Ok(listed) => import_folder(&opened, &agent, listed, &mut imported)?,
                    Err(error) => imported.refuse(&agent.path, error.into()),
                }
            } else if agent.is_odd() {
                imported.refuse(&agent.path, Refusal::NotARun);
            }
        }
        opened.log().sync().map_err(RunStoreError::from)?;
        Ok(imported)
    }

    /// Writes all runs as a tree `AGENT/RUN.jsonl`, for its owner only. An imported file gets its
    /// name and bytes again, and later records behind them. No file is overwritten, and each has
    /// its name only once it is whole. So an interrupted export can be repeated; the next one
    /// removes the hidden file that a kill may leave.
    ///
    /// # Durability
    /// Survives power loss once the call returns.
    ///
    /// # Errors
    /// Why the store could not be read, or the folder not be created or synced; `StorageFull` and
    /// `QuotaExceeded` at the first file for which there is no space. The files before it stay.
    /// [`Exported::problems`] has the problems of single files.
    pub fn export_tree(&self, folder: &Path) -> io::Result<Exported> {
        let mut exported = Exported::default();
        make_folder(folder)?;
        let Some(opened) = self.look()? else { return Ok(exported) };
        let root = Folder::open(folder)?;
        let (mut taken, mut full) = (HashSet::new(), None);
        opened.each_agent(&mut |agent| {
            opened.each_run(agent, &mut |found| {
                if opened.is_visible(&found)? {
                    let names = free_names(&opened, &found, &mut taken)?;
                    let path = folder.join(&names.0).join(format!("{}.jsonl", names.1));
                    match opened.export(&found, &root, &names) {
                        Ok((lines, damaged)) => {
                            exported.files += 1;
                            exported.lines += lines;
                            if damaged > 0 {
                                let why = Refusal::Damaged { records: damaged };
                                exported.problems.push(TreeProblem { path, why });
                            }
                        }
                        Err(Refusal::Io(error)) if is_full(&error) => {
                            full = Some(error);
                            return Ok(ControlFlow::Break(()));
                        }
                        Err(why) => exported.problems.push(TreeProblem { path, why }),
                    }
                }
                Ok(ControlFlow::Continue(()))
            })
        })?;
        if let Some(full) = full {
            return Err(full);
        }
        let folders: HashSet<String> = taken.into_iter().map(|(folder, _)| folder).collect();
        sync_all(&root, &folders)?;
        Ok(exported)
    }
}

/// An entry of a folder, which is not followed if it is a link.
struct Entry {
    path: PathBuf,
    raw_name: OsString,
    /// If it is UTF-8.
    name: Option<String>,
    kind: FileType,
}

impl Entry {
    fn is_hidden(&self) -> bool {
        self.name.as_ref().is_some_and(|name| name.starts_with('.'))
    }

    /// The stem of the name of a run's file.
    fn stem(&self) -> Option<&str> {
        self.name.as_deref()?.strip_suffix(".jsonl")
    }

    /// Whether it looks like a part of the tree that should not be skipped silently.
    fn is_odd(&self) -> bool {
        self.kind != FileType::RegularFile || self.stem().is_some()
    }
}

/// The entries of a folder that is at this path, by name.
fn entries(folder: &Folder, path: &Path) -> io::Result<Vec<Entry>> {
    let entries = folder.entries()?.into_iter().map(|(raw_name, kind)| Entry {
        path: path.join(&raw_name),
        name: raw_name.to_str().map(str::to_owned),
        raw_name,
        kind,
    });
    Ok(entries.collect())
}

fn import_folder(
    opened: &Opened,
    agent: &Entry,
    (listed, files): (Folder, Vec<Entry>),
    imported: &mut Imported,
) -> Result<()> {
    let Some(folder) = &agent.name else {
        imported.refuse(&agent.path, Refusal::NameNotUtf8);
        return Ok(());
    };
    for file in files {
        if file.kind != FileType::RegularFile {
            imported.refuse(&file.path, Refusal::NotARun);
        } else if file.name.is_none() {
            imported.refuse(&file.path, Refusal::NameNotUtf8);
        } else if let Some(stem) = file.stem() {
            let taken = match listed.file(&file.raw_name) {
                Ok(Some(file)) => import_file(opened, file, (folder, stem), imported),
                Ok(None) => Err(Refusal::NotARun),
                Err(error) => Err(error.into()),
            };
            match taken {
                Err(Refusal::Store(RunStoreError::Engine(error))) if !is_of_file(&error) => {
                    return Err(error.into());
                }
                Err(why) => imported.refuse(&file.path, why),
                Ok(()) => {}
            }
        }
    }
    Ok(())
}

/// Whether other files may still succeed.
fn is_of_file(error: &Error) -> bool {
    use Error::{Ambiguous, Corrupt, InvalidId, RunEnded, RunExists, TooLarge};
    matches!(
        error,
        Ambiguous { .. }
            | Corrupt(_)
            | InvalidId { .. }
            | RunEnded { .. }
            | RunExists { .. }
            | TooLarge { .. }
    )
}

/// The last start in a file, as the original finds it. All lines of the file can be read.
fn last_start(lines: &mut Lines<File>) -> Result<Option<RunStarted>, Refusal> {
    let (mut line, mut started) = (Vec::new(), None);
    while lines.read_onto(&mut line)?.is_some() {
        if let Ok(RunRecord::Started(record)) = RunRecord::from_line(&line) {
            started = Some(record);
        }
        line.clear();
    }
    lines.rewind()?;
    Ok(started)
}

fn import_file(
    opened: &Opened,
    file: File,
    (folder, stem): (&str, &str),
    imported: &mut Imported,
) -> Result<(), Refusal> {
    let mut lines = Lines::of_file(file)?;
    let started = last_start(&mut lines)?;
    let inside = started
        .as_ref()
        .filter(|started| may_be_of(folder, &started.agent_id) && may_be_of(stem, &started.run_id));
    let (agent, run) = inside.map_or((folder, stem), |inside| (&inside.agent_id, &inside.run_id));
    let mut mark = Mark::new();
    mark.empty = lines.total_bytes() == 0;
    if (name_of(agent).as_str(), name_of(run).as_str()) != (folder, stem) {
        mark.file = Some((folder.to_owned(), stem.to_owned()));
    }
    let _guard = opened.lock_boundary(agent, run);
    let found = opened.find(agent, run)?;
    let ends_in_newline = match &found {
        Some(found) => compare(opened, found, &mut lines)?,
        None => false,
    };
    if found.is_none() && mark.empty {
        let json = mark.to_json();
        drop(opened.log().start_run(agent, run, runlog::Metadata::json(&json))?);
    }
    let first_at = started.as_ref().map(|started| super::line::timestamp(started.started_at));
    let mut rest = Rest { opened, ids: (agent, run), mark, at: first_at, added: 0, damaged: 0 };
    let done = rest.add(&mut lines);
    imported.lines += rest.added;
    imported.damaged_lines += rest.damaged;
    done?;
    if ends_in_newline && rest.added == 0 {
        rest.put(&mut vec![NewLine::of_newline()])?;
    }
    drop(opened.finish(agent, run)?);
    match (&found, rest.added) {
        (Some(_), 0) => imported.unchanged += 1,
        (Some(found), _) if found.run.records > 0 => imported.continued += 1,
        _ => imported.new += 1,
    }
    Ok(())
}

/// Compares the stored lines with a file: they must be its beginning, or it theirs. Returns whether
/// the last stored line has got a newline in the file.
fn compare(opened: &Opened, found: &Found, lines: &mut Lines<File>) -> Result<bool, Refusal> {
    let (mut line, mut got_newline) = (Vec::new(), false);
    let mut trace = opened.log().trace(&found.run)?;
    while let Some(record) = trace.next_view() {
        let record = record?;
        let was_unterminated = record.kind() == Some(UNTERMINATED);
        if was_unterminated && record.payload().is_empty() {
            got_newline = false;
            continue;
        }
        line.clear();
        let Some(ending) = lines.read_onto(&mut line)? else {
            // The run got more records after the import.
            return Ok(false);
        };
        // The original ends a torn line by a newline before it goes on.
        let is_same = was_unterminated || ending == Ending::Newline;
        if record.payload() != line || !is_same {
            return Err(Refusal::Differs { line: lines.number() });
        }
        got_newline = was_unterminated && ending == Ending::Newline;
    }
    Ok(got_newline)
}

/// The rest of a file.
struct Rest<'a> {
    opened: &'a Opened,
    ids: (&'a str, &'a str),
    mark: Mark,
    /// The time of lines without a time of their own.
    at: Option<Timestamp>,
    added: u64,
    damaged: u64,
}

impl Rest<'_> {
    fn add(&mut self, lines: &mut Lines<File>) -> Result<(), Refusal> {
        let (mut batch, mut bytes, mut line) = (Vec::new(), 0, Vec::new());
        while let Some(ending) = lines.read_onto(&mut line)? {
            bytes += line.len();
            let (mut line, read) = NewLine::of_file(core::mem::take(&mut line), ending);
            self.damaged += u64::from(read.is_err());
            self.at = line.at.or(self.at);
            line.at = self.at;
            batch.push(line);
            if batch.len() >= BATCH_LINES || bytes >= BATCH_BYTES {
                self.put(&mut batch)?;
                bytes = 0;
            }
        }
        self.put(&mut batch)
    }

    fn put(&mut self, batch: &mut Vec<NewLine>) -> Result<(), Refusal> {
        if !batch.is_empty() {
            let (agent, run) = self.ids;
            drop(self.opened.put(agent, run, batch, &self.mark)?);
            self.added += batch.len() as u64;
            batch.clear();
        }
        Ok(())
    }
}

/// The names of a run's folder and file, which no other run has.
fn free_names(
    opened: &Opened,
    found: &Found,
    taken: &mut HashSet<(String, String)>,
) -> Result<(String, String)> {
    let (agent, run) = found.key();
    let kept = opened.mark(agent, run)?.and_then(|mark| mark.file);
    // The log may have other runs too.
    let kept = kept.filter(|(folder, stem)| is_name(folder) && is_name(stem));
    let (folder, stem) = kept.unwrap_or_else(|| (name_of(agent), name_of(run)));
    let mut number = 0;
    loop {
        let names = (folder.clone(), numbered(&stem, number));
        if taken.insert(names.clone()) {
            return Ok(names);
        }
        number += 1;
    }
}

/// Makes a folder and those above it, unless they are there; their names survive power loss then.
fn make_folder(path: &Path) -> io::Result<()> {
    let is_missing = |above: &&Path| !above.as_os_str().is_empty() && !above.exists();
    let missing: Vec<_> = path.ancestors().take_while(is_missing).collect();
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)?;
    for made in missing {
        let above = made.parent().filter(|above| !above.as_os_str().is_empty());
        File::open(above.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    Ok(())
}

fn already_there(error: io::Error) -> Refusal {
    match error.kind() {
        io::ErrorKind::AlreadyExists => Refusal::AlreadyThere,
        _ => error.into(),
    }
}

/// Whether no other file can be written either.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Returns once the names in these folders survive power loss.
fn sync_all(root: &Folder, folders: &HashSet<String>) -> io::Result<()> {
    for name in folders {
        // If it could not be made, that was reported.
        if let Ok(folder) = root.folder(name.as_ref()) {
            folder.sync()?;
        }
    }
    root.sync()
}

impl Opened {
    /// Writes a run into a file of its own; returns its lines, and how many are missing.
    fn export(
        &self,
        found: &Found,
        root: &Folder,
        (folder, stem): &(String, String),
    ) -> Result<(u64, u64), Refusal> {
        let made = root.make_folder(folder)?.make_file(&format!("{stem}.jsonl"));
        let new = made.map_err(already_there)?;
        let written = self.export_into(found, new.as_file())?;
        new.publish().map_err(already_there)?;
        Ok(written)
    }

    fn export_into(&self, found: &Found, file: &File) -> Result<(u64, u64), Refusal> {
        let mut file = BufWriter::new(file);
        let (mut lines, mut damaged, mut is_open) = (0, 0, false);
        let mut trace = self.log().trace(&found.run)?.range(Seq(0)..)?;
        while let Some(record) = trace.next_view() {
            let record = match record {
                Ok(record) => record,
                Err(Error::Corrupt(_)) => {
                    damaged += 1;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            if is_open {
                file.write_all(b"\n")?;
            }
            if record.kind() == Some(UNTERMINATED) {
                is_open = !record.payload().is_empty();
                // Without bytes it is the newline of the line before; see `NewLine::of_newline`.
                lines += u64::from(is_open);
                file.write_all(record.payload())?;
            } else {
                is_open = false;
                lines += 1;
                file.write_all(record.payload())?;
                file.write_all(b"\n")?;
            }
        }
        file.flush()?;
        Ok((lines, damaged))
    }
}
