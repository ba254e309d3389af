//! The file that a backup writes to: a new one, or an earlier copy of the same store.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::engine::open::front_matter::{Base, read_base};
use crate::engine::open::{check_length, segments};
use crate::engine::reader::Replica;
use crate::engine::setup::host::owner_page;
use crate::engine::space::allocator::Allocator;
use crate::engine::space::manifest_log::ManifestLog;
use crate::engine::storage::Storage;
use crate::engine::storage::disk::Disk;
use crate::engine::values::report::RecoveryReport;
use crate::error::{Corruption, Error, Place, Result};
use crate::format::map::header::StaticHeader;
use crate::format::map::manifest::{
    Area, AreaHeader, Change, Extents, RecordKey, SealedAt, Use, encode_batch,
};
use crate::format::map::superblock::{FLAG_COPY, ManifestAt, Superblock};
use crate::format::{EXTENTS_AT, MANIFEST_AREA_LEN, MANIFEST_AT, OWNER_AT, PAGE_LEN};
use crate::types::{Epoch, ExtentNo, LogPosition};

/// A segment as the file has it.
pub(super) struct Has {
    pub(super) extent: ExtentNo,
    pub(super) sealed: Option<SealedAt>,
    /// What of it did not check when this call copied it.
    pub(super) damaged: Vec<Corruption>,
}

/// The file that is copied to.
pub(super) struct Target {
    pub(super) disk: Disk,
    pub(super) allocator: Allocator,
    /// The segments of the earlier copy, by id and salt. They stay as they are until the new ones
    /// count.
    pub(super) earlier: BTreeMap<(u32, u64), Has>,
    /// The segments that this call has copied, into extents that were free.
    pub(super) copied: BTreeMap<(u32, u64), Has>,
    /// It is no earlier copy, so nothing in it counts yet.
    pub(super) is_new: bool,
}

impl Target {
    /// A store without segments.
    pub(super) fn new(source: &Replica, storage: Arc<dyn Storage>) -> Result<Self> {
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
        front.extend(owner_page(created));
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

    /// An earlier copy of the same store; none if the file is anything else. A copy that does not
    /// check is refused.
    pub(super) fn open(source: &Replica, storage: Arc<dyn Storage>) -> Result<Option<Self>> {
        let disk = Disk::new(storage);
        let mut report = RecoveryReport::default();
        let base = match read_base(&disk, &mut report, true) {
            Ok(base) => base,
            Err(error @ (Error::Io { .. } | Error::Damaged(_))) => return Err(as_copy(error)),
            Err(_) => return Ok(None),
        };
        let is_copy = base.superblock.flags & FLAG_COPY != 0;
        let same =
            (base.uuid, base.extent_size) == (source.uuid(), source.answers.setup.extent_size);
        if !same || !is_copy {
            return Ok(None);
        }
        // A kill may leave one superblock half written.
        let is_front = |damage: &&Corruption| !matches!(damage.place, Place::Superblock { .. });
        if let Some(damage) = report.damaged.iter().find(is_front) {
            return Err(Error::CopyDamaged { damage: damage.clone() });
        }
        let known = segments(&disk, &base, &|_, _, _| None);
        check_length(&disk, &base, &known).map_err(as_copy)?;
        // An update may have broken off between the superblocks.
        let superblock = Superblock { durable: base.durable, ..base.superblock };
        let at = (base.extents.clone(), base.manifest, base.next);
        let mut target = Self { is_new: false, ..Self::of(disk, superblock, at) };
        target.write_front_again(&base)?;
        let uses = &target.allocator.manifest.extents().uses;
        let earlier = uses.iter().filter_map(|(&extent, used)| match *used {
            Use::Log { segment, salt, sealed, .. } => {
                Some(((segment.0, salt), Has { extent, sealed, damaged: Vec::new() }))
            }
            _ => None,
        });
        target.earlier = earlier.collect();
        Ok(Some(target))
    }

    /// Writes what is in front of the extents again: a sync of an earlier backup may have failed
    /// (O19), also that of the first one, which wrote all of it.
    fn write_front_again(&mut self, base: &Base) -> Result<()> {
        let front = usize::try_from(EXTENTS_AT).unwrap_or(usize::MAX);
        self.disk.write(0, &self.disk.read_padded(0, front)?)?;
        self.allocator.write_again(&base.uncounted)?;
        if base.is_ahead {
            self.allocator.write_superblock(|_| ())?;
        }
        if base.rewrite {
            self.allocator.manifest.distrust_area();
        }
        Ok(())
    }

    fn of(
        disk: Disk,
        superblock: Superblock,
        (extents, at, next): (Extents, ManifestAt, Area),
    ) -> Self {
        let (uuid, size) = (superblock.uuid, superblock.extent_size);
        let allocator = Allocator {
            manifest: ManifestLog::resume(disk.clone(), uuid, size, extents, at, next),
            superblock,
            disk: disk.clone(),
            compaction_reserve: None,
            keeps: false,
            freed: std::collections::BTreeSet::new(),
            may_move: 0,
        };
        Self { disk, allocator, earlier: BTreeMap::new(), copied: BTreeMap::new(), is_new: true }
    }
}

/// The same failure, as that of an earlier copy.
fn as_copy(error: Error) -> Error {
    match error {
        Error::Damaged(damage) => Error::CopyDamaged { damage },
        error => error,
    }
}
