//! Standard output: buffered results, JSON Lines, sizes. [`crate::message`] writes the rest.
//!
//! All text is escaped here, by [`crate::escape`], so that no command can forget it. Only
//! [`Output::raw`] and [`Output::unescaped`] write bytes unchanged.

use std::fmt;
use std::io::{self, BufWriter, Write};
use std::process::Child;

use humansize::{BINARY, format_size};
use runlog::Timestamp;
use serde::Serialize;

use crate::escape::{write_object, write_text};
use crate::pager;
use crate::screen::{Screen, Style};

/// Where results go. A write error is returned, never a panic: a reader may close the pipe at any
/// time.
pub(crate) struct Output<W = BufWriter<Box<dyn Write + Send>>> {
    out: W,
    json: bool,
    /// The terminal that shows it, if one does.
    screen: Option<Screen>,
    pager: Option<Child>,
}

impl<W> fmt::Debug for Output<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").field("json", &self.json).finish_non_exhaustive()
    }
}

impl Output {
    /// Standard output.
    pub(crate) fn stdout(json: bool) -> Self {
        let screen = if json { None } else { Screen::of_stdout() };
        Self {
            out: BufWriter::with_capacity(64 << 10, Box::new(io::stdout())),
            json,
            screen,
            pager: None,
        }
    }

    /// From here on, prints into the pager of the user, if a terminal shows the output.
    pub(crate) fn page(&mut self) -> io::Result<()> {
        if self.screen.is_none() || self.pager.is_some() {
            return Ok(());
        }
        self.flush()?;
        if let Some(mut pager) = pager::start() {
            if let Some(pipe) = pager.stdin.take() {
                self.out = BufWriter::with_capacity(64 << 10, Box::new(pipe));
            }
            self.pager = Some(pager);
        }
        Ok(())
    }

    /// Flushes everything, and waits until the user has left the pager.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        let flushed = self.flush();
        if let Some(mut pager) = self.pager.take() {
            // It ends once its input does.
            self.out = BufWriter::new(Box::new(io::stdout()));
            pager.wait()?;
        }
        flushed
    }

    /// Nowhere.
    #[cfg(test)]
    pub(crate) fn nowhere() -> Self {
        Self { out: BufWriter::new(Box::new(io::sink())), json: false, screen: None, pager: None }
    }
}

impl Output<Vec<u8>> {
    /// Memory, for what is printed later, on this terminal if there is one.
    pub(crate) fn memory(json: bool, screen: Option<Screen>) -> Self {
        Self { out: Vec::new(), json, screen, pager: None }
    }

    /// How many bytes were written since the last [`Output::take`].
    pub(crate) fn len(&self) -> usize {
        self.out.len()
    }

    /// Takes the bytes that were written.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }
}

impl<W: Write> Output<W> {
    /// Whether the user asked for JSON Lines.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Where bytes go unchanged.
    pub(crate) fn unescaped(&mut self) -> &mut W {
        &mut self.out
    }

    /// The terminal that shows the output, if one does.
    pub(crate) fn screen(&self) -> Option<&Screen> {
        self.screen.as_ref()
    }

    /// A time to the second: on a terminal on the clock of the user, elsewhere in UTC as RFC 3339.
    pub(crate) fn time(&self, at: Timestamp) -> String {
        self.screen.as_ref().map_or_else(|| format!("{at:.0}"), |screen| screen.time(at))
    }

    /// Writes a part of a line that looks like this on a terminal.
    pub(crate) fn styled(&mut self, style: Style, text: impl AsRef<[u8]>) -> io::Result<()> {
        let Some(screen) = &self.screen else { return self.text(text) };
        let look = screen.look(style);
        write!(self.out, "{look}")?;
        self.text(text)?;
        write!(self.out, "{look:#}")
    }

    /// Writes bytes unchanged.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)
    }

    /// Writes a part of a line, so that a long line takes no memory.
    pub(crate) fn text(&mut self, text: impl AsRef<[u8]>) -> io::Result<()> {
        write_text(&mut self.out, text.as_ref())
    }

    /// Writes one line, or the rest of one.
    pub(crate) fn line(&mut self, text: impl AsRef<[u8]>) -> io::Result<()> {
        self.text(text)?;
        self.raw(b"\n")
    }

    /// Writes one JSON object as a line.
    pub(crate) fn object(&mut self, object: &impl Serialize) -> io::Result<()> {
        write_object(&mut self.out, object)
    }

    /// Tells a result: an object of JSON Lines, or a line for people.
    pub(crate) fn tell(
        &mut self,
        object: &impl Serialize,
        text: impl AsRef<[u8]>,
    ) -> io::Result<()> {
        if self.json { self.object(object) } else { self.line(text) }
    }

    /// Writes an empty line between what people read.
    pub(crate) fn blank(&mut self) -> io::Result<()> {
        if self.json { Ok(()) } else { self.line("") }
    }

    /// Flushes everything to the system.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// `512 B`, `1.5 KiB`, `3.2 MiB`, ...
pub(crate) fn size(bytes: u64) -> String {
    format_size(bytes, BINARY.decimal_places(1))
}

/// `1 record`, `2 records`, `1,234,567 records`.
pub(crate) fn count(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(n), if n == 1 { "" } else { "s" })
}

/// `1,234,567`.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_use_binary_units() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(1 << 20), "1 MiB");
        assert_eq!(size(u64::MAX), "16 EiB");
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(count(1, "run"), "1 run");
        assert_eq!(count(1000, "run"), "1,000 runs");
    }
}
