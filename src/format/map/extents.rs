//! The state that the manifest describes: the owner of each extent, and the manifest areas.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::Damage;
use crate::format::codec::{Decoded, len_u32};
use crate::format::frames::frame::{FrameHeader, FrameKind};
use crate::format::layout::{EXTENTS_AT, ExtentSize, MANIFEST_AREA_LEN, MANIFEST_AT, PAGE};
use crate::format::map::manifest::{AREA_HEADER_LEN, Change, MAX_AREA_LEN, RECORD_LEN};
use crate::format::segments::directory_builder::DirectoryBuilder;
use crate::format::segments::segment::Purpose;
use crate::types::{ExtentNo, RunNo, SegmentId};

/// Where a sealed segment ends, and which directory it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct SealedAt {
    /// The log of the segment ends here, and the SEAL frame starts.
    pub end: u32,
    /// The length of the directory, which is the payload of the SEAL frame.
    pub len: u32,
    /// The checksum of the directory.
    pub digest: u32,
    /// Whether the directory lists evictions, so that opening must read it.
    pub has_evictions: bool,
    /// The directory lists runs with smaller numbers only.
    pub next_run_no: RunNo,
}

impl SealedAt {
    /// What a SEAL record states of a segment with this directory, which the SEAL frame at `end`
    /// has as its payload, with this header. New runs get numbers from `next` on.
    pub fn of(directory: &DirectoryBuilder, end: u32, seal: &FrameHeader, next: RunNo) -> Self {
        let has_evictions = directory.evictions().next().is_some();
        let (len, digest) = (seal.payload_len, seal.payload_crc);
        Self { end, len, digest, has_evictions, next_run_no: next }
    }

    /// Where the bytes of the segment end: behind the SEAL frame.
    pub fn bytes_end(&self) -> u32 {
        let len = FrameKind::Seal.frame_len(0, self.len as usize);
        self.end.saturating_add(u32::try_from(len).unwrap_or(u32::MAX))
    }

    /// Where the directory starts.
    pub fn directory(&self) -> u32 {
        self.end.saturating_add(len_u32(FrameKind::Seal.header_len(0)))
    }

    /// Whether it is the same end, with the same directory.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.end, self.len, self.digest) == (other.end, other.len, other.digest)
            && self.has_evictions == other.has_evictions
    }
}

/// The owner of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Use {
    /// A segment of the log, sealed or not.
    Log {
        /// The segment's number.
        segment: SegmentId,
        /// The segment's salt.
        salt: u64,
        /// What the segment is for.
        purpose: Purpose,
        /// Its end and directory, once sealed.
        sealed: Option<SealedAt>,
    },
    /// A segment that is no longer used, but may still be read.
    Retired {
        /// The segment's number.
        segment: SegmentId,
        /// The segment's salt.
        salt: u64,
    },
    /// A piece of the index.
    Index {
        /// Its place in the index.
        slot: u32,
    },
    /// A manifest area, or a part of one.
    Meta {
        /// The length of the area.
        area_len: u64,
    },
}

impl Use {
    /// The segment in the extent, retired ones included.
    pub fn segment(&self) -> Option<SegmentId> {
        match *self {
            Self::Log { segment, .. } | Self::Retired { segment, .. } => Some(segment),
            Self::Index { .. } | Self::Meta { .. } => None,
        }
    }
}

/// A manifest area: the place of a snapshot and the changes behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Area {
    /// Where it starts in the file.
    pub offset: u64,
    /// Its length.
    pub len: u64,
}

impl Area {
    /// The two areas in front of the extents.
    pub const FRONT: [Self; 2] = [
        Self { offset: MANIFEST_AT, len: MANIFEST_AREA_LEN },
        Self { offset: MANIFEST_AT + MANIFEST_AREA_LEN, len: MANIFEST_AREA_LEN },
    ];

    /// How many manifest records fit.
    pub fn capacity(self) -> u64 {
        self.len.saturating_sub(AREA_HEADER_LEN as u64) / RECORD_LEN as u64
    }

    /// The extents that it occupies; none if it is in front of the extents.
    pub fn extents(self, size: ExtentSize) -> impl Iterator<Item = ExtentNo> {
        let behind = self.offset.checked_sub(EXTENTS_AT);
        let first = behind.map_or(0, |behind| behind / size.bytes());
        let count = behind.map_or(0, |_| self.len.div_ceil(size.bytes()));
        let number = |number: u64| ExtentNo(u32::try_from(number).unwrap_or(u32::MAX));
        (first..first.saturating_add(count)).map(number)
    }
}

/// The state that the manifest describes. An extent that is not listed is free. The map gives each
/// extent exactly one owner (I1).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extents {
    /// All extents that have an owner.
    pub uses: BTreeMap<ExtentNo, Use>,
    /// The length of the index in bytes.
    pub index_len: u64,
}

impl Extents {
    /// Applies one change. A change that contradicts the state is damage.
    pub fn apply(&mut self, change: Change) -> Decoded<()> {
        let fits = match change {
            Change::Reserve { extent, segment, salt, purpose } => {
                self.claim(extent, Use::Log { segment, salt, purpose, sealed: None })
            }
            Change::Seal { extent, segment, at } => match self.uses.get_mut(&extent) {
                Some(Use::Log { segment: found, sealed: sealed @ None, .. })
                    if *found == segment =>
                {
                    *sealed = Some(at);
                    true
                }
                _ => false,
            },
            Change::Retire { extent } => match self.uses.get_mut(&extent) {
                Some(used @ &mut Use::Log { segment, salt, .. }) => {
                    *used = Use::Retired { segment, salt };
                    true
                }
                _ => false,
            },
            Change::Free { extent } => self.uses.remove(&extent).is_some(),
            Change::Map { extent, slot } => self.claim(extent, Use::Index { slot }),
            Change::IndexLen { len } => {
                self.index_len = len;
                true
            }
            Change::Meta { extent, area_len } => self.claim(extent, Use::Meta { area_len }),
        };
        if fits { Ok(()) } else { Err(Damage::Mismatch) }
    }

    /// Gives an extent an owner; returns whether it had none.
    fn claim(&mut self, extent: ExtentNo, used: Use) -> bool {
        self.uses.insert(extent, used).is_none()
    }

    /// The records of a snapshot of this state.
    pub fn snapshot(&self) -> Vec<Change> {
        let mut changes = Vec::with_capacity(2 * self.uses.len() + 1);
        for (&extent, &used) in &self.uses {
            match used {
                Use::Log { segment, salt, purpose, sealed } => {
                    changes.push(Change::Reserve { extent, segment, salt, purpose });
                    if let Some(at) = sealed {
                        changes.push(Change::Seal { extent, segment, at });
                    }
                }
                Use::Retired { segment, salt } => {
                    let purpose = Purpose::Log;
                    changes.push(Change::Reserve { extent, segment, salt, purpose });
                    changes.push(Change::Retire { extent });
                }
                Use::Index { slot } => changes.push(Change::Map { extent, slot }),
                Use::Meta { area_len } => changes.push(Change::Meta { extent, area_len }),
            }
        }
        changes.push(Change::IndexLen { len: self.index_len });
        changes
    }

    /// The manifest areas in extents. Each occupies a row of META extents of its own, which all
    /// state the area's length.
    pub fn areas(&self, size: ExtentSize) -> Decoded<Vec<Area>> {
        let mut metas = self.uses.iter().filter_map(|(&extent, used)| match *used {
            Use::Meta { area_len } => Some((extent, area_len)),
            _ => None,
        });
        let mut areas = Vec::new();
        while let Some((first, len)) = metas.next() {
            let area = Area { offset: size.offset_of(first), len };
            if len == 0 || len % PAGE != 0 || len > MAX_AREA_LEN {
                return Err(Damage::OutOfRange { found: len, max: MAX_AREA_LEN });
            }
            if area.extents(size).skip(1).any(|extent| metas.next() != Some((extent, len))) {
                return Err(Damage::Mismatch);
            }
            areas.push(area);
        }
        Ok(areas)
    }

    /// Whether each segment is in one extent only, and no sealed segment of the log is behind an
    /// unsealed one.
    pub(crate) fn is_consistent(&self) -> bool {
        let is_open = |used: &Use| match *used {
            Use::Log { segment, purpose: Purpose::Log, sealed, .. } => {
                Some((segment, sealed.is_none()))
            }
            _ => None,
        };
        let log: BTreeMap<SegmentId, bool> = self.uses.values().filter_map(is_open).collect();
        let mut known = BTreeSet::new();
        self.uses.values().filter_map(Use::segment).all(|segment| known.insert(segment))
            && log.values().is_sorted()
    }

    /// Frees all extents of the index.
    pub(crate) fn drop_index(&mut self) {
        self.uses.retain(|_, used| !matches!(used, Use::Index { .. }));
        self.index_len = 0;
    }

    /// The extents of the index in order; `None` if there is a gap, or if they are not as many as
    /// its length needs. The length alone would make redb allocate memory for that many pages.
    pub fn index_map(&self, size: ExtentSize) -> Option<Vec<ExtentNo>> {
        let slot = |(&extent, used): (&ExtentNo, &Use)| match *used {
            Use::Index { slot } => Some((slot, extent)),
            _ => None,
        };
        let mut slots: Vec<(u32, ExtentNo)> = self.uses.iter().filter_map(slot).collect();
        slots.sort_unstable();
        let contiguous = slots.iter().zip(0..).all(|(&(slot, _), expected)| slot == expected);
        let fits = self.index_len.div_ceil(size.bytes()) == slots.len() as u64;
        (contiguous && fits).then(|| slots.into_iter().map(|(_, extent)| extent).collect())
    }

    /// The extents without an owner, the lowest first; the iterator is endless.
    pub fn free(&self) -> impl Iterator<Item = ExtentNo> + '_ {
        (0..u32::MAX).map(ExtentNo).filter(|extent| !self.uses.contains_key(extent))
    }

    /// Those that begin within a file of this length: a crash may have left bytes in them.
    pub(crate) fn free_within(&self, size: ExtentSize, len: u64) -> BTreeSet<ExtentNo> {
        self.free().take_while(|extent| size.offset_of(*extent) < len).collect()
    }
}
