//! The report of an import: a line for each file, the damaged lines, the sums.

use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};

use crate::escape::shown;
use crate::failure::{Exit, Failure};
use crate::message::complain;
use crate::output::{Output, count, grouped, size};

use super::args::ImportArgs;
use super::done::{How, Imported, Notice};
use super::progress::Progress;
use super::sidecars::{Counts, Kind};
use super::tree::Source;

/// How many damaged lines of one file are listed to people.
const LISTED: usize = 10;

/// The sums over all files.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Sums {
    event: &'static str,
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

/// Reports files as they are done.
#[derive(Debug)]
pub(crate) struct Reporter<'a> {
    out: &'a mut Output,
    pub(crate) sums: Sums,
    /// Files that are no runs, and were not reported yet.
    sidecars: Counts,
    /// Whether files that are not recognised are no failure.
    skips_unknown: bool,
    progress: Progress,
}

impl<'a> Reporter<'a> {
    pub(crate) fn new(out: &'a mut Output, args: &ImportArgs) -> Self {
        let sums = Sums { event: "summary", dry_run: args.dry_run, ..Sums::default() };
        let (skips_unknown, progress) = (args.skip_unknown, Progress::new());
        Self { out, sums, sidecars: Counts::new(), skips_unknown, progress }
    }

    /// Counts files that are no runs.
    pub(crate) fn sidecars(&mut self, counts: &Counts) {
        for (kind, n) in counts {
            *self.sidecars.entry(*kind).or_default() += n;
        }
    }

    /// Reports a file that is no run, and why.
    pub(crate) fn notice(&mut self, notice: Notice, path: &Path, why: &str) -> Result<(), Failure> {
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
        self.progress.clear();
        let mut object = json!({"event": event, "file": path.to_string_lossy()});
        if notice != Notice::Missing {
            let name = if notice == Notice::Refused { "error" } else { "why" };
            object[name] = why.into();
        }
        let is_error = matches!(notice, Notice::Missing | Notice::Refused);
        let text = format!("{text}{}: {why}", shown(path));
        if is_error {
            complain(&text);
        }
        if self.out.is_json() {
            self.out.object(&object)?;
        } else if !is_error {
            self.out.line(text)?;
        }
        Ok(())
    }

    /// Reports the number of files passed over, and their kinds, in one line.
    pub(crate) fn report_sidecars(&mut self) -> Result<(), Failure> {
        let kinds = std::mem::take(&mut self.sidecars);
        let files = kinds.values().sum();
        self.sums.sidecars += files;
        if files == 0 {
            return Ok(());
        }
        self.progress.clear();
        let name = |(kind, n): (&Kind, &u64)| format!("{} {n}", word(kind).replace('_', " "));
        let listed: Vec<String> = kinds.iter().map(name).collect();
        let (what, listed) = (count(files, "file"), listed.join(", "));
        let takes = kinds.keys().any(|kind| kind.is_taken_by_all_files());
        let advice = if takes { "; --all-files imports them" } else { "" };
        let object = json!({"event": "sidecars", "files": files, "kinds": kinds});
        Ok(self.out.tell(&object, format!("passed over {what}: {listed}{advice}"))?)
    }

    /// Reports a file that is in the store, now or since an earlier import.
    pub(crate) fn imported(&mut self, source: &Source, done: &Imported) -> Result<(), Failure> {
        self.progress.clear();
        let sums = &mut self.sums;
        let (sum, would) = match done.how {
            How::Imported => (&mut sums.imported, "would import"),
            How::Continued => (&mut sums.continued, "would continue"),
            How::Replaced => (&mut sums.replaced, "would replace"),
            How::AlreadyThere => (&mut sums.already_there, "already there"),
        };
        *sum += 1;
        if done.how != How::AlreadyThere {
            sums.records += done.seen.records;
            sums.bytes += done.seen.bytes;
        }
        sums.damaged_lines += done.seen.damaged_count;
        sums.unread_members += done.unread.len() as u64;
        let result = word(&done.how);
        let verb = if sums.dry_run { would.to_owned() } else { result.replace('_', " ") };
        let (Source { agent, run, .. }, path) = (source, source.location.path());
        let (records, bytes) = (count(done.seen.records, "record"), size(done.seen.bytes));
        let object = json!({
            "event": "run",
            "run": run,
            "agent": agent,
            "file": path.to_string_lossy(),
            "format": done.format,
            "result": result,
            "status": done.status,
            "records": done.seen.records,
            "bytes": done.seen.bytes,
            "damaged_lines": done.seen.damaged_count,
            "unread_members": done.unread.len(),
        });
        let (format, status) = (done.format, done.status);
        let text = format!("{verb} {agent}/{run} ({format}): {records}, {bytes}, {status}");
        self.out.tell(&object, text)?;
        self.damage(source, &path, done)
    }

    /// Reports what of a file is damaged.
    fn damage(&mut self, source: &Source, path: &Path, done: &Imported) -> Result<(), Failure> {
        let (name, file) = (path.to_string_lossy(), shown(path));
        let listed = if self.out.is_json() { usize::MAX } else { LISTED };
        for (line, damage) in done.seen.damaged.iter().take(listed) {
            let damage = damage.as_str();
            let object =
                json!({"event": "damaged_line", "file": name, "line": line, "damage": damage});
            self.out.tell(&object, format!("  {file}:{line}: {damage}, kept as a raw record"))?;
        }
        for (member, why) in done.unread.iter().take(listed) {
            let place = match &source.parts {
                _ if member.is_empty() => file.clone(),
                Some(parts) => shown(&parts.path(member)),
                None => format!("{file}: {member}"),
            };
            let object =
                json!({"event": "unread_member", "file": name, "member": member, "why": why});
            self.out.tell(&object, format!("  {place}: {why}; its bytes are kept"))?;
        }
        Ok(())
    }

    /// The sums, and how the command ends.
    pub(crate) fn finish(mut self, store: &Path) -> Result<Exit, Failure> {
        self.report_sidecars()?;
        self.progress.clear();
        let text = self.summary(store);
        self.out.tell(&self.sums, text)?;
        self.out.flush()?;
        let sums = &self.sums;
        let unknown = if self.skips_unknown { 0 } else { sums.unknown };
        let failed = [sums.errors, sums.missing, unknown, sums.damaged_lines, sums.unread_members];
        Ok(if failed.iter().any(|n| *n > 0) { Exit::Error } else { Exit::Fine })
    }

    fn summary(&self, store: &Path) -> String {
        let sums = &self.sums;
        let runs = count(sums.imported + sums.continued + sums.replaced, "run");
        let imported = if sums.dry_run { "would be imported" } else { "imported" };
        let (records, bytes) = (count(sums.records, "record"), size(sums.bytes));
        let mut text = format!("{runs} {imported} into {}: {records}, {bytes}", shown(store));
        for (n, what) in [
            (sums.already_there, grouped(sums.already_there) + " already there"),
            (sums.replaced, grouped(sums.replaced) + " of them replaced"),
            (sums.skipped, grouped(sums.skipped) + " skipped"),
            (sums.unknown, grouped(sums.unknown) + " not recognised"),
            (sums.missing, grouped(sums.missing) + " not found"),
            (sums.errors, grouped(sums.errors) + " refused"),
            (
                sums.damaged_lines,
                count(sums.damaged_lines, "damaged line") + " kept as raw records",
            ),
            (sums.unread_members, count(sums.unread_members, "member") + " not read"),
            (sums.dry_run.into(), "nothing was written".to_owned()),
        ] {
            if n > 0 {
                text = text + "; " + &what;
            }
        }
        text
    }

    /// Shows how far the import is. The lines of files that are done come first.
    pub(crate) fn progress(&mut self, done: usize, files: usize, bytes: u64) {
        let out = &mut *self.out;
        self.progress.show(|| {
            // A closed pipe is reported by the next line.
            let _ = out.flush();
            let (done, files) = (grouped(done as u64), count(files as u64, "file"));
            format!("{done} of {files}, {}", size(bytes))
        });
    }

    /// Prints all that was reported.
    pub(crate) fn flush(&mut self) -> std::io::Result<()> {
        self.progress.clear();
        self.out.flush()
    }
}

/// The name that JSON has for a value.
fn word(value: &impl Serialize) -> String {
    serde_json::to_value(value).as_ref().ok().and_then(Value::as_str).unwrap_or_default().to_owned()
}
