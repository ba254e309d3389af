//! What the user is told of an export to files: a line for each run, and the sums.

use std::path::{Path, PathBuf};

use runlog::RunSummary;
use serde::Serialize;

use crate::escape::shown;
use crate::failure::{Exit, Failure};
use crate::message::complain;
use crate::output::{Output, count, size};

use super::lines::Form;
use super::outcome::{Why, Written};

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Run {
        run: &'a str,
        agent: &'a str,
        file: String,
        format: String,
        status: &'static str,
        records: u64,
        bytes: u64,
        damaged_records: u64,
    },
    Skipped {
        run: &'a str,
        agent: &'a str,
        why: &'static str,
    },
    Error {
        run: &'a str,
        agent: &'a str,
        file: Option<String>,
        why: &'static str,
        error: String,
    },
    Summary(&'a Sums),
}

/// The sums over all runs.
#[derive(Debug, Default, Serialize)]
struct Sums {
    exported: u64,
    skipped: u64,
    errors: u64,
    records: u64,
    bytes: u64,
    damaged_records: u64,
}

/// Tells of runs as they are done.
#[derive(Debug)]
pub(crate) struct Reporter<'a> {
    out: &'a mut Output,
    target: &'a Path,
    sums: Sums,
    exit: Exit,
}

impl<'a> Reporter<'a> {
    pub(crate) fn new(out: &'a mut Output, target: &'a Path) -> Self {
        Self { out, target, sums: Sums::default(), exit: Exit::Fine }
    }

    fn path(&self, names: &[String]) -> PathBuf {
        let mut path = self.target.to_path_buf();
        path.extend(names);
        path
    }

    /// A run is a file now.
    pub(crate) fn exported(
        &mut self,
        run: &RunSummary,
        names: &[String],
        form: &Form,
        written: &Written,
    ) -> Result<(), Failure> {
        self.sums.exported += 1;
        self.sums.records += written.records;
        self.sums.bytes += written.bytes;
        self.sums.damaged_records += written.damaged;
        let (path, format) = (self.path(names), form.name());
        if self.out.is_json() {
            self.out.object(&Event::Run {
                run: run.run.as_str(),
                agent: run.agent.as_str(),
                file: path.to_string_lossy().into_owned(),
                format,
                status: run.status.as_str(),
                records: written.records,
                bytes: written.bytes,
                damaged_records: written.damaged,
            })?;
        } else {
            let (records, bytes) = (count(written.records, "record"), size(written.bytes));
            let file = shown(&path);
            self.out.line(format!("exported {file} ({format}): {records}, {bytes}"))?;
        }
        if complain_of_damage(run, written.damaged) {
            self.exit = self.exit.max(Exit::Damage);
        }
        Ok(())
    }

    /// A run is not exported.
    pub(crate) fn refused(
        &mut self,
        run: &RunSummary,
        names: Option<&[String]>,
        why: &Why,
    ) -> Result<(), Failure> {
        let (id, agent, word) = (run.run.as_str(), run.agent.as_str(), why.word());
        if matches!(why, Why::Deleted) {
            self.sums.skipped += 1;
            if self.out.is_json() {
                self.out.object(&Event::Skipped { run: id, agent, why: word })?;
            } else {
                self.out.line(format!("skipped {agent}/{id}: {why}"))?;
            }
            return Ok(());
        }
        self.sums.errors += 1;
        self.exit = self.exit.max(why.exit());
        let path = names.map(|names| self.path(names));
        if self.out.is_json() {
            let file = path.as_ref().map(|path| path.to_string_lossy().into_owned());
            let error = why.to_string();
            self.out.object(&Event::Error { run: id, agent, file, why: word, error })?;
        }
        match path {
            Some(path) => complain(&format!("{}: {why}", shown(&path))),
            None => complain(&format!("{agent}/{id}: {why}")),
        }
        Ok(())
    }

    /// The sums, and how the command ends.
    pub(crate) fn finish(self) -> Result<Exit, Failure> {
        let sums = &self.sums;
        if self.out.is_json() {
            self.out.object(&Event::Summary(sums))?;
        } else {
            let (runs, file) = (count(sums.exported, "run"), shown(self.target));
            let (records, bytes) = (count(sums.records, "record"), size(sums.bytes));
            let mut line = format!("{runs} exported to {file}: {records}, {bytes}");
            for (number, what) in [(sums.skipped, "skipped"), (sums.errors, "refused")] {
                if number > 0 {
                    line = format!("{line}; {number} {what}");
                }
            }
            self.out.line(line)?;
        }
        self.out.flush()?;
        Ok(self.exit)
    }
}

/// Tells of records that were left out; answers whether there were any.
pub(crate) fn complain_of_damage(run: &RunSummary, damaged: u64) -> bool {
    if damaged > 0 {
        let records = count(damaged, "damaged record");
        complain(&format!("{}/{}: {records} left out", run.agent, run.run));
    }
    damaged > 0
}
