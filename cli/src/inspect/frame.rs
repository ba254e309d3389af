//! Frames: as rows of a list, and one by itself with all that its header says.

use std::collections::HashMap;

use runlog::format::frames::frame::{
    FLAG_BATCH, FLAG_CHUNKS, FLAG_COMPRESSED, FLAG_DOCUMENT, FLAG_IMPLICIT, FLAG_LATE, FLAG_PLAIN,
};
use runlog::format::{FrameHeader, FrameKind};
use runlog::{AgentId, ContentType, Damage, LogPosition, Lsn, RunId, RunNo, Timestamp};
use serde::Serialize;

use crate::failure::{Exit, Failure};
use crate::inspect::Found;
use crate::inspect::contents::{Contents, Row};
use crate::inspect::front::{Extent, Front, LOOKS};
use crate::inspect::raw::Raw;
use crate::inspect::segment::{Framed, Item, Segment};
use crate::json::Payload;
use crate::output::{Output, grouped};
use crate::pretty::{self, Fold};
use crate::screen::Style;
use crate::table::{Cell, Column};

/// A frame, as an object.
#[derive(Serialize)]
pub(super) struct FrameRow<'a> {
    segment: u32,
    offset: u32,
    kind: &'static str,
    lsn: Lsn,
    run_number: Option<RunNo>,
    seq: Option<u64>,
    timestamp: Timestamp,
    flags: Vec<&'static str>,
    content_type: Option<ContentType>,
    frame_bytes: usize,
    payload_bytes: u32,
    damage: Option<String>,
    #[serde(flatten)]
    alone: Option<Alone<'a>>,
}

/// What is said of a frame that is shown by itself.
#[derive(Serialize)]
struct Alone<'a> {
    file_offset: u64,
    durable: LogPosition,
    extra: u32,
    agent: Option<&'a AgentId>,
    run: Option<&'a RunId>,
    contents: &'a Contents,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Payload<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payloads: Option<Vec<Payload<'a>>>,
}

/// The event of a frame that is shown by itself.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Frame(FrameRow<'a>),
}

impl FrameRow<'_> {
    pub(super) fn new(segment: &Segment, framed: &Framed) -> Self {
        let header = &framed.header;
        Self {
            segment: segment.key.id.0,
            offset: header.position.offset,
            kind: kind_of(header.kind),
            lsn: header.lsn,
            run_number: (header.run_no != RunNo(0)).then_some(header.run_no),
            seq: has_seq(header.kind).then_some(header.seq.0),
            timestamp: header.at,
            flags: flags_of(header),
            content_type: content_of(header),
            frame_bytes: header.frame_len(),
            payload_bytes: header.payload_len,
            damage: framed.payload.err().map(|damage| damage.to_string()),
            alone: None,
        }
    }
}

pub(super) fn kind_of(kind: FrameKind) -> &'static str {
    match kind {
        FrameKind::Bind => "bind",
        FrameKind::Start => "start",
        FrameKind::Record => "record",
        FrameKind::End => "end",
        FrameKind::Chunk => "chunk",
        FrameKind::Commit => "commit",
        FrameKind::Evict => "evict",
        FrameKind::Seal => "seal",
        FrameKind::Hold => "hold",
        FrameKind::Block => "block",
    }
}

fn has_seq(kind: FrameKind) -> bool {
    matches!(kind, FrameKind::Record | FrameKind::Block)
}

/// The content type, where the header has one.
fn content_of(header: &FrameHeader) -> Option<ContentType> {
    matches!(header.kind, FrameKind::Record | FrameKind::Start).then_some(header.content)
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

/// The columns of a list of frames.
pub(super) fn columns() -> [Column; 9] {
    [
        Column::right("OFFSET"),
        Column::right("ORDER"),
        Column::left("KIND"),
        Column::right("RUN NO"),
        Column::right("SEQ"),
        Column::right("LENGTH"),
        Column::left("FLAGS").optional(1),
        Column::left("CHECK"),
        Column::id("RUN"),
    ]
}

pub(super) fn cells(item: &Item, names: &HashMap<RunNo, (AgentId, RunId)>) -> [Cell; 9] {
    let hex = |offset: u32| Cell::from(format!("{offset:#x}"));
    let framed = match item {
        Item::Frame(framed) => framed,
        Item::Gap { from, len, is_blank, is_damage } => {
            let (kind, style) = match (is_blank, is_damage) {
                (_, true) => ("no frame", Style::Bad),
                (true, false) => ("zeros", Style::Plain),
                (false, false) => ("no frame", Style::Plain),
            };
            let check = if *is_damage { Cell::styled("lost", Style::Bad) } else { "-".into() };
            return [
                hex(*from),
                "-".into(),
                Cell::styled(kind, style),
                "-".into(),
                "-".into(),
                grouped((*len).into()).into(),
                "-".into(),
                check,
                Cell::default(),
            ];
        }
    };
    let header = &framed.header;
    let flags = flags_of(header);
    let name = names.get(&header.run_no).map(|(agent, run)| format!("{agent}/{run}"));
    let dash = || "-".to_owned();
    [
        hex(header.position.offset),
        header.lsn.to_string().into(),
        kind_of(header.kind).into(),
        if header.run_no == RunNo(0) { dash() } else { header.run_no.to_string() }.into(),
        if has_seq(header.kind) { header.seq.to_string() } else { dash() }.into(),
        grouped(header.frame_len() as u64).into(),
        if flags.is_empty() { dash() } else { flags.join(",") }.into(),
        match framed.payload {
            Ok(()) => Cell::from("ok"),
            Err(damage) => Cell::styled(short(damage), Style::Bad),
        },
        name.unwrap_or_default().into(),
    ]
}

/// A damage in a word or two.
fn short(damage: Damage) -> &'static str {
    match damage {
        Damage::Checksum { .. } => "payload differs",
        Damage::ReservedNotZero => "padding is not zero",
        _ => "damaged",
    }
}

/// Shows the frame at a position.
pub(super) fn at(
    found: &Found,
    position: LogPosition,
    with_payload: bool,
    out: &mut Output,
) -> Result<Exit, Failure> {
    let Found { extent, segment } = found;
    let framed = match segment.frame(position.offset) {
        Ok(framed) => framed,
        Err(damage) => return nothing_at(segment, position, damage),
    };
    let shown = Shown { segment, framed: &framed, file_offset: extent.at };
    shown.print(with_payload, out)
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
    mut front: Front,
    lsn: Lsn,
    with_payload: bool,
    out: &mut Output,
) -> Result<Exit, Failure> {
    let mut found = all_with_order(raw, &front, lsn)?;
    for _ in 1..LOOKS {
        let mut frames = found.iter().flat_map(|(_, frames)| frames);
        if !found.is_empty() && frames.all(|framed| framed.payload.is_ok()) {
            break;
        }
        // A writer may have moved it meanwhile.
        let now = Front::read(raw)?;
        if now.manifest == front.manifest {
            break;
        }
        front = now;
        found = all_with_order(raw, &front, lsn)?;
    }
    if found.is_empty() {
        return Err(Failure::said(format!("no frame has the order {lsn}")));
    }
    let mut exit = Exit::Fine;
    let each = found.iter().flat_map(|(found, frames)| frames.iter().map(move |one| (found, one)));
    for (at, (Found { extent, segment }, framed)) in each.enumerate() {
        if at > 0 && !out.is_json() {
            out.line("")?;
        }
        let shown = Shown { segment, framed, file_offset: extent.at };
        exit = exit.max(shown.print(with_payload, out)?);
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

/// A frame that is shown by itself.
struct Shown<'a> {
    segment: &'a Segment,
    framed: &'a Framed,
    /// Where its segment starts in the file.
    file_offset: u64,
}

impl Shown<'_> {
    fn print(&self, with_payload: bool, out: &mut Output) -> Result<Exit, Failure> {
        let header = &self.framed.header;
        let contents = Contents::of(self.segment, self.framed);
        let names = self.segment.names(&self.segment.items());
        let name = names.get(&header.run_no);
        if out.is_json() {
            self.object(&contents, name, with_payload, out)?;
        } else {
            self.lines(&contents, name, out)?;
            if with_payload && self.framed.payload.is_ok() {
                self.payload_lines(&contents, out)?;
            }
        }
        let is_whole = self.framed.payload.is_ok() && contents.damage.is_none();
        Ok(if is_whole { Exit::Fine } else { Exit::Damage })
    }

    fn object(
        &self,
        contents: &Contents,
        name: Option<&(AgentId, RunId)>,
        with_payload: bool,
        out: &mut Output,
    ) -> Result<(), Failure> {
        let header = &self.framed.header;
        let is_shown = with_payload && self.framed.payload.is_ok();
        let payloads = contents.rows.as_ref().filter(|_| is_shown).map(|rows| {
            rows.iter().map(|row| Payload::new(row.content_type, contents.bytes_of(row))).collect()
        });
        let body = contents.body(self.segment, header);
        let payload = (is_shown && contents.rows.is_none())
            .then(|| Payload::new(contents.content_type(header), body));
        let mut row = FrameRow::new(self.segment, self.framed);
        row.alone = Some(Alone {
            file_offset: self.file_offset + u64::from(header.position.offset),
            durable: header.durable,
            extra: header.extra,
            agent: name.map(|(agent, _)| agent),
            run: name.map(|(_, run)| run),
            contents,
            payload,
            payloads,
        });
        Ok(out.object(&Event::Frame(row))?)
    }

    fn lines(
        &self,
        contents: &Contents,
        name: Option<&(AgentId, RunId)>,
        out: &mut Output,
    ) -> Result<(), Failure> {
        let header = &self.framed.header;
        let at = self.file_offset + u64::from(header.position.offset);
        let len = header.frame_len();
        out.line(format!("frame    {}, at {at:#x} of the file, {len} bytes", header.position))?;
        out.line(format!("kind     {}", kind_of(header.kind)))?;
        out.line(format!("order    {}", header.lsn))?;
        if header.run_no != RunNo(0) {
            let name = name.map_or_else(
                || "nothing here says its name".to_owned(),
                |(agent, run)| format!("{agent}/{run}"),
            );
            out.line(format!("run      {}, {name}", header.run_no))?;
        }
        if has_seq(header.kind) {
            out.line(format!("record   {}", header.seq))?;
        }
        out.line(format!("time     {}", out.time(header.at)))?;
        let flags = flags_of(header);
        let flags = if flags.is_empty() { "none".to_owned() } else { flags.join(", ") };
        out.line(format!("flags    {flags}"))?;
        if let Some(content) = content_of(header) {
            out.line(format!("content  {content}"))?;
        }
        if header.durable != LogPosition::default() {
            out.line(format!("durable  up to {}, when it was written", header.durable))?;
        }
        let check = match self.framed.payload {
            Ok(()) => "its checksum matches".to_owned(),
            Err(damage) => format!("damaged: {damage}"),
        };
        out.line(format!("payload  {} bytes, {check}", header.payload_len))?;
        for (what, text) in contents.lines() {
            out.line(format!("{what:<8} {text}"))?;
        }
        Ok(())
    }

    fn payload_lines(&self, contents: &Contents, out: &mut Output) -> Result<(), Failure> {
        let Some(rows) = &contents.rows else {
            let body = contents.body(self.segment, &self.framed.header);
            return Ok(pretty::write(out, body, Fold::NONE)?);
        };
        for row in rows {
            let Row { seq, lsn, .. } = row;
            out.line(format!("record {seq}, order {lsn}"))?;
            pretty::write(out, contents.bytes_of(row), Fold::NONE)?;
        }
        Ok(())
    }
}
