//! Looking runs up: by one directory after the other, and, after many lookups, by one table.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use runlog::storage::MemoryStorage;
use runlog::{
    Allow, Compaction, Durability, Error, Metadata, NewRecord, Options, Outcome, RunLog, RunRef,
    SpaceReturn,
};

fn unsynced() -> Metadata<'static> {
    Metadata::default().durability(Durability::Process)
}

fn records<'r>(log: &RunLog, run: impl Into<RunRef<'r>>) -> Vec<(u64, Vec<u8>)> {
    let trace = log.trace(run).unwrap().map(Result::unwrap);
    trace.map(|record| (record.seq().0, record.payload().to_vec())).collect()
}

/// Runs of one segment, of two and of many.
fn filled() -> (RunLog, Vec<String>) {
    let options = Options::new().extent_size(64 << 10).background(false);
    let log = options.create_storage(Arc::new(MemoryStorage::new())).unwrap();
    let runs: Vec<String> = (0..60).map(|run| format!("run-{run}")).collect();
    for (number, run) in runs.iter().enumerate() {
        let writer = log.start_run(&format!("agent-{}", number % 7), run, ()).unwrap();
        for record in 0..(number % 9) * 40 {
            let bytes = format!("{run} {record} {}", "x".repeat(number * 5));
            let _ = writer.append(bytes.as_bytes()).unwrap();
        }
        let _ = writer.end(&Outcome::completed()).unwrap();
    }
    log.checkpoint().unwrap();
    (log, runs)
}

#[test]
fn runs_are_found_again_with_all_of_their_records() {
    let (log, runs) = filled();
    let first: Vec<_> = runs.iter().map(|run| records(&log, run.as_str())).collect();
    assert_eq!(first[17].len(), 320);
    for _ in 0..4 {
        for (run, first) in runs.iter().zip(&first) {
            assert_eq!(&records(&log, run.as_str()), first, "{run}");
            let summary = log.run(run).unwrap();
            assert_eq!(summary.records, first.len() as u64, "{run}");
            assert_eq!(log.agent_of(run).unwrap(), summary.agent);
            assert_eq!(log.trace(run).unwrap().agent(), &summary.agent);
        }
    }
}

#[test]
fn what_happens_after_a_lookup_is_seen_by_the_next_one() {
    let (log, runs) = filled();
    for _ in 0..3 {
        for run in &runs {
            drop(records(&log, run.as_str()));
        }
    }
    log.delete_run(runs[20].as_str()).unwrap();
    let _ = log.start_run("another", &runs[30], Metadata::new(b"{}")).unwrap();
    let late = NewRecord::new(b"late");
    let _ = log.append_to("agent-5", &runs[40], &late, Allow::everything()).unwrap();
    for checkpointed in [false, true] {
        if checkpointed {
            log.checkpoint().unwrap();
        }
        for _ in 0..2 {
            let gone = log.trace(runs[20].as_str()).unwrap_err();
            assert!(matches!(gone, Error::RunNotFound { .. }), "{gone:?}");
            let two = log.trace(runs[30].as_str()).unwrap_err();
            assert!(matches!(two, Error::Ambiguous { .. }), "{two:?}");
            assert_eq!(records(&log, runs[40].as_str()).last().unwrap().1, b"late");
        }
    }
}

/// The locator keeps places of segments that are gone, and their extents get other segments.
#[test]
fn runs_are_found_and_others_are_not_while_extents_are_used_again() {
    let compaction = Compaction::new().space_return(SpaceReturn::Keep);
    let options = Options::new().extent_size(64 << 10).background(false).index(false);
    let log =
        options.compaction(compaction).create_storage(Arc::new(MemoryStorage::new())).unwrap();
    let mut living = BTreeSet::new();
    for round in 0..24 {
        for number in 0..40 {
            let run = format!("run-{round}-{number}");
            let writer = log.start_run("agent", &run, unsynced()).unwrap();
            for record in 0..(number % 5) * 3 {
                let bytes = format!("{run} {record} {}", "y".repeat(400));
                let _ = writer.append(bytes.as_bytes()).unwrap();
            }
            let _ = writer.end(&Outcome::completed().durability(Durability::Process)).unwrap();
            living.insert((round, number));
        }
        log.checkpoint().unwrap();
        let gone: Vec<_> = living.iter().filter(|run| (run.0 + run.1) % 7 < 5).copied().collect();
        for (of, number) in gone.iter().filter(|run| run.0 < round) {
            log.delete_run(format!("run-{of}-{number}").as_str()).unwrap();
            living.remove(&(*of, *number));
        }
        log.reclaim().unwrap();
        for of in 0..=round {
            for number in 0..40 {
                let run = format!("run-{of}-{number}");
                if living.contains(&(of, number)) {
                    assert_eq!(records(&log, run.as_str()).len() as u64, (number % 5) * 3, "{run}");
                    assert_eq!(log.agent_of(&run).unwrap().as_str(), "agent");
                } else {
                    let gone = log.agent_of(&run).unwrap_err();
                    assert!(matches!(gone, Error::RunNotFound { .. }), "{run}: {gone}");
                }
            }
        }
    }
    // All places that there ever were take 26 KiB.
    assert!(log.stats().unwrap().lookup_bytes < 13 << 10, "the table was made again");
    assert!(log.stats().unwrap().file_len < 4 << 20, "extents were used again");
    assert!(log.verify().unwrap().is_clean());
}

#[test]
fn a_store_that_was_just_opened_asks_one_directory_after_the_other_and_then_a_table() {
    let storage = Arc::new(MemoryStorage::new());
    let options = Options::new().extent_size(64 << 10).background(false).index(false);
    let log = options.create_storage(storage.clone()).unwrap();
    for number in 0..3_000 {
        let writer = log.start_run("agent", &format!("run-{number}"), unsynced()).unwrap();
        let _ = writer.append(&[7; 300]).unwrap();
        let _ = writer.end(&Outcome::completed().durability(Durability::Process)).unwrap();
    }
    log.close().unwrap();
    let log = options.open_storage(storage).unwrap();
    assert_eq!(log.stats().unwrap().lookup_bytes, 0);
    for round in 0..2 {
        for number in 0..3_000 {
            assert_eq!(log.agent_of(&format!("run-{number}")).unwrap().as_str(), "agent");
            assert!(log.agent_of(&format!("none-{number}")).is_err());
        }
        let bytes = log.stats().unwrap().lookup_bytes;
        assert!((3_000 * 8..3_000 * 40).contains(&bytes), "round {round}: {bytes}");
    }
}

/// Each segment has hundreds of versions, of which at most the last one lives.
#[test]
fn a_document_with_thousands_of_versions_has_one_place_for_each_segment() {
    let options = Options::new().extent_size(64 << 10).background(false);
    let options = options.compaction(Compaction::new().automatic(false));
    let log = options.create_storage(Arc::new(MemoryStorage::new())).unwrap();
    let put = NewRecord::new(b"value").durability(Durability::Process);
    for _ in 0..4_000 {
        log.docs().put("space", "key", &put).unwrap();
    }
    log.checkpoint().unwrap();
    let stats = log.stats().unwrap();
    assert!(stats.sealed_segments > 10, "{stats:?}");
    assert!(stats.lookup_bytes < 4_000 * 8, "{stats:?}");
    assert_eq!(log.docs().get("space", "key").unwrap().unwrap().payload(), b"value");
}

/// The agents that have a run with an id.
fn agents_of(log: &RunLog, run: &str) -> Vec<String> {
    let Err(Error::Ambiguous { agents, .. }) = log.agent_of(run) else { panic!("one agent") };
    agents.iter().map(|agent| agent.as_str().to_owned()).collect()
}

/// Of so many entries with one hash the locator has most beside its table, by both ids.
#[test]
fn one_id_under_many_agents_means_the_run_of_the_named_agent_and_no_other_is_loaded() {
    let storage = Arc::new(MemoryStorage::new());
    let options = Options::new().extent_size(64 << 10).background(false);
    let options = options.compaction(Compaction::new().automatic(false));
    let mut log = options.clone().create_storage(storage.clone()).unwrap();
    let mut living = BTreeMap::new();
    for round in 0..4 {
        for number in (0..400).filter(|number| number % 4 != round) {
            let agent = format!("agent-{number}");
            if living.contains_key(&agent) {
                continue;
            }
            let writer = log.start_run(&agent, "main", unsynced()).unwrap();
            let payload = format!("{agent} {round}").into_bytes();
            let _ = writer.append(&payload).unwrap();
            living.insert(agent.clone(), payload);
            if number % 5 > 0 {
                let _ = writer.end(&Outcome::completed().durability(Durability::Process)).unwrap();
            }
        }
        for number in (0..400).filter(|number| number % 5 > 0 && (number + round) % 3 == 0) {
            let agent = format!("agent-{number}");
            let was_there = living.remove(&agent).is_some();
            assert_eq!(log.delete_run((agent.as_str(), "main")).is_ok(), was_there, "{agent}");
        }
        log.checkpoint().unwrap();
        if round == 1 {
            log.compact().unwrap();
        } else if round > 1 {
            log.close().unwrap();
            log = options.clone().open_storage(storage.clone()).unwrap();
        }
        for look in 0..200 {
            assert!(look % 100 > 0 || agents_of(&log, "main").iter().eq(living.keys()), "{round}");
            for agent in (look..400).step_by(80).map(|number| format!("agent-{number}")) {
                let name = RunRef::from((agent.as_str(), "main"));
                match living.get(&agent) {
                    Some(payload) => assert_eq!(&records(&log, name)[0].1, payload, "{agent}"),
                    None => assert!(matches!(log.run(name), Err(Error::RunNotFound { .. }))),
                }
            }
        }
    }
    let before = log.stats().unwrap().active_runs;
    let _ = log.start_run("another", "main", unsynced()).unwrap();
    let late = log.append_to("agent-1", "main", &NewRecord::new(b"late"), Allow::everything());
    assert_eq!(late.unwrap().seq.0, 1);
    assert!(log.stats().unwrap().active_runs <= before + 2);
    assert!(log.verify().unwrap().is_clean());
}

#[test]
fn a_run_of_many_segments_does_not_hide_the_run_of_another_agent_with_its_id() {
    let storage = Arc::new(MemoryStorage::new());
    let options = Options::new().extent_size(64 << 10).background(false);
    let log = options.clone().create_storage(storage.clone()).unwrap();
    for (agent, count) in [("short", 1), ("long", 80), ("filler", 8)] {
        let run = if agent == "filler" { agent } else { "main" };
        let writer = log.start_run(agent, run, unsynced()).unwrap();
        (0..count).for_each(|_| drop(writer.append(&[7; 15_000]).unwrap()));
    }
    log.close().unwrap();
    let log = options.open_storage(storage).unwrap();
    // Often enough that the table is made.
    (0..2_000).for_each(|_| drop(log.run("none").unwrap_err()));
    let more = NewRecord::new(b"more");
    let _ = log.append_to("long", "main", &more, Allow::nothing()).unwrap();
    assert_eq!(agents_of(&log, "main"), ["long", "short"]);
    assert_eq!(log.run(("long", "main")).unwrap().records, 81);
}
