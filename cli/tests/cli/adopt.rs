//! Runs whose program died: found, asked about, ended, and never those of a living process.

use std::fs;

use runlog::{Metadata, NewRecord, Outcome, Timestamp};
use serde_json::Value;

use crate::world::{Terminal, World, keys};

/// 2026-01-31T20:30:05Z.
const AT: Timestamp = Timestamp(1_769_891_405_000_000_000);

/// A store that its program left with runs in progress: two of an agent `a`, of which one is old,
/// and an old one of `b`.
fn world() -> World {
    let world = World::new();
    let log = world.open();
    for (agent, run, at) in [("a", "old", Some(AT)), ("a", "new", None), ("b", "old", Some(AT))] {
        let metadata = Metadata::new(b"");
        let record = NewRecord::new(b"a step");
        let (metadata, record) = match at {
            Some(at) => (metadata.at(at), record.at(at)),
            None => (metadata, record),
        };
        let writer = log.start_run(agent, run, metadata).expect("a run");
        writer.append_record(&record).expect("a record");
    }
    let done = log.start_run("a", "done", ()).expect("a run");
    done.end(&Outcome::completed()).expect("an end");
    drop(done);
    log.close().expect("closed");
    world
}

/// The runs with their status, as `ls` tells.
fn statuses(world: &World) -> Vec<(String, String)> {
    let text = |row: &Value, key: &str| row[key].as_str().expect("text").to_owned();
    let rows = world.good(&["ls", "--json", "--all"]).json();
    let mut found: Vec<_> = rows
        .iter()
        .map(|row| (format!("{}/{}", text(row, "agent"), text(row, "run")), text(row, "status")))
        .collect();
    found.sort();
    found
}

fn in_progress(world: &World) -> Vec<String> {
    let of = statuses(world).into_iter().filter(|(_, status)| status == "in_progress");
    of.map(|(name, _)| name).collect()
}

#[test]
fn all_runs_in_progress_are_ended_and_no_others() {
    let world = world();
    let ran = world.good(&["adopt"]);
    assert!(ran.text().starts_with("ENDED"), "{}", ran.text());
    assert!(ran.text().ends_with("\n\nended 3 runs as interrupted\n"), "{}", ran.text());
    let named = |name: &str, status: &str| (name.to_owned(), status.to_owned());
    assert_eq!(
        statuses(&world),
        [
            named("a/done", "completed"),
            named("a/new", "interrupted"),
            named("a/old", "interrupted"),
            named("b/old", "interrupted"),
        ]
    );
    assert_eq!(world.good(&["adopt"]).text(), "ended 0 runs as interrupted\n");
    world.good(&["verify"]);
}

#[test]
fn a_dry_run_lists_what_the_command_ends_and_changes_nothing() {
    let world = world();
    let before = fs::read(world.store()).expect("the store");
    let ran = world.good(&["adopt", "--dry-run", "--agent", "a"]);
    assert!(ran.text().starts_with("WOULD END"), "{}", ran.text());
    assert!(ran.text().contains("2026-01-31T20:30:05Z"), "{}", ran.text());
    assert!(ran.text().ends_with("would end 2 runs as interrupted\n"), "{}", ran.text());
    let planned = world.good(&["adopt", "--dry-run", "--agent", "a", "--json"]).json();
    assert!(before == fs::read(world.store()).expect("the store"), "it wrote");
    let done = world.good(&["adopt", "--agent", "a", "--json"]).json();
    assert_eq!(planned[..2], done[..2]);
    assert_eq!(
        keys(&done[0]),
        ["action", "agent", "last_at", "records", "run", "started_at", "status"]
    );
    assert_eq!((&planned[2]["dry_run"], &done[2]["dry_run"]), (&true.into(), &false.into()));
    assert_eq!((&done[2]["action"], &done[2]["adopted"]), (&"total".into(), &2.into()));
    assert_eq!(in_progress(&world), ["b/old"]);
}

#[test]
fn age_and_status_can_be_chosen() {
    let world = world();
    let ran = world.good(&["adopt", "--older-than", "1h", "--status", "failed"]);
    assert!(ran.text().ends_with("ended 2 runs as failed\n"), "{}", ran.text());
    assert_eq!(in_progress(&world), ["a/new"]);
    let ran = world.good(&["adopt", "--older-than", "5000w"]);
    assert_eq!(ran.text(), "ended 0 runs as interrupted\n");
    let ran = world.good(&["adopt", "--older-than", "0", "--agent", "b"]);
    assert_eq!(ran.text(), "ended 0 runs as interrupted\n");
}

#[test]
fn the_runs_of_a_living_process_are_left_alone() {
    let world = world();
    let log = world.open();
    let pid = std::process::id();
    let mut tries: Vec<&[&str]> = vec![&["adopt", "--yes"]];
    // Only there does a reader learn who has the lock.
    if cfg!(target_os = "linux") {
        tries.push(&["adopt", "--dry-run"]);
    }
    for args in tries {
        let ran = world.run(args);
        assert_eq!((ran.code, ran.text()), (Some(4), ""), "{ran:?}");
        let who = format!("is open for writing by process {pid} on ");
        assert!(ran.stderr.contains(&who) && ran.stderr.contains(" since 20"), "{ran:?}");
        let said = world.run(&[args, &["--json"]].concat()).message().expect("a message");
        assert_eq!((&said["error"], &said["exit_code"]), (&"busy".into(), &4.into()));
    }
    assert_eq!(log.run(("b", "old")).expect("a run").status, runlog::RunStatus::InProgress);
    log.close().expect("closed");
    assert_eq!(in_progress(&world).len(), 3);
}

#[test]
fn a_terminal_asks_before_runs_are_ended() {
    let world = world();
    let asks = |typed, args: &[&str]| Terminal { typed, ..Terminal::of(80) }.run(&world, args);
    let (code, shown) = asks("n\n", &["adopt", "--agent", "a"]);
    assert_eq!((code, in_progress(&world).len()), (Some(1), 3), "{shown}");
    assert!(shown.contains("end 2 runs as interrupted: a/old, a/new? [y/N]"), "{shown}");
    assert!(shown.contains("nothing is ended"), "{shown}");
    let (code, shown) = asks("y\n", &["adopt", "--agent", "b"]);
    assert_eq!((code, in_progress(&world).len()), (Some(0), 2), "{shown}");
    let (code, shown) = asks("", &["adopt", "--yes"]);
    assert_eq!((code, in_progress(&world).len()), (Some(0), 0), "{shown}");
    assert!(!shown.contains("[y/N]"), "{shown}");
    let (code, shown) = asks("", &["adopt"]);
    assert_eq!(code, Some(0), "nothing to ask: {shown}");
}

#[test]
fn a_store_that_is_not_there_is_not_made() {
    let world = World::new();
    for args in [&["adopt"][..], &["adopt", "--dry-run"]] {
        assert_eq!(world.run(args).code, Some(1));
    }
    assert!(!fs::exists(world.store()).expect("a look"));
}
