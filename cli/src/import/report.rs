//! What the user is told of an import: a line per run, the damaged lines, the sums; and progress
//! on standard error where that is a terminal.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::escape::shown;
use crate::failure::{Exit, Failure};
use crate::output::{Output, complain, count, grouped, size};

use super::file::{How, Imported};
use super::tree::{Found, Skipped, Source};

/// How many damaged lines of one file are listed to people.
const LISTED: usize = 10;

/// How often progress is shown.
const PROGRESS: Duration = Duration::from_millis(100);

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Run {
        run: &'a str,
        agent: &'a str,
        file: &'a str,
        result: &'static str,
        status: &'static str,
        records: u64,
        bytes: u64,
        damaged_lines: u64,
    },
    DamagedLine {
        file: &'a str,
        line: u64,
        damage: &'static str,
    },
    Skipped {
        file: &'a str,
        why: &'static str,
    },
    Error {
        file: &'a str,
        error: &'a str,
    },
    Summary(&'a Sums),
}

/// The sums over all files.
#[derive(Debug, Default, Serialize)]
struct Sums {
    imported: u64,
    continued: u64,
    already_there: u64,
    skipped: u64,
    errors: u64,
    records: u64,
    bytes: u64,
    damaged_lines: u64,
}

/// Tells of files as they are done.
#[derive(Debug)]
pub(crate) struct Reporter<'a> {
    out: &'a mut Output,
    sums: Sums,
    progress: Option<Progress>,
}

#[derive(Debug)]
struct Progress {
    files: usize,
    done: usize,
    bytes: u64,
    shown: Option<Instant>,
}

impl<'a> Reporter<'a> {
    pub(crate) fn new(out: &'a mut Output, found: &Found) -> Self {
        let progress = io::stderr().is_terminal().then(|| Progress {
            files: found.sources.len() + found.errors.len(),
            done: 0,
            bytes: 0,
            shown: None,
        });
        Self { out, sums: Sums::default(), progress }
    }

    /// Something was passed over on purpose.
    pub(crate) fn skipped(&mut self, skipped: &Skipped) -> Result<(), Failure> {
        self.sums.skipped += 1;
        let file = skipped.path.to_string_lossy();
        if self.out.is_json() {
            self.out.object(&Event::Skipped { file: &file, why: skipped.why })?;
        } else {
            self.out.line(format!("skipped {}: {}", shown(&skipped.path), skipped.why))?;
        }
        Ok(())
    }

    /// A file was not imported.
    pub(crate) fn refused(&mut self, path: &Path, error: &str) -> Result<(), Failure> {
        self.clear();
        self.sums.errors += 1;
        let file = path.to_string_lossy();
        if self.out.is_json() {
            self.out.object(&Event::Error { file: &file, error })?;
        }
        complain(&format!("{}: {error}", shown(path)));
        Ok(self.file_done()?)
    }

    /// A file is in the store, now or since an earlier import.
    pub(crate) fn imported(&mut self, source: &Source, done: &Imported) -> Result<(), Failure> {
        self.clear();
        *match done.how {
            How::Imported => &mut self.sums.imported,
            How::Continued => &mut self.sums.continued,
            How::AlreadyThere => &mut self.sums.already_there,
        } += 1;
        if done.how != How::AlreadyThere {
            self.sums.records += done.records;
            self.sums.bytes += done.bytes;
        }
        self.sums.damaged_lines += done.damaged_count;
        if self.out.is_json() {
            self.imported_json(source, done)?;
        } else {
            self.imported_text(source, done)?;
        }
        Ok(self.file_done()?)
    }

    fn imported_json(&mut self, source: &Source, done: &Imported) -> Result<(), Failure> {
        let path = source.place.path();
        let file = path.to_string_lossy();
        for (line, damage) in &done.damaged {
            let damage = damage.as_str();
            self.out.object(&Event::DamagedLine { file: &file, line: *line, damage })?;
        }
        self.out.object(&Event::Run {
            run: &source.run,
            agent: &source.agent,
            file: &file,
            result: done.how.as_str(),
            status: done.status.as_str(),
            records: done.records,
            bytes: done.bytes,
            damaged_lines: done.damaged_count,
        })?;
        Ok(())
    }

    fn imported_text(&mut self, source: &Source, done: &Imported) -> Result<(), Failure> {
        let file = shown(&source.place.path());
        self.out.line(format!(
            "{} {}/{}: {}, {}, {}",
            done.how.as_str().replace('_', " "),
            source.agent,
            source.run,
            count(done.records, "record"),
            size(done.bytes),
            done.status,
        ))?;
        for (line, damage) in done.damaged.iter().take(LISTED) {
            self.out.line(format!("  {file}:{line}: {}, kept as a raw record", damage.as_str()))?;
        }
        let unlisted = done.damaged_count.saturating_sub(LISTED as u64);
        if unlisted > 0 {
            self.out.line(format!("  {file}: {} more", count(unlisted, "damaged line")))?;
        }
        Ok(())
    }

    /// The sums, and how the command ends.
    pub(crate) fn finish(mut self, store: &Path) -> Result<Exit, Failure> {
        self.clear();
        if self.out.is_json() {
            self.out.object(&Event::Summary(&self.sums))?;
        } else {
            let sums = &self.sums;
            let mut text = format!(
                "{} imported into {}: {}, {}",
                count(sums.imported + sums.continued, "run"),
                shown(store),
                count(sums.records, "record"),
                size(sums.bytes)
            );
            for (n, what) in [
                (sums.already_there, "already there"),
                (sums.skipped, "skipped"),
                (sums.errors, "refused"),
            ] {
                if n > 0 {
                    // Writing to a string cannot fail.
                    let _ = write!(text, "; {} {what}", grouped(n));
                }
            }
            if sums.damaged_lines > 0 {
                let lines = count(sums.damaged_lines, "damaged line");
                let _ = write!(text, "; {lines} kept as raw records");
            }
            self.out.line(text)?;
        }
        self.out.flush()?;
        Ok(if self.sums.errors > 0 { Exit::Error } else { Exit::Fine })
    }

    /// Shows how far the import is.
    pub(crate) fn progress(&mut self, bytes: u64) {
        let Some(progress) = &mut self.progress else {
            return;
        };
        progress.bytes += bytes;
        if progress.shown.is_some_and(|shown| shown.elapsed() < PROGRESS) {
            return;
        }
        progress.shown = Some(Instant::now());
        let (done, files) = (progress.done, progress.files);
        let line = format!("\r\x1b[K{done} of {files} files, {}", size(progress.bytes));
        // It is only a service: a failure to show it is none.
        let _ = io::stderr().lock().write_all(line.as_bytes());
    }

    /// Takes the progress line away, so that something else can be printed.
    pub(crate) fn clear(&mut self) {
        if let Some(Progress { shown: shown @ Some(_), .. }) = &mut self.progress {
            *shown = None;
            let _ = io::stderr().lock().write_all(b"\r\x1b[K");
        }
    }

    /// Counts a file. Where both streams go to a terminal, its lines come before the progress.
    fn file_done(&mut self) -> io::Result<()> {
        let Some(progress) = &mut self.progress else {
            return Ok(());
        };
        progress.done += 1;
        self.out.flush()
    }
}

impl How {
    fn as_str(self) -> &'static str {
        match self {
            Self::Imported => "imported",
            Self::Continued => "continued",
            Self::AlreadyThere => "already_there",
        }
    }
}
