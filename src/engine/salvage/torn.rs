//! Batches that a loss of power may have torn: what they delete did not count, and neither did the
//! documents of which they lack a part.

use std::collections::{HashMap, HashSet};

use crate::engine::state::scan::{Lexed, payload_of};
use crate::format::frames::frame::{Chunks, FLAG_BATCH, FLAG_CHUNKS, FLAG_DOCUMENT};
use crate::format::segments::segment::SEGMENT_HEADER_LEN;
use crate::format::{FrameHeader, FrameKind};
use crate::types::{Lsn, RunNo};

/// Leaves out what deletes, and documents that lack a part, in batches that lack a frame, from
/// `sure` on: what they replace counts. Returns the offsets of what it left out.
///
/// A batch without its COMMIT lacks a frame for certain if it has the START of a document and not
/// the RECORD. It may lack one in front of a part that is behind bytes which are no frame: then
/// what that part deletes is kept.
pub(crate) fn leave_torn(bytes: &[u8], frames: &mut Vec<Lexed>, sure: u32) -> HashSet<u32> {
    let mut torn = HashSet::new();
    let is_of_batch = |lexed: &Lexed| lexed.header.flags & FLAG_BATCH != 0;
    let is_unsure = |lexed: &Lexed| lexed.header.position.offset >= sure;
    if !frames.iter().any(|lexed| is_of_batch(lexed) && is_unsure(lexed)) {
        return torn;
    }
    let chunks = Chunked::of(frames);
    let is_torn = |members: &[Lexed], lacks| torn_in(members, lacks, bytes, &chunks);
    // Each part without a gap alone: a START and its RECORD are neighbours, and an EVICT is last.
    let mut leave = |from: usize, to: usize| {
        let before = from.checked_sub(1).and_then(|before| frames.get(before));
        let mut begins_at = before.map_or(SEGMENT_HEADER_LEN, Lexed::end);
        let members = frames.get(from..to).unwrap_or_default();
        for part in members.chunk_by(|one, next| one.end() == next.header.position.offset) {
            let (Some(first), Some(last)) = (part.first(), part.last()) else { continue };
            if is_unsure(last) {
                torn.extend(is_torn(part, first.header.position.offset != begins_at));
            }
            begins_at = last.end();
        }
    };
    let (mut first, mut of_commits) = (0, Vec::new());
    for (at, lexed) in frames.iter().enumerate() {
        if is_of_batch(lexed) {
            continue;
        }
        let mut own = at;
        if lexed.header.kind == FrameKind::Commit {
            // A batch has consecutive orders. In front of them is one without its COMMIT.
            let least = lexed.header.lsn.0.saturating_sub(u64::from(lexed.header.extra));
            let members = frames.get(first..at).unwrap_or_default();
            own = first + members.partition_point(|one| one.header.lsn.0 < least);
            let own = frames.get(own..at).unwrap_or_default();
            if own.last().is_some_and(is_unsure) {
                of_commits.extend(is_torn(own, own.len() < lexed.header.extra as usize));
            }
        }
        leave(first, own);
        first = at + 1;
    }
    leave(first, frames.len());
    torn.extend(of_commits);
    frames.retain(|lexed| !torn.contains(&lexed.header.position.offset));
    torn
}

/// The offsets of what goes, of a batch that may lack frames; of none if it is whole.
fn torn_in(members: &[Lexed], may_lack: bool, bytes: &[u8], chunks: &Chunked) -> Vec<u32> {
    let is_bad = |one: &Lexed| one.payload.is_err() || chunks.is_torn(bytes, one);
    let is_of_document = |one: &Lexed| one.header.flags & FLAG_DOCUMENT != 0;
    let is_whole = |one: &&Lexed| one.header.kind == FrameKind::Record && !is_bad(one);
    let whole: HashSet<RunNo> =
        members.iter().filter(is_whole).map(|one| one.header.run_no).collect();
    let lacks_record = |one: &Lexed| {
        let is_start = one.header.kind == FrameKind::Start && is_of_document(one);
        is_start && !whole.contains(&one.header.run_no)
    };
    if !may_lack && !members.iter().any(|one| is_bad(one) || lacks_record(one)) {
        return Vec::new();
    }
    let goes = |one: &&Lexed| {
        let is_part = is_of_document(one) && (is_bad(one) || lacks_record(one));
        one.header.kind == FrameKind::Evict || is_part
    };
    members.iter().filter(goes).map(|one| one.header.position.offset).collect()
}

/// The numbers of the whole chunks of a segment, by run: a version of a document has its own. They
/// are in order, each once.
struct Chunked {
    numbers: HashMap<RunNo, Vec<u32>>,
    first: Lsn,
}

impl Chunked {
    fn of(frames: &[Lexed]) -> Self {
        let mut numbers = HashMap::<_, Vec<u32>>::new();
        for lexed in frames {
            let FrameHeader { kind, run_no, extra, .. } = lexed.header;
            if kind == FrameKind::Chunk && lexed.payload.is_ok() {
                numbers.entry(run_no).or_default().push(extra);
            }
        }
        for of_run in numbers.values_mut() {
            of_run.sort_unstable();
            of_run.dedup();
        }
        Self { numbers, first: frames.first().map_or(Lsn(0), |lexed| lexed.header.lsn) }
    }

    /// Whether a version of a document lacks a chunk that must be in the segment: from the first
    /// one that is there, or that was, to the last.
    fn is_torn(&self, bytes: &[u8], record: &Lexed) -> bool {
        let FrameHeader { kind, flags, name_len, run_no, .. } = record.header;
        let wanted = FLAG_CHUNKS | FLAG_DOCUMENT;
        if kind != FrameKind::Record || flags & wanted != wanted {
            return false;
        }
        let said = payload_of(bytes, &record.header).get(usize::from(name_len)..);
        let Some(Ok(chunks)) = said.map(Chunks::decode) else { return true };
        let there = self.numbers.get(&run_no);
        let first = there.and_then(|numbers| numbers.first().copied()).unwrap_or(chunks.count);
        let first = if self.first <= chunks.first { 0 } else { first };
        let below = |end: u32| there.map_or(0, |numbers| numbers.partition_point(|no| *no < end));
        let count = below(chunks.count).saturating_sub(below(first));
        (count as u64) < u64::from(chunks.count.saturating_sub(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::codec::len_u32;
    use crate::format::frames::frame::FRAME_HEADER_LEN;
    use crate::types::Timestamp;

    #[test]
    fn a_number_beyond_the_count_of_chunks_does_no_harm() {
        let chunks = Chunks { first: Lsn(1), count: 3 }.encode();
        let mut header = FrameHeader::new(FrameKind::Record, RunNo(1), Timestamp(0));
        header.flags = FLAG_CHUNKS | FLAG_DOCUMENT;
        header.payload_len = len_u32(chunks.len());
        let bytes = [&[0; FRAME_HEADER_LEN][..], &chunks].concat();
        let record = Lexed { header, payload: Ok(()) };
        let numbers = HashMap::from([(RunNo(1), vec![7])]);
        assert!(!Chunked { numbers, first: Lsn(5) }.is_torn(&bytes, &record));
    }
}
