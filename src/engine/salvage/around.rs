//! Reading around the places that the disk cannot read.

use core::ops::Range;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::engine::storage::Storage;
use crate::error::{Error, IoAction, Result};

const SECTOR: u64 = 512;

/// What is read at a time where a larger read fails: a page of the system, then a sector.
const STEPS: [u64; 2] = [4096, SECTOR];

/// After so many sectors in a row that cannot be read, the device does not answer any more.
const GIVES_UP: u64 = 32 << 10;

/// What Linux answers for a medium that cannot be read: EIO, ENODATA, EBADMSG and EILSEQ.
const OF_MEDIUM: [i32; 4] = [5, 61, 74, 84];

/// Shows zeros in the place of what the disk cannot read, and keeps where that is.
#[derive(Debug)]
pub(crate) struct Around {
    inner: Arc<dyn Storage>,
    unread: Mutex<Unread>,
}

#[derive(Debug, Default)]
struct Unread {
    /// The ends of the ranges, by their starts. No two of them touch.
    ranges: BTreeMap<u64, u64>,
    first: Option<Error>,
    /// The sectors that could not be read since the last read that succeeded.
    in_a_row: u64,
    /// A page that could be read.
    whole_page: Option<u64>,
}

impl Unread {
    fn meets(&self, range: &Range<u64>) -> bool {
        self.ranges.range(..range.end).next_back().is_some_and(|(_, end)| range.start < *end)
    }

    /// Notes the sector with this place, which is not known yet.
    fn note(&mut self, at: u64, error: io::Error) {
        let told = || Error::Io { action: IoAction::Read { offset: at }, source: Arc::new(error) };
        self.first.get_or_insert_with(told);
        self.in_a_row += 1;
        let start = at - at % SECTOR;
        let end = self.ranges.remove(&(start + SECTOR)).unwrap_or(start + SECTOR);
        match self.ranges.range_mut(..start).next_back() {
            Some((_, before)) if *before == start => *before = end,
            _ => drop(self.ranges.insert(start, end)),
        }
    }
}

impl Around {
    pub(crate) fn new(inner: Arc<dyn Storage>) -> Self {
        Self { inner, unread: Mutex::default() }
    }

    /// What could not be read within a range.
    pub(crate) fn unread_in(&self, within: &Range<u64>) -> Vec<Range<u64>> {
        let unread = self.unread.lock();
        let cut = |(start, end): (&u64, &u64)| within.start.max(*start)..within.end.min(*end);
        unread.ranges.iter().map(cut).filter(|range| range.start < range.end).collect()
    }

    /// Why a read failed first.
    pub(crate) fn first_failure(&self) -> Option<Error> {
        self.unread.lock().first.clone()
    }

    /// Refuses what was read if something could not be read and the device has stopped to answer:
    /// what it did not give would be told of as lost. The page cache answers without it.
    pub(crate) fn check_answers(&self) -> Result<()> {
        let (first, page) = {
            let unread = self.unread.lock();
            (unread.first.clone(), unread.whole_page)
        };
        let Some(error) = first else { return Ok(()) };
        // Or the header and the superblocks: a small store has no other page.
        let mut pages = page.into_iter().chain((0..3).map(|page| page * STEPS[0]));
        let answers = pages.any(|at| self.inner.read_anew(at, &mut [0; 4096]).is_ok());
        if answers { Ok(()) } else { Err(error) }
    }

    /// Reads all at once or, if that fails, in smaller and smaller steps.
    fn read_by(&self, at: u64, buf: &mut [u8], steps: &[u64]) -> io::Result<()> {
        if !self.unread.lock().meets(&(at..at.saturating_add(buf.len() as u64))) {
            match self.inner.read_at(at, buf) {
                Err(error) if !is_of_medium(&error) => return Err(error),
                Err(error) if self.unread.lock().in_a_row >= GIVES_UP => return Err(error),
                Err(error) if steps.is_empty() => self.unread.lock().note(at, error),
                Err(_) => {}
                Ok(()) => {
                    let mut unread = self.unread.lock();
                    unread.in_a_row = 0;
                    let page = at.next_multiple_of(STEPS[0]);
                    if at + buf.len() as u64 >= page + STEPS[0] {
                        unread.whole_page = Some(page);
                    }
                    return Ok(());
                }
            }
        }
        let Some((&step, smaller)) = steps.split_first() else {
            buf.fill(0);
            return Ok(());
        };
        let (mut at, mut rest) = (at, buf);
        while !rest.is_empty() {
            let len = usize::try_from(step - at % step).unwrap_or(rest.len()).min(rest.len());
            let (part, behind) = rest.split_at_mut(len);
            self.read_by(at, part, smaller)?;
            (at, rest) = (at + len as u64, behind);
        }
        Ok(())
    }
}

/// Whether another place may be read nevertheless. A storage that is no file says no more.
fn is_of_medium(error: &io::Error) -> bool {
    match error.raw_os_error() {
        Some(code) => OF_MEDIUM.contains(&code),
        None => error.kind() == io::ErrorKind::Other,
    }
}

impl Storage for Around {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.read_by(offset, buf, &STEPS)
    }

    fn data_end(&self, offset: u64, len: u64) -> io::Result<u64> {
        self.inner.data_end(offset, len)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, data)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.allocate(offset, len)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.punch(offset, len)
    }
}
