//! A child that was forked while a store was open cannot harm it: it writes nothing, frees no
//! space, and keeps the writer lock in place.
//!
//! A separate process forks, so that threads of other tests are not involved.

use core::ffi::{c_int, c_uint};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use runlog::{
    Activity, Allow, Batch, Durability, Error, NewRecord, Observer, Options, Outcome, Phase,
    Result, Retention, Rule, RunLog, RunWriter,
};

unsafe extern "C" {
    fn fork() -> c_int;
    fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn _exit(code: c_int) -> !;
    fn alarm(seconds: c_uint) -> c_uint;
}

type InChild = fn(RunWriter, RunLog);

const IN_CHILD: [(&str, InChild); 5] = [
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
    ("reclaim", |run, log| {
        assert!(log.compact().is_err());
        assert!(log.start_run("agent", "other", ()).is_err());
        assert!(log.delete_run("old").is_err());
        drop((run, log));
    }),
    ("weak", |run, log| {
        let weak = log.downgrade();
        assert!(weak.upgrade().is_none());
        drop((run, log));
        assert!(weak.upgrade().is_none());
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

/// Holds the thread that rolls, once, which holds the lock of the log.
#[derive(Debug)]
struct HoldsRoll(Mutex<Option<(Sender<()>, Receiver<()>)>>);

impl Observer for HoldsRoll {
    fn observe(&self, activity: Activity, _: Phase<'_>) {
        let held = (activity == Activity::Roll).then(|| self.0.lock().unwrap().take());
        if let Some((has_come, may_go)) = held.flatten() {
            has_come.send(()).unwrap();
            let _ = may_go.recv();
        }
    }
}

type Write = fn(&RunLog, &RunWriter) -> Result<()>;

/// Every call that writes, closes or frees space, but for closing itself.
const WRITES: [(&str, Write); 21] = [
    ("append", |_, run| run.append(b"1").map(drop)),
    ("append a long record", |_, run| run.append(&[1; 100_000]).map(drop)),
    ("append a batch", |_, run| run.append_batch(&[NewRecord::new(b"1"); 2]).map(drop)),
    ("end", |_, run| run.end(&Outcome::completed()).map(drop)),
    ("append_to", |log, _| {
        log.append_to("agent", "run", &NewRecord::new(b"1"), Allow::nothing()).map(drop)
    }),
    ("append_batch_to", |log, _| {
        let records = [NewRecord::new(b"1"); 2];
        log.append_batch_to("agent", "run", &records, Allow::nothing()).map(drop)
    }),
    ("end_run", |log, _| {
        log.end_run("agent", "run", &Outcome::completed(), Allow::nothing()).map(drop)
    }),
    ("start_run", |log, _| log.start_run("agent", "new", ()).map(drop)),
    ("adopt_orphans", |log, _| log.adopt_orphans().map(drop)),
    ("hold", |log, _| log.hold("old", "audit").map(drop)),
    ("release", |log, _| log.release("old").map(drop)),
    ("delete_run", |log, _| log.delete_run("old").map(drop)),
    ("erase_run", |log, _| log.erase_run("old").map(drop)),
    ("gc", |log, _| log.gc(&Retention::new().keep_newest(0)).map(drop)),
    ("evict", |log, _| log.evict(&[("old".into(), Rule::Deleted)]).map(drop)),
    ("commit", |log, _| {
        let mut batch = Batch::new();
        batch.delete("space", "key");
        log.commit(&batch).map(drop)
    }),
    ("erase", |log, _| log.docs().erase("space", "key").map(drop)),
    ("deferred put", |log, _| {
        log.deferred().put("space", "key", &NewRecord::new(b"1")).wait().map(drop)
    }),
    ("sync", |log, _| log.sync()),
    ("checkpoint", |log, _| log.checkpoint()),
    ("compact and reclaim", |log, _| {
        log.reclaim().and(Err(Error::Poisoned)).or_else(|error| match error {
            Error::Closed => log.compact().map(drop),
            other => Err(other),
        })
    }),
];

/// The child is forked while another thread of the parent holds the lock of the log.
fn forked_under_a_lock(path: &Path) {
    let ((come, has_come), (may_go, gone)) = (channel(), channel());
    let holds = Arc::new(HoldsRoll(Mutex::new(Some((come, gone)))));
    let log = options(false).observer(holds).create(path).unwrap();
    let _ = log.start_run("agent", "old", ()).unwrap().end(&Outcome::completed()).unwrap();
    log.docs().put("space", "key", &NewRecord::new(b"1")).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let rolls = log.writer("run").unwrap();
    let rolling = thread::spawn(move || {
        for _ in 0..100 {
            let _ = rolls.append(&[b'x'; 1000]).unwrap();
        }
    });
    has_come.recv().unwrap();
    in_child(|| {
        for (name, write) in WRITES {
            let told = write(&log, &run);
            assert!(matches!(told, Err(Error::Closed)), "{name}: {told:?}");
        }
    });
    may_go.send(()).unwrap();
    rolling.join().unwrap();
    assert_eq!(log.run("run").unwrap().records, 100);
    drop(run);
    log.close().unwrap();
}

/// Not a test of its own: the process that forks.
#[test]
fn parent() {
    let Some(dir) = std::env::var_os("RUNLOG_FORKS") else { return };
    for (number, (name, act)) in IN_CHILD.into_iter().enumerate() {
        // What locks might wait for a thread that the child does not have.
        let both = if number < 2 { [false, true].as_slice() } else { &[false] };
        for &background in both {
            println!("{name}, threads: {background}");
            forked(&Path::new(&dir).join(format!("{name}-{background}")), background, act);
        }
    }
    forked_under_a_lock(&Path::new(&dir).join("locked"));
    println!("all forked");
}

#[test]
fn a_forked_child_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["api::forks::parent", "--exact", "--nocapture", "--test-threads=1"]);
    let output = command.env("RUNLOG_FORKS", dir.path()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && told.contains("all forked"),
        "{}\n{told}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}
