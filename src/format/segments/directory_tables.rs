//! The tables of a directory, which stand behind its entries, and the trailer with their check.

use crate::error::Damage;
use crate::format::codec::{Decoded, Reader, check_crc};
use crate::format::segments::directory::{
    DIRECTORY_MAGIC, EVICTION_LEN, HASH_LEN, PLACE_LEN, TRAILER_LEN,
};
use crate::format::segments::directory_key::{DirectoryKey, IdHash, check_at};
use crate::format::segments::run_entry::ENTRY_ALIGN;
use crate::types::{Lsn, RunNo};

/// The tables of a directory whose check matched: where its parts are.
#[derive(Debug, Clone)]
pub struct Tables {
    pub(super) salted: crc32fast::Hasher,
    pub(super) ids: IdHash,
    /// Where the entries end, and the places start.
    pub(super) places_at: usize,
    pub(super) hashes_at: usize,
    pub(super) evictions_at: usize,
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
            runs,
            evictions,
            first_lsn,
            last_lsn,
            next_run_no,
        })
    }
}

/// The end of `count` items of `size` bytes that start at `at`.
fn part(at: usize, count: u32, size: usize) -> Decoded<usize> {
    (count as usize).checked_mul(size).and_then(|len| at.checked_add(len)).ok_or(Damage::Truncated)
}
