//! A record as one line for people.

use std::io::{self, Write};
use std::ops::Deref;

use runlog::Record;

use crate::escape::cut;
use crate::output::{Output, size};

/// How many characters of a payload are shown if it is cut.
pub(crate) const CUT: usize = 240;

/// Writes a record as a line: what is `said` of it, and `max` characters of its payload from byte
/// `start` on.
pub(crate) fn write<W: Write, B: Deref<Target = [u8]>>(
    out: &mut Output<W>,
    record: &Record<B>,
    said: &str,
    (start, max): (usize, usize),
) -> io::Result<()> {
    let late = if record.is_late() { " (after the end)" } else { "" };
    out.text(format!("{:>5}  {:.3}  {said}{late}  ", record.seq(), record.timestamp()))?;
    let rest = record.payload().get(start..).unwrap_or_default();
    let shown = cut(rest, max);
    if start > 0 {
        out.text("... ")?;
    }
    out.text(shown)?;
    match rest.len() - shown.len() {
        0 => out.line(""),
        left => out.line(format!(" ... {} more", size(left as u64))),
    }
}
