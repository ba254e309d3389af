//! A file to import: what it is, and its text, unpacked if it is compressed, and as UTF-8 without
//! a byte order mark. A long file of lines stays on the disk. Of a long file that is nothing to
//! import only the first bytes are read.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek as _, SeekFrom};

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

/// The longest file of lines that is held in memory.
pub(crate) const IN_MEMORY: u64 = 64 << 20;

/// The first bytes of compressed files.
const GZIP: &[u8] = b"\x1f\x8b";
const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";

/// A file, as far as it went when it was opened.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) known: Known,
    /// All of it, if it has lines or is short.
    pub(crate) text: Text,
    /// How many bytes it has, unpacked.
    pub(crate) len: u64,
    pub(crate) modified: Timestamp,
    pub(crate) encoding: Encoding,
    is_packed: bool,
}

/// The text of a file.
#[derive(Debug)]
pub(crate) enum Text {
    InMemory(Vec<u8>),
    /// The bytes of a file from a place on, and how many.
    OnDisk(File, u64, u64),
}

impl Text {
    /// So many bytes of a file, from a place on; in memory, if they are no more than these.
    pub(crate) fn new(file: &File, (from, len): (u64, u64), in_memory: u64) -> io::Result<Self> {
        if len <= in_memory {
            return Ok(Self::InMemory(read(file, from, len)?));
        }
        Ok(Self::OnDisk(file.try_clone()?, from, len))
    }
}

impl Input {
    /// A file of this name. Its lines stay on the disk, if it has more bytes than these.
    pub(crate) fn new(file: &File, name: &str, in_memory: u64) -> Result<Self, FileError> {
        let metadata = file.metadata()?;
        let (mut len, modified) = (metadata.len(), Timestamp::from(metadata.modified()?));
        let mut bytes = read(file, 0, if len <= SHORT { len } else { HEAD })?;
        let packed = unpacked(file, &bytes)?;
        let is_packed = packed.is_some();
        if let Some(unpacked) = packed {
            (len, bytes) = (unpacked.len() as u64, unpacked);
        }
        let (encoding, all) = (Encoding::of(&bytes), len);
        let is_utf8 = matches!(encoding, Encoding::Utf8 | Encoding::Utf8Mark);
        if !is_utf8 && (bytes.len() as u64) < len {
            if len > MAX_DOCUMENT {
                return Err(too_long("UTF-16", "convert it to UTF-8"));
            }
            Lines::of_file(file.try_clone()?)?;
            bytes = read(file, 0, len)?;
        }
        bytes = encoding.decode(bytes).ok_or_else(|| {
            let why = "it begins with the mark of UTF-16, and is not valid UTF-16";
            FileError::not_yet(format!("{why}; nothing of it was imported"))
        })?;
        let from = encoding.mark().len() as u64;
        len = if is_utf8 { len - from } else { bytes.len() as u64 };
        let is_whole = bytes.len() as u64 == len;
        let whole = || if is_whole { Ok(bytes.clone()) } else { read(file, from, len) };
        let head = bytes.get(..usize::try_from(HEAD).unwrap_or_default()).unwrap_or(&bytes);
        let known = probe(head, len, name, &whole)?;
        let mut text = Text::InMemory(bytes);
        let has_lines = matches!(known, Known::Lines(_));
        if has_lines && is_utf8 && !is_packed && (!is_whole || len > in_memory) {
            Lines::of_file(file.try_clone()?)?;
            text = Text::new(file, (from, len), in_memory)?;
        }
        Ok(Self { known, text, len: all, modified, encoding, is_packed })
    }

    /// All of it, from the first byte on.
    pub(crate) fn open(&self) -> io::Result<Box<dyn BufRead + '_>> {
        Ok(match (&self.known, &self.text) {
            (Known::Document(_, text), _) => Box::new(text.as_bytes()),
            (Known::Archive(bytes), _) | (_, Text::InMemory(bytes)) => Box::new(&bytes[..]),
            (_, Text::OnDisk(file, from, len)) => {
                Box::new(BufReader::new(seek(file, *from)?).take(*len))
            }
        })
    }

    /// Whether another one begins with all of it.
    pub(crate) fn is_beginning_of(&self, other: &Self) -> io::Result<bool> {
        let (mut own, mut other) = (self.open()?, other.open()?);
        loop {
            let (own_bytes, bytes) = (own.fill_buf()?, other.fill_buf()?);
            let len = own_bytes.len().min(bytes.len());
            if len == 0 || own_bytes.get(..len) != bytes.get(..len) {
                return Ok(own_bytes.is_empty());
            }
            own.consume(len);
            other.consume(len);
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

/// A file that is read from a place on.
pub(crate) fn seek(mut file: &File, from: u64) -> io::Result<&File> {
    file.seek(SeekFrom::Start(from))?;
    Ok(file)
}

/// So many bytes of a file, from a place on.
pub(crate) fn read(file: &File, from: u64, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(usize::try_from(len).unwrap_or(usize::MAX))?;
    seek(file, from)?.take(len).read_to_end(&mut bytes)?;
    if (bytes.len() as u64) < len {
        let shorter = "the file became shorter while it was read";
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, shorter));
    }
    Ok(bytes)
}
