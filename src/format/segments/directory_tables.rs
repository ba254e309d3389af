//! The tables of a directory, which stand behind its entries, and the trailer with their check.

use core::ops::Range;

use crate::error::Damage;
use crate::format::codec::{Decoded, Reader, at_most, check_crc};
use crate::format::segments::directory::{
    DIRECTORY_MAGIC, EVICTION_LEN, HASH_LEN, PLACE_LEN, TRAILER_LEN,
};
use crate::format::segments::directory_key::{DirectoryKey, IdHash, check_at};
use crate::format::segments::run_entry::ENTRY_ALIGN;
use crate::types::{Lsn, RunNo};

/// The tag of the section that lists PIECEs.
pub(super) const PIECES: u32 = 1;
/// The size of what it has of one.
pub(super) const PIECE_LEN: usize = 16;
/// The size of tag and length of a section.
pub(super) const SECTION_HEAD_LEN: usize = 8;

/// The length of the section of this many pieces.
pub(super) const fn pieces_len(count: usize) -> usize {
    if count == 0 { 0 } else { SECTION_HEAD_LEN + count * PIECE_LEN }
}

/// The tables of a directory whose check matched: where its parts are.
#[derive(Debug, Clone)]
pub struct Tables {
    pub(super) salted: crc32fast::Hasher,
    pub(super) ids: IdHash,
    /// Where the entries end, and the places start.
    pub(super) places_at: usize,
    pub(super) hashes_at: usize,
    pub(super) evictions_at: usize,
    /// Where the list of PIECEs starts, and how many there are.
    pub(super) pieces: (usize, usize),
    pub(super) runs: u32,
    pub(super) evictions: u32,
    pub(super) first_lsn: Lsn,
    pub(super) last_lsn: Lsn,
    pub(super) next_run_no: RunNo,
}

impl Tables {
    /// Reads the trailer of a directory and checks the tables. The entries are not read.
    ///
    /// # Errors
    /// [`Damage`] if the trailer does not fit the bytes, or the check does not match.
    pub fn read(bytes: &[u8], key: &DirectoryKey) -> Decoded<Self> {
        let at = bytes.len().checked_sub(TRAILER_LEN).ok_or(Damage::Truncated)?;
        let mut reader = Reader::at(bytes, at);
        if reader.array::<8>()? != DIRECTORY_MAGIC {
            return Err(Damage::Magic);
        }
        let places_at = reader.u32()? as usize;
        let (runs, evictions, sections) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let (first_lsn, last_lsn) = (Lsn(reader.u64()?), Lsn(reader.u64()?));
        let next_run_no = RunNo(reader.u64()?);
        let stored = reader.zeros(12)?.u32()?;
        let hashes_at = part(places_at, runs, PLACE_LEN)?;
        let evictions_at = part(hashes_at, runs, HASH_LEN)?;
        let sections_at = part(evictions_at, evictions, EVICTION_LEN)?;
        let end = part(sections_at, sections, 1)?;
        if end != at || !places_at.is_multiple_of(ENTRY_ALIGN) {
            return Err(Damage::OutOfRange { found: end as u64, max: at as u64 });
        }
        let salted = key.salted();
        let covered = bytes.get(places_at..bytes.len() - 4).ok_or(Damage::Truncated)?;
        check_crc(stored, check_at(&salted, places_at, covered))?;
        Ok(Self {
            salted,
            ids: key.ids,
            places_at,
            hashes_at,
            evictions_at,
            pieces: pieces_in(bytes, sections_at..end)?,
            runs,
            evictions,
            first_lsn,
            last_lsn,
            next_run_no,
        })
    }
}

/// Where the sections list PIECEs, and how many. Other tags are passed over.
fn pieces_in(bytes: &[u8], sections: Range<usize>) -> Decoded<(usize, usize)> {
    let mut at = sections.start;
    while at < sections.end {
        let mut reader = Reader::at(bytes, at);
        let (tag, len) = (reader.u32()?, reader.u32()? as usize);
        let list = at + SECTION_HEAD_LEN;
        at = list.checked_add(len.next_multiple_of(8)).ok_or(Damage::Truncated)?;
        at_most(at as u64, sections.end as u64)?;
        if tag == PIECES {
            return Ok((list, len / PIECE_LEN));
        }
    }
    Ok((0, 0))
}

/// The end of `count` items of `size` bytes that start at `at`.
fn part(at: usize, count: u32, size: usize) -> Decoded<usize> {
    (count as usize).checked_mul(size).and_then(|len| at.checked_add(len)).ok_or(Damage::Truncated)
}
