//! A storage that calls out in front of each call. The test notes the call, fails it, holds it, or
//! does something else meanwhile.

use std::fmt;
use std::io;
use std::sync::Arc;

use runlog::storage::{Storage, TailWindow};
use runlog_sim::OpKind;

/// A call of the engine, and the range of the file that it is about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub(crate) kind: OpKind,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Call {
    /// Whether it reads and nothing else.
    pub(crate) fn is_read(&self) -> bool {
        self.kind == OpKind::Read
    }
}

type Before = dyn Fn(Call) -> io::Result<()> + Send + Sync;
/// Called after a write or a store, with the bytes that a write has replaced, and in place of
/// mapping pages.
type After = dyn Fn(Call, &[u8]) + Send + Sync;

/// Passes each call on, unless what is called out to returns an error. Clones share everything.
#[derive(Clone)]
pub(crate) struct Tap {
    storage: Arc<dyn Storage>,
    before: Arc<Before>,
    after: Option<Arc<After>>,
    /// It reports to the byte where data ends.
    knows_ends: bool,
}

impl Tap {
    pub(crate) fn new(
        storage: Arc<dyn Storage>,
        before: impl Fn(Call) -> io::Result<()> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { storage, before: Arc::new(before), after: None, knows_ends: false })
    }

    /// A storage that calls out also after each write and each store.
    pub(crate) fn around(
        storage: Arc<dyn Storage>,
        before: impl Fn(Call) -> io::Result<()> + Send + Sync + 'static,
        after: impl Fn(Call, &[u8]) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { after: Some(Arc::new(after)), ..(*Self::new(storage, before)).clone() })
    }

    /// The storage of a process that only reads. It panics at each other call.
    pub(crate) fn only_reads(
        storage: Arc<dyn Storage>,
        before: impl Fn(u64, usize) -> io::Result<()> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Self::new(storage, move |call| {
            assert!(call.is_read(), "a reader makes the call {call:?}");
            before(call.offset, call.len as usize)
        })
    }

    /// A storage that reports to the byte where data ends, and calls out.
    pub(crate) fn knows_ends(
        storage: Arc<dyn Storage>,
        before: impl Fn(Call) -> io::Result<()> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { knows_ends: true, ..(*Self::new(storage, before)).clone() })
    }

    fn pass(&self, kind: OpKind, offset: u64, len: u64) -> io::Result<()> {
        (self.before)(Call { kind, offset, len })
    }
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tap").field("storage", &self.storage).finish_non_exhaustive()
    }
}

impl Storage for Tap {
    fn len(&self) -> io::Result<u64> {
        self.storage.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.pass(OpKind::Read, offset, buf.len() as u64)?;
        self.storage.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let len = data.len() as u64;
        let call = Call { kind: OpKind::Write, offset, len };
        (self.before)(call)?;
        let Some(after) = &self.after else { return self.storage.write_at(offset, data) };
        let there = len.min(self.storage.len()?.saturating_sub(offset));
        let mut replaced = vec![0; there as usize];
        self.storage.read_at(offset, &mut replaced)?;
        self.storage.write_at(offset, data)?;
        after(call, &replaced);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.pass(OpKind::Sync, 0, 0)?;
        self.storage.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.pass(OpKind::SetLen, len, 0)?;
        self.storage.set_len(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.pass(OpKind::Allocate, offset, len)?;
        self.storage.allocate(offset, len)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.pass(OpKind::Punch, offset, len)?;
        self.storage.punch(offset, len)
    }

    fn data_end(&self, offset: u64, len: u64) -> io::Result<u64> {
        if !self.knows_ends {
            return self.storage.data_end(offset, len);
        }
        let there = len.min(self.storage.len()?.saturating_sub(offset));
        let mut bytes = vec![0; there as usize];
        self.storage.read_at(offset, &mut bytes)?;
        let last = bytes.iter().rposition(|byte| *byte != 0);
        Ok(last.map_or(offset, |last| offset + last as u64 + 1))
    }

    fn prefault(&self, offset: u64, len: usize) -> u64 {
        let call = Call { kind: OpKind::Read, offset, len: len as u64 };
        self.after.iter().for_each(|after| after(call, &[]));
        0
    }

    fn map_tail(&self, offset: u64, len: usize) -> io::Result<Option<Arc<dyn TailWindow>>> {
        let window = self.storage.map_tail(offset, len)?;
        let tapped = |window| Arc::new(Window { tap: self.clone(), window }) as Arc<dyn TailWindow>;
        Ok(window.map(tapped))
    }
}

/// Stores through a tap.
#[derive(Debug)]
struct Window {
    tap: Tap,
    window: Arc<dyn TailWindow>,
}

impl TailWindow for Window {
    fn store(&self, at: usize, data: &[u8]) -> io::Result<()> {
        let (kind, len) = (OpKind::Store, data.len() as u64);
        let call = Call { kind, offset: at as u64, len };
        (self.tap.before)(call)?;
        self.window.store(at, data)?;
        self.tap.after.iter().for_each(|after| after(call, &[]));
        Ok(())
    }
}
