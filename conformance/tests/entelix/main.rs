//! Real graphs and sessions of entelix on our stores, while a process lives on, is closed and
//! opened, or killed between any two calls.

#![cfg(feature = "entelix")]

use std::sync::{Arc, Mutex};

use entelix_core::{ExecutionContext, TenantId, ThreadKey};
use runlog::storage::MemoryStorage;
use runlog::{Options, RunLog};

mod checkpoints;
mod graphs;
mod sessions;

fn options() -> Options {
    Options::new().extent_size(64 << 10).background(false)
}

/// What happens between two calls.
#[derive(Debug, Clone, Copy)]
enum Life {
    Long,
    ClosedAndOpened,
    Killed,
}

const LIVES: [Life; 3] = [Life::Long, Life::ClosedAndOpened, Life::Killed];

/// A store whose process lives so.
struct World {
    life: Life,
    now: Mutex<(Arc<MemoryStorage>, RunLog)>,
}

impl World {
    fn new(life: Life) -> Arc<Self> {
        println!("life: {life:?}");
        let storage = Arc::new(MemoryStorage::new());
        let log = options().create_storage(storage.clone()).unwrap();
        Arc::new(Self { life, now: Mutex::new((storage, log)) })
    }

    /// The store, after whatever happens between two calls.
    fn log(&self) -> RunLog {
        let mut now = self.now.lock().unwrap();
        let (storage, log) = &mut *now;
        match self.life {
            Life::Long => {}
            Life::ClosedAndOpened => {
                log.clone().close().unwrap();
                *log = options().open_storage(storage.clone()).unwrap();
            }
            Life::Killed => {
                *storage = Arc::new(MemoryStorage::from_bytes(storage.to_bytes()));
                *log = options().open_storage(storage.clone()).unwrap();
            }
        }
        log.clone()
    }
}

fn key(thread: &str) -> ThreadKey {
    key_of("default", thread)
}

fn key_of(tenant: &str, thread: &str) -> ThreadKey {
    ThreadKey::new(TenantId::new(tenant), thread)
}

/// What a graph is run with.
fn context(thread: &str) -> ExecutionContext {
    ExecutionContext::new().with_thread_id(thread)
}
