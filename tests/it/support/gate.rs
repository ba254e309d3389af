//! Dropping a store like a killed process does: without a last write.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use runlog::storage::{Storage, TailWindow};
use runlog_sim::SimDisk;

/// A simulated disk behind a gate. Once the gate is shut, nothing reaches the disk, not even as a
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

impl Storage for Gate {
    fn len(&self) -> io::Result<u64> {
        self.disk.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.disk.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.pass()?;
        self.disk.write_at(offset, data)
    }

    fn sync(&self) -> io::Result<()> {
        self.pass()?;
        self.disk.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.pass()?;
        self.disk.set_len(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.pass()?;
        self.disk.allocate(offset, len)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.pass()?;
        self.disk.punch(offset, len)
    }

    fn map_tail(&self, offset: u64, len: usize) -> io::Result<Option<Arc<dyn TailWindow>>> {
        let window = self.disk.map_tail(offset, len)?;
        let window = window.map(|window| GatedWindow { gate: self.clone(), window });
        Ok(window.map(|window| Arc::new(window) as Arc<dyn TailWindow>))
    }
}

/// Stores through a gate.
#[derive(Debug)]
struct GatedWindow {
    gate: Gate,
    window: Arc<dyn TailWindow>,
}

impl TailWindow for GatedWindow {
    fn store(&self, at: usize, data: &[u8]) -> io::Result<()> {
        self.gate.pass()?;
        self.window.store(at, data)
    }
}
