//! A child that was forked while a store was open cannot harm it: it writes nothing, frees no
//! space, and keeps the writer lock in place.
//!
//! A separate process forks, so that threads of other tests are not involved.

use core::ffi::{c_int, c_uint};
use std::path::Path;

use runlog::{Durability, Error, NewRecord, Options, Outcome, RunLog, RunWriter};
use runlog_sim::settings;

unsafe extern "C" {
    fn fork() -> c_int;
    fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn _exit(code: c_int) -> !;
    fn alarm(seconds: c_uint) -> c_uint;
}

type InChild = fn(RunWriter, RunLog);

const IN_CHILD: [(&str, InChild); 4] = [
    ("drop", |run, log| {
        drop(run);
        drop(log);
    }),
    ("close", |run, log| {
        drop(run);
        assert!(matches!(log.close(), Err(Error::Closed)));
    }),
    ("append", |run, log| {
        assert!(matches!(run.append(b"from the child"), Err(Error::Closed)));
        let level = NewRecord::new(b"x").durability(Durability::Disk);
        assert!(matches!(run.append_record(&level), Err(Error::Closed)));
        drop((run, log));
    }),
    ("others", |run, log| {
        let refused = [
            log.compact().map(drop),
            log.reclaim(),
            log.sync(),
            log.checkpoint(),
            log.start_run("agent", "other", ()).map(drop),
            log.delete_run("old").map(drop),
            log.hold("old", "audit").map(drop),
            log.docs().put("space", "key", &NewRecord::new(b"1")).map(drop),
        ];
        assert!(refused.iter().all(|told| matches!(told, Err(Error::Closed))), "{refused:?}");
        drop((run, log));
    }),
];

fn options(background: bool) -> Options {
    Options::new().extent_size(64 << 10).background(background)
}

/// Calls `act` in a forked child; it must come to its end.
fn in_child(act: impl FnOnce()) {
    // SAFETY: the child calls `act`, which ends, and leaves without running anything else.
    let pid = unsafe { fork() };
    if pid == 0 {
        // SAFETY: the signal ends this process, if it waits for ever.
        unsafe { alarm(60) };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        // SAFETY: it does not return.
        unsafe { _exit(c_int::from(done.is_err())) }
    }
    let mut status = 1;
    // SAFETY: `status` is a place for what is told of the child.
    assert_eq!(unsafe { waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0, "the child came to its end");
}

/// A store is forked, and used by the parent alone afterwards.
fn forked(path: &Path, background: bool, act: InChild) {
    let log = options(background).create(path).unwrap();
    let old = log.start_run("agent", "old", ()).unwrap();
    let _ = old.append(b"old").unwrap();
    let _ = old.end(&Outcome::completed()).unwrap();
    drop(old);
    let run = log.start_run("agent", "run", ()).unwrap();
    let append = |from: u32, to: u32| {
        for number in from..to {
            let _ = run.append(&number.to_le_bytes().repeat(200)).unwrap();
        }
    };
    append(0, 100);
    log.sync().unwrap();
    let (child_run, child_log) = (log.writer("run").unwrap(), log.clone());
    let mut handles = Some((child_run, child_log));
    in_child(|| {
        // All handles: the last one that goes would close the store.
        // SAFETY: each is used once, in this process alone.
        let (run, log) =
            unsafe { (core::ptr::read(&raw const run), core::ptr::read(&raw const log)) };
        drop(handles.take());
        act(run, log);
    });
    drop(handles);
    append(100, 400);
    log.sync().unwrap();
    assert!(matches!(options(false).open(path), Err(Error::Busy { .. })), "the lock is held");
    let check = |log: &RunLog| {
        let records: Vec<_> = log.trace("run").unwrap().map(Result::unwrap).collect();
        assert_eq!(records.len(), 400);
        for (number, record) in (0_u32..).zip(&records) {
            assert_eq!(record.payload()[..4], number.to_le_bytes());
        }
        assert!(log.verify().unwrap().is_clean());
        assert_eq!(log.trace("old").unwrap().count(), 1);
    };
    check(&log);
    drop(run);
    log.close().unwrap();
    let log = options(false).open(path).unwrap();
    assert!(log.recovery_report().clean);
    check(&log);
}

/// A child that drops a payload of a closed store leaves the lock to its parent.
fn forked_behind_the_end(path: &Path) {
    let log = options(false).create(path).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    for _ in 0..100 {
        let _ = run.append(&[b'x'; 1000]).unwrap();
    }
    let payload = log.trace("run").unwrap().next().unwrap().unwrap().into_payload();
    drop(run);
    assert_eq!(log.close().unwrap().live_views, 1);
    in_child(|| {
        // SAFETY: it is used once, in this process alone.
        let inherited = unsafe { core::ptr::read(&raw const payload) };
        assert_eq!(*inherited, [b'x'; 1000]);
    });
    assert!(matches!(options(false).open(path), Err(Error::Locked { live_views: 1, .. })));
    assert_eq!(*payload, [b'x'; 1000]);
}

/// Not a test of its own: the process that forks.
#[test]
fn parent() {
    let Some(arguments) = settings::child_arguments() else { return };
    let dir = Path::new(&arguments[0]);
    for (number, (name, act)) in IN_CHILD.into_iter().enumerate() {
        // What locks might wait for a thread that the child does not have.
        let both = if number < 2 { [false, true].as_slice() } else { &[false] };
        for &background in both {
            println!("{name}, threads: {background}");
            forked(&dir.join(format!("{name}-{background}")), background, act);
        }
    }
    forked_behind_the_end(&dir.join("closed"));
    println!("all forked");
}

#[test]
fn a_forked_child_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let arguments = [dir.path().to_str().unwrap()];
    let output = settings::child("api::forks::parent", &arguments).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && told.contains("all forked"),
        "{}\n{told}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}
