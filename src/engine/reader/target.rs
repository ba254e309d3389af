//! The file that a backup writes to: a new one, or an earlier copy of the same store.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::engine::open::front_matter::{Base, read_base, read_slots};
use crate::engine::open::{check_length, segments};
use crate::engine::read::doubt::Doubt;
use crate::engine::reader::Replica;
use crate::engine::setup::host;
use crate::engine::space::allocator::Allocator;
use crate::engine::space::manifest_log::ManifestLog;
use crate::engine::state::log_state::NUMBERS_AHEAD;
use crate::engine::state::scan::{Item, Lexed, frames_below, lex};
use crate::engine::storage::Storage;
use crate::engine::storage::disk::Disk;
use crate::engine::values::report::RecoveryReport;
use crate::error::{Corruption, Error, Owner, Result};
use crate::format::frames::frame::SegmentKey;
use crate::format::map::header::StaticHeader;
use crate::format::map::manifest::{
    Area, AreaHeader, Change, Extents, RecordKey, SealedAt, Use, encode_batch, used_len,
};
use crate::format::map::owner;
use crate::format::map::superblock::{
    FLAG_CLEAN, FLAG_COPY, FLAG_UNRETURNED, ManifestAt, Superblock,
};
use crate::format::segments::segment::{Purpose, SEGMENT_HEADER_LEN};
use crate::format::{
    EXTENTS_AT, FrameCheck, FrameKind, MANIFEST_AREA_LEN, MANIFEST_AT, OWNER_AT, PAGE_LEN,
};
use crate::types::{Epoch, ExtentNo, LogPosition, Lsn, SegmentId};

/// A segment as the copy has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Has {
    pub(super) extent: ExtentNo,
    /// Its bytes are there up to here.
    pub(super) end: u32,
    /// All of it is there, as a segment with this seal.
    pub(super) sealed: Option<SealedAt>,
    pub(super) purpose: Purpose,
    /// What the manifest of the copy says of it.
    pub(super) listed: Listed,
}

/// Whether a copy has the end and the directory of a segment.
pub(super) fn is_same(there: Option<SealedAt>, wanted: Option<SealedAt>) -> bool {
    there.zip(wanted).is_some_and(|(there, wanted)| there.is_same(&wanted))
}

/// The frames that count of a segment with these bytes.
pub(super) fn frames_that_count(bytes: &[u8], key: SegmentKey, has: Has) -> Vec<Lexed> {
    let items = lex(bytes, &FrameCheck::new(key));
    frames_below(&items, has.sealed.map_or(has.end, |at| at.end))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listed {
    No,
    Open,
    Sealed,
}

/// What both superblocks of a copy state: an update may have broken off between them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stated {
    /// The largest durable position.
    pub(super) end: LogPosition,
    /// The smallest number of the next segment.
    pub(super) next_segment: SegmentId,
}

/// The file that is copied to.
pub(super) struct Target {
    pub(super) disk: Disk,
    pub(super) allocator: Allocator,
    pub(super) has: HashMap<(u32, u64), Has>,
    /// What is wrong with the copies of segments, as far as this call looked at them.
    pub(super) damaged: HashMap<(u32, u64), Vec<Corruption>>,
    /// What an update that broke off had retired, and what this call copied and has replaced since.
    pub(super) replaced: Vec<Has>,
    /// Segments of the earlier copy that others under their keys are to replace, by the key: of a
    /// log that a power loss has cut off since, or with damage.
    pub(super) counted: BTreeMap<(u32, u64), Has>,
    pub(super) doubt: Doubt,
    /// What both superblocks state.
    pub(super) stated: Stated,
    /// What an earlier copy is of; `None` if there is none.
    pub(super) earlier: Option<Earlier>,
    /// What of an earlier copy the store cannot miss as of now.
    pub(super) owed: Owed,
    /// Whether the file says that an update has begun.
    pub(super) has_begun: bool,
}

/// What of an earlier copy the store has, unless something was lost: deleted runs apart, and what a
/// loss of power may have cut off.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Owed {
    /// The source is a store. Of a copy, backups of less were made into it, perhaps.
    pub(super) by_store: bool,
    /// All frames: the machine was not started anew since the copy was made.
    pub(super) all: bool,
    /// The frames in front of this position: they had survived power loss.
    pub(super) floor: LogPosition,
    /// All segments: what is not there may be lost instead of retired.
    pub(super) segments: bool,
    /// The store tells that something is lost now, or was when a writer opened it since.
    pub(super) has_lost: bool,
    /// A writer has gone on since although something was lost.
    pub(super) went_on: bool,
}

impl Owed {
    /// Whether the store must have a frame of the log that the copy has at a position.
    pub(super) fn has(&self, at: LogPosition) -> bool {
        self.all || at < self.floor
    }
}

/// The state of the store that an earlier copy is of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Earlier {
    /// The numbers that were promised: each opening for writing promises some.
    promised: Lsn,
    pub(super) boot: [u8; 16],
    /// The last opening that went on although something was lost.
    pub(super) salvage: u64,
    /// Where the log ended.
    pub(super) end: LogPosition,
    /// The frames say that everything in front of this position had survived power loss.
    pub(super) floor: LogPosition,
}

impl Earlier {
    /// Whether no process has opened the store for writing since the copy was made, which has a
    /// frame with this order, and the machine was not started anew, or only after the store was
    /// closed: then no frame can have become another one.
    ///
    /// An opening promises numbers ahead of all that were used. So a later one promises others,
    /// unless no number was used since the first: `last` shows that one was.
    pub(super) fn is_same_session(&self, source: &Replica, last: Option<Lsn>) -> Result<bool> {
        let block = source.superblock()?;
        let is_same = block.next_lsn == self.promised;
        let is_closed =
            block.flags & (FLAG_CLEAN | FLAG_COPY) == FLAG_CLEAN && block.boot_id == self.boot;
        let is_used =
            last.is_some_and(|last| last.0.saturating_add(NUMBERS_AHEAD) >= self.promised.0);
        Ok(is_same && is_used && is_closed)
    }
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
    pub(super) fn open(source: &Replica, storage: Arc<dyn Storage>) -> Result<Option<Self>> {
        let disk = Disk::new(storage);
        let mut report = RecoveryReport::default();
        let base = match read_base(&disk, &mut report, true) {
            Ok(base) => base,
            Err(error @ (Error::Io { .. } | Error::Corrupt(_) | Error::Damaged(_))) => {
                return Err(error);
            }
            Err(_) => return Ok(None),
        };
        let is_copy = base.superblock.flags & FLAG_COPY != 0;
        let same =
            (base.uuid, base.extent_size) == (source.uuid(), source.answers.setup.extent_size);
        if !same || !is_copy {
            return Ok(None);
        }
        let known = segments(&disk, &base, &|_, _, _| None);
        check_length(&disk, &base, &known)?;
        let slots = read_slots(&disk, &mut report)?;
        let next = slots.iter().map(|block| block.next_segment).min();
        let mut target =
            Self::of(disk, base.superblock, (base.extents.clone(), base.manifest, base.next));
        let has_damage = !report.damaged.is_empty();
        target.allocator.freed = target.may_have_bytes(has_damage)?;
        target.stated = Stated { end: base.durable, next_segment: next.unwrap_or_default() };
        target.write_front_again(&base)?;
        let Superblock { durable, next_lsn: promised, boot_id: boot, salvage, .. } =
            target.allocator.superblock;
        let extents = target.allocator.manifest.extents().clone();
        let mut end_of_log = LogPosition::default();
        let mut of_log = Vec::new();
        for (&extent, used) in &extents.uses {
            if let Use::Retired { .. } = used {
                // An update broke off in front of freeing it.
                let (sealed, purpose) = (None, Purpose::Log);
                let has = Has { extent, end: 0, sealed, purpose, listed: Listed::Sealed };
                target.replaced.push(has);
            }
            if let Use::Log { segment, salt, purpose, sealed } = *used {
                let (end, listed) = match sealed {
                    Some(at) => (at.seal, Listed::Sealed),
                    None if durable.segment == segment => {
                        (durable.offset.min(base.extent_size.bytes_u32()), Listed::Open)
                    }
                    // An update broke off that was to replace something. An earlier one may have
                    // added frames that no sync has stored (O19).
                    None => {
                        let key = SegmentKey { id: segment, salt };
                        let end = target.end_of_frames(extent, key)?;
                        let at = base.extent_size.offset_of(extent);
                        target.disk.write_again(at..at + u64::from(end))?;
                        (end, Listed::Open)
                    }
                };
                if purpose == Purpose::Log {
                    let offset = if sealed.is_some() { base.extent_size.bytes_u32() } else { end };
                    end_of_log = end_of_log.max(LogPosition { segment, offset });
                }
                let has = Has { extent, end, sealed, purpose, listed };
                if purpose == Purpose::Log {
                    of_log.push((SegmentKey { id: segment, salt }, has));
                }
                target.has.insert((segment.0, salt), has);
            }
        }
        let floor = target.floor(of_log)?;
        target.earlier = Some(Earlier { promised, boot, salvage, end: end_of_log, floor });
        Ok(Some(target))
    }

    /// Extents that may have bytes without an owner once an update has counted: those that the
    /// manifest takes parts of itself, and all free ones, if an earlier update has failed, which
    /// may have left bytes there, or not have stored that they are gone: also those of a run that
    /// was erased since. The superblock that said so may be damaged.
    fn may_have_bytes(&self, has_damage: bool) -> Result<BTreeSet<ExtentNo>> {
        let (extents, block) = (self.allocator.manifest.extents(), &self.allocator.superblock);
        let of_manifest = extents.uses.iter().filter(|(_, used)| matches!(used, Use::Meta { .. }));
        let mut all: BTreeSet<ExtentNo> = of_manifest.map(|(extent, _)| *extent).collect();
        if has_damage || block.flags & FLAG_UNRETURNED != 0 {
            all.extend(extents.free_within(block.extent_size, self.disk.len()?));
        }
        Ok(all)
    }

    /// Writes what is in front of the extents again: a sync of an earlier backup may have failed
    /// (O19), also that of the first one, which wrote all of it.
    fn write_front_again(&mut self, base: &Base) -> Result<()> {
        self.disk.write_again(0..EXTENTS_AT)?;
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
        let manifest = ManifestLog::resume(disk.clone(), uuid, size, extents, at, next);
        let (compaction_reserve, freed, may_move) = (None, BTreeSet::new(), 0);
        let allocator = Allocator {
            manifest,
            superblock,
            disk: disk.clone(),
            compaction_reserve,
            keeps: false,
            freed,
            may_move,
        };
        let (has, damaged, replaced) = (HashMap::new(), HashMap::new(), Vec::new());
        let (counted, doubt) = (BTreeMap::new(), Doubt::default());
        let (earlier, owed, has_begun) = (None, Owed::default(), false);
        let Superblock { durable: end, next_segment, .. } = superblock;
        let stated = Stated { end, next_segment };
        Self {
            disk,
            allocator,
            has,
            damaged,
            replaced,
            counted,
            doubt,
            stated,
            earlier,
            owed,
            has_begun,
        }
    }

    /// All that counts of what the file has of a segment.
    pub(super) fn read(&self, has: Has) -> Result<Vec<u8>> {
        let size = self.allocator.superblock.extent_size;
        let len = match has.sealed {
            Some(_) => size.bytes_u32(),
            None => has.end,
        };
        self.disk.read_padded(size.offset_of(has.extent), len as usize)
    }

    /// What the frames of the last of these segments that has some say of the end of what had
    /// survived power loss: recovery may have closed the last one without any.
    fn floor(&self, mut of_log: Vec<(SegmentKey, Has)>) -> Result<LogPosition> {
        of_log.sort_by_key(|(key, _)| core::cmp::Reverse(key.id));
        for (key, has) in of_log {
            let frames = frames_that_count(&self.read(has)?, key, has);
            let whole = frames.iter().filter(|lexed| lexed.payload.is_ok());
            if let Some(floor) = whole.map(|lexed| lexed.header.durable).max() {
                return Ok(floor);
            }
        }
        Ok(LogPosition::default())
    }

    /// All that is in an extent.
    fn read_extent(&self, extent: ExtentNo) -> Result<Vec<u8>> {
        let size = self.allocator.superblock.extent_size;
        self.disk.read_padded(size.offset_of(extent), size.bytes_u32() as usize)
    }

    /// Where the last whole frame ends of a segment that this extent has, also behind damage.
    fn end_of_frames(&self, extent: ExtentNo, key: SegmentKey) -> Result<u32> {
        let items = lex(&self.read_extent(extent)?, &FrameCheck::new(key));
        let frames = items.iter().filter(|item| item.is_valid()).filter_map(Item::frame);
        let log = frames.take_while(|lexed| lexed.header.kind != FrameKind::Seal);
        Ok(log.last().map_or(SEGMENT_HEADER_LEN, Lexed::end))
    }

    /// Where the bytes of the segment with this key go, and from where on: behind those that are
    /// there, or to another extent if others are there.
    pub(super) fn place_for(
        &mut self,
        key: (u32, u64),
        sealed: Option<SealedAt>,
        bytes: &[u8],
    ) -> Result<(ExtentNo, usize)> {
        let Some(has) = self.has.get(&key).copied() else {
            return Ok((self.allocator.claim()?, 0));
        };
        let there = self.read(has)?;
        if is_same(has.sealed, sealed) && there.starts_with(bytes) {
            return Ok((has.extent, bytes.len()));
        }
        // A truncation marker takes effect at once, and needs what is in front of it (O20).
        let is_marked = sealed.is_some_and(|at| at.seal > at.end);
        if has.sealed.is_none() && !is_marked && bytes.starts_with(&there) {
            // What an update that broke off left behind them may follow only if it is the same.
            let all = self.read_extent(has.extent)?;
            let behind = all.get(there.len()..used_len(&all)).unwrap_or_default();
            if bytes.get(there.len()..).unwrap_or_default().starts_with(behind) {
                return Ok((has.extent, there.len()));
            }
        }
        match has.listed {
            Listed::No => self.replaced.push(has),
            Listed::Open | Listed::Sealed => _ = self.counted.insert(key, has),
        }
        Ok((self.allocator.claim()?, 0))
    }

    /// Before all is copied anew: what of the earlier copy was to be replaced counts as before, so
    /// that it is compared with what the store has by now.
    pub(super) fn take_back(&mut self) {
        for (key, has) in core::mem::take(&mut self.counted) {
            self.damaged.remove(&key);
            if let Some(new) = self.has.insert(key, has) {
                self.allocator.let_go(new.extent);
            }
        }
    }
}

/// The page of the owner: that of the store, or, since a power loss may have torn that, one that
/// names this process.
fn owner_page(source: &Replica) -> Result<Vec<u8>> {
    let page = source.disk.read_padded(OWNER_AT, PAGE_LEN)?;
    if owner::decode(&page).is_ok() {
        return Ok(page);
    }
    let (pid, since) = (std::process::id(), source.answers.setup.now());
    Ok(owner::encode(&Owner { pid, host: host::host_name(), since }))
}
