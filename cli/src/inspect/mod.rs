//! `runlog inspect`: the structures of the file as they are, for debugging.
//!
//! It reads the file by itself, with the decoders of the library, and not through an open store: so
//! it works on a file that does not open. What is damaged is told, and the rest is shown.

mod contents;
mod frame;
mod front;
mod overview;
mod raw;
mod segment;

use std::path::Path;

use runlog::{ExtentNo, LogPosition, Lsn, SegmentId};

use crate::failure::{Exit, Failure};
use crate::fields::word;
pub(crate) use crate::inspect::front::Front;
use crate::inspect::front::{Extent, settled};
pub(crate) use crate::inspect::raw::Raw;
use crate::inspect::segment::{Item, Segment};
use crate::output::Output;

/// The options of `inspect`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("one_frame").args(["position", "lsn"]))]
#[command(group = clap::ArgGroup::new("all_frames").args(["extent", "segment"]))]
pub(crate) struct InspectArgs {
    /// The frame at this place, such as 3:0x1f40, or `segment 3 offset 0x1f40` as other commands
    /// print it.
    #[arg(value_name = "SEGMENT:OFFSET", num_args = 1.., conflicts_with = "all_frames")]
    position: Vec<String>,

    /// The frames with this order in the log: of a record that was moved, also those that are left.
    #[arg(long, value_name = "N", conflicts_with = "all_frames")]
    lsn: Option<u64>,

    /// The segment in this extent, with its header, its directory and its frames.
    #[arg(long, value_name = "N")]
    extent: Option<u32>,

    /// The segment with this number.
    #[arg(long, value_name = "N")]
    segment: Option<u32>,

    /// Show the payload of the frame too.
    #[arg(long, requires = "one_frame")]
    payload: bool,

    /// Print without a pager, also on a terminal.
    #[arg(long)]
    no_pager: bool,
}

pub(crate) fn run(args: &InspectArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let position = args.position()?;
    let raw = Raw::open(path)?;
    let front = Front::read(&raw)?;
    if !args.no_pager {
        out.page()?;
    }
    let exit = if let Some(position) = position {
        let found = Found::settled(&raw, front, Which::Segment(position.segment))?;
        frame::at(&found, position, args.payload, out)?
    } else if let Some(lsn) = args.lsn {
        frame::with_order(&raw, front, Lsn(lsn), args.payload, out)?
    } else if let Some(extent) = args.extent {
        overview::segment(&Found::settled(&raw, front, Which::Extent(ExtentNo(extent)))?, out)?
    } else if let Some(segment) = args.segment {
        overview::segment(&Found::settled(&raw, front, Which::Segment(SegmentId(segment)))?, out)?
    } else {
        overview::whole(&raw, front, out)?
    };
    out.flush()?;
    Ok(exit)
}

/// Which segment is asked for.
#[derive(Debug, Clone, Copy)]
enum Which {
    Extent(ExtentNo),
    Segment(SegmentId),
}

/// A segment, and the extent that it is in.
#[derive(Debug)]
struct Found {
    extent: Extent,
    segment: Segment,
}

impl Found {
    fn settled(raw: &Raw, front: Front, which: Which) -> Result<Self, Failure> {
        settled(raw, front, |front| Self::read(raw, front, which), Self::is_whole)
    }

    fn read(raw: &Raw, front: &Front, which: Which) -> Result<Self, Failure> {
        let extent = match which {
            Which::Extent(number) => front.extent(raw, number)?,
            Which::Segment(id) => front
                .of_segment(raw, id)?
                .ok_or_else(|| Failure::said(format!("no extent has segment {id}")))?,
        };
        let Some(segment) = Segment::read(raw, front, &extent)? else {
            let (number, state) = (extent.number, word(&extent.state));
            return Err(Failure::said(format!("extent {number} has no segment: it is {state}")));
        };
        Ok(Self { extent, segment })
    }

    fn is_whole(&self) -> bool {
        self.extent.damage.is_none()
            && !matches!(self.segment.directory(), Some(Err(_)))
            && !self.segment.items().iter().any(Item::is_damaged)
    }
}

impl InspectArgs {
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
