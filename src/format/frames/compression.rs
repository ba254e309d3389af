//! The codec of compressed bytes: frames of zstd (RFC 8878).
//!
//! - A decoder and an encoder in Rust are part of each build. The feature `zstd` adds the C
//!   library, for levels that the encoder in Rust does not have. Whichever wrote a frame, the same
//!   decoder reads it.
//! - The caller says how long the output is, and any other length is an error. Lengths in the
//!   compressed bytes are not trusted for allocations.

use core::cell::RefCell;
use core::fmt;
use core::ops::RangeInclusive;

use zrip::{CompressContext, DecompressContext};

use crate::error::Damage;
use crate::format::codec::Decoded;

/// The code of zstd.
pub const ZSTD: u8 = 1;
/// The levels of zstd that a caller can choose.
pub const ZSTD_LEVELS: RangeInclusive<i32> = 1..=19;
/// The highest level that each build has.
const PLAIN_LEVELS: i32 = 4;
/// The Cargo feature with which a build has the other levels.
pub const ZSTD_FEATURE: &str = "zstd";

/// Whether this build can compress at a level of [`ZSTD_LEVELS`].
pub fn has_level(level: i32) -> bool {
    level <= PLAIN_LEVELS || cfg!(feature = "zstd")
}

/// Decompresses and appends the result to `out`. It must have `len` bytes.
///
/// # Errors
/// [`Damage::UnknownCode`] for another codec; [`Damage::Undecodable`] if the result differs in
/// length. Then `out` is as before.
pub fn decompress(codec: u8, compressed: &[u8], len: usize, out: &mut Vec<u8>) -> Decoded<()> {
    if codec != ZSTD {
        return Err(Damage::UnknownCode { found: codec.into() });
    }
    // One per thread: the context is large, and keeps no state between calls.
    thread_local! {
        static KEPT: RefCell<Option<DecompressContext>> = const { RefCell::new(None) };
    }
    let start = out.len();
    let mut by = |kept: &mut Option<DecompressContext>| {
        let context = kept.get_or_insert_default();
        context.decompress_into_with_limit(compressed, out, len).ok()
    };
    // A thread that ends, and drops what it keeps of a store, may have lost its context.
    let found = match KEPT.try_with(|kept| by(&mut kept.borrow_mut())) {
        Ok(found) => found,
        Err(_) => by(&mut None),
    };
    if found == Some(len) && out.len() == start + len {
        return Ok(());
    }
    out.truncate(start);
    Err(Damage::Undecodable)
}

/// Compresses at one level.
pub struct Compressor {
    encoder: Encoder,
    /// The buffer for the check that the compressed bytes give the original again.
    back: Vec<u8>,
}

enum Encoder {
    Rust(Box<CompressContext>),
    #[cfg(feature = "zstd")]
    C(zstd::bulk::Compressor<'static>),
}

impl Compressor {
    /// A compressor; `None` if this build does not have the level.
    pub fn new(level: i32) -> Option<Self> {
        Some(Self { encoder: Encoder::new(level)?, back: Vec::new() })
    }

    /// Compresses `raw` and appends the result to `out`, if it has at most `most` bytes. The result
    /// was decompressed and compared first, since the originals are deleted after this.
    pub fn compress(&mut self, raw: &[u8], most: usize, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        out.resize(start + most, 0);
        let room = out.get_mut(start..).unwrap_or_default();
        let len = self.encoder.compress(raw, room);
        let compressed = room.get(..len.unwrap_or(0)).unwrap_or_default();
        self.back.clear();
        let same = decompress(ZSTD, compressed, raw.len(), &mut self.back).is_ok();
        let len = len.filter(|_| same && self.back == raw);
        out.truncate(start + len.unwrap_or(0));
        len.is_some()
    }
}

impl fmt::Debug for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compressor").finish_non_exhaustive()
    }
}

impl Encoder {
    fn new(level: i32) -> Option<Self> {
        if level <= PLAIN_LEVELS {
            let mut context = CompressContext::new(level).ok()?;
            // The bytes have a checksum of their own.
            context.set_content_checksum(false);
            return Some(Self::Rust(Box::new(context)));
        }
        #[cfg(feature = "zstd")]
        {
            let mut compressor = zstd::bulk::Compressor::new(level).ok()?;
            compressor.include_checksum(false).ok()?;
            Some(Self::C(compressor))
        }
        #[cfg(not(feature = "zstd"))]
        None
    }

    /// Writes a frame to the start of `room`; returns its length if it fits.
    fn compress(&mut self, raw: &[u8], room: &mut [u8]) -> Option<usize> {
        match self {
            Self::Rust(context) => context.compress_into(raw, room).ok(),
            #[cfg(feature = "zstd")]
            Self::C(compressor) => compressor.compress_to_buffer(raw, room).ok(),
        }
    }
}

#[cfg(all(test, feature = "zstd"))]
mod tests {
    use super::*;

    /// Text that repeats itself, and bytes that do not.
    fn samples() -> Vec<Vec<u8>> {
        let mut state = 1_u64;
        let mut random = move || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            state.to_be_bytes()[0]
        };
        let lens = [0, 1, 7, 255, 256, 4_000, 65_536, 131_071, 131_072, 131_073, 300_000];
        let text = |len: usize, step: u8| -> Vec<u8> {
            let line = |n: usize| {
                format!("{{\"seq\":{n},\"tool\":\"read\",\"ok\":{}}}\n", n.is_multiple_of(3))
            };
            (0..).flat_map(|n| line(n * usize::from(step)).into_bytes()).take(len).collect()
        };
        let mut all: Vec<Vec<u8>> = lens.iter().map(|len| text(*len, 1)).collect();
        all.extend(lens.iter().map(|len| text(*len, 251)));
        all.extend(lens.iter().map(|len| (0..*len).map(|_| random()).collect()));
        all.extend(lens.iter().map(|len| (0..*len).map(|_| random() % 4).collect()));
        all.extend(lens.iter().map(|len| vec![b'x'; *len]));
        all
    }

    #[test]
    fn what_one_zstd_wrote_another_one_reads() {
        let mut c = zstd::bulk::Decompressor::new().unwrap();
        for raw in samples() {
            for level in [1, 2, 3, 4, 5, 19] {
                let (mut packed, mut back) = (Vec::new(), Vec::new());
                let mut compressor = Compressor::new(level).unwrap();
                assert!(compressor.compress(&raw, raw.len() + 100, &mut packed), "{}", raw.len());
                assert_eq!(c.decompress(&packed, raw.len()).unwrap(), raw, "level {level}");
                let packed = zstd::bulk::compress(&raw, level).unwrap();
                decompress(ZSTD, &packed, raw.len(), &mut back).unwrap();
                assert!(back == raw, "{} bytes at level {level}", raw.len());
            }
        }
    }

    #[test]
    fn a_frame_that_is_not_whole_or_of_another_length_is_damage_and_leaves_the_output() {
        let raw: Vec<u8> = (0..90_000_u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
        let (mut packed, mut out) = (Vec::new(), b"before".to_vec());
        assert!(Compressor::new(3).unwrap().compress(&raw, raw.len(), &mut packed));
        for len in [0, 1, raw.len() - 1, raw.len() + 1] {
            assert_eq!(decompress(ZSTD, &packed, len, &mut out), Err(Damage::Undecodable), "{len}");
        }
        for end in (0..packed.len()).step_by(97) {
            let cut = packed.get(..end).unwrap();
            assert_eq!(decompress(ZSTD, cut, raw.len(), &mut out), Err(Damage::Undecodable));
        }
        let unknown = Err(Damage::UnknownCode { found: 2 });
        assert_eq!(decompress(2, &packed, raw.len(), &mut out), unknown);
        assert_eq!(out, b"before");
    }

    /// The checksum of a frame is in front of the decoder, so these bytes can only be an attack.
    #[test]
    fn hostile_bytes_neither_panic_nor_exceed_the_length() {
        let raw: Vec<u8> = (0..20_000_u32).flat_map(|n| (n % 977).to_le_bytes()).collect();
        let (mut packed, mut out) = (Vec::new(), Vec::new());
        assert!(Compressor::new(3).unwrap().compress(&raw, raw.len(), &mut packed));
        for at in 0..packed.len().min(3_000) {
            for flip in [1, 0x80, 0xff] {
                let mut changed = packed.clone();
                changed[at] ^= flip;
                let _ = decompress(ZSTD, &changed, raw.len(), &mut out);
                assert!(out.len() <= raw.len() && out.capacity() < 4 * raw.len());
                out.clear();
            }
        }
        // 100 GB of zeros, a window of 4 TB.
        let claim = [0x28, 0xb5, 0x2f, 0xfd, 0xc0, 0xff, 0, 0, 0, 0x48, 0x17, 0, 0, 0];
        assert!(decompress(ZSTD, &claim, raw.len(), &mut out).is_err());
        assert!(out.capacity() < 4 * raw.len());
    }
}
