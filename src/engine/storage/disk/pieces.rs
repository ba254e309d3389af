//! Copies of pieces of the file that runs share, for a process that reads most of them: one read
//! instead of one for each record of runs that were written at the same time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

/// The length of a piece, but for the last one of a segment.
pub(crate) const PIECE: u32 = 256 << 10;

/// A piece pays if one byte of so many is used.
const PAYS: usize = 4;

/// What each refusal saves for a piece, in bytes: perhaps the runs that are read now share more
/// than those before. A read of its own costs eight times as much.
const SAVED: usize = 512;

/// The copies that a process keeps.
#[derive(Debug)]
pub(super) struct Pieces {
    most: usize,
    kept: Mutex<Kept>,
    /// How many bytes were of use since the last request.
    used: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Kept {
    pieces: Vec<(Key, Arc<Piece>)>,
    /// Counts the requests.
    now: u64,
    /// How many bytes may be copied in vain.
    credit: usize,
}

/// What a piece is a copy of.
#[derive(Debug)]
struct Key {
    offset: u64,
    salt: u64,
    /// When it was requested last.
    at: u64,
}

/// A copy of a piece of the file.
#[derive(Debug)]
pub(crate) struct Piece {
    bytes: OnceLock<Vec<u8>>,
    used: Arc<AtomicUsize>,
}

impl Piece {
    /// Its bytes; none if they could not be read.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get().map(|bytes| &**bytes).unwrap_or_default()
    }

    /// The bytes that `read` returns, unless another thread has read them. A thread that wants them
    /// meanwhile waits.
    pub(super) fn fill(&self, read: impl FnOnce() -> Vec<u8>) {
        self.bytes.get_or_init(read);
    }

    /// Notes that so many bytes were of use.
    pub(crate) fn note_used(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Pieces {
    /// Keeps at most so many bytes; `None` for no piece.
    pub(super) fn new(bytes: usize) -> Option<Self> {
        let most = bytes / PIECE as usize;
        let kept = Kept { pieces: Vec::new(), now: 0, credit: most * PIECE as usize };
        (most > 0).then(|| Self { most, kept: Mutex::new(kept), used: Arc::default() })
    }

    /// The piece at this place, and bytes that are not in use any more if it is to be read.
    pub(super) fn find(
        &self,
        offset: u64,
        salt: u64,
        len: usize,
    ) -> Option<(Arc<Piece>, Option<Vec<u8>>)> {
        let mut kept = self.kept.lock();
        kept.now += 1;
        let at = kept.now;
        let known =
            kept.pieces.iter_mut().find(|(key, _)| (key.offset, key.salt) == (offset, salt));
        if let Some((key, piece)) = known {
            key.at = at;
            return Some((Arc::clone(piece), None));
        }
        let used = self.used.swap(0, Ordering::Relaxed).saturating_mul(PAYS);
        kept.credit = kept.credit.saturating_add(used).min(self.most * PIECE as usize);
        let Some(left) = kept.credit.checked_sub(len) else {
            kept.credit += SAVED;
            return None;
        };
        kept.credit = left;
        let mut bytes = Vec::new();
        if kept.pieces.len() >= self.most {
            let (oldest, _) = kept.pieces.iter().enumerate().min_by_key(|(_, (key, _))| key.at)?;
            let (_, gone) = kept.pieces.swap_remove(oldest);
            let gone = Arc::into_inner(gone).and_then(|piece| piece.bytes.into_inner());
            bytes = gone.unwrap_or_default();
        }
        let piece = Arc::new(Piece { bytes: OnceLock::new(), used: Arc::clone(&self.used) });
        kept.pieces.push((Key { offset, salt, at }, Arc::clone(&piece)));
        Some((piece, Some(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = PIECE as usize;

    fn is_given(pieces: &Pieces, number: usize) -> bool {
        pieces.find((number * LEN) as u64, 7, LEN).is_some()
    }

    #[test]
    fn pieces_that_are_of_no_use_are_refused_but_for_a_few() {
        let pieces = Pieces::new(4 * LEN).expect("pieces");
        let given = (0..6_400).filter(|number| is_given(&pieces, *number)).count();
        assert!((4..=4 + 6_400 / (LEN / SAVED)).contains(&given), "{given}");
    }
}
