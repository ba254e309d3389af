//! `runlog inspect`: the structures of the file as they are, for debugging.
//!
//! It reads the file by itself, with the decoders of the library, and not through an open store: so
//! it works on a file that does not open. Each structure is a row, with the fields that the format
//! gives it and with what is wrong with it.

mod front;
mod row;
mod segment;

use std::path::Path;

use runlog::{LogPosition, SegmentId};
use serde_json::json;

use crate::failure::{Exit, Failure};
use crate::output::{Output, count};

use self::front::Front;
use self::row::Rows;
use self::segment::Piece;

/// How often a file is read in which something is damaged: a writer may be writing it.
const ATTEMPTS: usize = 8;

/// The options of `inspect`.
#[derive(Debug, clap::Args)]
pub(crate) struct InspectArgs {
    /// The frame at this place, such as 3:0x1f40, or `segment 3 offset 0x1f40` as other commands
    /// print it.
    #[arg(value_name = "SEGMENT:OFFSET", num_args = 1.., conflicts_with = "segment")]
    position: Vec<String>,

    /// The segment with this number: its extent and its frames.
    #[arg(long, value_name = "N")]
    segment: Option<u32>,

    /// Show the payload of the frame too.
    #[arg(long, requires = "position")]
    payload: bool,
}

pub(crate) fn run(args: &InspectArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let position = args.position()?;
    let mut rows = Rows::new(out);
    for _ in 0..ATTEMPTS {
        rows = Rows::new(out);
        args.read(path, position, &mut rows)?;
        if rows.damaged == 0 {
            break;
        }
    }
    out.raw(&rows.out.take())?;
    if out.is_json() || rows.damaged > 0 {
        let places = count(rows.damaged, "damaged place");
        out.tell(&json!({"event": "summary", "damaged": rows.damaged}), places)?;
    }
    out.flush()?;
    Ok(if rows.damaged == 0 { Exit::Fine } else { Exit::Damage })
}

impl InspectArgs {
    /// Reads what is asked for.
    fn read(
        &self,
        path: &Path,
        position: Option<LogPosition>,
        rows: &mut Rows,
    ) -> Result<(), Failure> {
        let front = Front::read(path)?;
        if let Some(LogPosition { segment, offset }) = position {
            let found = front.segment(segment)?;
            let has_place = |piece: &Piece| (piece.from..piece.to).contains(&offset);
            let end = || Failure::said(format!("segment {segment} has no offset {offset:#x}"));
            let piece = found.pieces().into_iter().find(has_place).ok_or_else(end)?;
            found.tell(&piece, Some(self.payload), rows)
        } else if let Some(id) = self.segment {
            let segment = front.segment(SegmentId(id))?;
            front.extent(segment.extent, rows)?;
            segment.pieces().iter().try_for_each(|piece| segment.tell(piece, None, rows))
        } else {
            front.tell(rows)
        }
    }

    fn position(&self) -> Result<Option<LogPosition>, Failure> {
        if self.position.is_empty() {
            return Ok(None);
        }
        let text = self.position.join(" ");
        parsed(&text).map(Some).ok_or_else(|| {
            Failure::said(format!(
                "{text} is no place of a frame; expected SEGMENT:OFFSET, such as 3:0x1f40 or 3:8000"
            ))
        })
    }
}

/// The position of `3:8000`, `3:0x1f40` or `segment 3 offset 0x1f40`.
fn parsed(text: &str) -> Option<LogPosition> {
    let (segment, offset) = match text.split_once(':') {
        Some(parts) => parts,
        None => text.strip_prefix("segment ")?.split_once(" offset ")?,
    };
    let offset = match offset.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok()?,
        None => offset.parse().ok()?,
    };
    Some(LogPosition { segment: SegmentId(segment.parse().ok()?), offset })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_read_as_they_are_printed() {
        let at = LogPosition { segment: SegmentId(3), offset: 0x1f40 };
        for text in ["3:8000", "3:0x1f40", "3:0x1F40", &at.to_string()] {
            assert_eq!(parsed(text), Some(at), "{text}");
        }
        for text in ["", "3", "3:", ":8", "3:-1", "3:0x", "x:1", "3:4294967296", "segment 3"] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }
}
