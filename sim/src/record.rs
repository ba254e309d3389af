//! The operations of a disk, one by one.

use std::sync::Arc;

/// One operation with its actual effect. Ranges and lengths are those that took effect.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Op {
    /// Bytes were written; for a failed write, the bytes that were stored.
    Write {
        /// Where.
        offset: usize,
        /// What.
        data: Arc<[u8]>,
    },
    /// Bytes were stored through a window; for a failed store, those that were stored.
    Store {
        /// Where.
        offset: usize,
        /// What.
        data: Arc<[u8]>,
    },
    /// The length was set.
    SetLen {
        /// The new length.
        len: usize,
    },
    /// Space was reserved; the file reaches at least to `end` now.
    Allocate {
        /// The end of the range.
        end: usize,
    },
    /// A range was set to zero.
    Punch {
        /// The start of the range.
        offset: usize,
        /// The end of the range; it may lie behind the end of the file.
        end: usize,
    },
    /// A sync succeeded.
    Sync,
    /// A sync failed.
    FailedSync,
    /// Any other operation that failed and changed nothing.
    Refused,
}

/// The kinds of calls that a disk can be told to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OpKind {
    /// A read. Reads are not operations: they have no number.
    Read,
    /// A write.
    Write,
    /// A store through a window.
    Store,
    /// A change of length.
    SetLen,
    /// A reservation of space.
    Allocate,
    /// A punch.
    Punch,
    /// A sync.
    Sync,
}

/// All operations since a disk was made, and the image it was made from.
#[derive(Debug, Clone, Default)]
pub struct Recording {
    /// The image before the first operation, all of it durable.
    pub initial: Vec<u8>,
    /// The operations in their order.
    pub ops: Vec<Op>,
}

impl Op {
    /// Does the operation to an image.
    pub fn apply(&self, image: &mut Vec<u8>) {
        match self {
            Self::Write { offset, data } | Self::Store { offset, data } => {
                write_into(image, *offset, data);
            }
            Self::SetLen { len } => image.resize(*len, 0),
            Self::Allocate { end } => {
                if image.len() < *end {
                    image.resize(*end, 0);
                }
            }
            Self::Punch { offset, end } => {
                let end = (*end).min(image.len());
                let start = (*offset).min(end);
                image[start..end].fill(0);
            }
            Self::Sync | Self::FailedSync | Self::Refused => {}
        }
    }
}

/// Puts `data` into an image, which grows if it is too short.
pub(crate) fn write_into(image: &mut Vec<u8>, offset: usize, data: &[u8]) {
    if data.is_empty() {
        return;
    }
    let end = offset + data.len();
    if image.len() < end {
        image.resize(end, 0);
    }
    image[offset..end].copy_from_slice(data);
}
