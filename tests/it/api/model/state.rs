//! What should be in a store, as plain collections, and what is in it, read through the public API.
//!
//! - [`State`]: the runs and the receipts; [`Change`]s make one from another.
//! - [`Seen`]: everything that an owner can see of the runs, of a state or of a store.

use std::collections::BTreeMap;
use std::sync::Arc;

use runlog::{ContentType, Record, Rule, RunLog, RunQuery, RunStatus};

/// Agent and run.
pub(super) type Name = (&'static str, String);

pub(super) const AGENTS: [&str; 4] = ["alpha", "beta", "gamma", "delta"];

/// A record as it was appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rec {
    pub(super) payload: Arc<[u8]>,
    pub(super) kind: &'static str,
    pub(super) content: u8,
    pub(super) at: i64,
    pub(super) late: bool,
    /// Its place in the whole log, where the append told it.
    pub(super) lsn: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) at: i64,
    pub(super) content: u8,
    pub(super) metadata: Arc<[u8]>,
}

impl Start {
    /// Whether it says the same, so that the run is the same.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.content == other.content && self.metadata == other.metadata
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct End {
    pub(super) at: i64,
    pub(super) status: RunStatus,
    pub(super) content: u8,
    pub(super) payload: Arc<[u8]>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) since: i64,
    pub(super) reason: String,
}

#[derive(Debug, Clone)]
pub(super) struct Run {
    /// In the order in which runs came into being, also across crashes.
    pub(super) number: u64,
    pub(super) created_at: i64,
    pub(super) last_at: i64,
    pub(super) start: Option<Start>,
    pub(super) end: Option<End>,
    pub(super) hold: Option<Hold>,
    pub(super) records: Vec<Rec>,
    /// The bytes of the frames that every copy of the run must have, its last hold aside.
    least: u64,
    /// As many of them are frames of records.
    of_records: u64,
    /// The bytes of frames that the store may have or not: a compaction leaves some out.
    spare: u64,
    last_hold: u64,
}

/// What is kept of a run that was deleted.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    pub(super) name: Name,
    pub(super) rule: Rule,
    /// The least and the most bytes that the run had.
    pub(super) bytes: (u64, u64),
    /// The receipt was too old, or one too many, at some time, so that it may be gone for good.
    pub(super) doomed: bool,
}

#[derive(Debug, Clone)]
pub(super) enum Change {
    /// A run comes into being: with its start, or by ids.
    Create {
        name: Name,
        number: u64,
        at: i64,
        start: Option<Start>,
    },
    /// A run that came into being by ids is started after all.
    Start {
        name: Name,
        start: Start,
    },
    Append {
        name: Name,
        records: Vec<Rec>,
    },
    End {
        name: Name,
        end: End,
    },
    Hold {
        name: Name,
        at: i64,
        reason: Option<String>,
    },
    Delete {
        at: i64,
        kept: Kept,
    },
}

/// Everything that a store should have.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    pub(super) runs: BTreeMap<Name, Run>,
    /// By the time of the deletion and the number of the run.
    pub(super) receipts: BTreeMap<(i64, u64), Kept>,
}

/// The bytes of a frame: 72 of a header, and a payload that is filled up to a multiple of 8.
fn frame(payload: usize) -> u64 {
    ((72 + payload) as u64).next_multiple_of(8)
}

/// The longest payload of a frame in extents of 64 KiB.
const INLINE: usize = 8192;

/// The bytes of the frames of a record that lies in chunks of `INLINE`.
fn in_chunks(rec: &Rec) -> u64 {
    let chunks = rec.payload.chunks(INLINE).map(|chunk| frame(chunk.len()));
    chunks.sum::<u64>() + frame(rec.kind.len() + 16)
}

/// The least and the most bytes of the frames of records that are appended together.
fn frames(records: &[Rec]) -> (u64, u64) {
    let whole = |rec: &Rec| frame(rec.kind.len() + rec.payload.len());
    let is_long = |rec: &Rec| rec.kind.len() + rec.payload.len() > INLINE;
    match records {
        [rec] if is_long(rec) => (in_chunks(rec), in_chunks(rec)),
        [rec] => (whole(rec), whole(rec)),
        batch => {
            // Of a batch any but the shortest may lie in chunks, and there is a COMMIT behind it,
            // which a copy has not.
            let least = batch.iter().map(whole).sum();
            let most = batch.iter().map(|rec| whole(rec).max(in_chunks(rec))).sum::<u64>();
            (least, most + frame(0))
        }
    }
}

impl Kept {
    pub(super) fn new(name: Name, rule: Rule, bytes: (u64, u64)) -> Self {
        Self { name, rule, bytes, doomed: false }
    }
}

impl Run {
    fn new(name: &Name, number: u64, at: i64) -> Self {
        Self {
            number,
            created_at: at,
            last_at: at,
            start: None,
            end: None,
            hold: None,
            records: Vec::new(),
            // Whether it was started or not, the frame that creates it has both ids.
            least: frame(4 + name.0.len() + name.1.len()),
            of_records: 0,
            spare: 0,
            last_hold: 0,
        }
    }

    pub(super) fn status(&self) -> RunStatus {
        self.end.as_ref().map_or(RunStatus::InProgress, |end| end.status)
    }

    /// The bytes of all payloads.
    pub(super) fn bytes(&self) -> u64 {
        self.records.iter().map(|rec| rec.payload.len() as u64).sum()
    }

    /// The least and the most bytes that its frames have in the store, where runs that have ended
    /// may be `compressed` or not.
    pub(super) fn stored(&self, compressed: bool) -> (u64, u64) {
        let most = self.least + self.last_hold + self.spare;
        let shorter = if compressed && self.end.is_some() { self.of_records } else { 0 };
        (self.least + self.last_hold - shorter, most)
    }

    fn append(&mut self, records: &[Rec]) {
        let (least, most) = frames(records);
        self.least += least;
        self.of_records += least;
        self.spare += most - least;
        let latest = records.iter().map(|rec| rec.at).max().unwrap_or(i64::MIN);
        self.last_at = self.last_at.max(latest);
        self.records.extend_from_slice(records);
    }

    /// Chunks of records may be there without the record.
    fn may_have_chunks_of(&mut self, records: &[Rec]) {
        self.spare += records.iter().map(in_chunks).sum::<u64>();
    }
}

impl State {
    pub(super) fn apply(&mut self, change: &Change) {
        match change {
            Change::Create { name, number, at, start } => {
                let mut run = Run::new(name, *number, *at);
                if let Some(start) = start {
                    run.least = frame(4 + name.0.len() + name.1.len() + start.metadata.len());
                }
                run.start.clone_from(start);
                assert!(self.runs.insert(name.clone(), run).is_none(), "{name:?} is there");
            }
            Change::Start { name, start } => {
                let run = self.run_mut(name);
                run.least += frame(4 + name.0.len() + name.1.len() + start.metadata.len());
                run.last_at = run.last_at.max(start.at);
                run.start = Some(start.clone());
            }
            Change::Append { name, records } => self.run_mut(name).append(records),
            Change::End { name, end } => {
                let run = self.run_mut(name);
                run.least += frame(1 + end.payload.len());
                run.last_at = run.last_at.max(end.at);
                run.end = Some(end.clone());
            }
            Change::Hold { name, at, reason } => {
                let run = self.run_mut(name);
                run.spare += run.last_hold;
                run.last_hold = frame(reason.as_ref().map_or(0, String::len));
                run.hold =
                    reason.as_ref().map(|reason| Hold { since: *at, reason: reason.clone() });
            }
            Change::Delete { at, kept } => {
                let run = self.runs.remove(&kept.name).expect("only what is there is deleted");
                assert!(run.end.is_some(), "{:?} is in progress", kept.name);
                assert!(run.hold.is_none(), "{:?} is held", kept.name);
                self.receipts.insert((*at, run.number), kept.clone());
            }
        }
    }

    /// This change was begun, and there may be some of it that does not count.
    pub(super) fn apply_in_part(&mut self, change: &Change) {
        if let Change::Append { name, records } = change
            && let Some(run) = self.runs.get_mut(name)
        {
            run.may_have_chunks_of(records);
        }
    }

    fn run_mut(&mut self, name: &Name) -> &mut Run {
        self.runs.get_mut(name).expect("changes are of runs that are there")
    }

    /// The runs, the newest first.
    pub(super) fn newest_first(&self) -> Vec<(&Name, &Run)> {
        let mut runs: Vec<_> = self.runs.iter().collect();
        runs.sort_by_key(|(_, run)| core::cmp::Reverse((run.created_at, run.number)));
        runs
    }

    /// A few numbers that most states differ in.
    fn digest(&self) -> [u64; 4] {
        let runs = self.runs.values();
        let count = |what: fn(&Run) -> bool| runs.clone().filter(|run| what(run)).count() as u64;
        let records = runs.clone().map(|run| run.records.len() as u64).sum();
        [
            runs.len() as u64,
            records,
            count(|run| run.end.is_some()),
            count(|run| run.hold.is_some()),
        ]
    }

    /// Whether this is what was seen of a store.
    pub(super) fn is(&self, seen: &[Seen], digest: [u64; 4]) -> bool {
        self.digest() == digest && Seen::of_state(self) == seen
    }
}

/// All that can be seen of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) agent: String,
    pub(super) run: String,
    pub(super) started_at: i64,
    pub(super) last_at: i64,
    pub(super) start: Option<(u8, Arc<[u8]>)>,
    pub(super) end: Option<End>,
    pub(super) hold: Option<Hold>,
    pub(super) records: u64,
    pub(super) late: u64,
    pub(super) bytes: u64,
    pub(super) trace: Vec<Rec>,
}

impl Seen {
    /// All runs of a state, the newest first.
    pub(super) fn of_state(state: &State) -> Vec<Self> {
        let runs = state.newest_first().into_iter();
        runs.map(|((agent, id), run)| Self {
            agent: (*agent).to_owned(),
            run: id.clone(),
            started_at: run.start.as_ref().map_or(run.created_at, |start| start.at),
            last_at: run.last_at,
            start: run.start.as_ref().map(|start| (start.content, Arc::clone(&start.metadata))),
            end: run.end.clone(),
            hold: run.hold.clone(),
            records: run.records.len() as u64,
            late: run.records.iter().filter(|rec| rec.late).count() as u64,
            bytes: run.bytes(),
            trace: run.records.iter().map(|rec| Rec { lsn: None, ..rec.clone() }).collect(),
        })
        .collect()
    }

    /// All runs of a store, as `all_runs` lists them in pages of `page`.
    pub(super) fn of_store(log: &RunLog, page: usize) -> Vec<Self> {
        let mut holds: BTreeMap<(String, String), Hold> = BTreeMap::new();
        for held in log.held_runs().unwrap() {
            let hold = Hold { since: held.since.0, reason: held.reason };
            holds.insert((held.agent.to_string(), held.run.to_string()), hold);
        }
        let mut all = Vec::new();
        let mut cursor = None;
        loop {
            let found = log.list_runs(&RunQuery::new().limit(page).after(cursor)).unwrap();
            for run in &found.runs {
                let hold = holds.remove(&(run.agent.to_string(), run.run.to_string()));
                assert_eq!(run.held, hold.is_some(), "{run:?}");
                all.push(Self::of_run(log, run, hold));
            }
            cursor = found.next;
            if cursor.is_none() {
                break;
            }
        }
        assert!(holds.is_empty(), "held, and not listed: {holds:?}");
        all
    }

    fn of_run(log: &RunLog, run: &runlog::RunSummary, hold: Option<Hold>) -> Self {
        let name = (run.agent.as_str(), run.run.as_str());
        let start = log.metadata(name).unwrap();
        assert_eq!(run.started, start.is_some(), "{run:?}");
        let end = log.outcome(name).unwrap().map(|outcome| End {
            at: run.ended_at.expect("it has ended").0,
            status: outcome.status(),
            content: outcome.content_type().code(),
            payload: outcome.payload().into(),
        });
        assert_eq!(run.status.is_ended(), end.is_some(), "{run:?}");
        let (mut trace, mut last_lsn) = (Vec::new(), None);
        for (seq, record) in (0..).zip(log.trace(name).unwrap()) {
            let record = record.unwrap_or_else(|error| panic!("{name:?} record {seq}: {error}"));
            assert_eq!(record.seq().0, seq, "{name:?}");
            assert!(Some(record.lsn()) > last_lsn, "{name:?}: {seq} is older than the one before");
            last_lsn = Some(record.lsn());
            trace.push(Rec::of_record(&record));
        }
        Self {
            agent: run.agent.to_string(),
            run: run.run.to_string(),
            started_at: run.started_at.0,
            last_at: run.last_at.0,
            start: start.map(|said| (said.content_type().code(), said.payload().into())),
            end,
            hold,
            records: run.records,
            late: run.late_records,
            bytes: run.bytes,
            trace,
        }
    }

    /// See [`State::is`].
    pub(super) fn digest(seen: &[Self]) -> [u64; 4] {
        let count = |what: fn(&Self) -> bool| seen.iter().filter(|run| what(run)).count() as u64;
        let records = seen.iter().map(|run| run.records).sum();
        [
            seen.len() as u64,
            records,
            count(|run| run.end.is_some()),
            count(|run| run.hold.is_some()),
        ]
    }
}

const KINDS: [&str; 3] = ["", "turn", "tool_call"];

impl Rec {
    pub(super) fn kind(number: usize) -> &'static str {
        KINDS[number % KINDS.len()]
    }

    fn of_record(record: &Record) -> Self {
        let kind = record.kind().unwrap_or("");
        Self {
            payload: record.payload().into(),
            kind: KINDS.into_iter().find(|known| *known == kind).expect("a kind of the test"),
            content: record.content_type().code(),
            at: record.timestamp().0,
            late: record.is_late(),
            lsn: None,
        }
    }

    /// Compares a record that was read with this one.
    pub(super) fn check<B: core::ops::Deref<Target = [u8]>>(&self, record: &Record<B>, seq: usize) {
        assert_eq!(record.seq().0, seq as u64);
        assert!(*record.payload() == *self.payload, "record {seq} has other bytes: {record:?}");
        assert_eq!(record.kind().unwrap_or(""), self.kind);
        assert_eq!(record.content_type(), ContentType::from_code(self.content));
        assert_eq!((record.timestamp().0, record.is_late()), (self.at, self.late));
        assert!(self.lsn.is_none_or(|lsn| record.lsn().0 == lsn), "{seq} is at {}", record.lsn());
    }
}
