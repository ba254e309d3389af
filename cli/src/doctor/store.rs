//! What is looked at of the store.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use runlog::format::map::superblock::FLAG_INDEX_OPENING;
use runlog::{Error, Reader, RunQuery, RunRef, RunStatus, RunSummary, Stats, Timestamp};
use rustix::fs::Access;

use crate::amount::age;
use crate::doctor::report::{Area, Report, Severity, quoted};
use crate::doctor::{file_system, since};
use crate::du::Parts;
use crate::examination::{Amounts, Damages};
use crate::failure::{Failure, with_sources};
use crate::formats::origin::Origin;
use crate::inspect::{Front, Raw};
use crate::output::{count, size};

/// Holds that are older than this are told.
const OLD_HOLD: Duration = Duration::from_secs(30 * 24 * 3600);

/// Times that are this far ahead are not a matter of rounding.
const AHEAD: i64 = 60_000_000_000;

/// How many runs are named.
const NAMED: usize = 3;

/// How many extents of free space are little, and how few are too few: one for the next segment,
/// and one for a copy of compaction.
const LITTLE: u64 = 16;
const TOO_FEW: u64 = 2;

/// Dead bytes below this are not worth a word.
const MANY_DEAD: u64 = 64 << 20;

/// Says why the store does not open, and what to do.
pub(super) fn does_not_open(error: &Error, report: &mut Report) {
    let store = report.store().to_owned();
    let message = with_sources(error);
    let finding = report.add((Area::Store, "open"), Severity::Error, message);
    if error.is_corruption() {
        finding
            .damaged()
            .advise("read all that can still be read into a new store; this one is only read")
            .command(format!("runlog salvage {store} salvaged.runlog"));
    } else if error.is_not_found() {
        finding.advise("check the path; `import` and `put` make a store with --create");
    } else if error.is_not_a_store() {
        finding
            .advise("check the path; if this was a store, read what is left of it")
            .command(format!("runlog salvage {store} salvaged.runlog"));
    } else if error.is_permission_denied() {
        finding.advise("ask its owner for the right to read it");
    } else if error.is_unsupported() {
        finding.advise("update runlog");
    }
}

/// A store that opens.
pub(super) struct Patient<'a> {
    pub(super) log: &'a Reader,
    pub(super) path: &'a Path,
    pub(super) now: Timestamp,
}

impl Patient<'_> {
    pub(super) fn examine(&self, quick: bool, report: &mut Report) -> Result<(), Failure> {
        let has_writer = self.writer(report)?;
        self.recovery(has_writer, report);
        self.damage(quick, report)?;
        let Amounts { stats, parts, .. } = Amounts::of(self.log, self.path)?;
        self.space(&stats, &parts, report)?;
        self.index(&stats, report)?;
        let newest = self.runs(has_writer, report)?;
        self.holds(report)?;
        self.times(newest, report)?;
        self.durable(&stats, has_writer, report);
        self.rights(report)
    }

    fn writer(&self, report: &mut Report) -> Result<bool, Failure> {
        let owner = self.log.writer()?;
        let message = match &owner {
            None => "no process has the store open for writing".to_owned(),
            Some(owner) => {
                let since = report.time(owner.since);
                format!("{owner} has it open for writing since {since}")
            }
        };
        report.add((Area::Store, "writer"), Severity::Ok, message);
        Ok(owner.is_some())
    }

    /// What opening it for writing would find.
    fn recovery(&self, has_writer: bool, report: &mut Report) {
        let found = self.log.recovery_report();
        let check = (Area::Store, "open");
        if has_writer {
            report.add(check, Severity::Ok, "the store opens");
        } else if found.clean {
            report.add(check, Severity::Ok, "the store opens, and was closed properly");
        } else {
            let message = "the store was not closed: its writer died, or its machine went down";
            let advice = "nothing to do: the next process that opens it for writing recovers it";
            report.add(check, Severity::Note, message).advise(advice);
        }
        if let Some(torn) = found.torn.filter(|_| !has_writer) {
            let message =
                format!("a crash tore the log at {torn}: the bytes after it do not count");
            report.add((Area::Store, "torn"), Severity::Note, message);
        }
    }

    fn damage(&self, quick: bool, report: &mut Report) -> Result<(), Failure> {
        let Damages { problems, .. } = Damages::of(self.log, quick)?;
        let check = (Area::Store, "damage");
        let (verify, store) = (report.runlog("verify"), report.store().to_owned());
        for problem in problems.iter().take(NAMED) {
            report
                .add(check, Severity::Error, problem.to_string())
                .damaged()
                .advise("copy the file; the other records can be read; for a store without it:")
                .command(format!("runlog salvage {store} salvaged.runlog"));
        }
        if problems.len() > NAMED {
            let more = count((problems.len() - NAMED) as u64, "more place");
            report
                .add(check, Severity::Error, format!("{more} with damage"))
                .damaged()
                .advise("verify lists all")
                .command(verify);
        } else if problems.is_empty() && quick {
            let message = "none where it was looked for; not every byte was read";
            report.add(check, Severity::Ok, message).command(verify);
        } else if problems.is_empty() {
            report.add(check, Severity::Ok, "none: every byte was read");
        }
        Ok(())
    }

    fn space(&self, stats: &Stats, parts: &Parts, report: &mut Report) -> Result<(), Failure> {
        let check = (Area::Store, "space");
        let found =
            file_system::of(self.path).map_err(|source| Failure::file(self.path, source))?;
        let gc = report.runlog("gc --keep 100 --dry-run");
        let sizes = (stats.file_len, stats.extent_len, stats.free_extents);
        let severity = of_space(found.free_bytes, sizes);
        let message = format!(
            "{} are free on the disk, the store has {}",
            size(found.free_bytes),
            size(stats.file_len)
        );
        let finding = report.add(check, severity, message);
        if severity == Severity::Error {
            let advice =
                "the next append may find the disk full; free space, also by deleting runs";
            finding.advise(advice).command(gc);
        } else if severity == Severity::Warning {
            finding.advise("free space, or keep fewer runs").command(gc);
        }
        let check = (Area::Store, "dead_bytes");
        let message = format!("{} of {} are dead", size(parts.dead_bytes), size(stats.file_len));
        if parts.dead_bytes > MANY_DEAD.max(stats.file_len / 2) {
            let compact = report.runlog("compact");
            report
                .add(check, Severity::Note, message)
                .advise("a writer frees most of it in the background; at once does:")
                .command(compact);
        } else {
            report.add(check, Severity::Ok, message);
        }
        Ok(())
    }

    fn index(&self, stats: &Stats, report: &mut Report) -> Result<(), Failure> {
        let check = (Area::Store, "index");
        let front = Front::read(&Raw::open(self.path)?)?;
        let was_opening = front.newest().is_some_and(|block| block.flags & FLAG_INDEX_OPENING != 0);
        if was_opening && self.log.writer()?.is_none() {
            let message =
                "the last writer died while it opened the index; the next one rebuilds it";
            report.add(check, Severity::Note, message);
        } else if stats.index_extents == 0 {
            report.add(check, Severity::Ok, "none, which is right for a small store");
        } else {
            report.add(check, Severity::Ok, count(stats.index_extents, "extent"));
        }
        Ok(())
    }

    /// The time of the newest record.
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
        let check = (Area::Store, "runs");
        let living = left.len() as u64;
        let adopt = report.runlog("adopt --dry-run");
        if has_writer || living + imported == 0 {
            let message = format!("{} in progress", count(living + imported, "run"));
            report.add(check, Severity::Ok, message);
            return Ok(newest);
        }
        if living > 0 {
            let are = if living == 1 { "is" } else { "are" };
            let message = format!(
                "{} {are} in progress, and no process writes the store: {}",
                count(living, "run"),
                named(left.iter())
            );
            report
                .add(check, Severity::Warning, message)
                .advise("end them, unless the program goes on with them when it starts again")
                .command(adopt);
        }
        if imported > 0 {
            let message = format!(
                "{} in progress, since the imported file does not say that it ended",
                count(imported, "run")
            );
            report.add(check, Severity::Note, message);
        }
        Ok(newest)
    }

    fn is_imported(&self, run: &RunSummary) -> Result<bool, Failure> {
        match self.log.metadata(RunRef::from(run)) {
            Ok(metadata) => Ok(Origin::of(metadata.as_ref()).is_some()),
            // It was deleted since, or what it says is damaged, which is told elsewhere.
            Err(error) if error.is_not_found() || error.is_corruption() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn holds(&self, report: &mut Report) -> Result<(), Failure> {
        let check = (Area::Store, "holds");
        let held = match self.log.held_runs() {
            Ok(held) => held,
            // It is told as damage.
            Err(error) if error.is_corruption() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let is_old = |at| since(at, self.now).is_some_and(|age| age > OLD_HOLD);
        let old: Vec<_> = held.iter().filter(|held| is_old(held.since)).collect();
        let Some(first) = old.first() else {
            let message = format!("{} held", count(held.len() as u64, "run"));
            report.add(check, Severity::Ok, message);
            return Ok(());
        };
        let name = quoted(&format!("{}/{}", first.agent, first.run));
        let release = report.runlog(&format!("release {name}"));
        let message = format!(
            "{} held for more than {}: no limit evicts them",
            count(old.len() as u64, "run"),
            age(OLD_HOLD)
        );
        let oldest = report.time(first.since);
        let advice = format!("release what need not be kept; the oldest is of {oldest}");
        report.add(check, Severity::Note, message).advise(advice).command(release);
        Ok(())
    }

    /// The clock, and the newest record.
    fn times(&self, newest: Option<Timestamp>, report: &mut Report) -> Result<(), Failure> {
        let (clock, last) = ((Area::Machine, "clock"), (Area::Store, "last_record"));
        let raw = Front::read(&Raw::open(self.path)?)?;
        let created = raw.header.ok().map(|header| header.created);
        let opened = raw.owner.ok().map(|owner| owner.since);
        let is_ahead = |at: &Timestamp| at.0.saturating_sub(self.now.0) > AHEAD;
        let advice = "set the clock; limits by age and times of new records go by it";
        if let Some(at) = [created, opened].into_iter().flatten().find(is_ahead) {
            let (now, at) = (report.time(self.now), report.time(at));
            let message = format!("it says {now}, and the store was opened at {at}");
            report.add(clock, Severity::Warning, message).advise(advice);
        } else if let Some(at) = newest.filter(is_ahead) {
            let (now, at) = (report.time(self.now), report.time(at));
            let message = format!("it says {now}, and a record is of {at}");
            let advice = format!("{advice}; or a program gives its records a time of its own");
            report.add(clock, Severity::Warning, message).advise(advice);
        } else {
            report.add(clock, Severity::Ok, "nothing in the store is later than it");
        }
        match newest.and_then(|at| Some((at, since(at, self.now)?))) {
            None => {
                report.add(last, Severity::Ok, "none of the past");
            }
            Some((at, ago)) => {
                let ago = age(Duration::from_secs(ago.as_secs()));
                let message = format!("{ago} ago, at {}", report.time(at));
                report.add(last, Severity::Ok, message);
            }
        }
        Ok(())
    }

    fn durable(&self, stats: &Stats, has_writer: bool, report: &mut Report) {
        let check = (Area::Store, "durable");
        if stats.durable >= stats.end {
            report.add(check, Severity::Ok, "all of the log survives power loss");
        } else if has_writer {
            let message = format!(
                "the log up to {} was said to survive power loss; its end is {}",
                stats.durable, stats.end
            );
            report.add(check, Severity::Ok, message);
        } else {
            let message = format!("what is behind {} may not survive power loss", stats.durable);
            let advice = "nothing to do: opening the store for writing makes it durable";
            report.add(check, Severity::Note, message).advise(advice);
        }
    }

    fn rights(&self, report: &mut Report) -> Result<(), Failure> {
        let check = (Area::Store, "rights");
        let found = fs::metadata(self.path).map_err(|source| Failure::file(self.path, source))?;
        let mode = found.mode() & 0o777;
        let store = report.store().to_owned();
        if mode & 0o022 != 0 {
            report
                .add(check, Severity::Warning, format!("mode {mode:03o}: other users may write it"))
                .advise("a program that writes it without the lock damages it")
                .command(format!("chmod go-w {store}"));
        } else if mode & 0o044 != 0 {
            report
                .add(check, Severity::Note, format!("mode {mode:03o}: other users may read it"))
                .command(format!("chmod go-r {store}"));
        } else {
            report.add(check, Severity::Ok, format!("mode {mode:03o}, only its owner has access"));
        }
        if rustix::fs::access(self.path, Access::WRITE_OK).is_err() {
            let message = format!("this user may only read it; it belongs to user {}", found.uid());
            report.add(check, Severity::Note, message);
        }
        Ok(())
    }
}

/// How bad so much free space is for a store of this length, with extents of this size, of which so
/// many are free within the file.
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

/// The first runs by their names.
fn named<'a>(runs: impl ExactSizeIterator<Item = &'a RunSummary>) -> String {
    let more = if runs.len() > NAMED { ", ..." } else { "" };
    let names: Vec<_> = runs.take(NAMED).map(|run| format!("{}/{}", run.agent, run.run)).collect();
    format!("{}{more}", names.join(", "))
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
