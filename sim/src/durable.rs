//! What is durable, what is not yet, and what a power loss may make of the two.
//!
//! - `base` is the durable image. It changes at syncs only.
//! - `pending` are the unsynced operations. Those that change the length remember it.
//! - `lost` are sectors that a failed sync dropped: reads still see this content, but no sync
//!   brings it to the disk. An operation that touches such a sector again makes all of it pending.
//! - `missing` are words of pending stores that the current choice leaves out, although it keeps
//!   their sectors.
//! - A *version* is an index in `pending`: version `n` of a sector, or of the length, is its state
//!   after the first `n` pending operations; version 0 is the durable one.

use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};

use crate::random::SplitMix64;
use crate::record::{Op, write_into};
use crate::{SECTOR_LEN, WORD_LEN};

/// Chooses the outcome of a failed sync, together with the number of the operation.
const FAILED_SYNC_SEED: u64 = 0x6661_696c_6564_0001;

/// Which of the unsynced sectors a power loss leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Survivors {
    /// None: the durable image.
    Nothing,
    /// All: the volatile image.
    Everything,
    /// Each sector of each operation with probability one half; a length at random.
    Half,
    /// Those of the last operation alone.
    OnlyLast,
    /// All but one sector, chosen at random, which stays as it was before one of its operations;
    /// all but some words of it if that operation is a store.
    AllButOneSector,
    /// All but those of one operation, chosen at random.
    AllButOneOp,
    /// All before the last operation, and a random number of its first sectors; any of its words
    /// if it is a store.
    TornLast,
}

impl Survivors {
    /// Each choice once.
    pub const ALL: [Self; 7] = [
        Self::Nothing,
        Self::Everything,
        Self::Half,
        Self::OnlyLast,
        Self::AllButOneSector,
        Self::AllButOneOp,
        Self::TornLast,
    ];
}

/// An unsynced operation, and the length of the file before and after it.
#[derive(Debug)]
struct Pending {
    op: Op,
    before: usize,
    after: usize,
}

impl Pending {
    fn new(op: Op, before: usize) -> Self {
        let after = match &op {
            Op::Write { offset, data } | Op::Store { offset, data } if !data.is_empty() => {
                before.max(offset + data.len())
            }
            Op::SetLen { len } => *len,
            Op::Allocate { end } => before.max(*end),
            _ => before,
        };
        Self { op, before, after }
    }

    /// The bytes that the operation changes.
    fn touched(&self) -> Range<usize> {
        match &self.op {
            Op::Write { offset, data } | Op::Store { offset, data } => *offset..offset + data.len(),
            Op::Punch { offset, end } => *offset..(*end).min(self.before),
            Op::SetLen { len } => *len..self.before,
            _ => 0..0,
        }
    }

    fn sectors(&self) -> Range<usize> {
        sectors_of(&self.touched())
    }

    fn changes_len(&self) -> bool {
        self.before != self.after
    }

    /// Whether the operation cuts the file off; its sectors are lost with its length.
    fn is_cut(&self) -> bool {
        self.after < self.before
    }
}

/// Which of the pending operations are kept.
#[derive(Debug)]
struct Choice {
    /// The version of the length.
    length: usize,
    sectors: Keep,
}

/// Which sectors of which pending operations are kept.
#[derive(Debug)]
enum Keep {
    None,
    All,
    Half,
    Only {
        place: usize,
    },
    AllBut {
        place: usize,
        sectors: Range<usize>,
    },
    /// All, but for some words of a store within a sector.
    Words {
        place: usize,
        sector: usize,
    },
    Torn {
        place: usize,
        end: usize,
    },
}

/// The durable image and everything that is not durable yet.
#[derive(Debug)]
pub(crate) struct Durable {
    base: Vec<u8>,
    len: usize,
    pending: Vec<Pending>,
    lost: BTreeMap<usize, Vec<u8>>,
    op_count: u64,
    /// The version of each sector that is kept; all zero between calls.
    versions: Vec<usize>,
    /// Words of stores that are left out, by the index of the store and the offset of the word in
    /// the file; empty between calls.
    missing: BTreeSet<(usize, usize)>,
}

impl Durable {
    pub(crate) fn new(base: Vec<u8>) -> Self {
        let len = base.len();
        Self {
            base,
            len,
            pending: Vec::new(),
            lost: BTreeMap::new(),
            op_count: 0,
            versions: Vec::new(),
            missing: BTreeSet::new(),
        }
    }

    pub(crate) fn base(&self) -> &[u8] {
        &self.base
    }

    /// How many operations are not durable yet.
    pub(crate) fn unsynced(&self) -> usize {
        self.pending.len()
    }

    /// Adds the next operation.
    pub(crate) fn push(&mut self, op: &Op) {
        match op {
            Op::Refused => {}
            Op::Sync => {
                for pending in self.pending.drain(..) {
                    pending.op.apply(&mut self.base);
                }
            }
            Op::FailedSync => self.fail_sync(),
            op => self.add(op.clone()),
        }
        self.op_count += 1;
    }

    fn add(&mut self, op: Op) {
        let pending = Pending::new(op, self.len);
        if !self.lost.is_empty() {
            self.revive(&pending.touched());
        }
        self.len = pending.after;
        self.pending.push(pending);
    }

    /// Makes the lost sectors pending that an operation touches in part; it overwrites the others.
    fn revive(&mut self, touched: &Range<usize>) {
        for sector in sectors_of(touched) {
            let Some(content) = self.lost.remove(&sector) else {
                continue;
            };
            let whole = sector * SECTOR_LEN..sector * SECTOR_LEN + content.len();
            if touched.start <= whole.start && whole.end <= touched.end {
                continue;
            }
            let op = Op::Write { offset: whole.start, data: content.into() };
            self.pending.push(Pending::new(op, self.len));
        }
    }

    /// Decides for each pending sector whether it became durable.
    fn fail_sync(&mut self) {
        let mut visible = Vec::new();
        self.volatile_into(&mut visible);
        let mut random = SplitMix64::for_case(FAILED_SYNC_SEED, self.op_count);
        let mut stored = Vec::new();
        self.choose_image_into(Survivors::Half, &mut random, &mut stored);
        for pending in core::mem::take(&mut self.pending) {
            for sector in pending.sectors() {
                let start = sector * SECTOR_LEN;
                let end = (start + SECTOR_LEN).min(visible.len());
                match visible.get(start..end) {
                    Some(content) if !content.is_empty() && !holds(&stored, start, content) => {
                        self.lost.insert(sector, content.to_vec());
                    }
                    _ => drop(self.lost.remove(&sector)),
                }
            }
        }
        // The length is not data: the system still remembers that it must store it.
        if stored.len() != visible.len() {
            let op = Op::SetLen { len: visible.len() };
            self.pending.push(Pending::new(op, stored.len()));
        }
        self.base = stored;
    }

    /// Forgets the sectors that failed syncs dropped: reads see the device there again, as `out`
    /// has it then.
    pub(crate) fn evict_into(&mut self, out: &mut Vec<u8>) {
        self.lost.clear();
        self.volatile_into(out);
    }

    /// The image that reads see.
    pub(crate) fn volatile_into(&self, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&self.base);
        for pending in &self.pending {
            pending.op.apply(out);
        }
        for (sector, content) in &self.lost {
            write_into(out, sector * SECTOR_LEN, content);
        }
    }

    /// The image after a power loss now. The seed decides what the choice leaves open.
    pub(crate) fn image_into(&mut self, survivors: Survivors, seed: u64, out: &mut Vec<u8>) {
        let case = self.op_count << 8 | survivors as u64;
        self.choose_image_into(survivors, &mut SplitMix64::for_case(seed, case), out);
    }

    fn choose_image_into(
        &mut self,
        survivors: Survivors,
        random: &mut SplitMix64,
        out: &mut Vec<u8>,
    ) {
        let choice = self.choose(survivors, random);
        self.mark_versions(&choice, random);
        self.tear_stores(&choice, random);
        self.replay(choice.length, out);
        self.missing.clear();
        for pending in &self.pending {
            self.versions[pending.sectors()].fill(0);
        }
    }

    fn choose(&self, survivors: Survivors, random: &mut SplitMix64) -> Choice {
        let count = self.pending.len();
        let latest = self.length_version_up_to(count);
        match survivors {
            Survivors::Nothing => Choice { length: 0, sectors: Keep::None },
            Survivors::Everything => Choice { length: latest, sectors: Keep::All },
            Survivors::Half => {
                let length = self.length_version_up_to(random.index(count + 1));
                Choice { length, sectors: Keep::Half }
            }
            Survivors::OnlyLast => {
                let place = count.saturating_sub(1);
                // What grew the file by a write may be stored without the length.
                let is_write =
                    self.pending.last().is_some_and(|last| matches!(last.op, Op::Write { .. }));
                let lost = latest != count || (is_write && random.coin());
                Choice { length: if lost { 0 } else { count }, sectors: Keep::Only { place } }
            }
            Survivors::AllButOneSector => {
                let sectors = match self.pick_sector(random) {
                    None => Keep::All,
                    Some((place, sector)) if self.is_store(place) => Keep::Words { place, sector },
                    Some((place, sector)) => Keep::AllBut { place, sectors: sector..sector + 1 },
                };
                Choice { length: latest, sectors }
            }
            Survivors::AllButOneOp => {
                let place = random.index(count);
                let Some(victim) = self.pending.get(place) else {
                    return Choice { length: latest, sectors: Keep::All };
                };
                let length =
                    if victim.changes_len() { self.length_version_up_to(place) } else { latest };
                Choice { length, sectors: Keep::AllBut { place, sectors: victim.sectors() } }
            }
            Survivors::TornLast => {
                let place = count.saturating_sub(1);
                let sectors = self.pending.last().map_or(0..0, Pending::sectors);
                // A store is torn by words.
                let end = if self.is_store(place) {
                    sectors.end
                } else {
                    sectors.start + random.index(sectors.len())
                };
                let upto = count - usize::from(count > 0 && random.coin());
                let length = self.length_version_up_to(upto);
                Choice { length, sectors: Keep::Torn { place, end } }
            }
        }
    }

    fn is_store(&self, place: usize) -> bool {
        self.pending.get(place).is_some_and(|pending| matches!(pending.op, Op::Store { .. }))
    }

    /// The last version up to `version` that changed the length, or 0.
    fn length_version_up_to(&self, version: usize) -> usize {
        let changed = self.pending[..version].iter().rposition(Pending::changes_len);
        changed.map_or(0, |place| place + 1)
    }

    /// A sector of an operation, each with equal probability.
    fn pick_sector(&self, random: &mut SplitMix64) -> Option<(usize, usize)> {
        let total: usize = self.pending.iter().map(|pending| pending.sectors().len()).sum();
        let mut left = random.index(total);
        for (place, pending) in self.pending.iter().enumerate() {
            let sectors = pending.sectors();
            if left < sectors.len() {
                return Some((place, sectors.start + left));
            }
            left -= sectors.len();
        }
        None
    }

    /// Notes for each pending sector the version that the choice keeps.
    fn mark_versions(&mut self, choice: &Choice, random: &mut SplitMix64) {
        let end = self.pending.iter().map(|pending| pending.sectors().end).max().unwrap_or(0);
        if self.versions.len() < end {
            self.versions.resize(end, 0);
        }
        for (place, pending) in self.pending.iter().enumerate() {
            let version = place + 1;
            let sectors = pending.sectors();
            if pending.is_cut() {
                if version <= choice.length {
                    self.versions[sectors].fill(version);
                }
                continue;
            }
            match &choice.sectors {
                Keep::None => {}
                Keep::All | Keep::Words { .. } => self.versions[sectors].fill(version),
                Keep::Half => {
                    for chunk in self.versions[sectors].chunks_mut(64) {
                        let mut coins = random.next_u64();
                        for kept in chunk {
                            if coins & 1 == 1 {
                                *kept = version;
                            }
                            coins >>= 1;
                        }
                    }
                }
                Keep::Only { place: only } => {
                    if place == *only {
                        self.versions[sectors].fill(version);
                    }
                }
                Keep::AllBut { place: first, sectors: but } => {
                    for sector in sectors {
                        if place < *first || !but.contains(&sector) {
                            self.versions[sector] = version;
                        }
                    }
                }
                Keep::Torn { place: torn, end } => {
                    let kept_end = if place == *torn { *end } else { sectors.end };
                    self.versions[sectors.start..kept_end].fill(version);
                }
            }
        }
    }

    /// Leaves out words of stores where the choice leaves something open: of each store at random,
    /// of the last one, or of the sector that is kept in part.
    fn tear_stores(&mut self, choice: &Choice, random: &mut SplitMix64) {
        for (place, pending) in self.pending.iter().enumerate() {
            let Op::Store { offset, data } = &pending.op else { continue };
            let words = *offset / WORD_LEN..(offset + data.len()) / WORD_LEN;
            let torn = match &choice.sectors {
                Keep::Half if random.coin() => words,
                Keep::Torn { place: last, .. } if place == *last => words,
                Keep::Words { place: victim, sector } if place == *victim => {
                    let first = sector * SECTOR_LEN / WORD_LEN;
                    words.start.max(first)..words.end.min(first + SECTOR_LEN / WORD_LEN)
                }
                _ => continue,
            };
            self.missing.extend(torn.filter(|_| random.coin()).map(|word| (place, word)));
        }
    }

    /// Builds the image in which each sector and the length have the version that was chosen.
    fn replay(&self, length: usize, out: &mut Vec<u8>) {
        let longest = self.pending.iter().map(|pending| pending.after.max(pending.before)).max();
        let mut len = match length.checked_sub(1) {
            None => self.base.len(),
            Some(place) => self.pending[place].after,
        };
        out.clear();
        out.extend_from_slice(&self.base);
        out.resize(longest.unwrap_or(0).max(self.base.len()), 0);
        for (place, pending) in self.pending.iter().enumerate() {
            let version = place + 1;
            let touched = pending.touched();
            let mut rest = pending.sectors();
            while let Some(first) = rest.find(|sector| self.versions[*sector] >= version) {
                let end = rest.find(|sector| self.versions[*sector] < version);
                let end = end.unwrap_or(rest.end);
                let run = touched.start.max(first * SECTOR_LEN)..touched.end.min(end * SECTOR_LEN);
                match &pending.op {
                    Op::Write { offset, data } => {
                        let source = &data[run.start - offset..run.end - offset];
                        out[run.clone()].copy_from_slice(source);
                        if version > length {
                            len = len.max(run.end);
                        }
                    }
                    Op::Store { offset, data } => {
                        for at in run.step_by(WORD_LEN) {
                            if !self.missing.contains(&(place, at / WORD_LEN)) {
                                let word = &data[at - offset..at - offset + WORD_LEN];
                                out[at..at + WORD_LEN].copy_from_slice(word);
                            }
                        }
                    }
                    _ => out[run].fill(0),
                }
            }
        }
        out.truncate(len);
    }
}

fn sectors_of(range: &Range<usize>) -> Range<usize> {
    if range.is_empty() {
        return 0..0;
    }
    range.start / SECTOR_LEN..range.end.div_ceil(SECTOR_LEN)
}

/// Whether `image` has `content` at `start`; bytes behind its end count as zero.
fn holds(image: &[u8], start: usize, content: &[u8]) -> bool {
    let stored = image.get(start..).unwrap_or_default();
    let shared = stored.len().min(content.len());
    stored[..shared] == content[..shared] && content[shared..].iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests;
