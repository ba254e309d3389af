//! Queries of runs: each returns what the list of all runs shows, page by page and one by one.

use std::sync::Arc;

use runlog::env::Environment;
use runlog::storage::MemoryStorage;
use runlog::{
    Allow, Cursor, Durability, Error, Metadata, NewRecord, Options, Outcome, ReaderOptions, RunLog,
    RunQuery, RunStatus, RunSummary, Timestamp,
};
use runlog_sim::{SimClock, SplitMix64};

fn all(log: &RunLog) -> Vec<RunSummary> {
    let page = log.list_runs(&RunQuery::new().limit(usize::MAX)).unwrap();
    assert!(page.next.is_none());
    page.runs
}

#[test]
fn each_query_gives_what_the_list_of_all_runs_says_page_by_page() {
    for (seed, count) in [(1, 300), (2, 1500), (3, 700), (4, 2500)] {
        let mut random = SplitMix64::new(seed);
        let clock = SimClock::new(Timestamp(1_000));
        let environment = Environment::system().clock(Arc::new(clock.clone()));
        let options = || {
            let options = Options::new().extent_size(64 << 10).background(false);
            options.environment(environment.clone())
        };
        let storage = Arc::new(MemoryStorage::new());
        let mut log = options().create_storage(storage.clone()).unwrap();
        let mut open: Vec<(String, String)> = Vec::new();
        let mut ended: Vec<(String, String)> = Vec::new();
        for number in 0..count {
            if random.below(3) == 0 {
                clock.advance(i64::try_from(random.below(20)).unwrap() - 8);
            }
            let (agent, run) = (format!("a{}", random.below(4)), format!("r{number}"));
            let metadata = Metadata::new(b"m").durability(Durability::Process);
            log.start_run(&agent, &run, metadata).unwrap();
            open.push((agent, run));
            if seed % 2 == 1 && random.below(3) == 0 || random.below(10) == 0 {
                let (agent, run) = open.swap_remove(random.index(open.len()));
                let outcome = ENDED[random.index(ENDED.len())];
                let outcome = Outcome::new(outcome).durability(Durability::Process);
                log.end_run(&agent, &run, &outcome, Allow::nothing()).unwrap();
                ended.push((agent, run));
            }
            if random.below(40) == 0 && !ended.is_empty() {
                let (agent, run) = ended.swap_remove(random.index(ended.len()));
                if let Err(held) = log.delete_run((agent.as_str(), run.as_str())) {
                    assert!(matches!(held, Error::RunHeld { .. }));
                    ended.push((agent, run));
                }
            }
            if random.below(12) == 0 {
                let runs = if random.below(2) == 0 || ended.is_empty() { &open } else { &ended };
                let (agent, run) = &runs[random.index(runs.len())];
                if random.below(3) > 0 {
                    log.hold((agent.as_str(), run.as_str()), "why").unwrap();
                } else {
                    log.release((agent.as_str(), run.as_str())).unwrap();
                }
            }
            if random.below(3) == 0 {
                let (agent, run) = &open[random.index(open.len())];
                log.append_to(
                    agent,
                    run,
                    &NewRecord::new(&[1; 300]).durability(Durability::Process),
                    Allow::nothing(),
                )
                .unwrap();
            }
            match random.below(200) {
                0 => log.checkpoint().unwrap(),
                1 => drop(log.compact().unwrap()),
                2 => {
                    log.close().unwrap();
                    log = options().open_storage(storage.clone()).unwrap();
                }
                _ => {}
            }
        }
        for round in 0..3 {
            let runs = all(&log);
            assert_eq!(runs.len(), open.len() + ended.len());
            let place = |run: &RunSummary| core::cmp::Reverse((run.created_at(), run.number()));
            assert!(
                runs.is_sorted_by_key(place),
                "of one time the one that started later is first"
            );
            for _ in 0..60 {
                check_query(&log, &storage, &runs, &mut random);
            }
            assert!(log.verify().unwrap().is_clean());
            if round == 0 {
                log.checkpoint().unwrap();
            } else {
                log.close().unwrap();
                log = options().open_storage(storage.clone()).unwrap();
            }
        }
    }
}

const ENDED: [RunStatus; 4] =
    [RunStatus::Completed, RunStatus::Failed, RunStatus::Cancelled, RunStatus::Interrupted];

/// Runs a random query, with a random limit, in pages and one by one.
fn check_query(
    log: &RunLog,
    storage: &Arc<MemoryStorage>,
    runs: &[RunSummary],
    random: &mut SplitMix64,
) {
    let mut query = RunQuery::new();
    let mut wanted: Vec<RunSummary> = runs.to_vec();
    if random.below(2) == 0 {
        let agent = format!("a{}", random.below(5));
        wanted.retain(|run| run.agent == *agent);
        query = query.agent(&agent);
    }
    match random.below(6) {
        4 | 5 => {
            let one = ENDED[random.index(ENDED.len())];
            let other = if random.below(3) > 0 { one } else { RunStatus::InProgress };
            query = query.status(one).status(other);
            wanted.retain(|run| run.status == one || run.status == other);
        }
        0 => {
            query = query.status(RunStatus::InProgress);
            wanted.retain(|run| run.status == RunStatus::InProgress);
        }
        1 => {
            query = query.ended();
            wanted.retain(|run| run.status != RunStatus::InProgress);
        }
        2 => query = query.ended().status(RunStatus::InProgress),
        _ => {}
    }
    if random.below(3) == 0 {
        let held = random.below(2) == 0;
        query = query.held(held);
        wanted.retain(|run| run.held == held);
    }
    let mut time = || match random.below(5) {
        0 => i64::MIN,
        1 => i64::MAX,
        _ => runs[random.index(runs.len())].created_at().0,
    };
    let (since, until) = (time(), time());
    if random.below(3) == 0 {
        query = query.since(Timestamp(since));
        wanted.retain(|run| run.created_at().0 >= since);
    }
    if random.below(3) == 0 {
        query = query.until(Timestamp(until));
        wanted.retain(|run| run.created_at().0 < until);
    }
    if random.below(2) == 0 {
        query = query.oldest_first();
        wanted.reverse();
    }
    let names = |runs: &[RunSummary]| -> Vec<_> { runs.iter().map(RunSummary::number).collect() };
    let limit = [1, 2, 3, 31, 32, 33, 63, 64, 65, 1000, usize::MAX][random.index(11)];
    let limit = if wanted.len() > 400 && limit < 31 { 31 } else { limit };
    let (mut seen, mut cursor) = (Vec::new(), None);
    loop {
        let page = log.list_runs(&query.clone().limit(limit).after(cursor)).unwrap();
        seen.extend(page.runs);
        let Some(next) = page.next else { break };
        cursor = Some(next);
    }
    assert_eq!(names(&seen), names(&wanted), "{query:?} by {limit}");
    assert_eq!(seen, wanted);
    if random.below(4) == 0 {
        // What a reader lists first is the beginning of the whole list.
        let reader = ReaderOptions::new().open_storage(storage.clone()).unwrap();
        let first = reader.list_runs(&query.clone().limit(limit)).unwrap();
        assert_eq!(first.runs, wanted[..limit.min(wanted.len())], "{query:?} by {limit}");
        assert_eq!(first.next.is_some(), wanted.len() > limit, "{query:?} by {limit}");
    }
    let none = log.list_runs(&query.clone().limit(0)).unwrap();
    assert!(none.runs.is_empty() && none.next.is_none());
    let iterated: Vec<_> = log.runs(&query).map(Result::unwrap).collect();
    assert_eq!(names(&iterated), names(&wanted));
    assert_eq!(log.runs(&query.clone().limit(0)).count(), 0);
    assert_eq!(log.runs(&query.clone().limit(130)).count(), wanted.len().min(130));
    let after = &runs[random.index(runs.len())];
    let behind: Vec<_> = {
        let key = |run: &RunSummary| (run.created_at(), run.number());
        let is_oldest = query == query.clone().oldest_first();
        let is_behind = |run: &&RunSummary| {
            if is_oldest { key(run) > key(after) } else { key(run) < key(after) }
        };
        wanted.iter().filter(is_behind).map(RunSummary::number).collect()
    };
    let page = log.list_runs(&query.clone().limit(usize::MAX).after(Cursor::from(after)));
    assert_eq!(names(&page.unwrap().runs), behind);
}

/// Thousands of runs that completed, and among them, all over the time and of one agent, three each
/// that failed, that are in progress, and that are held. The index has no cache, so that each page
/// that an answer needs is read and counted.
fn few_among_many() -> RunLog {
    let clock = SimClock::new(Timestamp(1_000));
    let environment = Environment::system().clock(Arc::new(clock.clone()));
    let options = || {
        let options = Options::new().extent_size(256 << 10).background(false);
        options.index_cache(0).environment(environment.clone())
    };
    let storage = Arc::new(MemoryStorage::new());
    let log = options().create_storage(storage.clone()).unwrap();
    for number in 0..9_000_u32 {
        clock.advance(1);
        let (kind, is_odd) = (number % 3_000, number % 4_500 == 1_500);
        let agent = if kind % 1_000 == 500 { "rare" } else { &format!("a{}", number % 5) };
        let run = format!("r{number}");
        let metadata = Metadata::new(b"m").durability(Durability::Process);
        log.start_run(agent, &run, metadata).unwrap();
        let outcome = if kind == 500 || is_odd { Outcome::failed() } else { Outcome::completed() };
        if kind == 1_500 {
            continue;
        }
        let outcome = outcome.durability(Durability::Process);
        log.end_run(agent, &run, &outcome, Allow::nothing()).unwrap();
        if kind == 2_500 {
            log.hold((agent, run.as_str()), "why").unwrap();
        }
    }
    log.close().unwrap();
    let log = options().open_storage(storage).unwrap();
    log.checkpoint().unwrap();
    log
}

#[test]
fn a_list_reads_no_runs_but_those_that_it_has() {
    type Wanted = fn(&RunSummary) -> bool;
    let log = few_among_many();
    let runs = all(&log);
    let count = || log.stats().unwrap().index_page_reads;
    // What the numbers themselves are made of.
    let before = count();
    let own = count() - before;
    let failed = RunQuery::new().status(RunStatus::Failed);
    let open = RunQuery::new().status(RunStatus::InProgress);
    let states: [(RunQuery, Wanted); 5] = [
        (failed.clone(), |run| run.status == RunStatus::Failed),
        (open.clone(), |run| run.status == RunStatus::InProgress),
        (RunQuery::new().held(true), |run| run.held),
        (failed.held(false), |run| run.status == RunStatus::Failed && !run.held),
        (RunQuery::new().ended().held(true), |run| run.held),
    ];
    let (since, until) = (runs[7_777].created_at(), runs[2_222].created_at());
    let mut most_seen = 0;
    for (state, is_in) in states {
        for kind in 0..16 {
            let (mut query, mut wanted) = (state.clone(), runs.clone());
            wanted.retain(is_in);
            if kind & 1 != 0 {
                query = query.agent("rare");
                wanted.retain(|run| run.agent == "rare");
            }
            if kind & 2 != 0 {
                query = query.oldest_first();
                wanted.reverse();
            }
            if kind & 4 != 0 {
                query = query.since(since);
                wanted.retain(|run| run.created_at() >= since);
            }
            if kind & 8 != 0 {
                query = query.until(until);
                wanted.retain(|run| run.created_at() < until);
            }
            for limit in [1, 2, 100] {
                let (mut seen, mut cursor, mut pages) = (Vec::new(), None, 0);
                let before = count();
                loop {
                    let page = log.list_runs(&query.clone().limit(limit).after(cursor)).unwrap();
                    pages += 1;
                    seen.extend(page.runs);
                    let Some(next) = page.next else { break };
                    cursor = Some(next);
                }
                let reads = count() - before - own;
                assert_eq!(seen, wanted, "{query:?} by {limit}");
                // A descent of two or three pages to both ends of each of a few ranges, and one to
                // each row. The keys alone of all runs are on 70 pages, their rows on many more.
                let most = 20 * pages + 4 * seen.len() as u64;
                assert!(reads <= most, "{reads} of {most}: {query:?} by {limit}");
                most_seen = most_seen.max(seen.len());
            }
        }
    }
    assert_eq!(most_seen, 4);
    let before = count();
    assert_eq!(log.held_runs().unwrap().len(), 3);
    let reads = count() - before - own;
    assert!(reads <= 60, "{reads}");
}
