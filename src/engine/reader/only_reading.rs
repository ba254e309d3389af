//! A storage of which only the bytes are looked at.

use std::io;
use std::sync::Arc;

use crate::engine::storage::Storage;

/// Refuses all that would change the storage inside, or take something of it. Behind the end of the
/// file it reads zeros, which check as nothing: the writer may cut the file off at any moment, and
/// what the reader wanted there is then found by a look at the manifest, or is damaged.
#[derive(Debug)]
pub(crate) struct OnlyReading(pub(crate) Arc<dyn Storage>);

/// How often the end of a file is looked for that gets shorter and shorter.
const LOOKS: usize = 16;

fn refusal() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "the store is open to be read only")
}

impl Storage for OnlyReading {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        for _ in 0..LOOKS {
            match self.0.read_at(offset, buf) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
                done => return done,
            }
            // The writer has cut the file off since the reader asked how long it is.
            let there = self.0.len()?.saturating_sub(offset);
            let there = usize::try_from(there).map_or(buf.len(), |there| there.min(buf.len()));
            let (head, rest) = buf.split_at_mut(there);
            rest.fill(0);
            if head.is_empty() {
                return Ok(());
            }
            match self.0.read_at(offset, head) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
                done => return done,
            }
        }
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    fn data_end(&self, offset: u64, len: u64) -> io::Result<u64> {
        self.0.data_end(offset, len)
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(refusal())
    }

    fn sync(&self) -> io::Result<()> {
        Err(refusal())
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(refusal())
    }

    fn allocate(&self, _: u64, _: u64) -> io::Result<()> {
        Err(refusal())
    }

    fn punch(&self, _: u64, _: u64) -> io::Result<()> {
        Err(refusal())
    }
}
