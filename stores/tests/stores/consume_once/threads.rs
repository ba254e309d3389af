//! 64 threads that consume the same id: one of them does, whatever becomes of the disk meanwhile,
//! and every call that returns the winner returns the same one.

use std::io::ErrorKind;
use std::sync::Barrier;

use runlog_sim::{Fault, SimDisk, Survivors};
use runlog_stores::consume_once::Consumption;

use super::*;
use crate::support::{Crash, open_after};

const THREADS: usize = 64;
/// Ids that are consumed one after the other.
const ROUNDS: usize = 8;

/// What a thread was told.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Told {
    /// It is the one.
    Won,
    /// Another caller is the winner.
    Lost(Consumption),
    /// The store failed, so the result is unknown.
    Nothing,
}

/// What each thread was told, and how many operations the disk had done by then.
type Answers = Vec<(Told, usize)>;

/// 64 threads consume an id at the same time; every other id with a record.
fn race(log: &RunLog, disk: &SimDisk, (round, turn): (usize, &str)) -> Answers {
    let start = Barrier::new(THREADS);
    let consume = |thread: usize| {
        let (once, id, by) = (ConsumeOnce::new(log), id(round), name(turn, thread));
        start.wait();
        let done = if round % 2 == 0 {
            once.consume(&id, &by)
        } else {
            let record = NewRecord::new(id.as_bytes());
            once.consume_with(&id, &by, ("agent", "run"), &record)
        };
        let told = match done {
            Ok(()) => Told::Won,
            Err(ConsumeError::AlreadyConsumed(earlier)) => Told::Lost(earlier),
            Err(_) => Told::Nothing,
        };
        (told, disk.op_count())
    };
    let consume = &consume;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || consume(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn id(round: usize) -> String {
    format!("id {round}")
}

fn name(turn: &str, thread: usize) -> String {
    format!("{turn} {thread}")
}

/// The caller that consumed the id, by the answers so far; `None` if no answer names one. They must
/// agree, also on when it was.
fn agreed(answers: &Answers, turn: &str, by_then: usize) -> (Option<String>, Option<Consumption>) {
    let (mut who, mut consumption) = (None, None);
    let told = answers.iter().enumerate().filter(|(_, (_, at))| *at <= by_then);
    for (thread, (told, _)) in told {
        let one = match told {
            Told::Won => name(turn, thread),
            Told::Lost(earlier) => {
                let first = consumption.get_or_insert_with(|| earlier.clone());
                assert_eq!(first, earlier, "the same time, and the same name");
                earlier.by.clone()
            }
            Told::Nothing => continue,
        };
        assert_eq!(*who.get_or_insert_with(|| one.clone()), one, "two have it");
    }
    (who, consumption)
}

/// After a crash: who was said to have the id still has it; and of 64 threads more at most one
/// gets it, all others being told of the same one.
fn check_race(log: &RunLog, disk: &SimDisk, round: usize, earlier: (&Answers, usize), ctx: &str) {
    let (told, known) = agreed(earlier.0, "first", earlier.1);
    let found = ConsumeOnce::new(log).consumption(&id(round)).unwrap();
    if let Some(told) = told {
        let found = found.as_ref().map(|found| found.by.as_str());
        assert_eq!(found, Some(told.as_str()), "{ctx}: that was said of id {round}");
    }
    if known.is_some() {
        assert_eq!(found, known, "{ctx}");
    }
    check_records(log, ctx);
    let again = race(log, disk, (round, "second"));
    assert!(again.iter().all(|(told, _)| *told != Told::Nothing), "{ctx}: the store is well");
    let won = again.iter().filter(|(told, _)| *told == Told::Won).count();
    assert_eq!(won, usize::from(found.is_none()), "{ctx}: {found:?}");
    let (_, seen) = agreed(&again, "second", usize::MAX);
    assert!(found.is_none() || seen == found, "{ctx}: {seen:?} is not {found:?}");
    // And that survives the next power cut.
    let image = disk.crash(Survivors::Nothing, 0);
    let (_, log) = open_after(image);
    assert_eq!(ConsumeOnce::new(&log).consumption(&id(round)).unwrap(), seen, "{ctx}");
    check_records(&log, ctx);
}

/// Each record is there once, if its id was consumed, and not if it was not.
fn check_records(log: &RunLog, ctx: &str) {
    let once = ConsumeOnce::new(log);
    let records = log.trace("run").unwrap();
    let found: Vec<Vec<u8>> = records.map(|one| one.unwrap().payload().to_vec()).collect();
    let with_record = (0..ROUNDS).filter(|round| round % 2 == 1).map(id);
    let wanted = with_record.filter(|id| once.consumed(id).unwrap());
    assert!(found.into_iter().eq(wanted.map(String::into_bytes)), "{ctx}: records");
}

#[test]
fn of_64_threads_one_consumes_and_a_crash_at_any_operation_changes_nothing_of_that() {
    let (disk, log) = recording();
    drop(log.start_run("agent", "run", ()).unwrap());
    let first = disk.op_count();
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        let answers = race(&log, &disk, (round, "first"));
        let won = answers.iter().filter(|(told, _)| *told == Told::Won).count();
        assert_eq!(won, 1, "round {round}");
        rounds.push((answers, disk.op_count()));
        if round == 3 {
            log.checkpoint().unwrap();
            let _ = log.compact().unwrap();
        }
    }
    in_crashes(&disk.take_recording(), first, |log, disk, boundary, ctx| {
        // The first that was not over yet, or the last.
        let now = rounds.iter().take_while(|(_, end)| *end <= boundary).count().min(ROUNDS - 1);
        for (round, (answers, _)) in rounds[..now].iter().enumerate() {
            let found = ConsumeOnce::new(log).consumption(&id(round)).unwrap();
            assert!(found.is_some() && found == agreed(answers, "first", boundary).1, "{ctx}");
        }
        check_race(log, disk, now, (&rounds[now].0, boundary), ctx);
        for round in now + 1..ROUNDS {
            assert!(!ConsumeOnce::new(log).consumed(&id(round)).unwrap(), "{ctx}: id {round}");
        }
    });
}

#[test]
fn of_64_threads_that_meet_a_failing_disk_at_most_one_consumes() {
    let mut won = 0;
    for round in [0, 1] {
        for failing in 0..8 {
            let disk = SimDisk::new();
            let storage = Arc::new(disk.clone());
            let log = options().sync_interval(None).create_storage(storage).unwrap();
            drop(log.start_run("agent", "run", ()).unwrap());
            log.sync().unwrap();
            let fault = Fault::error(ErrorKind::Other);
            disk.fail_from(disk.op_count() + failing, fault);
            let answers = race(&log, &disk, (round, "first"));
            won += answers.iter().filter(|(told, _)| *told == Told::Won).count();
            for crash in Crash::all() {
                let image = match crash {
                    Crash::PowerCut(survivors) => disk.crash(survivors, failing as u64),
                    Crash::Kill => disk.image(),
                };
                let (disk, log) = open_after(image);
                let ctx = format!("round {round}, operation {failing}, {crash:?}");
                check_race(&log, &disk, round, (&answers, usize::MAX), &ctx);
            }
        }
    }
    assert!((1..16).contains(&won), "some fail in front of the sync, and some do not: {won}");
}

#[test]
fn who_is_told_of_somebody_who_is_not_done_yet_is_told_what_survives() {
    type Look = fn(&RunLog) -> bool;
    let looks: [Look; 4] = [
        |log| ConsumeOnce::new(log).consume("a", "second").is_err(),
        |log| ConsumeOnce::new(log).consumed("a").unwrap(),
        |log| matches!(EffectLedger::new(log).begin("a", "second"), Ok(Begin::Unfinished { .. })),
        |log| EffectLedger::new(log).unfinished().unwrap().len() == 1,
    ];
    for (number, look) in looks.into_iter().enumerate() {
        let disk = SimDisk::new();
        let storage = Arc::new(disk.clone());
        let log = options().sync_interval(None).create_storage(storage).unwrap();
        // As a call leaves it that waits for its sync.
        log.docs().put("\0consumed/default", "a", &NewRecord::json(b"{\"by\":\"first\"}")).unwrap();
        let begun = NewRecord::json(b"{\"state\":\"begun\",\"by\":\"first\"}");
        log.docs().put("\0effects/default", "a", &begun).unwrap();
        assert!(look(&log), "look {number}");
        let image = disk.crash(Survivors::Nothing, 0);
        let (_, log) = open_after(image);
        assert!(look(&log), "look {number} was wrong");
    }
}
