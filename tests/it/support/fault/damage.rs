//! Damage to a file.
//!
//! - [`Harm`] damages a superblock, or the end of the manifest as a crash does. That must lose
//!   nothing.
//! - [`lose_something`] takes a part of a sealed segment, which must be reported.

use runlog::ExtentNo;
use runlog::format::map::manifest::{RECORD_LEN, Use, read_area};
use runlog::format::map::superblock::Superblock;
use runlog::format::{EXTENTS_AT, ExtentSize};
use runlog::storage::Storage;
use runlog_sim::{SimDisk, SplitMix64};

use crate::support::machine::EXTENT;

/// The header and both superblocks are before this.
const HEAD: usize = 12 << 10;
const PAGE: usize = 4096;
const SECTOR: usize = 512;

/// What is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Harm {
    /// One of the two superblocks.
    Slot,
    /// The superblock that was written last.
    NewerSlot,
    /// A record of the manifest that was being written.
    ManifestEnd,
}

impl Harm {
    pub(crate) const ALL: [Self; 3] = [Self::Slot, Self::NewerSlot, Self::ManifestEnd];

    /// Damages the file on a disk, as it is now.
    pub(crate) fn on_disk(self, disk: &SimDisk, random: &mut SplitMix64) {
        let (at, bytes) = self.spoiled(&disk.image(), random);
        disk.write_at(at as u64, &bytes).expect("no fault is planned");
    }

    /// Damages a file in memory.
    pub(crate) fn on_image(self, image: &mut [u8], random: &mut SplitMix64) {
        let (at, bytes) = self.spoiled(image, random);
        image[at..at + bytes.len()].copy_from_slice(&bytes);
    }

    /// Where must be written what to do the damage.
    fn spoiled(self, image: &[u8], random: &mut SplitMix64) -> (usize, Vec<u8>) {
        let newest = newest(&image[..HEAD]).expect("there is a superblock");
        let slot = match self {
            Self::Slot => random.index(2),
            Self::NewerSlot => (newest.epoch.0 % 2) as usize,
            Self::ManifestEnd => {
                let mut torn = vec![0; 4 + random.index(RECORD_LEN - 4)];
                random.fill(&mut torn);
                let at = end_of_manifest(image, &newest);
                // A full area has no room for a record; a torn one is damaged already.
                return at.map_or((0, Vec::new()), |at| (at, torn));
            }
        };
        let at = PAGE * (1 + slot);
        let mut sector = image[at..at + SECTOR].to_vec();
        match random.below(3) {
            0 => sector.fill(0),
            1 => sector[random.index(150)] ^= 1 << random.below(8),
            // What should be in the other place.
            _ => sector.copy_from_slice(&image[PAGE * (2 - slot)..][..SECTOR]),
        }
        (at, sector)
    }
}

/// Where the next record of the manifest goes, if its area has room and nothing is there.
fn end_of_manifest(image: &[u8], block: &Superblock) -> Option<usize> {
    let start = usize::try_from(block.manifest.offset).unwrap();
    let len = usize::try_from(block.manifest.len).unwrap();
    let area = &image[start..image.len().min(start + len)];
    let contents = read_area(area, block.uuid, block.manifest.generation).expect("it is whole");
    let end = 64 + usize::try_from(contents.records).unwrap() * RECORD_LEN;
    // A crash that left a part of a batch there wrote nothing else.
    let is_blank = area.get(end..).is_some_and(|rest| rest.iter().all(|&byte| byte == 0));
    (is_blank && end + RECORD_LEN <= area.len()).then_some(start + end)
}

/// How many records the manifest has room for, before it moves.
pub(crate) fn room_in_manifest(disk: &SimDisk) -> u64 {
    let mut head = vec![0; HEAD];
    disk.read_at(0, &mut head).expect("no fault is planned");
    let block = newest(&head).expect("one was written");
    let mut area = vec![0; usize::try_from(block.manifest.len).unwrap()];
    disk.read_at(block.manifest.offset, &mut area).expect("no fault is planned");
    let contents = read_area(&area, block.uuid, block.manifest.generation).expect("it is whole");
    (area.len() as u64 - 64) / RECORD_LEN as u64 - contents.records
}

/// Behind a manifest area, its extents contain nothing of an earlier owner.
pub(crate) fn assert_nothing_behind_areas(disk: &SimDisk) {
    let mut head = vec![0; HEAD];
    disk.read_at(0, &mut head).expect("no fault is planned");
    let block = newest(&head).expect("one was written");
    let image = disk.image();
    let part = |at: u64, len: u64| {
        let at = usize::try_from(at).unwrap().min(image.len());
        &image[at..image.len().min(at + usize::try_from(len).unwrap())]
    };
    let area = part(block.manifest.offset, block.manifest.len);
    let Ok(contents) = read_area(area, block.uuid, block.manifest.generation) else { return };
    let size = ExtentSize::MIN;
    for area in contents.extents.areas(size).expect("they say how long they are") {
        let behind = area.offset + area.len;
        let rest = part(behind, behind.next_multiple_of(EXTENT) - behind);
        assert!(rest.iter().all(|&byte| byte == 0), "the area at {:#x} ends dirty", area.offset);
    }
}

/// The superblock that was written last.
pub(crate) fn newest(head: &[u8]) -> Option<Superblock> {
    let slots = (1..3).filter_map(|slot| Superblock::decode(&head[PAGE * slot..][..PAGE]).ok());
    slots.reduce(|one, other| if other.is_newer_than(&one) { other } else { one })
}

/// Takes a part of a sealed segment of a cleanly closed store; returns which, if there is one.
pub(crate) fn lose_something(disk: &SimDisk, random: &mut SplitMix64) -> Option<String> {
    let image = disk.image();
    let newest = newest(&image)?;
    let area = usize::try_from(newest.manifest.offset).unwrap();
    let contents = read_area(&image[area..], newest.uuid, newest.manifest.generation).ok()?;
    let is_sealed = |used: &Use| matches!(used, Use::Log { sealed: Some(_), .. });
    let uses = contents.extents.uses.iter().filter(|(_, used)| is_sealed(used));
    let sealed: Vec<(ExtentNo, Use)> = uses.map(|(&extent, &used)| (extent, used)).collect();
    let (extent, used) = *sealed.get(random.index(sealed.len()))?;
    let start = EXTENTS_AT + u64::from(extent.0) * EXTENT;
    let len = EXTENT.min(image.len() as u64 - start);
    let seal = match used {
        Use::Log { sealed: Some(at), .. } => u64::from(at.seal),
        _ => return None,
    };
    let (from, len) = match random.below(4) {
        0 => (0, len),
        1 => (0, seal.min(len)),
        2 => (seal / SECTOR as u64 * SECTOR as u64, SECTOR as u64),
        _ => (random.below(len) / SECTOR as u64 * SECTOR as u64, SECTOR as u64),
    };
    let len = len.min(image.len() as u64 - start - from);
    let mut bytes = vec![0; usize::try_from(len).unwrap()];
    if random.coin() {
        random.fill(&mut bytes);
    }
    disk.write_at(start + from, &bytes).expect("no fault is planned");
    Some(format!("{len} bytes of {extent:?} from {from:#x} on are lost: {used:?}"))
}
