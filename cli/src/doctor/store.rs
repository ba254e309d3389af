//! What is looked at of the store.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use runlog::format::map::superblock::FLAG_INDEX_OPENING;
use runlog::{Error, Reader, RunQuery, RunRef, RunStatus, RunSummary, Stats, Timestamp};
use rustix::fs::Access;

use crate::amount::age;
use crate::doctor::report::{Report, Severity, quoted};
use crate::doctor::{file_system, since};
use crate::du::Parts;
use crate::failure::{Failure, with_sources};
use crate::formats::origin::Origin;
use crate::inspect::{Front, Raw};
use crate::output::{count, size};
use crate::verify::Damages;

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
    let salvage = salvage(report);
    let finding = report.error("open", with_sources(error));
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
pub(super) struct Patient<'a> {
    pub(super) log: &'a Reader,
    pub(super) path: &'a Path,
    pub(super) now: Timestamp,
}

impl Patient<'_> {
    pub(super) fn examine(&self, quick: bool, report: &mut Report) -> Result<(), Failure> {
        let owner = self.log.writer()?;
        let has_writer = owner.is_some();
        let written = owner.map(|owner| (owner.to_string(), report.time(owner.since)));
        let message = written.map_or_else(
            || "no process has the store open for writing".to_owned(),
            |(owner, since)| format!("{owner} has it open for writing since {since}"),
        );
        report.ok("writer", message);
        self.recovery(has_writer, report);
        self.damage(quick, report)?;
        let stats = self.log.stats()?;
        self.space(&stats, report)?;
        let front = Front::read(&Raw::open(self.path)?)?;
        let was_opening = front.newest().is_some_and(|block| block.flags & FLAG_INDEX_OPENING != 0);
        if was_opening && !has_writer {
            let message = "the last writer died while it opened the index; the next rebuilds it";
            report.note("index", message);
        } else if stats.index_extents == 0 {
            report.ok("index", "none, which is right for a small store");
        } else {
            report.ok("index", count(stats.index_extents, "extent"));
        }
        let newest = self.runs(has_writer, report)?;
        self.holds(report)?;
        self.times(newest, &front, report);
        durable(&stats, has_writer, report);
        self.rights(report)
    }

    /// What opening it for writing would find.
    fn recovery(&self, has_writer: bool, report: &mut Report) {
        let found = self.log.recovery_report();
        if has_writer {
            report.ok("open", "the store opens");
        } else if found.clean {
            report.ok("open", "the store opens, and was closed properly");
        } else {
            let message = "the store was not closed: its writer died, or its machine went down";
            let advice = "nothing to do: the next process that opens it for writing recovers it";
            report.note("open", message).advise(advice);
        }
        if let Some(torn) = found.torn.filter(|_| !has_writer) {
            let message =
                format!("a crash tore the log at {torn}: the bytes after it do not count");
            report.note("torn", message);
        }
    }

    fn damage(&self, quick: bool, report: &mut Report) -> Result<(), Failure> {
        let Damages { problems, .. } = Damages::of(self.log, quick)?;
        let (verify, salvage) = (report.runlog("verify"), salvage(report));
        for problem in problems.iter().take(NAMED) {
            let advice = "copy the file; the other records can be read; for a store without it:";
            let finding = report.error("damage", problem.to_string());
            finding.damaged().advise(advice).command(&*salvage);
        }
        if problems.len() > NAMED {
            let more = count((problems.len() - NAMED) as u64, "more place");
            let finding = report.error("damage", format!("{more} with damage"));
            finding.damaged().advise("verify lists all").command(verify);
        } else if problems.is_empty() && quick {
            let message = "none where it was looked for; not every byte was read";
            report.add("damage", Severity::Ok, message).command(verify);
        } else if problems.is_empty() {
            report.ok("damage", "none: every byte was read");
        }
        Ok(())
    }

    fn space(&self, stats: &Stats, report: &mut Report) -> Result<(), Failure> {
        let found =
            file_system::of(self.path).map_err(|source| Failure::file(self.path, source))?;
        let dead = Parts::of(self.path, stats, &self.log.usage()?)?.dead_bytes;
        let (gc, compact) = (report.runlog("gc --keep 100 --dry-run"), report.runlog("compact"));
        let sizes = (stats.file_len, stats.extent_len, stats.free_extents);
        let severity = of_space(found.free_bytes, sizes);
        let (free, len) = (size(found.free_bytes), size(stats.file_len));
        let message = format!("{free} are free on the disk, the store has {len}");
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
            report.note("dead_bytes", message).advise(advice).command(compact);
        } else {
            report.ok("dead_bytes", message);
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
        let living = left.len() as u64;
        if has_writer || living + imported == 0 {
            report.ok("runs", format!("{} in progress", count(living + imported, "run")));
            return Ok(newest);
        }
        if living > 0 {
            let are = if living == 1 { "is" } else { "are" };
            let (runs, names) = (count(living, "run"), named(left.iter()));
            let message =
                format!("{runs} {are} in progress, and no process writes the store: {names}");
            let advice = "end them, unless the program goes on with them when it starts again";
            let adopt = report.runlog("adopt --dry-run");
            report.warning("runs", message).advise(advice).command(adopt);
        }
        if imported > 0 {
            let runs = count(imported, "run");
            let why = "since the imported file does not say that it ended";
            report.note("runs", format!("{runs} in progress, {why}"));
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
        let held = match self.log.held_runs() {
            // It is told as damage.
            Err(error) if error.is_corruption() => return Ok(()),
            held => held?,
        };
        let is_old = |at| since(at, self.now).is_some_and(|age| age > OLD_HOLD);
        let old: Vec<_> = held.iter().filter(|held| is_old(held.since)).collect();
        let Some(first) = old.first() else {
            report.ok("holds", format!("{} held", count(held.len() as u64, "run")));
            return Ok(());
        };
        let name = quoted(&format!("{}/{}", first.agent, first.run));
        let release = report.runlog(&format!("release {name}"));
        let (runs, limit) = (count(old.len() as u64, "run"), age(OLD_HOLD));
        let message = format!("{runs} held for more than {limit}: no limit evicts them");
        let oldest = report.time(first.since);
        let advice = format!("release what need not be kept; the oldest is of {oldest}");
        report.note("holds", message).advise(advice).command(release);
        Ok(())
    }

    /// The clock, and the newest record.
    fn times(&self, newest: Option<Timestamp>, front: &Front, report: &mut Report) {
        let created = front.header.as_ref().ok().map(|header| header.created);
        let opened = front.owner.as_ref().ok().map(|owner| owner.since);
        let is_ahead = |at: &Timestamp| at.0.saturating_sub(self.now.0) > AHEAD;
        let opened = [created, opened].into_iter().flatten().find(is_ahead);
        let said = opened.map(|at| (at, "the store was opened at"));
        if let Some((at, what)) = said.or(newest.filter(is_ahead).zip(Some("a record is of"))) {
            let (now, at) = (report.time(self.now), report.time(at));
            let advice = "set the clock, by which limits by age and times of new records go; or a \
                          program gives its records a time of its own";
            report.warning("clock", format!("it says {now}, and {what} {at}")).advise(advice);
        } else {
            report.ok("clock", "nothing in the store is later than it");
        }
        let message = match newest.and_then(|at| Some((at, since(at, self.now)?))) {
            None => "none of the past".to_owned(),
            Some((at, ago)) => format!("{} ago, at {}", age(ago), report.time(at)),
        };
        report.ok("last_record", message);
    }

    fn rights(&self, report: &mut Report) -> Result<(), Failure> {
        let found = fs::metadata(self.path).map_err(|source| Failure::file(self.path, source))?;
        let mode = found.mode() & 0o777;
        let store = report.store.clone();
        if mode & 0o022 != 0 {
            let message = format!("mode {mode:03o}: other users may write it");
            let advice = "a program that writes it without the lock damages it";
            let finding = report.warning("rights", message);
            finding.advise(advice).command(format!("chmod go-w {store}"));
        } else if mode & 0o044 != 0 {
            let message = format!("mode {mode:03o}: other users may read it");
            report.note("rights", message).command(format!("chmod go-r {store}"));
        } else {
            report.ok("rights", format!("mode {mode:03o}, only its owner has access"));
        }
        if rustix::fs::access(self.path, Access::WRITE_OK).is_err() {
            let message = format!("this user may only read it; it belongs to user {}", found.uid());
            report.note("rights", message);
        }
        Ok(())
    }
}

fn durable(stats: &Stats, has_writer: bool, report: &mut Report) {
    let Stats { durable, end, .. } = stats;
    if durable >= end {
        report.ok("durable", "all of the log survives power loss");
    } else if has_writer {
        let known = format!("the log up to {durable} was said to survive power loss");
        report.ok("durable", format!("{known}; its end is {end}"));
    } else {
        let message = format!("what is behind {durable} may not survive power loss");
        let advice = "nothing to do: opening the store for writing makes it durable";
        report.note("durable", message).advise(advice);
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
