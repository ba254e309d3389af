//! Folding frames into the directory of their segment. Append, compaction and recovery all use this
//! module, so that they cannot differ.

use crate::format::frames::block::BlockHead;
use crate::format::frames::frame::{
    FLAG_CHUNKS, FLAG_COMPRESSED, FLAG_CREATES, FLAG_DOCUMENT, FLAG_IMPLICIT, FLAG_LATE, FLAG_PLAIN,
};
use crate::format::frames::slice::PieceAt;
use crate::format::segments::directory::{EndAt, EvictionAt, HoldAt, StartAt};
use crate::format::segments::directory_builder::{ChunkAt, RecordsAt};
use crate::format::{DirectoryBuilder, FrameHeader, FrameKind, RunEntry};
use crate::types::{Lsn, RunNo, RunStatus};

/// Notes a frame that counts in the directory of its segment. Its run must have an entry.
pub(crate) fn note_frame(
    builder: &mut DirectoryBuilder,
    header: &FrameHeader,
    evicted: &[(RunNo, bool)],
) {
    builder.note_lsn(header.lsn);
    for &(run_no, with_receipt) in evicted {
        let offset = header.position.offset;
        builder.push_eviction(EvictionAt { run_no, offset, with_receipt });
    }
    // A BIND only names its run, as the entry does.
    if header.kind == FrameKind::Bind {
        return;
    }
    let Some(slot) = builder.slot(header.run_no) else { return };
    let offset = header.position.offset;
    match header.kind {
        FrameKind::Record | FrameKind::Put => {
            builder.push_records_at(slot, records_at(header, 1), |entry| {
                note_any(entry, header);
                if header.kind == FrameKind::Put {
                    entry.created_at.get_or_insert(header.at);
                }
                count_record(entry, header);
            });
        }
        FrameKind::Chunk => {
            let row = if header.extra == 0 { header.lsn } else { Lsn(header.seq.0) };
            let chunk = ChunkAt { offset, lsn: header.lsn, row, number: header.extra };
            builder.push_chunk_at(slot, chunk, |entry| {
                note_cold(entry, 1, header.flags & (FLAG_COMPRESSED | FLAG_PLAIN) != 0);
                note_any(entry, header);
            });
        }
        FrameKind::Piece => {
            builder.push_piece(PieceAt::of(header));
            builder.update(header.run_no, |entry| note_any(entry, header));
        }
        _ => builder.update(header.run_no, |entry| {
            note_any(entry, header);
            note_mark(entry, header);
        }),
    }
}

/// Notes what each frame says of its run.
fn note_any(entry: &mut RunEntry, header: &FrameHeader) {
    entry.stored += header.frame_len() as u64;
    entry.document |= header.flags & FLAG_DOCUMENT != 0;
    // A chunk alone does not count: its record may be incomplete. A hold is no activity, and the
    // records of a piece say their times.
    if !matches!(header.kind, FrameKind::Chunk | FrameKind::Hold | FrameKind::Piece) {
        entry.last_at = entry.last_at.max(header.at);
    }
}

/// Notes a START, END or HOLD.
fn note_mark(entry: &mut RunEntry, header: &FrameHeader) {
    let offset = header.position.offset;
    match header.kind {
        FrameKind::Start => {
            if header.flags & FLAG_CREATES != 0 {
                entry.created_at.get_or_insert(header.at);
            }
            if header.flags & FLAG_IMPLICIT == 0 {
                entry.start.get_or_insert(StartAt { offset, at: header.at });
            }
        }
        FrameKind::End => {
            let status =
                RunStatus::from_code(header.content.code()).unwrap_or(RunStatus::Interrupted);
            let end = EndAt { offset, at: header.at, status, lsn: header.lsn };
            if entry.end.is_none_or(|known| known.lsn <= end.lsn) {
                entry.end = Some(end);
            }
        }
        FrameKind::Hold => {
            let hold = HoldAt { offset, lsn: header.lsn, held: header.extra != 0 };
            if entry.hold.is_none_or(|known| known.lsn <= hold.lsn) {
                entry.hold = Some(hold);
            }
        }
        _ => {}
    }
}

fn records_at(header: &FrameHeader, count: u32) -> RecordsAt {
    RecordsAt { offset: header.position.offset, lsn: header.lsn, seq: header.seq, count }
}

/// Notes a record like [`note_frame`], in the existing entry of its run.
#[inline]
pub(crate) fn note_record(builder: &mut DirectoryBuilder, slot: usize, header: &FrameHeader) {
    builder.note_lsn(header.lsn);
    builder.push_records_at(slot, records_at(header, 1), |entry| {
        entry.stored += header.frame_len() as u64;
        entry.last_at = entry.last_at.max(header.at);
        count_record(entry, header);
    });
}

/// Notes the facts of a record that was just counted.
fn count_record(entry: &mut RunEntry, header: &FrameHeader) {
    note_cold(entry, 1, header.flags & FLAG_PLAIN != 0);
    entry.late += u32::from(header.flags & FLAG_LATE != 0);
    let in_frame = header.record_len().saturating_sub(u32::from(header.name_len));
    let is_in_chunks = header.flags & FLAG_CHUNKS != 0;
    entry.bytes += u64::from(if is_in_chunks { header.extra } else { in_frame });
}

/// Notes the records of a block, after [`note_frame`]. If its payload is damaged, only what the
/// header of the frame says is noted.
pub(crate) fn note_block(builder: &mut DirectoryBuilder, block: &FrameHeader, payload: &[u8]) {
    let head = BlockHead::decode(block, payload).ok().map(|(head, _)| head);
    if let Some(head) = head {
        builder.note_lsn(head.last_lsn);
    }
    let Some(slot) = builder.slot(block.run_no) else { return };
    builder.push_records_at(slot, records_at(block, block.extra), |entry| {
        note_cold(entry, block.extra, true);
        if let Some(head) = head {
            entry.late = entry.late.saturating_add(head.late);
            entry.bytes = entry.bytes.saturating_add(head.bytes);
        }
    });
}

/// Updates whether a run is cold in a segment, after `added` records or chunks: whether all of its
/// records and chunks there are.
fn note_cold(entry: &mut RunEntry, added: u32, cold: bool) {
    let is_first = entry.records.saturating_add(entry.chunks) == added;
    entry.cold = cold && (entry.cold || is_first);
}
