//! A file to import, and its bytes: unpacked if it is compressed, and as UTF-8 without a byte order
//! mark. A short file is read once and stays in memory, a long one is read as its lines are needed.

use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Cursor, Read, Seek};
use std::os::unix::fs::FileExt as _;

use flate2::read::MultiGzDecoder;
use runlog::Timestamp;
use runlog_stores::json_lines::{Lines, LinesError};
use sha2::{Digest as _, Sha256};

use crate::formats::encoding::Encoding;
use crate::formats::origin::{digest, digest_text};
use crate::formats::probe::{HEAD, Known, MAX_DOCUMENT, probe};

use super::refusal::{FileError, Refusal};

/// The longest file that is read at once.
const SHORT: u64 = 8 << 20;

/// What compressed files begin with.
const GZIP: &[u8] = b"\x1f\x8b";
const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";

/// A file, as far as it went when it was opened.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) file: File,
    /// How many bytes of text there are to read.
    len: u64,
    /// How many bytes the file has, unpacked.
    pub(crate) unpacked_len: u64,
    pub(crate) modified: Timestamp,
    pub(crate) encoding: Encoding,
    is_packed: bool,
    /// All of it, if it is short, or not read as it is.
    whole: Option<Vec<u8>>,
}

impl Input {
    /// A file, from its beginning on, wherever it stands.
    pub(crate) fn new(mut file: File, metadata: &Metadata) -> Result<Self, FileError> {
        let (len, modified) = (metadata.len(), Timestamp::from(metadata.modified()?));
        let mut head = vec![0; usize::try_from(len.min(4)).unwrap_or_default()];
        file.read_exact_at(&mut head, 0)?;
        file.rewind()?;
        let packed = match &*head {
            head if head.starts_with(GZIP) => {
                Some(unpack("gzip", &mut MultiGzDecoder::new(&mut file))?)
            }
            head if head.starts_with(ZSTD) => {
                Some(unpack("zstd", &mut zstd::Decoder::new(&mut file)?)?)
            }
            _ => None,
        };
        let is_packed = packed.is_some();
        let encoding = Encoding::of(packed.as_deref().unwrap_or(&head));
        let whole = match packed {
            Some(bytes) => Some(bytes),
            None if len <= SHORT => Some(read(&file, len)?),
            None if encoding.is_plain() => None,
            None if len <= MAX_DOCUMENT => Some(read(&file, len)?),
            None if encoding == Encoding::Utf8Mark => None,
            None => return Err(too_long("UTF-16", "convert it to UTF-8")),
        };
        let encoding = if whole.is_some() { encoding } else { Encoding::Utf8 };
        let unpacked_len = whole.as_ref().map_or(len, |bytes| bytes.len() as u64);
        let whole = match whole {
            None => None,
            Some(bytes) => Some(encoding.decode(bytes).ok_or(Refusal::NotUtf16)?),
        };
        let len = whole.as_ref().map_or(len, |bytes| bytes.len() as u64);
        Ok(Self { file, len, unpacked_len, modified, encoding, is_packed, whole })
    }

    /// What it is, by its content and its name.
    pub(crate) fn probe(&self, name: &str) -> io::Result<Known> {
        let whole =
            || self.whole.as_ref().map_or_else(|| read(&self.file, self.len), |w| Ok(w.clone()));
        let head = match &self.whole {
            Some(bytes) => &bytes[..],
            None => &read(&self.file, HEAD)?,
        };
        let len = usize::try_from(HEAD).map_or(head.len(), |most| most.min(head.len()));
        probe(head.get(..len).unwrap_or_default(), self.len, name, &whole)
    }

    /// All of it, if it is short.
    pub(crate) fn whole(&self) -> Option<&[u8]> {
        self.whole.as_deref()
    }

    /// Whether the bytes of the file are those that are read.
    pub(crate) fn is_as_it_lies(&self) -> bool {
        !self.is_packed && self.encoding.is_plain()
    }

    /// Whether it begins with these bytes.
    pub(crate) fn begins_with(&self, bytes: &[u8]) -> bool {
        match &self.whole {
            Some(whole) => whole.starts_with(bytes),
            None => {
                let mut begin = vec![0; bytes.len()];
                self.file.read_exact_at(&mut begin, 0).is_ok() && begin == bytes
            }
        }
    }

    /// Whether all of it is what another one begins with.
    pub(crate) fn is_beginning_of(&self, other: &Self) -> Result<bool, FileError> {
        if let (Some(own), Some(other)) = (&self.whole, &other.whole) {
            return Ok(other.starts_with(own));
        }
        if self.len > other.len {
            return Ok(false);
        }
        let (mut own, mut begin) = (self.bytes()?, other.bytes()?);
        let (mut a, mut b) = (vec![0; 64 << 10], vec![0; 64 << 10]);
        loop {
            let len = own.read(&mut a)?;
            let (Some(a), Some(b)) = (a.get(..len), b.get_mut(..len)) else { return Ok(false) };
            begin.read_exact(b)?;
            if len == 0 || a != b {
                return Ok(a == b);
            }
        }
    }

    /// All bytes, one after the other.
    fn bytes(&self) -> io::Result<Box<dyn Read + '_>> {
        if let Some(whole) = &self.whole {
            return Ok(Box::new(&**whole));
        }
        let mut file = self.file.try_clone()?;
        file.rewind()?;
        Ok(Box::new(io::BufReader::new(file).take(self.len)))
    }

    /// The digest of the file, unpacked.
    pub(crate) fn digest(&self) -> io::Result<String> {
        if let Some(whole) = &self.whole {
            return Ok(digest(&self.encoding.encode(whole)));
        }
        let (mut hash, mut some, mut bytes) = (Sha256::new(), vec![0; 64 << 10], self.bytes()?);
        loop {
            let len = bytes.read(&mut some)?;
            if len == 0 {
                return Ok(digest_text(&hash.finalize()));
            }
            hash.update(some.get(..len).unwrap_or_default());
        }
    }

    /// Its lines, and the file itself.
    pub(crate) fn into_lines(self) -> Result<(FileLines, File), LinesError> {
        let bytes: Box<dyn Bytes> = match self.whole {
            Some(bytes) => Box::new(Cursor::new(bytes)),
            None => {
                // It may be mostly holes.
                Lines::of_file(self.file.try_clone()?)?;
                Box::new(self.file.try_clone()?)
            }
        };
        Ok((Lines::new(bytes, self.len), self.file))
    }
}

/// The bytes of a file, in memory or not.
pub(crate) trait Bytes: Read + Seek + fmt::Debug {}

impl<R: Read + Seek + fmt::Debug> Bytes for R {}

/// The lines of a file, from the first one or from an offset on.
pub(crate) type FileLines = Lines<Box<dyn Bytes>>;

/// All that a compressed file has.
fn unpack(what: &'static str, packed: &mut dyn Read) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    let read = packed.take(MAX_DOCUMENT + 1).read_to_end(&mut bytes);
    read.map_err(|error| Refusal::Packed { what, why: error.to_string() })?;
    if bytes.len() as u64 > MAX_DOCUMENT {
        return Err(too_long(what, "unpack it, and import what comes out"));
    }
    Ok(bytes)
}

fn too_long(what: &'static str, advice: &'static str) -> FileError {
    Refusal::TooLong { what, advice }.into()
}

fn read(file: &File, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(len).unwrap_or_default()];
    file.read_exact_at(&mut bytes, 0).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            io::Error::new(error.kind(), "the file became shorter while it was read")
        }
        _ => error,
    })?;
    Ok(bytes)
}
