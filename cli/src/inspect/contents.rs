//! What the payload of a frame says, by its kind; without the bytes of the caller.

use runlog::format::frames::block::{BlockHead, BlockRow, seq_in};
use runlog::format::frames::compression::Unreadable;
use runlog::format::frames::eviction::decode_evictions;
use runlog::format::frames::frame::{Chunks, FLAG_CHUNKS, decode_ids};
use runlog::format::{Directory, FrameHeader, FrameKind};
use runlog::{ContentType, Damage, Lsn, RunNo, RunStatus, Seq, Timestamp};
use serde::Serialize;
use serde_json::json;

use crate::fields::Fields;
use crate::inspect::segment::{Framed, Segment};

/// What a payload says.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) said: Fields,
    /// The records of a block.
    pub(super) rows: Option<Vec<Row>>,
    pub(super) is_damaged: bool,
    /// Where the bytes of the caller begin in the payload.
    body_at: usize,
    /// The type of these bytes, if it is not that of the header.
    content: Option<ContentType>,
    /// The bytes of a block.
    raw: Vec<u8>,
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
        contents.by_header(&framed.header);
        let payload = segment.payload(&framed.header);
        let read = framed.payload.is_ok().then(|| contents.by_payload(&framed.header, payload));
        if let Some(Err(damage)) = read {
            contents.damaged(damage.to_string());
        }
        contents
    }

    fn say(&mut self, name: &'static str, value: impl Serialize) {
        self.said.0.push((name, json!(value)));
    }

    fn damaged(&mut self, damage: String) {
        self.is_damaged = true;
        self.say("damage", damage);
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
            FrameKind::Start => self.say("creates", header.extra == 1),
            FrameKind::End => {
                if let Some(status) = RunStatus::from_code(header.content.code()) {
                    self.say("status", status);
                }
            }
            FrameKind::Chunk => self.say("chunk", header.extra),
            FrameKind::Commit => self.say("frames", header.extra),
            FrameKind::Seal => self.say("ends_at", header.extra),
            FrameKind::Hold => self.say("held", header.extra == 1),
            _ => {}
        }
    }

    fn by_payload(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<(), Damage> {
        match header.kind {
            FrameKind::Bind | FrameKind::Start => {
                let (agent, run, rest) = decode_ids(payload)?;
                self.body_at = payload.len() - rest.len();
                self.say("names", (agent, run));
            }
            FrameKind::Record => {
                let (name, rest) =
                    payload.split_at_checked(header.name_len.into()).ok_or(Damage::Truncated)?;
                self.body_at = name.len();
                let kind = std::str::from_utf8(name).map_err(|_| Damage::NotUtf8)?;
                if !kind.is_empty() {
                    self.say("record_kind", kind);
                }
                if header.flags & FLAG_CHUNKS != 0 {
                    let Chunks { first: first_lsn, count: chunks } = Chunks::decode(rest)?;
                    let bytes = header.extra;
                    let large = json!({"bytes": bytes, "first_lsn": first_lsn, "chunks": chunks});
                    self.say("large", large);
                }
            }
            FrameKind::End => {
                self.content = payload.first().map(|code| ContentType::from_code(*code));
                self.body_at = 1;
            }
            FrameKind::Evict => {
                let items = decode_evictions(payload)?;
                let runs: Vec<RunNo> = items.iter().map(|item| item.run_no).collect();
                self.say("evicted", runs);
            }
            FrameKind::Seal => self.say("runs", Directory::new(payload)?.run_count()),
            FrameKind::Hold => self.content = Some(ContentType::TEXT),
            FrameKind::Block => self.by_block(header, payload)?,
            FrameKind::Chunk | FrameKind::Commit => {}
        }
        Ok(())
    }

    fn by_block(&mut self, header: &FrameHeader, payload: &[u8]) -> Result<(), Damage> {
        let (head, compressed) = BlockHead::decode(header, payload)?;
        self.say("raw_bytes", head.raw_len);
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
        if let Some(damage) = rows.iter().find_map(|row| row.damage.clone()) {
            self.damaged(damage);
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
}
