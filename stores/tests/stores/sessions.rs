//! Sessions: what is saved comes back as a whole, whatever happens in between; who may not write
//! any more does not; and no executor waits for a disk.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;

use runlog::{Error, NewRecord, Options, RunLog};
use runlog_stores::sessions::{
    EngineSessionStore, Part, SessionError, SessionSnapshot, SessionStore, SessionTypes,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::support::{self, block_on, in_memory, options};

mod calls;
mod cases;
mod crashes;
mod leases;
mod races;
mod shapes;
mod snapshots;
mod turns;
mod unreadable;
mod watches;

/// Polls once, with a waker that does nothing.
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
    support::in_each_life(|log| test(&|| EngineSessionStore::new(&log())));
}
