//! Files of JSON Lines as lines, byte for byte, with memory for the longest line only.
//!
//! The bytes between two newlines are a line, whether they are JSON or not; the last line may lack
//! its newline. So the lines and their endings give the whole file. Another program may still write
//! to it: [`Lines`] stops where the file ended when it was opened, and returns an error if it
//! became shorter.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = std::env::temp_dir().join(format!("runlog-doc-lines-{}", std::process::id()));
//! use runlog_stores::json_lines::{Ending, Lines};
//!
//! std::fs::write(&path, "{\"a\":1}\n{\"a\":")?;
//! let mut lines = Lines::of_file(std::fs::File::open(&path)?)?;
//! lines.check()?; // no line is too long
//! let mut line = Vec::new();
//! assert_eq!(lines.read_onto(&mut line)?, Some(Ending::Newline));
//! assert_eq!(line, b"{\"a\":1}");
//! assert_eq!(lines.read_onto(&mut line)?, Some(Ending::EndOfFile));
//! assert_eq!(lines.read_onto(&mut line)?, None);
//! # std::fs::remove_file(&path)?;
//! # Ok(()) }
//! ```

use core::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, Take};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// The longest line that is read: the longest record by default.
pub const MAX_LINE: u64 = 64 << 20;

/// How many bytes of a file may be holes. A crash leaves some at the end of a file. A file with
/// more is not a file of lines, and could make a store as large as its stated length.
pub const MAX_HOLES: u64 = 64 << 20;

/// The kind of the record of a last line without a newline, which may be a part of a line.
pub const UNTERMINATED: &str = "unterminated-line";

const BUFFER: usize = 256 << 10;

/// How a line ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// By a newline.
    Newline,
    /// By the end of the file: only the last line can.
    EndOfFile,
}

/// Why a file cannot be read as lines.
#[derive(Debug)]
#[non_exhaustive]
pub enum LinesError {
    /// A line is longer than [`MAX_LINE`]. The caller should leave the file alone.
    TooLong {
        /// The number of the line, from 1.
        line: u64,
    },
    /// More than [`MAX_HOLES`] of the file are holes, which no program wrote. The caller should
    /// leave the file alone.
    Sparse,
    /// The file cannot be read, or became shorter (`UnexpectedEof`). The caller may try again.
    Io(io::Error),
}

impl fmt::Display for LinesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { line } => write!(f, "line {line} is longer than {MAX_LINE} bytes"),
            Self::Sparse => write!(f, "more than {MAX_HOLES} bytes of the file are holes"),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LinesError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        if let Self::Io(error) = self { Some(error) } else { None }
    }
}

impl From<io::Error> for LinesError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The lines of a file. See the [module](self).
#[derive(Debug)]
pub struct Lines<R> {
    reader: Take<BufReader<R>>,
    len: u64,
    number: u64,
}

impl Lines<File> {
    /// The lines of a regular file, from the first to the one that is the last now.
    ///
    /// # Errors
    /// [`LinesError::Sparse`], [`LinesError::Io`].
    pub fn of_file(mut file: File) -> Result<Self, LinesError> {
        let len = file.metadata()?.len();
        if has_many_holes(&file, len)? {
            return Err(LinesError::Sparse);
        }
        file.rewind()?;
        Ok(Self::new(file, len))
    }
}

impl<R: Read> Lines<R> {
    /// The lines of the next `len` bytes.
    pub fn new(reader: R, len: u64) -> Self {
        // No larger than what there is to read.
        let buffer = usize::try_from(len).map_or(BUFFER, |len| len.clamp(1, BUFFER));
        Self { reader: BufReader::with_capacity(buffer, reader).take(len), len, number: 0 }
    }

    /// The bytes of all lines and newlines.
    pub fn total_bytes(&self) -> u64 {
        self.len
    }

    /// The number of the line that was read last, from 1; 0 before the first.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Appends the next line without its newline to `buffer`; `None` at the end.
    ///
    /// # Errors
    /// [`LinesError::TooLong`]; [`LinesError::Io`], with `UnexpectedEof` if the file has become
    /// shorter. Then a part of the line may be in the buffer.
    pub fn read_onto(&mut self, buffer: &mut Vec<u8>) -> Result<Option<Ending>, LinesError> {
        let read = self.reader.by_ref().take(MAX_LINE + 1).read_until(b'\n', buffer)? as u64;
        if read > 0 && buffer.pop_if(|last| *last == b'\n').is_some() {
            self.number += 1;
            return Ok(Some(Ending::Newline));
        }
        if read > MAX_LINE {
            return Err(LinesError::TooLong { line: self.number + 1 });
        }
        if self.reader.limit() > 0 {
            let shorter = "the file became shorter while it was read";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, shorter).into());
        }
        self.number += u64::from(read > 0);
        Ok((read > 0).then_some(Ending::EndOfFile))
    }
}

impl<R: Read + Seek> Lines<R> {
    /// Goes back to the first line.
    ///
    /// # Errors
    /// [`LinesError::Io`].
    pub fn rewind(&mut self) -> Result<(), LinesError> {
        self.reader.get_mut().rewind()?;
        self.reader.set_limit(self.len);
        self.number = 0;
        Ok(())
    }

    /// Reads all lines that are left and goes back to the first: whether they can be read.
    ///
    /// # Errors
    /// As [`Lines::read_onto`].
    pub fn check(&mut self) -> Result<(), LinesError> {
        let mut line = Vec::new();
        while self.read_onto(&mut line)?.is_some() {
            line.clear();
        }
        self.rewind()
    }
}

/// Whether more than [`MAX_HOLES`] of the first `len` bytes are holes, as far as the system tells.
/// What is not in holes takes space on the disk, so that it bounds the work.
fn has_many_holes(file: &File, len: u64) -> io::Result<bool> {
    let (mut at, mut holes) = (0, 0);
    while at < len {
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) => data.clamp(at, len),
            Err(Errno::NXIO) => len,
            // This file system knows of no holes.
            Err(Errno::INVAL | Errno::NOTSUP) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        holes += data - at;
        if holes > MAX_HOLES {
            return Ok(true);
        }
        at = match seek(file, SeekFrom::Hole(data)) {
            Ok(hole) => hole.max(data + 1),
            // It became shorter.
            Err(Errno::NXIO) => len,
            Err(error) => return Err(error.into()),
        };
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn lines(bytes: &[u8]) -> Vec<(Vec<u8>, Ending)> {
        let mut lines = Lines::new(Cursor::new(bytes), bytes.len() as u64);
        lines.check().expect("lines");
        let mut all = Vec::new();
        loop {
            let mut line = Vec::new();
            match lines.read_onto(&mut line).expect("a line") {
                Some(ending) => all.push((line, ending)),
                None => return all,
            }
            assert_eq!(lines.number(), all.len() as u64);
        }
    }

    #[test]
    fn every_byte_is_in_a_line_or_is_its_newline() {
        use Ending::{EndOfFile, Newline};
        assert_eq!(lines(b""), []);
        assert_eq!(lines(b"\n"), [(vec![], Newline)]);
        assert_eq!(
            lines(b"a\r\n\n\0b"),
            [(b"a\r".to_vec(), Newline), (vec![], Newline), (b"\0b".to_vec(), EndOfFile)]
        );
    }

    #[test]
    fn a_line_that_is_too_long_ends_the_look() {
        let too_long = |len: u64, ending: &'static [u8]| {
            let reader = (&b"ab\n"[..]).chain(io::repeat(0).take(len)).chain(ending);
            let mut lines = Lines::new(reader, 3 + len + ending.len() as u64);
            let mut line = Vec::new();
            assert_eq!(lines.read_onto(&mut line).expect("a line"), Some(Ending::Newline));
            match lines.read_onto(&mut line) {
                Err(LinesError::TooLong { line }) => Some(line),
                Ok(Some(_)) => None,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(too_long(MAX_LINE, b""), None);
        assert_eq!(too_long(MAX_LINE, b"\n"), None);
        assert_eq!(too_long(MAX_LINE + 1, b""), Some(2));
        assert_eq!(too_long(MAX_LINE + 1, b"\n"), Some(2));
    }

    #[test]
    fn a_file_that_grows_is_read_as_far_as_it_was_seen() {
        let mut lines = Lines::new(&b"ab\ncd\n"[..], 4);
        let mut buffer = Vec::new();
        assert_eq!(lines.read_onto(&mut buffer).expect("a line"), Some(Ending::Newline));
        assert_eq!(lines.read_onto(&mut buffer).expect("a line"), Some(Ending::EndOfFile));
        assert_eq!(lines.read_onto(&mut buffer).expect("the end"), None);
        assert_eq!(buffer, b"abc");
    }

    #[test]
    fn a_file_that_shrinks_is_an_error() {
        let mut lines = Lines::new(&b"ab"[..], 4);
        match lines.read_onto(&mut Vec::new()) {
            Err(LinesError::Io(error)) => assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof),
            other => panic!("{other:?}"),
        }
    }
}
