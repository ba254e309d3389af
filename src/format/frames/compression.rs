//! The codec of compressed bytes, if this build has it (feature `zstd`).
//!
//! - Whether a codec is missing is told apart from damage: the bytes may be perfect.
//! - What comes out is as long as the caller said, or it is an error: no input makes it longer, and
//!   nothing is allocated by what the compressed bytes say of themselves.

use crate::error::Damage;

/// The code of zstd.
pub const ZSTD: u8 = 1;
/// The Cargo feature with which a build can read and write [`ZSTD`].
pub const ZSTD_FEATURE: &str = "zstd";
/// The levels of zstd that can be asked for.
pub const ZSTD_LEVELS: core::ops::RangeInclusive<i32> = 1..=19;

/// Why compressed bytes give nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreadable {
    /// The bytes are not what they should be.
    Damaged(Damage),
    /// This build lacks the Cargo feature with this name.
    NeedsFeature(&'static str),
}

impl From<Damage> for Unreadable {
    fn from(damage: Damage) -> Self {
        Self::Damaged(damage)
    }
}

/// Whether this build has zstd.
pub fn has_zstd() -> bool {
    #[cfg(test)]
    if absent::ABSENT.get() {
        return false;
    }
    cfg!(feature = "zstd")
}

/// Fills `out`, which is as long as the bytes were.
///
/// # Errors
/// [`Unreadable::Damaged`] where something else comes out.
pub fn decompress(codec: u8, compressed: &[u8], out: &mut [u8]) -> Result<(), Unreadable> {
    if codec != ZSTD {
        return Err(Damage::UnknownCode { found: codec.into() }.into());
    }
    if !has_zstd() {
        return Err(Unreadable::NeedsFeature(ZSTD_FEATURE));
    }
    if zstd_into(compressed, out) == Some(out.len()) {
        Ok(())
    } else {
        Err(Damage::Undecodable.into())
    }
}

#[cfg(feature = "zstd")]
fn zstd_into(compressed: &[u8], out: &mut [u8]) -> Option<usize> {
    use core::cell::RefCell;

    use zstd::bulk::Decompressor;

    // It is large, and has no memory of what it did.
    thread_local! {
        static KEPT: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
    }
    KEPT.with_borrow_mut(|kept| {
        if kept.is_none() {
            *kept = Decompressor::new().ok();
        }
        kept.as_mut()?.decompress_to_buffer(compressed, out).ok()
    })
}

#[cfg(not(feature = "zstd"))]
fn zstd_into(_: &[u8], _: &mut [u8]) -> Option<usize> {
    None
}

/// Compresses at one level.
pub(crate) struct Compressor {
    #[cfg(feature = "zstd")]
    zstd: zstd::bulk::Compressor<'static>,
    /// What comes back of what was compressed.
    #[cfg(feature = "zstd")]
    back: Vec<u8>,
}

impl Compressor {
    /// A compressor; none where this build has no codec.
    #[cfg(feature = "zstd")]
    pub(crate) fn new(level: i32) -> Option<Self> {
        let mut zstd = zstd::bulk::Compressor::new(level).ok()?;
        zstd.include_checksum(false).ok()?;
        has_zstd().then_some(Self { zstd, back: Vec::new() })
    }

    /// A compressor; none where this build has no codec.
    #[cfg(not(feature = "zstd"))]
    pub(crate) fn new(_: i32) -> Option<Self> {
        None
    }

    /// Appends what `raw` becomes to `out`, if that is at most `most` bytes. What was appended was
    /// seen to give the same bytes again: those it stands for are deleted after this.
    #[cfg(feature = "zstd")]
    pub(crate) fn compress(&mut self, raw: &[u8], most: usize, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        out.resize(start + most, 0);
        let room = out.get_mut(start..).unwrap_or_default();
        let len = self.zstd.compress_to_buffer(raw, room).ok();
        let compressed = room.get(..len.unwrap_or(0)).unwrap_or_default();
        self.back.clear();
        self.back.resize(raw.len(), 0);
        let same = zstd_into(compressed, &mut self.back) == Some(raw.len()) && self.back == raw;
        let len = len.filter(|_| same);
        out.truncate(start + len.unwrap_or(0));
        len.is_some()
    }

    /// Appends what `raw` becomes to `out`, if that is at most `most` bytes.
    #[cfg(not(feature = "zstd"))]
    pub(crate) fn compress(&mut self, _: &[u8], _: usize, _: &mut Vec<u8>) -> bool {
        false
    }
}

/// A build without the codec, played by one that has it.
#[cfg(test)]
pub(crate) mod absent {
    use core::cell::Cell;

    thread_local! {
        pub(crate) static ABSENT: Cell<bool> = const { Cell::new(false) };
    }

    /// Does this in a thread that has no codec meanwhile.
    pub(crate) fn during<T>(what: impl FnOnce() -> T) -> T {
        struct Back;
        impl Drop for Back {
            fn drop(&mut self) {
                ABSENT.set(false);
            }
        }
        ABSENT.set(true);
        let _back = Back;
        what()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_codec_is_told_by_its_code() {
        let found = decompress(7, &[], &mut []);
        assert_eq!(found, Err(Unreadable::Damaged(Damage::UnknownCode { found: 7 })));
    }

    #[test]
    fn a_build_without_the_codec_names_the_feature_whatever_the_bytes() {
        let missing = Err(Unreadable::NeedsFeature("zstd"));
        absent::during(|| {
            assert_eq!(decompress(ZSTD, b"anything", &mut [0; 8]), missing);
            assert!(!has_zstd());
        });
    }

    #[test]
    fn what_was_compressed_comes_back_at_its_length_only() {
        let raw: Vec<u8> = (0..5000_u32).map(|at| (at % 251) as u8).collect();
        let mut compressed = b"front".to_vec();
        assert!(Compressor::new(3).unwrap().compress(&raw, raw.len(), &mut compressed));
        let compressed = compressed.strip_prefix(b"front").unwrap();
        let mut out = vec![0; raw.len()];
        assert_eq!(decompress(ZSTD, compressed, &mut out), Ok(()));
        assert_eq!(out, raw);
        let damaged = Err(Unreadable::Damaged(Damage::Undecodable));
        for len in [0, raw.len() - 1, raw.len() + 1] {
            assert_eq!(decompress(ZSTD, compressed, &mut vec![0; len]), damaged, "{len}");
        }
        assert_eq!(decompress(ZSTD, &compressed[1..], &mut out), damaged);
    }

    #[test]
    fn what_does_not_become_short_enough_leaves_nothing_behind() {
        let mut random = 1_u64;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 56) as u8
        };
        let raw: Vec<u8> = (0..1000).map(|_| next()).collect();
        let mut out = b"front".to_vec();
        assert!(!Compressor::new(3).unwrap().compress(&raw, 900, &mut out));
        assert_eq!(out, b"front");
    }
}
