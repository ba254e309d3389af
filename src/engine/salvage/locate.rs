//! Finding the segments of a damaged store: by the manifest if it is whole, else by the headers of
//! segments.

use core::ops::Range;
use std::sync::Arc;

use crate::engine::open::front_matter::{identify, read_base, read_slots};
use crate::engine::open::segments;
use crate::engine::salvage::skip_unreadable::SkipUnreadable;
use crate::engine::state::segment::Segment;
use crate::engine::storage::disk::Disk;
use crate::engine::values::report::RecoveryReport;
use crate::error::{Corruption, Damage, Error, Place, Result};
use crate::format::map::superblock::ManifestAt;
use crate::format::segments::directory::IdHash;
use crate::format::segments::segment::{SEGMENT_HEADER_LEN, SegmentHeader};
use crate::format::{EXTENTS_AT, ExtentSize, PAGE_LEN};
use crate::types::{ExtentNo, LogPosition, RunNo};

/// All that salvage knows before it reads frames.
#[derive(Debug)]
pub(crate) struct Located {
    pub(crate) disk: Disk,
    pub(crate) source: Arc<SkipUnreadable>,
    /// The size of the extents, if the file still states it.
    pub(crate) extent_size: Option<ExtentSize>,
    pub(crate) segments: Vec<Arc<Segment>>,
    /// Whether the manifest is whole.
    pub(crate) has_manifest: bool,
    /// Extents that may have been segments, because their headers cannot be read.
    pub(crate) unread: Vec<Range<u64>>,
    /// The durable position, by the superblocks.
    pub(crate) durable: LogPosition,
    /// The store gave no run this number or a larger one, by the superblocks.
    pub(crate) next_run_no: RunNo,
    pub(crate) damaged: Vec<Corruption>,
}

/// Finds the segments.
///
/// # Errors
/// [`Error::UnsupportedVersion`], [`Error::UnsupportedFeatures`], and [`Error::NotAStore`] if no
/// structure in the file is one of a store.
pub(crate) fn locate(source: Arc<SkipUnreadable>) -> Result<Located> {
    let disk = Disk::without_views(Arc::<SkipUnreadable>::clone(&source));
    let (len, page) = (disk.len()?, disk.read_padded(0, PAGE_LEN)?);
    let mut report = RecoveryReport::default();
    let mut slots = read_slots(&disk, &mut report)?;
    let identity = match identify(&page, len, slots.last(), &mut report, false) {
        Ok(identity) => Some(identity),
        Err(
            error @ (Error::UnsupportedVersion { .. }
            | Error::UnsupportedFeatures { .. }
            | Error::Io { .. }),
        ) => return Err(error),
        Err(_) => None,
    };
    slots.retain(|block| identity.is_none_or(|known| known == (block.uuid, block.extent_size)));
    let mut located = Located {
        source,
        extent_size: identity.map(|(_, size)| size),
        segments: Vec::new(),
        has_manifest: false,
        unread: Vec::new(),
        durable: slots.iter().map(|block| block.durable).max().unwrap_or_default(),
        next_run_no: slots.iter().map(|block| block.next_run_no).max().unwrap_or_default(),
        damaged: report.damaged,
        disk,
    };
    match read_base(&located.disk, &mut RecoveryReport::default(), false) {
        Ok(base) if located.is_read(base.manifest) => {
            // Outputs that do not count are not among them.
            let known = segments(&located.disk, &base, &|_, _, _| None);
            located.segments.extend(known.sealed.into_iter().chain(known.unsealed.into_values()));
            located.has_manifest = true;
        }
        Err(error @ Error::Io { .. }) => return Err(error),
        read => {
            let offset = slots.last().map_or(0, |block| block.manifest.offset);
            let lost = Corruption::new(Place::Manifest { offset }, Damage::Missing);
            let found = match read {
                Err(Error::Damaged(found)) if found.place == lost.place => found,
                _ => lost,
            };
            located.damaged.push(found);
            located.search(identity.map(|(uuid, _)| uuid))?;
        }
    }
    if located.segments.is_empty() && identity.is_none() {
        let found = page.into_iter().take(16).collect();
        let not_a_store = Error::NotAStore { found, len };
        return Err(located.source.failure().unwrap_or(not_a_store));
    }
    Ok(located)
}

impl Located {
    /// Whether the device could read the manifest.
    fn is_read(&self, at: ManifestAt) -> bool {
        self.source.unread_in(&(at.offset..at.offset.saturating_add(at.len))).is_empty()
    }

    /// Takes the segments in all extents by their headers: those of this store or, if it is not
    /// known which store the file is, of the store of the first header.
    fn search(&mut self, mut uuid: Option<[u8; 16]>) -> Result<()> {
        let step = self.extent_size.unwrap_or(ExtentSize::MIN).bytes();
        let (mut at, file_len) = (EXTENTS_AT, self.disk.len()?);
        while at < file_len {
            if self.disk.data_end(at, step) > at {
                let head = self.disk.read_padded(at, SEGMENT_HEADER_LEN as usize)?;
                if let Ok(header) = SegmentHeader::decode(&head) {
                    if *uuid.get_or_insert(header.uuid) == header.uuid {
                        self.take(at, &header);
                    }
                } else if !self.source.unread_in(&(at..at + 1)).is_empty() {
                    self.unread.push(at..at + step);
                }
            }
            at += step;
        }
        Ok(())
    }

    /// Takes the segment with this header, if it is at the beginning of an extent.
    fn take(&mut self, at: u64, header: &SegmentHeader) {
        let SegmentHeader { key, purpose, extent_size, .. } = *header;
        let extent = ExtentNo(u32::try_from((at - EXTENTS_AT) / extent_size.bytes()).unwrap_or(0));
        if extent_size.offset_of(extent) == at {
            let segment = {
                let ids = IdHash::new(header.uuid);
                Segment::new(self.disk.clone(), extent_size, extent, key, purpose, ids)
            };
            self.segments.push(Arc::new(segment));
            self.extent_size.get_or_insert(extent_size);
        }
    }
}
