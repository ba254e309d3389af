//! Makes every checksum above what was changed right again.

use std::collections::BTreeSet;

use runlog::format::FrameKind;
use runlog::format::frames::block::BLOCK_HEAD_LEN;
use runlog::format::frames::frame::FRAME_HEADER_LEN;

use super::map::{EXTENT, Kind, Structure};

/// What has to be repaired, by the numbers of the structures.
#[derive(Debug, Default)]
pub(crate) struct Repair {
    touched: BTreeSet<usize>,
    /// Frames of which the checksum of the payload stays as it is.
    headers: BTreeSet<usize>,
}

impl Repair {
    pub(crate) fn touch(&mut self, number: usize) {
        self.touched.insert(number);
    }

    pub(crate) fn touch_header(&mut self, number: usize) {
        self.headers.insert(number);
    }

    /// From the innermost checksum to the outermost.
    pub(crate) fn all(&self, bytes: &mut [u8], structures: &[Structure]) {
        let mut frames = BTreeSet::new();
        let (mut plain, mut records) = (Vec::new(), BTreeSet::new());
        for &number in &self.touched {
            let structure = structures[number];
            match (structure.kind, structure.within) {
                (Kind::Frame(_), _) => drop(frames.insert(number)),
                (Kind::Record, _) => drop(records.insert(number)),
                (_, Some(frame)) => {
                    if structure.kind == Kind::BlockHead {
                        repair(bytes, structure.at, BLOCK_HEAD_LEN - 4);
                    }
                    frames.insert(frame);
                }
                (Kind::Extent, _) => {}
                (kind, None) => {
                    plain.push(structure);
                    if kind == Kind::AreaHeader {
                        let within = |structure: &Structure| structure.within == Some(number);
                        records
                            .extend((0..structures.len()).filter(|&one| within(&structures[one])));
                    }
                }
            }
        }
        for &number in frames.union(&self.headers) {
            self.frame(bytes, structures, number);
        }
        let seals = frames.iter().map(|&number| structures[number]);
        for seal in seals.filter(|one| one.kind == Kind::Frame(FrameKind::Seal as u8)) {
            records.extend(tell_digest(bytes, structures, seal));
        }
        for number in records {
            record(bytes, structures, number);
        }
        for structure in plain {
            repair(bytes, structure.at, structure.len);
        }
    }

    /// The checksums of a frame, with the salt that its segment has now.
    fn frame(&self, bytes: &mut [u8], structures: &[Structure], number: usize) {
        let at = structures[number].at - 4;
        let salt = word(bytes, at - at % EXTENT + 32);
        let Some(frame) = bytes.get_mut(at..) else { return };
        let Some(len) = frame.get(8..12).and_then(|len| len.try_into().ok()) else { return };
        let len = u32::from_le_bytes(len) as usize;
        let payload = frame.get(FRAME_HEADER_LEN..).and_then(|rest| rest.get(..len));
        if let (Some(payload), false) = (payload, self.headers.contains(&number)) {
            let crc = crc32fast::hash(payload).to_le_bytes();
            frame[4..8].copy_from_slice(&crc);
        }
        let mut crc = crc32fast::Hasher::new();
        crc.update(&salt.to_le_bytes());
        if let Some(checked) = frame.get(4..FRAME_HEADER_LEN) {
            crc.update(checked);
            frame[..4].copy_from_slice(&crc.finalize().to_le_bytes());
        }
    }
}

/// Writes the digest of a directory to the SEAL records of its extent; their numbers.
fn tell_digest(bytes: &mut [u8], structures: &[Structure], seal: Structure) -> Vec<usize> {
    let extent = (seal.at / EXTENT - 1) as u32;
    let offset = ((seal.at - 4) % EXTENT) as u32;
    let Some(digest) = bytes.get(seal.at..seal.at + 4).map(<[u8]>::to_vec) else {
        return Vec::new();
    };
    let mut told = Vec::new();
    for (number, structure) in structures.iter().enumerate() {
        let Some(record) = bytes.get_mut(structure.at..structure.at + structure.len) else {
            continue;
        };
        let names = |at: usize, value: u32| record.get(at..at + 4) == Some(&value.to_le_bytes());
        if structure.kind == Kind::Record && record[0] == 2 && names(4, extent) && names(24, offset)
        {
            record[28..32].copy_from_slice(&digest);
            told.push(number);
        }
    }
    told
}

/// The check of a record of a manifest, of the generation that its area has now.
fn record(bytes: &mut [u8], structures: &[Structure], number: usize) {
    let structure = structures[number];
    let Some(within) = structure.within else { return };
    let area = structures[within];
    let generation = word(bytes, area.at + 24);
    let index = ((structure.at - 4 - area.at - 64) / 40) as u64;
    let Some(record) = bytes.get_mut(structure.at - 4..structure.at + structure.len) else {
        return;
    };
    // What was not written stays so.
    if record.iter().all(|&byte| byte == 0) {
        return;
    }
    let mut crc = crc32fast::Hasher::new();
    crc.update(&generation.to_le_bytes());
    crc.update(&index.to_le_bytes());
    crc.update(&record[4..]);
    record[..4].copy_from_slice(&crc.finalize().to_le_bytes());
}

/// Writes the checksum of what starts at `at` behind it.
fn repair(bytes: &mut [u8], at: usize, len: usize) {
    let Some(checked) = bytes.get(at..at + len) else { return };
    let crc = crc32fast::hash(checked).to_le_bytes();
    if let Some(place) = bytes.get_mut(at + len..at + len + 4) {
        place.copy_from_slice(&crc);
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
    u64::from_le_bytes(word.unwrap_or_default())
}

/// Changes a byte of the rows of a block, and compresses it again; whether there was room.
pub(crate) fn change_rows(
    bytes: &mut [u8],
    payload: Structure,
    which: usize,
    change: impl Fn(u64) -> u64,
) -> bool {
    let Some(block) = bytes.get_mut(payload.at..payload.at + payload.len) else { return false };
    let number = |block: &[u8], at: usize| {
        let bytes = block.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        u32::from_le_bytes(bytes.unwrap_or_default()) as usize
    };
    let (raw_len, rows_len) = (number(block, 4).min(1 << 20), number(block, 8));
    let (head, compressed) = block.split_at_mut(BLOCK_HEAD_LEN);
    let Ok(mut raw) = zstd::bulk::decompress(compressed, raw_len) else { return false };
    let Some(rows) = raw.get_mut(..rows_len).filter(|rows| !rows.is_empty()) else { return false };
    let row = which % rows.len();
    rows[row] = change(rows[row].into()) as u8;
    head[12..16].copy_from_slice(&crc32fast::hash(rows).to_le_bytes());
    let crc = crc32fast::hash(&head[..BLOCK_HEAD_LEN - 4]).to_le_bytes();
    head[BLOCK_HEAD_LEN - 4..].copy_from_slice(&crc);
    for level in [1, 3, 6, 12, 19] {
        let Ok(mut again) = zstd::bulk::compress(&raw, level) else { continue };
        // What is left is a frame of zstd that decoders skip.
        match compressed.len().checked_sub(again.len()) {
            Some(0) => {}
            Some(left @ 8..) => {
                again.extend(0x184D_2A50_u32.to_le_bytes());
                again.extend((left as u32 - 8).to_le_bytes());
                again.resize(compressed.len(), 0);
            }
            _ => continue,
        }
        compressed.copy_from_slice(&again);
        return true;
    }
    false
}
