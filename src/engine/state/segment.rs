//! A segment of the log in an open store: its place, its frames, its directory.
//!
//! - Written frames never change, so a payload can be a view of the file.
//! - Who holds the `Arc` of a segment pins its extent (I8), and the map of it.

use core::fmt;
use std::borrow::Cow;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::engine::state::payload::CheckedFrame;
use crate::engine::storage::disk::Disk;
use crate::engine::storage::{Region, prefetch};
use crate::error::{Corruption, Damage, Error, Place, Result};
use crate::format::frames::frame::{FRAME_HEADER_LEN, LONG_HEADER_LEN};
use crate::format::map::manifest::{Change, SealedAt};
use crate::format::segments::directory::{DirectoryKey, IdHash, Tables};
use crate::format::segments::segment::{Purpose, SEGMENT_HEADER_LEN, SegmentHeader};
use crate::format::{ExtentSize, FrameCheck, FrameHeader, SegmentKey};
use crate::index::Applied;
use crate::types::{ExtentNo, LogPosition, SegmentId};

/// The length of a frame's header without an extra, in the type of offsets.
pub(crate) const HEADER: u32 = 48;
const _: () = assert!(HEADER as usize == FRAME_HEADER_LEN);

/// A segment of an open store.
pub(crate) struct Segment {
    pub(super) key: SegmentKey,
    purpose: Purpose,
    frames: FrameCheck,
    extent: ExtentNo,
    at: u64,
    extent_size: ExtentSize,
    disk: Disk,
    ids: IdHash,
    sealed: OnceLock<SealedAt>,
    /// The stored directory, or `None` if its tables are damaged.
    pub(super) directory: OnceLock<Option<DirectoryBytes>>,
    /// The directory as it was built again from the frames, or the damage if that failed.
    pub(super) rebuilt: OnceLock<Result<DirectoryBytes, Corruption>>,
    region: OnceLock<Region>,
    marks: AtomicU8,
}

/// A fact about a segment that, once known, stays true.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Mark {
    /// The manifest has it as sealed, so it is durable.
    Durable = 1,
    /// It does not count, and is kept only for its readers.
    Retired = 2,
    /// Its header was durably zeroed, so that salvage does not take it for a living segment.
    Erased = 4,
    /// Its whole extent was allocated since the store was opened.
    Allocated = 8,
    /// What the page cache had of it, once it was sealed, was mapped.
    Prefaulted = 16,
}

/// A directory of which the tables checked.
#[derive(Debug)]
pub(super) struct DirectoryBytes {
    /// A copy of the stored directory, or the same bytes built from the frames. `None` if it is
    /// read through the view of the extent.
    pub(super) copy: Option<Vec<u8>>,
    pub(super) tables: Tables,
}

impl Segment {
    pub(crate) fn new(
        disk: Disk,
        extent_size: ExtentSize,
        extent: ExtentNo,
        key: SegmentKey,
        purpose: Purpose,
        ids: IdHash,
    ) -> Self {
        Self {
            key,
            purpose,
            ids,
            frames: FrameCheck::new(key),
            extent,
            at: extent_size.offset_of(extent),
            extent_size,
            disk,
            sealed: OnceLock::new(),
            directory: OnceLock::new(),
            rebuilt: OnceLock::new(),
            region: OnceLock::new(),
            marks: AtomicU8::new(0),
        }
    }

    /// The same segment without a view of the file.
    pub(crate) fn without_view(&self) -> Self {
        let disk = self.disk.clone();
        Self::new(disk, self.extent_size, self.extent, self.key, self.purpose, self.ids)
    }

    /// Whether this fact is known.
    pub(crate) fn is(&self, mark: Mark) -> bool {
        self.marks.load(Ordering::Acquire) & mark as u8 != 0
    }

    /// Notes this fact.
    pub(crate) fn note(&self, mark: Mark) {
        self.marks.fetch_or(mark as u8, Ordering::AcqRel);
    }

    pub(crate) fn id(&self) -> SegmentId {
        self.key.id
    }

    pub(crate) fn key(&self) -> SegmentKey {
        self.key
    }

    /// The manifest record that sets it aside.
    pub(crate) fn reservation(&self) -> Change {
        let (SegmentKey { id: segment, salt }, purpose) = (self.key, self.purpose);
        Change::Reserve { extent: self.extent, segment, salt, purpose }
    }

    /// The manifest record that seals it; `None` if it is not sealed.
    pub(crate) fn sealing(&self) -> Option<Change> {
        let (extent, segment) = (self.extent, self.key.id);
        Some(Change::Seal { extent, segment, at: self.sealed()? })
    }

    /// What the segment is for.
    pub(crate) fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// Whether an index with this progress covers it.
    pub(crate) fn is_covered_by(&self, applied: Applied) -> bool {
        applied.covers(self.key.id, self.purpose)
    }

    /// Whether compaction wrote it, so that its id says nothing about the order of the log.
    pub(crate) fn is_output(&self) -> bool {
        self.purpose == Purpose::Output
    }

    /// The check of its frames.
    pub(crate) fn frames(&self) -> &FrameCheck {
        &self.frames
    }

    pub(crate) fn extent(&self) -> ExtentNo {
        self.extent
    }

    pub(crate) fn disk(&self) -> &Disk {
        &self.disk
    }

    pub(crate) fn extent_size(&self) -> ExtentSize {
        self.extent_size
    }

    /// Where the segment starts in the file.
    pub(crate) fn file_offset(&self) -> u64 {
        self.at
    }

    pub(crate) fn position(&self, offset: u32) -> LogPosition {
        LogPosition { segment: self.key.id, offset }
    }

    /// The hashes of ids in its directory.
    pub(crate) fn ids(&self) -> IdHash {
        self.ids
    }

    /// The key of its directory, if the log of the segment ends at `end`.
    pub(crate) fn directory_key(&self, end: u32) -> DirectoryKey {
        DirectoryKey { salt: self.key.salt, end, ids: self.ids }
    }

    /// Where the log of the segment ends and which directory it has; `None` if it is not sealed.
    pub(crate) fn sealed(&self) -> Option<SealedAt> {
        self.sealed.get().copied()
    }

    /// Notes that the segment is sealed and takes no more frames.
    pub(crate) fn seal(&self, at: SealedAt) {
        let _ = self.sealed.set(at);
    }

    /// The segment's own header, checked. An error if it belongs to another segment.
    pub(crate) fn header(&self) -> Result<SegmentHeader> {
        let odd = |damage| Error::corrupt(Place::Extent { extent: self.extent }, damage);
        let bytes = self.disk.read_padded(self.at, SEGMENT_HEADER_LEN as usize)?;
        let header = SegmentHeader::decode(&bytes).map_err(odd)?;
        if header.key == self.key { Ok(header) } else { Err(odd(Damage::Misplaced)) }
    }

    /// The header of the frame at `offset`, checked.
    pub(crate) fn read_header(&self, offset: u32) -> Result<FrameHeader> {
        // A header without an extra may be the end of the file.
        let long = self.read(offset, LONG_HEADER_LEN);
        let bytes = match long {
            Err(Error::Corrupt(_)) => self.read(offset, FRAME_HEADER_LEN)?,
            read => read?,
        };
        let header = FrameHeader::decode_with(&bytes, &self.frames, offset);
        header.map_err(|damage| self.damaged(offset, damage))
    }

    /// The frame at `offset`, header and payload checked.
    pub(crate) fn read_frame(&self, offset: u32) -> Result<(FrameHeader, Cow<'_, [u8]>)> {
        let header = self.read_header(offset)?;
        let payload = self.read_payload(&header)?;
        Ok((header, payload))
    }

    /// Checks the header and payload of the frame at `offset`. `named` adds the facts of the header
    /// to an error about the payload. With a view this reads the bytes once and does not count it:
    /// the caller counts several looks at once ([`Segment::count_mapped`]).
    #[allow(clippy::inline_always, reason = "moving headers costs more than checking them")]
    #[inline(always)]
    pub(crate) fn check_frame(
        &self,
        offset: u32,
        named: impl Fn(&FrameHeader, Error) -> Error,
    ) -> Result<CheckedFrame> {
        let Some(bytes) = self.mapped() else { return self.copy_frame(offset, named) };
        let bytes = bytes.get(offset as usize..).unwrap_or_default();
        let header = FrameHeader::decode_with(bytes, &self.frames, offset)
            .map_err(|damage| self.damaged(offset, damage))?;
        let padded = bytes.get(header.header_len()..header.frame_len());
        padded
            .ok_or(Damage::Truncated)
            .and_then(|padded| header.check_payload(&self.frames, padded))
            .map_err(|damage| named(&header, self.damaged(offset, damage)))?;
        Ok(CheckedFrame::without_copy(header))
    }

    /// The same without a view.
    #[cold]
    fn copy_frame(
        &self,
        offset: u32,
        named: impl Fn(&FrameHeader, Error) -> Error,
    ) -> Result<CheckedFrame> {
        let header = self.read_header(offset)?;
        let payload = self.read_payload(&header).map_err(|error| named(&header, error))?;
        Ok(CheckedFrame::with_copy(header, header.record_in(&payload).to_vec()))
    }

    /// The payload of a checked frame of this segment, for short use; of a PUT only the record.
    #[inline]
    pub(crate) fn look(&self, frame: CheckedFrame) -> Cow<'_, [u8]> {
        let (start, len) = (frame.start(), frame.header.record_len());
        match frame.into_copy() {
            Some(copy) => Cow::Owned(copy),
            None => Cow::Borrowed(self.viewed(start, len)),
        }
    }

    /// These bytes of the view; empty without a view.
    #[inline]
    pub(crate) fn viewed(&self, start: u32, len: u32) -> &[u8] {
        let range = start as usize..start as usize + len as usize;
        self.mapped().and_then(|bytes| bytes.get(range)).unwrap_or_default()
    }

    /// The payload behind a checked header.
    pub(crate) fn read_payload(&self, header: &FrameHeader) -> Result<Cow<'_, [u8]>> {
        let offset = header.position.offset;
        let padded = header.frame_len() - header.header_len();
        let bytes = self.read(header.payload_at(), padded)?;
        header
            .check_payload(&self.frames, &bytes)
            .map_err(|damage| self.damaged(offset, damage))?;
        let len = header.payload_len as usize;
        Ok(match bytes {
            Cow::Borrowed(bytes) => Cow::Borrowed(bytes.get(..len).unwrap_or_default()),
            Cow::Owned(mut bytes) => {
                bytes.truncate(len);
                Cow::Owned(bytes)
            }
        })
    }

    /// The bytes at `offset` of the segment, from the view if there is one.
    pub(crate) fn read(&self, offset: u32, len: usize) -> Result<Cow<'_, [u8]>> {
        let end = u64::from(offset) + len as u64;
        if end > self.extent_size.bytes() {
            let max = self.extent_size.bytes();
            return Err(self.damaged(offset, Damage::OutOfRange { found: end, max }));
        }
        if let Some(bytes) = self.mapped()
            && let Some(part) = bytes.get(offset as usize..offset as usize + len)
        {
            self.count_mapped(1);
            return Ok(Cow::Borrowed(part));
        }
        let mut bytes = vec![0; len];
        match self.disk.read(self.at + u64::from(offset), &mut bytes) {
            Ok(()) => Ok(Cow::Owned(bytes)),
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::UnexpectedEof => {
                Err(self.damaged(offset, Damage::Truncated))
            }
            Err(error) => Err(error),
        }
    }

    /// Counts this many looks at frames through the view.
    pub(crate) fn count_mapped(&self, looks: u64) {
        self.disk.count_mapped(looks);
    }

    /// A view of the extent, if all of it lies within the file; of a sealed segment up to the end
    /// of its bytes ([`Segment::bytes_end`]). Once there is a view, it stays.
    #[allow(clippy::inline_always, reason = "a trace asks for each record")]
    #[inline(always)]
    pub(crate) fn mapped(&self) -> Option<&[u8]> {
        if let Some(region) = self.region.get() { Some(region) } else { self.map() }
    }

    /// Prefetches the first bytes of the frame at `offset`, if there is a view.
    pub(crate) fn prefetch(&self, offset: u32) {
        if let Some(bytes) = self.region.get().and_then(|region| region.get(offset as usize..)) {
            prefetch(bytes);
        }
    }

    /// Whether there is a view.
    pub(crate) fn is_mapped(&self) -> bool {
        self.region.get().is_some()
    }

    #[cold]
    fn map(&self) -> Option<&[u8]> {
        let end = self.disk.has_views().then(|| self.bytes_end())?;
        if self.disk.len().ok()? < self.at + end as u64 {
            return None;
        }
        let used = if self.sealed().is_some() { end } else { self.data_end() };
        let region = self.disk.map(self.at, end, used).ok()??;
        Some(self.region.get_or_init(|| region))
    }

    /// Maps for reading what the page cache has of a sealed segment; returns how many bytes.
    pub(crate) fn prefault(&self) -> u64 {
        self.disk.prefault(self.at, self.bytes_end())
    }

    /// Where the bytes of a sealed segment end, including its directory. Nothing reads behind that,
    /// since the blocks there are released. The end of the extent if the segment is not sealed.
    fn bytes_end(&self) -> usize {
        let size = self.extent_size.bytes_u32();
        self.sealed().map_or(size, |at| at.bytes_end().min(size)) as usize
    }

    /// The offset from which on all bytes of the extent are zero, as far as the file system knows.
    pub(crate) fn data_end(&self) -> usize {
        let end = self.disk.data_end(self.at, self.extent_size.bytes());
        usize::try_from(end - self.at).unwrap_or(usize::MAX)
    }

    /// All bytes of the extent up to [`Segment::bytes_end`], with zeros behind the end of the file.
    pub(crate) fn read_all(&self) -> Result<Cow<'_, [u8]>> {
        self.read_up_to(self.bytes_end())
    }

    /// A copy of the whole extent, which may be written back.
    pub(crate) fn read_unsealed(&self) -> Result<Vec<u8>> {
        let len = usize::try_from(self.extent_size.bytes()).unwrap_or(usize::MAX);
        self.disk.read_data(self.at, len, self.at + self.data_end() as u64)
    }

    /// The first bytes of the extent, with zeros behind the end of the file.
    pub(crate) fn read_up_to(&self, end: usize) -> Result<Cow<'_, [u8]>> {
        // A view may be older than a hole in the space that was set aside for frames.
        if let Some(bytes) = self.mapped().and_then(|bytes| bytes.get(..end))
            && !self.disk.looking_takes_space(self.at, end)
        {
            return Ok(Cow::Borrowed(bytes));
        }
        Ok(Cow::Owned(self.disk.read_data(self.at, end, self.at + self.data_end() as u64)?))
    }

    #[cold]
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
