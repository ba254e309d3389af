//! Corrects the checksums of a damaged file, so that the damage is not detected by them. The
//! offsets are those of the specification.

use core::ops::Range;

use runlog::format::FrameKind;
use runlog::format::frames::frame::{FRAME_ALIGN, FRAME_HEADER_LEN, LONG_HEADER_LEN};
use runlog::format::map::manifest::{AREA_HEADER_LEN, RECORD_LEN};
use runlog::format::segments::directory::TRAILER_LEN;
use runlog::format::{EXTENTS_AT, MANIFEST_AREA_LEN, MANIFEST_AT, OWNER_AT, SUPERBLOCK_AT};

const PAGE: usize = 4096;
const EXTENT: usize = 64 << 10;

/// Writes the checksum of the bytes from `at` on behind them.
pub fn repair(bytes: &mut [u8], at: usize, len: usize) {
    let Some(checked) = bytes.get(at..at + len) else { return };
    let crc = crc32fast::hash(checked).to_le_bytes();
    if let Some(place) = bytes.get_mut(at + len..at + len + 4) {
        place.copy_from_slice(&crc);
    }
}

/// Repairs a record of a manifest area.
pub fn repair_change(record: &mut [u8], generation: u64, index: u64) {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&generation.to_le_bytes());
    crc.update(&index.to_le_bytes());
    crc.update(&record[4..]);
    record[..4].copy_from_slice(&crc.finalize().to_le_bytes());
}

/// The length of the header of the frame that begins with these bytes.
fn header_len(frame: &[u8]) -> usize {
    FrameKind::from_code(frame[12]).map_or(FRAME_HEADER_LEN, |kind| kind.header_len(frame[13]))
}

/// Repairs the directory of a segment with this salt, whose log ends at `end`: the checks of its
/// entries, of their offsets, and of its tables.
pub fn repair_directory(bytes: &mut [u8], salt: u64, end: u32) {
    let seal = |bytes: &mut [u8], place: usize, covered: Range<usize>, at: usize| {
        let Some(checked) = bytes.get(covered) else { return };
        let mut crc = crc32fast::Hasher::new();
        crc.update(&salt.to_le_bytes());
        crc.update(&end.to_le_bytes());
        crc.update(&(at as u32).to_le_bytes());
        crc.update(checked);
        let crc = crc.finalize().to_le_bytes();
        if let Some(place) = bytes.get_mut(place..place + 4) {
            place.copy_from_slice(&crc);
        }
    };
    let Some(trailer) = bytes.len().checked_sub(TRAILER_LEN) else { return };
    let (places, runs) = (short(bytes, trailer + 8), short(bytes, trailer + 12));
    for slot in 0..runs.min(bytes.len() / 4) {
        let at = short(bytes, places + 4 * slot) * 8;
        let Some(entry) = bytes.get(at..).filter(|entry| entry.len() >= 40) else { continue };
        let (flags, parts) = (entry[4], short(entry, 12).min(entry.len()));
        let optional = [(1, 8), (2, 12), (4, 20), (8, 12)];
        let optional = optional.iter().filter(|(flag, _)| flags & flag != 0);
        let fields = optional.map(|(_, len)| len).sum::<usize>() + if parts > 0 { 8 } else { 0 };
        let ids = (short(entry, 6) & 0xffff) + (short(entry, 8) & 0xffff);
        let part = |part: usize| {
            let at = 40 + fields + 24 * part;
            short(entry, at) + short(entry, at + 4)
        };
        let mut left = (0..parts).map(part).sum::<usize>().min(entry.len());
        let behind = at + 40 + fields + 24 * parts + ids;
        seal(bytes, at, at + 4..behind, at);
        let mut list = behind.next_multiple_of(4);
        while left > 0 {
            let group = left.min(64);
            seal(bytes, list, list + 4..list + 4 + 4 * group, list);
            (list, left) = (list + 4 + 4 * group, left - group);
        }
    }
    let last = bytes.len() - 4;
    seal(bytes, last, places..last, places);
}

fn short(bytes: &[u8], at: usize) -> usize {
    let word = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
    u32::from_le_bytes(word.copied().unwrap_or_default()) as usize
}

/// Repairs the ids with which the payload of a frame of this type begins.
pub fn repair_ids(code: u8, payload: &mut [u8]) {
    let more = match FrameKind::from_code(code) {
        Some(FrameKind::Bind | FrameKind::Start) => 0,
        Some(FrameKind::Put) => 8,
        _ => return,
    };
    let Some(&[agent, agent_high, run, run_high]) = payload.get(4..8) else { return };
    let [agent, run] = [[agent, agent_high], [run, run_high]].map(u16::from_le_bytes);
    let len = 8 + usize::from(agent) + usize::from(run) + more;
    let Some(checked) = payload.get(4..len) else { return };
    let crc = crc32fast::hash(checked).to_le_bytes();
    payload[..4].copy_from_slice(&crc);
}

/// Repairs the header of the frame at `offset`.
pub fn repair_frame(header: &mut [u8], salt: u64, offset: u32) {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&salt.to_le_bytes());
    crc.update(&offset.to_le_bytes());
    crc.update(&header[4..header_len(header)]);
    header[..4].copy_from_slice(&crc.finalize().to_le_bytes());
}

/// Repairs a whole file with extents of 64 KiB.
pub fn repair_file(bytes: &mut [u8]) {
    repair(bytes, 0, 80);
    for slot in 0..2 {
        repair(bytes, SUPERBLOCK_AT as usize + slot * PAGE, 152);
    }
    repair(bytes, OWNER_AT as usize, 280);
    for area in 0..2 {
        let start = (MANIFEST_AT + area * MANIFEST_AREA_LEN) as usize;
        let Some(area) = bytes.get_mut(start..start + MANIFEST_AREA_LEN as usize) else { return };
        repair(area, 0, AREA_HEADER_LEN - 4);
        let generation = word(area, 24);
        let records = area[AREA_HEADER_LEN..].chunks_exact_mut(RECORD_LEN);
        for (index, record) in (0..).zip(records).take_while(|(_, record)| record[..4] != [0; 4]) {
            repair_change(record, generation, index);
        }
    }
    for extent in bytes.get_mut(EXTENTS_AT as usize..).unwrap_or_default().chunks_mut(EXTENT) {
        repair_segment(extent);
    }
}

fn repair_segment(extent: &mut [u8]) {
    if extent.len() < 64 || extent[..8] == [0; 8] {
        return;
    }
    repair(extent, 0, 60);
    let salt = word(extent, 32);
    let mut at = 64;
    while let Some(frame) = extent.get_mut(at..) {
        if frame.len() < LONG_HEADER_LEN || frame[..4] == [0; 4] {
            return;
        }
        let start = header_len(frame);
        let len = u32::from_le_bytes([frame[8], frame[9], frame[10], frame[11]]) as usize;
        let code = frame[12];
        if let Some(payload) = frame.get_mut(start..start + len) {
            repair_ids(code, payload);
            if code == FrameKind::Seal as u8 {
                repair_directory(payload, salt, at as u32);
            }
            let crc = crc32fast::hash(payload).to_le_bytes();
            frame[4..8].copy_from_slice(&crc);
        }
        repair_frame(frame, salt, at as u32);
        at += (start + len).next_multiple_of(FRAME_ALIGN);
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
    u64::from_le_bytes(word.unwrap_or_default())
}
