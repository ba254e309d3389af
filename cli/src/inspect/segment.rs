//! A segment, cut into frames and what is none, and its directory.

use std::collections::HashMap;

use runlog::format::frames::frame::{FRAME_ALIGN, FRAME_HEADER_LEN, claims_position, decode_ids};
use runlog::format::map::manifest::{SealedAt, Use, used_len};
use runlog::format::segments::segment::SEGMENT_HEADER_LEN;
use runlog::format::{Directory, FrameCheck, FrameHeader, FrameKind, SegmentKey};
use runlog::{AgentId, Damage, LogPosition, RunId, RunNo};

use crate::failure::Failure;
use crate::inspect::front::{Extent, Front, LOOKS};
use crate::inspect::raw::Raw;

/// A frame whose header checks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Framed {
    pub(crate) header: FrameHeader,
    /// What checking the payload found.
    pub(crate) payload: Result<(), Damage>,
}

impl Framed {
    /// Where the frame ends.
    pub(crate) fn end(&self) -> u32 {
        let len = u32::try_from(self.header.frame_len()).unwrap_or(u32::MAX);
        self.header.position.offset.saturating_add(len)
    }
}

/// A piece of a segment.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Item {
    Frame(Framed),
    /// Bytes that are no frame.
    Gap {
        from: u32,
        len: u32,
        /// Whether all of them are zero, as where nothing was written.
        is_blank: bool,
        /// Whether frames were lost here.
        is_damage: bool,
    },
}

impl Item {
    pub(crate) fn is_damaged(&self) -> bool {
        match self {
            Self::Frame(framed) => framed.payload.is_err(),
            Self::Gap { is_damage, .. } => *is_damage,
        }
    }
}

/// A segment with its bytes.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) key: SegmentKey,
    pub(crate) sealed: Option<SealedAt>,
    pub(crate) bytes: Vec<u8>,
    check: FrameCheck,
}

impl Segment {
    /// Reads the segment of an extent; `None` if nothing tells which segment it is.
    pub(crate) fn read(raw: &Raw, front: &Front, extent: &Extent) -> Result<Option<Self>, Failure> {
        let Some(key) = extent.key() else { return Ok(None) };
        let sealed = match extent.used {
            Some(Use::Log { sealed, .. }) => sealed,
            _ => None,
        };
        let len = usize::try_from(front.size.bytes()).unwrap_or(0);
        let mut segment = Self { key, sealed, bytes: Vec::new(), check: FrameCheck::new(key) };
        for _ in 0..LOOKS {
            segment.bytes = raw.read(extent.at, len)?;
            // A writer may be in the middle of a frame, and already behind it in another thread.
            if sealed.is_some() || !segment.items().iter().any(Item::is_damaged) {
                break;
            }
        }
        Ok(Some(segment))
    }

    /// The frame at an offset, if its header checks and the segment has all of it.
    pub(crate) fn frame(&self, offset: u32) -> Result<Framed, Damage> {
        let bytes = self.bytes.get(offset as usize..).ok_or(Damage::Truncated)?;
        let header = FrameHeader::decode_with(bytes, &self.check, offset)?;
        let padded = bytes.get(FRAME_HEADER_LEN..header.frame_len()).ok_or(Damage::Truncated)?;
        Ok(Framed { header, payload: header.check_payload(&self.check, padded) })
    }

    /// The payload of a frame, with the record kind in front of it.
    pub(crate) fn payload(&self, header: &FrameHeader) -> &[u8] {
        let start = header.position.offset as usize + FRAME_HEADER_LEN;
        self.bytes.get(start..start + header.payload_len as usize).unwrap_or_default()
    }

    /// The whole segment, piece by piece.
    pub(crate) fn items(&self) -> Vec<Item> {
        let mut items = Vec::new();
        let mut at = SEGMENT_HEADER_LEN;
        let used = u32::try_from(used_len(&self.bytes)).unwrap_or(u32::MAX);
        let end = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        while at < used {
            if let Ok(framed) = self.frame(at) {
                items.push(Item::Frame(framed));
                at = framed.end();
                continue;
            }
            let next = self.next_frame(at, used);
            items.push(self.gap(at, next.unwrap_or(end), next.is_some()));
            let Some(next) = next else { return items };
            at = next;
        }
        if at < end {
            items.push(self.gap(at, end, false));
        }
        items
    }

    fn gap(&self, from: u32, to: u32, is_followed: bool) -> Item {
        let bytes = self.bytes.get(from as usize..to as usize).unwrap_or_default();
        // Of a sealed segment only what lies in front of its end counts. In another one the log may
        // end where the next frame is still being written.
        let is_damage = match self.sealed {
            Some(sealed) => from < sealed.end,
            None => is_followed,
        };
        Item::Gap { from, len: to - from, is_blank: used_len(bytes) == 0, is_damage }
    }

    /// The next frame behind a place.
    fn next_frame(&self, at: u32, end: u32) -> Option<u32> {
        let step = u32::try_from(FRAME_ALIGN).unwrap_or(8);
        let mut next = at.checked_add(1)?.next_multiple_of(step);
        while next < end {
            let bytes = self.bytes.get(next as usize..)?;
            let position = LogPosition { segment: self.key.id, offset: next };
            if claims_position(bytes, position) && self.frame(next).is_ok() {
                return Some(next);
            }
            next = next.checked_add(step)?;
        }
        None
    }

    /// The directory; `None` if there is none yet.
    pub(crate) fn directory(&self) -> Option<Result<Directory<'_>, Damage>> {
        let Some(sealed) = self.sealed else {
            let is_seal = |framed: &Framed| framed.header.kind == FrameKind::Seal;
            let seal = self.items().into_iter().rev().find_map(|item| match item {
                Item::Frame(framed) => Some(framed).filter(is_seal),
                Item::Gap { .. } => None,
            })?;
            return Some(self.directory_in(&seal));
        };
        Some(self.frame(sealed.seal).and_then(|seal| {
            let header = &seal.header;
            let told = (header.kind, header.extra, header.payload_crc);
            if told != (FrameKind::Seal, sealed.end, sealed.digest) {
                return Err(Damage::Misplaced);
            }
            self.directory_in(&seal)
        }))
    }

    fn directory_in(&self, seal: &Framed) -> Result<Directory<'_>, Damage> {
        seal.payload?;
        let directory = Directory::new(self.payload(&seal.header))?;
        directory.check()?;
        Ok(directory)
    }

    /// What the frames call the runs.
    pub(crate) fn names(&self, items: &[Item]) -> HashMap<RunNo, (AgentId, RunId)> {
        let named = items.iter().filter_map(|item| {
            let Item::Frame(framed) = item else { return None };
            let is_name = matches!(framed.header.kind, FrameKind::Bind | FrameKind::Start);
            if !is_name || framed.payload.is_err() {
                return None;
            }
            let (agent, run, _) = decode_ids(self.payload(&framed.header)).ok()?;
            Some((framed.header.run_no, (agent, run)))
        });
        named.collect()
    }
}
