//! What a follower of the log in the writer's own process sleeps on.

use core::time::Duration;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Weak};

use parking_lot::{Condvar, Mutex};

/// Wakes one thread.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    /// The thread is about to sleep, or sleeps.
    armed: AtomicBool,
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    /// From now on a ring counts. The thread looks once more before it sleeps.
    pub(crate) fn arm(&self) {
        *self.rung.lock() = false;
        self.armed.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Sleeps until the bell has rung since it was armed, or for so long.
    pub(crate) fn wait(&self, most: Duration) {
        let mut rung = self.rung.lock();
        if !*rung {
            let _ = self.changed.wait_for(&mut rung, most);
        }
    }

    /// Wakes the thread if it sleeps. Calls nothing of the embedder, so that an append may ring.
    pub(crate) fn ring(&self) {
        if self.armed.swap(false, Ordering::SeqCst) {
            *self.rung.lock() = true;
            self.changed.notify_all();
        }
    }
}

/// All followers of a log.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    any: AtomicBool,
    all: Mutex<Vec<Weak<Signal>>>,
}

impl Signals {
    /// A signal that rings whenever something was written, as long as it lives.
    pub(crate) fn add(&self) -> Arc<Signal> {
        let signal = Arc::new(Signal::default());
        let mut all = self.all.lock();
        if all.len() == all.capacity() {
            // Otherwise those that came and went while nothing was written would be kept.
            all.retain(|signal| signal.strong_count() > 0);
        }
        all.push(Arc::downgrade(&signal));
        drop(all);
        self.any.store(true, Ordering::SeqCst);
        signal
    }

    /// Something was written, or nothing will be any more. Costs one look without followers.
    #[inline]
    pub(crate) fn ring(&self) {
        if self.any.load(Ordering::Relaxed) {
            self.ring_all();
        }
    }

    #[cold]
    fn ring_all(&self) {
        // A thread that arms behind this sees what was written; one that armed before is seen here.
        fence(Ordering::SeqCst);
        let mut all = self.all.lock();
        all.retain(|signal| signal.upgrade().inspect(|signal| signal.ring()).is_some());
        if all.is_empty() {
            self.any.store(false, Ordering::SeqCst);
        }
    }
}
