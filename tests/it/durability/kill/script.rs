//! The protocol of parent and child of the kill test: the messages of the pipe, and the content of
//! every run as a function of the seed.

use runlog::{Activity, ContentType, Durability, NewRecord, Outcome};
use runlog_sim::SplitMix64;

/// The threads that append.
pub(crate) const THREADS: u8 = 8;
/// The most records that one call appends.
pub(crate) const LONGEST_BATCH: u64 = 6;

const ACTIVITIES: [Activity; 11] = [
    Activity::Recovery,
    Activity::Roll,
    Activity::Seal,
    Activity::Reserve,
    Activity::Sync,
    Activity::IndexCheckpoint,
    Activity::IndexRebuild,
    Activity::Reclaim,
    Activity::GiveBack,
    Activity::Compaction,
    Activity::Close,
];

/// A run of the test: the child and the thread that started it, and a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RunKey {
    pub(crate) thread: u8,
    pub(crate) child: u32,
    pub(crate) number: u32,
}

impl RunKey {
    pub(crate) fn agent(self) -> String {
        agent(self.thread)
    }

    pub(crate) fn run(self) -> String {
        format!("{}-{}-{}", self.thread, self.child, self.number)
    }

    pub(crate) fn from_run(run: &str) -> Option<Self> {
        let mut parts = run.split('-');
        let thread = parts.next()?.parse().ok()?;
        let child = parts.next()?.parse().ok()?;
        let number = parts.next()?.parse().ok()?;
        parts.next().is_none().then_some(Self { thread, child, number })
    }

    fn random(self, seed: u64, case: u64) -> SplitMix64 {
        let run = u64::from(self.child) << 32 | u64::from(self.number) << 8;
        let random = SplitMix64::for_case(seed, run | u64::from(self.thread));
        SplitMix64::for_case(random.clone().next_u64(), case)
    }

    pub(crate) fn metadata(self, seed: u64) -> Vec<u8> {
        let mut random = self.random(seed, u64::MAX);
        let mut bytes = vec![0; random.index(200)];
        random.fill(&mut bytes);
        bytes
    }

    /// How many records the run gets before it is ended.
    pub(crate) fn len(self, seed: u64) -> u64 {
        10 + self.random(seed, u64::MAX - 1).below(80)
    }

    pub(crate) fn outcome(self, seed: u64) -> Outcome {
        let mut random = self.random(seed, u64::MAX - 2);
        let outcome = if random.coin() { Outcome::completed() } else { Outcome::failed() };
        outcome.json(&random.next_u64().to_le_bytes())
    }

    pub(crate) fn record(self, seed: u64, seq: u64) -> Content {
        let mut random = self.random(seed, seq);
        let len = match random.below(100) {
            0 => 0,
            1..70 => 50 + random.index(750),
            70..95 => 800 + random.index(3_200),
            95..99 => 4_000 + random.index(16_000),
            // Above the inline limit: cut into pieces.
            _ => 33_000 + random.index(70_000),
        };
        let mut payload = vec![0; len];
        random.fill(&mut payload);
        let kind = ["", "turn", "tool", "message"][random.index(4)];
        let content = if random.coin() { ContentType::JSON } else { ContentType::BYTES };
        Content { payload, kind, content }
    }
}

pub(crate) fn agent(thread: u8) -> String {
    format!("agent-{thread}")
}

/// A record as it must come back.
#[derive(PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) payload: Vec<u8>,
    pub(crate) kind: &'static str,
    pub(crate) content: ContentType,
}

impl Content {
    pub(crate) fn to_record(&self, durability: Durability) -> NewRecord<'_> {
        NewRecord::new(&self.payload)
            .kind(self.kind)
            .content_type(self.content)
            .durability(durability)
    }

    pub(crate) fn is(&self, record: &runlog::Record) -> bool {
        record.payload() == self.payload
            && record.kind().unwrap_or_default() == self.kind
            && record.content_type() == self.content
            && !record.is_late()
    }
}

/// Where a child must stop: within this activity for the n-th time, after this many further events
/// within it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stall {
    pub(crate) activity: Activity,
    pub(crate) times: u64,
    pub(crate) events: u64,
}

impl Stall {
    pub(crate) fn to_text(self) -> String {
        format!("{} {} {}", code(self.activity), self.times, self.events)
    }

    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let numbers: Vec<u64> = text.split(' ').map_while(|part| part.parse().ok()).collect();
        let [activity, times, events] = numbers[..] else { return None };
        let activity = *ACTIVITIES.get(usize::try_from(activity).ok()?)?;
        Some(Self { activity, times, events })
    }
}

/// The message of a child. All but `Begin`, `End` and `Deleting` are sent afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Started,
    /// This many records from the message's sequence on.
    Appended {
        disk: bool,
        count: u8,
    },
    Ended,
    Deleting,
    Deleted,
    Begin(Activity),
    End(Activity),
    Stopped,
}

impl Op {
    pub(crate) fn is_acknowledgement(self) -> bool {
        matches!(self, Self::Started | Self::Appended { .. } | Self::Ended | Self::Deleted)
    }

    fn encode(self) -> [u8; 3] {
        match self {
            Self::Started => [0, 0, 0],
            Self::Appended { disk, count } => [1, u8::from(disk), count],
            Self::Ended => [2, 0, 0],
            Self::Deleting => [3, 0, 0],
            Self::Deleted => [4, 0, 0],
            Self::Begin(activity) => [5, code(activity), 0],
            Self::End(activity) => [6, code(activity), 0],
            Self::Stopped => [7, 0, 0],
        }
    }

    fn decode(bytes: [u8; 3]) -> Self {
        let activity = || ACTIVITIES[usize::from(bytes[1])];
        match bytes[0] {
            0 => Self::Started,
            1 => Self::Appended { disk: bytes[1] == 1, count: bytes[2] },
            2 => Self::Ended,
            3 => Self::Deleting,
            4 => Self::Deleted,
            5 => Self::Begin(activity()),
            6 => Self::End(activity()),
            7 => Self::Stopped,
            other => panic!("message {other} is not one of ours"),
        }
    }
}

fn code(activity: Activity) -> u8 {
    let at = ACTIVITIES.iter().position(|other| *other == activity);
    u8::try_from(at.expect("each activity is in the list")).unwrap()
}

/// A message of the pipe: short enough to be written whole or not at all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message {
    pub(crate) op: Op,
    pub(crate) run: RunKey,
    pub(crate) seq: u64,
}

impl Message {
    pub(crate) const LEN: usize = 16;

    /// A message that is not about a run.
    pub(crate) fn about(op: Op) -> Self {
        Self { op, run: RunKey { thread: 0, child: 0, number: 0 }, seq: 0 }
    }

    pub(crate) fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..3].copy_from_slice(&self.op.encode());
        bytes[3] = self.run.thread;
        bytes[4..8].copy_from_slice(&self.run.child.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.run.number.to_le_bytes());
        bytes[12..].copy_from_slice(&u32::try_from(self.seq).unwrap().to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: [u8; Self::LEN]) -> Self {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
        let run = RunKey { thread: bytes[3], child: word(4), number: word(8) };
        let op = Op::decode([bytes[0], bytes[1], bytes[2]]);
        Self { op, run, seq: u64::from(word(12)) }
    }
}
