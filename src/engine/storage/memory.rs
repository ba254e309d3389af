//! A store in memory: the same engine, nothing on disk. For tests, and for programs that need the
//! log only as long as the process lives.

use core::fmt;
use std::io;

use parking_lot::RwLock;

use crate::engine::storage::Storage;

/// A growable file in memory.
pub struct MemoryStorage {
    bytes: RwLock<Vec<u8>>,
    limit: u64,
}

impl MemoryStorage {
    /// An empty file.
    pub fn new() -> Self {
        Self::from_bytes(Vec::new())
    }

    /// A file with this content.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self { bytes: RwLock::new(bytes), limit: u64::MAX }
    }

    /// An empty file that refuses to grow beyond `limit` bytes, like a full disk.
    pub fn with_limit(limit: u64) -> Self {
        Self { bytes: RwLock::default(), limit }
    }

    /// A copy of the whole file.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.bytes.read().clone()
    }

    /// Makes `bytes` at least `end` long; an error changes nothing.
    fn grow(&self, bytes: &mut Vec<u8>, end: u64) -> io::Result<()> {
        let target = usize::try_from(end).map_err(|_| io::ErrorKind::FileTooLarge)?;
        if target <= bytes.len() {
            return Ok(());
        }
        if end > self.limit {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let more = target - bytes.len();
        bytes.try_reserve(more).map_err(|_| io::ErrorKind::OutOfMemory)?;
        bytes.resize(target, 0);
        Ok(())
    }
}

impl Default for MemoryStorage {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStorage")
            .field("len", &self.bytes.read().len())
            .field("limit", &self.limit)
            .finish()
    }
}

impl Storage for MemoryStorage {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.read().len() as u64)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let bytes = self.bytes.read();
        let found = usize::try_from(offset)
            .ok()
            .and_then(|start| bytes.get(start..start.checked_add(buf.len())?))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(found);
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let end = offset.checked_add(data.len() as u64).ok_or(io::ErrorKind::FileTooLarge)?;
        let mut bytes = self.bytes.write();
        self.grow(&mut bytes, end)?;
        let start = usize::try_from(offset).map_err(|_| io::ErrorKind::FileTooLarge)?;
        bytes[start..start + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut bytes = self.bytes.write();
        self.grow(&mut bytes, len)?;
        bytes.truncate(usize::try_from(len).unwrap_or(usize::MAX));
        Ok(())
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let end = offset.checked_add(len).ok_or(io::ErrorKind::FileTooLarge)?;
        self.grow(&mut self.bytes.write(), end)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut bytes = self.bytes.write();
        let file_len = bytes.len();
        let clamp = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(file_len);
        bytes[clamp(offset)..clamp(offset.saturating_add(len))].fill(0);
        Ok(())
    }
}
