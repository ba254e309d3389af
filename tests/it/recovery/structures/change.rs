//! The changes of an input: which structure, which field, which new value.

use runlog::format::frames::frame::FRAME_HEADER_LEN;
use runlog::format::segments::segment::SegmentHeader;
use runlog::format::{FrameHeader, LAST_WRITTEN, NUMBERS_END};

use super::map::{EXTENT, Kind, Map, Structure, frame_at};
use super::repair::{Repair, change_rows};
use super::stores::Store;

/// The longest file.
const LONGEST: usize = 6 << 20;
/// The most structures that one change changes at once.
const MOST_TWINS: usize = 256;

/// What a change says.
#[derive(Debug, Clone, Copy)]
struct Change {
    group: usize,
    which: usize,
    field: usize,
    what: u8,
    operand: u16,
    more: u8,
}

impl Change {
    fn of(bytes: [u8; 8]) -> Self {
        let [group, low, high, field, what, first, second, more] = bytes;
        Self {
            group: group.into(),
            which: usize::from(u16::from_le_bytes([low, high])),
            field: field.into(),
            what,
            operand: u16::from_le_bytes([first, second]),
            more,
        }
    }
}

/// The file with all changes, of which everything checks but what a change says must not.
pub(crate) fn changed(store: &Store, changes: &[[u8; 8]]) -> Vec<u8> {
    let mut file = Changed {
        bytes: store.bytes.clone(),
        store,
        added: Map { open: store.map.open.clone(), ..Map::default() },
        repair: Repair::default(),
        last: Vec::new(),
    };
    for change in changes {
        file.apply(Change::of(*change));
    }
    file.finish()
}

/// The file with one value in some fields, each named by its structure and its number.
#[cfg(test)]
pub(crate) fn with_fields(store: &Store, fields: &[(usize, usize, u64)]) -> Vec<u8> {
    let mut file = Changed {
        bytes: store.bytes.clone(),
        store,
        added: Map::default(),
        repair: Repair::default(),
        last: Vec::new(),
    };
    for &(number, field, value) in fields {
        let (at, width) = store.map.structures[number].field(field);
        file.put(at, width, value);
        file.repair.touch(number);
    }
    file.finish()
}

struct Changed<'a> {
    bytes: Vec<u8>,
    store: &'a Store,
    /// The frames that changes added.
    added: Map,
    repair: Repair,
    /// What is done when everything checks: bytes that are flipped, zeroed, cut off.
    last: Vec<Last>,
}

enum Last {
    Flip(usize),
    Zero(usize, usize),
    Length(usize),
}

impl Changed<'_> {
    fn structure(&self, number: usize) -> Structure {
        let first = &self.store.map.structures;
        let later = || self.added.structures[number - first.len()];
        first.get(number).copied().unwrap_or_else(later)
    }

    fn apply(&mut self, change: Change) {
        // One group more than there are kinds: the frames that were added.
        let kinds = &self.store.map.kinds;
        let added = self.added.structures.len();
        let number = match kinds.get(change.group % (kinds.len() + 1)) {
            Some(kind) => kind[change.which % kind.len()],
            None if added > 0 => self.store.map.structures.len() + change.which % added,
            None => return,
        };
        let structure = self.structure(number);
        match change.what % 64 {
            0..52 => self.set(number, structure, change),
            52..55 => self.copy(number, structure, change),
            55 => self.last.push(Last::Flip(structure.at + change.field % structure.len)),
            56 => self.last.push(Last::Zero(structure.at, structure.len)),
            57..61 => self.add_frame(change),
            61 => self.last.push(Last::Length(structure.at + usize::from(change.operand))),
            62 => {
                let more = self.bytes.len() + usize::from(change.operand) * 8;
                self.bytes.resize(more.min(LONGEST), 0);
            }
            _ => self.add_record(change),
        }
    }

    /// Sets a field, and with bit 0 of `more` all that have the same value in the same field.
    fn set(&mut self, number: usize, structure: Structure, change: Change) {
        if structure.kind == Kind::BlockRows {
            let changed = change_rows(&mut self.bytes, structure, change.field, |row| {
                value(change.what, row, 1, change.operand, 0)
            });
            if changed {
                self.repair.touch(structure.within.unwrap_or(number));
            }
            return;
        }
        // In long lists the operand says where.
        let field = match structure.len / 64 {
            0..4 => change.field,
            _ => change.field + 256 * usize::from(change.more >> 1),
        };
        let (at, width) = structure.field(field);
        let Some(old) = self.get(at, width) else { return };
        let other = self.other(structure, change, field).unwrap_or(old);
        let new = value(change.what, old, width, change.operand, other);
        let mut twins = vec![number];
        if change.more & 1 != 0 {
            twins = self.twins(structure.kind, field, old);
        }
        for twin in twins {
            let (at, width) = self.structure(twin).field(field);
            self.put(at, width, new);
            let payload_crc = matches!(structure.kind, Kind::Frame(_)) && at == structure.at;
            if !payload_crc {
                self.repair.touch(twin);
            } else {
                self.repair.touch_header(twin);
            }
        }
    }

    /// The structures of a kind with this value in this field.
    fn twins(&self, kind: Kind, field: usize, value: u64) -> Vec<usize> {
        let structures = &self.store.map.structures;
        let alike = structures.iter().enumerate().filter(|(_, structure)| {
            let (at, width) = structure.field(field);
            structure.kind == kind && self.get(at, width) == Some(value)
        });
        alike.map(|(number, _)| number).take(MOST_TWINS).collect()
    }

    /// The value of the same field of another structure of the kind.
    fn other(&self, structure: Structure, change: Change, field: usize) -> Option<u64> {
        let kinds = &self.store.map.kinds;
        let same = kinds.iter().find(|kind| self.structure(kind[0]).kind == structure.kind)?;
        let other = self.structure(same[usize::from(change.operand) % same.len()]);
        let (at, width) = other.field(field);
        self.get(at, width)
    }

    /// Copies another structure of the kind over this one; a frame keeps its position.
    fn copy(&mut self, number: usize, structure: Structure, change: Change) {
        let kinds = &self.store.map.kinds;
        let same = kinds.iter().find(|kind| self.structure(kind[0]).kind == structure.kind);
        let Some(same) = same else { return };
        let other = self.structure(same[usize::from(change.operand) % same.len()]);
        let len = structure.len.min(other.len);
        let (from, to) = (other.at..other.at + len, structure.at..structure.at + len);
        if from.end > self.bytes.len() || to.end > self.bytes.len() {
            return;
        }
        let position = structure.at + 12..structure.at + 20;
        let kept = self.bytes.get(position.clone()).map(<[u8]>::to_vec);
        self.bytes.copy_within(from, to.start);
        if let (Kind::Frame(_), Some(kept)) = (structure.kind, kept) {
            self.bytes[position].copy_from_slice(&kept);
        }
        self.repair.touch(number);
    }

    /// Adds a copy of any frame to a segment that takes frames, with a new order.
    fn add_frame(&mut self, change: Change) {
        let kinds = &self.store.map.kinds;
        let frames: Vec<&Vec<usize>> = kinds
            .iter()
            .filter(|kind| matches!(self.structure(kind[0]).kind, Kind::Frame(_)))
            .collect();
        let kind = frames[change.group % frames.len()];
        let from = self.structure(kind[change.which % kind.len()]).at - 4;
        let Some((start, end)) = self.added.open.pop() else { return };
        let segment = |at: usize| &self.store.bytes[at - at % EXTENT..];
        let (Ok(source), Ok(target)) =
            (SegmentHeader::decode(segment(from)), SegmentHeader::decode(segment(start)))
        else {
            return;
        };
        let Some((mut frame, payload)) = frame_at(segment(from), source.key, from % EXTENT) else {
            return;
        };
        frame.position.segment = target.key.id;
        frame.position.offset = (end - start) as u32;
        frame.lsn.0 = target.next_lsn.0 + (end - start) as u64;
        let after = end + frame.frame_len();
        // Of several segments the next change takes another one.
        let index = usize::from(change.more) % (self.added.open.len() + 1);
        if after > start + EXTENT {
            return self.added.open.insert(index, (start, end));
        }
        self.bytes.resize(self.bytes.len().max(after), 0);
        let bytes = &mut self.bytes[end..after];
        bytes[..FRAME_HEADER_LEN].copy_from_slice(&frame.encode(target.key.salt));
        bytes[FRAME_HEADER_LEN..][..payload.len()].copy_from_slice(payload);
        self.note_added(end, &frame, payload);
        self.added.open.insert(index, (start, after));
    }

    fn note_added(&mut self, at: usize, frame: &FrameHeader, payload: &[u8]) {
        let mut map = Map::default();
        map.add_frame(at, frame, payload);
        let first = self.store.map.structures.len() + self.added.structures.len();
        for mut structure in map.structures {
            structure.within = structure.within.map(|within| within + first);
            self.added.structures.push(structure);
        }
    }

    /// Writes a batch of one record behind the last one of a manifest.
    fn add_record(&mut self, change: Change) {
        let structures = &self.store.map.structures;
        let next = structures.iter().enumerate().position(|(number, structure)| {
            let front = structure.at - structure.at.min(4);
            let empty = self.bytes.get(front..structure.at + structure.len);
            structure.kind == Kind::Record
                && (change.more & 1 == 0 || number > structures.len() / 64)
                && empty.is_some_and(|bytes| bytes.iter().all(|&byte| byte == 0))
        });
        let Some(number) = next else { return };
        let at = structures[number].at;
        let numbers = [0, 1, 2, 3, 9, 40, u32::MAX, 1 << 20];
        let pick = |by: u16| numbers[usize::from(by) % numbers.len()];
        let operand = change.operand;
        self.bytes[at..at + 4].copy_from_slice(&[change.field as u8 % 8, 1, 0, 0]);
        self.put(at + 4, 4, (change.which % 32) as u64);
        self.put(at + 8, 4, pick(operand).into());
        let wide = value((operand >> 3) as u8, 65536, 8, operand, 0);
        self.put(at + 12, 8, wide);
        self.repair.touch(number);
    }

    fn get(&self, at: usize, width: usize) -> Option<u64> {
        let mut value = [0; 8];
        value[..width].copy_from_slice(self.bytes.get(at..at + width)?);
        Some(u64::from_le_bytes(value))
    }

    fn put(&mut self, at: usize, width: usize, value: u64) {
        if let Some(place) = self.bytes.get_mut(at..at + width) {
            place.copy_from_slice(&value.to_le_bytes()[..width]);
        }
    }

    fn finish(mut self) -> Vec<u8> {
        let structures: Vec<Structure> =
            self.store.map.structures.iter().chain(&self.added.structures).copied().collect();
        self.repair.all(&mut self.bytes, &structures);
        for last in self.last {
            match last {
                Last::Flip(at) => {
                    if let Some(byte) = self.bytes.get_mut(at) {
                        *byte ^= 1;
                    }
                }
                Last::Zero(at, len) => {
                    let end = (at + len).min(self.bytes.len());
                    if let Some(bytes) = self.bytes.get_mut(at..end) {
                        bytes.fill(0);
                    }
                }
                Last::Length(len) => self.bytes.truncate(len),
            }
        }
        self.bytes
    }
}

/// A new value of a field of `width` bytes.
fn value(what: u8, old: u64, width: usize, operand: u16, other: u64) -> u64 {
    let small = u64::from(operand);
    match what % 26 {
        0 => 0,
        1 => 1,
        2 => u64::MAX,
        3 => 1 << 31,
        4 => NUMBERS_END,
        5 => NUMBERS_END - 1,
        6 => LAST_WRITTEN,
        7 => 1 << 63,
        8 => (1 << 31) - 1,
        9 => EXTENT as u64,
        10 => EXTENT as u64 - small % 256,
        11 => u64::MAX - small,
        12 => u64::from(u32::MAX) - small % 4,
        13 | 14 => small,
        15 => old.wrapping_add(1),
        16 => old.wrapping_sub(1),
        17 => old.wrapping_add(small),
        18 => old.wrapping_sub(small),
        19 => old ^ (1 << (operand % (8 * width as u16))),
        20 => old.wrapping_add(8),
        21 => old.wrapping_mul(2),
        22 => small << 16,
        _ => other,
    }
}
