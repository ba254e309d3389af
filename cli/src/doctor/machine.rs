//! What is looked at of the machine: the file system of the store, and the limits of processes.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

use crate::doctor::file_system::{self, Abilities, Found, Untried};
use crate::doctor::report::{Area, Report, Severity};
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
    let place = if path.exists() { path } else { folder };
    match file_system::of(place) {
        Ok(found) => {
            kind(&found, report);
            files(&found, report);
        }
        Err(error) => {
            let message = format!("the system does not tell what it is: {error}");
            report.add((Area::Machine, "file_system"), Severity::Error, message);
        }
    }
    abilities(folder, report);
    limits(path, report);
    locks(report);
}

fn kind(found: &Found, report: &mut Report) {
    let check = (Area::Machine, "file_system");
    let name = found.kind.name().unwrap_or("of a kind that is not known here");
    if found.kind.network().is_some() {
        let message = format!("{name}, a network file system, where a writer lock may not hold");
        let advice = "move the store to a local disk; it is not opened for writing here";
        report.add(check, Severity::Error, message).advise(advice);
    } else if found.is_read_only {
        let message = format!("{name}, read-only: the store can be read, and not be written");
        report.add(check, Severity::Warning, message);
    } else {
        report.add(check, Severity::Ok, name);
    }
    let check = (Area::Machine, "tail_writer");
    if found.kind.keeps_space() && usize::BITS >= u64::BITS {
        report.add(check, Severity::Ok, "appends are stored through a map of the file");
    } else {
        let why = "the store uses maps only on ext4 and tmpfs, which keep allocated space";
        let message = format!("each append is a system call: {why}");
        report.add(check, Severity::Note, message);
    }
}

fn files(found: &Found, report: &mut Report) {
    let check = (Area::Machine, "free_files");
    match found.free_files {
        None => {}
        Some(free) if free < FEW_FILES => {
            let message = format!("the file system takes {} more", count(free, "file"));
            let advice = "a backup and a new store need one file each; remove some";
            report.add(check, Severity::Warning, message).advise(advice);
        }
        Some(free) => {
            report.add(check, Severity::Ok, format!("{} can be made", count(free, "file")));
        }
    }
}

fn abilities(folder: &Path, report: &mut Report) {
    let (unnamed, holes) = ((Area::Machine, "new_files"), (Area::Machine, "holes"));
    match file_system::abilities(folder) {
        Ok(Abilities { allocates, punches }) => {
            report.add(unnamed, Severity::Ok, "a new store has no name until it is complete");
            if allocates && punches {
                let message = "freed space within the file goes back to the file system";
                report.add(holes, Severity::Ok, message);
            } else {
                let message = "freed space goes back only at the end of the file; within it, it is \
                               used again for new records";
                report.add(holes, Severity::Note, message);
            }
        }
        Err(Untried::NoUnnamed) => {
            let message = "files without a name are not supported: a process that dies while it \
                           makes a store leaves a file that ends in .new";
            report.add(unnamed, Severity::Note, message);
        }
        Err(Untried::NotAllowed) => {
            let message = "this user may not make files beside the store; reading needs none";
            report.add(unnamed, Severity::Note, message);
        }
        Err(Untried::Failed) => {
            let message = "no file can be made beside the store";
            let advice = "look whether the file system is full";
            report.add(unnamed, Severity::Warning, message).advise(advice);
        }
    }
}

/// The limit of this process; a daemon may have another one.
fn limits(path: &Path, report: &mut Report) {
    let check = (Area::Machine, "file_limit");
    let Some(limit) = getrlimit(Resource::Fsize).current else {
        report.add(check, Severity::Ok, "processes started here may write files of any length");
        return;
    };
    let len = fs::metadata(path).map_or(0, |found| found.len());
    let message = format!("processes started here may write files of {} at most", size(limit));
    if limit.saturating_sub(len) < LITTLE_ROOM {
        let advice = "raise the limit: ulimit -f unlimited";
        report.add(check, Severity::Warning, message).advise(advice);
    } else {
        report.add(check, Severity::Note, message);
    }
}

fn locks(report: &mut Report) {
    let check = (Area::Machine, "locks");
    if fs::read_to_string("/proc/locks").is_ok() {
        report.add(check, Severity::Ok, "the system tells which process writes a store");
    } else {
        let message = "the system does not tell readers which process writes a store";
        report.add(check, Severity::Note, message);
    }
}
