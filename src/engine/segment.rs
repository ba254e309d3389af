//! A segment of the log while the store is open: where it is, its frames, its directory.
//!
//! - Frames that were written never change, so that a payload can be a view of the file.
//! - Whoever holds the `Arc` of a segment pins it: its extent is not reused before the last holder
//!   lets go (I8).

use core::fmt;
use core::ops::{Deref, Range};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::disk::Disk;
use super::storage::Region;
use crate::error::{Corruption, Damage, Error, Place, Result};
use crate::format::directory::offset_in_list;
use crate::format::frame::{FRAME_ALIGN, FRAME_HEADER_LEN, SaltCheck, SegmentKey, claims_position};
use crate::format::manifest::SealedAt;
use crate::format::segment::{SEGMENT_HEADER_LEN, SegmentHeader};
use crate::format::{Directory, ExtentSize, FrameHeader, FrameKind};
use crate::types::{ExtentNo, LogPosition, SegmentId};

/// The length of a frame's header as offsets count.
const HEADER: u32 = 72;
const _: () = assert!(HEADER as usize == FRAME_HEADER_LEN);

/// A segment of an open store.
pub(crate) struct Segment {
    key: SegmentKey,
    salt: SaltCheck,
    extent: ExtentNo,
    at: u64,
    extent_size: ExtentSize,
    disk: Disk,
    sealed: OnceLock<SealedAt>,
    directory: OnceLock<DirectoryBytes>,
    region: OnceLock<Region>,
    /// The manifest says that the segment is sealed, hence durable.
    durable: AtomicBool,
}

#[derive(Debug)]
struct DirectoryBytes {
    bytes: Payload,
    /// The stored directory was damaged, and this one was rebuilt from the frames.
    rebuilt: Option<Corruption>,
}

impl Segment {
    pub(crate) fn new(
        disk: Disk,
        extent_size: ExtentSize,
        extent: ExtentNo,
        key: SegmentKey,
    ) -> Self {
        Self {
            key,
            salt: SaltCheck::new(key.salt),
            extent,
            at: extent_size.offset_of(extent),
            extent_size,
            disk,
            sealed: OnceLock::new(),
            directory: OnceLock::new(),
            region: OnceLock::new(),
            durable: AtomicBool::new(false),
        }
    }

    /// The manifest says that the segment is sealed, hence durable.
    pub(crate) fn is_durable(&self) -> bool {
        self.durable.load(Ordering::Acquire)
    }

    /// See [`Segment::is_durable`].
    pub(crate) fn note_durable(&self) {
        self.durable.store(true, Ordering::Release);
    }

    pub(crate) fn id(&self) -> SegmentId {
        self.key.id
    }

    pub(crate) fn key(&self) -> SegmentKey {
        self.key
    }

    /// What the check of each header begins with.
    pub(crate) fn salt(&self) -> SaltCheck {
        self.salt
    }

    pub(crate) fn extent(&self) -> ExtentNo {
        self.extent
    }

    /// Where the segment starts in the file.
    pub(crate) fn file_offset(&self) -> u64 {
        self.at
    }

    pub(crate) fn position(&self, offset: u32) -> LogPosition {
        LogPosition { segment: self.key.id, offset }
    }

    /// Where the log of the segment ends and its directory is, once it is sealed.
    pub(crate) fn sealed(&self) -> Option<SealedAt> {
        self.sealed.get().copied()
    }

    /// The segment takes no more frames.
    pub(crate) fn seal(&self, at: SealedAt) {
        let _ = self.sealed.set(at);
    }

    /// The damage of the stored directory, if it had to be rebuilt.
    pub(crate) fn directory_damage(&self) -> Option<&Corruption> {
        self.directory.get().and_then(|directory| directory.rebuilt.as_ref())
    }

    /// The directory of a sealed segment. A damaged one is rebuilt from the frames by `rebuild`.
    pub(crate) fn directory(
        &self,
        rebuild: impl FnOnce(&Self) -> Result<Vec<u8>>,
    ) -> Result<Directory<'_>> {
        let kept = match self.directory.get() {
            Some(kept) => kept,
            None => {
                let loaded = match self.stored_directory() {
                    Ok(bytes) => DirectoryBytes { bytes, rebuilt: None },
                    Err(Error::Corrupt(damage)) => DirectoryBytes {
                        bytes: Payload::owned(rebuild(self)?),
                        rebuilt: Some(damage),
                    },
                    Err(error) => return Err(error),
                };
                self.directory.get_or_init(|| loaded)
            }
        };
        let place = Place::Directory { segment: self.key.id };
        Directory::new(&kept.bytes).map_err(|damage| Error::corrupt(place, damage))
    }

    /// Reads and checks the directory in the file.
    pub(crate) fn stored_directory(&self) -> Result<Payload> {
        let place = Place::Directory { segment: self.key.id };
        let sealed = self.sealed().ok_or(Error::corrupt(place, Damage::Missing))?;
        let (header, payload) = self.read_frame(sealed.seal)?;
        if header.kind != FrameKind::Seal
            || header.extra != sealed.end
            || header.payload_crc != sealed.digest
        {
            return Err(Error::corrupt(place, Damage::Mismatch));
        }
        Directory::new(&payload).map_err(|damage| Error::corrupt(place, damage))?;
        Ok(payload)
    }

    /// The segment's own header, checked; it must be that of this segment.
    pub(crate) fn header(&self) -> Result<SegmentHeader> {
        let place = Place::Extent { extent: self.extent };
        let bytes = self.disk.read_padded(self.at, SEGMENT_HEADER_LEN as usize)?;
        let header =
            SegmentHeader::decode(&bytes).map_err(|damage| Error::corrupt(place, damage))?;
        if header.key == self.key {
            Ok(header)
        } else {
            Err(Error::corrupt(place, Damage::Misplaced))
        }
    }

    /// The header of the frame at `offset`, checked.
    pub(crate) fn read_header(&self, offset: u32) -> Result<FrameHeader> {
        let bytes = self.read(offset, FRAME_HEADER_LEN)?;
        let header = FrameHeader::decode(&bytes, self.key, offset);
        header.map_err(|damage| self.damaged(offset, damage))
    }

    /// The frame at `offset`, checked whole.
    pub(crate) fn read_frame(&self, offset: u32) -> Result<(FrameHeader, Payload)> {
        let header = self.read_header(offset)?;
        let payload = self.read_payload(&header)?;
        Ok((header, payload))
    }

    /// The frame at `offset`, checked whole; `named` adds what the header says to an error about
    /// the payload. The fast way for whole traces: one look at the bytes where there is a view.
    pub(crate) fn read_frame_named(
        &self,
        offset: u32,
        named: impl Fn(&FrameHeader, Error) -> Error,
    ) -> Result<(FrameHeader, Payload)> {
        let Some(region) = self.region() else {
            let header = self.read_header(offset)?;
            let payload = self.read_payload(&header).map_err(|error| named(&header, error))?;
            return Ok((header, payload));
        };
        self.disk.count_mapped();
        let bytes = region.get(offset as usize..).unwrap_or_default();
        let header = FrameHeader::decode(bytes, self.key, offset)
            .map_err(|damage| self.damaged(offset, damage))?;
        let padded = bytes.get(FRAME_HEADER_LEN..header.frame_len());
        let checked = padded.ok_or(Damage::Truncated).and_then(|all| header.check_payload(all));
        checked.map_err(|damage| named(&header, self.damaged(offset, damage)))?;
        let start = offset as usize + FRAME_HEADER_LEN;
        let part = region.slice(start..start + header.payload_len as usize);
        let part = part.ok_or_else(|| self.damaged(offset, Damage::Truncated))?;
        Ok((header, Payload::view(part)))
    }

    /// Item `index` of a list of offsets in the directory, which was opened before.
    pub(crate) fn listed_offset(&self, start: u32, index: u32) -> Result<u32> {
        let place = Place::Directory { segment: self.key.id };
        let kept = self.directory.get().ok_or(Error::corrupt(place, Damage::Missing))?;
        offset_in_list(&kept.bytes, start, index).map_err(|damage| Error::corrupt(place, damage))
    }

    /// The payload behind a header that was checked.
    pub(crate) fn read_payload(&self, header: &FrameHeader) -> Result<Payload> {
        let offset = header.position.offset;
        let padded = header.frame_len() - FRAME_HEADER_LEN;
        let bytes = self.read(offset.saturating_add(HEADER), padded)?;
        header.check_payload(&bytes).map_err(|damage| self.damaged(offset, damage))?;
        Ok(bytes.slice(0..header.payload_len as usize))
    }

    /// The bytes at `offset` of the segment, as a view where the storage has views.
    fn read(&self, offset: u32, len: usize) -> Result<Payload> {
        let end = u64::from(offset) + len as u64;
        if end > self.extent_size.bytes() {
            let max = self.extent_size.bytes();
            return Err(self.damaged(offset, Damage::OutOfRange { found: end, max }));
        }
        if let Some(region) = self.region()
            && let Some(part) = region.slice(offset as usize..offset as usize + len)
        {
            self.disk.count_mapped();
            return Ok(Payload::view(part));
        }
        let mut bytes = vec![0; len];
        match self.disk.read(self.at + u64::from(offset), &mut bytes) {
            Ok(()) => Ok(Payload::owned(bytes)),
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::UnexpectedEof => {
                Err(self.damaged(offset, Damage::Truncated))
            }
            Err(error) => Err(error),
        }
    }

    /// A view of the whole extent, once all of it lies within the file.
    fn region(&self) -> Option<&Region> {
        if let Some(region) = self.region.get() {
            return Some(region);
        }
        let len = usize::try_from(self.extent_size.bytes()).ok()?;
        if self.disk.len().ok()? < self.at + len as u64 {
            return None;
        }
        let region = self.disk.map(self.at, len).ok()??;
        Some(self.region.get_or_init(|| region))
    }

    /// All bytes of the extent, zeros behind the end of the file.
    pub(crate) fn read_all(&self) -> Result<Payload> {
        if let Some(region) = self.region() {
            return Ok(Payload::view(region.clone()));
        }
        let len = usize::try_from(self.extent_size.bytes()).unwrap_or(usize::MAX);
        Ok(Payload::owned(self.disk.read_padded(self.at, len)?))
    }

    pub(crate) fn damaged(&self, offset: u32, damage: Damage) -> Error {
        Error::corrupt(Place::Frame(self.position(offset)), damage)
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment")
            .field("id", &self.key.id)
            .field("extent", &self.extent)
            .field("sealed", &self.sealed.get())
            .finish_non_exhaustive()
    }
}

/// The first offset at or behind `from` where a valid frame header stands.
pub(crate) fn next_frame(extent: &[u8], key: SegmentKey, from: u32) -> Option<u32> {
    let start = (from.max(SEGMENT_HEADER_LEN) as usize).next_multiple_of(FRAME_ALIGN);
    (start..extent.len().saturating_sub(FRAME_HEADER_LEN - 1)).step_by(FRAME_ALIGN).find_map(|at| {
        let offset = u32::try_from(at).ok()?;
        let bytes = extent.get(at..)?;
        let position = LogPosition { segment: key.id, offset };
        (claims_position(bytes, position) && FrameHeader::decode(bytes, key, offset).is_ok())
            .then_some(offset)
    })
}

/// Bytes that were stored: a view of the file where that is possible, a copy elsewhere. Cheap to
/// clone; the extent that a view points into is not reused while the payload or a clone lives.
#[derive(Clone)]
pub struct Payload {
    bytes: Bytes,
    pin: Option<Arc<Segment>>,
}

#[derive(Clone)]
enum Bytes {
    Mapped(Region),
    Owned { bytes: Arc<[u8]>, range: Range<usize> },
}

impl Payload {
    fn view(region: Region) -> Self {
        Self { bytes: Bytes::Mapped(region), pin: None }
    }

    pub(crate) fn owned(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self { bytes: Bytes::Owned { bytes: bytes.into(), range }, pin: None }
    }

    /// Holds the segment that the bytes lie in.
    #[must_use]
    pub(crate) fn pinned(mut self, segment: &Arc<Segment>) -> Self {
        if matches!(self.bytes, Bytes::Mapped(_)) {
            self.pin = Some(Arc::clone(segment));
        }
        self
    }

    /// A part of the bytes; empty if the range does not lie within them.
    #[must_use]
    pub(crate) fn slice(&self, range: Range<usize>) -> Self {
        let bytes = match &self.bytes {
            Bytes::Mapped(region) => region.slice(range).map(Bytes::Mapped),
            Bytes::Owned { bytes, range: outer } => {
                let (start, end) = (outer.start + range.start, outer.start + range.end);
                (start <= end && end <= outer.end)
                    .then(|| Bytes::Owned { bytes: Arc::clone(bytes), range: start..end })
            }
        };
        match bytes {
            Some(bytes) => Self { bytes, pin: self.pin.clone() },
            None => Self::owned(Vec::new()),
        }
    }

    /// Whether the bytes are a view of the file rather than a copy.
    pub fn is_view(&self) -> bool {
        matches!(self.bytes, Bytes::Mapped(_))
    }
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(region) => region,
            Bytes::Owned { bytes, range } => bytes.get(range.clone()).unwrap_or_default(),
        }
    }
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Payload {
    /// Shows the length only: payloads do not belong into logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.len())
    }
}
