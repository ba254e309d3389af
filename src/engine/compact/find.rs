//! Finding what a record has in common with earlier bytes of its slice.
//!
//! - An **anchor** is a place where a hash of the 64 bytes in front of it has certain bits. So the
//!   same bytes have the same anchors, wherever they are. Anchors of new bytes are noted. Where a
//!   record has one again, the bytes around it are compared in both directions, and become a copy
//!   if there are enough of them.
//! - After a copy the next bytes are likely to be those that came next in the record it is from.
//!   The finder has a list of the ranges of all records, and **follows** it, however short a range
//!   is. So what is too short for an anchor is found as well.

use crate::format::codec::len_u32;
use crate::format::frames::slice::Op;

/// The length of the bytes that decide about an anchor.
const WINDOW: usize = 64;
/// One place of 256 is an anchor: where these bits of the hash are zero.
const ANCHOR: u64 = 0xff << 56;
/// The shortest copy that an anchor may begin. If copies were shorter, nearly all records would
/// need the first bytes of a run, and damage of these would cost nearly all records.
const MIN_COPY: usize = 512;
/// How many anchors are remembered.
const ANCHORS: usize = 1 << 17;
/// For how many ends of ranges it is remembered which range ended there.
const ENDS: usize = 1 << 16;

/// A range of the unique bytes.
#[derive(Debug, Clone, Copy)]
struct Span {
    start: u32,
    end: u32,
}

/// The unique bytes of a slice, and where they come again.
#[derive(Debug)]
pub(super) struct Finder {
    unique: Vec<u8>,
    /// By hash, the end of the last window with such a hash; 0 is none.
    anchors: Box<[u32]>,
    /// The ranges of all records, in order.
    spans: Vec<Span>,
    /// By hash of an end, the number of the last range with such an end, plus one.
    ends: Box<[u32]>,
    /// The first range of the last record.
    last: usize,
    /// For each byte, what it adds to the hash.
    gear: Box<[u64; 256]>,
}

/// The state of a finder, to go back to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark {
    unique: usize,
    spans: usize,
    last: usize,
}

impl Finder {
    pub(super) fn new() -> Self {
        let mut state = 0_u64;
        let gear = core::array::from_fn(|_| {
            // SplitMix64.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        });
        Self {
            unique: Vec::new(),
            anchors: vec![0; ANCHORS].into(),
            spans: Vec::new(),
            ends: vec![0; ENDS].into(),
            last: 0,
            gear: Box::new(gear),
        }
    }

    /// Forgets everything: the next record is the first of a slice.
    pub(super) fn clear(&mut self) {
        self.unique.clear();
        self.spans.clear();
        self.anchors.fill(0);
        self.ends.fill(0);
        self.last = 0;
    }

    /// The unique bytes of all records so far.
    pub(super) fn unique(&self) -> &[u8] {
        &self.unique
    }

    /// How many ranges all records have.
    pub(super) fn spans(&self) -> usize {
        self.spans.len()
    }

    pub(super) fn mark(&self) -> Mark {
        Mark { unique: self.unique.len(), spans: self.spans.len(), last: self.last }
    }

    /// Forgets the records since a mark. What tables have of them is noticed when it is used.
    pub(super) fn go_back(&mut self, mark: Mark) {
        self.unique.truncate(mark.unique);
        self.spans.truncate(mark.spans);
        self.last = mark.last;
    }

    /// What the next record consists of. Its new bytes become unique bytes.
    pub(super) fn find(&mut self, record: &[u8], ops: &mut Vec<Op>) {
        ops.clear();
        let first = self.spans.len();
        let mut done = self.follow(record, 0, Some(self.last), ops);
        while done < record.len() {
            let (at, copy) = self.scan(record, done);
            if at > done {
                let end = len_u32(self.unique.len());
                let len = len_u32(at - done);
                ops.push(Op::New(len));
                self.note(Span { start: end - len, end });
            }
            let Some(copy) = copy else { break };
            done = at + self.copy(copy, ops);
            let next = self.ended_at(copy.end).map(|number| number + 1);
            self.note(copy);
            done = self.follow(record, done, next, ops);
        }
        self.last = first;
    }

    /// Takes the ranges from number `next` on as long as the record has them next. Returns how far
    /// the record is done.
    fn follow(
        &mut self,
        record: &[u8],
        mut done: usize,
        next: Option<usize>,
        ops: &mut Vec<Op>,
    ) -> usize {
        let Some(mut next) = next else { return done };
        while let Some(&span) = self.spans.get(next) {
            let rest = record.get(done..).unwrap_or_default();
            let bytes = self.unique.get(span.start as usize..span.end as usize);
            let (bytes, mut span) = (bytes.unwrap_or_default(), span);
            let is_whole = rest.starts_with(bytes) && !bytes.is_empty();
            if !is_whole {
                let same = common_prefix(rest, bytes);
                if same < MIN_COPY {
                    break;
                }
                span.end = span.start + len_u32(same);
            }
            done += self.copy(span, ops);
            self.note(span);
            if !is_whole {
                break;
            }
            next += 1;
        }
        done
    }

    /// Adds a copy to the recipe. Returns its length.
    fn copy(&self, span: Span, ops: &mut Vec<Op>) -> usize {
        let len = span.end - span.start;
        match ops.last_mut() {
            Some(Op::Copy { start, len: before }) if *start + *before == span.start => {
                *before += len;
            }
            _ => ops.push(Op::Copy { start: span.start, len }),
        }
        len as usize
    }

    fn note(&mut self, span: Span) {
        self.spans.push(span);
        if let Some(end) = self.ends.get_mut(slot_of_end(span.end)) {
            *end = len_u32(self.spans.len());
        }
    }

    /// The number of the last range that ended here, if it is remembered.
    fn ended_at(&self, end: u32) -> Option<usize> {
        let number = self.ends.get(slot_of_end(end))?.checked_sub(1)? as usize;
        self.spans.get(number).filter(|span| span.end == end).map(|_| number)
    }

    /// Looks for a copy from `done` on. Returns where it is in the record, and in the unique bytes,
    /// to which the bytes of the record in front of it were added; all of them if there is none.
    fn scan(&mut self, record: &[u8], done: usize) -> (usize, Option<Span>) {
        let base = self.unique.len();
        let from = done.saturating_sub(WINDOW - 1);
        let mut hash = 0_u64;
        for (at, byte) in record.iter().enumerate().skip(from) {
            hash = (hash << 1).wrapping_add(self.gear[usize::from(*byte)]);
            if hash & ANCHOR != 0 || at < done || at + 1 < from + WINDOW {
                continue;
            }
            // The bytes up to here are new, unless there is a copy.
            let added = done + (self.unique.len() - base);
            self.unique.extend_from_slice(record.get(added..=at).unwrap_or_default());
            let slot = (hash >> 32) as usize % ANCHORS;
            let known = self.anchors[slot];
            if known != 0
                && let Some((back, span)) = self.extend((record, done), at + 1, known as usize)
            {
                self.unique.truncate(self.unique.len() - back);
                return (at + 1 - back, Some(span));
            }
            self.anchors[slot] = len_u32(self.unique.len());
        }
        let added = done + (self.unique.len() - base);
        self.unique.extend_from_slice(record.get(added..).unwrap_or_default());
        (record.len(), None)
    }

    /// The copy around `at` of the record and `known` of the unique bytes, if it is long enough,
    /// and how many of its bytes are in front of `at`. These are not done yet, and are the last
    /// unique bytes.
    fn extend(
        &self,
        (record, done): (&[u8], usize),
        at: usize,
        known: usize,
    ) -> Option<(usize, Span)> {
        let (in_front, behind) = self.unique.split_at_checked(known)?;
        let before = record.get(done..at)?.iter().rev().zip(in_front.iter().rev());
        // A copy is of bytes that stay.
        let most = self.unique.len() - known;
        let back = before.take(most).take_while(|(one, other)| one == other).count();
        let most = most - back;
        let rest = record.get(at..).unwrap_or_default();
        let forth = common_prefix(rest, behind.get(..most).unwrap_or_default());
        let span = Span { start: len_u32(known - back), end: len_u32(known + forth) };
        (back + forth >= MIN_COPY).then_some((back, span))
    }
}

fn slot_of_end(end: u32) -> usize {
    end.wrapping_mul(0x9e37_79b1) as usize >> 16 & (ENDS - 1)
}

/// How many bytes are the same at the start of both.
fn common_prefix(one: &[u8], other: &[u8]) -> usize {
    const STEP: usize = 256;
    let chunks = one.chunks_exact(STEP).zip(other.chunks_exact(STEP));
    let same = chunks.take_while(|(one, other)| one == other).count() * STEP;
    let (one, other) = (one.iter().skip(same), other.iter().skip(same));
    same + one.zip(other).take_while(|(one, other)| one == other).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes without repetitions.
    fn noise(seed: u64, len: usize) -> Vec<u8> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            state.to_be_bytes()[1]
        };
        (0..len).map(|_| next()).collect()
    }

    /// Finds all records, puts each together again, and returns their recipes.
    fn recipes(finder: &mut Finder, records: &[Vec<u8>]) -> Vec<Vec<Op>> {
        let mut all = Vec::new();
        for record in records {
            let (mut ops, mut new) = (Vec::new(), finder.unique().len());
            finder.find(record, &mut ops);
            let mut back = Vec::new();
            for op in &ops {
                let (start, len) = match *op {
                    Op::New(len) => {
                        new += len as usize;
                        (new - len as usize, len as usize)
                    }
                    Op::Copy { start, len } => (start as usize, len as usize),
                };
                assert!(start + len <= new, "a copy of bytes in front of it");
                back.extend_from_slice(&finder.unique()[start..start + len]);
            }
            assert_eq!(new, finder.unique().len());
            assert!(back == *record);
            all.push(ops);
        }
        all
    }

    #[test]
    fn a_history_that_grows_is_stored_once() {
        let mut finder = Finder::new();
        let messages: Vec<Vec<u8>> =
            (0..40).map(|n: usize| noise(n as u64, 150 + n * 90)).collect();
        let records: Vec<Vec<u8>> = (0..40)
            .map(|n: usize| {
                let id = noise(1_000 + n as u64, 36);
                let history = messages[..=n].join(&b"},{"[..]);
                [&id[..], b"[{", &history, b"}]"].concat()
            })
            .collect();
        recipes(&mut finder, &records);
        let least: usize = messages.iter().map(Vec::len).sum();
        // An id, and what closes the list, for each record.
        assert!(finder.unique().len() < least + 40 * 150, "{}", finder.unique().len() - least);
    }

    #[test]
    fn what_is_twice_in_one_record_or_was_copied_before_is_found() {
        let mut finder = Finder::new();
        let (one, two) = (noise(1, 5_000), noise(2, 5_000));
        let twice = [&one[..], &two, &one].concat();
        let ops = recipes(&mut finder, &[twice.clone(), twice, two, one]);
        assert!(finder.unique().len() < 10_300, "{}", finder.unique().len());
        assert_eq!(ops[0].len(), 2);
        assert_eq!(ops[2].len(), 1);
        assert_eq!(ops[3], [Op::Copy { start: 0, len: 5_000 }]);
    }

    #[test]
    fn short_records_and_records_that_repeat_one_byte_come_back() {
        let mut finder = Finder::new();
        let mut records: Vec<Vec<u8>> = (0..70).map(|len| noise(3, len)).collect();
        records.extend([vec![0; 100_000], vec![0; 99_999], b"ab".repeat(40_000)]);
        records.extend(records.clone());
        recipes(&mut finder, &records);
    }

    #[test]
    fn records_that_are_taken_back_leave_nothing() {
        let (mut finder, mut fresh) = (Finder::new(), Finder::new());
        let records: Vec<Vec<u8>> = (0..6).map(|n| noise(n % 3, 3_000)).collect();
        recipes(&mut finder, &records[..1]);
        for _ in 0..3 {
            let mark = finder.mark();
            recipes(&mut finder, &[noise(9, 70_000), records[0].clone(), noise(9, 70_000)]);
            finder.go_back(mark);
            assert_eq!(finder.unique().len(), 3_000);
        }
        recipes(&mut finder, &records[1..]);
        recipes(&mut fresh, &records);
        assert!(finder.unique() == fresh.unique());
        finder.clear();
        assert_eq!((finder.unique().len(), finder.spans()), (0, 0));
        recipes(&mut finder, &records);
        assert!(finder.unique() == fresh.unique());
    }
}
