//! The front of the file, and the map of the extents.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use runlog::format::map::header::{HeaderFault, MAGIC, StaticHeader};
use runlog::format::map::manifest::{AreaContents, MAX_AREA_LEN, Use, read_area};
use runlog::format::map::owner;
use runlog::format::map::superblock::{ManifestAt, Superblock};
use runlog::format::segments::segment::{Purpose, SEGMENT_HEADER_LEN, SegmentHeader};
use runlog::format::{
    EXTENTS_AT, ExtentSize, FORMAT_VERSION, OWNER_AT, PAGE, PAGE_LEN, SUPERBLOCK_AT, SegmentKey,
};
use runlog::{Damage, Error, ExtentNo, Owner, SegmentId};
use serde_json::json;

use crate::failure::Failure;
use crate::inspect::row::{Row, Rows, fields};
use crate::inspect::segment::Segment;

/// A file that may be a store. It is only read, without a lock.
#[derive(Debug)]
struct Raw {
    file: File,
    path: PathBuf,
}

impl Raw {
    fn open(path: &Path) -> Result<Self, Failure> {
        let failed = |source: io::Error| match source.kind() {
            ErrorKind::NotFound => Error::NotFound { path: path.to_path_buf() }.into(),
            _ => Failure::file(path, source),
        };
        if !fs::metadata(path).map_err(failed)?.is_file() {
            return Err(Error::NotRegularFile { path: path.to_path_buf() }.into());
        }
        Ok(Self { file: File::open(path).map_err(failed)?, path: path.to_path_buf() })
    }

    /// The bytes of a range, with zeros after the end of the file.
    fn read(&self, at: u64, len: usize) -> Result<Vec<u8>, Failure> {
        let (mut file, mut bytes) = (&self.file, Vec::new());
        let read = file
            .seek(SeekFrom::Start(at))
            .and_then(|_| file.take(len as u64).read_to_end(&mut bytes));
        read.map_err(|source| Failure::file(&self.path, source))?;
        bytes.resize(len, 0);
        Ok(bytes)
    }
}

/// The front of the file, each part with what is wrong with it.
#[derive(Debug)]
pub(super) struct Front {
    raw: Raw,
    /// The length of the file.
    len: u64,
    header: Result<StaticHeader, Damage>,
    slots: [Result<Superblock, Damage>; 2],
    owner: Result<Owner, Damage>,
    /// Where the newer superblock says that the manifest is.
    manifest_at: ManifestAt,
    manifest: Result<AreaContents, Damage>,
    uuid: [u8; 16],
    size: ExtentSize,
}

impl Front {
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let raw = Raw::open(path)?;
        let len = raw.file.metadata().map_err(|source| Failure::file(path, source))?.len();
        let page = raw.read(0, PAGE_LEN)?;
        let header = header_in(&page)?;
        let slots = [slot_in(&raw, 0)?, slot_in(&raw, 1)?];
        let newest = match slots {
            [Ok(first), Ok(second)] if first.is_newer_than(&second) => Some(first),
            [_, Ok(second)] => Some(second),
            [Ok(first), _] => Some(first),
            _ => None,
        };
        let of_slot = newest.map(|block| (block.uuid, block.extent_size));
        let known = header.as_ref().ok().map(|header| (header.uuid, header.extent_size));
        let Some((uuid, size)) = known.or(of_slot) else {
            let most = MAGIC.len().min(usize::try_from(len).unwrap_or(0));
            return Err(Error::NotAStore { found: page[..most].to_vec(), len }.into());
        };
        let manifest_at = newest.map(|block| block.manifest).unwrap_or_default();
        let manifest = manifest_in(&raw, manifest_at, (uuid, len))?;
        let owner = owner::decode(&raw.read(OWNER_AT, PAGE_LEN)?);
        Ok(Self { raw, len, header, slots, owner, manifest_at, manifest, uuid, size })
    }

    /// Tells of the front, and of each extent.
    pub(super) fn tell(&self, rows: &mut Rows) -> Result<(), Failure> {
        let contents = self.manifest.as_ref().map_err(|damage| *damage);
        let manifest = contents.map(|contents| {
            let mut manifest = fields(&contents.header);
            manifest["records"] = json!(contents.records);
            manifest
        });
        rows.push(&Row::of("header", 0, &self.header))?;
        rows.push(&Row::of("superblock", SUPERBLOCK_AT, &self.slots[0]))?;
        rows.push(&Row::of("superblock", SUPERBLOCK_AT + PAGE, &self.slots[1]))?;
        rows.push(&Row::of("owner", OWNER_AT, &self.owner))?;
        rows.push(&Row::of("manifest", self.manifest_at.offset, &manifest))?;
        self.numbers().try_for_each(|number| self.extent(number, rows))
    }

    /// All extents, those after the end of the file included.
    fn numbers(&self) -> impl Iterator<Item = ExtentNo> + use<> {
        let in_file = self.len.saturating_sub(EXTENTS_AT).div_ceil(self.size.bytes());
        let contents = self.manifest.as_ref().ok();
        let last = contents.and_then(|contents| contents.extents.uses.keys().last());
        let count = in_file.max(last.map_or(0, |last| u64::from(last.0) + 1));
        (0..u32::try_from(count).unwrap_or(u32::MAX)).map(ExtentNo)
    }

    fn used(&self, number: ExtentNo) -> Option<Use> {
        self.manifest.as_ref().ok()?.extents.uses.get(&number).copied()
    }

    /// The header of the segment that an extent has.
    fn header(&self, number: ExtentNo) -> Result<Result<SegmentHeader, Damage>, Failure> {
        let head = self.raw.read(self.size.offset_of(number), SEGMENT_HEADER_LEN as usize)?;
        let is_own = |header: &SegmentHeader| header.uuid == self.uuid;
        let header = SegmentHeader::decode(&head);
        Ok(header.and_then(|header| Some(header).filter(is_own).ok_or(Damage::Misplaced)))
    }

    /// Tells of an extent: its use by the manifest, and the header that stands in it.
    pub(super) fn extent(&self, number: ExtentNo, rows: &mut Rows) -> Result<(), Failure> {
        let (offset, used) = (self.size.offset_of(number), self.used(number));
        let header = self.header(number)?;
        let damage = match used {
            Some(Use::Log { purpose: Purpose::Output, .. }) => None,
            // One that is set aside may not be there yet.
            Some(Use::Log { sealed, .. }) if offset >= self.len => sealed.map(|_| Damage::Missing),
            Some(Use::Log { segment: id, salt, .. }) => match &header {
                Ok(header) if header.key == SegmentKey { id, salt } => None,
                Ok(_) => Some(Damage::Misplaced),
                Err(damage) => Some(*damage),
            },
            _ => None,
        };
        let damage = damage.map(|damage| damage.to_string());
        let header = header.ok().map(|header| fields(&header));
        let fields = json!({"extent": number, "use": used, "header": header});
        Ok(rows.push(&Row { event: "extent", offset, fields, damage, payload: None })?)
    }

    /// The segment with a number: by the manifest, or without one by the headers of the segments.
    pub(super) fn segment(&self, id: SegmentId) -> Result<Segment, Failure> {
        for number in self.numbers() {
            let found = match (self.used(number), &self.manifest) {
                (Some(Use::Log { segment: id, salt, sealed, .. }), _) => {
                    Some((SegmentKey { id, salt }, sealed))
                }
                (Some(Use::Retired { segment: id, salt }), _) => {
                    Some((SegmentKey { id, salt }, None))
                }
                (None, Err(_)) => self.header(number)?.ok().map(|header| (header.key, None)),
                _ => None,
            };
            if let Some((key, sealed)) = found.filter(|(key, _)| key.id == id) {
                let at = self.size.offset_of(number);
                let len = usize::try_from(self.size.bytes()).unwrap_or(0);
                return Ok(Segment::new((number, at), (key, sealed), self.raw.read(at, len)?));
            }
        }
        Err(Failure::said(format!("no extent has segment {id}")))
    }
}

fn header_in(page: &[u8]) -> Result<Result<StaticHeader, Damage>, Error> {
    match StaticHeader::decode(page) {
        Ok(header) => Ok(Ok(header)),
        Err(HeaderFault::Foreign) => Ok(Err(Damage::Magic)),
        Err(HeaderFault::Damaged(damage)) => Ok(Err(damage)),
        Err(HeaderFault::Version { found }) => {
            Err(Error::UnsupportedVersion { found, supported: FORMAT_VERSION })
        }
        Err(HeaderFault::Features { unknown }) => Err(Error::UnsupportedFeatures { unknown }),
    }
}

fn slot_in(raw: &Raw, slot: u64) -> Result<Result<Superblock, Damage>, Failure> {
    let block = Superblock::decode(&raw.read(SUPERBLOCK_AT + slot * PAGE, PAGE_LEN)?);
    let is_own = |block: &Superblock| block.epoch.0 % 2 == slot;
    Ok(block.and_then(|block| Some(block).filter(is_own).ok_or(Damage::Misplaced)))
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
    let is_whole = |found: &AreaContents| !found.hole && found.records >= at.records;
    let contents = read_area(&bytes, uuid, at.generation);
    Ok(contents.and_then(|found| Some(found).filter(is_whole).ok_or(Damage::Truncated)))
}
