//! Reading an unsealed segment frame by frame.
//!
//! - [`lex`] cuts the extent into frames that check, frames with a damaged payload, and gaps.
//! - [`replay`] folds what counts into a directory; names come from BIND and START, whichever of
//!   the two is whole.

use std::collections::HashMap;

use crate::engine::state::fold::{note_block, note_frame};
use crate::engine::state::segment::Segment;
use crate::error::{Corruption, Damage, Place, Result};
use crate::format::codec::Decoded;
use crate::format::frames::block::{MAX_BLOCK_RECORDS, seq_in};
use crate::format::frames::eviction;
use crate::format::frames::frame::{
    self, FLAG_BATCH, FRAME_ALIGN, FRAME_HEADER_LEN, FrameCheck, claims_position, frame_len,
};
use crate::format::map::manifest::used_len;
use crate::format::segments::directory::RECORD_COST;
use crate::format::segments::segment::SEGMENT_HEADER_LEN;
use crate::format::{Directory, DirectoryBuilder, FrameHeader, FrameKind};
use crate::types::{AgentId, LogPosition, RunId, RunNo, Seq};

/// A frame whose header checks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lexed {
    pub(crate) header: FrameHeader,
    /// What the payload's check says.
    pub(crate) payload: Decoded<()>,
}

impl Lexed {
    /// Where the frame ends.
    pub(crate) fn end(&self) -> u32 {
        let len = u32::try_from(self.header.frame_len()).unwrap_or(u32::MAX);
        self.header.position.offset.saturating_add(len)
    }
}

/// A piece of a segment.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Item {
    /// A frame.
    Frame(Lexed),
    /// Bytes that are no frame.
    Gap {
        /// Where they start.
        from: u32,
        /// Where the next frame starts.
        to: Option<u32>,
        /// All bytes are zero: nothing was written there.
        blank: bool,
    },
}

impl Item {
    pub(crate) fn offset(&self) -> u32 {
        match self {
            Self::Frame(lexed) => lexed.header.position.offset,
            Self::Gap { from, .. } => *from,
        }
    }

    /// The frame, if it is one.
    pub(crate) fn frame(&self) -> Option<&Lexed> {
        match self {
            Self::Frame(lexed) => Some(lexed),
            Self::Gap { .. } => None,
        }
    }

    /// Whether it is a frame that checks whole.
    pub(crate) fn is_valid(&self) -> bool {
        self.frame().is_some_and(|lexed| lexed.payload.is_ok())
    }
}

/// Cuts a segment into pieces. It goes on behind a SEAL frame, since an earlier recovery may have
/// put another one behind what is torn. The last piece is a gap with nothing behind it.
pub(crate) fn lex(extent: &[u8], check: &FrameCheck) -> Vec<Item> {
    lex_up_to(extent, check, extent.len())
}

/// As [`lex`], for an extent that is known to have only zeros from `end` on. They are not looked
/// at, but for what belongs to a frame that starts in front of them.
pub(crate) fn lex_up_to(extent: &[u8], check: &FrameCheck, end: usize) -> Vec<Item> {
    let mut items = Vec::new();
    let mut at = SEGMENT_HEADER_LEN;
    // No frame starts where there are only zeros to the end, which is much of a tail.
    let written = used_len(extent.get(..end).unwrap_or(extent));
    loop {
        if let Some(lexed) = lex_frame(extent, check, at) {
            items.push(Item::Frame(lexed));
            at = lexed.end();
        } else {
            let to = next_valid(extent, check, at, written);
            let end = to.map_or(written, |to| to as usize);
            let blank = used_len(extent.get(at as usize..end).unwrap_or_default()) == 0;
            items.push(Item::Gap { from: at, to, blank });
            let Some(next) = to else { return items };
            at = next;
        }
    }
}

/// The next frame that starts in front of `written` and lies within the extent as a whole.
fn next_valid(extent: &[u8], check: &FrameCheck, from: u32, written: usize) -> Option<u32> {
    let mut at = from.checked_add(1)?;
    let headers = extent.get(..written.saturating_add(FRAME_HEADER_LEN)).unwrap_or(extent);
    loop {
        let found = next_frame(headers, check, at)?;
        if lex_frame(extent, check, found).is_some() {
            return Some(found);
        }
        at = found.checked_add(1)?;
    }
}

fn lex_frame(extent: &[u8], check: &FrameCheck, at: u32) -> Option<Lexed> {
    let bytes = extent.get(at as usize..)?;
    let header = FrameHeader::decode_with(bytes, check, at).ok()?;
    let padded = bytes.get(FRAME_HEADER_LEN..header.frame_len())?;
    Some(Lexed { header, payload: header.check_payload(check, padded) })
}

/// The bytes of a frame's payload.
pub(crate) fn payload_of<'a>(extent: &'a [u8], header: &FrameHeader) -> &'a [u8] {
    let start = header.position.offset as usize + FRAME_HEADER_LEN;
    extent.get(start..start + header.payload_len as usize).unwrap_or_default()
}

/// What a replay gives.
#[derive(Debug, Default)]
pub(crate) struct Replayed {
    pub(crate) builder: DirectoryBuilder,
    /// Frames of which the run is not known, or that say what cannot be read.
    pub(crate) damaged: Vec<Corruption>,
}

/// Folds the frames that count, in order. `name_of` knows runs from elsewhere, for the case that a
/// segment's own BIND and START of a run are both damaged.
///
/// Batches in front of `whole` were written whole: their records count even if the COMMIT is
/// damaged, so that the damage costs no record.
pub(crate) fn replay(
    extent: &[u8],
    frames: &[Lexed],
    whole: u32,
    name_of: &mut dyn FnMut(RunNo) -> Option<(AgentId, RunId)>,
) -> Replayed {
    let names = names(extent, frames);
    let mut replayed = Replayed::default();
    let mut batch: Vec<Lexed> = Vec::new();
    for lexed in frames {
        let header = &lexed.header;
        match header.kind {
            _ if header.flags & FLAG_BATCH != 0 && header.position.offset >= whole => {
                batch.push(*lexed);
                continue;
            }
            FrameKind::Commit => {
                let members = batch.split_off(batch.len().saturating_sub(header.extra as usize));
                // A batch of one run has none of another: that one's commit never came.
                let of_one = |run_no| header.run_no == RunNo(0) || header.run_no == run_no;
                for member in members.into_iter().filter(|member| of_one(member.header.run_no)) {
                    note(&mut replayed, extent, &member, &names, name_of);
                }
            }
            // A gap or another frame in the middle of a batch: its commit never came.
            _ => {}
        }
        batch.clear();
        note(&mut replayed, extent, lexed, &names, name_of);
    }
    replayed
}

pub(crate) type Names = HashMap<RunNo, (AgentId, RunId)>;

/// The ids behind the run numbers, from every whole BIND and START.
pub(crate) fn names(extent: &[u8], frames: &[Lexed]) -> Names {
    let named = frames.iter().filter(|lexed| {
        lexed.payload.is_ok() && matches!(lexed.header.kind, FrameKind::Bind | FrameKind::Start)
    });
    named
        .filter_map(|lexed| {
            let (agent, run, _) = frame::decode_ids(payload_of(extent, &lexed.header)).ok()?;
            Some((lexed.header.run_no, (agent, run)))
        })
        .collect()
}

fn note(
    replayed: &mut Replayed,
    extent: &[u8],
    lexed: &Lexed,
    names: &Names,
    name_of: &mut dyn FnMut(RunNo) -> Option<(AgentId, RunId)>,
) {
    let header = &lexed.header;
    let mut tell = |damage| {
        replayed.damaged.push(Corruption {
            place: Place::Frame(header.position),
            damage,
            run: names.get(&header.run_no).map(|name| name.1.clone()),
            seq: (header.kind == FrameKind::Record).then_some(header.seq),
        });
    };
    if let Err(damage) = lexed.payload {
        tell(damage);
    }
    let mut evicted = Vec::new();
    if header.kind == FrameKind::Evict && lexed.payload.is_ok() {
        match eviction::evicted_runs(payload_of(extent, header)) {
            Ok(runs) => evicted = runs,
            Err(damage) => tell(damage),
        }
    }
    // A BIND says nothing by itself: the run gets its entry with its first other frame.
    let names_run = header.run_no != RunNo(0) && header.kind != FrameKind::Bind;
    if names_run && replayed.builder.run(header.run_no).is_none() {
        let name = names.get(&header.run_no).cloned().or_else(|| name_of(header.run_no));
        match name {
            Some((agent, run)) => replayed.builder.bind(header.run_no, agent, run),
            None => tell(Damage::Missing),
        }
    }
    note_frame(&mut replayed.builder, header, &evicted);
    if header.kind == FrameKind::Block {
        // No segment lists more records than its directory has room for behind its frames.
        let taken = lexed.end() as usize + frame_len(replayed.builder.encoded_len());
        let room = extent.len().saturating_sub(taken) / RECORD_COST;
        if header.extra > MAX_BLOCK_RECORDS || header.extra as usize > room {
            tell(Damage::OutOfRange { found: header.extra.into(), max: room as u64 });
        } else {
            note_block(&mut replayed.builder, header, payload_of(extent, header));
        }
    }
}

/// The frames of a segment below its end, whatever state they are in, for a sealed segment.
pub(crate) fn frames_below(items: &[Item], end: u32) -> Vec<Lexed> {
    let is_below = |lexed: &&Lexed| lexed.header.position.offset < end;
    items.iter().filter_map(Item::frame).filter(is_below).copied().collect()
}

/// The directory of a sealed segment, made anew from its frames because the stored one is damaged.
pub(crate) fn rebuild_directory(segment: &Segment) -> Result<Vec<u8>> {
    let extent = segment.read_all()?;
    let items = lex(&extent, segment.frames());
    let end = segment.sealed().map_or(u32::MAX, |sealed| sealed.end);
    let frames = frames_below(&items, end);
    let replayed = replay(&extent, &frames, end, &mut |_| None);
    let next = frames.iter().map(|lexed| lexed.header.run_no.0).max().unwrap_or(0) + 1;
    Ok(replayed.builder.encode(RunNo(next)))
}

/// The SEAL frame by which an earlier recovery ended the segment in front of evidence (section 14
/// of FORMAT.md).
pub(crate) fn truncation_marker(items: &[Item]) -> Option<&Lexed> {
    items.iter().filter_map(Item::frame).find(|Lexed { header, payload }| {
        let is_decree = header.extra < header.position.offset;
        header.kind == FrameKind::Seal && payload.is_ok() && is_decree
    })
}

/// The directory that is the payload of a SEAL frame, if both are whole.
pub(crate) fn directory_in<'a>(extent: &'a [u8], seal: &Lexed) -> Option<Directory<'a>> {
    let payload = payload_of(extent, &seal.header);
    seal.payload.and_then(|()| Directory::new(payload)).ok()
}

/// How many records are in a frame, if it is of a kind that has records.
pub(crate) fn records_in(header: &FrameHeader) -> Option<u32> {
    match header.kind {
        FrameKind::Record => Some(1),
        FrameKind::Block => Some(header.extra),
        _ => None,
    }
}

/// Which record is missing in the gap that starts at an offset.
pub(crate) type Missing = HashMap<u32, (RunNo, Seq)>;

/// The holes that gaps leave in the sequences of runs, by where the gap starts: the first record
/// behind the gap of a run that has records in front of it says which record is missing.
pub(crate) fn missing_in<'a>(items: impl Iterator<Item = &'a Item>) -> Missing {
    let mut due: HashMap<RunNo, (u32, Seq)> = HashMap::new();
    let (mut gaps, mut missing) = (Vec::new(), Missing::new());
    for item in items {
        let Some(Lexed { header, .. }) = item.frame() else {
            gaps.push(item.offset());
            continue;
        };
        let Some(records) = records_in(header) else { continue };
        let next = (header.position.offset, seq_in(header, records));
        let Some((last, seq)) = due.insert(header.run_no, next) else { continue };
        while seq < header.seq
            && let Some(gap) = gaps.pop_if(|gap| *gap > last)
        {
            missing.insert(gap, (header.run_no, seq));
        }
    }
    missing
}

/// The first offset at or behind `from` where a valid frame header stands.
pub(crate) fn next_frame(extent: &[u8], check: &FrameCheck, from: u32) -> Option<u32> {
    let start = (from.max(SEGMENT_HEADER_LEN) as usize).next_multiple_of(FRAME_ALIGN);
    (start..extent.len().saturating_sub(FRAME_HEADER_LEN - 1)).step_by(FRAME_ALIGN).find_map(|at| {
        let offset = u32::try_from(at).ok()?;
        let bytes = extent.get(at..)?;
        let position = LogPosition { segment: check.segment(), offset };
        (claims_position(bytes, position) && FrameHeader::decode_with(bytes, check, offset).is_ok())
            .then_some(offset)
    })
}
