//! What the payload of a frame says, by its kind; without the bytes of the caller.

use runlog::format::frames::block::{BlockHead, BlockRow, seq_in};
use runlog::format::frames::compression::Unreadable;
use runlog::format::frames::eviction::decode_evictions;
use runlog::format::frames::frame::{Chunks, FLAG_CHUNKS, decode_ids};
use runlog::format::{Directory, FrameHeader, FrameKind};
use runlog::{AgentId, ContentType, Damage, Lsn, RunId, RunNo, RunStatus, Seq, Timestamp};
use serde::Serialize;

use crate::inspect::segment::{Framed, Segment};
use crate::output::count;

/// What a payload says. Each kind of frame has some of the fields.
#[derive(Debug, Default, Serialize)]
pub(super) struct Contents {
    #[serde(skip_serializing_if = "Option::is_none")]
    names: Option<(AgentId, RunId)>,
    /// Whether a START creates its run.
    #[serde(skip_serializing_if = "Option::is_none")]
    creates: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    record_kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<RunStatus>,
    /// Of a large record: its length, the order of its first chunk, and how many it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    large: Option<Large>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chunk: Option<u32>,
    /// How many frames a batch has.
    #[serde(skip_serializing_if = "Option::is_none")]
    frames: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    evicted: Option<Vec<RunNo>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ends_at: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    runs: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw_bytes: Option<u32>,
    /// The records of a block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rows: Option<Vec<Row>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) damage: Option<String>,
    /// Where the bytes of the caller begin in the payload.
    #[serde(skip)]
    body_at: usize,
    /// The type of these bytes, if it is not that of the header.
    #[serde(skip)]
    content: Option<ContentType>,
    /// The bytes of a block.
    #[serde(skip)]
    raw: Vec<u8>,
}

#[derive(Debug, Serialize)]
struct Large {
    bytes: u32,
    first_lsn: Lsn,
    chunks: u32,
}

/// A record of a block.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) seq: Seq,
    pub(super) lsn: Lsn,
    timestamp: Timestamp,
    late: bool,
    pub(super) content_type: ContentType,
    bytes: u32,
    damage: Option<String>,
    #[serde(skip)]
    start: usize,
}

impl Contents {
    pub(super) fn of(segment: &Segment, framed: &Framed) -> Self {
        let mut contents = Self::default();
        if framed.payload.is_err() {
            // The header has these all the same.
            contents.by_header(&framed.header);
            return contents;
        }
        contents.by_header(&framed.header);
        let payload = segment.payload(&framed.header);
        if let Err(damage) = contents.by_payload(&framed.header, payload) {
            contents.damage = Some(damage.to_string());
        }
        contents
    }

    /// Whether the frame has this order, or is a block with a record of it.
    pub(super) fn has_order(segment: &Segment, framed: &Framed, lsn: Lsn) -> bool {
        let header = &framed.header;
        let last = || {
            let head = BlockHead::decode(header, segment.payload(header));
            head.map_or(header.lsn, |(head, _)| head.last_lsn)
        };
        header.lsn == lsn
            || header.kind == FrameKind::Block
                && (header.lsn..=last()).contains(&lsn)
                && Self::of(segment, framed)
                    .rows
                    .is_none_or(|rows| rows.iter().any(|row| row.lsn == lsn))
    }

    fn by_header(&mut self, header: &FrameHeader) {
        match header.kind {
            FrameKind::Start => self.creates = Some(header.extra == 1),
            FrameKind::End => self.status = RunStatus::from_code(header.content.code()),
            FrameKind::Chunk => self.chunk = Some(header.extra),
            FrameKind::Commit => self.frames = Some(header.extra),
            FrameKind::Seal => self.ends_at = Some(header.extra),
            FrameKind::Hold => self.held = Some(header.extra == 1),
            _ => {}
        }
    }

    fn by_payload(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<(), Damage> {
        match header.kind {
            FrameKind::Bind | FrameKind::Start => {
                let (agent, run, rest) = decode_ids(payload)?;
                self.body_at = payload.len() - rest.len();
                self.names = Some((agent, run));
            }
            FrameKind::Record => {
                let (name, rest) =
                    payload.split_at_checked(header.name_len.into()).ok_or(Damage::Truncated)?;
                self.body_at = name.len();
                let kind = std::str::from_utf8(name).map_err(|_| Damage::NotUtf8)?;
                self.record_kind = (!kind.is_empty()).then(|| kind.to_owned());
                if header.flags & FLAG_CHUNKS != 0 {
                    let Chunks { first: first_lsn, count: chunks } = Chunks::decode(rest)?;
                    self.large = Some(Large { bytes: header.extra, first_lsn, chunks });
                }
            }
            FrameKind::End => {
                self.content = payload.first().map(|code| ContentType::from_code(*code));
                self.body_at = 1;
            }
            FrameKind::Evict => {
                let items = decode_evictions(payload)?;
                self.evicted = Some(items.iter().map(|item| item.run_no).collect());
            }
            FrameKind::Seal => self.runs = Some(Directory::new(payload)?.run_count()),
            FrameKind::Hold => self.content = Some(ContentType::TEXT),
            FrameKind::Block => self.by_block(header, payload)?,
            FrameKind::Chunk | FrameKind::Commit => {}
        }
        Ok(())
    }

    fn by_block(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<(), Damage> {
        let (head, compressed) = BlockHead::decode(header, payload)?;
        self.raw_bytes = Some(head.raw_len);
        let (mut raw, mut rows) = (Vec::new(), Vec::new());
        match head.open(header, compressed, &mut raw, &mut rows) {
            Ok(()) => {}
            Err(Unreadable::Damaged(damage)) => return Err(damage),
            // The command is built with it.
            Err(Unreadable::NeedsFeature(_)) => return Err(Damage::Undecodable),
        }
        let row = |(rank, row): (u32, &BlockRow)| Row {
            seq: seq_in(header, rank),
            lsn: row.lsn,
            timestamp: row.at,
            late: row.late,
            content_type: row.content,
            bytes: row.len - u32::from(row.name_len),
            damage: row.bytes(&raw).err().map(|damage| damage.to_string()),
            start: row.start as usize + usize::from(row.name_len),
        };
        let rows: Vec<Row> = (0..).zip(&rows).map(row).collect();
        if let Some(row) = rows.iter().find(|row| row.damage.is_some()) {
            self.damage.clone_from(&row.damage);
        }
        (self.rows, self.raw) = (Some(rows), raw);
        Ok(())
    }

    /// The bytes of the caller.
    pub(super) fn body<'a>(&self, segment: &'a Segment, header: &FrameHeader) -> &'a [u8] {
        segment.payload(header).get(self.body_at..).unwrap_or_default()
    }

    /// The type of these bytes.
    pub(super) fn content_type(&self, header: &FrameHeader) -> ContentType {
        self.content.unwrap_or(header.content)
    }

    /// The bytes of a record of a block.
    pub(super) fn bytes_of(&self, row: &Row) -> &[u8] {
        let bytes = self.raw.get(row.start..).and_then(|rest| rest.get(..row.bytes as usize));
        bytes.unwrap_or_default()
    }

    /// What is said, in lines for people.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = Vec::new();
        let mut say = |what, text: Option<String>| lines.extend(text.map(|text| (what, text)));
        say("ids", self.names.as_ref().map(|(agent, run)| format!("agent {agent}, run {run}")));
        let creates = |creates| if creates { "creates the run" } else { "of a run that was there" };
        say("start", self.creates.map(|start| creates(start).to_owned()));
        say("named", self.record_kind.clone());
        say("status", self.status.map(|status| status.to_string()));
        say(
            "large",
            self.large.as_ref().map(|large| {
                let chunks = count(large.chunks.into(), "chunk");
                format!("{} bytes in {chunks}, the first of order {}", large.bytes, large.first_lsn)
            }),
        );
        say("chunk", self.chunk.map(|number| number.to_string()));
        say("batch", self.frames.map(|frames| count(frames.into(), "frame")));
        say(
            "deletes",
            self.evicted.as_ref().map(|runs| {
                let runs: Vec<String> = runs.iter().map(ToString::to_string).collect();
                format!("runs {}", runs.join(", "))
            }),
        );
        say("log", self.ends_at.map(|end| format!("of the segment ends at {end:#x}")));
        say("lists", self.runs.map(|runs| count(runs.into(), "run")));
        say("hold", self.held.map(|held| if held { "held" } else { "released" }.to_owned()));
        let rows = self.rows.as_ref().map_or(0, Vec::len) as u64;
        say(
            "block",
            self.raw_bytes.map(|raw| {
                format!("{}, {raw} bytes before they were compressed", count(rows, "record"))
            }),
        );
        say("damage", self.damage.clone());
        lines
    }
}
