//! `RunStore` with bad input: ids of every shape, damage, full disks.

use std::io::ErrorKind;
use std::sync::Arc;

use runlog::storage::MemoryStorage;
use runlog::{Allow, NewRecord, Seq, Timestamp};
use runlog_sim::SimClock;
use runlog_stores::run_store::{
    AgentOutcome, DamageKind, LineFault, RetentionConfig, RunEnded, RunRecord, RunStore,
    RunTermination,
};

use super::run_store_world::{
    DAY, NOW, ended, ids, in_all_lives, in_lives, options, started, success, turn,
};

#[test]
fn ids_of_every_shape_stay_distinct_and_come_back_as_they_were() {
    in_lives(|world| {
        let shapes = [
            "plain",
            "a/b",
            "a_b",
            "a\\b",
            "../../x",
            "..",
            ".",
            ".x",
            "x",
            " x ",
            "x\n",
            "x\0y",
            "con",
            "<>:\"|?*",
            "\u{e9}\u{1f980}",
            "\u{202e}rtl",
            "%2e%2e",
            "*",
            "{\"json\":1}",
        ];
        let longest = "l".repeat(512);
        let shapes: Vec<&str> = shapes.into_iter().chain([longest.as_str()]).collect();
        for (number, &run) in shapes.iter().enumerate() {
            world.store().write_started(&started("agent", run, NOW)).unwrap();
            world.store().append_turns("agent", run, &[turn(number, run)]).unwrap();
            // And the same as agents.
            world.store().write_started(&started(run, "run", NOW)).unwrap();
        }
        for (number, &run) in shapes.iter().enumerate() {
            let trace = world.store().get_run_trace_for("agent", run).unwrap();
            assert_eq!(trace[1], turn(number, run));
            assert_eq!(world.store().agent_for_run(run).as_deref(), Some("agent"));
            assert_eq!(ids(&world.store(), run), ["run"], "runs of {run:?}");
        }
        assert_eq!(world.store().list_runs("agent").len(), shapes.len());
    });
}

#[test]
fn ids_that_are_empty_or_too_long_are_refused_and_not_found() {
    in_lives(|world| {
        let long = "l".repeat(513);
        for (agent, run) in [("", "r"), ("a", ""), (long.as_str(), "r"), ("a", long.as_str())] {
            let start = world.store().write_started(&started(agent, run, NOW)).unwrap_err();
            let turns = world.store().append_turns(agent, run, &[turn(0, "p")]).unwrap_err();
            let end = world.store().write_ended(&ended(agent, run, NOW, success())).unwrap_err();
            for error in [start, turns, end] {
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            }
            assert!(world.store().get_run_trace_for(agent, run).is_none());
            assert!(world.store().list_runs(agent).is_empty());
            assert!(!world.store().rollback_empty_run_start(&started(agent, run, NOW)).unwrap());
        }
        assert!(world.store().agent_for_run("").is_none());
        assert!(world.store().try_get_run_trace("").unwrap().is_none());
    });
}

/// Lines that a broken writer left, as an import would bring them.
fn put_raw(log: &runlog::RunLog, lines: &[&[u8]]) {
    for line in lines {
        log.append_to("a", "r", &NewRecord::new(line), Allow::everything()).unwrap();
    }
}

#[test]
fn lines_that_are_no_records_are_told_with_their_places_and_the_others_are_there() {
    in_lives(|world| {
        let start = RunRecord::Started(started("a", "r", NOW)).to_line();
        let last = turn(1, "last").to_line();
        let lines: [&[u8]; 7] = [
            &start,
            b"{\"record\":\"turn\",\"index\":0",
            b"",
            b"  \t\r",
            b"\xff not UTF-8",
            b"{\"record\":\"turn\",\"index\":0}",
            &last,
        ];
        put_raw(&world.log(), &lines);
        let trace = world.store().try_get_run_trace("r").unwrap().unwrap();
        assert_eq!(trace.records, [RunRecord::Started(started("a", "r", NOW)), turn(1, "last")]);
        let damage: Vec<_> = trace
            .damage
            .iter()
            .map(|damage| match (&damage.what, damage.seq) {
                (DamageKind::Line(fault), Some(seq)) => (seq.0, *fault),
                other => panic!("{other:?}"),
            })
            .collect();
        let wrong = LineFault::WrongShape { kind: "turn", column: 27 };
        let torn = LineFault::NotJson { column: 26 };
        assert_eq!(damage, [(1, torn), (4, LineFault::NotUtf8 { valid: 0 }), (5, wrong)]);
        assert_eq!(trace.damage[1].to_string(), "record 4: not UTF-8 behind the first 0 bytes");
        // The original's call leaves them out, and the list says that there are some.
        assert_eq!(world.store().get_run_trace("r").unwrap(), trace.records);
        let [run] = &world.store().list_runs("a")[..] else { panic!("one run") };
        assert_eq!((run.turn_count, run.damaged_lines), (1, 3));
        // Their bytes are all there.
        let bytes: Vec<Vec<u8>> = world
            .store()
            .lines("a", "r")
            .unwrap()
            .map(|line| line.unwrap().bytes().to_vec())
            .collect();
        assert_eq!(bytes, lines);
    });
}

#[test]
fn a_record_whose_bytes_are_damaged_costs_itself_only() {
    let clock = SimClock::new(Timestamp(NOW));
    let storage = Arc::new(MemoryStorage::new());
    let log = options(&clock).create_storage(storage.clone()).unwrap();
    let store = RunStore::on(log.clone(), RetentionConfig::default());
    store.write_started(&started("a", "r", NOW)).unwrap();
    let turns: Vec<_> = (0..5).map(|index| turn(index, &format!("prompt {index}."))).collect();
    store.append_turns("a", "r", &turns).unwrap();
    store.write_ended(&ended("a", "r", NOW, success())).unwrap();
    log.close().unwrap();
    let mut image = storage.to_bytes();
    let hit = image.windows(9).position(|bytes| bytes == b"prompt 2.").unwrap();
    image[hit] ^= 1;
    let log = options(&clock).open_storage(Arc::new(MemoryStorage::from_bytes(image))).unwrap();
    let store = RunStore::on(log, RetentionConfig::default());
    let trace = store.try_get_run_trace("r").unwrap().unwrap();
    let left: Vec<_> = trace.records.iter().filter(|record| record.kind() == "turn").collect();
    assert_eq!(left, [&turns[0], &turns[1], &turns[3], &turns[4]]);
    assert_eq!(trace.damage.len(), 1);
    assert_eq!(trace.damage[0].seq, Some(Seq(3)));
    assert!(matches!(trace.damage[0].what, DamageKind::Bytes(_)));
    assert!(!trace.damage[0].to_string().contains("prompt"));
    let [run] = &store.list_runs("a")[..] else { panic!("one run") };
    assert_eq!(run.status, runlog_stores::run_store::RunStatus::Completed);
}

#[test]
fn whichever_bit_flips_nothing_panics_and_what_is_told_was_written() {
    let clock = SimClock::new(Timestamp(NOW));
    let storage = Arc::new(MemoryStorage::new());
    let log = options(&clock).create_storage(storage.clone()).unwrap();
    let store = RunStore::on(log.clone(), RetentionConfig::default());
    let written: Vec<RunRecord> = [RunRecord::Started(started("a", "r", NOW))]
        .into_iter()
        .chain((0..3).map(|index| turn(index, "p")))
        .chain([RunRecord::Ended(ended("a", "r", NOW, success()))])
        .collect();
    store.append_records("a", "r", &written).unwrap();
    drop(store);
    log.close().unwrap();
    let image = storage.to_bytes();
    let mut random = runlog_sim::SplitMix64::new(11);
    let mut read = 0;
    for _ in 0..300 {
        let mut image = image.clone();
        image[random.index(24 << 10)] ^= 1 << random.index(8);
        let storage = Arc::new(MemoryStorage::from_bytes(image));
        let Ok(log) = options(&clock).open_storage(storage) else { continue };
        let store = RunStore::on(log, RetentionConfig::default());
        for record in store.get_run_trace("r").unwrap_or_default() {
            assert!(written.contains(&record));
            read += 1;
        }
        for run in store.list_runs("a") {
            assert!(run.run_id == "r" && run.turn_count <= 3);
        }
        store.adopt_orphans();
        store.gc();
    }
    assert!(read > 1000, "most flips do no harm: {read}");
}

#[test]
fn a_full_disk_is_an_error_of_its_kind_and_what_was_there_stays() {
    let clock = SimClock::new(Timestamp(NOW));
    let storage = Arc::new(MemoryStorage::with_limit(1 << 20));
    let log = options(&clock).create_storage(storage).unwrap();
    let store = RunStore::on(log, RetentionConfig { max_per_agent: 1, max_age_days: 0 });
    store.write_started(&started("a", "kept", NOW)).unwrap();
    store.write_ended(&ended("a", "kept", NOW, success())).unwrap();
    let long = "x".repeat(3000);
    let mut count = 0;
    let error = loop {
        let run = format!("r{}", count / 50);
        if count % 50 == 0
            && let Err(error) = store.write_started(&started("b", &run, NOW + count))
        {
            break error;
        }
        if let Err(error) = store.append_turns("b", &run, &[turn(count as usize, &long)]) {
            break error;
        }
        count += 1;
    };
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    assert!(count > 100);
    assert_eq!(ids(&store, "a"), ["kept"]);
    let turns: usize = store.list_runs("b").iter().map(|run| run.turn_count).sum();
    assert_eq!(turns as i64, count);
}

/// Appends until nothing fits any more, not even a short turn.
fn fill(store: &RunStore, agent: &str, run: &str) {
    for len in [3000, 300, 3] {
        let long = "x".repeat(len);
        let mut tries = (0..).map(|at| store.append_turns(agent, run, &[turn(at, &long)]));
        let error = tries.find_map(Result::err).unwrap();
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    }
}

fn in_words(agent: &str, run: &str, len: usize) -> RunEnded {
    let outcome = AgentOutcome { summary: "x".repeat(len), ..AgentOutcome::default() };
    let status = outcome.status;
    ended(agent, run, NOW + 9, RunTermination::Outcome { status, outcome })
}

#[test]
fn on_a_full_disk_a_run_can_be_ended() {
    let clock = SimClock::new(Timestamp(NOW));
    let storage = Arc::new(MemoryStorage::with_limit(1 << 20));
    let log = options(&clock).create_storage(storage.clone()).unwrap();
    let nothing_goes = RetentionConfig { max_per_agent: 0, max_age_days: 0 };
    let mut store = RunStore::on(log, nothing_goes);
    for run in ["fills", "success", "in words"] {
        store.write_started(&started("a", run, NOW)).unwrap();
    }
    fill(&store, "a", "fills");
    store.write_ended(&ended("a", "success", NOW + 9, success())).unwrap();
    // A long one has no place, and nothing goes that could make one.
    let error = store.write_ended(&in_words("a", "in words", 5000)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    store.write_ended(&in_words("a", "in words", 50)).unwrap();
    // Nor has the end of a run that never began.
    let error = store.write_ended(&ended("a", "new", NOW, success())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    for _ in 0..2 {
        for run in ["success", "in words"] {
            let trace = store.get_run_trace(run).unwrap();
            assert_eq!((trace.len(), trace[1].kind()), (2, "ended"), "{run}");
            assert!(store.log().unwrap().run(run).unwrap().status.is_ended(), "{run}");
        }
        assert!(!store.log().unwrap().run("fills").unwrap().status.is_ended());
        assert!(store.get_run_trace("new").is_none());
        // Once more is the same.
        store.write_ended(&in_words("a", "in words", 50)).unwrap();
        let image = Arc::new(MemoryStorage::from_bytes(storage.to_bytes()));
        store = RunStore::on(options(&clock).open_storage(image).unwrap(), nothing_goes);
    }
}

#[test]
fn on_a_full_disk_an_end_takes_the_place_of_what_the_retention_does_not_keep() {
    let clock = SimClock::new(Timestamp(NOW));
    let storage = Arc::new(MemoryStorage::with_limit(1 << 20));
    let log = options(&clock).create_storage(storage).unwrap();
    let store = RunStore::on(log, RetentionConfig { max_per_agent: 1, max_age_days: 0 });
    let long = "x".repeat(3000);
    for number in 0..4 {
        let run = format!("old {number}");
        store.write_started(&started("a", &run, NOW + number)).unwrap();
        let turns: Vec<_> = (0..50).map(|at| turn(at, &long)).collect();
        store.append_records("a", &run, &turns).unwrap();
        store.write_ended(&ended("a", &run, NOW + number, success())).unwrap();
    }
    for run in ["fills", "ends"] {
        store.write_started(&started("b", run, NOW)).unwrap();
    }
    fill(&store, "b", "fills");
    assert_eq!(ids(&store, "a").len(), 4);
    store.write_ended(&in_words("b", "ends", 5000)).unwrap();
    assert_eq!(ids(&store, "a"), ["old 3"]);
    assert_eq!(store.get_run_trace("ends").unwrap().len(), 2);
    assert!(store.get_run_trace("fills").is_some(), "a run in progress stays");
}

#[test]
fn records_that_are_too_long_are_refused_and_many_at_once_are_not() {
    in_lives(|world| {
        let long = "x".repeat(5 << 20);
        let records = [turn(0, "p"), turn(1, &long)];
        let error = world.store().append_turns("a", "r", &records).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        let trace = world.store().get_run_trace("r");
        assert!(trace.is_none(), "nothing of it is stored: {trace:?}");
        let many: Vec<_> = (0..1500).map(|index| turn(index, "p")).collect();
        world.store().append_turns("a", "r", &many).unwrap();
        assert_eq!(world.store().get_run_trace("r").unwrap(), many);
    });
}

#[test]
fn times_at_the_ends_of_time_are_kept_as_they_are() {
    in_lives(|world| {
        let far: chrono::DateTime<chrono::Utc> = "+262000-01-01T00:00:00Z".parse().unwrap();
        let past: chrono::DateTime<chrono::Utc> = "-262000-01-01T00:00:00Z".parse().unwrap();
        for (run, at) in [("far", far), ("past", past)] {
            let mut start = started("a", run, 0);
            start.started_at = at;
            world.store().write_started(&start).unwrap();
            let mut end = ended("a", run, 0, success());
            end.ended_at = at;
            world.store().write_ended(&end).unwrap();
            world.store().write_ended(&end).unwrap();
        }
        let runs = world.store().list_runs("a");
        assert_eq!((runs[0].started_at, runs[1].started_at), (far, past));
        assert_eq!((runs[0].ended_at, runs[1].ended_at), (Some(far), Some(past)));
        assert_eq!(world.store().gc(), 1);
        assert_eq!(ids(&world.store(), "a"), ["far"]);
    });
}

#[test]
fn a_run_with_a_line_that_is_no_record_is_never_collected() {
    let retention = RetentionConfig { max_per_agent: 1, max_age_days: 0 };
    in_all_lives(retention, |world| {
        for (run, at) in [("broken", NOW - 99), ("old", NOW - 98), ("new", NOW - 97)] {
            world.store().write_started(&started("a", run, at)).unwrap();
            if run == "broken" {
                let line = NewRecord::json(b"{\"record\":");
                world.log().append_to("a", run, &line, Allow::nothing()).unwrap();
            }
            world.store().write_ended(&ended("a", run, at, success())).unwrap();
        }
        for _ in 0..2 {
            world.store().gc();
            assert_eq!(ids(&world.store(), "a"), ["new", "broken"]);
            world.clock.advance(9 * DAY);
        }
        world.log().delete_run(("a", "broken")).unwrap();
    });
}
