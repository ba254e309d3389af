//! What the writer does at each of its steps, and the board where it tells how far it is.
//!
//! The n-th step is a function of n alone, so two numbers say what each run must have: how many
//! steps are acknowledged, and how many may have begun.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use runlog_sim::SplitMix64;

/// So many runs grow at a time, each of an agent of its own.
pub(crate) const LANES: u64 = 32;
const NOISE: usize = 64 << 10;

/// How many steps append to a run of a lane. A few runs are long, so that what is dead lies beside
/// what lives, and compaction has to move that.
fn appends(lane: u64) -> u64 {
    if lane % 8 == 0 { 6_000 } else { 150 }
}

/// How many records a step appends, in one batch.
pub(crate) fn per_step(lane: u64) -> u64 {
    if lane % 16 == 5 { 4 } else { 1 }
}

/// How many ended runs of a lane are kept.
pub(crate) fn kept(lane: u64) -> u64 {
    if lane % 8 == 0 { 4 } else { 30 }
}

/// The records of a step, on average.
pub(crate) fn records_per_step() -> f64 {
    (0..LANES).map(per_step).sum::<u64>() as f64 / LANES as f64
}

/// A run: its lane, and its number in that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RunKey {
    pub(crate) lane: u64,
    pub(crate) number: u64,
}

/// A step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Start,
    /// Records from this one on.
    Append {
        seq: u64,
    },
    End,
}

/// What a run has after some steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct State {
    pub(crate) is_there: bool,
    pub(crate) records: u64,
    pub(crate) has_ended: bool,
}

pub(crate) fn step(number: u64) -> (RunKey, Step) {
    let (lane, of_lane) = (number % LANES, number / LANES);
    let len = appends(lane) + 2;
    let step = match of_lane % len {
        0 => Step::Start,
        last if last == len - 1 => Step::End,
        place => Step::Append { seq: (place - 1) * per_step(lane) },
    };
    (RunKey { lane, number: of_lane / len }, step)
}

impl RunKey {
    pub(crate) fn agent(self) -> String {
        agent(self.lane)
    }

    pub(crate) fn run(self) -> String {
        format!("{}-{}", self.lane, self.number)
    }

    pub(crate) fn from_run(run: &str) -> Self {
        let (lane, number) = run.split_once('-').expect("a run of the test");
        Self { lane: lane.parse().unwrap(), number: number.parse().unwrap() }
    }

    /// What it has after so many steps, if it is not deleted.
    pub(crate) fn after(self, steps: u64) -> State {
        let len = appends(self.lane) + 2;
        let of_lane = (steps + LANES - 1 - self.lane) / LANES;
        let done = of_lane.saturating_sub(self.number * len).min(len);
        State {
            is_there: done > 0,
            records: done.saturating_sub(1).min(len - 2) * per_step(self.lane),
            has_ended: done == len,
        }
    }

    pub(crate) fn payload(self, noise: &Noise, seq: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(400);
        for part in [self.lane, self.number, seq] {
            bytes.extend(part.to_le_bytes());
        }
        let random = SplitMix64::new(self.lane << 56 ^ self.number << 28 ^ seq).next_u64() as usize;
        let (from, len) = (random % (NOISE - 400), 16 + (random >> 32) % 370);
        bytes.extend(&noise.0[from..from + len]);
        bytes
    }
}

pub(crate) fn agent(lane: u64) -> String {
    format!("lane-{lane}")
}

/// The number of the newest run of a lane after so many steps.
pub(crate) fn newest(lane: u64, steps: u64) -> Option<u64> {
    let of_lane = (steps + LANES - 1 - lane) / LANES;
    Some(of_lane.checked_sub(1)? / (appends(lane) + 2))
}

/// Bytes for payloads.
#[derive(Debug)]
pub(crate) struct Noise(Vec<u8>);

impl Noise {
    pub(crate) fn new() -> Self {
        let mut bytes = vec![0; NOISE];
        SplitMix64::new(18).fill(&mut bytes);
        Self(bytes)
    }
}

/// What the writer tells all processes, in a file: numbers that only grow.
#[derive(Debug)]
pub(crate) struct Board(File);

/// A number of the board.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Told {
    /// So many steps are acknowledged.
    Acknowledged,
    /// No step behind these has begun.
    Begun,
    /// So many steps are known to survive power loss.
    Durable,
    /// Runs of the lane in front of this one may be deleted.
    MayGo(u64),
    /// Runs of the lane in front of this one are deleted.
    Gone(u64),
}

impl Board {
    pub(crate) fn create(path: &Path) -> Self {
        Self(File::options().read(true).write(true).create_new(true).open(path).unwrap())
    }

    pub(crate) fn open(path: &Path) -> Self {
        Self(File::open(path).unwrap())
    }

    fn place(told: Told) -> u64 {
        16 * match told {
            Told::Acknowledged => 0,
            Told::Begun => 1,
            Told::Durable => 2,
            Told::MayGo(lane) => 3 + 2 * lane,
            Told::Gone(lane) => 4 + 2 * lane,
        }
    }

    /// A number, and its complement: a number that is being written shows.
    pub(crate) fn set(&self, told: Told, number: u64) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        bytes[8..].copy_from_slice(&(!number).to_le_bytes());
        self.0.write_all_at(&bytes, Self::place(told)).unwrap();
    }

    pub(crate) fn get(&self, told: Told) -> u64 {
        loop {
            let mut bytes = [0; 16];
            // Nothing was told yet.
            if self.0.read_at(&mut bytes, Self::place(told)).unwrap() == 0 || bytes == [0; 16] {
                return 0;
            }
            let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            if number == !u64::from_le_bytes(bytes[8..].try_into().unwrap()) {
                return number;
            }
        }
    }
}
