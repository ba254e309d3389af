//! Reading and writing little-endian fields without indexing and without panics.

use crate::error::Damage;
use crate::types::{InvalidId, MAX_ID_LEN};

/// The result of a decoder: a failure is only the damage, since the caller knows the place.
pub type Decoded<T> = Result<T, Damage>;

/// A cursor over untrusted bytes: each read is checked and advances.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A cursor at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// A cursor at `at` of `bytes`; behind their end it reads nothing.
    pub(super) fn at(bytes: &'a [u8], at: usize) -> Self {
        Self::new(bytes.get(at..).unwrap_or_default())
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

    /// A byte that must be one of the codes that `known` accepts.
    pub fn code<T>(&mut self, known: impl FnOnce(u8) -> Option<T>) -> Decoded<T> {
        let code = self.u8()?;
        known(code).ok_or(Damage::UnknownCode { found: code.into() })
    }

    /// UTF-8 text of `len` bytes.
    pub fn text(&mut self, len: usize) -> Decoded<&'a str> {
        core::str::from_utf8(self.bytes(len)?).map_err(|_| Damage::NotUtf8)
    }

    /// An id of `len` bytes, constructed by `new`.
    pub fn id<T>(
        &mut self,
        len: usize,
        new: impl FnOnce(&str) -> Result<T, InvalidId>,
    ) -> Decoded<T> {
        let (found, max) = (len as u64, MAX_ID_LEN as u64);
        new(self.text(len)?).map_err(|_| Damage::OutOfRange { found, max })
    }

    /// Skips `len` bytes that must be zero.
    pub fn zeros(&mut self, len: usize) -> Decoded<&mut Self> {
        check_zeros(self.bytes(len)?)?;
        Ok(self)
    }

    /// The bytes that were not read yet.
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

    /// Appends bytes unchanged.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.out.extend_from_slice(bytes);
        self
    }

    /// The length of an id, in two bytes.
    pub fn id_len(&mut self, id: &str) -> &mut Self {
        self.u16(u16::try_from(id.len()).expect("ids are at most 512 bytes"))
    }

    /// `len` zero bytes.
    pub fn zeros(&mut self, len: usize) -> &mut Self {
        self.out.resize(self.out.len() + len, 0);
        self
    }
}

/// Reads and writes integers of these types.
macro_rules! integers {
    ($($int:ident)*) => {
        impl Reader<'_> {
            $(#[doc = concat!("The next bytes as a `", stringify!($int), "`.")]
            pub fn $int(&mut self) -> Decoded<$int> {
                Ok($int::from_le_bytes(self.array()?))
            })*
        }

        impl Writer<'_> {
            $(#[doc = concat!("The bytes of a `", stringify!($int), "`.")]
            pub fn $int(&mut self, value: $int) -> &mut Self {
                self.bytes(&value.to_le_bytes())
            })*
        }
    };
}
integers!(u8 u16 u32 u64 i64);

/// The bytes of a structure: `magic` and fields, zeros up to `checked`, the crc32 of these, and
/// zeros up to `len`.
pub fn put_checked<const N: usize>(
    magic: &[u8; N],
    (checked, len): (usize, usize),
    fields: impl FnOnce(&mut Writer<'_>),
) -> Vec<u8> {
    let mut out = Vec::with_capacity(len);
    fields(Writer::new(&mut out).bytes(magic));
    assert!(out.len() <= checked, "the fields of a structure have their place");
    out.resize(checked, 0);
    let crc = crc32fast::hash(&out);
    Writer::new(&mut out).u32(crc);
    out.resize(len, 0);
    out
}

/// Opens what [`put_checked`] wrote: checks it, and returns a reader of the fields and the zeros up
/// to `checked`.
pub fn open_checked<'a, const N: usize>(
    bytes: &'a [u8],
    magic: &[u8; N],
    checked: usize,
) -> Decoded<Reader<'a>> {
    if Reader::new(bytes).array()? != *magic {
        return Err(Damage::Magic);
    }
    let (covered, rest) = bytes.split_at_checked(checked).ok_or(Damage::Truncated)?;
    check_crc(Reader::new(rest).u32()?, crc32fast::hash(covered))?;
    Ok(Reader::new(covered.get(N..).unwrap_or_default()))
}

/// The four bytes at `at`.
pub fn u32_at(bytes: &[u8], at: usize) -> Decoded<u32> {
    Reader::at(bytes, at).u32()
}

/// `len` as a four-byte length field. Every length is checked against its limit before it is
/// encoded, so it always fits.
pub fn len_u32(len: usize) -> u32 {
    u32::try_from(len).expect("lengths are checked against their limits before encoding")
}

/// The first of `count` sorted items that is not below the searched one.
pub fn first_of<E>(count: u32, below: impl Fn(u32) -> Result<bool, E>) -> Result<u32, E> {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if below(middle)? { low = middle + 1 } else { high = middle }
    }
    Ok(low)
}

/// Refuses a number above the largest that is possible.
pub fn at_most(found: impl Into<u64>, max: impl Into<u64>) -> Decoded<()> {
    let (found, max) = (found.into(), max.into());
    if found > max { Err(Damage::OutOfRange { found, max }) } else { Ok(()) }
}

/// Refuses bits that no writer sets.
pub fn check_flags(flags: impl Into<u32>, known: impl Into<u32>) -> Decoded<()> {
    if flags.into() & !known.into() == 0 { Ok(()) } else { Err(Damage::ReservedNotZero) }
}

/// Refuses bytes that are not zero.
pub fn check_zeros(bytes: &[u8]) -> Decoded<()> {
    if bytes.iter().all(|&byte| byte == 0) { Ok(()) } else { Err(Damage::ReservedNotZero) }
}

/// Compares a stored checksum with that of the bytes.
pub fn check_crc(stored: u32, found: u32) -> Decoded<()> {
    if stored == found { Ok(()) } else { Err(Damage::Checksum { expected: stored, found }) }
}
