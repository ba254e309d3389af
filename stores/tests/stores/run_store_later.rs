//! `RunStore`, what later versions of the original had to add, in all lives of a process.

use core::ops::ControlFlow;
use std::io::ErrorKind;

use runlog::{Options, Outcome, RunQuery, Seq};
use runlog_stores::run_store::{
    RetentionConfig, RunCancelResponse, RunCancellationRequested, RunCancellationStatus, RunCursor,
    RunModelTurn, RunRecord, RunStarted, RunStatus, RunStoreError, RunTermination,
};

use super::run_store_world::{
    DAY, Life, NOW, World, ended, ids, in_all_lives, in_lives, started, success, turn,
};

fn requested() -> RunRecord {
    let run_id = "r".to_owned();
    RunRecord::CancellationRequested(RunCancellationRequested { run_id, ..Default::default() })
}

fn result(status: RunCancellationStatus) -> RunRecord {
    RunRecord::CancellationResult(RunCancelResponse {
        receipt_version: 1,
        run_id: "r".to_owned(),
        idempotency_key: String::new(),
        reason_digest: String::new(),
        principal: String::new(),
        status,
        terminal_digest: None,
        action_id: None,
        request_id: None,
        receipt_digest: String::new(),
    })
}

#[test]
fn the_same_start_and_the_same_end_once_more_leave_one_record_each() {
    in_lives(|world| {
        let (start, end) = (started("a", "r", NOW), ended("a", "r", NOW + 1, success()));
        for _ in 0..3 {
            world.store().write_started(&start).unwrap();
        }
        for _ in 0..3 {
            world.store().write_ended(&end).unwrap();
            // Also of a run that has ended.
            world.store().write_started(&start).unwrap();
        }
        assert_eq!(
            world.store().get_run_trace("r").unwrap(),
            [RunRecord::Started(start.clone()), RunRecord::Ended(end.clone())]
        );
    });
}

#[test]
fn another_start_or_another_end_is_refused_and_nothing_is_stored() {
    in_lives(|world| {
        world.store().write_started(&started("a", "r", NOW)).unwrap();
        let other = RunStarted { intent: "other".to_owned(), ..started("a", "r", NOW) };
        let error = world.store().write_started(&other).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert!(matches!(
            RunStoreError::of(&error),
            Some(RunStoreError::StartedDifferently { agent, run }) if agent == "a" && run == "r"
        ));
        world.store().write_ended(&ended("a", "r", NOW + 1, success())).unwrap();
        let other = ended("a", "r", NOW + 1, RunTermination::Incomplete);
        let error = world.store().write_ended(&other).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert!(matches!(RunStoreError::of(&error), Some(RunStoreError::EndedDifferently { .. })));
        assert_eq!(world.store().get_run_trace("r").unwrap().len(), 2);
    });
}

#[test]
fn many_threads_that_start_and_end_the_same_run_leave_one_record_each() {
    let world = World::new(Life::Long, RetentionConfig::default());
    let store = world.store();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            let store = store.clone();
            scope.spawn(move || {
                store.write_started(&started("a", "r", NOW)).unwrap();
                store.append_turns("a", "r", &[turn(0, "p")]).unwrap();
                store.write_ended(&ended("a", "r", NOW + 1, success())).unwrap();
            });
        }
    });
    let trace = store.get_run_trace("r").unwrap();
    let count = |kind| trace.iter().filter(|record| record.kind() == kind).count();
    assert_eq!((count("started"), count("turn"), count("ended")), (1, 16, 1));
    assert_eq!(store.list_runs("a")[0].turn_count, 16);
}

#[test]
fn an_end_without_a_start_is_kept() {
    in_lives(|world| {
        world.store().write_ended(&ended("a", "r", NOW, success())).unwrap();
        assert_eq!(world.store().get_run_trace("r").unwrap().len(), 1);
        assert!(world.store().list_runs("a").is_empty());
        world.store().write_started(&started("a", "r", NOW)).unwrap();
        assert_eq!(world.store().list_runs("a")[0].status, RunStatus::Completed);
    });
}

#[test]
fn a_start_that_is_all_there_is_can_be_taken_back_and_made_again() {
    in_lives(|world| {
        let start = started("a", "r", NOW);
        assert!(!world.store().rollback_empty_run_start(&start).unwrap());
        world.store().write_started(&start).unwrap();
        let other = RunStarted { intent: "other".to_owned(), ..start.clone() };
        assert!(!world.store().rollback_empty_run_start(&other).unwrap());
        assert!(world.store().rollback_empty_run_start(&start).unwrap());
        assert!(world.store().get_run_trace("r").is_none());
        assert!(world.store().list_runs("a").is_empty());
        assert!(!world.store().rollback_empty_run_start(&start).unwrap());

        world.store().write_started(&other).unwrap();
        world.store().append_turns("a", "r", &[turn(0, "p")]).unwrap();
        assert!(!world.store().rollback_empty_run_start(&other).unwrap(), "there is a turn");
        assert_eq!(world.store().list_runs("a")[0].intent, "other");
    });
}

#[test]
fn a_cancellation_is_pending_until_the_run_has_ended() {
    in_lives(|world| {
        let status = || world.store().list_runs("a")[0].status;
        world.store().write_started(&started("a", "r", NOW - 90 * DAY)).unwrap();
        world.store().append_records("a", "r", &[requested()]).unwrap();
        assert_eq!(status(), RunStatus::CancellationPending);
        let unconfirmed = result(RunCancellationStatus::TerminationUnconfirmed);
        world.store().append_records("a", "r", &[unconfirmed]).unwrap();
        assert_eq!(status(), RunStatus::CancellationPending);
        let adoption = world.store().try_adopt_orphans().unwrap();
        assert_eq!((adoption.adopted, adoption.pending), (0, 1));
        assert_eq!(world.store().gc(), 0);

        let cancelled = RunTermination::Cancelled { cancellation: Default::default() };
        let end = ended("a", "r", NOW, cancelled);
        world.store().write_ended(&end).unwrap();
        assert_eq!(status(), RunStatus::Cancelled);
        assert_eq!(world.log().run("r").unwrap().status, runlog::RunStatus::Cancelled);
    });
}

#[test]
fn a_cancellation_that_came_too_late_leaves_the_run_as_it_is() {
    in_lives(|world| {
        world.store().write_started(&started("a", "r", NOW)).unwrap();
        let records = [requested(), result(RunCancellationStatus::AlreadyTerminal)];
        world.store().append_records("a", "r", &records).unwrap();
        assert_eq!(world.store().list_runs("a")[0].status, RunStatus::InProgress);
    });
}

#[test]
fn unknown_kinds_and_the_kinds_of_later_versions_come_back_as_they_were() {
    in_lives(|world| {
        let long = format!(r#"{{"record":"{}"}}"#, "k".repeat(300));
        let records = [
            RunRecord::from_line(br#"{"record":"future","x":[1,2]}"#).unwrap(),
            RunRecord::from_line(br#"{"record":""}"#).unwrap(),
            RunRecord::from_line(br#"{"record":"unterminated-line"}"#).unwrap(),
            RunRecord::from_line(long.as_bytes()).unwrap(),
            RunRecord::ModelTurn(RunModelTurn::default()),
            requested(),
        ];
        world.store().append_records("a", "r", &records).unwrap();
        let trace = world.store().try_get_run_trace("r").unwrap().unwrap();
        assert_eq!(trace.records, records);
        assert!(trace.damage.is_empty());
    });
}

/// All pages of an agent, and between two of them whatever `meanwhile` does.
fn pages(world: &World, limit: usize, meanwhile: impl Fn(usize)) -> Vec<String> {
    let (mut all, mut after): (Vec<String>, Option<RunCursor>) = (Vec::new(), None);
    for page in 0.. {
        let found = world.store().list_runs_page("a", after.as_ref(), limit).unwrap();
        assert!(found.runs.len() <= limit);
        all.extend(found.runs.into_iter().map(|run| run.run_id));
        // As text, as a client of a daemon has it.
        after = match found.next {
            Some(next) => Some(next.to_string().parse().unwrap()),
            None => return all,
        };
        meanwhile(page);
    }
    unreachable!()
}

#[test]
fn pages_are_the_list_in_parts_whatever_their_length_also_for_runs_of_one_instant() {
    in_lives(|world| {
        // Groups of 1, 2, 3, ... runs from the same instant, written in no order of their ids.
        for number in 0..30_i64 {
            let group = (0..).take_while(|group| group * (group + 1) / 2 <= number).last().unwrap();
            let run = format!("{:02}.{number}", (number * 7) % 30);
            world.store().write_started(&started("a", &run, NOW + group)).unwrap();
        }
        world.store().append_turns("a", "without a start", &[turn(0, "p")]).unwrap();
        let all = ids(&world.store(), "a");
        assert_eq!(all.len(), 30);
        for limit in [1, 2, 3, 7, 29, 30, 31, 1000] {
            assert_eq!(pages(world, limit, |_| {}), all, "pages of {limit}");
        }
        let empty = world.store().list_runs_page("a", None, 0).unwrap();
        assert!(empty.runs.is_empty() && empty.next.is_none());
        assert!(world.store().list_runs_page("", None, 3).unwrap().runs.is_empty());
    });
}

#[test]
fn runs_that_start_or_go_between_two_pages_make_no_other_come_twice_or_not_at_all() {
    in_lives(|world| {
        for number in 0..20 {
            let run = format!("r{number:02}");
            world.store().write_started(&started("a", &run, NOW + number)).unwrap();
        }
        let all = ids(&world.store(), "a");
        let found = pages(world, 4, |page| {
            let run = format!("new{page}");
            world.store().write_started(&started("a", &run, NOW + 1000)).unwrap();
            // The one that the cursor stands on goes.
            let gone = &all[page * 4 + 3];
            let store = world.store();
            store.write_ended(&ended("a", gone, NOW + 2000, success())).unwrap();
            store.log().unwrap().delete_run(("a", gone.as_str())).unwrap();
        });
        assert_eq!(found, all);
    });
}

#[test]
fn what_is_no_cursor_is_refused() {
    for text in ["", "x", "1", ".", "x.y"] {
        assert!(text.parse::<RunCursor>().is_err(), "{text:?}");
    }
    let cursor: RunCursor = "-5.any.id \n".parse().unwrap();
    assert_eq!(cursor.to_string(), "-5.any.id \n");
}

#[test]
fn pages_of_a_run_go_on_where_they_ended_also_while_it_grows() {
    in_lives(|world| {
        world.store().write_started(&started("a", "r", NOW)).unwrap();
        let model = |index| RunRecord::ModelTurn(RunModelTurn { index, ..RunModelTurn::default() });
        let add = |index: usize| {
            let records = [model(2 * index), turn(2 * index + 1, "p"), requested()];
            world.store().append_records("a", "r", &records).unwrap();
        };
        (0..3).for_each(add);
        let (mut turns, mut from, mut pages) = (Vec::new(), Some(Seq(0)), 0);
        while let Some(seq) = from {
            let page = world.store().get_run_turn_page_for("a", "r", seq, 2).unwrap();
            assert_eq!(page.status, RunStatus::CancellationPending);
            assert_eq!(
                page.total,
                world.store().try_get_run_trace("r").unwrap().map_or(0, |r| {
                    r.records.iter().filter(|record| record.kind().ends_with("turn")).count() as u64
                })
            );
            turns.extend(page.turns);
            (from, pages) = (page.next, pages + 1);
            if pages == 2 {
                add(3);
            }
        }
        let expected: Vec<_> =
            (0..4).flat_map(|index| [model(2 * index), turn(2 * index + 1, "p")]).collect();
        assert_eq!((turns, pages), (expected, 4));

        let page = world.store().get_run_trace_page_for("a", "r", Seq(11), 1).unwrap();
        assert_eq!((page.records, page.next), (vec![turn(7, "p")], Some(Seq(12))));
        let page = world.store().get_run_trace_page_for("a", "r", Seq(12), 9).unwrap();
        assert_eq!((page.records, page.next), (vec![requested()], None));
        let error = world.store().get_run_trace_page_for("a", "x", Seq(0), 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    });
}

#[test]
fn lines_are_streamed_with_their_places() {
    in_lives(|world| {
        let records = [turn(0, "p"), requested()];
        world.store().append_records("a", "r", &records).unwrap();
        let lines: Vec<_> =
            world.store().lines("a", "r").unwrap().collect::<Result<_, _>>().unwrap();
        let bytes: Vec<_> = lines.iter().map(|line| line.bytes().to_vec()).collect();
        assert_eq!(bytes, records.each_ref().map(RunRecord::to_line));
        assert_eq!(lines[1].seq(), Seq(1));
        assert_eq!(world.store().lines("a", "x").unwrap_err().kind(), ErrorKind::NotFound);
    });
}

#[test]
fn all_runs_can_be_visited_without_keeping_them() {
    in_lives(|world| {
        for (agent, run) in [("b", "1"), ("a", "2"), ("a", "3")] {
            world.store().write_started(&started(agent, run, NOW)).unwrap();
        }
        let visit = |most: usize| {
            let mut seen = Vec::new();
            let visited = world.store().visit_runs(|run| {
                seen.push(run.run_id);
                if seen.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            visited.unwrap();
            seen
        };
        assert_eq!(visit(9), ["3", "2", "1"]);
        assert_eq!(visit(1), ["3"]);
    });
}

#[test]
fn zero_and_absurd_limits_keep_everything() {
    for (max_per_agent, max_age_days) in
        [(0, 0), (0, -1), (usize::MAX, i64::MAX), (0, i64::MIN), (0, 106_752)]
    {
        let retention = RetentionConfig { max_per_agent, max_age_days };
        in_all_lives(retention, |world| {
            for number in 0..3 {
                let run = format!("r{number}");
                world.store().write_started(&started("a", &run, 0)).unwrap();
                world.store().write_ended(&ended("a", &run, 0, success())).unwrap();
            }
            assert_eq!(world.store().try_gc().unwrap(), 0);
        });
    }
}

#[test]
fn a_collection_looks_at_no_runs_but_its_own() {
    let retention = RetentionConfig { max_per_agent: 1, max_age_days: 1 };
    in_all_lives(retention, |world| {
        let raw = |run: &str, at: i64| {
            let at = runlog::Timestamp(at);
            let metadata = runlog::Metadata::new(b"raw").at(at);
            let writer = world.log().start_run("a", run, metadata).unwrap();
            writer.append(b"{\"record\":\"turn\"}").unwrap();
            writer.end(&Outcome::completed().at(at)).unwrap();
        };
        raw("raw, old", NOW - 90 * DAY);
        raw("raw, new", NOW);
        for (run, at) in [("old", NOW - 90 * DAY), ("new", NOW - 1)] {
            world.store().write_started(&started("a", run, at)).unwrap();
            world.store().write_ended(&ended("a", run, at, success())).unwrap();
        }
        world.store().append_turns("a", "without a start", &[turn(0, "p")]).unwrap();
        world.store().write_ended(&ended("a", "without a start", 0, success())).unwrap();
        assert_eq!(world.store().gc(), 1);
        assert_eq!(ids(&world.store(), "a"), ["new"]);
        assert_eq!(
            world.log().list_runs(&RunQuery::new().agent("a").limit(9)).unwrap().runs.len(),
            4
        );
        assert!(world.store().get_run_trace_for("a", "raw, new").is_none(), "it is not ours");
        let refusals = [
            world.store().write_started(&started("a", "raw, new", NOW)),
            world.store().append_turns("a", "raw, new", &[turn(0, "p")]),
            world.store().write_ended(&ended("a", "raw, new", NOW, success())),
        ];
        for refusal in refusals {
            let error = refusal.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AlreadyExists);
            assert!(matches!(RunStoreError::of(&error), Some(RunStoreError::Foreign { .. })));
        }
        assert!(world.store().get_run_trace_for("a", "without a start").is_some());
    });
}

#[test]
fn a_held_run_stays_and_takes_its_place() {
    let retention = RetentionConfig { max_per_agent: 2, max_age_days: 0 };
    in_all_lives(retention, |world| {
        for number in 0..4 {
            let run = format!("r{number}");
            world.store().write_started(&started("a", &run, NOW + number)).unwrap();
            world.store().write_ended(&ended("a", &run, NOW + number, success())).unwrap();
        }
        world.log().hold(("a", "r0"), "evidence").unwrap();
        assert_eq!(world.store().gc(), 1);
        assert_eq!(ids(&world.store(), "a"), ["r3", "r2", "r0"]);
    });
}

#[test]
fn runs_that_the_command_line_imported_are_read_like_others() {
    in_lives(|world| {
        let log = world.log();
        let metadata = runlog::Metadata::json(br#"{"imported_from":"r.jsonl"}"#);
        let writer = log.start_run("a", "r", metadata).unwrap();
        let records = [
            RunRecord::Started(started("a", "r", NOW)),
            turn(0, "p"),
            RunRecord::Ended(ended("a", "r", NOW + 1, success())),
        ];
        let line = runlog::ContentType::JSON_LINE;
        let append = |kind: &str, payload: &[u8], content| {
            let record = runlog::NewRecord::new(payload).kind(kind).content_type(content);
            writer.append_record(&record).unwrap();
        };
        append("started", &records[0].to_line(), line);
        append("turn", &records[1].to_line(), line);
        append("turn", br#"{"record":"turn"}"#, line);
        append("raw", b"{\"rec", runlog::ContentType::BYTES);
        append("unterminated-line", &records[2].to_line(), line);
        writer.end(&Outcome::completed()).unwrap();
        for _ in 0..2 {
            let [run] = &world.store().list_runs("a")[..] else { panic!("one run") };
            assert_eq!((run.status, run.turn_count), (RunStatus::Completed, 1));
            assert_eq!(run.damaged_lines, 2);
        }
        let trace = world.store().try_get_run_trace("r").unwrap().unwrap();
        assert_eq!((trace.records, trace.damage.len()), (records.to_vec(), 2));
        assert_eq!(world.store().agent_for_run("r").as_deref(), Some("a"));
    });
}

#[test]
fn what_the_engine_ended_by_itself_counts_as_ended() {
    in_lives(|world| {
        world.store().write_started(&started("a", "r", NOW)).unwrap();
        world.log().end_run("a", "r", &Outcome::interrupted(), Default::default()).unwrap();
        let run = &world.store().list_runs("a")[0];
        assert_eq!((run.status, run.ended_at.is_some()), (RunStatus::Incomplete, true));
        assert_eq!(world.store().adopt_orphans(), 0);
    });
}

#[test]
fn a_start_is_on_disk_when_it_returns_and_so_is_an_end() {
    let disk = std::sync::Arc::new(runlog_sim::SimDisk::new());
    let clock = runlog_sim::SimClock::new(runlog::Timestamp(NOW));
    let options: Options = super::run_store_world::options(&clock);
    let log = options.create_storage(disk.clone()).unwrap();
    let store = runlog_stores::run_store::RunStore::on(log, RetentionConfig::default());
    let after_power_loss = |check: &dyn Fn(&runlog_stores::run_store::RunStore)| {
        let image = disk.durable();
        let disk = std::sync::Arc::new(runlog_sim::SimDisk::from_image(image));
        let log = options.open_storage(disk).unwrap();
        check(&runlog_stores::run_store::RunStore::on(log, RetentionConfig::default()));
    };
    store.write_started(&started("a", "r", NOW)).unwrap();
    after_power_loss(&|store| assert_eq!(ids(store, "a"), ["r"]));
    store.append_turns("a", "r", &[turn(0, "p")]).unwrap();
    store.write_ended(&ended("a", "r", NOW, success())).unwrap();
    after_power_loss(&|store| {
        let run = &store.list_runs("a")[0];
        assert_eq!((run.status, run.turn_count), (RunStatus::Completed, 1));
        assert_eq!(store.log().unwrap().run("r").unwrap().status, runlog::RunStatus::Completed);
    });
    store.write_started(&started("a", "r2", NOW)).unwrap();
    assert_eq!(store.adopt_orphans(), 1);
    after_power_loss(&|store| assert_eq!(store.try_adopt_orphans().unwrap().adopted, 0));
}

#[test]
fn lists_adoption_and_starts_cost_the_same_however_many_finished_runs_there_are() {
    let cost = |finished: i64| {
        let disk = std::sync::Arc::new(runlog_sim::SimDisk::new());
        let clock = runlog_sim::SimClock::new(runlog::Timestamp(NOW));
        let options = super::run_store_world::options(&clock).extent_size(1 << 20);
        let log = options.create_storage(disk.clone()).unwrap();
        let store = runlog_stores::run_store::RunStore::on(log, RetentionConfig::default());
        for number in 0..finished {
            let run = format!("r{number:05}");
            let turns: Vec<_> = (0..20).map(|index| turn(index, "p")).collect();
            store
                .append_records("a", &run, &[RunRecord::Started(started("a", &run, number))])
                .unwrap();
            store.append_turns("a", &run, &turns).unwrap();
            store.write_ended(&ended("a", &run, number, success())).unwrap();
        }
        let before = disk.reads();
        for number in 0..8 {
            store.write_started(&started("b", &format!("live{number}"), NOW)).unwrap();
        }
        let starts = disk.reads() - before;
        let before = disk.reads();
        let page = store.list_runs_page("a", None, 20).unwrap();
        assert!(page.runs.iter().all(|run| run.turn_count == 20));
        let listed = disk.reads() - before;
        let before = disk.reads();
        assert_eq!(store.adopt_orphans(), 8);
        (listed, disk.reads() - before, starts)
    };
    let (few, many) = (cost(60), cost(600));
    println!("reads of a page, an adoption, 8 starts: {few:?} with 60 runs, {many:?} with 600");
    assert!(many.0 <= few.0 + 60, "a page: {few:?}, {many:?}");
    assert!(many.1 <= few.1 + 60, "an adoption: {few:?}, {many:?}");
    assert!(many.2 <= few.2 + 60, "starts: {few:?}, {many:?}");
}
