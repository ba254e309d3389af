//! Zeros in place of the pages that the device cannot read.

use core::ops::Range;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::engine::storage::Storage;
use crate::error::{Error, IoAction};
use crate::format::PAGE;

/// The errors of Linux for a medium that cannot be read: EIO, ENODATA, EBADMSG and EILSEQ.
const OF_MEDIUM: [i32; 4] = [5, 61, 74, 84];

/// A storage that is only read. It notes which pages the device could not read, and why.
#[derive(Debug)]
pub(crate) struct SkipUnreadable {
    inner: Arc<dyn Storage>,
    unread: Mutex<BTreeMap<u64, Error>>,
}

impl SkipUnreadable {
    pub(crate) fn new(inner: Arc<dyn Storage>) -> Self {
        Self { inner, unread: Mutex::default() }
    }

    /// The pages within a range that could not be read.
    pub(crate) fn unread_in(&self, within: &Range<u64>) -> Vec<Range<u64>> {
        let pages = within.start / PAGE..within.end.div_ceil(PAGE);
        let unread = self.unread.lock();
        unread.range(pages).map(|(page, _)| page * PAGE..(page + 1) * PAGE).collect()
    }

    /// An error of the device, if there was one.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.unread.lock().values().next().cloned()
    }
}

/// Whether other places may be readable. A storage that is not a file gives no code.
fn is_of_medium(error: &io::Error) -> bool {
    match error.raw_os_error() {
        Some(code) => OF_MEDIUM.contains(&code),
        None => error.kind() == io::ErrorKind::Other,
    }
}

impl Storage for SkipUnreadable {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        match self.inner.read_at(offset, buf) {
            Err(error) if is_of_medium(&error) => {}
            read => return read,
        }
        let (mut at, mut rest) = (offset, buf);
        while !rest.is_empty() {
            let len = usize::try_from(PAGE - at % PAGE).unwrap_or(rest.len()).min(rest.len());
            let (piece, behind) = rest.split_at_mut(len);
            if let Err(error) = self.inner.read_at(at, piece) {
                if !is_of_medium(&error) {
                    return Err(error);
                }
                piece.fill(0);
                let action = IoAction::Read { offset: at };
                let error = Error::Io { action, source: Arc::new(error) };
                self.unread.lock().insert(at / PAGE, error);
            }
            (at, rest) = (at + len as u64, behind);
        }
        Ok(())
    }

    fn data_end(&self, offset: u64, len: u64) -> io::Result<u64> {
        self.inner.data_end(offset, len)
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn allocate(&self, _: u64, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn punch(&self, _: u64, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
