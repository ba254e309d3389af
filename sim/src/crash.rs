//! The images that crashes of a recording leave, boundary by boundary.

use crate::WORD_LEN;
use crate::durable::{Durable, Survivors};
use crate::random::SplitMix64;
use crate::record::{Op, Recording, write_into};

/// A place in a recording, and the images of a crash at that place.
///
/// Boundary `k` is the moment after the first `k` operations. The durable image moves along with
/// the boundary, so an image costs one copy of it and a replay of the unsynced operations.
///
/// ```
/// # use runlog_sim::{CrashImages, Recording, Survivors};
/// # let recording = Recording::default();
/// # fn check(_: &[u8]) {}
/// let mut crashes = CrashImages::new(&recording);
/// let mut image = Vec::new();
/// loop {
///     for survivors in Survivors::ALL {
///         crashes.image_into(survivors, 42, &mut image);
///         check(&image);
///     }
///     if !crashes.advance() {
///         break;
///     }
/// }
/// ```
#[derive(Debug)]
pub struct CrashImages<'a> {
    recording: &'a Recording,
    boundary: usize,
    durable: Durable,
}

impl<'a> CrashImages<'a> {
    /// Starts at boundary 0.
    #[must_use]
    pub fn new(recording: &'a Recording) -> Self {
        Self { recording, boundary: 0, durable: Durable::new(recording.initial.clone()) }
    }

    /// How many operations are done.
    #[must_use]
    pub fn boundary(&self) -> usize {
        self.boundary
    }

    /// The next operation, which is in flight at this boundary.
    #[must_use]
    pub fn next_op(&self) -> Option<&'a Op> {
        self.recording.ops.get(self.boundary)
    }

    /// Does the next operation. Returns false at the end.
    pub fn advance(&mut self) -> bool {
        let Some(op) = self.next_op() else {
            return false;
        };
        self.durable.push(op);
        self.boundary += 1;
        true
    }

    /// Moves to a boundary, forwards or back, at most to the end.
    pub fn seek(&mut self, boundary: usize) {
        if boundary < self.boundary {
            *self = Self::new(self.recording);
        }
        while self.boundary < boundary && self.advance() {}
    }

    /// How many operations are unsynced here. With 0 a power loss has only one outcome.
    #[must_use]
    pub fn unsynced(&self) -> usize {
        self.durable.unsynced()
    }

    /// What is certain to survive.
    #[must_use]
    pub fn durable(&self) -> &[u8] {
        self.durable.base()
    }

    /// The file after a power loss here. The same arguments always give the same image.
    pub fn image(&mut self, survivors: Survivors, seed: u64) -> Vec<u8> {
        let mut out = Vec::new();
        self.image_into(survivors, seed, &mut out);
        out
    }

    /// Like [`CrashImages::image`], but reuses a buffer.
    pub fn image_into(&mut self, survivors: Survivors, seed: u64, out: &mut Vec<u8>) {
        self.durable.image_into(survivors, seed, out);
    }

    /// The file after the process was killed here, with the first `stored` bytes of the next
    /// operation if it is a write or a store.
    #[must_use]
    pub fn killed(&self, stored: usize) -> Vec<u8> {
        let mut out = Vec::new();
        self.killed_into(stored, &mut out);
        out
    }

    /// Like [`CrashImages::killed`], but reuses a buffer.
    pub fn killed_into(&self, stored: usize, out: &mut Vec<u8>) {
        self.durable.volatile_into(out);
        if let Some(Op::Write { offset, data } | Op::Store { offset, data }) = self.next_op() {
            write_into(out, *offset, &data[..stored.min(data.len())]);
        }
    }

    /// The file after the process was killed within the next operation: with some of its first
    /// bytes if it is a write, with any of its words if it is a store. Returns whether any part of
    /// it is there.
    pub fn killed_within_into(&self, random: &mut SplitMix64, out: &mut Vec<u8>) -> bool {
        match self.next_op() {
            Some(Op::Write { data, .. }) => {
                let stored = random.index(data.len() + 1);
                self.killed_into(stored, out);
                stored > 0
            }
            Some(Op::Store { offset, data }) => {
                self.killed_into(0, out);
                let mut any = false;
                // All but one word, three of four, or every other.
                let (way, but) = (random.index(4), random.index(data.len() / WORD_LEN));
                for (place, word) in data.chunks(WORD_LEN).enumerate() {
                    let kept = match way {
                        0 => place != but,
                        1 => random.below(4) != 0,
                        _ => random.coin(),
                    };
                    if kept {
                        write_into(out, offset + place * WORD_LEN, word);
                        any = true;
                    }
                }
                any
            }
            _ => {
                self.killed_into(0, out);
                false
            }
        }
    }
}
