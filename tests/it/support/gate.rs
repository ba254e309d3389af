//! Dropping a store like a killed process does: without a last write.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use runlog::storage::Storage;
use runlog_sim::SimDisk;

use super::tap::Tap;

/// A gate in front of a simulated disk. Once it is shut, nothing reaches the disk, not even as a
/// failed operation.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    disk: SimDisk,
    shut: Arc<AtomicBool>,
    /// The number of the first operation that does not pass.
    limit: Arc<AtomicUsize>,
}

impl Gate {
    pub(crate) fn new(disk: &SimDisk) -> Self {
        let limit = Arc::new(AtomicUsize::new(usize::MAX));
        Self { disk: disk.clone(), shut: Arc::default(), limit }
    }

    /// The disk behind the gate. Reads always pass.
    pub(crate) fn storage(&self) -> Arc<dyn Storage> {
        let gate = self.clone();
        let disk = Arc::new(self.disk.clone());
        Tap::new(disk, move |call| if call.is_read() { Ok(()) } else { gate.pass() })
    }

    pub(crate) fn shut(&self) {
        self.shut.store(true, Ordering::SeqCst);
    }

    /// Shuts before the operation with this number.
    pub(crate) fn shut_at(&self, number: usize) {
        self.limit.store(number, Ordering::SeqCst);
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.shut.load(Ordering::SeqCst)
    }

    fn pass(&self) -> io::Result<()> {
        if self.disk.op_count() >= self.limit.load(Ordering::SeqCst) {
            self.shut();
        }
        if self.is_shut() {
            return Err(io::Error::other("the process is gone"));
        }
        Ok(())
    }
}
