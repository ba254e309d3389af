//! What stands in front of the extents, each part with what is wrong with it, and the map of the
//! extents.

use runlog::format::map::header::{HeaderFault, MAGIC, StaticHeader};
use runlog::format::map::manifest::{AreaContents, Extents, MAX_AREA_LEN, Use, read_area};
use runlog::format::map::owner;
use runlog::format::map::superblock::{ManifestAt, Superblock};
use runlog::format::segments::segment::{Purpose, SEGMENT_HEADER_LEN, SegmentHeader};
use runlog::format::{
    EXTENTS_AT, ExtentSize, FORMAT_VERSION, FrameCheck, FrameHeader, OWNER_AT, PAGE, PAGE_LEN,
    SUPERBLOCK_AT, SegmentKey,
};
use runlog::{Damage, Error, ExtentNo, Owner, SegmentId};

use crate::failure::Failure;
use crate::inspect::raw::Raw;

/// How often something is read until all of it checks: a writer may be writing it.
pub(super) const LOOKS: usize = 8;

/// The front of the file.
#[derive(Debug)]
pub(crate) struct Front {
    pub(crate) header: Result<StaticHeader, Damage>,
    pub(crate) slots: [Result<Superblock, Damage>; 2],
    pub(crate) owner: Result<Owner, Damage>,
    pub(crate) uuid: [u8; 16],
    pub(crate) size: ExtentSize,
    /// Whether identity and size of the extents are known only from headers of segments.
    pub(crate) is_guessed: bool,
    /// Where the newer superblock says that the manifest is.
    pub(crate) manifest_at: Option<ManifestAt>,
    pub(crate) manifest: Result<AreaContents, Damage>,
    /// The length of the file.
    pub(crate) len: u64,
}

/// An extent: its owner by the manifest, and the header that stands in it.
#[derive(Debug)]
pub(crate) struct Extent {
    pub(crate) number: ExtentNo,
    pub(crate) at: u64,
    /// `None` if it is free, or if there is no manifest.
    pub(crate) used: Option<Use>,
    pub(crate) header: Result<SegmentHeader, Damage>,
    pub(crate) state: State,
    pub(crate) damage: Option<Damage>,
}

/// What an extent is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    Sealed,
    Open,
    Reserved,
    Output,
    Retired,
    Index,
    Map,
    Free,
    /// There is no manifest, and a segment is there.
    Segment,
    /// There is no manifest, and no segment is there.
    Unknown,
}

impl Extent {
    /// The segment in it, by the manifest or else by its header.
    pub(crate) fn key(&self) -> Option<SegmentKey> {
        match self.used {
            Some(Use::Log { segment: id, salt, .. } | Use::Retired { segment: id, salt }) => {
                Some(SegmentKey { id, salt })
            }
            Some(_) => None,
            None => self.header.as_ref().ok().map(|header| header.key),
        }
    }

    /// Whether its segment counts, as far as the manifest knows.
    pub(crate) fn is_of_log(&self) -> bool {
        !matches!(self.state, State::Retired | State::Output | State::Free)
    }
}

impl Front {
    /// Reads the front. What does not check is read again a few times.
    pub(crate) fn read(raw: &Raw) -> Result<Self, Failure> {
        let mut front = Self::read_once(raw)?;
        for _ in 1..LOOKS {
            if front.problems() == 0 {
                break;
            }
            front = Self::read_once(raw)?;
        }
        Ok(front)
    }

    fn read_once(raw: &Raw) -> Result<Self, Failure> {
        let len = raw.len()?;
        let page = raw.read(0, PAGE_LEN)?;
        let header = header_in(&page)?;
        let mut slots = [slot_in(raw, 0)?, slot_in(raw, 1)?];
        let owner = owner::decode(&raw.read(OWNER_AT, PAGE_LEN)?);
        let of_slot = newest(&slots).map(|block| (block.uuid, block.extent_size));
        let known = header.as_ref().ok().map(|header| (header.uuid, header.extent_size));
        let found = match known.or(of_slot) {
            Some(found) => Some(found),
            None => by_segments(raw, len)?,
        };
        let Some((uuid, size)) = found else {
            let most = MAGIC.len().min(usize::try_from(len).unwrap_or(0));
            return Err(Error::NotAStore { found: page[..most].to_vec(), len }.into());
        };
        for slot in &mut slots {
            if slot.as_ref().is_ok_and(|block| (block.uuid, block.extent_size) != (uuid, size)) {
                *slot = Err(Damage::Misplaced);
            }
        }
        let manifest_at = newest(&slots).map(|block| block.manifest);
        let manifest = match manifest_at {
            Some(at) => manifest_in(raw, at, (uuid, len))?,
            None => Err(Damage::Missing),
        };
        let is_guessed = known.or(of_slot).is_none();
        Ok(Self { header, slots, owner, uuid, size, is_guessed, manifest_at, manifest, len })
    }

    /// How many parts of the front are damaged.
    pub(crate) fn problems(&self) -> usize {
        let slots = self.slots.iter().filter(|slot| slot.is_err()).count();
        slots
            + usize::from(self.header.is_err())
            + usize::from(self.owner.is_err())
            + usize::from(self.manifest.is_err())
    }

    /// The newer of the superblocks.
    pub(crate) fn newest(&self) -> Option<&Superblock> {
        newest(&self.slots)
    }

    fn extents(&self) -> Option<&Extents> {
        self.manifest.as_ref().ok().map(|contents| &contents.extents)
    }

    /// All extents, those behind the end of the file included.
    pub(crate) fn all(&self, raw: &Raw) -> Result<Vec<Extent>, Failure> {
        let behind = self.len.saturating_sub(EXTENTS_AT).div_ceil(self.size.bytes());
        let listed = self.extents().and_then(|extents| extents.uses.keys().last());
        let count = behind.max(listed.map_or(0, |last| u64::from(last.0) + 1));
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        (0..count).map(|number| self.extent(raw, ExtentNo(number))).collect()
    }

    /// One extent.
    pub(crate) fn extent(&self, raw: &Raw, number: ExtentNo) -> Result<Extent, Failure> {
        let at = self.size.offset_of(number);
        let head = raw.read(at, SEGMENT_HEADER_LEN as usize + PAGE_LEN)?;
        let header = SegmentHeader::decode(&head).and_then(|header| {
            if header.uuid == self.uuid { Ok(header) } else { Err(Damage::Misplaced) }
        });
        let used = self.extents().and_then(|extents| extents.uses.get(&number).copied());
        let has_map = self.extents().is_some();
        let is_begun = |key| {
            let first = head.get(SEGMENT_HEADER_LEN as usize..).unwrap_or_default();
            FrameHeader::decode_with(first, &FrameCheck::new(key), SEGMENT_HEADER_LEN).is_ok()
        };
        let state = match used {
            Some(Use::Log { sealed: Some(_), .. }) => State::Sealed,
            Some(Use::Log { purpose: Purpose::Output, .. }) => State::Output,
            Some(Use::Log { segment: id, salt, .. }) if is_begun(SegmentKey { id, salt }) => {
                State::Open
            }
            Some(Use::Log { .. }) => State::Reserved,
            Some(Use::Retired { .. }) => State::Retired,
            Some(Use::Index { .. }) => State::Index,
            Some(Use::Meta { .. }) => State::Map,
            None if has_map => State::Free,
            None if header.is_ok() => State::Segment,
            None => State::Unknown,
        };
        let mut extent = Extent { number, at, used, header, state, damage: None };
        let counts = matches!(state, State::Sealed | State::Open | State::Reserved);
        if counts && at >= self.len {
            // One that is set aside may not be there yet.
            extent.damage = (state == State::Sealed).then_some(Damage::Missing);
        } else if counts {
            extent.damage = match &extent.header {
                Err(damage) => Some(*damage),
                Ok(header) if Some(header.key) != extent.key() => Some(Damage::Misplaced),
                Ok(_) => None,
            };
        }
        Ok(extent)
    }

    /// The extent of a segment, and of those that are left of it the one that counts.
    pub(crate) fn of_segment(&self, raw: &Raw, id: SegmentId) -> Result<Option<Extent>, Failure> {
        let all = self.all(raw)?;
        let mut found: Vec<Extent> =
            all.into_iter().filter(|one| one.key().is_some_and(|key| key.id == id)).collect();
        let best = found.iter().position(|one| one.used.is_some()).unwrap_or(0);
        Ok((!found.is_empty()).then(|| found.swap_remove(best)))
    }
}

/// Reads something again until all of it checks, or the manifest stays the same: a writer may have
/// moved it meanwhile.
pub(super) fn settled<T>(
    raw: &Raw,
    mut front: Front,
    read: impl Fn(&Front) -> Result<T, Failure>,
    is_whole: impl Fn(&T) -> bool,
) -> Result<T, Failure> {
    for _ in 1..LOOKS {
        let found = read(&front);
        if found.as_ref().is_ok_and(&is_whole) {
            return found;
        }
        let now = Front::read(raw)?;
        if now.manifest == front.manifest {
            return found;
        }
        front = now;
    }
    read(&front)
}

fn header_in(page: &[u8]) -> Result<Result<StaticHeader, Damage>, Error> {
    match StaticHeader::decode(page) {
        Ok(header) => Ok(Ok(header)),
        Err(HeaderFault::Foreign) => Ok(Err(Damage::Magic)),
        Err(HeaderFault::Damaged(damage)) => Ok(Err(damage)),
        Err(HeaderFault::Newer { min_reader: found }) => {
            Err(Error::UnsupportedVersion { found, supported: FORMAT_VERSION })
        }
        Err(HeaderFault::Features { unknown }) => Err(Error::UnsupportedFeatures { unknown }),
    }
}

fn slot_in(raw: &Raw, slot: u64) -> Result<Result<Superblock, Damage>, Failure> {
    let page = raw.read(SUPERBLOCK_AT + slot * PAGE, PAGE_LEN)?;
    Ok(Superblock::decode(&page).and_then(|block| {
        if block.epoch.0 % 2 == slot { Ok(block) } else { Err(Damage::Misplaced) }
    }))
}

fn newest(slots: &[Result<Superblock, Damage>; 2]) -> Option<&Superblock> {
    match slots {
        [Ok(first), Ok(second)] if first.is_newer_than(second) => Some(first),
        [_, Ok(second)] => Some(second),
        [Ok(first), _] => Some(first),
        _ => None,
    }
}

fn manifest_in(
    raw: &Raw,
    at: ManifestAt,
    (uuid, file_len): ([u8; 16], u64),
) -> Result<Result<AreaContents, Damage>, Failure> {
    let is_there = at.offset.checked_add(at.len).is_some_and(|end| end <= file_len);
    if !is_there || at.len > MAX_AREA_LEN {
        return Ok(Err(Damage::Missing));
    }
    let bytes = raw.read(at.offset, usize::try_from(at.len).unwrap_or(0))?;
    Ok(read_area(&bytes, uuid, at.generation).and_then(|contents| {
        if contents.hole || contents.records < at.records {
            return Err(Damage::Truncated);
        }
        Ok(contents)
    }))
}

/// Identity and size of the extents by the headers of segments: each of them begins at a multiple
/// of the size behind the front.
fn by_segments(raw: &Raw, len: u64) -> Result<Option<([u8; 16], ExtentSize)>, Failure> {
    let mut found: Option<([u8; 16], u64)> = None;
    let mut at = EXTENTS_AT;
    while at < len {
        let head = raw.read(at, SEGMENT_HEADER_LEN as usize)?;
        if let Ok(header) = SegmentHeader::decode(&head) {
            let (uuid, places) = found.unwrap_or((header.uuid, 0));
            if uuid == header.uuid {
                found = Some((uuid, places | (at - EXTENTS_AT)));
            }
        }
        at += ExtentSize::MIN.bytes();
    }
    Ok(found.map(|(uuid, places)| {
        let step = 1_u64.checked_shl(places.trailing_zeros()).filter(|_| places > 0);
        let step = step.map_or(ExtentSize::DEFAULT.bytes(), |step| {
            step.clamp(ExtentSize::MIN.bytes(), ExtentSize::MAX.bytes())
        });
        (uuid, ExtentSize::from_bytes(step).unwrap_or(ExtentSize::DEFAULT))
    }))
}
