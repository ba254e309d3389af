//! The runs of the demonstration. They follow from a seed, so that the checking process can make
//! every expected byte again.
//!
//! Sizes follow what was measured over 274 sessions of real coding agents (96,233 records): the
//! median record has 1 KB, one in a hundred more than 50 KB. Runs have a sixteenth of the measured
//! records, so that some seconds are enough for many runs.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "shares and sizes that are positive and far below the limits"
)]

use std::io::Write as _;

/// The share of records that are at most this large, in bytes.
const RECORD_BYTES: [(f64, f64); 11] = [
    (0.0, 120.0),
    (0.01, 235.0),
    (0.10, 579.0),
    (0.25, 686.0),
    (0.50, 1_049.0),
    (0.75, 1_932.0),
    (0.90, 6_140.0),
    (0.95, 15_375.0),
    (0.99, 51_045.0),
    (0.999, 114_865.0),
    (1.0, 961_404.0),
];

/// The share of runs that have at most so many records.
const RUN_RECORDS: [(f64, f64); 8] = [
    (0.0, 20.0),
    (0.25, 102.0),
    (0.50, 237.0),
    (0.75, 462.0),
    (0.90, 893.0),
    (0.95, 1_022.0),
    (0.99, 1_350.0),
    (1.0, 2_331.0),
];

/// By how much runs are shorter than the measured ones.
const SHORTER: f64 = 16.0;

/// The share of the kinds of records, cumulative.
const KINDS: [(f64, &str); 4] =
    [(0.40, "assistant"), (0.62, "tool_result"), (0.94, "progress"), (1.0, "user")];

/// The agents that the runs belong to.
pub(crate) const AGENTS: [&str; 6] =
    ["coder", "planner", "researcher", "reviewer", "tester", "writer"];

/// One record in so many is appended at Disk level.
const DISK_EVERY: u64 = 64;

/// The number of a run of the demonstration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RunNumber(pub(crate) u32);

/// Everything that follows from the seed.
#[derive(Debug)]
pub(crate) struct Workload {
    seed: u64,
    /// Text for payloads: generating each payload would be slower than storing it.
    words: Vec<u8>,
}

/// The parts of a record besides its text.
#[derive(Debug, Clone, Copy)]
struct Plan {
    kind: &'static str,
    size: usize,
    text_at: usize,
}

impl Workload {
    const WORDS: usize = 256 << 10;

    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(&[seed]);
        let mut words = Vec::with_capacity(Self::WORDS);
        while words.len() < Self::WORDS {
            let letters = 2 + random.next() % 9;
            for _ in 0..letters {
                // Below 26, so the cast loses nothing.
                words.push(b'a' + (random.next() % 26) as u8);
            }
            words.push(b' ');
        }
        words.truncate(Self::WORDS);
        Self { seed, words }
    }

    pub(crate) fn agent(&self, run: RunNumber) -> &'static str {
        let pick = Random::new(&[self.seed, 1, u64::from(run.0)]).next();
        AGENTS[(pick % AGENTS.len() as u64) as usize]
    }

    pub(crate) fn run_id(run: RunNumber) -> String {
        format!("run-{:05}", run.0)
    }

    /// The metadata of the run.
    pub(crate) fn metadata(run: RunNumber) -> String {
        format!(r#"{{"task":"demonstration","number":{}}}"#, run.0)
    }

    /// How many records the run has when it ends.
    pub(crate) fn records(&self, run: RunNumber) -> u64 {
        let share = Random::new(&[self.seed, 2, u64::from(run.0)]).share();
        (quantile(&RUN_RECORDS, share) / SHORTER).ceil() as u64
    }

    /// Whether the record is appended at Disk level.
    pub(crate) fn is_for_disk(run: RunNumber, seq: u64) -> bool {
        (u64::from(run.0) + seq).is_multiple_of(DISK_EVERY)
    }

    pub(crate) fn kind(&self, run: RunNumber, seq: u64) -> &'static str {
        self.plan(run, seq).kind
    }

    /// The size of a payload, without making it.
    pub(crate) fn size(&self, run: RunNumber, seq: u64) -> usize {
        self.plan(run, seq).size
    }

    /// Sets `payload` to the payload of the record: one JSON object.
    pub(crate) fn payload(&self, run: RunNumber, seq: u64, payload: &mut Vec<u8>) {
        const TAIL: &[u8] = br#""}"#;
        let plan = self.plan(run, seq);
        payload.clear();
        // Writing to a vector cannot fail.
        let _ =
            write!(payload, r#"{{"run":{},"turn":{seq},"type":"{}","text":""#, run.0, plan.kind);
        let mut left = plan.size.saturating_sub(payload.len() + TAIL.len());
        let mut at = plan.text_at;
        while left > 0 {
            let piece = &self.words[at..self.words.len().min(at + left)];
            payload.extend_from_slice(piece);
            left -= piece.len();
            at = 0;
        }
        payload.extend_from_slice(TAIL);
    }

    fn plan(&self, run: RunNumber, seq: u64) -> Plan {
        let mut random = Random::new(&[self.seed, 3, u64::from(run.0), seq]);
        let share = random.share();
        let kind = KINDS.iter().find(|(up_to, _)| share < *up_to).map_or("user", |kind| kind.1);
        let size = quantile(&RECORD_BYTES, random.share()) as usize;
        let text_at = (random.next() % self.words.len() as u64) as usize;
        Plan { kind, size, text_at }
    }
}

/// The value at a share, straight lines on a logarithmic scale between the known ones.
fn quantile(table: &[(f64, f64)], share: f64) -> f64 {
    for pair in table.windows(2) {
        if let [(from, low), (to, high)] = *pair
            && share < to
        {
            return (low.ln() + (high.ln() - low.ln()) * (share - from) / (to - from)).exp();
        }
    }
    table.last().map_or(0.0, |(_, value)| *value)
}

/// Pseudo-random numbers from a seed: a counter whose bits are mixed.
#[derive(Debug)]
struct Random {
    state: u64,
}

impl Random {
    fn new(words: &[u64]) -> Self {
        let state = words.iter().fold(0, |state, word| mix(state ^ word).wrapping_add(STEP));
        Self { state }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        mix(self.state)
    }

    /// At least 0, below 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// An odd number without a pattern.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes all bits; no two inputs give the same output.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_bytes() {
        let (one, two, other) = (Workload::new(1), Workload::new(1), Workload::new(2));
        let (mut a, mut b, mut c) = (Vec::new(), Vec::new(), Vec::new());
        for seq in 0..50 {
            one.payload(RunNumber(3), seq, &mut a);
            two.payload(RunNumber(3), seq, &mut b);
            other.payload(RunNumber(3), seq, &mut c);
            assert_eq!(a, b);
            assert_ne!(a, c);
            assert_eq!(a.len(), one.size(RunNumber(3), seq));
            serde_json::from_slice::<serde::de::IgnoredAny>(&a).expect("one JSON value");
        }
    }

    #[test]
    fn sizes_follow_the_measured_quantiles() {
        let workload = Workload::new(7);
        let mut sizes: Vec<usize> =
            (0..10_000).map(|n| workload.size(RunNumber(n / 100), u64::from(n % 100))).collect();
        sizes.sort_unstable();
        let near = |index: usize, size: usize| {
            let found = sizes[index];
            assert!(found.abs_diff(size) * 10 < size, "{found} instead of {size}");
        };
        near(2_500, 686);
        near(5_000, 1_049);
        near(7_500, 1_932);
    }
}
