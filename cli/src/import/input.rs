//! A file to import: what it is, and its bytes, unpacked if it is compressed, and as UTF-8 without
//! a byte order mark. Of a long file that is nothing to import only the first bytes are read.

use std::fs::{File, Metadata};
use std::io::{self, Read, Seek as _, SeekFrom};

use flate2::read::MultiGzDecoder;
use runlog::Timestamp;
use runlog_stores::json_lines::Lines;

use crate::formats::Format;
use crate::formats::encoding::Encoding;
use crate::formats::probe::{HEAD, Known, MAX_DOCUMENT, probe};
use crate::output::size;

use super::refusal::FileError;

/// The longest file that is read before it is known what it is.
const SHORT: u64 = 8 << 20;

/// The first bytes of compressed files.
const GZIP: &[u8] = b"\x1f\x8b";
const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";

/// A file, as far as it went when it was opened.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) known: Known,
    /// All of it, if it has lines or is short.
    bytes: Vec<u8>,
    pub(crate) modified: Timestamp,
    pub(crate) encoding: Encoding,
    is_packed: bool,
}

impl Input {
    /// A file of this name.
    pub(crate) fn new(file: &File, metadata: &Metadata, name: &str) -> Result<Self, FileError> {
        let (mut len, modified) = (metadata.len(), Timestamp::from(metadata.modified()?));
        let mut bytes = read(file, 0, if len <= SHORT { len } else { HEAD })?;
        let packed = unpacked(file, &bytes)?;
        let is_packed = packed.is_some();
        if let Some(unpacked) = packed {
            (len, bytes) = (unpacked.len() as u64, unpacked);
        }
        let encoding = Encoding::of(&bytes);
        if !encoding.is_plain() {
            if (bytes.len() as u64) < len {
                if len > MAX_DOCUMENT && encoding != Encoding::Utf8Mark {
                    return Err(too_long("UTF-16", "convert it to UTF-8"));
                }
                bytes = read_lines(file, len)?;
            }
            bytes = encoding.decode(bytes).ok_or_else(|| {
                let why = "it begins with the mark of UTF-16, and is not valid UTF-16";
                FileError::not_yet(format!("{why}; nothing of it was imported"))
            })?;
            len = bytes.len() as u64;
        }
        let is_whole = bytes.len() as u64 == len;
        let whole = || if is_whole { Ok(bytes.clone()) } else { read(file, 0, len) };
        let head = bytes.get(..usize::try_from(HEAD).unwrap_or_default()).unwrap_or(&bytes);
        let known = probe(head, len, name, &whole)?;
        if matches!(known, Known::Lines(_)) && !is_whole {
            bytes = read_lines(file, len)?;
        }
        Ok(Self { known, bytes, modified, encoding, is_packed })
    }

    /// All of it, if it can be imported.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.known {
            Known::Document(_, text) => text.as_bytes(),
            Known::Archive(bytes) => bytes,
            Known::Lines(_) | Known::Store | Known::Unknown(_) => &self.bytes,
        }
    }

    pub(crate) fn format(&self) -> Option<Format> {
        match &self.known {
            Known::Lines(format) | Known::Document(format, _) => Some(*format),
            Known::Archive(_) => Some(Format::InspectEval),
            Known::Store | Known::Unknown(_) => None,
        }
    }

    /// Whether its bytes are those of the file.
    pub(crate) fn is_as_it_lies(&self) -> bool {
        !self.is_packed && self.encoding.is_plain()
    }
}

/// All that a compressed file has; `None` of another one.
fn unpacked(mut file: &File, head: &[u8]) -> Result<Option<Vec<u8>>, FileError> {
    file.rewind()?;
    let (what, packed): (_, Box<dyn Read>) = match head {
        head if head.starts_with(GZIP) => ("gzip", Box::new(MultiGzDecoder::new(file))),
        head if head.starts_with(ZSTD) => ("zstd", Box::new(zstd::Decoder::new(file)?)),
        _ => return Ok(None),
    };
    let mut bytes = Vec::new();
    let read = packed.take(MAX_DOCUMENT + 1).read_to_end(&mut bytes);
    read.map_err(|error| {
        let why = format!("{what} data that cannot be unpacked: {error}");
        FileError::not_yet(why + "; nothing of it was imported")
    })?;
    if bytes.len() as u64 > MAX_DOCUMENT {
        return Err(too_long(what, "unpack it, and import what comes out"));
    }
    Ok(Some(bytes))
}

fn too_long(what: &str, advice: &str) -> FileError {
    FileError::refused(format!("{what} of more than {}; {advice}", size(MAX_DOCUMENT)))
}

/// So many bytes of a file, unless most of them are holes.
fn read_lines(file: &File, len: u64) -> Result<Vec<u8>, FileError> {
    Lines::of_file(file.try_clone()?)?;
    Ok(read(file, 0, len)?)
}

/// So many bytes of a file, from a place on.
pub(crate) fn read(mut file: &File, from: u64, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(usize::try_from(len).unwrap_or(usize::MAX))?;
    file.seek(SeekFrom::Start(from))?;
    file.take(len).read_to_end(&mut bytes)?;
    if (bytes.len() as u64) < len {
        let shorter = "the file became shorter while it was read";
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, shorter));
    }
    Ok(bytes)
}
