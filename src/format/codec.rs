//! Reading and writing little-endian fields without indexing and without panics.
//!
//! - [`Reader`]: a cursor over untrusted bytes; each read is checked and advances.
//! - [`Writer`]: appends fields to a buffer.
//! - [`u16_at`], [`u32_at`], [`u64_at`]: single fields of a table that is searched in place.

use crate::error::Damage;

/// What a decoder answers: the damage only; the caller knows the place.
pub type Decoded<T> = Result<T, Damage>;

/// A cursor over untrusted bytes.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A cursor at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Decoded<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(Damage::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    /// The next `N` bytes as an array.
    pub fn array<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(Damage::Truncated)?;
        self.rest = rest;
        Ok(*head)
    }

    /// One byte.
    pub fn u8(&mut self) -> Decoded<u8> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    /// Two bytes.
    pub fn u16(&mut self) -> Decoded<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Four bytes.
    pub fn u32(&mut self) -> Decoded<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> Decoded<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Eight bytes, signed.
    pub fn i64(&mut self) -> Decoded<i64> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    /// UTF-8 text of `len` bytes.
    pub fn text(&mut self, len: usize) -> Decoded<&'a str> {
        core::str::from_utf8(self.bytes(len)?).map_err(|_| Damage::NotUtf8)
    }

    /// Skips `len` bytes that must be zero.
    pub fn zeros(&mut self, len: usize) -> Decoded<()> {
        if self.bytes(len)?.iter().any(|&b| b != 0) {
            return Err(Damage::ReservedNotZero);
        }
        Ok(())
    }

    /// What was not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

/// Appends fields to a buffer.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> Writer<'a> {
    /// Appends to `out`.
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out }
    }

    /// Bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.out.extend_from_slice(bytes);
        self
    }

    /// One byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    /// Two bytes.
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Four bytes.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Eight bytes.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Eight bytes, signed.
    pub fn i64(&mut self, value: i64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// `len` zero bytes.
    pub fn zeros(&mut self, len: usize) -> &mut Self {
        self.out.resize(self.out.len() + len, 0);
        self
    }
}

/// The two bytes at `at`.
pub fn u16_at(bytes: &[u8], at: usize) -> Decoded<u16> {
    Reader::new(bytes.get(at..).unwrap_or_default()).u16()
}

/// The four bytes at `at`.
pub fn u32_at(bytes: &[u8], at: usize) -> Decoded<u32> {
    Reader::new(bytes.get(at..).unwrap_or_default()).u32()
}

/// The eight bytes at `at`.
pub fn u64_at(bytes: &[u8], at: usize) -> Decoded<u64> {
    Reader::new(bytes.get(at..).unwrap_or_default()).u64()
}

/// `len` as the four-byte length of a field. Every length is checked against its limit before it
/// is encoded, so that it always fits.
pub fn len_u32(len: usize) -> u32 {
    u32::try_from(len).expect("lengths are checked against their limits before encoding")
}

/// Compares a stored checksum with that of the bytes.
pub fn check_crc(stored: u32, found: u32) -> Decoded<()> {
    if stored == found { Ok(()) } else { Err(Damage::Checksum { expected: stored, found }) }
}
