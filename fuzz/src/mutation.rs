//! Changes of a file.

use arbitrary::Arbitrary;

/// The most that a file grows.
const LONGEST: usize = 4 << 20;

/// A change; places count modulo the length of the file.
#[derive(Debug, Arbitrary)]
pub enum Mutation {
    /// Overwrites at most four bytes.
    Write { at: u32, bytes: [u8; 4], len: u8 },
    /// Flips a bit.
    Flip { at: u32, bit: u8 },
    /// Writes zeros.
    Zero { at: u32, len: u16 },
    /// Copies bytes from another place.
    Copy { from: u32, to: u32, len: u16 },
    /// Cuts the file off.
    Cut { len: u32 },
    /// Makes the file longer.
    Extend { len: u16 },
}

impl Mutation {
    /// Makes the change.
    pub fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let total = bytes.len();
        let place = |at: u32| at as usize % total;
        match *self {
            Self::Write { at, bytes: new, len } => {
                let at = place(at);
                let end = (at + usize::from(len) % 5).min(total);
                bytes[at..end].copy_from_slice(&new[..end - at]);
            }
            Self::Flip { at, bit } => bytes[place(at)] ^= 1 << (bit % 8),
            Self::Zero { at, len } => {
                let at = place(at);
                let end = (at + usize::from(len)).min(total);
                bytes[at..end].fill(0);
            }
            Self::Copy { from, to, len } => {
                let (from, to) = (place(from), place(to));
                let len = usize::from(len).min(total - from).min(total - to);
                bytes.copy_within(from..from + len, to);
            }
            Self::Cut { len } => bytes.truncate(place(len)),
            Self::Extend { len } => bytes.resize((total + usize::from(len)).min(LONGEST), 0xee),
        }
    }
}
