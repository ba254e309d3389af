//! Whole trees of JSON Lines files, `AGENT/RUN.jsonl`, in and out, byte for byte.
//!
//! Each line is a record, be it JSON or not; a last line without a newline is marked. So the file
//! comes out as it went in. Ids come from inside of the file if its names may have been made of
//! them, and are the names otherwise.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::RunStore;
use super::below::{Folder, has_many_holes};
use super::error::{Result, RunStoreError};
use super::fold::{Found, Mark};
use super::line::{NewLine, UNTERMINATED};
use super::names::{is_name, may_be_of, name_of, numbered};
use super::open::Opened;
use super::records::{RunRecord, RunStarted};
use super::report::{Exported, Imported, MAX_LINE, Refusal, TreeProblem};
use runlog::{Error, Seq, Timestamp};

/// How many lines, and about how many bytes, are appended at once.
const BATCH_LINES: usize = 256;
const BATCH_BYTES: usize = 512 << 10;

impl RunStore {
    /// Takes a tree `AGENT/RUN.jsonl` over: each file becomes a run, and stays where it is. What is
    /// there already is compared, and gone on with if the file has more; so an import that was cut
    /// short can be repeated, and so can one of files that have grown.
    ///
    /// Files that the original has mixed from several runs of the same name become one run.
    ///
    /// # Durability
    /// Survives power loss once the call returns.
    ///
    /// # Errors
    /// What keeps the folder from being read, or the store from being written. What is wrong with
    /// single files is in [`Imported::problems`].
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

    /// Writes all runs as a tree `AGENT/RUN.jsonl`, for their owner alone. A file that was imported
    /// has its name and its bytes again, and what came later behind them. No file is overwritten.
    ///
    /// # Errors
    /// What keeps the store from being read, or the folder from being made. What is wrong with
    /// single files is in [`Exported::problems`].
    pub fn export_tree(&self, folder: &Path) -> io::Result<Exported> {
        let mut exported = Exported::default();
        make_folder(folder)?;
        let Some(opened) = self.look()? else { return Ok(exported) };
        let root = Folder::open(folder)?;
        let mut taken = HashSet::new();
        opened.each_agent(&mut |agent| {
            opened.each_run(agent, &mut |found| {
                if opened.is_visible(&found)? {
                    let names = free_names(&opened, &found, &mut taken)?;
                    let path = folder.join(&names.0).join(format!("{}.jsonl", names.1));
                    match make_file(&root, &names).and_then(|file| opened.export(&found, file)) {
                        Ok((lines, damaged)) => {
                            exported.files += 1;
                            exported.lines += lines;
                            if damaged > 0 {
                                let why = Refusal::Damaged { records: damaged };
                                exported.problems.push(TreeProblem { path, why });
                            }
                        }
                        Err(why) => exported.problems.push(TreeProblem { path, why }),
                    }
                }
                Ok(ControlFlow::Continue(()))
            })
        })?;
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

    /// Whether it looks like a part of the tree that should not be passed over silently.
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
                Ok(Some(file)) => import_file(opened, &file, (folder, stem), imported),
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

/// Whether other files may fare better.
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

/// What a look at a whole file says of it.
#[derive(Default)]
struct Survey {
    len: u64,
    /// The last start in it, as the original has it.
    started: Option<RunStarted>,
}

/// The lines of a file, up to where a survey got: another program may still write it.
struct Lines<'a> {
    reader: io::Take<BufReader<&'a File>>,
    number: u64,
}

impl<'a> Lines<'a> {
    /// All lines of a file, which only one such value reads at a time.
    fn new(mut file: &'a File, len: u64) -> io::Result<Self> {
        file.rewind()?;
        Ok(Self { reader: BufReader::new(file).take(len), number: 0 })
    }

    /// The next line, and whether a newline ended it.
    fn next(&mut self) -> Result<Option<(Vec<u8>, bool)>, Refusal> {
        let mut line = Vec::new();
        let read = self.reader.by_ref().take(MAX_LINE + 2).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        let is_terminated = line.pop_if(|last| *last == b'\n').is_some();
        if line.len() as u64 > MAX_LINE {
            return Err(Refusal::LineTooLong { line: self.number });
        }
        Ok(Some((line, is_terminated)))
    }
}

fn survey(file: &File) -> Result<Survey, Refusal> {
    let mut survey = Survey { len: file.metadata()?.len(), started: None };
    if has_many_holes(file, survey.len)? {
        return Err(Refusal::Sparse);
    }
    let mut lines = Lines::new(file, survey.len)?;
    while let Some((line, _)) = lines.next()? {
        if let Ok(RunRecord::Started(started)) = RunRecord::from_line(&line) {
            survey.started = Some(started);
        }
    }
    Ok(survey)
}

fn import_file(
    opened: &Opened,
    file: &File,
    (folder, stem): (&str, &str),
    imported: &mut Imported,
) -> Result<(), Refusal> {
    let survey = survey(file)?;
    let inside = survey
        .started
        .as_ref()
        .filter(|started| may_be_of(folder, &started.agent_id) && may_be_of(stem, &started.run_id));
    let (agent, run) = inside.map_or((folder, stem), |inside| (&inside.agent_id, &inside.run_id));
    let mut mark = Mark::new();
    mark.empty = survey.len == 0;
    if (name_of(agent).as_str(), name_of(run).as_str()) != (folder, stem) {
        mark.file = Some((folder.to_owned(), stem.to_owned()));
    }
    let _guard = opened.lock_boundary(agent, run);
    let found = opened.find(agent, run)?;
    let mut lines = Lines::new(file, survey.len)?;
    if let Some(found) = &found {
        compare(opened, found, &mut lines)?;
    }
    if found.is_none() && mark.empty {
        let json = mark.to_json();
        drop(opened.log().start_run(agent, run, runlog::Metadata::json(&json))?);
    }
    let first_at =
        survey.started.as_ref().map(|started| super::line::timestamp(started.started_at));
    let mut rest = Rest { opened, ids: (agent, run), mark, at: first_at, added: 0, damaged: 0 };
    let done = rest.add(&mut lines);
    imported.lines += rest.added;
    imported.damaged_lines += rest.damaged;
    done?;
    drop(opened.finish(agent, run)?);
    match (&found, rest.added) {
        (Some(_), 0) => imported.unchanged += 1,
        (Some(found), _) if found.run.records > 0 => imported.continued += 1,
        _ => imported.new += 1,
    }
    Ok(())
}

/// Goes through what is stored of a file, and answers whether it is the beginning of the file.
fn compare(opened: &Opened, found: &Found, lines: &mut Lines<'_>) -> Result<(), Refusal> {
    let mut trace = opened.log().trace(found.key())?;
    while let Some(record) = trace.next_view() {
        let record = record?;
        let Some((line, is_terminated)) = lines.next()? else {
            // The run went on after it had been imported.
            return Ok(());
        };
        let was_terminated = record.kind() != Some(UNTERMINATED);
        if record.payload() != line || was_terminated != is_terminated {
            return Err(Refusal::Differs { line: lines.number });
        }
    }
    Ok(())
}

/// What is left of a file.
struct Rest<'a> {
    opened: &'a Opened,
    ids: (&'a str, &'a str),
    mark: Mark,
    /// The time of the lines that do not say theirs.
    at: Option<Timestamp>,
    added: u64,
    damaged: u64,
}

impl Rest<'_> {
    fn add(&mut self, lines: &mut Lines<'_>) -> Result<(), Refusal> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while let Some((line, is_terminated)) = lines.next()? {
            bytes += line.len();
            let (mut line, read) = NewLine::of_file(line, is_terminated);
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
    // The store may be somebody else's.
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

fn make_folder(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

fn make_file(root: &Folder, (folder, stem): &(String, String)) -> Result<File, Refusal> {
    match root.make_folder(folder)?.make_file(&format!("{stem}.jsonl")) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(Refusal::AlreadyThere),
        made => Ok(made?),
    }
}

impl Opened {
    /// Writes a run into a file; answers its lines, and how many are missing.
    fn export(&self, found: &Found, file: File) -> Result<(u64, u64), Refusal> {
        let mut file = BufWriter::new(file);
        let (mut lines, mut damaged, mut is_open) = (0, 0, false);
        let mut trace = self.log().trace(found.key())?.range(Seq(0)..)?;
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
            file.write_all(record.payload())?;
            is_open = record.kind() == Some(UNTERMINATED);
            if !is_open {
                file.write_all(b"\n")?;
            }
            lines += 1;
        }
        file.flush()?;
        Ok((lines, damaged))
    }
}
