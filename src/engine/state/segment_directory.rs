//! The directory of a sealed segment: read, checked, and built again from the frames; and which
//! runs it evicts.

use std::borrow::Cow;

use crate::engine::state::scan::rebuild_directory;
use crate::engine::state::segment::{DirectoryBytes, Segment};
use crate::error::{Corruption, Damage, Error, Place, Result};
use crate::format::codec::Decoded;
use crate::format::segments::directory::Tables;
use crate::format::segments::run_set::RunSet;
use crate::format::{Directory, FrameKind};
use crate::types::RunNo;

impl Segment {
    /// Whether the directory was read.
    pub(crate) fn has_directory(&self) -> bool {
        self.directory.get().is_some()
    }

    /// The damage that quarantines the segment, if its directory was read and is lost.
    pub(crate) fn quarantine(&self) -> Option<&Corruption> {
        match (self.directory.get()?, self.rebuilt.get()?) {
            (None, Err(found)) => Some(found),
            _ => None,
        }
    }

    /// The directory of a sealed segment. If its tables are damaged it is built again from the
    /// frames. An entry is checked when it is read ([`Segment::in_directory`]).
    ///
    /// # Errors
    /// [`Error::Corrupt`] each time if the segment is quarantined: the tables are damaged, and the
    /// rebuilt directory lacks the digest that the SEAL record states.
    pub(crate) fn directory(&self) -> Result<Directory<'_>> {
        if let Some(Ok(rebuilt)) = self.rebuilt.get() {
            return Ok(self.view_of(rebuilt));
        }
        let stored = match self.directory.get() {
            Some(stored) => stored,
            None => {
                let (stored, found) = self.load_directory()?;
                if stored.is_none() {
                    self.rebuild(found)?;
                }
                self.directory.get_or_init(|| stored)
            }
        };
        match (stored, self.rebuilt.get()) {
            (Some(stored), _) => Ok(self.view_of(stored)),
            (None, Some(Ok(rebuilt))) => Ok(self.view_of(rebuilt)),
            (None, Some(Err(found))) => Err(Error::Corrupt(found.clone())),
            (None, None) => Err(self.damaged_directory(Damage::Missing)),
        }
    }

    /// The stored directory if its tables check, else why not.
    fn load_directory(&self) -> Result<(Option<DirectoryBytes>, Damage)> {
        let Some(at) = self.sealed() else { return Ok((None, Damage::Missing)) };
        let bytes = match self.read(at.directory(), at.len as usize) {
            Ok(bytes) => bytes,
            Err(Error::Corrupt(found)) => return Ok((None, found.damage)),
            Err(error) => return Err(error),
        };
        let tables = match Tables::read(&bytes, &self.directory_key(at.end)) {
            Ok(tables) => tables,
            Err(damage) => return Ok((None, damage)),
        };
        let copy = match bytes {
            Cow::Borrowed(_) => None,
            Cow::Owned(bytes) => Some(bytes),
        };
        Ok((Some(DirectoryBytes { copy, tables }), Damage::Missing))
    }

    /// Builds the directory again from the frames, once. It counts only if it has the digest of the
    /// SEAL record; then it is the directory that was stored.
    ///
    /// # Errors
    /// An error of the disk; then nothing is known.
    #[cold]
    fn rebuild(&self, found: Damage) -> Result<()> {
        if self.rebuilt.get().is_some() {
            return Ok(());
        }
        let end = self.sealed().map_or(0, |at| at.end);
        let lost = |damage| Corruption::new(Place::Directory { segment: self.key.id }, damage);
        let rebuilt = match rebuild_directory(self)? {
            Some(bytes) => {
                let tables = Tables::read(&bytes, &self.directory_key(end)).map_err(lost);
                tables.map(|tables| DirectoryBytes { copy: Some(bytes), tables })
            }
            None => Err(lost(found)),
        };
        let _ = self.rebuilt.set(rebuilt);
        Ok(())
    }

    /// The error for an entry of the directory that is damaged and could not be built again.
    pub(crate) fn damaged_entry(&self) -> Option<Error> {
        Some(Error::Corrupt(self.rebuilt.get()?.as_ref().err()?.clone()))
    }

    /// Builds the directory again after an entry of it turned out to be damaged. A failure leaves
    /// the entry damaged.
    pub(crate) fn mend(&self, found: Damage) {
        let _ = self.rebuild(found);
    }

    fn view_of<'a>(&'a self, found: &'a DirectoryBytes) -> Directory<'a> {
        let bytes = match &found.copy {
            Some(bytes) => bytes,
            None => self.sealed().map_or(&[][..], |at| self.viewed(at.directory(), at.len)),
        };
        Directory::with(bytes, &found.tables)
    }

    /// The answer of `read` from the directory. If an entry that it reads is damaged, the directory
    /// is built again from the frames, and read again.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the directory as its place. [`Segment::quarantine`] tells whether
    /// the segment is quarantined; if not, only the entry is damaged.
    pub(crate) fn in_directory<T>(
        &self,
        mut read: impl FnMut(Directory<'_>) -> Decoded<T>,
    ) -> Result<T> {
        let found = match read(self.directory()?) {
            Err(found) if self.rebuilt.get().is_none() => found,
            answer => return answer.map_err(|damage| self.damaged_directory(damage)),
        };
        self.rebuild(found)?;
        read(self.directory()?).map_err(|damage| self.damaged_directory(damage))
    }

    /// The error for a damaged directory.
    pub(crate) fn damaged_directory(&self, damage: Damage) -> Error {
        Error::corrupt(Place::Directory { segment: self.key.id }, damage)
    }

    /// Reads and checks the directory in the file, and the SEAL frame that has it.
    pub(crate) fn stored_directory(&self) -> Result<Cow<'_, [u8]>> {
        let wrong = |damage| self.damaged_directory(damage);
        let at = self.sealed().ok_or_else(|| wrong(Damage::Missing))?;
        let header = self.read_header(at.end)?;
        let found = (header.kind, header.extra, header.payload_len, header.payload_crc);
        if found != (FrameKind::Seal, at.end, at.len, at.digest) {
            return Err(wrong(Damage::Mismatch));
        }
        let bytes = self.read_payload(&header)?;
        let checked = Directory::new(&bytes, &self.directory_key(at.end));
        checked.and_then(|found| found.check()).map_err(wrong).map(|()| bytes)
    }
}

/// Whether a sealed segment evicts runs.
pub(crate) fn has_evictions(segment: &Segment) -> bool {
    segment.sealed().is_some_and(|sealed| sealed.has_evictions)
}

/// The runs that a sealed segment evicts.
pub(crate) fn evictions(segment: &Segment) -> Result<Vec<RunNo>> {
    if !has_evictions(segment) {
        return Ok(Vec::new());
    }
    segment.in_directory(|directory| {
        directory.evictions().map(|found| found.map(|found| found.run_no)).collect()
    })
}

/// The asked runs that have frames in a segment, except those that the segment itself evicts.
pub(crate) fn runs_among(segment: &Segment, asked: &RunSet) -> Result<Vec<RunNo>> {
    if asked.is_empty() {
        return Ok(Vec::new());
    }
    let own: RunSet = evictions(segment)?.into_iter().collect();
    let found: Vec<RunNo> = segment.in_directory(|directory| {
        if asked.len() >= directory.run_count().into() {
            return (0..directory.run_count()).map(|slot| directory.run_no(slot)).collect();
        }
        let find = |run_no: RunNo| Ok(directory.find_no(run_no)?.map(|_| run_no));
        asked.iter().filter_map(|run_no| find(run_no).transpose()).collect()
    })?;
    let is_asked = |run_no: &RunNo| asked.contains(*run_no) && !own.contains(*run_no);
    Ok(found.into_iter().filter(is_asked).collect())
}
