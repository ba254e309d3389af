//! Damage to a file.
//!
//! - [`Harm`] damages a superblock, or the end of the manifest as a crash does. That must lose
//!   nothing.
//! - [`lose_something`] takes a part of a sealed segment, which must be reported.

use runlog::format::map::manifest::{RECORD_LEN, Use};
use runlog::storage::Storage;
use runlog_sim::{SimDisk, SplitMix64};

use crate::support::machine::EXTENT;
use crate::support::manifest::{Manifest, newest};

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
        let slot = match self {
            Self::Slot => random.index(2),
            Self::NewerSlot => (newest(image).expect("there is one").epoch.0 % 2) as usize,
            Self::ManifestEnd => {
                let mut torn = vec![0; 4 + random.index(RECORD_LEN - 4)];
                random.fill(&mut torn);
                let at = end_of_manifest(image);
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
fn end_of_manifest(image: &[u8]) -> Option<usize> {
    let manifest = Manifest::of(image).expect("it is whole");
    let (end, limit) = (manifest.end, manifest.limit().min(image.len()));
    // A crash that left a part of a batch there wrote nothing else.
    let is_blank = image.get(end..limit).is_some_and(|rest| rest.iter().all(|&byte| byte == 0));
    (is_blank && end + RECORD_LEN <= limit).then_some(end)
}

/// Takes a part of a sealed segment of a cleanly closed store; returns which, if there is one.
pub(crate) fn lose_something(disk: &SimDisk, random: &mut SplitMix64) -> Option<String> {
    let image = disk.image();
    let sealed =
        Manifest::of(&image)?.uses(|used| matches!(used, Use::Log { sealed: Some(_), .. }));
    let (start, used) = *sealed.get(random.index(sealed.len()))?;
    let Use::Log { sealed: Some(at), .. } = used else { return None };
    let (start, seal) = (start as u64, u64::from(at.end));
    let len = EXTENT.min(image.len() as u64 - start);
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
    Some(format!("{len} bytes from {from:#x} on are lost of {used:?}"))
}
