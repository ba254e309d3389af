//! Maintaining the manifest: the owners of extents in memory, the records in the file.
//!
//! - [`ManifestLog::commit`] applies changes in memory and writes them as one batch of records. It
//!   first syncs the batch before it, so that an invalid record is a torn tail only if nothing
//!   follows it.
//! - When the current area is full, a snapshot goes into the next area, and the superblock points
//!   to it before a record is added. The old area becomes the next one.
//! - The next area has space for twice the state, allocated before it is needed: a full disk never
//!   keeps the manifest from recording freed extents. Wider areas lie in extents (META).

use std::collections::{BTreeMap, BTreeSet};

use crate::engine::storage::disk::Disk;
use crate::error::{Error, IoAction, Place, Result};
use crate::format::map::manifest::{
    AREA_HEADER_LEN, Area, AreaHeader, Change, Extents, RECORD_LEN, RecordKey, Use, encode_batch,
};
use crate::format::map::superblock::ManifestAt;
use crate::format::{EXTENTS_AT, ExtentSize, PAGE};
use crate::types::ExtentNo;

/// The manifest of an open store.
#[derive(Debug)]
pub(crate) struct ManifestLog {
    disk: Disk,
    uuid: [u8; 16],
    extent_size: ExtentSize,
    extents: Extents,
    /// Extents that were chosen but have no record yet.
    claimed: BTreeSet<ExtentNo>,
    area: Area,
    /// Where the next snapshot goes.
    next: Area,
    generation: u64,
    records: u64,
    /// Whether the last commit is not covered by a sync yet.
    unsynced: bool,
    commits: u64,
    /// Whether the bytes behind the last whole batch of the area are untrusted.
    distrusted: bool,
    /// Whether both areas must move to the lowest places where they fit.
    to_front: bool,
}

impl ManifestLog {
    /// A manifest that was read.
    pub(crate) fn resume(
        disk: Disk,
        uuid: [u8; 16],
        extent_size: ExtentSize,
        extents: Extents,
        at: ManifestAt,
        next: Area,
    ) -> Self {
        Self {
            disk,
            uuid,
            extent_size,
            extents,
            claimed: BTreeSet::new(),
            area: Area { offset: at.offset, len: at.len },
            next,
            generation: at.generation,
            records: at.records,
            unsynced: false,
            commits: 0,
            distrusted: false,
            to_front: false,
        }
    }

    /// Makes the next commit write a snapshot into another area, even if this one has room.
    pub(crate) fn distrust_area(&mut self) {
        self.distrusted = true;
    }

    /// Whether the next commit writes a snapshot.
    pub(crate) fn is_distrusted(&self) -> bool {
        self.distrusted
    }

    /// Makes the next commit move both areas to the lowest places where they fit.
    pub(crate) fn move_to_front(&mut self) {
        (self.distrusted, self.to_front) = (true, true);
    }

    /// The owners of extents.
    pub(crate) fn extents(&self) -> &Extents {
        &self.extents
    }

    /// Writes the last records again as they were read, and marks them as not synced.
    pub(crate) fn write_again(&mut self, last: &[u8]) -> Result<()> {
        self.unsynced = true;
        let end = self.area.offset + AREA_HEADER_LEN as u64 + self.records * RECORD_LEN as u64;
        self.disk.write(end - last.len() as u64, last)
    }

    /// How a superblock refers to the manifest, once all commits are durable.
    pub(crate) fn at(&self) -> ManifestAt {
        let Area { offset, len } = self.area;
        ManifestAt { offset, len, generation: self.generation, records: self.records }
    }

    /// Syncs the commits.
    pub(crate) fn sync(&mut self) -> Result<()> {
        if self.unsynced {
            self.disk.sync()?;
            self.unsynced = false;
        }
        Ok(())
    }

    /// Notes that all commits so far are durable.
    pub(crate) fn synced(&mut self) {
        self.unsynced = false;
    }

    /// The number of commits, for [`ManifestLog::synced_up_to`].
    pub(crate) fn committed(&self) -> u64 {
        self.commits
    }

    /// Notes that a sync succeeded that began after this many commits.
    pub(crate) fn synced_up_to(&mut self, committed: u64) {
        self.unsynced &= self.commits != committed;
    }

    /// Whether an extent has no owner and is not claimed.
    pub(crate) fn is_free(&self, extent: ExtentNo) -> bool {
        !self.extents.uses.contains_key(&extent) && !self.claimed.contains(&extent)
    }

    /// The last extent that has an owner or is claimed.
    pub(crate) fn last_in_use(&self) -> Option<ExtentNo> {
        let used = self.extents.uses.last_key_value().map(|(extent, _)| *extent);
        used.max(self.claimed.last().copied())
    }

    /// Where that extent ends in the file: the file must not be cut off in front of it.
    pub(crate) fn end_in_use(&self) -> u64 {
        self.last_in_use().map_or(EXTENTS_AT, |extent| self.extent_size.end_of(extent))
    }

    /// How many extents are free in front of the last one that has an owner.
    pub(crate) fn free_in_front(&self) -> u64 {
        let uses = &self.extents.uses;
        let end = uses.last_key_value().map_or(0, |(extent, _)| u64::from(extent.0) + 1);
        end.saturating_sub(uses.len() as u64)
    }

    /// The same without those that are claimed, such as the compaction reserve: nothing can move
    /// there.
    pub(crate) fn room_in_front(&self) -> u64 {
        let end = self.extents.uses.last_key_value().map_or(ExtentNo(0), |(extent, _)| *extent);
        let claimed = self.claimed.range(..end).count() as u64;
        self.free_in_front().saturating_sub(claimed)
    }

    /// The extents without an owner that are not claimed, the lowest first.
    pub(crate) fn free(&self) -> impl Iterator<Item = ExtentNo> + '_ {
        self.extents.free().filter(|extent| !self.claimed.contains(extent))
    }

    /// Claims the lowest free extent, until it is committed or given back.
    pub(crate) fn claim(&mut self) -> ExtentNo {
        let extent = self.free().next().expect("there are 2^32 extents");
        self.claimed.insert(extent);
        extent
    }

    /// Gives a claimed extent back.
    pub(crate) fn unclaim(&mut self, extent: ExtentNo) {
        self.claimed.remove(&extent);
    }

    /// Applies the changes and writes them as one batch. They are durable with the next sync.
    /// Returns true if it wrote and synced a new snapshot instead: the superblock must then be
    /// written and synced before the old area is used again.
    #[must_use = "a manifest that moved is made current by the superblock"]
    pub(crate) fn commit(&mut self, changes: &[Change]) -> Result<bool> {
        let mut state = self.extents.clone();
        let mut batch = changes.to_vec();
        self.apply(&mut state, changes)?;
        self.sync()?;
        let next = self.wide_enough(self.next, self.area, &state)?;
        batch.extend(self.lend(&mut state, [self.area, next])?);
        let room = self.area.capacity().saturating_sub(self.records);
        let fits = !self.distrusted && batch.len() as u64 <= room;
        if fits {
            self.append(&batch, next)?;
        } else {
            self.move_on(&mut state, next)?;
        }
        self.extents = state;
        self.commits += 1;
        for change in changes {
            if let Change::Reserve { extent, .. } | Change::Map { extent, .. } = change {
                self.claimed.remove(extent);
            }
        }
        Ok(!fits)
    }

    fn apply(&self, state: &mut Extents, changes: &[Change]) -> Result<()> {
        let place = Place::Manifest { offset: self.area.offset };
        let mut apply = |change: &Change| state.apply(*change);
        changes.iter().try_for_each(&mut apply).map_err(|damage| Error::corrupt(place, damage))
    }

    fn append(&mut self, batch: &[Change], next: Area) -> Result<()> {
        let bytes =
            encode_batch(batch, RecordKey { generation: self.generation, index: self.records });
        let at = self.area.offset + AREA_HEADER_LEN as u64 + self.records * RECORD_LEN as u64;
        self.disk.write(at, &bytes)?;
        self.records += batch.len() as u64;
        (self.unsynced, self.next) = (true, next);
        Ok(())
    }

    /// Writes a snapshot into the next area and syncs it. The current area becomes the next one,
    /// unless it is too small.
    fn move_on(&mut self, state: &mut Extents, area: Area) -> Result<()> {
        let next = self.wide_enough(self.area, area, state)?;
        self.lend(state, [area, next])?;
        let snapshot = state.snapshot();
        let records = snapshot.len() as u64;
        if records > area.capacity() {
            return Err(Error::DiskFull { action: IoAction::Allocate { offset: area.offset } });
        }
        let generation = self.generation.wrapping_add(1);
        let count = u32::try_from(records).expect("fewer records than extents times two");
        let header =
            AreaHeader { uuid: self.uuid, generation, area_len: area.len, snapshot: count };
        let mut bytes = header.encode();
        bytes.extend(encode_batch(&snapshot, RecordKey { generation, index: 0 }));
        // Remains of an older generation behind the snapshot must not look like a torn tail.
        bytes.resize(usize::try_from(area.len).unwrap_or(bytes.len()).max(bytes.len()), 0);
        self.disk.write(area.offset, &bytes)?;
        self.disk.sync()?;
        (self.area, self.next) = (area, next);
        (self.generation, self.records) = (generation, records);
        (self.unsynced, self.distrusted, self.to_front) = (false, false, false);
        Ok(())
    }

    /// An area for twice the state, different from `other`: `area` itself if it is large enough. If
    /// there is no space for a wider area, it returns `area`; each commit tries again.
    fn wide_enough(&self, area: Area, other: Area, state: &Extents) -> Result<Area> {
        let needed = 2 * state.snapshot().len() as u64;
        if !self.to_front && needed <= area.capacity() {
            return Ok(area);
        }
        let fits = |front: &Area| *front != other && needed <= front.capacity();
        if let Some(front) = Area::FRONT.into_iter().find(fits) {
            return Ok(front);
        }
        let (size, len) =
            (self.extent_size, AREA_HEADER_LEN as u64 + 2 * needed * RECORD_LEN as u64);
        let mut wider =
            Area { offset: size.offset_of(ExtentNo(0)), len: len.next_multiple_of(PAGE) };
        // Not into extents that were used before these changes, which are not durable yet.
        let is_taken = |extent| !self.is_free(extent) || state.uses.contains_key(&extent);
        while let Some(taken) = wider.extents(size).filter(|extent| is_taken(*extent)).last() {
            wider.offset = size.end_of(taken);
        }
        let end = wider.extents(size).last().map_or(wider.offset, |last| size.end_of(last));
        let there = self.disk.len()?.min(end).saturating_sub(wider.offset);
        if there > 0 {
            // Nothing of an earlier owner may remain where no snapshot will be written.
            self.disk.punch(wider.offset, there)?;
        }
        match self.disk.allocate(wider.offset, wider.len) {
            Ok(()) => Ok(wider),
            Err(Error::DiskFull { .. }) => Ok(area),
            Err(error) => Err(error),
        }
    }

    /// Gives the manifest the extents of these areas and frees its others; returns the changes.
    fn lend(&self, state: &mut Extents, areas: [Area; 2]) -> Result<Vec<Change>> {
        let of_area = |area: Area| area.extents(self.extent_size).map(move |it| (it, area.len));
        let mut lent: BTreeMap<ExtentNo, u64> = areas.into_iter().flat_map(of_area).collect();
        let mut changes = Vec::new();
        for (&extent, used) in &state.uses {
            if matches!(used, Use::Meta { .. }) && lent.remove(&extent).is_none() {
                changes.push(Change::Free { extent });
            }
        }
        let meta = |(extent, area_len)| Change::Meta { extent, area_len };
        changes.extend(lent.into_iter().map(meta));
        self.apply(state, &changes)?;
        Ok(changes)
    }
}
