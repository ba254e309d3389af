//! What the superblocks and the manifest of a file say.

use runlog::format::EXTENTS_AT;
use runlog::format::map::manifest::{
    AREA_HEADER_LEN, AreaContents, Change, RECORD_LEN, RecordKey, Use, encode_batch, read_area,
};
use runlog::format::map::superblock::Superblock;
use runlog::storage::Storage;
use runlog_sim::SimDisk;

use super::machine::EXTENT;

const PAGE: usize = 4096;

/// The two superblocks of a file.
pub(crate) fn slots(image: &[u8]) -> [Result<Superblock, runlog::Damage>; 2] {
    [0, 1].map(|slot| {
        let at = PAGE * (1 + slot);
        let block = Superblock::decode(&image[at..at + PAGE])?;
        let is_here = block.epoch.0 % 2 == slot as u64;
        if is_here { Ok(block) } else { Err(runlog::Damage::Misplaced) }
    })
}

/// The superblock that was written last.
pub(crate) fn newest(image: &[u8]) -> Option<Superblock> {
    let slots = slots(image).into_iter().flatten();
    slots.reduce(|one, other| if other.is_newer_than(&one) { other } else { one })
}

/// The manifest that the newest superblock names.
pub(crate) struct Manifest {
    pub(crate) block: Superblock,
    pub(crate) contents: AreaContents,
    /// Where its area begins, and where the next record goes.
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Manifest {
    /// None if it does not check.
    pub(crate) fn of(image: &[u8]) -> Option<Self> {
        let block = newest(image)?;
        let start = usize::try_from(block.manifest.offset).unwrap();
        let len = usize::try_from(block.manifest.len).unwrap();
        let area = &image[start..image.len().min(start + len)];
        let contents = read_area(area, block.uuid, block.manifest.generation).ok()?;
        let end = start + AREA_HEADER_LEN + usize::try_from(contents.records).unwrap() * RECORD_LEN;
        Some(Self { block, contents, start, end })
    }

    /// Where the area ends.
    pub(crate) fn limit(&self) -> usize {
        self.start + usize::try_from(self.block.manifest.len).unwrap()
    }

    /// The extents of this use, and where each begins.
    pub(crate) fn uses(&self, is_so: impl Fn(&Use) -> bool) -> Vec<(usize, Use)> {
        let uses = self.contents.extents.uses.iter().filter(|(_, used)| is_so(used));
        let start = |extent: runlog::ExtentNo| self.block.extent_size.offset_of(extent) as usize;
        uses.map(|(extent, used)| (start(*extent), *used)).collect()
    }

    /// The sealed segments: where each begins, and where its SEAL frame is.
    pub(crate) fn seals(&self) -> Vec<(usize, usize)> {
        let seal = |(start, used)| match used {
            Use::Log { sealed: Some(at), .. } => Some((start, start + at.end as usize)),
            _ => None,
        };
        self.uses(|_| true).into_iter().filter_map(seal).collect()
    }
}

/// Adds a batch to the manifest.
pub(crate) fn add_changes(image: &mut [u8], changes: &[Change]) {
    let Manifest { block, contents, end, .. } = Manifest::of(image).expect("it is whole");
    let key = RecordKey { generation: block.manifest.generation, index: contents.records };
    let batch = encode_batch(changes, key);
    image[end..end + batch.len()].copy_from_slice(&batch);
}

/// How many records the manifest has room for, before it moves.
pub(crate) fn room_in_manifest(disk: &SimDisk) -> u64 {
    let mut head = vec![0; 3 * PAGE];
    disk.read_at(0, &mut head).expect("no fault is planned");
    let block = newest(&head).expect("one was written");
    let mut area = vec![0; usize::try_from(block.manifest.len).unwrap()];
    disk.read_at(block.manifest.offset, &mut area).expect("no fault is planned");
    let contents = read_area(&area, block.uuid, block.manifest.generation).expect("it is whole");
    (area.len() - AREA_HEADER_LEN) as u64 / RECORD_LEN as u64 - contents.records
}

/// Behind a manifest area, its extents contain nothing of an earlier owner.
pub(crate) fn assert_nothing_behind_areas(disk: &SimDisk) {
    let image = disk.image();
    let Some(Manifest { block, contents, .. }) = Manifest::of(&image) else { return };
    let part = |at: u64, len: u64| {
        let at = usize::try_from(at).unwrap().min(image.len());
        &image[at..image.len().min(at + usize::try_from(len).unwrap())]
    };
    for area in contents.extents.areas(block.extent_size).expect("they say how long they are") {
        let behind = area.offset + area.len;
        let rest = part(behind, behind.next_multiple_of(EXTENT) - behind);
        assert!(rest.iter().all(|&byte| byte == 0), "the area at {:#x} ends dirty", area.offset);
    }
}

/// Releases the blocks of free extents, as if other files took them; there is no more space.
pub(crate) fn fill_up(disk: &SimDisk) {
    let image = disk.image();
    let owned = Manifest::of(&image).expect("it is whole").uses(|_| true);
    let owned: Vec<usize> = owned.into_iter().map(|(start, _)| start).collect();
    for start in (EXTENTS_AT as usize..image.len()).step_by(EXTENT as usize) {
        if !owned.contains(&start) {
            disk.punch(start as u64, EXTENT).unwrap();
        }
    }
    disk.set_capacity(disk.allocated());
}
