//! The contents of the records: JSON with text that is as compressible as what agents write.
//!
//! What agents write repeats itself at all distances: words within a sentence, lines within the
//! output of a tool, whole parts of an earlier record, and files that are read again much later. So
//! the text consists of new parts, which are words and some numbers, and of copies of earlier text
//! of the run: from the same record, from shortly before, or from long ago. The shares were chosen
//! so that compression achieves the same as for real sessions; a test compares that.

use std::fmt::Write;

use runlog_sim::SplitMix64;

/// Words that the texts are made of.
const WORDS: usize = 4_096;
const SYLLABLES: [&str; 32] = [
    "re", "con", "tion", "er", "in", "ex", "pro", "ment", "al", "for", "ta", "ble", "un", "ing",
    "st", "ver", "com", "de", "li", "na", "or", "per", "qua", "sis", "tem", "ure", "vi", "wo",
    "ad", "bo", "cha", "fi",
];
/// How far back copies from shortly before and from long ago go.
const SHORTLY: usize = 40_000;
const LONG_AGO: usize = 1 << 20;
/// The earlier text of a run.
const MEMORY: usize = 2 * LONG_AGO;
/// A record above this length is long: the output of a tool, a file.
const LONG: usize = 6_000;
/// Numbers among a hundred new words.
const NUMBERS: u64 = 30;

/// The sources of parts, in percent; the others are new.
#[derive(Debug, Clone, Copy)]
struct Shares {
    /// From the same record.
    within: u64,
    /// From shortly before.
    near: u64,
    /// From long ago.
    far: u64,
}

const OF_SHORT: Shares = Shares { within: 2, near: 86, far: 2 };
const OF_LONG: Shares = Shares { within: 2, near: 68, far: 3 };

/// Writes the records of one run.
#[derive(Debug)]
pub(crate) struct Writing<'a> {
    words: &'a Words,
    random: SplitMix64,
    /// The texts of the records so far, or the last of them.
    said: Vec<u8>,
}

/// The words that all runs use, the frequent ones first.
#[derive(Debug)]
pub(crate) struct Words(Vec<String>);

impl Words {
    pub(crate) fn new() -> Self {
        let mut random = SplitMix64::new(17);
        let mut word = || {
            let syllables = 1 + random.index(4);
            (0..syllables).map(|_| SYLLABLES[random.index(SYLLABLES.len())]).collect::<String>()
        };
        Self((0..WORDS).map(|_| word()).collect())
    }

    /// Frequent words are likely: each octave of the list is equally likely.
    fn pick(&self, random: &mut SplitMix64) -> &str {
        let octave = 1 + random.index(WORDS.ilog2() as usize);
        &self.0[random.index(1 << octave)]
    }
}

impl<'a> Writing<'a> {
    pub(crate) fn new(words: &'a Words, seed: u64) -> Self {
        Self { words, random: SplitMix64::new(seed), said: Vec::new() }
    }

    /// The next record of a run: a JSON object of exactly this length that contains the numbers. A
    /// length below the minimum is raised to it.
    pub(crate) fn record(&mut self, run: u64, seq: usize, len: usize) -> Vec<u8> {
        let mut record = Vec::with_capacity(len);
        record.extend_from_slice(format!("{{\"id\":\"{run:08}{seq:06}\",\"text\":\"").as_bytes());
        let begin = record.len();
        let end = len.saturating_sub(2);
        while record.len() < end {
            self.piece(&mut record, begin, end);
        }
        record.truncate(end.max(begin));
        if self.said.len() > MEMORY {
            self.said.drain(..LONG_AGO);
        }
        self.said.extend_from_slice(&record[begin..]);
        record.extend_from_slice(b"\"}");
        record
    }

    /// Adds one part, new or a copy, which may be too long.
    fn piece(&mut self, record: &mut Vec<u8>, begin: usize, end: usize) {
        let len = self.length(end - record.len());
        let Shares { within, near, far } = if end - begin > LONG { OF_LONG } else { OF_SHORT };
        let (near, far) = (within + near, within + near + far);
        let choice = self.random.below(100);
        let said = self.said.len();
        if choice < within && record.len() - begin >= 2 * len {
            let at = begin + self.random.index(record.len() - begin - len);
            record.extend_from_within(at..at + len);
        } else if (within..near).contains(&choice) && said >= len {
            let at = said - len - self.random.index((said - len).min(SHORTLY) + 1);
            record.extend_from_slice(&self.said[at..at + len]);
        } else if (near..far).contains(&choice) && said > SHORTLY + len {
            let back = SHORTLY + self.random.index((said - len).min(LONG_AGO) - SHORTLY);
            let at = said - len - back;
            record.extend_from_slice(&self.said[at..at + len]);
        } else {
            let end = record.len() + len;
            while record.len() < end {
                self.word(record);
            }
        }
    }

    /// The length of a part: a line or, in long records, many lines.
    fn length(&mut self, left: usize) -> usize {
        let line = 24 + self.random.index(200);
        if left > 4_096 && self.random.below(3) == 0 {
            1_024 + self.random.index(2_048)
        } else {
            line
        }
    }

    fn word(&mut self, record: &mut Vec<u8>) {
        if self.random.below(100) < NUMBERS {
            let number = self.random.next_u64() >> (32 + self.random.below(24));
            let mut text = String::new();
            write!(text, "{number:x}").unwrap();
            record.extend_from_slice(text.as_bytes());
        } else {
            match self.random.below(20) {
                0 => record.extend_from_slice(b"|       "),
                1 => record.extend_from_slice(b"(): "),
                2 => record.push(b'/'),
                _ => record.extend_from_slice(self.words.pick(&mut self.random).as_bytes()),
            }
        }
        record.push(b' ');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::sizes::{Sizes, records_of_a_run};

    const LEVEL: i32 = 3;
    const BLOCK: usize = 64 << 10;

    fn runs(count: u64) -> Vec<Vec<Vec<u8>>> {
        let words = Words::new();
        let run = |number| {
            let mut random = SplitMix64::for_case(5, number);
            let mut writing = Writing::new(&words, number);
            let records = records_of_a_run(&mut random);
            let record = |seq| writing.record(number, seq, Sizes::Real.next(&mut random));
            (0..records).map(record).collect()
        };
        (0..count).map(run).collect()
    }

    /// The compression ratio of these, each by itself.
    fn ratio<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> f64 {
        let mut compressor = zstd::bulk::Compressor::new(LEVEL).unwrap();
        let (mut plain, mut compressed) = (0, 0);
        for piece in pieces {
            plain += u32::try_from(piece.len()).unwrap();
            compressed += u32::try_from(compressor.compress(piece).unwrap().len()).unwrap();
        }
        f64::from(plain) / f64::from(compressed)
    }

    /// Real sessions: 2.8 times by record, 5.2 times in blocks of 64 KiB, 8.4 times by run.
    #[test]
    fn the_text_is_as_compressible_as_real_sessions() {
        let runs = runs(40);
        let by_record = ratio(runs.iter().flatten().map(Vec::as_slice));
        let whole: Vec<Vec<u8>> = runs.iter().map(|run| run.concat()).collect();
        let by_block = ratio(whole.iter().flat_map(|run| run.chunks(BLOCK)));
        let by_run = ratio(whole.iter().map(Vec::as_slice));
        println!("by record {by_record:.2}, by block {by_block:.2}, by run {by_run:.2}");
        assert!((2.6..3.0).contains(&by_record), "{by_record}");
        assert!((4.7..5.7).contains(&by_block), "{by_block}");
        assert!((7.6..9.2).contains(&by_run), "{by_run}");
    }

    #[test]
    fn a_record_is_json_of_the_length_that_was_asked_for() {
        let words = Words::new();
        let mut writing = Writing::new(&words, 1);
        for len in (40..600).chain([10_000, 200_000]) {
            let record = writing.record(3, 7, len);
            assert_eq!(record.len(), len);
            let parsed: Result<serde_json::Value, _> = serde_json::from_slice(&record);
            assert_eq!(parsed.unwrap()["id"], "00000003000007", "{len}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_bytes() {
        assert!(runs(2) == runs(2), "a run is made of its number alone");
    }
}
