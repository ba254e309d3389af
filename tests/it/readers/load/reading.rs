//! The processes that read beside the writer. Each ends with the end of its standard input, after a
//! last look, and prints what it did.

use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use runlog::{
    Error, Follow, LogCursor, LogEvent, LogEventKind, Options, Reader, RunQuery, RunStatus,
    RunSummary,
};
use runlog_sim::SplitMix64;

use super::script::{Board, LANES, Noise, RunKey, State, Told, agent, newest};

/// How long a process waits between two looks, so that the writer has a processor.
const BETWEEN_TRACES: Duration = Duration::from_millis(25);
const BETWEEN_LISTS: Duration = Duration::from_millis(100);
/// After so many events the follower is dropped, and another one goes on from its cursor as text.
const EVENTS: u64 = 40_000;

struct Reading {
    path: PathBuf,
    board: Board,
    noise: Noise,
    random: SplitMix64,
    over: Receiver<()>,
}

/// What the writer had done before a question was asked.
struct Before {
    acknowledged: u64,
    gone: Vec<u64>,
}

pub(crate) fn run(folder: &Path, kind: u64, pause: Duration) {
    let (sender, over) = sync_channel(0);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        drop(sender);
    });
    let (path, board) = (folder.join("store"), Board::open(&folder.join("board")));
    let random = SplitMix64::new(kind);
    let mut reading = Reading { path, board, noise: Noise::new(), random, over };
    match kind {
        0 => reading.traces(),
        1 => reading.lists(),
        2 => reading.follow(),
        _ => reading.back_up(folder, pause),
    }
}

impl Reading {
    /// Waits so long; answers whether the writer has ended.
    fn wait(&self, time: Duration) -> bool {
        self.over.recv_timeout(time) == Err(RecvTimeoutError::Disconnected)
    }

    fn before(&self) -> Before {
        // In this order: what is gone was acknowledged.
        let gone = (0..LANES).map(|lane| self.board.get(Told::Gone(lane))).collect();
        let durable = self.board.get(Told::Durable);
        Before { gone, acknowledged: self.board.get(Told::Acknowledged).max(durable) }
    }

    fn reader(&self) -> Reader {
        let reader = Reader::open(&self.path).unwrap();
        // The parent waits for this.
        println!("\nready");
        reader
    }

    /// What a run may have, from before the question until now.
    fn bounds(&self, run: RunKey, before: &Before) -> (State, State) {
        (run.after(before.acknowledged), run.after(self.board.get(Told::Begun)))
    }

    fn may_be_gone(&self, run: RunKey) -> bool {
        run.number < self.board.get(Told::MayGo(run.lane))
    }

    fn check_missing(&self, run: RunKey, before: &Before) {
        let may = self.may_be_gone(run) || !run.after(before.acknowledged).is_there;
        assert!(may, "{run:?} is missing");
    }

    /// Compares what a list or a summary says.
    fn check_summary(&self, found: &RunSummary, before: &Before) {
        let run = RunKey::from_run(found.run.as_str());
        assert_eq!(found.agent.as_str(), run.agent());
        assert!(run.number >= before.gone[run.lane as usize], "{run:?} was deleted");
        let (least, most) = self.bounds(run, before);
        let state = State {
            is_there: true,
            records: found.records,
            has_ended: found.status == RunStatus::Completed,
        };
        let is_right = (least.records..=most.records).contains(&state.records)
            && most.is_there
            && least.has_ended <= state.has_ended
            && state.has_ended <= most.has_ended;
        assert!(is_right, "{run:?} has {state:?}, and not {least:?} to {most:?}");
    }

    /// Compares the records of a run; returns how many there were, or none if it is deleted.
    fn check_trace(&self, reader: &Reader, run: RunKey, before: &Before) -> Option<u64> {
        let (agent, id) = (run.agent(), run.run());
        let mut count = 0;
        let whole = match reader.trace((agent.as_str(), id.as_str())) {
            Ok(trace) => trace.into_iter().try_for_each(|record| {
                let record = record?;
                assert_eq!(record.seq().0, count, "{run:?}");
                assert!(record.payload() == run.payload(&self.noise, count), "{run:?} {count}");
                count += 1;
                Ok(())
            }),
            Err(error) => Err(error),
        };
        match whole {
            Ok(()) => {}
            Err(Error::RunNotFound { .. } | Error::Evicted { .. }) => {
                self.check_missing(run, before);
                return None;
            }
            Err(error) => panic!("{run:?}: {error}"),
        }
        assert!(run.number >= before.gone[run.lane as usize], "{run:?} was deleted");
        let (least, most) = self.bounds(run, before);
        let is_right = (least.records..=most.records).contains(&count);
        assert!(is_right, "{run:?}: {count} records, and not {least:?} to {most:?}");
        Some(count)
    }

    /// A run that lives, or may be about to.
    fn some_run(&mut self, before: &Before) -> Option<RunKey> {
        let lane = self.random.below(LANES);
        let newest = newest(lane, before.acknowledged)?;
        let oldest = before.gone[lane as usize].min(newest);
        let number = match self.random.below(3) {
            0 => newest,
            1 => newest.saturating_sub(1).max(oldest),
            _ => oldest + self.random.below(newest - oldest + 1),
        };
        Some(RunKey { lane, number })
    }

    fn traces(&mut self) {
        let reader = self.reader();
        let (mut traces, mut records, mut gone) = (0, 0, 0);
        loop {
            let is_over = self.wait(BETWEEN_TRACES);
            let before = self.before();
            reader.refresh().unwrap();
            let Some(run) = self.some_run(&before) else { continue };
            match self.check_trace(&reader, run, &before) {
                Some(count) => (traces, records) = (traces + 1, records + count),
                None => gone += 1,
            }
            if is_over {
                break;
            }
        }
        // All that there is now.
        let before = self.before();
        reader.refresh().unwrap();
        for lane in 0..LANES {
            let newest = newest(lane, before.acknowledged).map_or(0, |newest| newest + 1);
            for number in self.board.get(Told::MayGo(lane))..newest {
                let run = RunKey { lane, number };
                records += self.check_trace(&reader, run, &before).expect("it is not deleted");
                traces += 1;
            }
        }
        println!("said: {traces} traces with {records} records, {gone} of deleted runs");
    }

    /// Compares a list of all runs, or of a lane.
    fn check_list(&self, reader: &Reader, before: &Before, lane: Option<u64>) -> Vec<RunKey> {
        let agent = lane.map(agent);
        let query = match &agent {
            Some(agent) => RunQuery::new().agent(agent),
            None => RunQuery::new(),
        };
        let mut found = HashSet::new();
        for run in reader.runs(&query) {
            let run = run.unwrap();
            self.check_summary(&run, before);
            let key = RunKey::from_run(run.run.as_str());
            assert!(lane.is_none_or(|lane| lane == key.lane), "{key:?} is of another agent");
            assert!(found.insert(key), "{key:?} is listed twice");
        }
        for lane in (0..LANES).filter(|one| lane.is_none_or(|lane| lane == *one)) {
            let newest = newest(lane, before.acknowledged).map_or(0, |newest| newest + 1);
            for number in before.gone[lane as usize]..newest {
                let run = RunKey { lane, number };
                if !found.contains(&run) {
                    self.check_missing(run, before);
                }
            }
        }
        found.into_iter().collect()
    }

    fn lists(&mut self) {
        let reader = self.reader();
        let (mut lists, mut runs) = (0, 0);
        loop {
            let is_over = self.wait(BETWEEN_LISTS);
            let lane = Some(self.random.below(LANES)).filter(|_| !is_over && lists % 36 != 0);
            let before = self.before();
            reader.refresh().unwrap();
            let listed = self.check_list(&reader, &before, lane).len();
            // The newest, and those in progress: no answer is older than one before.
            let page = reader.list_runs(&RunQuery::new().limit(20)).unwrap();
            page.runs.iter().for_each(|run| self.check_summary(run, &before));
            let query = RunQuery::new().status(RunStatus::InProgress).limit(100);
            let open = reader.list_runs(&query).unwrap().runs;
            open.iter().for_each(|run| self.check_summary(run, &before));
            assert!(open.iter().all(|run| run.status == RunStatus::InProgress));
            runs += listed + page.runs.len() + open.len();
            lists += 3;
            if is_over {
                break;
            }
        }
        println!("said: {lists} lists with {runs} runs");
    }

    fn follow(&mut self) {
        let reader = self.reader();
        let mut followed = Followed::default();
        let (mut cursor, mut resumed, mut is_over) = (LogCursor::START, 0, false);
        while !is_over {
            let text = cursor.to_string();
            cursor = text.parse().unwrap();
            let mut follower = reader.follow(Follow::Everything, cursor).unwrap();
            let (mut events, until) = (0, EVENTS / 4 + self.random.below(EVENTS));
            while events < until && !is_over {
                let ended = self.wait(Duration::ZERO);
                while let Some(event) =
                    follower.next_within(Some(Duration::from_millis(20))).unwrap()
                {
                    // The deletions of one call have one cursor, from which all are told again.
                    let is_deletion = matches!(event.kind, LogEventKind::Deleted { .. });
                    assert!(
                        event.cursor > cursor || is_deletion && event.cursor == cursor,
                        "{event:?} behind {cursor}"
                    );
                    cursor = event.cursor;
                    followed.take(self, &event);
                    events += 1;
                    if events % 2_000 == 0 && !ended {
                        break;
                    }
                }
                is_over = ended;
            }
            resumed += 1;
        }
        let left_out = followed.check_end(self);
        let Followed { events, records, deletions, .. } = followed;
        println!(
            "said: {events} events with {records} records and {deletions} deletions, by {resumed} \
             followers, each from the cursor of the one before; {left_out} runs were deleted \
             before it came to their end"
        );
    }

    fn back_up(&mut self, folder: &Path, pause: Duration) {
        let reader = self.reader();
        let (mut backups, mut bytes, mut checked) = (0, 0, 0);
        loop {
            let is_over = self.wait(if backups == 0 { Duration::ZERO } else { pause });
            // Most are brought up to date, some are new.
            let copy = folder.join(format!("copy-{}", backups / 3));
            let before = self.before();
            let report = reader.backup_to(&copy).unwrap();
            assert!(report.damaged.is_empty(), "{report:?}");
            (backups, bytes) = (backups + 1, bytes + report.copied_bytes);
            checked += self.check_copy(&copy, &before, backups);
            if is_over {
                let restored = Options::new().open_existing(&copy).unwrap();
                let report = restored.verify().unwrap();
                assert!(report.is_clean(), "{:?}", report.problems);
                restored.close().unwrap();
                break;
            }
        }
        println!(
            "said: {backups} backups, {} MB copied, all of them verified, {checked} records of \
             them compared",
            bytes >> 20
        );
    }

    /// A copy has all that was acknowledged, and so all that was durable, before it was begun.
    fn check_copy(&self, copy: &Path, before: &Before, number: u64) -> u64 {
        let found = Reader::open(copy).unwrap();
        assert!(found.recovery_report().is_clean(), "{}", found.recovery_report());
        let report = found.verify().unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
        let mut records = 0;
        for run in self.check_list(&found, before, None) {
            // A copy is compared in parts, each time another one.
            if run.lane % 4 == number % 4 {
                records += self.check_trace(&found, run, before).expect("it is listed");
            }
        }
        records
    }
}

/// What a follower was told of a run.
#[derive(Debug, Default, Clone, Copy)]
struct OfRun {
    records: u64,
    has_ended: bool,
}

#[derive(Debug, Default)]
struct Followed {
    runs: HashMap<RunKey, OfRun>,
    events: u64,
    records: u64,
    deletions: u64,
}

impl Followed {
    fn take(&mut self, reading: &Reading, event: &LogEvent) {
        self.events += 1;
        let run = RunKey::from_run(event.run.as_str());
        assert_eq!(event.agent.as_str(), run.agent());
        let known = self.runs.get_mut(&run);
        match (&event.kind, known) {
            (LogEventKind::Started(_), None) => _ = self.runs.insert(run, OfRun::default()),
            (LogEventKind::Record(record), Some(known)) => {
                let seq = record.seq().0;
                assert_eq!(seq, known.records, "{run:?}: one is missing, or told twice");
                assert!(!known.has_ended, "{run:?} {seq} behind its end");
                assert!(record.payload() == run.payload(&reading.noise, seq), "{run:?} {seq}");
                known.records += 1;
                self.records += 1;
            }
            (LogEventKind::Ended(_), Some(known)) => {
                assert!(!known.has_ended, "{run:?} has ended twice");
                let expected = run.after(u64::MAX / 2).records;
                assert_eq!(known.records, expected, "{run:?} ends too early");
                known.has_ended = true;
            }
            // Told twice if the follower was another one meanwhile.
            (LogEventKind::Deleted { .. }, _) => {
                assert!(reading.may_be_gone(run), "{run:?} is not deleted");
                self.deletions += 1;
            }
            (kind, known) => panic!("{run:?}: {kind:?} behind {known:?}"),
        }
    }

    /// All that the writer acknowledged was told, but for runs that were deleted meanwhile; returns
    /// how many these are.
    fn check_end(&self, reading: &Reading) -> u64 {
        let steps = reading.board.get(Told::Acknowledged);
        let mut left_out = 0;
        for lane in 0..LANES {
            for number in 0..newest(lane, steps).map_or(0, |newest| newest + 1) {
                let run = RunKey { lane, number };
                let told = self.runs.get(&run).copied();
                let state = run.after(steps);
                let is_whole = told.is_some_and(|told| {
                    (told.records, told.has_ended) == (state.records, state.has_ended)
                });
                assert!(is_whole || reading.may_be_gone(run), "{run:?}: {told:?} of {state:?}");
                left_out += u64::from(!is_whole);
            }
        }
        left_out
    }
}
