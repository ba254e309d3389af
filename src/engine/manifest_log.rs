//! Keeping the manifest: the map of extents in memory, its records in the file.
//!
//! - A change is applied in memory and written as a record by the same call,
//!   [`ManifestLog::commit`].
//! - At most one batch is not synced yet: the next commit syncs first. So a record that does not
//!   check is a torn tail only if nothing follows it.
//! - When an area is full, a snapshot goes into the other one, is synced, and the superblock is
//!   made to point to it before anything is added (the old area stays whole until then).

use std::collections::BTreeSet;

use super::disk::Disk;
use crate::error::{Error, Place, Result};
use crate::format::manifest::{
    AREA_HEADER_LEN, AreaHeader, Change, Extents, RECORD_LEN, RecordKey, Use, area_capacity,
};
use crate::format::superblock::ManifestAt;
use crate::format::{ExtentSize, MANIFEST_AREA_LEN, MANIFEST_AT, PAGE};
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
    area: (u64, u64),
    generation: u64,
    records: u64,
    /// The last commit was not covered by a sync yet.
    unsynced: bool,
    commits: u64,
    /// What follows the last whole batch in the area is not to be trusted.
    distrusted: bool,
    /// The next snapshot goes to the lowest place where it fits.
    to_front: bool,
}

/// What a commit needs from its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Committed {
    /// The records were added to the area.
    Appended,
    /// A new snapshot was written and synced: the superblock must be written and synced before
    /// the old area is used again.
    Moved,
}

impl ManifestLog {
    /// The manifest as it was read.
    pub(crate) fn resume(
        disk: Disk,
        uuid: [u8; 16],
        extent_size: ExtentSize,
        extents: Extents,
        at: ManifestAt,
    ) -> Self {
        Self {
            disk,
            uuid,
            extent_size,
            extents,
            claimed: BTreeSet::new(),
            area: (at.offset, at.len),
            generation: at.generation,
            records: at.records,
            unsynced: false,
            commits: 0,
            distrusted: false,
            to_front: false,
        }
    }

    /// The next commit writes a snapshot into another area, whatever room this one has.
    pub(crate) fn distrust_area(&mut self) {
        self.distrusted = true;
    }

    /// The next commit writes a snapshot to the lowest place where it fits.
    pub(crate) fn move_to_front(&mut self) {
        (self.distrusted, self.to_front) = (true, true);
    }

    /// Who owns what.
    pub(crate) fn extents(&self) -> &Extents {
        &self.extents
    }

    /// What the superblock says of the manifest. `durable` tells whether the last commit is
    /// covered by a sync.
    pub(crate) fn at(&self, durable: bool) -> ManifestAt {
        let (offset, len) = self.area;
        let records = if durable { self.records } else { 0 };
        ManifestAt { offset, len, generation: self.generation, records }
    }

    /// Everything committed so far is durable.
    pub(crate) fn synced(&mut self) {
        self.unsynced = false;
    }

    /// How many commits there were, for [`ManifestLog::synced_up_to`].
    pub(crate) fn committed(&self) -> u64 {
        self.commits
    }

    /// A sync that began after this many commits has succeeded.
    pub(crate) fn synced_up_to(&mut self, committed: u64) {
        self.unsynced &= self.commits != committed;
    }

    /// Whether a commit waits for a sync.
    pub(crate) fn is_unsynced(&self) -> bool {
        self.unsynced
    }

    /// Whether nobody owns an extent or is about to.
    pub(crate) fn is_free(&self, extent: ExtentNo) -> bool {
        !self.extents.uses.contains_key(&extent) && !self.claimed.contains(&extent)
    }

    /// The last extent that somebody owns or is about to.
    pub(crate) fn last_in_use(&self) -> Option<ExtentNo> {
        let used = self.extents.uses.last_key_value().map(|(extent, _)| *extent);
        used.max(self.claimed.last().copied())
    }

    /// Chooses a free extent; nobody else gets it until it is committed or given back.
    pub(crate) fn claim(&mut self) -> ExtentNo {
        let free = self.extents.free().find(|extent| !self.claimed.contains(extent));
        let extent = free.expect("there are four thousand million extents");
        self.claimed.insert(extent);
        extent
    }

    /// Gives a claimed extent back.
    pub(crate) fn unclaim(&mut self, extent: ExtentNo) {
        self.claimed.remove(&extent);
    }

    /// Applies the changes and writes them as one batch. They are durable with the next sync.
    pub(crate) fn commit(&mut self, changes: &[Change]) -> Result<Committed> {
        let mut next = self.extents.clone();
        for change in changes {
            next.apply(*change).map_err(|damage| {
                Error::corrupt(Place::Manifest { offset: self.area.0 }, damage)
            })?;
        }
        if self.unsynced {
            self.disk.sync()?;
            self.unsynced = false;
        }
        let room = area_capacity(self.area.1);
        let fits = !self.distrusted && self.records + changes.len() as u64 <= room;
        let previous = core::mem::replace(&mut self.extents, next);
        let written = if fits { self.append(changes) } else { self.move_on(&previous) };
        match written {
            Ok(committed) => {
                for change in changes {
                    self.forget_claim(*change);
                }
                Ok(committed)
            }
            Err(error) => {
                self.extents = previous;
                Err(error)
            }
        }
    }

    fn forget_claim(&mut self, change: Change) {
        if let Change::Reserve { extent, .. } | Change::Map { extent, .. } = change {
            self.claimed.remove(&extent);
        }
    }

    fn append(&mut self, changes: &[Change]) -> Result<Committed> {
        let mut bytes = Vec::with_capacity(changes.len() * RECORD_LEN);
        for (place, change) in changes.iter().enumerate() {
            let index = self.records + place as u64;
            let key = RecordKey { generation: self.generation, index };
            bytes.extend(change.encode(key, place + 1 == changes.len()));
        }
        let at = self.area.0 + AREA_HEADER_LEN as u64 + self.records * RECORD_LEN as u64;
        self.disk.write(at, &bytes)?;
        self.records += changes.len() as u64;
        self.unsynced = true;
        self.commits += 1;
        Ok(Committed::Appended)
    }

    /// Writes a snapshot into another area and syncs it.
    fn move_on(&mut self, before: &Extents) -> Result<Committed> {
        let area = self.choose_area(before)?;
        let snapshot = self.extents.snapshot();
        let generation = self.generation + 1;
        let count = u32::try_from(snapshot.len()).expect("fewer records than extents times two");
        let header = AreaHeader { uuid: self.uuid, generation, area_len: area.1, snapshot: count };
        let mut bytes = header.encode();
        for (place, change) in snapshot.iter().enumerate() {
            let key = RecordKey { generation, index: place as u64 };
            bytes.extend(change.encode(key, place + 1 == snapshot.len()));
        }
        // What an older generation left behind the snapshot must not look like a torn tail.
        bytes.resize(usize::try_from(area.1).unwrap_or(bytes.len()).max(bytes.len()), 0);
        self.disk.write(area.0, &bytes)?;
        self.disk.sync()?;
        self.area = area;
        self.generation = generation;
        self.records = snapshot.len() as u64;
        self.commits += 1;
        (self.unsynced, self.distrusted) = (false, false);
        Ok(Committed::Moved)
    }

    /// The area for the next snapshot: the other one of the pair in use if the snapshot fills at
    /// most half of it, else a new pair in extents.
    fn choose_area(&mut self, before: &Extents) -> Result<(u64, u64)> {
        let needed = AREA_HEADER_LEN + 2 * (self.extents.snapshot().len() + 8) * RECORD_LEN;
        let (needed, (offset, len)) = (needed as u64, self.area);
        let anew = core::mem::take(&mut self.to_front) || len == 0;
        if anew && needed <= MANIFEST_AREA_LEN {
            self.extents.uses.retain(|_, used| *used != Use::Meta);
            return Ok((MANIFEST_AT, MANIFEST_AREA_LEN));
        }
        if !anew && needed <= len {
            return Ok((self.sibling(offset, len), len));
        }
        self.set_aside(if anew { needed } else { needed.max(2 * len) }, before)
    }

    /// The other area of a pair, which starts where the row of META extents does.
    fn sibling(&self, offset: u64, len: u64) -> u64 {
        let base =
            if offset < crate::format::EXTENTS_AT { MANIFEST_AT } else { self.pair_base(offset) };
        if offset == base { base + len } else { base }
    }

    /// Where the run of META extents that holds `offset` starts.
    fn pair_base(&self, offset: u64) -> u64 {
        let size = self.extent_size;
        let mut first = (offset - crate::format::EXTENTS_AT) / size.bytes();
        while let Some(before) = first.checked_sub(1) {
            let before_no = ExtentNo(u32::try_from(before).unwrap_or(u32::MAX));
            if self.extents.uses.get(&before_no) != Some(&Use::Meta) {
                break;
            }
            first = before;
        }
        crate::format::EXTENTS_AT + first * size.bytes()
    }

    /// Sets another pair of areas aside, and frees the old one. It takes the place of nothing that
    /// was there `before` the changes that are being committed: they are not durable yet.
    fn set_aside(&mut self, area: u64, before: &Extents) -> Result<(u64, u64)> {
        // No longer than that: an area is written, and read by who opens the store, as a whole.
        let (size, len) = (self.extent_size.bytes(), area.next_multiple_of(PAGE));
        let count = u32::try_from((2 * len).div_ceil(size)).unwrap_or(u32::MAX);
        let mut first = 0_u32;
        // One extent stays free in between, so that two pairs never look like one.
        let is_taken = |extent: &u32| {
            let extent = ExtentNo(*extent);
            !self.is_free(extent) || before.uses.contains_key(&extent)
        };
        while let Some(taken) = (first..=first.saturating_add(count)).rev().find(is_taken) {
            first = taken + 2;
        }
        let base = self.extent_size.offset_of(ExtentNo(first));
        self.disk.allocate(base, 2 * len)?;
        let uses = &mut self.extents.uses;
        uses.retain(|_, used| *used != Use::Meta);
        uses.extend((first..first.saturating_add(count)).map(|at| (ExtentNo(at), Use::Meta)));
        Ok((base, len))
    }
}
