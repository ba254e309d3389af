//! The file of a new store that has no name yet: the store is closed before the file gets it.

use std::io;
use std::sync::Arc;

use crate::engine::storage::{FileStorage, Region, Storage, TailWindow};

/// A file that closing the store does not release.
#[derive(Debug)]
pub(crate) struct Kept(pub(crate) Arc<FileStorage>);

impl Storage for Kept {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, data)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.allocate(offset, len)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.punch(offset, len)
    }

    fn data_end(&self, offset: u64, len: u64) -> io::Result<u64> {
        self.0.data_end(offset, len)
    }

    fn looking_takes_space(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.0.looking_takes_space(offset, len)
    }

    fn map(&self, offset: u64, len: usize) -> io::Result<Option<Region>> {
        self.0.map(offset, len)
    }

    fn map_tail(&self, offset: u64, len: usize) -> io::Result<Option<Arc<dyn TailWindow>>> {
        self.0.map_tail(offset, len)
    }
}
