//! Sessions: what is saved comes back as a whole, whatever happens in between; who may not write
//! any more does not; and no executor waits for a disk.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread::{self, Thread};

use runlog::storage::MemoryStorage;
use runlog::stores::sessions::{
    EngineSessionStore, Part, SessionError, SessionSnapshot, SessionStore, SessionTypes,
};
use runlog::{Error, NewRecord, Options, RunLog};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

mod calls;
mod cases;
mod crashes;
mod leases;
mod shapes;
mod snapshots;
mod unreadable;
mod watches;

fn options() -> Options {
    Options::new().extent_size(64 << 10).background(false)
}

fn new_log() -> RunLog {
    options().create_storage(Arc::new(MemoryStorage::new())).unwrap()
}

struct Unpark(Thread);

impl std::task::Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// All the runtime that is needed.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Polls once, for nobody.
pub(crate) fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// A session of the tests, and the types of its parts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Chat {
    id: String,
    messages: Vec<String>,
}

fn chat(id: &str, messages: &[&str]) -> Chat {
    Chat { id: id.to_owned(), messages: messages.iter().map(ToString::to_string).collect() }
}

struct Chats;

impl SessionTypes for Chats {
    type Session = Chat;
    type Artifacts = Value;
    type TraceEvent = String;
    type RunRecord = Value;
    type VerificationReport = Value;
    type SubagentTask = Value;
    type LoopCheckpoint = Value;

    fn session_id(session: &Chat) -> &str {
        &session.id
    }
}

type ChatStore = EngineSessionStore<Chats>;

/// Does something with a store that is new, reopened before each look, or killed before each look.
fn in_each_life<T: SessionTypes>(test: impl Fn(&dyn Fn() -> EngineSessionStore<T>)) {
    for closes in [None, Some(true), Some(false)] {
        let storage = Arc::new(MemoryStorage::new());
        let log = options().create_storage(storage.clone()).unwrap();
        let store = EngineSessionStore::new(&log);
        let current = Mutex::new((storage, log, store));
        test(&|| {
            let mut current = current.lock().unwrap();
            match closes {
                None => {}
                Some(true) => {
                    current.1.clone().close().unwrap();
                    current.1 = options().open_storage(current.0.clone()).unwrap();
                    current.2 = EngineSessionStore::new(&current.1);
                }
                Some(false) => {
                    // What a killed process leaves is what it wrote.
                    current.0 = Arc::new(MemoryStorage::from_bytes(current.0.to_bytes()));
                    current.1 = options().open_storage(current.0.clone()).unwrap();
                    current.2 = EngineSessionStore::new(&current.1);
                }
            }
            current.2.clone()
        });
    }
}
