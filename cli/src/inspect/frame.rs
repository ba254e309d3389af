//! Frames: as rows of a list, and one by itself with all that its header says.

use std::collections::HashMap;

use runlog::format::frames::frame::{
    FLAG_BATCH, FLAG_CHUNKS, FLAG_COMPRESSED, FLAG_DOCUMENT, FLAG_IMPLICIT, FLAG_LATE, FLAG_PLAIN,
};
use runlog::format::{FrameHeader, FrameKind};
use runlog::{AgentId, Damage, LogPosition, Lsn, RunId, RunNo};
use serde::Serialize;
use serde_json::{Value, json};

use crate::failure::{Exit, Failure};
use crate::fields::{Fields, fields};
use crate::inspect::Found;
use crate::inspect::contents::{Contents, Row};
use crate::inspect::front::{Extent, Front, settled};
use crate::inspect::raw::Raw;
use crate::inspect::segment::{Framed, Item, Segment};
use crate::json::Payload;
use crate::output::{Output, grouped};
use crate::pretty;
use crate::screen::Style;
use crate::table::{self, Column};
use crate::wrap::Fold;

/// The names of runs.
type Names = HashMap<RunNo, (AgentId, RunId)>;

/// The columns of a list of frames.
const COLUMNS: [Column; 9] = [
    Column::right("offset"),
    Column::right("lsn").named("ORDER"),
    Column::left("kind").made(kind_of),
    Column::right("run_number"),
    Column::right("seq"),
    Column::right("length").made(length_of),
    Column::left("flags").optional(1),
    Column::id("run").made(run_of),
    Column::text("damage").made(damage_of).styled(Style::Bad),
];

fn kind_of(row: &Value) -> String {
    let kind = row["kind"].as_str();
    let is_blank = row["blank"] == true && row["damaged"] == false;
    kind.unwrap_or(if is_blank { "zeros" } else { "no frame" }).to_owned()
}

fn length_of(row: &Value) -> String {
    let len = row["frame_bytes"].as_u64().or(row["bytes"].as_u64());
    grouped(len.unwrap_or_default())
}

fn run_of(row: &Value) -> String {
    let names = row["agent"].as_str().zip(row["run"].as_str());
    names.map_or_else(|| "-".to_owned(), |(agent, run)| format!("{agent}/{run}"))
}

fn damage_of(row: &Value) -> String {
    let lost = if row["damaged"] == true { "lost" } else { "" };
    row["damage"].as_str().unwrap_or(lost).to_owned()
}

/// Shows the pieces of a segment.
pub(super) fn list(segment: &Segment, items: &[Item], out: &mut Output) -> Result<(), Failure> {
    let names = segment.names(items);
    let row = |item: &Item| match item {
        Item::Frame(framed) => described(segment, framed, &names),
        Item::Gap { from, len, is_blank, is_damage } => fields! {
            "event": "gap",
            "offset": from,
            "bytes": len,
            "blank": is_blank,
            "damaged": is_damage,
        },
    };
    let rows: Vec<Fields> = items.iter().map(row).collect();
    Ok(table::list(out, &COLUMNS, &rows)?)
}

fn described(segment: &Segment, framed: &Framed, names: &Names) -> Fields {
    let header = &framed.header;
    let name = names.get(&header.run_no);
    let has_seq = matches!(header.kind, FrameKind::Record | FrameKind::Block);
    let has_content = matches!(header.kind, FrameKind::Record | FrameKind::Start);
    fields! {
        "event": "frame",
        "segment": segment.key.id,
        "offset": header.position.offset,
        "kind": format!("{:?}", header.kind).to_lowercase(),
        "lsn": header.lsn,
        "run_number": (header.run_no != RunNo(0)).then_some(header.run_no),
        "agent": name.map(|(agent, _)| agent),
        "run": name.map(|(_, run)| run),
        "seq": has_seq.then_some(header.seq),
        "timestamp": header.at,
        "flags": flags_of(header),
        "content_type": has_content.then_some(header.content),
        "frame_bytes": header.frame_len(),
        "payload_bytes": header.payload_len,
        "damage": framed.payload.err().map(|damage| damage.to_string()),
    }
}

fn flags_of(header: &FrameHeader) -> Vec<&'static str> {
    let named = [
        (FLAG_BATCH, "batch"),
        (FLAG_LATE, "late"),
        (FLAG_CHUNKS, "chunks"),
        (FLAG_IMPLICIT, "implicit"),
        (FLAG_DOCUMENT, "document"),
        (FLAG_COMPRESSED, "compressed"),
        (FLAG_PLAIN, "plain"),
    ];
    let set = named.iter().filter(|(flag, _)| header.flags & flag != 0);
    set.map(|(_, name)| *name).collect()
}

/// Shows the frame at a position.
pub(super) fn at(
    found: &Found,
    position: LogPosition,
    with_payload: bool,
    out: &mut Output,
) -> Result<Exit, Failure> {
    match found.segment.frame(position.offset) {
        Ok(framed) => print(found, &framed, with_payload, out),
        Err(damage) => nothing_at(&found.segment, position, damage),
    }
}

/// Says what is at a place where no frame begins.
fn nothing_at(segment: &Segment, position: LogPosition, damage: Damage) -> Result<Exit, Failure> {
    let LogPosition { offset, .. } = position;
    let holds = |item: &&Item| match item {
        Item::Frame(framed) => (framed.header.position.offset..framed.end()).contains(&offset),
        Item::Gap { from, len, .. } => (*from..from.saturating_add(*len)).contains(&offset),
    };
    let items = segment.items();
    let why = match items.iter().find(holds) {
        Some(Item::Frame(framed)) => {
            let from = framed.header.position.offset;
            format!("it is within the frame at {}:{from:#x}", position.segment)
        }
        Some(Item::Gap { is_blank: true, .. }) => "nothing was written there".to_owned(),
        Some(Item::Gap { is_damage: true, .. }) => {
            let corruption = format!("no frame is at {position}: {damage}");
            return Err(Failure::Damaged(corruption));
        }
        Some(Item::Gap { .. }) => format!("these bytes are no frame: {damage}"),
        None => "the segment is not that long".to_owned(),
    };
    Err(Failure::said(format!("no frame begins at {position}: {why}")))
}

/// Shows all frames with this order, and the blocks that have a record of it.
pub(super) fn with_order(
    raw: &Raw,
    front: Front,
    lsn: Lsn,
    with_payload: bool,
    out: &mut Output,
) -> Result<Exit, Failure> {
    let is_whole = |found: &Vec<(Found, Vec<Framed>)>| {
        let mut frames = found.iter().flat_map(|(_, frames)| frames);
        !found.is_empty() && frames.all(|framed| framed.payload.is_ok())
    };
    let found = settled(raw, front, |front| all_with_order(raw, front, lsn), is_whole)?;
    if found.is_empty() {
        return Err(Failure::said(format!("no frame has the order {lsn}")));
    }
    let mut exit = Exit::Fine;
    for (found, frames) in &found {
        for framed in frames {
            exit = exit.max(print(found, framed, with_payload, out)?);
        }
    }
    Ok(exit)
}

fn all_with_order(
    raw: &Raw,
    front: &Front,
    lsn: Lsn,
) -> Result<Vec<(Found, Vec<Framed>)>, Failure> {
    let mut all = Vec::new();
    for extent in front.all(raw)?.into_iter().filter(Extent::is_of_log) {
        let Some(segment) = Segment::read(raw, front, &extent)? else { continue };
        if let Some(Ok(directory)) = segment.directory()
            && segment.sealed.is_some()
            && !(directory.first_lsn()..=directory.last_lsn()).contains(&lsn)
        {
            continue;
        }
        let of_order = |item: &Item| match item {
            Item::Frame(framed) => Contents::has_order(&segment, framed, lsn).then_some(*framed),
            Item::Gap { .. } => None,
        };
        let frames: Vec<Framed> = segment.items().iter().filter_map(of_order).collect();
        if !frames.is_empty() {
            all.push((Found { extent, segment }, frames));
        }
    }
    Ok(all)
}

/// A frame that is shown by itself, as an object.
#[derive(Serialize)]
struct Alone<'a> {
    #[serde(flatten)]
    fields: &'a Fields,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Payload<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payloads: Option<Vec<Payload<'a>>>,
}

/// Shows a frame by itself.
fn print(
    found: &Found,
    framed: &Framed,
    with_payload: bool,
    out: &mut Output,
) -> Result<Exit, Failure> {
    let Found { extent, segment } = found;
    let header = &framed.header;
    let contents = Contents::of(segment, framed);
    let mut fields = described(segment, framed, &segment.names(&segment.items()));
    fields.0.extend([
        ("file_offset", json!(extent.at + u64::from(header.position.offset))),
        ("durable", json!(header.durable)),
        ("extra", json!(header.extra)),
    ]);
    let is_shown = with_payload && framed.payload.is_ok();
    let body = contents.body(segment, header);
    if out.is_json() {
        let mut said = contents.said.clone();
        said.0.extend(contents.rows.as_ref().map(|rows| ("rows", json!(rows))));
        fields.0.push(("contents", json!(said)));
        let of_row = |row: &Row| Payload::new(row.content_type, contents.bytes_of(row));
        let payloads = contents.rows.as_ref().filter(|_| is_shown);
        let payloads = payloads.map(|rows| rows.iter().map(of_row).collect());
        let payload = (is_shown && contents.rows.is_none())
            .then(|| Payload::new(contents.content_type(header), body));
        out.object(&Alone { fields: &fields, payload, payloads })?;
    } else {
        for (name, text) in [fields.said(out), contents.said.said(out)].concat() {
            out.line(format!("{name:<14} {text}"))?;
        }
        for row in contents.rows.iter().flatten().filter(|_| is_shown) {
            out.line(format!("record {}, order {}", row.seq, row.lsn))?;
            pretty::write(out, contents.bytes_of(row), Fold::NONE)?;
        }
        if is_shown && contents.rows.is_none() {
            pretty::write(out, body, Fold::NONE)?;
        }
        out.line("")?;
    }
    let is_whole = framed.payload.is_ok() && !contents.is_damaged;
    Ok(if is_whole { Exit::Fine } else { Exit::Damage })
}
