//! What is looked at of the machine: the file system of the store, and the limits of processes.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

use crate::doctor::file_system::{self, Found};
use crate::doctor::report::Report;
use crate::output::{count, size};

/// So many free files are few.
const FEW_FILES: u64 = 16;

/// So much room for a file to grow is little.
const LITTLE_ROOM: u64 = 1 << 30;

pub(super) fn examine(path: &Path, report: &mut Report) {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // The store may be mounted by itself, or not be there yet.
    match file_system::of(if path.exists() { path } else { folder }) {
        Ok(found) => kind(&found, report),
        Err(error) => {
            report.error("file_system", format!("the system does not tell what it is: {error}"));
        }
    }
    abilities(folder, report);
    limits(path, report);
    if fs::exists("/proc/locks").is_ok_and(|is_there| is_there) {
        report.ok("locks", "the system tells which process writes a store");
    } else {
        report.note("locks", "the system does not tell readers which process writes a store");
    }
}

fn kind(found: &Found, report: &mut Report) {
    let name = found.kind.name().unwrap_or("of a kind that is not known here");
    if found.kind.network().is_some() {
        let message = format!("{name}, a network file system, where a writer lock may not hold");
        let advice = "move the store to a local disk; it is not opened for writing here";
        report.error("file_system", message).advise(advice);
    } else if found.is_read_only {
        let message = format!("{name}, read-only: the store can be read, and not be written");
        report.warning("file_system", message);
    } else {
        report.ok("file_system", name);
    }
    if found.kind.keeps_space() && usize::BITS >= u64::BITS {
        report.ok("tail_writer", "appends are stored through a map of the file");
    } else {
        let why = "the store uses maps only on ext4 and tmpfs, which keep allocated space";
        report.note("tail_writer", format!("each append is a system call: {why}"));
    }
    match found.free_files {
        None => {}
        Some(free) if free < FEW_FILES => {
            let message = format!("the file system takes {} more", count(free, "file"));
            let advice = "a backup and a new store need one file each; remove some";
            report.warning("free_files", message).advise(advice);
        }
        Some(free) => report.ok("free_files", format!("{} can be made", count(free, "file"))),
    }
}

fn abilities(folder: &Path, report: &mut Report) {
    match file_system::has_holes(folder) {
        Ok(has_holes) => {
            report.ok("new_files", "a new store has no name until it is complete");
            if has_holes {
                report.ok("holes", "freed space within the file goes back to the file system");
            } else {
                let message = "freed space goes back only at the end of the file; within it, it is \
                               used again for new records";
                report.note("holes", message);
            }
        }
        Err(Some(meaning)) => {
            report.note("new_files", meaning);
        }
        Err(None) => {
            let advice = "look whether the file system is full";
            report.warning("new_files", "no file can be made beside the store").advise(advice);
        }
    }
}

/// The limit of this process; a daemon may have another one.
fn limits(path: &Path, report: &mut Report) {
    let Some(limit) = getrlimit(Resource::Fsize).current else {
        return report.ok("file_limit", "processes started here may write files of any length");
    };
    let len = fs::metadata(path).map_or(0, |found| found.len());
    let message = format!("processes started here may write files of {} at most", size(limit));
    if limit.saturating_sub(len) < LITTLE_ROOM {
        let advice = "raise the limit: ulimit -f unlimited";
        report.warning("file_limit", message).advise(advice);
    } else {
        report.note("file_limit", message);
    }
}
