//! `runlog doctor`: what is wrong with a store and with its place, and what to do about it.
//!
//! It only reads.

mod report;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::SystemTime;

use runlog::storage::FileSystem;
use runlog::{Error, Reader, RunQuery, RunRef, RunStatus, RunSummary, Timestamp};
use rustix::fs::{StatVfsMountFlags, statvfs};

use crate::du::Parts;
use crate::failure::{Exit, Failure, with_sources};
use crate::formats::origin::Origin;
use crate::output::{Output, count, size};
use crate::verify::Damages;

use self::report::{Report, Severity};

/// Times that are this far ahead are not a matter of rounding.
const AHEAD: i64 = 60_000_000_000;

/// How many places with damage and how many runs are named.
const NAMED: usize = 3;

/// How many extents of free space are little, and how few are too few: one for the next segment,
/// and one for a copy of compaction.
const LITTLE: u64 = 16;
const TOO_FEW: u64 = 2;

/// Dead bytes below this are not worth a word.
const MANY_DEAD: u64 = 64 << 20;

/// The options of `doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Do not read the whole store to look for damage.
    #[arg(long)]
    quick: bool,
}

pub(crate) fn run(args: &DoctorArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let mut report = Report::new(path);
    file_system(path, &mut report);
    match Reader::open(path) {
        Ok(log) => {
            let now = Timestamp::from(SystemTime::now());
            Patient { log: &log, path, now, out }.examine(args.quick, &mut report)?;
        }
        Err(error) => does_not_open(&error, &mut report),
    }
    report.print(out)
}

fn file_system(path: &Path, report: &mut Report) {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    // The store may not be there yet.
    let place = if path.exists() { path } else { folder.unwrap_or(Path::new(".")) };
    let found = FileSystem::of_path(place).and_then(|kind| Ok((kind, statvfs(place)?.f_flag)));
    let check = "file_system";
    match found {
        Err(error) => {
            let message = format!("the system does not say what it is: {error}");
            report.add(check, Severity::Error, message);
        }
        Ok((kind, flags)) => {
            let name = kind.name().unwrap_or("of a kind that is not known here");
            if kind.network().is_some() {
                let message =
                    format!("{name}, a network file system, where a writer lock may not hold");
                let advice = "move the store to a local disk; it is not opened for writing here";
                report.add(check, Severity::Error, message).advise(advice);
            } else if flags.contains(StatVfsMountFlags::RDONLY) {
                let message = format!("{name}, read-only: the store can be read, and not written");
                report.add(check, Severity::Warning, message);
            } else {
                report.add(check, Severity::Ok, name);
            }
        }
    }
}

/// Says why the store does not open, and what to do.
fn does_not_open(error: &Error, report: &mut Report) {
    let salvage = salvage(report);
    let finding = report.add("open", Severity::Error, with_sources(error));
    if error.is_corruption() {
        let advice = "read all that can still be read into a new store; this one is only read";
        finding.damaged().advise(advice).command(salvage);
    } else if error.is_not_found() {
        finding.advise("check the path; `import` and `put` make a store with --create");
    } else if error.is_not_a_store() {
        let advice = "check the path; if this was a store, read what is left of it";
        finding.advise(advice).command(salvage);
    } else if error.is_permission_denied() {
        finding.advise("ask its owner for the right to read it");
    } else if error.is_unsupported() {
        finding.advise("update runlog");
    }
}

fn salvage(report: &Report) -> String {
    format!("runlog salvage {} salvaged.runlog", report.store)
}

/// A store that opens.
struct Patient<'a> {
    log: &'a Reader,
    path: &'a Path,
    now: Timestamp,
    out: &'a Output,
}

impl Patient<'_> {
    fn examine(&self, quick: bool, report: &mut Report) -> Result<(), Failure> {
        let has_writer = self.opened(report)?;
        self.damage(quick, report)?;
        self.space(report)?;
        let newest = self.runs(has_writer, report)?;
        match newest.filter(|at| at.0.saturating_sub(self.now.0) > AHEAD) {
            None => report.add("clock", Severity::Ok, "no record is later than it"),
            Some(at) => {
                let (now, at) = (self.out.time(self.now), self.out.time(at));
                let message = format!("it says {now}, and a record is of {at}");
                let advice = "set the clock, by which limits by age and times of new records go; \
                              or a program gives its records a time of its own";
                report.add("clock", Severity::Warning, message).advise(advice)
            }
        };
        self.rights(report)
    }

    /// Whether a process writes it, and else what opening it for writing would find.
    fn opened(&self, report: &mut Report) -> Result<bool, Failure> {
        let (owner, found) = (self.log.writer()?, self.log.recovery_report());
        if let Some(owner) = &owner {
            let since = self.out.time(owner.since);
            let message = format!("{owner} has it open for writing since {since}");
            report.add("open", Severity::Ok, message);
        } else if found.clean {
            report.add("open", Severity::Ok, "the store opens, and was closed properly");
        } else {
            let message = "the store was not closed: its writer died, or its machine went down";
            let advice = "nothing to do: the next process that opens it for writing recovers it";
            report.add("open", Severity::Note, message).advise(advice);
        }
        Ok(owner.is_some())
    }

    fn damage(&self, quick: bool, report: &mut Report) -> Result<(), Failure> {
        let Damages { problems, .. } = Damages::of(self.log, quick)?;
        let (verify, salvage) = (report.runlog("verify"), salvage(report));
        for problem in problems.iter().take(NAMED) {
            let advice = "copy the file; the other records can be read; for a store without it:";
            let finding = report.add("damage", Severity::Error, problem.to_string());
            finding.damaged().advise(advice).command(&*salvage);
        }
        if problems.len() > NAMED {
            let more = count((problems.len() - NAMED) as u64, "more place");
            let finding = report.add("damage", Severity::Error, format!("{more} with damage"));
            finding.damaged().advise("verify lists all").command(verify);
        } else if problems.is_empty() && quick {
            let message = "none where it was looked for; not every byte was read";
            report.add("damage", Severity::Ok, message).command(verify);
        } else if problems.is_empty() {
            report.add("damage", Severity::Ok, "none: every byte was read");
        }
        Ok(())
    }

    fn space(&self, report: &mut Report) -> Result<(), Failure> {
        let disk = statvfs(self.path).map_err(|error| Failure::file(self.path, error.into()))?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let stats = self.log.stats()?;
        let dead = Parts::of(self.path, &stats, &self.log.usage()?)?.dead_bytes;
        let (gc, compact) = (report.runlog("gc --keep 100 --dry-run"), report.runlog("compact"));
        let severity = of_space(free, (stats.file_len, stats.extent_len, stats.free_extents));
        let len = size(stats.file_len);
        let message = format!("{} are free on the disk, the store has {len}", size(free));
        let finding = report.add("space", severity, message);
        if severity == Severity::Error {
            let advice =
                "the next append may find the disk full; free space, also by deleting runs";
            finding.advise(advice).command(gc);
        } else if severity == Severity::Warning {
            finding.advise("free space, or keep fewer runs").command(gc);
        }
        let message = format!("{} of {len} are dead", size(dead));
        if dead > MANY_DEAD.max(stats.file_len / 2) {
            let advice = "a writer frees most of it in the background; at once does:";
            report.add("dead_bytes", Severity::Note, message).advise(advice).command(compact);
        } else {
            report.add("dead_bytes", Severity::Ok, message);
        }
        Ok(())
    }

    /// The runs in progress. Returns the time of the newest record.
    fn runs(&self, has_writer: bool, report: &mut Report) -> Result<Option<Timestamp>, Failure> {
        let mut newest = None;
        let (mut left, mut imported) = (Vec::new(), 0_u64);
        for run in self.log.runs(&RunQuery::new()) {
            let run = run?;
            newest = newest.max(Some(run.last_at));
            if run.status == RunStatus::InProgress {
                if self.is_imported(&run)? { imported += 1 } else { left.push(run) }
            }
        }
        let living = left.len() as u64;
        if has_writer || living + imported == 0 {
            let message = format!("{} in progress", count(living + imported, "run"));
            report.add("runs", Severity::Ok, message);
            return Ok(newest);
        }
        if living > 0 {
            let name = |run: &RunSummary| format!("{}/{}", run.agent, run.run);
            let names: Vec<_> = left.iter().take(NAMED).map(name).collect();
            let (names, more) = (names.join(", "), if left.len() > NAMED { ", ..." } else { "" });
            let runs = count(living, "run");
            let message =
                format!("{runs} in progress, and no process writes the store: {names}{more}");
            let advice = "end them, unless the program goes on with them when it starts again";
            let adopt = report.runlog("adopt --dry-run");
            report.add("runs", Severity::Warning, message).advise(advice).command(adopt);
        }
        if imported > 0 {
            let runs = count(imported, "run");
            let why = "since the imported file does not say that it ended";
            report.add("runs", Severity::Note, format!("{runs} in progress, {why}"));
        }
        Ok(newest)
    }

    fn is_imported(&self, run: &RunSummary) -> Result<bool, Failure> {
        match self.log.metadata(RunRef::from(run)) {
            Ok(metadata) => Ok(Origin::of(metadata.as_ref()).is_some()),
            // It was deleted since, or it is damaged: `verify` names the damage.
            Err(error) if error.is_not_found() || error.is_corruption() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn rights(&self, report: &mut Report) -> Result<(), Failure> {
        let found = fs::metadata(self.path).map_err(|source| Failure::file(self.path, source))?;
        let mode = found.mode() & 0o777;
        let store = report.store.clone();
        if mode & 0o022 != 0 {
            let message = format!("mode {mode:03o}: other users may write it");
            let advice = "a program that writes it without the lock damages it";
            let finding = report.add("rights", Severity::Warning, message);
            finding.advise(advice).command(format!("chmod go-w {store}"));
        } else if mode & 0o044 != 0 {
            let message = format!("mode {mode:03o}: other users may read it");
            let finding = report.add("rights", Severity::Note, message);
            finding.command(format!("chmod go-r {store}"));
        } else {
            let message = format!("mode {mode:03o}, only its owner has access");
            report.add("rights", Severity::Ok, message);
        }
        Ok(())
    }
}

/// How bad so much free space is for a store of this length, whose extents have this size, and so
/// many of them are free within the file.
fn of_space(free: u64, (file_len, extent_len, free_extents): (u64, u64, u64)) -> Severity {
    let extents = (free / extent_len.max(1)).saturating_add(free_extents);
    if extents < TOO_FEW {
        Severity::Error
    } else if extents < LITTLE || free < file_len / 10 {
        Severity::Warning
    } else {
        Severity::Ok
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_is_enough_for_the_next_segment_and_a_copy_or_it_is_an_error() {
        const EXTENT: u64 = 4 << 20;
        for (free, file, within, severity) in [
            (0, EXTENT, 0, Severity::Error),
            (2 * EXTENT - 1, EXTENT, 0, Severity::Error),
            (2 * EXTENT - 1, EXTENT, 1, Severity::Warning),
            (0, 20 * EXTENT, 20, Severity::Warning),
            (15 * EXTENT, EXTENT, 0, Severity::Warning),
            (16 * EXTENT, EXTENT, 0, Severity::Ok),
            (16 * EXTENT, 161 * EXTENT, 0, Severity::Warning),
            (u64::MAX, u64::MAX, u64::MAX, Severity::Ok),
        ] {
            assert_eq!(of_space(free, (file, EXTENT, within)), severity, "{free} and {within}");
        }
    }
}
