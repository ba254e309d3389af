//! Checking a whole segment without changing anything, for `verify`.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::engine::read::block::{each_record, inner_damage};
use crate::engine::read::trace::Trace;
use crate::engine::state::scan::{
    Item, Lexed, frames_below, lex, missing_in, names, payload_of, records_in, replay,
};
use crate::engine::state::segment::Segment;
use crate::engine::verify::VerifyReport;
use crate::error::{Corruption, Damage, Error, Place, Result};
use crate::format::frames::frame::FLAG_CHUNKS;
use crate::format::segments::segment::SEGMENT_HEADER_LEN;
use crate::format::{Directory, FrameKind};
use crate::types::{AgentId, RunId, RunNo, Seq};

/// The large records that a check finds, by run. They may have chunks in other segments.
pub(crate) type Large = BTreeMap<RunNo, BTreeSet<Seq>>;

/// Reads the large records of a run: valid frames do not show whether all chunks exist. It goes
/// through the run once, since looking for one record may take time linear in damaged ones.
pub(crate) fn read_large(
    trace: Trace,
    large: &BTreeSet<Seq>,
    report: &mut VerifyReport,
) -> Result<()> {
    let (Some(first), Some(last)) = (large.first(), large.last()) else { return Ok(()) };
    let within = match trace.range(*first..=*last) {
        Err(Error::Evicted { .. }) => return Ok(()),
        within => report.unless_damaged(within)?,
    };
    for read in within.into_iter().flatten() {
        match read {
            // The check of the frames tells of other damage. The run may have been deleted since.
            Err(Error::Corrupt(damage)) if damage.seq.is_none_or(|seq| !large.contains(&seq)) => {}
            Err(Error::NeedsFeature { .. } | Error::Evicted { .. }) => {}
            read => drop(report.unless_damaged(read)?),
        }
    }
    Ok(())
}

/// Finds the agent and the run of a number outside of the segment's frames.
pub(crate) type NameOf<'n> = &'n dyn Fn(RunNo) -> Option<(AgentId, RunId)>;

/// Checks a sealed segment: every frame up to its end, the directory, and each against the other.
pub(crate) fn check_sealed(
    segment: &Segment,
    name_of: NameOf<'_>,
    large: &mut Large,
) -> Result<VerifyReport> {
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
    let frames = check.walk(segment, (&extent, &items), sealed.end, (&named, name_of), large);
    if let Some((stored, directory)) = stored.as_deref().zip(known) {
        check.compare(segment, &extent, &frames, (stored, &directory));
    }
    check.bytes = u64::from(sealed.end);
    Ok(check)
}

/// Checks the tail's segment up to its end.
pub(crate) fn check_tail(
    segment: &Segment,
    end: u32,
    name_of: NameOf<'_>,
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
        let run = runs.get(&run_no).cloned().or_else(|| name_of(run_no))?;
        Some((item.offset(), Name { run, seq: Some(seq), records: 1 }))
    });
    let named: Names = named.collect();
    let frames = check.walk(segment, (&extent, &items), end, (&named, name_of), large);
    check.run_parts = replay(&extent, &frames, end, &mut |_| None).builder.runs().len() as u64;
    check.bytes = u64::from(end.min(u32::try_from(extent.len()).unwrap_or(u32::MAX)));
    Ok(check)
}

/// The records by offset, as the directory lists them: for a block, the first one.
type Names = HashMap<u32, Name>;

/// The run, the sequence if it is known, and the number of records in the frame.
#[derive(Debug, Clone)]
struct Name {
    run: (AgentId, RunId),
    seq: Option<Seq>,
    records: u32,
}

impl Name {
    /// The sequences of the records, if they are known.
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
            let seq = entry
                .first_seq
                .filter(|_| whole)
                .map(|seq| Seq(seq.0.saturating_add(index.into())));
            let new = || Name { run: (entry.agent.clone(), entry.run.clone()), seq, records: 0 };
            names.entry(offset).or_insert_with(new).records += 1;
        }
    }
    names
}

/// The damage of a frame, for each record that it affects.
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
    /// Lists every invalid frame below `end`, and every gap.
    fn walk(
        &mut self,
        segment: &Segment,
        (extent, items): (&[u8], &[Item]),
        end: u32,
        (names, name_of): (&Names, NameOf<'_>),
        large: &mut Large,
    ) -> Vec<Lexed> {
        let mut frames = Vec::new();
        for item in items.iter().take_while(|item| item.offset() < end) {
            let place = Place::Frame(segment.position(item.offset()));
            let name = names.get(&item.offset());
            let run = name.map(|name| &name.run);
            match item {
                Item::Frame(lexed) => {
                    self.frames += 1;
                    self.records += u64::from(records_in(&lexed.header).unwrap_or(0));
                    // At most as many problems as the directory lists records.
                    let most = name.map_or(1, |name| name.records as usize);
                    for (seq, damage) in damage_in(extent, lexed).into_iter().take(most) {
                        let problem = Corruption::new(place, damage).of_named(run).at(seq);
                        // Directories list only records; for other frames the header has the run.
                        let known = run.is_none().then(|| name_of(lexed.header.run_no)).flatten();
                        self.problems.push(problem.of_named(known.as_ref()));
                    }
                    let header = &lexed.header;
                    if header.kind == FrameKind::Record && header.flags & FLAG_CHUNKS != 0 {
                        large.entry(header.run_no).or_default().insert(header.seq);
                    }
                    frames.push(*lexed);
                }
                Item::Gap { .. } => {
                    let damage = Damage::Missing;
                    let seqs = name.map_or_else(|| vec![None], |name| name.seqs().collect());
                    let problem = |seq| Corruption::new(place, damage).of_named(run).at(seq);
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

    /// Compares the directory with one that is rebuilt from the frames, if all frames are whole.
    fn compare(
        &mut self,
        segment: &Segment,
        extent: &[u8],
        frames: &[Lexed],
        (stored, directory): (&[u8], &Directory<'_>),
    ) {
        self.run_parts = directory.run_count().into();
        if !self.problems.is_empty() {
            return;
        }
        let place = Place::Directory { segment: segment.id() };
        let rebuilt = replay(extent, frames, u32::MAX, &mut |_| None).builder;
        if rebuilt.encode(directory.next_run_no()) != stored {
            self.problems.push(Corruption::new(place, Damage::Mismatch));
        }
    }
}
