//! Replaying the log: which frames of the unsealed segments count.
//!
//! The log ends in front of the first place above the floor that is not a whole frame, and in front
//! of the first frame of a batch without its COMMIT. Below the floor, damage of one item costs that
//! item; other damage refuses the store ([`decide`]).

use core::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::engine::open::Floor;
use crate::engine::open::decide::{Action, Bytes, decide};
use crate::engine::state::scan::{Item, Lexed, directory_in, lex_up_to, payload_of, replay};
use crate::engine::state::segment::Segment;
use crate::engine::storage::disk::Disk;
use crate::engine::values::report::RecoveryReport;
use crate::error::{Corruption, Damage, Place, Result};
use crate::format::codec::len_u32;
use crate::format::frames::frame::{FLAG_BATCH, FRAME_ALIGN};
use crate::format::frames::ids;
use crate::format::map::manifest::{SealedAt, used_len};
use crate::format::segments::segment::{SEGMENT_HEADER_LEN, SegmentHeader};
use crate::format::{DirectoryBuilder, FrameKind};
use crate::types::{LogPosition, Lsn, RunNo, SegmentId};

/// An unsealed segment with frames that count, or the one in which the log goes on.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) segment: Arc<Segment>,
    /// Its header, if that checks.
    pub(crate) header: Option<SegmentHeader>,
    pub(crate) builder: DirectoryBuilder,
    /// The end of the frames that count, without the SEAL frame.
    pub(crate) end: u32,
    /// Its SEAL frame, if that is whole.
    pub(crate) sealed: Option<SealedAt>,
    /// The bytes above the floor that count, as they were checked, and where they begin.
    kept: (u32, Vec<u8>),
    /// Only zeros follow this offset.
    written: u32,
}

impl Recovered {
    /// Whether bytes are behind the end that do not count.
    pub(crate) fn is_torn(&self) -> bool {
        self.sealed.is_none() && self.written > self.end
    }

    /// Writes the bytes that count and may not be durable again (O19): those that were checked,
    /// because a second read may find other bytes after a failed sync.
    pub(crate) fn write_again(&self, disk: &Disk) -> Result<()> {
        let (start, kept) = &self.kept;
        if kept.is_empty() {
            return Ok(());
        }
        disk.write(self.segment.file_offset() + u64::from(*start), kept)
    }

    /// Overwrites everything behind the end with zeros, so that the log goes on in this segment if
    /// there is no space for another. It writes the last block first: so a crash never leaves a
    /// valid frame behind one that is gone.
    ///
    /// The last word, which has a byte that is not zero, stays until the zeros are durable: after a
    /// failed sync they may be in memory alone, and the next opening must write them again.
    pub(crate) fn clear(&mut self, disk: &Disk) -> Result<()> {
        let at = |offset: u32| self.segment.file_offset() + u64::from(offset);
        if self.written > self.end {
            let word = self.written - len_u32(FRAME_ALIGN);
            let mut last = word;
            while last > self.end {
                let block = (last - 1) / BLOCK * BLOCK;
                let first = block.max(self.end);
                disk.zero(at(first), (last - first) as usize)?;
                last = first;
            }
            disk.sync()?;
            disk.zero(at(word), FRAME_ALIGN)?;
        }
        self.kept.1.truncate(self.end.saturating_sub(self.kept.0) as usize);
        (self.sealed, self.written) = (None, self.end);
        Ok(())
    }
}

/// The unit of [`Recovered::clear`].
const BLOCK: u32 = 4096;

/// The result for all unsealed segments.
#[derive(Debug, Default)]
pub(crate) struct RecoveredLog {
    /// Those up to the end of the log, in its order. All but the last one have a whole SEAL frame.
    pub(crate) segments: Vec<Recovered>,
    /// Those behind the end of the log, and whether they have only zeros behind their headers.
    pub(crate) behind: Vec<(Arc<Segment>, bool)>,
    /// Everything in front of it was durable.
    pub(crate) floor: LogPosition,
    /// The same as far as the frames that count state it.
    pub(crate) floor_of_kept: LogPosition,
    /// Why the store must not be opened for writing.
    pub(crate) refused: Option<Corruption>,
    pub(crate) next_lsn: Lsn,
    pub(crate) next_run_no: RunNo,
}

impl RecoveredLog {
    /// Whether the log goes on where it ends: only zeros follow.
    pub(crate) fn ends_clean(&self) -> bool {
        let is_clean = |last: &Recovered| last.sealed.is_none() && !last.is_torn();
        self.segments.last().is_some_and(is_clean) && self.behind.iter().all(|(_, blank)| *blank)
    }
}

/// An unsealed segment as it was read. It is read only once, because a process that only reads may
/// find other bytes the next time.
struct Scanned<'a> {
    segment: &'a Arc<Segment>,
    extent: Vec<u8>,
    items: Vec<Item>,
}

/// Reads the unsealed segments, in the order of the log.
pub(crate) fn recover_log(
    unsealed: &BTreeMap<SegmentId, Arc<Segment>>,
    floor: Floor,
    report: &mut RecoveryReport,
) -> Result<RecoveredLog> {
    let mut log = RecoveredLog { floor: floor.at, ..RecoveredLog::default() };
    let mut scanned = Vec::new();
    // From the last to the first: so a writer that goes on meanwhile has written all of a segment,
    // as it is read, of which a later one has frames.
    for segment in unsealed.values().rev() {
        let extent = segment.read_unsealed()?;
        let items = lex_up_to(&extent, segment.frames(), segment.data_end());
        for Lexed { header, .. } in items.iter().filter_map(Item::frame) {
            // Frames behind the end state the floor too, and their numbers are not reused.
            log.floor = log.floor.max(header.durable().unwrap_or_default());
            log.next_lsn = log.next_lsn.max(Lsn(header.lsn.0.saturating_add(1)));
            let next = RunNo(header.run_no.0.saturating_add(1));
            log.next_run_no = log.next_run_no.max(next);
        }
        scanned.push(Scanned { segment, extent, items });
    }
    let mut ended = false;
    for one in scanned.into_iter().rev() {
        report.scanned_segments += 1;
        if ended {
            let frames = one.extent.get(SEGMENT_HEADER_LEN as usize..).unwrap_or_default();
            log.behind.push((Arc::clone(one.segment), used_len(frames) == 0));
            continue;
        }
        let recovered = recover_segment(one, floor, &mut log, report);
        ended = recovered.sealed.is_none();
        log.segments.push(recovered);
    }
    let last = log.segments.last();
    let is_torn =
        last.is_some_and(Recovered::is_torn) || log.behind.iter().any(|(_, blank)| !blank);
    report.torn = last.filter(|_| is_torn).map(|last| last.segment.position(last.end));
    Ok(log)
}

fn recover_segment(
    Scanned { segment, mut extent, items }: Scanned<'_>,
    floor: Floor,
    log: &mut RecoveredLog,
    report: &mut RecoveryReport,
) -> Recovered {
    let (frames, seal) = frames_that_count(segment, (&extent, &items), floor, log);
    let end = frames.last().map_or(SEGMENT_HEADER_LEN, Lexed::end);
    let replayed = replay(&extent, &frames, u32::MAX, &mut |_| None);
    report.damaged.extend(replayed.damaged);
    report.frames += frames.len() as u64;
    let kept = frames.iter().filter_map(|lexed| lexed.header.durable());
    log.floor_of_kept = log.floor_of_kept.max(kept.max().unwrap_or_default());
    let sealed = seal.map(|lexed| {
        SealedAt::of(&replayed.builder, end, &lexed.header, RunNo(lexed.header.seq.0))
    });
    log.next_run_no = log.next_run_no.max(sealed.map_or(RunNo(0), |at| at.next_run_no));
    let written = len_u32(used_len(&extent).next_multiple_of(FRAME_ALIGN)).max(SEGMENT_HEADER_LEN);
    let header = SegmentHeader::decode(&extent).ok().filter(|header| header.key == segment.key());
    let start = match log.floor.segment.cmp(&segment.id()) {
        Ordering::Less => SEGMENT_HEADER_LEN,
        Ordering::Equal => log.floor.offset.max(SEGMENT_HEADER_LEN),
        Ordering::Greater => u32::MAX,
    };
    let stop = seal.map_or(end, |lexed| lexed.end());
    extent.truncate(stop as usize);
    extent.drain(..extent.len().min(start as usize));
    Recovered {
        segment: Arc::clone(segment),
        header,
        builder: replayed.builder,
        end,
        sealed,
        kept: (start, extent),
        written,
    }
}

/// The frames of a segment that count, and its SEAL frame if that counts too.
fn frames_that_count(
    segment: &Segment,
    (extent, items): (&[u8], &[Item]),
    floor: Floor,
    log: &mut RecoveredLog,
) -> (Vec<Lexed>, Option<Lexed>) {
    let mut frames: Vec<Lexed> = Vec::new();
    for item in items {
        let at = segment.position(item.offset());
        if floor.durable_only && at >= log.floor {
            break;
        }
        let bytes = match item.frame() {
            None => Bytes::BadHeader,
            Some(lexed) => judge(segment, (extent, lexed), &frames, at < log.floor),
        };
        match decide(bytes, at < log.floor) {
            Action::Accept | Action::Report => {}
            Action::End => break,
            Action::Refuse => {
                let damage = match item {
                    Item::Frame(Lexed { payload: Err(damage), .. }) => *damage,
                    _ => Damage::Missing,
                };
                log.refused.get_or_insert(Corruption::new(Place::Frame(at), damage));
                break;
            }
        }
        let Item::Frame(lexed) = item else { break };
        if lexed.header.kind == FrameKind::Seal {
            return (frames, Some(*lexed));
        }
        frames.push(*lexed);
    }
    // A batch in front of the floor is whole.
    let is_open = |lexed: &mut Lexed| {
        lexed.header.flags & FLAG_BATCH != 0
            && segment.position(lexed.header.position.offset) >= log.floor
    };
    while frames.pop_if(is_open).is_some() {}
    (frames, None)
}

/// What a frame is for the table. Below the floor, a damaged directory that can be built again
/// exactly is whole. Above it, recovery writes the SEAL frame again.
fn judge(
    segment: &Segment,
    (extent, lexed): (&[u8], &Lexed),
    frames: &[Lexed],
    below_floor: bool,
) -> Bytes {
    let header = &lexed.header;
    if header.kind == FrameKind::Seal {
        let is_whole = || directory_in(segment, extent, lexed).is_some();
        let is_built = || {
            let built = replay(extent, frames, u32::MAX, &mut |_| None).builder;
            let key = segment.directory_key(header.extra);
            crc32fast::hash(&built.encode(&key, RunNo(header.seq.0))) == header.payload_crc
        };
        let is_here = header.extra == header.position.offset;
        let counts = is_here && (is_whole() || (below_floor && is_built()));
        return if counts { Bytes::Valid } else { Bytes::BadBasis };
    }
    let names_run = || ids::names_in(header.kind, payload_of(extent, header)).is_some();
    match (lexed.payload, header.kind) {
        (Ok(()), _) => Bytes::Valid,
        (Err(_), FrameKind::Evict) => Bytes::BadBasis,
        (Err(_), FrameKind::Bind | FrameKind::Start | FrameKind::Put) if !names_run() => {
            Bytes::BadBasis
        }
        (Err(_), _) => Bytes::BadItem,
    }
}
