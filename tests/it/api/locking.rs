//! One writer at a time: a second one is told who holds the store, and nothing is lost; a killed
//! writer locks nobody out; only the owner can access the file, and the folder contains nothing
//! else.

use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Barrier;

use runlog::{Error, Options, Result, RunLog};

use runlog_sim::settings::{child, child_arguments};

fn options() -> Options {
    Options::new().extent_size(64 << 10)
}

fn names(dir: &Path) -> Vec<String> {
    let names = dir.read_dir().unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).collect()
}

fn records(log: &RunLog, run: &str) -> Vec<Vec<u8>> {
    log.trace(run).unwrap().map(|record| record.unwrap().payload().to_vec()).collect()
}

/// Several threads do the same at the same moment.
fn at_once(count: usize, call: impl Fn(usize) -> Result<RunLog> + Sync) -> Vec<Result<RunLog>> {
    let barrier = Barrier::new(count);
    std::thread::scope(|scope| {
        let start = |number| {
            let (barrier, call) = (&barrier, &call);
            scope.spawn(move || {
                barrier.wait();
                call(number)
            })
        };
        let threads: Vec<_> = (0..count).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn of_several_creators_at_once_one_wins() {
    for _ in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let mut won = Vec::new();
        for opened in at_once(6, |_| options().create(&path)) {
            match opened {
                Ok(log) => won.push(log),
                Err(Error::AlreadyExists { .. } | Error::Busy { .. }) => {}
                Err(other) => panic!("{other:?}"),
            }
        }
        assert_eq!(won.len(), 1);
        assert_eq!(names(dir.path()), ["store"]);
        let run = won[0].start_run("agent", "run", ()).unwrap();
        let _ = run.append(b"kept").unwrap();
        drop(run);
        won.pop().unwrap().close().unwrap();
        assert_eq!(records(&options().open_existing(&path).unwrap(), "run"), [b"kept"]);
    }
}

#[test]
fn of_several_openers_at_once_one_wins_and_the_others_are_told_who() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    for round in 0..20 {
        let mut won = Vec::new();
        for opened in at_once(6, |_| options().open(&path)) {
            match opened {
                Ok(log) => won.push(log),
                // The winner may not have written its name yet; that of an earlier one may be
                // there.
                Err(Error::Busy { path: named, owner }) => {
                    assert_eq!(named, path);
                    assert!(owner.is_none_or(|owner| owner.pid == std::process::id()));
                }
                Err(other) => panic!("{other:?}"),
            }
        }
        assert_eq!(won.len(), 1);
        let log = won.pop().unwrap();
        let writer = log.start_run("agent", "run", ()).unwrap();
        let _ = writer.append(&[round]).unwrap();
        assert_eq!(records(&log, "run").len(), usize::from(round) + 1);
    }
    assert_eq!(names(dir.path()), ["store"]);
}

#[test]
fn a_second_handle_in_the_same_process_is_busy_until_the_first_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let log = options().create(&path).unwrap();
    for _ in 0..2 {
        match options().open(&path) {
            Err(Error::Busy { owner: Some(owner), .. }) => {
                assert_eq!(owner.pid, std::process::id());
                assert!(options().open(&path).unwrap_err().is_busy());
            }
            other => panic!("{other:?}"),
        }
        // The refused handle has released nothing.
        let _ = log.start_run("agent", "run", ()).unwrap().append(b"still ours").unwrap();
    }
    let clone = log.clone();
    drop(log);
    assert!(options().open(&path).unwrap_err().is_busy());
    drop(clone);
    assert_eq!(records(&options().open(&path).unwrap(), "run").len(), 2);
}

#[test]
fn the_lock_is_one_of_the_open_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let _log = options().create(&path).unwrap();
    let inode = format!(":{} ", path.metadata().unwrap().ino());
    // The list may skip a line when other locks change while it is read.
    let found = (0..1_000).find_map(|_| {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        locks.lines().find(|line| line.contains(&inode)).map(str::to_string)
    });
    let lock = found.unwrap();
    assert!(lock.contains("FLOCK") && lock.contains("WRITE"), "{lock}");
}

#[test]
fn the_file_is_readable_by_its_owner_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let log = options().open(&path).unwrap();
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
    log.close().unwrap();
    drop(options().open(&path).unwrap());
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
}

/// A process that holds a store until it is killed.
struct Holder(Child);

impl Holder {
    fn start(path: &Path) -> Self {
        let mut command = child("api::locking::holder", &[path.to_str().unwrap()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut told = Vec::new();
        let stdout = child.stdout.as_mut().unwrap();
        while !told.ends_with(b"held\n") {
            let mut byte = [0];
            assert_eq!(stdout.read(&mut byte).unwrap(), 1, "the holder ended by itself");
            told.push(byte[0]);
        }
        Self(child)
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Not a test of its own: the process that holds the store.
#[test]
fn holder() {
    if let Some(arguments) = child_arguments() {
        let log = options().open(&arguments[0]).unwrap();
        let run = log.start_run("agent", "run", ()).unwrap();
        let _ = run.append(b"from the holder").unwrap();
        let mut stdout = std::io::stdout();
        stdout.write_all(b"held\n").unwrap();
        stdout.flush().unwrap();
        // Nothing is ever sent: this ends with the process, or with its parent.
        let _ = std::io::stdin().read(&mut [0]);
    }
}

#[test]
fn a_killed_holder_locks_nobody_out_and_leaves_nothing_beside_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    for round in 1..5 {
        let holder = Holder::start(&path);
        match options().open(&path) {
            Err(Error::Busy { owner: Some(owner), .. }) => assert_eq!(owner.pid, holder.0.id()),
            other => panic!("{other:?}"),
        }
        holder.kill();
        assert_eq!(names(dir.path()), ["store"]);
        let log = options().open(&path).unwrap();
        assert!(!log.recovery_report().clean);
        assert_eq!(records(&log, "run").len(), round);
    }
}
