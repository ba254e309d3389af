//! Checking a whole segment without changing anything, for `verify`.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::engine::read::block::unique::Unique;
use crate::engine::read::block::{each_record, inner_damage};
use crate::engine::state::scan::{
    Item, Lexed, Piece, Replayed, lex, payload_of, pieces_in, records_in, replay_piece,
};
use crate::engine::state::segment::Segment;
use crate::engine::verify::VerifyReport;
use crate::error::{Corruption, Damage, Error, Place, Result};
use crate::format::frames::slice::PieceAt;
use crate::format::{Directory, FrameKind};
use crate::types::{AgentId, RunId, RunNo, Seq};

/// Checks a segment: every frame up to its end, the directory, and each against the other. For the
/// tail, `open` has the end of the log and the directory that is being built.
pub(crate) fn check_segment(segment: &Segment, open: (u32, &[u8])) -> Result<VerifyReport> {
    let mut check = VerifyReport { segments: 1, ..VerifyReport::default() };
    // Once: an append may seal it meanwhile.
    let sealed = segment.sealed();
    let end = sealed.map_or(open.0, |sealed| sealed.end);
    let extent = segment.read_up_to(end as usize)?;
    check.bytes = u64::from(end);
    let stored = match sealed.map(|_| segment.stored_directory()) {
        None => Some(Cow::Borrowed(open.1)),
        Some(Ok(bytes)) => Some(bytes),
        Some(Err(Error::Corrupt(damage))) => {
            let place = Place::Directory { segment: segment.id() };
            check.problems.push(Corruption { place, ..damage });
            None
        }
        Some(Err(error)) => return Err(error),
    };
    let directory = match &stored {
        Some(bytes) => Directory::new(bytes, &segment.directory_key(end)).ok(),
        // It may be built again; then it names what is damaged.
        None => segment.directory().ok(),
    };
    let items = lex(&extent, segment.frames());
    let frames = check.walk(segment, (&extent, &items), end, directory.as_ref())?;
    if let Some((stored, directory)) = stored.as_deref().zip(directory) {
        // Frames that are damaged are other frames than those that the directory lists.
        let extent_len = segment.extent_size().bytes_u32() as usize;
        let piece = Piece { at: 0, bytes: &extent, extent_len };
        let mut rebuilt = Replayed::default();
        replay_piece(&mut rebuilt, piece, &frames, u32::MAX, &mut |_| None);
        if check.is_clean()
            && rebuilt.builder.encode(&segment.directory_key(end), directory.next_run_no())
                != stored
        {
            let place = Place::Directory { segment: segment.id() };
            check.problems.push(Corruption::new(place, Damage::Mismatch));
        }
    }
    Ok(check)
}

/// The run of each listed frame, and the sequences of its records, by the offset of the frame.
type Names = HashMap<u32, ((AgentId, RunId), Vec<Seq>)>;

fn record_names(directory: &Directory<'_>) -> Names {
    let mut names = Names::new();
    for slot in 0..directory.run_count() {
        let Ok(entry) = directory.run(slot) else { continue };
        let (Ok(parts), mut first) = (directory.parts(slot), 0_u32) else { continue };
        for part in parts {
            for index in 0..part.records {
                let Ok(offset) = directory.listed_offset(slot, first + index) else { break };
                let new = || ((entry.agent.clone(), entry.run.clone()), Vec::new());
                let seq = Seq(part.first_seq.0.saturating_add(index.into()));
                names.entry(offset).or_insert_with(new).1.push(seq);
            }
            first = first.saturating_add(part.listed());
        }
    }
    names
}

/// The names of a run that the directory lists.
fn name_in(directory: Option<&Directory<'_>>, run_no: RunNo) -> Option<(AgentId, RunId)> {
    let entry = directory?.run(directory?.find_no(run_no).ok()??).ok()?;
    Some((entry.agent, entry.run))
}

/// The damage of a frame, for each record that it affects.
fn damage_in(
    segment: &Segment,
    (extent, lexed): (&[u8], &Lexed),
    (pieces, unique): (&[PieceAt], &mut Unique),
) -> Result<Vec<(Option<Seq>, Damage)>> {
    let header = &lexed.header;
    Ok(match (lexed.payload, header.kind) {
        (Ok(()), _) => {
            return inner_damage(segment, (header, payload_of(extent, header)), pieces, unique);
        }
        (Err(damage), FrameKind::Block) => each_record(header, damage).collect(),
        (Err(damage), FrameKind::Record | FrameKind::Put) => vec![(Some(header.seq), damage)],
        (Err(damage), _) => vec![(None, damage)],
    })
}

impl VerifyReport {
    /// Lists every invalid frame below `end`, and every gap.
    fn walk(
        &mut self,
        segment: &Segment,
        (extent, items): (&[u8], &[Item]),
        end: u32,
        directory: Option<&Directory<'_>>,
    ) -> Result<Vec<Lexed>> {
        let mut pieces = pieces_in(items.iter().filter_map(Item::frame));
        pieces.sort_unstable();
        let mut unique = Unique::default();
        let names = directory.map(record_names).unwrap_or_default();
        let mut frames = Vec::new();
        for item in items.iter().take_while(|item| item.offset() < end) {
            let place = Place::Frame(segment.position(item.offset()));
            let name = names.get(&item.offset());
            match item {
                Item::Frame(lexed) => {
                    let header = &lexed.header;
                    self.frames += 1;
                    self.records += u64::from(records_in(header).unwrap_or(0));
                    // At most as many problems as the directory lists records.
                    let most = name.map_or(1, |(_, seqs)| seqs.len().max(1));
                    let (frame, slices) = ((extent, lexed), (&pieces[..], &mut unique));
                    let damaged = damage_in(segment, frame, slices)?;
                    for (seq, damage) in damaged.into_iter().take(most) {
                        let run = name_in(directory, header.run_no);
                        let problem = Corruption::new(place, damage).of_named(run.as_ref());
                        self.problems.push(problem.at(seq));
                    }
                    frames.push(*lexed);
                }
                Item::Gap { .. } => {
                    let run = name.map(|(run, _)| run);
                    let gap = Corruption::new(place, Damage::Missing).of_named(run);
                    match name {
                        Some((_, seqs)) if !seqs.is_empty() => {
                            let seqs = seqs.iter().map(|seq| gap.clone().at(Some(*seq)));
                            self.problems.extend(seqs);
                        }
                        _ => self.problems.push(gap),
                    }
                }
            }
        }
        Ok(frames)
    }
}
