//! The codec of compressed bytes, if this build has it (feature `zstd`).
//!
//! - A missing codec is reported as such and not as damage: the bytes may be intact.
//! - The caller says how long the output is, and any other length is an error. Lengths in the
//!   compressed bytes are not trusted for allocations.

use crate::error::Damage;

/// The code of zstd.
pub const ZSTD: u8 = 1;
/// The Cargo feature with which a build can read and write [`ZSTD`].
pub const ZSTD_FEATURE: &str = "zstd";
/// The levels of zstd that a caller can choose.
pub const ZSTD_LEVELS: core::ops::RangeInclusive<i32> = 1..=19;

/// Why compressed bytes cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreadable {
    /// The bytes are damaged.
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

/// Decompresses into `out`, whose length must be that of the original bytes.
///
/// # Errors
/// [`Unreadable::Damaged`] if the output differs in length.
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

    // One per thread: the context is large, and keeps no state between calls.
    thread_local! {
        static KEPT: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
    }
    let mut by = |kept: &mut Option<Decompressor<'static>>| {
        if kept.is_none() {
            *kept = Decompressor::new().ok();
        }
        kept.as_mut()?.decompress_to_buffer(compressed, out).ok()
    };
    // A thread that ends, and drops what it keeps of a store, may have lost its decompressor.
    match KEPT.try_with(|kept| by(&mut kept.borrow_mut())) {
        Ok(len) => len,
        Err(_) => by(&mut None),
    }
}

#[cfg(not(feature = "zstd"))]
fn zstd_into(_: &[u8], _: &mut [u8]) -> Option<usize> {
    None
}

/// Compresses at one level.
pub(crate) struct Compressor {
    #[cfg(feature = "zstd")]
    zstd: zstd::bulk::Compressor<'static>,
    /// The buffer for the check that the compressed bytes give the original again.
    #[cfg(feature = "zstd")]
    back: Vec<u8>,
}

impl Compressor {
    /// A compressor; `None` if this build has no codec.
    #[cfg(feature = "zstd")]
    pub(crate) fn new(level: i32) -> Option<Self> {
        let mut zstd = zstd::bulk::Compressor::new(level).ok()?;
        zstd.include_checksum(false).ok()?;
        has_zstd().then_some(Self { zstd, back: Vec::new() })
    }

    /// A compressor; `None` if this build has no codec.
    #[cfg(not(feature = "zstd"))]
    pub(crate) fn new(_: i32) -> Option<Self> {
        None
    }

    /// Compresses `raw` and appends the result to `out`, if it has at most `most` bytes. The result
    /// was decompressed and compared first, since the originals are deleted after this.
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

    /// Compresses `raw` and appends the result to `out`, if it has at most `most` bytes.
    #[cfg(not(feature = "zstd"))]
    pub(crate) fn compress(&mut self, _: &[u8], _: usize, _: &mut Vec<u8>) -> bool {
        false
    }
}

/// Simulates a build without the codec in one that has it.
#[cfg(test)]
pub(crate) mod absent {
    use core::cell::Cell;

    thread_local! {
        pub(crate) static ABSENT: Cell<bool> = const { Cell::new(false) };
    }

    /// Calls `what` in a thread that acts as if it had no codec.
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
    fn a_build_without_the_codec_names_the_feature_whatever_the_bytes() {
        let missing = Err(Unreadable::NeedsFeature("zstd"));
        absent::during(|| {
            assert_eq!(decompress(ZSTD, b"anything", &mut [0; 8]), missing);
            assert!(!has_zstd());
        });
    }
}
