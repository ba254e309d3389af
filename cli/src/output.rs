//! Standard output and standard error: buffered results, JSON Lines, tables, sizes.
//!
//! All text is escaped here, by [`crate::escape`], so that no command can forget it. Only
//! [`Output::raw`] writes bytes as they are, for those who ask for them.

use std::io::{self, BufWriter, Stdout, Write as _};

use serde::Serialize;
use serde_json::ser::Formatter;

use crate::escape::{escaped, write_json, write_text};

/// Where results go. A write error is returned, never a panic: a reader may leave at any time.
#[derive(Debug)]
pub(crate) struct Output {
    out: BufWriter<Stdout>,
    json: bool,
}

impl Output {
    /// Standard output.
    pub(crate) fn stdout(json: bool) -> Self {
        Self { out: BufWriter::with_capacity(64 << 10, io::stdout()), json }
    }

    /// Whether the user asked for JSON Lines.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Writes bytes as they are.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)
    }

    /// Writes a part of a line, piece by piece, so that it takes no memory however long it is.
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
        let mut serializer = serde_json::Serializer::with_formatter(&mut self.out, PlainJson);
        object.serialize(&mut serializer).map_err(io::Error::from)?;
        self.raw(b"\n")
    }

    /// Hands everything to the system.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// JSON in one line.
struct PlainJson;

impl Formatter for PlainJson {
    fn write_string_fragment<W>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()>
    where
        W: ?Sized + io::Write,
    {
        write_json(writer, fragment)
    }

    fn write_raw_fragment<W>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()>
    where
        W: ?Sized + io::Write,
    {
        write_json(writer, fragment)
    }
}

/// Says what went wrong on standard error, in one line.
pub(crate) fn complain(message: &str) {
    note(&format!("runlog: {message}"));
}

/// Writes one line to standard error. The reader may be gone, which is fine.
pub(crate) fn note(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", escaped(line.as_bytes()));
}

/// The order in which a column is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// Writes rows as columns, two spaces apart, under a heading.
pub(crate) fn table<const N: usize>(
    out: &mut Output,
    heading: [(&str, Align); N],
    rows: &[[String; N]],
) -> io::Result<()> {
    // Their widths are those of what is shown.
    let rows = rows.iter().map(|row| row.each_ref().map(|cell| escaped(cell.as_bytes())));
    let rows: Vec<[String; N]> = rows.collect();
    let widths: [usize; N] = std::array::from_fn(|column| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([heading[column].0.chars().count()]).max().unwrap_or(0)
    });
    let names = heading.map(|(name, _)| name.to_owned());
    for row in std::iter::once(&names).chain(&rows) {
        let mut line = String::new();
        for column in 0..N {
            let pad = " ".repeat(widths[column] - row[column].chars().count());
            let cell = match heading[column].1 {
                Align::Left => format!("{}{pad}  ", row[column]),
                Align::Right => format!("{pad}{}  ", row[column]),
            };
            line.push_str(&cell);
        }
        out.line(line.trim_end())?;
    }
    Ok(())
}

/// `512 B`, `1.5 KiB`, `3.2 MiB`, ...
#[expect(clippy::cast_precision_loss, reason = "two digits of a size need no more")]
pub(crate) fn size(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = "KiB";
    for larger in ["MiB", "GiB", "TiB", "PiB"] {
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    format!("{value:.1} {unit}")
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
        assert_eq!(size((1 << 20) - 1), "1.0 MiB");
        assert_eq!(size(u64::MAX), "16384.0 PiB");
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
