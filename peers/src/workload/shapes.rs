//! Runs whose records repeat one another, as users of agent logs report them: what is said once is
//! stored many times. The figures are those of public reports; the texts are those of
//! [`text`](super::text).

use runlog_sim::SplitMix64;

use super::sizes::Sizes;
use super::text::{Words, Writing};

const RANDOM: &str = "random bytes";

/// A run with a certain repetition.
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) records: usize,
    make: Box<dyn Fn(usize) -> Vec<u8>>,
}

impl Shape {
    /// Whether each record is JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.name != RANDOM
    }

    /// The record with this sequence.
    pub(crate) fn record(&self, seq: usize) -> Vec<u8> {
        (self.make)(seq)
    }

    fn new(name: &'static str, records: usize, make: impl Fn(usize) -> Vec<u8> + 'static) -> Self {
        Self { name, records, make: Box::new(make) }
    }
}

/// All shapes; `part` of the records of each, and of the messages in them.
pub(crate) fn all(part: usize) -> Vec<Shape> {
    vec![
        progress("progress, 1,739 x 2.4 MB", 1_739 / part, 2_760),
        progress("progress, 400 x 0.58 MB", 400 / part, 2_900),
        compacted(122 / part.min(8), 9_400_000 / part),
        states(1_000 / part),
        images(100 / part, 700_000 / part),
        deltas(400_000 / part),
        twice(12_000 / part),
        ordinary(32_000 / part),
        random(16_384 / part),
    ]
}

/// An id that is the same for the same number.
fn id(number: u64) -> String {
    let mut random = SplitMix64::new(number);
    let (one, two) = (random.next_u64(), random.next_u64());
    let (a, b) = (one >> 32, one >> 16 & 0xffff);
    let (c, d) = (two >> 48 & 0xfff, two & 0xffff_ffff_ffff);
    format!("{a:08x}-{b:04x}-4{:03x}-a{c:03x}-{d:012x}", one & 0xfff)
}

fn time(number: usize) -> String {
    let (seconds, rest) = (number * 1_713 / 1_000, number * 1_713 % 1_000);
    let (hours, minutes) = (seconds / 3_600 % 24, seconds / 60 % 60);
    format!("2026-11-29T{hours:02}:{minutes:02}:{:02}.{rest:03}Z", seconds % 60)
}

/// The messages of a session in one text, and where each ends.
fn session(seed: u64, count: usize, mean: usize) -> (Vec<u8>, Vec<usize>) {
    let (words, mut random) = (Words::new(), SplitMix64::new(seed));
    let mut writing = Writing::new(&words, seed);
    let (mut all, mut ends) = (Vec::new(), vec![0]);
    for seq in 0..count {
        if seq > 0 {
            all.push(b',');
        }
        let len = 100 + random.index(2 * mean - 200);
        all.extend(writing.record(seed, seq, len));
        ends.push(all.len());
    }
    (all, ends)
}

/// Each record repeats the whole conversation of a subagent, between new ids.
fn progress(name: &'static str, records: usize, mean: usize) -> Shape {
    let (all, ends) = session(1, records, mean);
    Shape::new(name, records, move |seq| {
        let number = seq as u64;
        let front = format!(
            "{{\"parentUuid\":\"{}\",\"sessionId\":\"{}\",\"type\":\"progress\",\
             \"data\":{{\"message\":",
            id(number),
            id(1 << 40)
        );
        let last = &all[ends[seq] + usize::from(seq > 0)..ends[seq + 1]];
        let behind = format!(
            "],\"type\":\"agent_progress\"}},\"uuid\":\"{}\",\"timestamp\":\"{}\"}}",
            id(number + 1),
            time(seq)
        );
        let history = &all[..ends[seq + 1]];
        [front.as_bytes(), last, b",\"messages\":[", history, behind.as_bytes()].concat()
    })
}

/// Each record has the whole history. In each one 20 other ids differ, and another message is
/// missing.
fn compacted(records: usize, len: usize) -> Shape {
    let (all, ends) = session(2, len / 2_700, 2_700);
    Shape::new("compaction copies, 122 x 9.4 MB", records, move |seq| {
        let (uuid, at) = (id(seq as u64), time(seq));
        let front =
            format!("{{\"type\":\"compacted\",\"uuid\":\"{uuid}\",\"at\":\"{at}\",\"of\":[");
        let mut record = front.into_bytes();
        let start = record.len();
        record.extend_from_slice(&all);
        let mut random = SplitMix64::for_case(2, seq as u64);
        for _ in 0..20 {
            let at = start + ends[random.index(ends.len() - 2)] + 40;
            record[at..at + 36].copy_from_slice(&id(random.next_u64()).as_bytes()[..36]);
        }
        let gone = random.index(ends.len() - 2);
        record.drain(start + ends[gone]..start + ends[gone + 1]);
        record.extend_from_slice(b"]}");
        record
    })
}

/// The whole state after each step: a list that grows, and a part that stays.
fn states(records: usize) -> Shape {
    let (all, ends) = session(3, records, 480);
    let (stays, _) = session(4, all.len() * 9 / 32 / 480, 480);
    Shape::new("1,000 states of a growing list", records, move |seq| {
        let (front, uuid) = (time(seq), id(seq as u64));
        let front = format!("{{\"v\":4,\"ts\":\"{front}\",\"id\":\"{uuid}\",\"messages\":[");
        let behind = format!("],\"step\":{seq}}}");
        let history = &all[..ends[seq + 1]];
        [front.as_bytes(), history, b"],\"docs\":[", &stays, behind.as_bytes()].concat()
    })
}

/// One image in each message.
fn images(records: usize, len: usize) -> Shape {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut random = SplitMix64::new(5);
    let image: Vec<u8> = (0..len).map(|_| LETTERS[random.index(64)]).collect();
    let (all, ends) = session(6, records, 1_000);
    Shape::new("one image of 700 KB in 100 records", records, move |seq| {
        let front = format!("{{\"uuid\":\"{}\",\"source\":{{\"data\":\"", id(seq as u64));
        let text = &all[ends[seq] + usize::from(seq > 0)..ends[seq + 1]];
        [front.as_bytes(), &image, b"\"},\"text\":", text, b"}"].concat()
    })
}

/// The pieces of an answer, as they arrive.
fn deltas(records: usize) -> Shape {
    let (all, _) = session(7, records / 20, 2_000);
    let text: Vec<u8> = all.into_iter().filter(u8::is_ascii_alphanumeric).collect();
    Shape::new("400,000 token deltas", records, move |seq| {
        let mut random = SplitMix64::for_case(7, seq as u64);
        let (at, len) = (random.index(text.len() - 20), 2 + random.index(12));
        let (said, at) = (String::from_utf8_lossy(&text[at..at + len]), time(seq));
        format!(
            "{{\"type\":\"content_block_delta\",\"index\":{},\"delta\":{{\"type\":\"text_delta\",\
             \"text\":\"{said}\"}},\"n\":{seq},\"ts\":\"{at}\"}}",
            seq / 700
        )
        .into_bytes()
    })
}

/// The result of a tool, twice on its line.
fn twice(records: usize) -> Shape {
    let (all, ends) = session(8, records, 4_000);
    Shape::new("tool results, twice on a line", records, move |seq| {
        let text = &all[ends[seq] + usize::from(seq > 0)..ends[seq + 1]];
        let front = format!("{{\"uuid\":\"{}\",\"content\":", id(seq as u64));
        [front.as_bytes(), text, b",\"stdout\":", text, b"}"].concat()
    })
}

/// A long session without such repetition.
fn ordinary(records: usize) -> Shape {
    let (words, mut random) = (Words::new(), SplitMix64::new(9));
    let mut writing = Writing::new(&words, 9);
    let all: Vec<Vec<u8>> =
        (0..records).map(|seq| writing.record(9, seq, Sizes::Real.next(&mut random))).collect();
    Shape::new("ordinary text", records, move |seq| all[seq].clone())
}

fn random(records: usize) -> Shape {
    Shape::new(RANDOM, records, |seq| {
        let mut bytes = vec![0; 4 << 10];
        SplitMix64::for_case(10, seq as u64).fill(&mut bytes);
        bytes
    })
}
