//! A file as lines, with memory for the longest one only.
//!
//! A file may grow while it is read, since another program may still write it. [`survey`] fixes
//! how far it is read, and [`Lines`] stops there.

use std::io::{self, BufRead, BufReader, Read, Take};

const BUFFER: usize = 256 << 10;

/// What is known of a file after one look at all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Survey {
    /// The bytes that there were.
    pub(crate) len: u64,
    /// The number, counted from 1, of a line that is too long. The look ended there.
    pub(crate) too_long: Option<u64>,
}

/// Reads everything once and keeps nothing, or stops at a line of more than `max` bytes.
pub(crate) fn survey(reader: impl Read, max: u64) -> io::Result<Survey> {
    let mut reader = BufReader::with_capacity(BUFFER, reader);
    let mut survey = Survey::default();
    let (mut line, mut number) = (0, 1);
    loop {
        let bytes = match reader.fill_buf() {
            Ok([]) => return Ok(survey),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let is_end = piece.ends_with(b"\n");
            line += piece.len() as u64 - u64::from(is_end);
            if line > max {
                return Ok(Survey { too_long: Some(number), ..survey });
            }
            if is_end {
                (line, number) = (0, number + 1);
            }
        }
        let len = bytes.len();
        survey.len += len as u64;
        reader.consume(len);
    }
}

/// How a line ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// By a newline.
    Newline,
    /// By the end of the file: only the last line can.
    EndOfFile,
}

/// The lines of a file, up to where the survey got.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    reader: BufReader<Take<R>>,
    left: u64,
}

impl<R: Read> Lines<R> {
    pub(crate) fn new(reader: R, len: u64) -> Self {
        Self { reader: BufReader::with_capacity(BUFFER, reader.take(len)), left: len }
    }

    /// Appends the next line without its newline to `buffer`; nothing at the end.
    ///
    /// # Errors
    /// `UnexpectedEof` when the file has become shorter since it was surveyed.
    pub(crate) fn read_onto(&mut self, buffer: &mut Vec<u8>) -> io::Result<Option<Ending>> {
        let read = self.reader.read_until(b'\n', buffer)? as u64;
        self.left -= read;
        let has_newline = read > 0 && buffer.last() == Some(&b'\n');
        if has_newline {
            buffer.pop();
            return Ok(Some(Ending::Newline));
        }
        if self.left > 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the file became shorter while it was read",
            ));
        }
        Ok((read > 0).then_some(Ending::EndOfFile))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &[u8]) -> Vec<(Vec<u8>, Ending)> {
        let len = survey(bytes, u64::MAX).expect("a survey").len;
        assert_eq!(len, bytes.len() as u64);
        let mut lines = Lines::new(bytes, len);
        let mut all = Vec::new();
        loop {
            let mut line = Vec::new();
            match lines.read_onto(&mut line).expect("a line") {
                Some(ending) => all.push((line, ending)),
                None => return all,
            }
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
        let survey = |bytes: &'static [u8], max| survey(bytes, max).expect("a survey");
        assert_eq!(survey(b"ab\nabcd\nabcd\nabc", 4), Survey { len: 16, too_long: None });
        assert_eq!(survey(b"ab\nabcd\nabcd\nabc", 3).too_long, Some(2));
        assert_eq!(survey(b"ab\nabcd", 3).too_long, Some(2));
        let endless = super::survey(io::repeat(0), 1 << 20).expect("an end");
        assert_eq!(endless.too_long, Some(1));
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
        let error = lines.read_onto(&mut Vec::new()).expect_err("too short");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
