//! Where the entries of runs are in the file, by the hash of their ids: a table in memory, so that
//! a lookup reads one entry, however many segments there are.
//!
//! - The table is made from the tables of directories alone, a segment at a time, and is never
//!   stored. It has one number of 8 bytes for each entry: a part of the hash, and the place.
//! - It says where a run can be, never that it is there. Who asks reads the entry, whose check and
//!   ids tell, and looks into the segments that were not added ([`Locator::has`]).
//! - Segments that are gone stay in it: who asks drops places in extents that hold no segment of
//!   its moment. A table with many of those is made again ([`Locator::is_stale`]).

use core::fmt;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashTable;
use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;

use crate::format::Directory;
use crate::format::codec::Decoded;
use crate::format::segments::run_entry::ENTRY_ALIGN;
use crate::types::{RunNo, SegmentId};

/// How many parts of the table have locks of their own.
const SHARDS: usize = 64;
/// How many bits of a hash tell the shard.
const SHARD_BITS: u32 = SHARDS.trailing_zeros();
/// How many bits of a number are the place of an entry, in units of [`ENTRY_ALIGN`].
const PLACE_BITS: u32 = 40;
const PLACE: u64 = (1 << PLACE_BITS) - 1;
const UNIT: u64 = ENTRY_ALIGN as u64;
/// Of so many entries of one segment with the same hash, those of deleted runs are left out: a
/// document may have had thousands of versions there.
const MANY: usize = 4;
/// So many entries of segments that are gone are always accepted.
const FEW_STALE: usize = 1 << 8;

/// What tells a segment from others: its id, and its stamp.
pub(crate) type Stamped = (SegmentId, u64);

/// The places of entries with one hash.
pub(crate) type Places = SmallVec<[u64; 4]>;

/// The table.
pub(crate) struct Locator {
    shards: Vec<RwLock<HashTable<u64>>>,
    /// The segments that were added, and how many entries each has here.
    members: RwLock<HashMap<Stamped, usize>>,
    entries: AtomicUsize,
    /// One thread adds segments.
    adding: Mutex<()>,
}

impl Default for Locator {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            members: RwLock::default(),
            entries: AtomicUsize::new(0),
            adding: Mutex::default(),
        }
    }
}

impl Locator {
    /// Whether a segment was added.
    pub(crate) fn has(&self, segment: Stamped) -> bool {
        self.members.read().contains_key(&segment)
    }

    /// Whether most entries are of other segments than these.
    pub(crate) fn is_stale(&self, living: impl Iterator<Item = Stamped>) -> bool {
        let members = self.members.read();
        let living: usize = living.filter_map(|segment| members.get(&segment)).sum();
        self.entries.load(Ordering::Relaxed) > 2 * living + FEW_STALE
    }

    /// Makes room for so many entries, so that the table does not grow in between.
    pub(crate) fn reserve(&self, entries: usize) {
        for shard in &self.shards {
            shard.write().reserve(entries / SHARDS, |known| spread(*known));
        }
    }

    /// Adds a segment, whose directory starts at `start` of the file. Without `is_deleted` one with
    /// many entries of one hash is not added.
    pub(crate) fn add(
        &self,
        segment: Stamped,
        start: u64,
        directory: &Directory<'_>,
        is_deleted: Option<&dyn Fn(RunNo) -> bool>,
    ) -> Decoded<()> {
        let _adding = self.adding.lock();
        if self.has(segment) {
            return Ok(());
        }
        let mut found = Vec::with_capacity(directory.run_count() as usize);
        directory.each_place(|hash, at| found.push((hash, at)))?;
        let is_many = |same: &[(u32, u32)]| same.len() > MANY;
        let with_many = found.chunk_by(|one, two| one.0 == two.0).any(is_many);
        if with_many {
            let Some(is_deleted) = is_deleted else { return Ok(()) };
            let lives = |at| directory.head_at(at).map_or(true, |head| !is_deleted(head.run_no));
            let same = found.chunk_by(|one, two| one.0 == two.0);
            let living =
                same.flat_map(|same| same.iter().filter(|one| !is_many(same) || lives(one.1)));
            found = living.copied().collect();
        }
        for of_shard in found.chunk_by(|one, two| shard_of(one.0) == shard_of(two.0)) {
            let shard = of_shard.first().and_then(|first| self.shards.get(shard_of(first.0)));
            let Some(shard) = shard else { continue };
            let mut table = shard.write();
            for &(hash, at) in of_shard {
                let entry = entry_of(hash, start + u64::from(at));
                table.insert_unique(spread(entry), entry, |known| spread(*known));
            }
        }
        self.entries.fetch_add(found.len(), Ordering::Relaxed);
        self.members.write().insert(segment, found.len());
        Ok(())
    }

    /// Where entries with this hash can start in the file.
    pub(crate) fn places(&self, hash: u32) -> Places {
        let wanted = entry_of(hash, 0);
        let Some(table) = self.shards.get(shard_of(hash)) else { return Places::new() };
        let table = table.read();
        let same = table.iter_hash(spread(wanted)).filter(|entry| **entry & !PLACE == wanted);
        let mut places: Places = same.map(|entry| (entry & PLACE) * UNIT).collect();
        // A segment may have an entry where one had it that is gone.
        places.sort_unstable();
        places.dedup();
        places
    }

    /// The bytes that it takes, roughly.
    pub(crate) fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().allocation_size()).sum()
    }
}

impl fmt::Debug for Locator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locator").field("entries", &self.entries).finish_non_exhaustive()
    }
}

fn shard_of(hash: u32) -> usize {
    (hash >> (u32::BITS - SHARD_BITS)) as usize
}

/// The 24 bits of the hash behind those of the shard, and the place.
fn entry_of(hash: u32, offset: u64) -> u64 {
    u64::from(hash << SHARD_BITS) >> 8 << PLACE_BITS | (offset / UNIT) & PLACE
}

/// The hash of an entry in its shard: of all with the same fingerprint.
fn spread(entry: u64) -> u64 {
    (entry >> PLACE_BITS).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
