//! Folding frames into the directory of their segment. Append, compaction and recovery all use this
//! module, so that they cannot differ.

use crate::format::frames::block::{BlockHead, seq_in};
use crate::format::frames::frame::{
    FLAG_CHUNKS, FLAG_COMPRESSED, FLAG_CREATES, FLAG_DOCUMENT, FLAG_IMPLICIT, FLAG_LATE, FLAG_PLAIN,
};
use crate::format::segments::directory::{EndAt, EvictionAt, HoldAt, StartAt};
use crate::format::{DirectoryBuilder, FrameHeader, FrameKind, RunEntry};
use crate::types::{RunNo, RunStatus};

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
    let Some(entry) = builder.run_mut(header.run_no) else { return };
    entry.stored += header.frame_len() as u64;
    entry.document |= header.flags & FLAG_DOCUMENT != 0;
    // A chunk alone does not count: its record may be incomplete. A hold is no activity.
    if !matches!(header.kind, FrameKind::Chunk | FrameKind::Hold) {
        entry.last_at = entry.last_at.max(header.at);
    }
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
        FrameKind::Chunk => {
            note_cold(entry, header.flags & (FLAG_COMPRESSED | FLAG_PLAIN) != 0);
            entry.first_lsn = entry.first_lsn.min(header.lsn);
            builder.push_chunk(header.run_no, offset);
        }
        FrameKind::Record => {
            count_record(entry, header);
            builder.push_record(header.run_no, offset);
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

/// Notes a record like [`note_frame`], in the existing entry of its run.
#[inline]
pub(crate) fn note_record(builder: &mut DirectoryBuilder, slot: usize, header: &FrameHeader) {
    builder.note_lsn(header.lsn);
    let Some(entry) = builder.push_record_at(slot, header.position.offset) else { return };
    entry.stored += header.frame_len() as u64;
    entry.last_at = entry.last_at.max(header.at);
    count_record(entry, header);
}

fn count_record(entry: &mut RunEntry, header: &FrameHeader) {
    note_cold(entry, header.flags & FLAG_PLAIN != 0);
    entry.first_lsn = entry.first_lsn.min(header.lsn);
    entry.first_seq.get_or_insert(header.seq);
    entry.next_seq = entry.next_seq.max(crate::types::Seq(header.seq.0.saturating_add(1)));
    entry.records += 1;
    entry.late += u32::from(header.flags & FLAG_LATE != 0);
    let in_frame = header.payload_len.saturating_sub(u32::from(header.name_len));
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
    let Some(entry) = builder.run_mut(block.run_no) else { return };
    note_cold(entry, true);
    entry.first_lsn = entry.first_lsn.min(block.lsn);
    entry.first_seq.get_or_insert(block.seq);
    entry.next_seq = entry.next_seq.max(seq_in(block, block.extra));
    entry.records = entry.records.saturating_add(block.extra);
    if let Some(head) = head {
        entry.late = entry.late.saturating_add(head.late);
        entry.bytes = entry.bytes.saturating_add(head.bytes);
    }
    for _ in 0..block.extra {
        builder.push_record(block.run_no, block.position.offset);
    }
}

/// Updates whether a run is cold in a segment: whether all of its records and chunks there are.
fn note_cold(entry: &mut RunEntry, cold: bool) {
    entry.cold = cold && (entry.cold || entry.records == 0 && entry.chunks == 0);
}
