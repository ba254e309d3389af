//! Where the entries of runs are in the file, by the hash of their ids: a table in memory, so that
//! a lookup reads one entry, however many segments there are.
//!
//! - The table is made from the tables of directories alone, a segment at a time, and is never
//!   stored. It has one number of 8 bytes for each entry: a part of the hash, and the place.
//! - Of very many entries with one hash, as those of a run id that each agent uses, only the first
//!   ones are there. The others are beside it, by the hash of both ids, so that a lookup that names
//!   the agent does not read them.
//! - It says where a run can be, never that it is there. Who asks reads the entry, whose check and
//!   ids tell, and looks into the segments that were not added ([`Locator::has`]).
//! - Segments that are gone stay in it: who asks drops places in extents that hold no segment of
//!   its moment. A table with many of those is made again ([`Locator::is_stale`]).

use core::fmt;
use std::collections::{BTreeSet, HashMap};
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
/// So many entries with one hash are in the table itself. Further ones of deleted runs are left
/// out: a document may have had thousands of versions.
const MANY: usize = 8;
/// So many entries of segments that are gone are always accepted.
const FEW_STALE: usize = 1 << 8;

/// What tells a segment from others: its id, and its stamp.
pub(crate) type Stamped = (SegmentId, u64);

/// The places of entries with one hash.
pub(crate) type Places = SmallVec<[u64; 4]>;

/// A part of the table.
#[derive(Default)]
struct Shard {
    table: HashTable<u64>,
    /// Further entries of hashes with many of them: the hash in each number is that of both ids.
    crowds: HashMap<u64, BTreeSet<u64>>,
}

/// The table.
pub(crate) struct Locator {
    shards: Vec<RwLock<Shard>>,
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
            shard.write().table.reserve(entries / SHARDS, |known| spread(*known));
        }
    }

    /// Adds a segment, whose directory starts at `start` of the file. Without `is_deleted` one with
    /// many entries of the same ids is not added.
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
        let same = found.chunk_by(|one, two| one.0 == two.0);
        let mut many = same.filter(|same| same.len() > MANY);
        if is_deleted.is_none() && many.any(|many| has_same_ids(directory, many)) {
            return Ok(());
        }
        let mut further = Vec::new();
        for of_shard in found.chunk_by(|one, two| shard_of(one.0) == shard_of(two.0)) {
            let shard = of_shard.first().and_then(|first| self.shards.get(shard_of(first.0)));
            let Some(shard) = shard else { continue };
            let mut shard = shard.write();
            for &(hash, at) in of_shard {
                let entry = entry_of(hash, start + u64::from(at));
                if shard.same(entry & !PLACE).take(MANY).count() < MANY {
                    shard.insert(entry);
                } else {
                    further.push((hash, at));
                }
            }
        }
        let mut count = found.len() - further.len();
        for (hash, at) in further {
            let Some(shard) = self.shards.get(shard_of(hash)) else { continue };
            let place = start + u64::from(at);
            match directory.ids_at(at) {
                Ok((run_no, _)) if is_deleted.is_some_and(|is_deleted| is_deleted(run_no)) => {
                    continue;
                }
                Ok((_, both)) => {
                    let mut shard = shard.write();
                    let crowd = shard.crowds.entry(entry_of(hash, 0)).or_default();
                    crowd.insert(entry_of(both, place));
                }
                // Whoever asks for this hash sees the damage.
                Err(_) => shard.write().insert(entry_of(hash, place)),
            }
            count += 1;
        }
        self.entries.fetch_add(count, Ordering::Relaxed);
        self.members.write().insert(segment, count);
        Ok(())
    }

    /// Where entries with this hash can start in the file. With the hash of both ids the answer
    /// leaves out entries that have other ids. Returns also whether it left out any.
    pub(crate) fn places(&self, (hash, both): (u32, Option<u32>)) -> (Places, bool) {
        let (wanted, mut is_part) = (entry_of(hash, 0), false);
        let Some(shard) = self.shards.get(shard_of(hash)) else { return Default::default() };
        let shard = shard.read();
        let mut places: Places = shard.same(wanted).copied().collect();
        if places.len() >= MANY
            && let Some(crowd) = shard.crowds.get(&wanted)
        {
            let before = places.len();
            let first = both.map_or(0, |both| entry_of(both, 0));
            let last = both.map_or(u64::MAX, |_| first | PLACE);
            places.extend(crowd.range(first..=last).copied());
            is_part = places.len() < before + crowd.len();
        }
        places.iter_mut().for_each(|entry| *entry = (*entry & PLACE) * UNIT);
        // A segment may have an entry where one had it that is gone.
        places.sort_unstable();
        places.dedup();
        (places, is_part)
    }

    /// The bytes that it takes, roughly.
    pub(crate) fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().bytes()).sum()
    }
}

impl Shard {
    /// The entries of the table with this hash.
    fn same(&self, wanted: u64) -> impl Iterator<Item = &u64> {
        self.table.iter_hash(spread(wanted)).filter(move |entry| **entry & !PLACE == wanted)
    }

    fn insert(&mut self, entry: u64) {
        self.table.insert_unique(spread(entry), entry, |known| spread(*known));
    }

    fn bytes(&self) -> usize {
        // Nodes of a tree are two thirds full.
        let crowds = self.crowds.values().map(|crowd| crowd.len() * size_of::<u64>() * 3 / 2);
        self.table.allocation_size() + crowds.sum::<usize>()
    }
}

impl fmt::Debug for Locator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locator").field("entries", &self.entries).finish_non_exhaustive()
    }
}

/// Whether many of these entries have the same ids.
fn has_same_ids(directory: &Directory<'_>, entries: &[(u32, u32)]) -> bool {
    let ids = entries.iter().filter_map(|entry| Some(directory.ids_at(entry.1).ok()?.1));
    let mut ids: Vec<u32> = ids.collect();
    ids.sort_unstable();
    ids.chunk_by(|one, two| one == two).any(|same| same.len() > MANY)
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
