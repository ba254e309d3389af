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

use super::args::ImportArgs;
use super::done::{How, Imported, Notice};
use super::sidecars::Counts;
use super::tree::{Found, Source};

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
        unread_members: u64,
    },
    UnreadMember {
        file: &'a str,
        member: &'a str,
        why: &'a str,
    },
    Sidecars {
        files: u64,
        kinds: &'a Counts,
    },
    DamagedLine {
        file: &'a str,
        line: u64,
        damage: &'static str,
    },
    Summary(&'a Sums),
}

/// A file that is no run.
#[derive(Serialize)]
struct NoRun<'a> {
    event: &'static str,
    file: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

/// The sums over all files.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Sums {
    imported: u64,
    continued: u64,
    replaced: u64,
    already_there: u64,
    skipped: u64,
    sidecars: u64,
    unknown: u64,
    missing: u64,
    pub(crate) errors: u64,
    records: u64,
    bytes: u64,
    damaged_lines: u64,
    unread_members: u64,
    dry_run: bool,
}

/// Tells of files as they are done.
#[derive(Debug)]
pub(crate) struct Reporter<'a> {
    out: &'a mut Output,
    pub(crate) sums: Sums,
    /// Files that are no runs, and were not reported yet.
    sidecars: Counts,
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
    pub(crate) fn new(out: &'a mut Output, args: &ImportArgs) -> Self {
        let is_terminal = io::stderr().is_terminal();
        let progress = (is_terminal || args.progress).then_some(Progress {
            files: 0,
            done: 0,
            is_terminal,
            shown: None,
            is_on_screen: false,
        });
        let sums = Sums { dry_run: args.dry_run, ..Sums::default() };
        let skips_unknown = args.skip_unknown;
        Self { out, sums, sidecars: Counts::new(), skips_unknown, progress }
    }

    /// What was found that is no file to import.
    pub(crate) fn found(&mut self, found: &Found) -> Result<(), Failure> {
        self.sidecars(&found.sidecars);
        let mut notices = found.notices.iter();
        notices.try_for_each(|(notice, path, why)| self.notice(*notice, path, why))
    }

    /// Files that are no runs.
    pub(crate) fn sidecars(&mut self, counts: &Counts) {
        for (kind, n) in counts {
            *self.sidecars.entry(*kind).or_default() += n;
        }
    }

    /// Reports a file that is no run, and why.
    pub(crate) fn notice(&mut self, notice: Notice, path: &Path, why: &str) -> Result<(), Failure> {
        self.clear();
        let sums = &mut self.sums;
        let (event, text, sum) = match notice {
            Notice::Skipped => ("skipped", "skipped ", &mut sums.skipped),
            Notice::Unknown => ("unknown", "not recognised ", &mut sums.unknown),
            Notice::Waits => ("waits", "waiting for ", &mut 0),
            Notice::Missing => ("missing", "", &mut sums.missing),
            Notice::Refused => ("error", "", &mut sums.errors),
            Notice::Sidecar(kind) => {
                *self.sidecars.entry(kind).or_default() += 1;
                return Ok(());
            }
        };
        *sum += 1;
        let is_error = matches!(notice, Notice::Missing | Notice::Refused);
        if self.out.is_json() {
            let error = Some(why).filter(|_| notice == Notice::Refused);
            let (why, file) = (Some(why).filter(|_| !is_error), &*path.to_string_lossy());
            self.out.object(&NoRun { event, file, why, error })?;
        } else if !is_error {
            self.out.line(format!("{text}{}: {why}", shown(path)))?;
        }
        if is_error {
            complain(&format!("{}: {why}", shown(path)));
        }
        Ok(())
    }

    /// Reports the number of files passed over, and their kinds, in one line.
    pub(crate) fn report_sidecars(&mut self) -> Result<(), Failure> {
        self.clear();
        let kinds = std::mem::take(&mut self.sidecars);
        let files = kinds.values().sum();
        self.sums.sidecars += files;
        if files == 0 {
            return Ok(());
        }
        if self.out.is_json() {
            return Ok(self.out.object(&Event::Sidecars { files, kinds: &kinds })?);
        }
        let listed: Vec<String> = kinds.iter().map(|(kind, n)| kind.of(*n)).collect();
        let (what, listed) = (count(files, "file"), listed.join(", "));
        let takes = kinds.keys().any(|kind| kind.is_taken_by_all_files());
        let advice = if takes { "; --all-files imports them" } else { "" };
        let no_runs = if files == 1 { "is no run" } else { "are no runs" };
        Ok(self.out.line(format!("passed over {what} that {no_runs}: {listed}{advice}"))?)
    }

    /// So many files more are to come.
    pub(crate) fn expects(&mut self, files: usize) {
        if let Some(progress) = &mut self.progress {
            progress.files += files;
        }
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
        self.sums.unread_members += done.unread.len() as u64;
        if self.out.is_json() {
            self.imported_json(source, done)?;
        } else {
            self.imported_text(source, done)?;
        }
        Ok(())
    }

    fn imported_json(&mut self, source: &Source, done: &Imported) -> Result<(), Failure> {
        let path = source.location.path();
        let file = path.to_string_lossy();
        for (line, damage) in &done.damaged {
            let damage = damage.as_str();
            self.out.object(&Event::DamagedLine { file: &file, line: *line, damage })?;
        }
        for (member, why) in &done.unread {
            self.out.object(&Event::UnreadMember { file: &file, member, why })?;
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
            unread_members: done.unread.len() as u64,
        })?;
        Ok(())
    }

    fn imported_text(&mut self, source: &Source, done: &Imported) -> Result<(), Failure> {
        let file = shown(&source.location.path());
        self.out.line(format!(
            "{} {}/{} ({}): {}, {}, {}",
            done.how.text(self.sums.dry_run),
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
        for (member, why) in done.unread.iter().take(LISTED) {
            let place = match &source.parts {
                Some(parts) => shown(&parts.path(member)),
                None => format!("{file}: {member}"),
            };
            self.out.line(if member.is_empty() {
                format!("  {file}: {why}")
            } else {
                format!("  {place}: {why}; its bytes are kept, and it is not read")
            })?;
        }
        let unlisted = done.unread.len().saturating_sub(LISTED) as u64;
        if unlisted > 0 {
            self.out.line(format!("  {file}: {} more not read", count(unlisted, "member")))?;
        }
        Ok(())
    }

    /// The sums, and how the command ends.
    pub(crate) fn finish(mut self, store: &Path) -> Result<Exit, Failure> {
        self.clear();
        self.report_sidecars()?;
        if self.out.is_json() {
            self.out.object(&Event::Summary(&self.sums))?;
        } else {
            let text = self.summary(store);
            self.out.line(text)?;
        }
        self.out.flush()?;
        let sums = &self.sums;
        let unknown = if self.skips_unknown { 0 } else { sums.unknown };
        let failed = [sums.errors, sums.missing, unknown, sums.damaged_lines, sums.unread_members];
        Ok(if failed.iter().any(|n| *n > 0) { Exit::Error } else { Exit::Fine })
    }

    fn summary(&self, store: &Path) -> String {
        let sums = &self.sums;
        let mut text = format!(
            "{} {} into {}: {}, {}",
            count(sums.imported + sums.continued + sums.replaced, "run"),
            if sums.dry_run { "would be imported" } else { "imported" },
            shown(store),
            count(sums.records, "record"),
            size(sums.bytes)
        );
        for (n, what) in [
            (sums.already_there, "already there"),
            (sums.replaced, "of them anew"),
            (sums.skipped, "skipped"),
            (sums.unknown, "not recognised"),
            (sums.missing, "not found"),
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
        if sums.unread_members > 0 {
            let _ = write!(text, "; {} not read", count(sums.unread_members, "member"));
        }
        if sums.dry_run {
            text.push_str("; nothing was written");
        }
        text
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

    /// For people.
    fn text(self, is_dry_run: bool) -> &'static str {
        match self {
            Self::AlreadyThere => "already there",
            Self::Imported if is_dry_run => "would import",
            Self::Continued if is_dry_run => "would continue",
            Self::Replaced if is_dry_run => "would replace",
            _ => self.as_str(),
        }
    }
}
