//! State that belongs to a log and is shared by all handles of a store on that log.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use runlog::RunLog;

/// Values of logs, by a key of the caller. The references are weak: each value lives as long as a
/// caller keeps it.
///
/// The address of its environment, which all clones share, identifies a log. So a caller that keeps
/// a value must keep the log too; otherwise another log may get that address.
pub(super) struct OfLogs<K, T>(Mutex<BTreeMap<(usize, K), Weak<T>>>);

impl<K: Ord, T> OfLogs<K, T> {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// The value of a log with a key, if a caller keeps it.
    pub(super) fn get(&self, log: &RunLog, key: K) -> Option<Arc<T>> {
        self.0.lock().get(&(address(log), key)).and_then(Weak::upgrade)
    }

    /// The value of a log with a key; created if no caller keeps one.
    pub(super) fn get_or(&self, log: &RunLog, key: K, make: impl FnOnce() -> T) -> Arc<T> {
        let mut values = self.0.lock();
        let key = (address(log), key);
        if let Some(value) = values.get(&key).and_then(Weak::upgrade) {
            return value;
        }
        let value = Arc::new(make());
        values.retain(|_, value| value.strong_count() > 0);
        values.insert(key, Arc::downgrade(&value));
        value
    }
}

fn address(log: &RunLog) -> usize {
    core::ptr::from_ref(log.environment()).addr()
}
