//! What the user is told of an import: a line per run, the damaged lines, the sums; and progress
//! on standard error where that is a terminal.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::escape::shown;
use crate::failure::{Exit, Failure};
use crate::formats::Format;
use crate::message::{complain, note};
use crate::output::{Output, count, grouped, size};

use super::file::{How, Imported};
use super::tree::Source;

/// How many damaged lines of one file are listed to people.
const LISTED: usize = 10;

/// How often progress is shown, on a terminal and elsewhere.
const PROGRESS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Run {
        run: &'a str,
        agent: &'a str,
        file: &'a str,
        format: Format,
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
        why: &'a str,
    },
    Unknown {
        file: &'a str,
        why: &'a str,
    },
    Waits {
        file: &'a str,
        why: &'a str,
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
    replaced: u64,
    already_there: u64,
    skipped: u64,
    unknown: u64,
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
    /// Whether files that are not recognised are no failure.
    skips_unknown: bool,
    progress: Option<Progress>,
}

#[derive(Debug)]
struct Progress {
    files: usize,
    done: usize,
    /// Whether a line can be written over.
    is_terminal: bool,
    shown: Option<Instant>,
    is_on_screen: bool,
}

impl<'a> Reporter<'a> {
    pub(crate) fn new(out: &'a mut Output, progress: bool, skips_unknown: bool) -> Self {
        let is_terminal = io::stderr().is_terminal();
        let progress = (is_terminal || progress).then_some(Progress {
            files: 0,
            done: 0,
            is_terminal,
            shown: None,
            is_on_screen: false,
        });
        Self { out, sums: Sums::default(), skips_unknown, progress }
    }

    /// So many files more are to come.
    pub(crate) fn expects(&mut self, files: usize) {
        if let Some(progress) = &mut self.progress {
            progress.files += files;
        }
    }

    /// Something was passed over on purpose.
    pub(crate) fn skipped(&mut self, path: &Path, why: &str) -> Result<(), Failure> {
        self.clear();
        self.sums.skipped += 1;
        let file = path.to_string_lossy();
        if self.out.is_json() {
            self.out.object(&Event::Skipped { file: &file, why })?;
        } else {
            self.out.line(format!("skipped {}: {why}", shown(path)))?;
        }
        Ok(())
    }

    /// A file is nothing that can be imported.
    pub(crate) fn unknown(&mut self, path: &Path, why: &str) -> Result<(), Failure> {
        self.clear();
        self.sums.unknown += 1;
        let file = path.to_string_lossy();
        if self.out.is_json() {
            self.out.object(&Event::Unknown { file: &file, why })?;
        } else {
            self.out.line(format!("not recognised {}: {why}", shown(path)))?;
        }
        Ok(())
    }

    /// A file that is followed has nothing yet.
    pub(crate) fn waits(&mut self, path: &Path, why: &str) -> Result<(), Failure> {
        self.clear();
        let file = path.to_string_lossy();
        if self.out.is_json() {
            self.out.object(&Event::Waits { file: &file, why })?;
        } else {
            self.out.line(format!("waiting for {}: {why}", shown(path)))?;
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
        Ok(())
    }

    /// A file is in the store, now or since an earlier import.
    pub(crate) fn imported(&mut self, source: &Source, done: &Imported) -> Result<(), Failure> {
        self.clear();
        *match done.how {
            How::Imported => &mut self.sums.imported,
            How::Continued => &mut self.sums.continued,
            How::Replaced => &mut self.sums.replaced,
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
        Ok(())
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
            format: done.format,
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
            "{} {}/{} ({}): {}, {}, {}",
            done.how.as_str().replace('_', " "),
            source.agent,
            source.run,
            done.format,
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
                count(sums.imported + sums.continued + sums.replaced, "run"),
                shown(store),
                count(sums.records, "record"),
                size(sums.bytes)
            );
            for (n, what) in [
                (sums.already_there, "already there"),
                (sums.replaced, "of them anew"),
                (sums.skipped, "skipped"),
                (sums.unknown, "not recognised"),
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
        let failed = self.sums.errors > 0 || (self.sums.unknown > 0 && !self.skips_unknown);
        Ok(if failed { Exit::Error } else { Exit::Fine })
    }

    /// Shows how far the import is: so many bytes have been read.
    pub(crate) fn progress(&mut self, bytes: u64) {
        let Some(progress) = &mut self.progress else {
            return;
        };
        let every = if progress.is_terminal { PROGRESS[0] } else { PROGRESS[1] };
        if progress.shown.is_some_and(|shown| shown.elapsed() < every) {
            return;
        }
        progress.shown = Some(Instant::now());
        let (done, files) = (grouped(progress.done as u64), count(progress.files as u64, "file"));
        let text = format!("{done} of {files}, {}", size(bytes));
        if progress.is_terminal {
            progress.is_on_screen = true;
            // It is only a service: a failure to show it is none.
            let _ = io::stderr().lock().write_all(format!("\r\x1b[K{text}").as_bytes());
        } else {
            note(&text);
        }
    }

    /// Takes the progress line away, so that something else can be printed.
    pub(crate) fn clear(&mut self) {
        if let Some(progress @ Progress { is_on_screen: true, .. }) = &mut self.progress {
            (progress.is_on_screen, progress.shown) = (false, None);
            let _ = io::stderr().lock().write_all(b"\r\x1b[K");
        }
    }

    /// Counts a file. Where both streams go to a terminal, its lines come before the progress.
    pub(crate) fn file_done(&mut self) -> io::Result<()> {
        let Some(progress) = &mut self.progress else {
            return Ok(());
        };
        progress.done += 1;
        self.out.flush()
    }

    /// Hands what was told to the reader.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.clear();
        self.out.flush()
    }
}

impl How {
    fn as_str(self) -> &'static str {
        match self {
            Self::Imported => "imported",
            Self::Continued => "continued",
            Self::Replaced => "replaced",
            Self::AlreadyThere => "already_there",
        }
    }
}
