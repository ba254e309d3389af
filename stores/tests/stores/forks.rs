//! A child that was forked while a store with a thread of its own was open gets errors of its
//! calls, drops it and goes on.
//!
//! A separate process forks, so that threads of other tests are not involved.

use core::ffi::c_int;

use runlog_sim::settings;
use runlog_stores::checkpoints::{AsyncCheckpointer, Checkpointer, TenantId, ThreadKey};
use runlog_stores::run_store::{RetentionConfig, RunStore};
use runlog_stores::sessions::{EngineSessionStore, SessionStore};

use super::run_store_world::{NOW, started};
use super::support::{block_on, in_memory};

unsafe extern "C" {
    fn fork() -> c_int;
    fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn alarm(seconds: u32) -> u32;
    fn _exit(code: c_int) -> !;
}

/// Uses and drops something in a forked child, where both must come to their end, and leaves it to
/// the parent.
fn drop_in_child<T>(what: &T, used: impl FnOnce(&T) -> bool) {
    // SAFETY: the child uses and drops its copy, and leaves without running anything else.
    let pid = unsafe { fork() };
    if pid == 0 {
        // SAFETY: what waits for ever is ended; the copy is used once, in this process alone.
        unsafe {
            alarm(20);
            let what = core::ptr::read(what);
            let code = c_int::from(!used(&what));
            drop(what);
            _exit(code)
        }
    }
    let mut status = 1;
    // SAFETY: `status` is a place for what is told of the child.
    assert_eq!(unsafe { waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0, "the child came to its end");
}

/// A child neither waits for the log of a folder that its parent has open, nor gets it.
fn drop_folder() {
    let folder = tempfile::tempdir().unwrap();
    let open = || RunStore::new(folder.path().join("runs"), RetentionConfig::default());
    let start = |store: &RunStore, run| store.write_started(&started("a", run, NOW));
    let store = open();
    start(&store, "r1").unwrap();
    let both = (store.log().unwrap(), store);
    drop_in_child(&both, |(_, store)| start(store, "r2").is_err() && start(&open(), "r3").is_err());
    start(&open(), "r4").unwrap();
    assert_eq!(both.1.list_runs("a").len(), 2);
}

/// Not a test of its own: the process that forks.
#[test]
fn parent() {
    if settings::child_arguments().is_none() {
        return;
    }
    let log = in_memory();
    let sessions: EngineSessionStore = EngineSessionStore::new(&log);
    let session = serde_json::json!({ "id": "s" });
    block_on(sessions.save(&session)).unwrap();
    drop_in_child(&sessions, |sessions| block_on(sessions.save(&session)).is_err());
    block_on(sessions.save(&session)).unwrap();
    let states = AsyncCheckpointer::new(Checkpointer::<u32>::new(&log));
    let key = ThreadKey::new(TenantId::default(), "t").unwrap();
    let put = |state| {
        let new = states.blocking().checkpoint(&key, 1, state, None).unwrap();
        block_on(states.put(new)).unwrap();
    };
    put(1);
    assert!(block_on(states.prune(&key, Some(1), None)).is_ok());
    drop_in_child(&states, |states| block_on(states.prune(&key, Some(1), None)).is_err());
    put(2);
    drop_folder();
    println!("all forked");
}

#[test]
fn a_forked_child_calls_and_drops_a_store_that_has_a_thread() {
    let output = settings::child("forks::parent", &[]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && told.contains("all forked"),
        "{}\n{told}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}
