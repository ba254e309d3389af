//! The protocol of parent and child of the kill test.

use runlog::Activity;

use crate::support::crowd::{Op, RunKey};

/// The threads that append.
pub(crate) const THREADS: u64 = 8;

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

fn code(activity: Activity) -> u64 {
    let at = ACTIVITIES.iter().position(|other| *other == activity);
    at.expect("each activity is in the list") as u64
}

/// The message of a child: a line of numbers, so short that it is written whole or not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Message {
    Of(RunKey, Op),
    Begin(Activity),
    End(Activity),
    Stopped,
}

/// The operations of a worker; a count replaces the 0 in it.
const OPS: [Op; 8] = [
    Op::Starting,
    Op::Started,
    Op::Appending(0),
    Op::Appended(0),
    Op::Ending,
    Op::Ended,
    Op::Deleting,
    Op::Deleted,
];

impl Message {
    pub(crate) fn to_line(self) -> String {
        let of_op = |op| OPS.iter().position(|other| *other == op).expect("it is listed");
        let numbers = match self {
            Self::Of(run, op) => {
                let (op, count) = match op {
                    Op::Appending(count) => (Op::Appending(0), count),
                    Op::Appended(count) => (Op::Appended(0), count),
                    op => (op, 0),
                };
                vec![of_op(op) as u64, count, run.thread, run.child, run.number]
            }
            Self::Begin(activity) => vec![code(activity), 1],
            Self::End(activity) => vec![code(activity), 0],
            Self::Stopped => vec![0],
        };
        let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
        numbers.join(" ") + "\n"
    }

    pub(crate) fn from_line(line: &str) -> Self {
        let numbers: Vec<u64> = line.split(' ').map(|one| one.parse().unwrap()).collect();
        match numbers[..] {
            [op, count, thread, child, number] => {
                let op = match OPS[op as usize] {
                    Op::Appending(_) => Op::Appending(count),
                    Op::Appended(_) => Op::Appended(count),
                    op => op,
                };
                Self::Of(RunKey { thread, child, number }, op)
            }
            [activity, 1] => Self::Begin(ACTIVITIES[activity as usize]),
            [activity, _] => Self::End(ACTIVITIES[activity as usize]),
            _ => Self::Stopped,
        }
    }
}
