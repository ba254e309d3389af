//! A copy of a store as of one moment, while it is written: segment by segment, each checked. What
//! an earlier copy in the same file has stays where it is.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use crate::engine::open::front_matter::{Access, read_base};
use crate::engine::read::doubt::Doubt;
use crate::engine::reader::Replica;
use crate::engine::reader::copied::{Copied, segments};
use crate::engine::space::allocator::Allocator;
use crate::engine::space::manifest_log::ManifestLog;
use crate::engine::state::segment::Segment;
use crate::engine::storage::disk::Disk;
use crate::engine::storage::{Creation, FileStorage, OpenedFile, Storage};
use crate::engine::values::report::RecoveryReport;
use crate::error::{Corruption, Damage, Error, Place, Result};
use crate::format::codec::len_u32;
use crate::format::frames::frame::SegmentKey;
use crate::format::map::header::StaticHeader;
use crate::format::map::manifest::{
    Area, AreaHeader, Change, Extents, RecordKey, SealedAt, Use, encode_batch, used_len,
};
use crate::format::map::owner;
use crate::format::map::superblock::{
    FLAG_CLEAN, FLAG_COPY, FLAG_DAMAGED_COPY, ManifestAt, Superblock,
};
use crate::format::segments::segment::SEGMENT_HEADER_LEN;
use crate::format::{EXTENTS_AT, MANIFEST_AREA_LEN, MANIFEST_AT, OWNER_AT, PAGE_LEN};
use crate::types::{Epoch, ExtentNo, LogPosition};

/// How often the copy goes on from a later moment, because the writer has moved what was to be
/// copied.
const MOMENTS: usize = 64;

/// What a backup copied.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
#[must_use = "what could not be read whole is in the report"]
pub struct Backup {
    /// Segments that were copied, or of which more was copied.
    pub copied_segments: u64,
    /// The bytes of these.
    pub copied_bytes: u64,
    /// Segments that the file had already.
    pub kept_segments: u64,
    /// Everything in front of this position is in the copy, and survives power loss there.
    pub end: LogPosition,
    /// Damage of what was copied. The copy has the damaged bytes as they are, until a later call
    /// finds whole ones in the store; until then each call names them.
    pub damaged: Vec<Corruption>,
}

/// A segment as the copy has it.
#[derive(Debug, Clone, Copy)]
struct Has {
    extent: ExtentNo,
    /// Its bytes are there up to here.
    end: u32,
    /// All of it is there, as a segment with this seal.
    sealed: Option<SealedAt>,
    /// What the manifest of the copy says of it.
    listed: Listed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listed {
    No,
    Open,
    Sealed,
}

/// The file that is copied to.
struct Target {
    disk: Disk,
    allocator: Allocator,
    has: HashMap<(u32, u64), Has>,
    /// What is wrong with the copies of segments, as far as this call looked at them.
    damaged: HashMap<(u32, u64), Vec<Corruption>>,
    /// Other bytes under the key of a segment: of a log that a power loss has cut off since.
    replaced: Vec<Has>,
    doubt: Doubt,
}

/// What a backup led to.
pub(crate) struct BackedUp {
    pub(crate) report: Backup,
    /// The copy has records that the store does not know of any more, since it was opened when they
    /// were damaged. It may have given their numbers again, which only a check of the whole copy
    /// tells.
    pub(crate) has_more: bool,
}

/// Copies the store to `path`.
pub(crate) fn backup(source: &Replica, path: &Path) -> Result<BackedUp> {
    match FileStorage::open_locked(path) {
        Err(Error::NotFound { .. }) => {
            let creation = Creation::begin(path)?;
            let storage = Arc::<FileStorage>::clone(creation.storage());
            let copied = Target::new(source, storage)?.fill(source)?;
            drop(creation.finish()?);
            Ok(copied)
        }
        Ok(OpenedFile::Locked(storage)) => {
            let taken = || Error::AlreadyExists { path: path.to_owned() };
            Target::open(source, Arc::new(storage))?.ok_or_else(taken)?.fill(source)
        }
        Ok(OpenedFile::Busy(_)) => Err(Error::Busy { path: path.to_owned(), owner: None }),
        Err(error) => Err(error),
    }
}

/// The same into a storage: an empty one, or one that has an earlier copy.
#[cfg(any(test, feature = "unstable-internals"))]
pub(crate) fn backup_to_storage(source: &Replica, storage: Arc<dyn Storage>) -> Result<BackedUp> {
    let is_empty = Disk::new(Arc::clone(&storage)).len()? == 0;
    let target = if is_empty {
        Target::new(source, storage)?
    } else {
        let what = "the storage must be empty or have an earlier copy of this store";
        Target::open(source, storage)?.ok_or(Error::InvalidArgument { what })?
    };
    target.fill(source)
}

impl Target {
    /// A store without segments.
    fn new(source: &Replica, storage: Arc<dyn Storage>) -> Result<Self> {
        let disk = Disk::new(storage);
        let (uuid, extent_size) = (source.uuid(), source.answers.setup.extent_size);
        // One whose header is damaged reads by its superblocks; the copy gets a whole one.
        let stored = StaticHeader::decode(&source.disk.read_padded(0, PAGE_LEN)?);
        let created = source.answers.setup.now();
        let header = stored.unwrap_or_else(|_| StaticHeader::new(uuid, extent_size, created));
        let records = [Change::IndexLen { len: 0 }];
        let (generation, count) = (1, records.len() as u64);
        let manifest =
            ManifestAt { offset: MANIFEST_AT, len: MANIFEST_AREA_LEN, generation, records: count };
        let mut superblock = Superblock { epoch: Epoch(0), manifest, ..source.superblock()? };
        (superblock.durable, superblock.flags) = (LogPosition::default(), FLAG_COPY);
        let mut front = header.encode();
        for epoch in [Epoch(0), Epoch(1)] {
            superblock.epoch = epoch;
            front.extend(superblock.encode());
        }
        front.resize(usize::try_from(OWNER_AT).unwrap_or(0), 0);
        front.extend(owner_page(source)?);
        front.resize(usize::try_from(MANIFEST_AT).unwrap_or(0), 0);
        let area = AreaHeader { uuid, generation, area_len: MANIFEST_AREA_LEN, snapshot: 1 };
        front.extend(area.encode());
        front.extend(encode_batch(&records, RecordKey { generation, index: 0 }));
        front.resize(usize::try_from(EXTENTS_AT).unwrap_or(0), 0);
        disk.write(0, &front)?;
        let [_, next] = Area::FRONT;
        let extents = Extents::default();
        Ok(Self::of(disk, superblock, (extents, manifest, next)))
    }

    /// An earlier copy of the same store; none if the file is anything else.
    fn open(source: &Replica, storage: Arc<dyn Storage>) -> Result<Option<Self>> {
        let disk = Disk::new(storage);
        let mut report = RecoveryReport::default();
        let refuse = || Err(Error::corrupt(Place::Manifest { offset: 0 }, Damage::Missing));
        let access = Access { to_write: true, salvages: &refuse };
        let base = match read_base(&disk, &mut report, access) {
            Ok(base) => base,
            Err(error @ Error::Io { .. }) => return Err(error),
            Err(_) => return Ok(None),
        };
        let is_copy = base.superblock.flags & FLAG_COPY != 0;
        let same =
            (base.uuid, base.extent_size) == (source.uuid(), source.answers.setup.extent_size);
        if !same || !is_copy {
            return Ok(None);
        }
        let mut target = Self::of(disk, base.superblock, (base.extents, base.manifest, base.next));
        if base.rewrite {
            target.allocator.manifest.distrust_area();
        }
        let durable = target.allocator.superblock.durable;
        let extents = target.allocator.manifest.extents().clone();
        for (&extent, used) in &extents.uses {
            if let Use::Retired { .. } = used {
                // An update broke off in front of freeing it.
                let has = Has { extent, end: 0, sealed: None, listed: Listed::Sealed };
                target.replaced.push(has);
            }
            if let Use::Log { segment, salt, sealed, .. } = *used {
                let (end, listed) = match sealed {
                    Some(at) => (at.seal, Listed::Sealed),
                    None if durable.segment == segment => (durable.offset, Listed::Open),
                    None => (SEGMENT_HEADER_LEN, Listed::Open),
                };
                let has = Has { extent, end, sealed, listed };
                target.has.insert((segment.0, salt), has);
            }
        }
        Ok(Some(target))
    }

    fn of(
        disk: Disk,
        superblock: Superblock,
        (extents, at, next): (Extents, ManifestAt, Area),
    ) -> Self {
        let (uuid, size) = (superblock.uuid, superblock.extent_size);
        let manifest = ManifestLog::resume(disk.clone(), uuid, size, extents, at, next);
        let (compaction_reserve, freed, may_move) = (None, BTreeSet::new(), 0);
        let allocator = Allocator {
            manifest,
            superblock,
            disk: disk.clone(),
            compaction_reserve,
            freed,
            may_move,
        };
        let (has, damaged, replaced) = (HashMap::new(), HashMap::new(), Vec::new());
        Self { disk, allocator, has, damaged, replaced, doubt: Doubt::default() }
    }

    /// Copies what the file does not have, until all of one moment is there, and makes it count.
    fn fill(mut self, source: &Replica) -> Result<BackedUp> {
        let mut report = Backup::default();
        source.refresh()?;
        for _ in 0..MOMENTS {
            let view = source.number();
            report.kept_segments = 0;
            let mut wanted = segments(source)?;
            self.expect_segments(source)?;
            if self.copy_all(source, view, &mut wanted, &mut report)? {
                self.make_it_count(source, &wanted, &mut report)?;
                let has_more = wanted.iter().any(|one| one.lists_more);
                return Ok(BackedUp { report, has_more });
            }
        }
        Err(Error::Overtaken { attempts: MOMENTS as u64 })
    }

    /// Sees to it that both superblocks know the numbers of all segments to be copied: frames of a
    /// segment that they do not know, in a free extent, would tell of a lost manifest (R1).
    fn expect_segments(&mut self, source: &Replica) -> Result<()> {
        let next = source.superblock()?.next_segment;
        if self.allocator.superblock.next_segment < next {
            for _ in 0..2 {
                self.allocator.write_superblock(|block| block.next_segment = next)?;
            }
        }
        Ok(())
    }

    /// Copies what the file does not have; answers whether the writer has left all of it alone.
    fn copy_all(
        &mut self,
        source: &Replica,
        view: u64,
        wanted: &mut [Copied],
        report: &mut Backup,
    ) -> Result<bool> {
        let boot = source.boot().filter(|boot| *boot == self.allocator.superblock.boot_id);
        let is_same_boot = boot.is_some();
        for one in wanted {
            let key = key_of(&one.segment);
            let known = self.has.get(&key).copied();
            let same = known.filter(|has| has.sealed.is_some() && has.sealed == one.sealed);
            let may_be_damaged = self.is_damaged() || self.damaged.contains_key(&key);
            if let Some(has) = same {
                let mut there = Vec::new();
                if may_be_damaged {
                    one.check((has.extent, &self.read(has)?), &mut there);
                }
                if there.is_empty() {
                    self.damaged.remove(&key);
                    report.kept_segments += 1;
                    continue;
                }
            }
            let told = one.lost;
            let is_shorter = one.stored().is_none() && is_same_boot;
            if let Some(has) = known.filter(|has| has.end > one.end && is_shorter) {
                // A kill takes no frame away that a process has seen, and no writer has decided
                // since that the log ends here: they are damaged.
                one.lost = Some(has.end.max(told.unwrap_or(0)));
            }
            let mut odd = Vec::new();
            let mut bytes = one.read(&mut odd)?;
            if !self.doubt.confirms(&odd, view, source.number()) && source.was_overtaken(view)? {
                return Ok(false);
            }
            let is_odd = !odd.is_empty();
            if let Some(has) = known.filter(|_| is_odd) {
                // Each of the two may have what the other one lost, and what is replaced is gone.
                one.mend(&mut bytes, (&self.read(has)?, has.sealed))?;
                one.lost = one.lost.and(told);
            }
            one.close(&mut bytes);
            let (extent, from) = self.place_for(known, one.sealed, &bytes)?;
            if is_odd {
                odd.clear();
                one.check((extent, &bytes), &mut odd);
            }
            if odd.is_empty() {
                self.damaged.remove(&key)
            } else {
                self.damaged.insert(key, odd)
            };
            let at = one.segment.extent_size().offset_of(extent);
            let new = bytes.get(from..).unwrap_or_default();
            if new.is_empty() {
                report.kept_segments += 1;
            } else {
                self.disk.write(at + from as u64, new)?;
                report.copied_segments += 1;
                report.copied_bytes += new.len() as u64;
            }
            let is_here = known.filter(|has| has.extent == extent);
            let listed = is_here.map_or(Listed::No, |has| has.listed);
            let end = len_u32(bytes.len());
            self.has.insert(key, Has { extent, end, sealed: one.sealed, listed });
        }
        Ok(true)
    }

    /// Whether the file may have damaged bytes.
    fn is_damaged(&self) -> bool {
        self.allocator.superblock.flags & FLAG_DAMAGED_COPY != 0
    }

    /// All that counts of what the file has of a segment.
    fn read(&self, has: Has) -> Result<Vec<u8>> {
        let size = self.allocator.superblock.extent_size;
        let len = match has.sealed {
            Some(_) => size.bytes_u32(),
            None => has.end,
        };
        self.disk.read_padded(size.offset_of(has.extent), len as usize)
    }

    /// Where the bytes of a segment go, and from where on: behind those that are there, or to
    /// another extent if others are there.
    fn place_for(
        &mut self,
        known: Option<Has>,
        sealed: Option<SealedAt>,
        bytes: &[u8],
    ) -> Result<(ExtentNo, usize)> {
        let Some(has) = known else { return Ok((self.claim()?, 0)) };
        let there = self.read(has)?;
        let is_there = has.sealed == sealed && there.starts_with(bytes);
        if has.sealed.is_some() && is_there {
            return Ok((has.extent, bytes.len()));
        }
        if has.sealed.is_none() && bytes.starts_with(&there) {
            // What an update that broke off left behind them must not follow the new bytes.
            let size = self.allocator.superblock.extent_size;
            let len = usize::try_from(size.bytes()).unwrap_or(usize::MAX);
            let all = self.disk.read_padded(size.offset_of(has.extent), len)?;
            if used_len(&all) <= bytes.len() {
                return Ok((has.extent, there.len()));
            }
        }
        self.replaced.push(has);
        Ok((self.claim()?, 0))
    }

    /// A free extent without bytes of an earlier owner.
    fn claim(&mut self) -> Result<ExtentNo> {
        let extent = self.allocator.claim()?;
        let size = self.allocator.superblock.extent_size;
        let (at, len) = (size.offset_of(extent), self.disk.len()?);
        if at < len {
            self.disk.punch(at, size.bytes().min(len - at))?;
        }
        Ok(extent)
    }

    /// Makes what was copied the state of the file, durably, and frees what it does not need.
    fn make_it_count(
        &mut self,
        source: &Replica,
        wanted: &[Copied],
        report: &mut Backup,
    ) -> Result<()> {
        let size = self.allocator.superblock.extent_size;
        let mut changes = Vec::new();
        let mut needed: BTreeMap<(u32, u64), ExtentNo> = BTreeMap::new();
        for one in wanted {
            let key = key_of(&one.segment);
            let Some(has) = self.has.get(&key).copied() else { continue };
            needed.insert(key, has.extent);
            let (segment, extent) = (one.segment.id(), has.extent);
            if has.listed == Listed::No {
                let (salt, purpose) = (one.segment.key().salt, one.segment.purpose());
                changes.push(Change::Reserve { extent, segment, salt, purpose });
            }
            if let Some(at) = has.sealed.filter(|_| has.listed != Listed::Sealed) {
                changes.push(Change::Seal { extent, segment, at });
            }
        }
        let end = wanted.last().map_or(LogPosition::default(), |one| {
            one.segment.position(one.sealed.map_or(one.end, |_| size.bytes_u32()))
        });
        let is_needed = |id: u32| needed.range((id, 0)..=(id, u64::MAX)).next().is_some();
        let gone = self.has.iter().filter(|(key, _)| !needed.contains_key(*key));
        // No two extents have the same segment: what is replaced is free at once.
        let (same, others): (Vec<_>, Vec<_>) = gone.partition(|(key, _)| is_needed(key.0));
        let replaced = core::mem::take(&mut self.replaced).into_iter();
        let replaced: Vec<Has> = replaced.chain(same.into_iter().map(|(_, has)| *has)).collect();
        let others: Vec<Has> = others.into_iter().map(|(_, has)| *has).collect();
        let is_listed = |has: &&Has| has.listed != Listed::No;
        let free = |has: &Has| Change::Free { extent: has.extent };
        let retire = |has: &Has| Change::Retire { extent: has.extent };
        let first = replaced.iter().filter(is_listed).map(free);
        let retired: Vec<Has> = others.iter().filter(is_listed).copied().collect();
        let changes: Vec<Change> = first.chain(retired.iter().map(retire)).chain(changes).collect();
        for has in replaced.iter().chain(&others).filter(|has| has.listed == Listed::No) {
            self.allocator.let_go(has.extent);
        }
        self.disk.sync()?;
        if !replaced.is_empty() || end < self.allocator.superblock.durable {
            // The floor is the larger position of both slots, and may be in what goes.
            for _ in 0..2 {
                self.allocator.write_superblock(|block| block.durable = LogPosition::default())?;
            }
        }
        let damaged = wanted.iter().filter_map(|one| self.damaged.get(&key_of(&one.segment)));
        report.damaged = damaged.flatten().cloned().collect();
        let is_damaged = !report.damaged.is_empty();
        if is_damaged && !self.is_damaged() {
            // Whichever slot is lost.
            for _ in 0..2 {
                self.allocator.write_superblock(|block| block.flags |= FLAG_DAMAGED_COPY)?;
            }
        }
        self.allocator.commit_durably(&changes)?;
        let now = source.superblock()?;
        let flags = FLAG_CLEAN | FLAG_COPY | if is_damaged { FLAG_DAMAGED_COPY } else { 0 };
        self.allocator.write_superblock(|block| {
            (block.durable, block.flags) = (end, flags);
            (block.next_run_no, block.next_lsn) = (now.next_run_no, now.next_lsn);
            (block.next_segment, block.boot_id) = (now.next_segment, now.boot_id);
        })?;
        self.free(&retired)?;
        report.end = end;
        Ok(())
    }

    /// Frees segments that were retired, as a writer does (O6).
    fn free(&mut self, retired: &[Has]) -> Result<()> {
        let size = self.allocator.superblock.extent_size;
        if !retired.is_empty() {
            for has in retired {
                self.disk.zero(size.offset_of(has.extent), SEGMENT_HEADER_LEN as usize)?;
            }
            self.disk.sync()?;
            let free = |has: &Has| Change::Free { extent: has.extent };
            let changes: Vec<Change> = retired.iter().map(free).collect();
            self.allocator.commit_durably(&changes)?;
            self.allocator.cover()?;
        }
        let end = self.allocator.manifest.end_in_use();
        if self.disk.len()? > end {
            self.disk.set_len(end)?;
        }
        for extent in core::mem::take(&mut self.allocator.freed) {
            let at = size.offset_of(extent);
            if at < end {
                self.disk.punch(at, size.bytes().min(end - at))?;
            }
        }
        self.disk.sync()
    }
}

fn key_of(segment: &Segment) -> (u32, u64) {
    let SegmentKey { id, salt } = segment.key();
    (id.0, salt)
}

/// The page of the owner says who made the copy.
fn owner_page(source: &Replica) -> Result<Vec<u8>> {
    let page = source.disk.read_padded(OWNER_AT, PAGE_LEN)?;
    Ok(if owner::decode(&page).is_ok() { page } else { vec![0; PAGE_LEN] })
}
