//! Checking a whole segment without changing anything: what `verify` does for each.

use std::collections::{BTreeSet, HashMap};

use crate::engine::read::block::{each_record, inner_damage};
use crate::engine::state::scan::{
    Item, Lexed, frames_below, lex, missing_in, names, payload_of, records_in, replay,
};
use crate::engine::state::segment::Segment;
use crate::engine::verify::VerifyReport;
use crate::error::{Corruption, Damage, Error, Place, Result};
use crate::format::frames::frame::FLAG_CHUNKS;
use crate::format::segments::segment::SEGMENT_HEADER_LEN;
use crate::format::{Directory, FrameKind};
use crate::types::{RunId, RunNo, Seq};

/// The large records that a check meets, which may have chunks in other segments.
pub(crate) type Large = BTreeSet<(RunNo, Seq)>;

/// Checks a sealed segment: every frame up to its end, the directory, and one against the other.
pub(crate) fn check_sealed(segment: &Segment, large: &mut Large) -> Result<VerifyReport> {
    let mut check = VerifyReport { segments: 1, ..VerifyReport::default() };
    let Some(sealed) = segment.sealed() else { return Ok(check) };
    let extent = segment.read_all()?;
    let items = lex(&extent, segment.frames());
    let stored = match segment.stored_directory() {
        Ok(bytes) => Some(bytes),
        Err(Error::Corrupt(corruption)) => {
            check.problems.push(Corruption {
                place: Place::Directory { segment: segment.id() },
                ..corruption
            });
            None
        }
        Err(error) => return Err(error),
    };
    let known = stored.as_ref().and_then(|bytes| Directory::new(bytes).ok());
    let named = known.map(|directory| record_names(&directory)).unwrap_or_default();
    let frames = check.walk(segment, (&extent, &items), sealed.end, &named, large);
    if let Some(directory) = known {
        check.compare(segment, &extent, &frames, &directory);
    }
    check.bytes = u64::from(sealed.end);
    Ok(check)
}

/// Checks the segment that is being written, up to what was written.
/// `name_of` knows runs from elsewhere.
pub(crate) fn check_tail(
    segment: &Segment,
    end: u32,
    name_of: impl Fn(RunNo) -> Option<RunId>,
    large: &mut Large,
) -> Result<VerifyReport> {
    let mut check = VerifyReport { segments: 1, ..VerifyReport::default() };
    let extent = segment.read_up_to(end as usize)?;
    let items = lex(&extent, segment.frames());
    let runs = names(&extent, &frames_below(&items, end));
    let missing = missing_in(items.iter().take_while(|item| item.offset() < end));
    let named = items.iter().filter_map(|item| {
        let (run_no, seq) = match item {
            Item::Frame(lexed) => (lexed.header.run_no, lexed.header.seq),
            Item::Gap { from, .. } => *missing.get(from)?,
        };
        let run = match runs.get(&run_no) {
            Some((_, run)) => run.clone(),
            None => name_of(run_no)?,
        };
        Some((item.offset(), Name { run, seq: Some(seq), records: 1 }))
    });
    let named: Names = named.collect();
    let frames = check.walk(segment, (&extent, &items), end, &named, large);
    check.run_parts = replay(&extent, &frames, end, &mut |_| None).builder.runs().len() as u64;
    check.bytes = u64::from(end.min(u32::try_from(extent.len()).unwrap_or(u32::MAX)));
    Ok(check)
}

/// Which record is where, as the directory has it: the first one of those in a block.
type Names = HashMap<u32, Name>;

/// The run, the sequence if it is known, and how many records are in the same frame.
#[derive(Debug, Clone)]
struct Name {
    run: RunId,
    seq: Option<Seq>,
    records: u32,
}

impl Name {
    /// The sequences of the records, as far as they are known.
    fn seqs(&self) -> impl Iterator<Item = Option<Seq>> + '_ {
        let seq = |rank| self.seq.map(|seq| Seq(seq.0.saturating_add(u64::from(rank))));
        (0..self.records).map(seq)
    }
}

fn record_names(directory: &Directory<'_>) -> Names {
    let mut names = Names::new();
    for slot in 0..directory.run_count() {
        let Ok(entry) = directory.run(slot) else { continue };
        let whole = entry.first_seq.is_some_and(|first| {
            entry.next_seq.0.checked_sub(first.0) == Some(u64::from(entry.records))
        });
        for index in 0..entry.records {
            let Ok(offset) = directory.record_offset(slot, index) else { break };
            let seq = entry.first_seq.filter(|_| whole).map(|seq| Seq(seq.0 + u64::from(index)));
            let new = || Name { run: entry.run.clone(), seq, records: 0 };
            names.entry(offset).or_insert_with(new).records += 1;
        }
    }
    names
}

/// What is wrong with a frame, by the records that it costs.
fn damage_in(extent: &[u8], lexed: &Lexed) -> Vec<(Option<Seq>, Damage)> {
    let header = &lexed.header;
    match (lexed.payload, header.kind) {
        (Ok(()), _) => inner_damage(header, payload_of(extent, header)),
        (Err(damage), FrameKind::Block) => each_record(header, damage).collect(),
        (Err(damage), FrameKind::Record) => vec![(Some(header.seq), damage)],
        (Err(damage), _) => vec![(None, damage)],
    }
}

impl VerifyReport {
    /// Lists every frame below `end` that does not check, and every gap.
    fn walk(
        &mut self,
        segment: &Segment,
        (extent, items): (&[u8], &[Item]),
        end: u32,
        names: &Names,
        large: &mut Large,
    ) -> Vec<Lexed> {
        let mut frames = Vec::new();
        for item in items.iter().take_while(|item| item.offset() < end) {
            let place = Place::Frame(segment.position(item.offset()));
            let name = names.get(&item.offset());
            let run = || name.map(|name| name.run.clone());
            match item {
                Item::Frame(lexed) => {
                    self.frames += 1;
                    self.records += u64::from(records_in(&lexed.header).unwrap_or(0));
                    // No more problems than the directory lists records, whatever a block says.
                    let most = name.map_or(1, |name| name.records as usize);
                    for (seq, damage) in damage_in(extent, lexed).into_iter().take(most) {
                        self.problems.push(Corruption { place, damage, run: run(), seq });
                    }
                    let header = &lexed.header;
                    if header.kind == FrameKind::Record && header.flags & FLAG_CHUNKS != 0 {
                        large.insert((header.run_no, header.seq));
                    }
                    frames.push(*lexed);
                }
                Item::Gap { .. } => {
                    let damage = Damage::Missing;
                    let seqs = name.map_or_else(|| vec![None], |name| name.seqs().collect());
                    let problem = |seq| Corruption { place, damage, run: run(), seq };
                    self.problems.extend(seqs.into_iter().map(problem));
                }
            }
        }
        if frames.is_empty() && end > SEGMENT_HEADER_LEN && end != u32::MAX && items.is_empty() {
            let place = Place::Frame(segment.position(SEGMENT_HEADER_LEN));
            self.problems.push(Corruption::new(place, Damage::Missing));
        }
        frames
    }

    /// Compares the directory with one that is made from the frames, where all frames are whole.
    fn compare(
        &mut self,
        segment: &Segment,
        extent: &[u8],
        frames: &[Lexed],
        directory: &Directory<'_>,
    ) {
        self.run_parts = directory.run_count().into();
        if !self.problems.is_empty() {
            return;
        }
        let place = Place::Directory { segment: segment.id() };
        let rebuilt = replay(extent, frames, u32::MAX, &mut |_| None).builder;
        let same_evictions = directory.evictions().eq(rebuilt.evictions().map(Ok));
        let same_count = rebuilt.runs().len() == directory.run_count() as usize;
        let same_runs = rebuilt.runs().iter().all(|built| {
            let slot = directory.find_no(built.entry.run_no).ok().flatten();
            slot.is_some_and(|slot| {
                directory.run(slot).as_ref() == Ok(&built.entry)
                    && (0..)
                        .zip(built.offsets.iter().chain(&built.chunks))
                        .all(|(at, offset)| directory.record_offset(slot, at) == Ok(*offset))
            })
        });
        if !(same_evictions && same_count && same_runs) {
            self.problems.push(Corruption::new(place, Damage::Mismatch));
        }
    }
}
