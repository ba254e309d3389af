//! A disk that holds the background thread where a test says.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use runlog::storage::Storage;
use runlog_sim::{OpKind, SimDisk};

use super::tap::Tap;

/// So long that only a thread that is never woken waits for it.
pub(crate) const NEVER: Duration = Duration::from_secs(20);

/// A disk that holds the background thread at its next call of one kind, until it is released.
/// With `TailWriter::Pwrite` each append is a call.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) disk: SimDisk,
    gate: Arc<Mutex<Option<Gate>>>,
}

#[derive(Debug)]
struct Gate {
    kind: OpKind,
    has_come: Sender<()>,
    may_go: Receiver<()>,
}

/// The other side of a gate.
pub(crate) struct Holder {
    has_come: Receiver<()>,
    may_go: Sender<()>,
}

impl Held {
    pub(crate) fn new() -> Self {
        Self { disk: SimDisk::new(), gate: Arc::default() }
    }

    pub(crate) fn storage(&self) -> Arc<dyn Storage> {
        let held = self.clone();
        Tap::new(Arc::new(self.disk.clone()), move |call| {
            held.pass(call.kind);
            Ok(())
        })
    }

    /// Holds the background thread at its next call of this kind.
    pub(crate) fn hold(&self, kind: OpKind) -> Holder {
        let ((come, has_come), (may_go, gone)) = (channel(), channel());
        *self.gate.lock().unwrap() = Some(Gate { kind, has_come: come, may_go: gone });
        Holder { has_come, may_go }
    }

    fn pass(&self, kind: OpKind) {
        if thread::current().name() != Some("runlog-sync") {
            return;
        }
        let gate = self.gate.lock().unwrap().take_if(|gate| gate.kind == kind);
        if let Some(gate) = gate {
            gate.has_come.send(()).unwrap();
            let _ = gate.may_go.recv();
        }
    }
}

impl Holder {
    /// Returns once the background thread is held.
    pub(crate) fn wait(&self) {
        self.has_come.recv_timeout(NEVER).expect("the background thread comes");
    }

    pub(crate) fn let_go(self) {
        self.may_go.send(()).unwrap();
    }
}
