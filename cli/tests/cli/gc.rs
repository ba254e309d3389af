//! What a policy evicts, what it tells, and what it leaves alone.

use std::fs;

use runlog::{Metadata, NewRecord, Outcome, RunLog, Timestamp};
use serde_json::Value;

use crate::world::{World, keys};

/// The start of 2020, in nanoseconds; the runs are an hour apart from then on.
const START: i64 = 1_577_836_800_000_000_000;
const HOUR: i64 = 3_600_000_000_000;

/// Five ended runs of agent `a`, one of agent `b`, and the oldest of `a` in progress.
fn world() -> World {
    let world = World::new();
    let log = world.open();
    let open = log.start_run("a", "open", Metadata::default().at(Timestamp(START))).expect("a run");
    let record = NewRecord::new(b"a record of a run in progress").at(Timestamp(START));
    open.append_record(&record).expect("a record");
    drop(open);
    for (hour, run) in (1..).zip(["r1", "r2", "r3", "r4", "r5"]) {
        ended(&log, "a", run, hour);
    }
    ended(&log, "b", "only", 6);
    log.close().expect("closed");
    world
}

fn ended(log: &RunLog, agent: &str, run: &str, hour: i64) {
    let at = Timestamp(START + hour * HOUR);
    let writer = log.start_run(agent, run, Metadata::default().at(at)).expect("a run");
    writer.append(format!("a record of {run}").as_bytes()).expect("a record");
    writer.end(&Outcome::completed().at(at)).expect("the end");
}

/// The runs that are there, the newest first.
fn left(world: &World) -> Vec<String> {
    let rows = world.good(&["ls", "--all", "--json"]).json();
    rows.iter().map(|row| row["run"].as_str().expect("a string").to_owned()).collect()
}

/// The runs of the objects with this action.
fn with_action<'a>(rows: &'a [Value], action: &str) -> Vec<&'a str> {
    let rows = rows.iter().filter(|row| row["action"] == action);
    rows.map(|row| row["run"].as_str().expect("a string")).collect()
}

#[test]
fn gc_keeps_the_newest_of_each_agent_and_runs_in_progress() {
    let world = world();
    let rows = world.good(&["gc", "--keep", "2", "--json"]).json();
    assert_eq!(with_action(&rows, "evict"), ["r1", "r2", "r3"]);
    assert_eq!(left(&world), ["only", "r5", "r4", "open"]);
    assert_eq!(world.good(&["show", "r4", "--raw"]).text(), "a record of r4\n");
    assert_eq!(world.good(&["show", "open", "--raw"]).text(), "a record of a run in progress\n");
    world.good(&["verify"]);
    let again = world.good(&["gc", "--keep", "2", "--json"]).json();
    assert_eq!(with_action(&again, "evict"), [""; 0]);
}

#[test]
fn a_dry_run_tells_the_same_and_changes_nothing() {
    let world = world();
    let before = world.good(&["ls", "--all", "--json"]).stdout;
    let planned = world.good(&["gc", "--keep", "2", "--dry-run", "--json"]).json();
    let text = world.good(&["gc", "--keep", "2", "--dry-run"]);
    assert!(text.text().contains("would evict 3 runs"), "{}", text.text());
    assert!(!text.text().contains("freed"), "{}", text.text());
    assert_eq!(world.good(&["ls", "--all", "--json"]).stdout, before);
    assert_eq!(world.good(&["receipts", "--json"]).text(), "");
    let done = world.good(&["gc", "--keep", "2", "--json"]).json();
    assert_eq!(planned.len(), done.len());
    assert_eq!(planned[..4], done[..4]);
    assert_eq!((&planned[4]["dry_run"], &done[4]["dry_run"]), (&true.into(), &false.into()));
}

#[test]
fn without_a_limit_nothing_goes_and_that_is_said() {
    let world = world();
    for args in [
        &["gc"][..],
        &["gc", "--keep", "0"],
        &["gc", "--max-age", "0", "--max-bytes", "0"],
        &["gc", "--agent", "a", "--protect-newest"],
    ] {
        let ran = world.run(args);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.stderr.contains("a dry run"), "{}", ran.stderr);
        assert!(ran.text().starts_with("would evict 0 runs, 0 B; "), "{}", ran.text());
        assert_eq!(left(&world).len(), 7);
    }
}

#[test]
fn age_and_bytes_are_limits_too() {
    let world = world();
    // The clock is taken to stand between 2024 and 2219.
    let rows = world.good(&["gc", "--max-age", "10400w", "--json"]).json();
    assert_eq!(with_action(&rows, "evict"), [""; 0]);
    let rows = world.good(&["gc", "--max-age", "1d12h", "--agent", "b", "--json"]).json();
    assert_eq!((with_action(&rows, "evict"), &rows[0]["rule"]), (vec!["only"], &"age".into()));
    let rows = world.good(&["gc", "--max-bytes", "1B", "--protect-newest", "--json"]).json();
    assert_eq!(with_action(&rows, "evict"), ["r1", "r2", "r3", "r4"]);
    assert_eq!(with_action(&rows, "protect"), ["open", "r5"]);
    assert_eq!(rows[0]["rule"], "bytes");
    assert_eq!(
        (&rows[4]["protection"], &rows[5]["protection"]),
        (&"in_progress".into(), &"newest".into())
    );
    assert_ne!(rows[6]["excess_bytes"], 0);
    assert_eq!(left(&world), ["r5", "open"]);
}

#[test]
fn only_the_named_agents_are_looked_at() {
    let world = world();
    let log = world.open();
    ended(&log, "b", "newer", 7);
    ended(&log, "c", "r1", 8);
    ended(&log, "c", "r9", 9);
    log.close().expect("closed");
    let rows = world.good(&["gc", "--keep", "1", "--agent", "b", "--agent", "c", "--json"]).json();
    assert_eq!(with_action(&rows, "evict"), ["only", "r1"]);
    assert_eq!(left(&world).len(), 8);
}

#[test]
fn an_agent_without_runs_and_an_impossible_one_are_refused() {
    let world = world();
    let ran = world.run(&["gc", "--keep", "1", "--agent", "no\u{1b}body"]);
    assert_eq!((ran.code, ran.text()), (Some(1), ""));
    assert!(ran.stderr.contains("no\\u{1b}body"), "{}", ran.stderr);
    let ran = world.run(&["gc", "--keep", "1", "--agent", ""]);
    assert_eq!((ran.code, ran.text()), (Some(1), ""));
    assert!(ran.stderr.contains("agent id"), "{}", ran.stderr);
    assert_eq!(left(&world).len(), 7);
}

#[test]
fn a_held_run_stays_until_it_is_released() {
    let world = world();
    let held = world.good(&["hold", "r1", "--reason", "audit\x1b[31m of May"]);
    assert_eq!(held.text(), "run r1 of agent a is held now\n");
    let again = world.good(&["hold", "r1", "--agent", "a", "--reason", "audit of June", "--json"]);
    assert_eq!(again.json()[0]["changed"], true);
    let again = world.good(&["hold", "r1", "--reason", "audit of June", "--json"]).json();
    assert_eq!((&again[0]["action"], &again[0]["changed"]), (&"hold".into(), &false.into()));
    for command in ["rm", "erase"] {
        let ran = world.run(&[command, "r1"]);
        assert_eq!((ran.code, ran.text()), (Some(1), ""));
        assert!(ran.stderr.contains("is held"), "{}", ran.stderr);
    }
    let text = world.good(&["gc", "--keep", "4", "--dry-run"]);
    assert!(text.text().contains("held         audit of June\n"), "{}", text.text());
    let rows = world.good(&["gc", "--keep", "4", "--json"]).json();
    assert_eq!(with_action(&rows, "evict"), [""; 0]);
    assert_eq!(with_action(&rows, "protect"), ["open", "r1"]);
    let (held, reason) = (&"held".into(), &"audit of June".into());
    assert_eq!((&rows[1]["protection"], &rows[1]["reason"]), (held, reason));
    let runs = world.good(&["ls", "--json"]).json();
    let held: Vec<_> = runs.iter().filter(|run| run["held"] == true).collect();
    assert_eq!((held.len(), &held[0]["run"]), (1, &"r1".into()));

    assert_eq!(world.good(&["release", "r1"]).text(), "run r1 of agent a is released\n");
    let again = world.good(&["release", "r1", "--json"]).json();
    assert_eq!((&again[0]["action"], &again[0]["changed"]), (&"release".into(), &false.into()));
    let rows = world.good(&["gc", "--keep", "4", "--json"]).json();
    assert_eq!(with_action(&rows, "evict"), ["r1"]);
}

#[test]
fn the_reason_of_a_hold_cannot_play_with_the_terminal() {
    let world = world();
    let reason = format!("\x1b[31m\n{}", "long ".repeat(100));
    world.good(&["hold", "r1", "--reason", &reason]);
    let text = world.good(&["gc", "--keep", "4", "--dry-run"]);
    assert!(text.text().contains("held         \\u{1b}[31m\\nlong"), "{}", text.text());
    let ran = world.run(&["hold", "r1", "--reason", &"x".repeat(4097)]);
    assert_eq!((ran.code, ran.text()), (Some(1), ""));
    assert!(ran.stderr.contains("4,096 bytes"), "{}", ran.stderr);
}

#[test]
fn people_are_told_what_goes_what_stays_and_what_was_freed() {
    let world = world();
    let ran = world.good(&["gc", "--keep", "4", "--max-age", "200w", "--max-bytes", "1536MiB"]);
    let lines: Vec<&str> = ran.text().lines().collect();
    assert!(lines[0].starts_with("GONE  AGENT  STATUS     ENDED                 RULE"), "{ran:?}");
    assert!(
        lines[1].starts_with("r1    a      completed  2020-01-01T01:00:00Z  newest_n"),
        "{ran:?}"
    );
    assert!(ran.text().contains("\nPROTECTED  AGENT  RULE  "), "{ran:?}");
    assert!(ran.text().contains("\nevicted 6 runs, "), "{ran:?}");
    assert!(ran.text().contains("; 1 run left, "), "{ran:?}");
    assert!(ran.text().contains("; freed "), "{ran:?}");
}

#[test]
fn the_fields_of_json_are_these() {
    let world = world();
    world.good(&["hold", "r1", "--reason", "audit"]);
    let rows = world.good(&["gc", "--keep", "3", "--json"]).json();
    let [evict, open, protect, total] = &rows[..] else { panic!("four lines: {rows:?}") };
    assert_eq!(
        keys(evict),
        ["action", "agent", "bytes", "ended_at", "number", "rule", "run", "status"]
    );
    let all = ["action", "agent", "bytes", "protection", "reason", "rule", "run"];
    assert_eq!((keys(open), &open["reason"]), (all.to_vec(), &Value::Null));
    assert_eq!((keys(protect), &protect["reason"]), (all.to_vec(), &"audit".into()));
    assert_eq!(evict["ended_at"], "2020-01-01T02:00:00.000000000Z");
    let all = [
        "action",
        "dry_run",
        "evicted",
        "evicted_bytes",
        "excess_bytes",
        "file_bytes",
        "freed_bytes",
        "in_progress",
        "in_progress_bytes",
        "kept",
        "kept_bytes",
        "protected",
    ];
    assert_eq!((keys(total), &total["action"]), (all.to_vec(), &"total".into()));
    assert_eq!((&total["evicted"], &total["evicted_bytes"]), (&1.into(), &evict["bytes"]));
    assert_eq!((&total["kept"], &total["protected"]), (&6.into(), &2.into()));
    let file = fs::metadata(world.store()).expect("the store").len();
    assert_eq!(total["file_bytes"], file);
}

#[test]
fn the_space_of_what_went_comes_back() {
    let world = World::new();
    let log = world.open();
    for run in 0..24_u8 {
        let writer = log.start_run("a", &format!("r{run}"), ()).expect("a run");
        writer.append(&vec![run; 1 << 20]).expect("a record");
        writer.end(&Outcome::completed()).expect("the end");
    }
    log.close().expect("closed");
    let before = fs::metadata(world.store()).expect("the store").len();
    let rows = world.good(&["gc", "--keep", "2", "--json"]).json();
    let total = rows.last().expect("a total");
    assert_eq!(total["evicted"], 22);
    assert!(total["freed_bytes"].as_u64() >= Some(12 << 20), "{total}");
    let after = fs::metadata(world.store()).expect("the store").len();
    assert!(after < before, "{after} of {before}");
    let wanted = [vec![23_u8; 1 << 20], vec![b'\n']].concat();
    assert_eq!(world.good(&["show", "r23", "--raw"]).stdout, wanted);
    world.good(&["verify"]);
}

#[test]
fn a_damaged_reason_costs_the_reason_and_not_the_hold() {
    let world = world();
    let reason = "the reason of the hold";
    world.good(&["hold", "r1", "--reason", reason]);
    let mut bytes = fs::read(world.store()).expect("the store");
    let at = bytes.windows(reason.len()).position(|window| window == reason.as_bytes());
    bytes[at.expect("the reason is in the file")] ^= 1;
    fs::write(world.store(), bytes).expect("the store");
    let ran = world.run(&["gc", "--keep", "2", "--json"]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert_eq!(with_action(&ran.json(), "evict"), ["r2", "r3"]);
    assert!(left(&world).contains(&"r1".to_owned()));
}
