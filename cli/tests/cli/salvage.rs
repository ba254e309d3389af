//! What `salvage` brings out of damaged stores, and what it says is missing.

use std::fs;
use std::process::Stdio;

use runlog::{Durability, Metadata, Outcome};

use crate::world::{Ran, World};

/// A store of two runs, of which one goes on, and of a document.
fn world() -> World {
    let world = World::new();
    let log = world.open();
    let metadata = Metadata::new(b"tea").durability(Durability::Process);
    let done = log.start_run("planner", "done", metadata).expect("a run");
    for n in 0..5 {
        done.append(format!("the text of record {n}").as_bytes()).expect("a record");
    }
    done.end(&Outcome::completed()).expect("an end");
    let going = log.start_run("planner", "going", ()).expect("a run");
    going.append(b"still here").expect("a record");
    log.docs().put("plans", "tea", &runlog::NewRecord::new(b"boil water")).expect("a document");
    drop((done, going));
    log.close().expect("a store");
    world
}

/// Changes the file of the store.
fn damage(world: &World, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(world.store()).expect("the store");
    change(&mut bytes);
    fs::write(world.store(), bytes).expect("the store");
}

fn salvage(world: &World, args: &[&str]) -> Ran {
    world.run(&[&["salvage", "runs.runlog", "out.runlog"], args].concat())
}

fn flip(bytes: &mut [u8], text: &[u8]) {
    let at = bytes.windows(text.len()).position(|part| part == text).expect("the text");
    bytes[at] ^= 1;
}

#[test]
fn a_store_without_its_front_comes_out_whole_and_the_damaged_file_stays_as_it_is() {
    let world = world();
    damage(&world, |bytes| bytes[..64 << 10].fill(0));
    let before = fs::read(world.store()).expect("the store");
    let ran = salvage(&world, &[]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.text().contains("6 records of 2 runs"), "{}", ran.text());
    assert!(ran.text().contains("in doubt: the manifest is lost"), "{}", ran.text());
    assert!(ran.text().ends_with("nothing is missing\n"), "{}", ran.text());
    assert!(fs::read(world.store()).expect("the store") == before);
    let shown = world.good(&["show", "done", "--raw", "--store", "out.runlog"]);
    let texts: Vec<String> = (0..5).map(|n| format!("the text of record {n}\n")).collect();
    assert_eq!(shown.text(), texts.concat());
    let listed = world.good(&["ls", "--json", "--store", "out.runlog"]).json();
    let status = |run: &str| {
        let row = listed.iter().find(|row| row["run"] == run).expect("the run");
        row["status"].clone()
    };
    assert_eq!((status("done"), status("going")), ("completed".into(), "in_progress".into()));
    let document = world.good(&["get", "plans", "tea", "--raw", "--store", "out.runlog"]);
    assert_eq!(document.text(), "boil water");
    world.good(&["verify", "--store", "out.runlog"]);
}

#[test]
fn what_is_missing_is_listed_and_makes_the_exit_code_3() {
    let world = world();
    damage(&world, |bytes| flip(bytes, b"the text of record 2"));
    let ran = salvage(&world, &[]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    let line = "missing: record 2 of the run done of the agent planner\n";
    assert!(ran.text().contains(line), "{}", ran.text());
    assert!(ran.text().contains("5 records of 2 runs"), "{}", ran.text());
    let shown = world.good(&["show", "done", "--raw", "--store", "out.runlog"]);
    assert_eq!(shown.text().lines().count(), 4);
}

#[test]
fn as_json_each_finding_is_an_object_and_the_sum_is_the_last() {
    let world = world();
    damage(&world, |bytes| {
        bytes[..64 << 10].fill(0);
        flip(bytes, b"the text of record 2");
    });
    let ran = salvage(&world, &["--json"]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    let events = ran.json();
    let records = events.iter().find(|event| event["event"] == "missing").expect("a finding");
    assert_eq!(records["missing"]["records"]["run"], "done");
    assert_eq!(records["missing"]["records"]["first"], 2);
    assert_eq!(records["missing"]["records"]["count"], 1);
    assert!(events.iter().any(|event| event["caveat"] == "no_manifest"), "{ran:?}");
    let summary = events.last().expect("the sum");
    assert_eq!((&summary["event"], &summary["runs"]), (&"summary".into(), &2.into()));
    // The record, and the bytes of its frame.
    assert_eq!((&summary["records"], &summary["missing"]), (&5.into(), &2.into()));
    assert_eq!(summary["has_manifest"], false);
}

#[test]
fn nothing_is_written_over_what_is_there_or_made_of_what_is_no_store() {
    let world = world();
    world.write("out.runlog", "mine");
    let ran = salvage(&world, &[]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert_eq!(fs::read(world.path("out.runlog")).expect("the file"), b"mine");
    world.write("noise", vec![7; 300_000]);
    let ran = world.run(&["salvage", "noise", "new.runlog"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(!world.path("new.runlog").exists());
    let ran = world.run(&["salvage", "none", "new.runlog"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(!world.path("new.runlog").exists());
}

/// Nothing but segments is left of the store.
fn lose_the_front(world: &World) {
    damage(world, |bytes| bytes[..64 << 10].fill(0));
}

#[test]
fn a_damaged_store_is_replaced_and_the_damaged_file_is_named() {
    let world = world();
    lose_the_front(&world);
    let before = fs::read(world.store()).expect("the store");
    let ran = world.run(&["salvage", "--replace", "runs.runlog"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.text().contains("6 records of 2 runs"), "{}", ran.text());
    assert!(ran.text().ends_with("the damaged file is runs.runlog.damaged\n"), "{}", ran.text());
    assert!(fs::read(world.path("runs.runlog.damaged")).expect("the file") == before);
    world.good(&["verify"]);
    assert_eq!(world.good(&["show", "done", "--raw"]).text().lines().count(), 5);

    // It opens now, so it stays as it is.
    let before = fs::read(world.store()).expect("the store");
    let ran = world.good(&["salvage", "--replace", "runs.runlog"]);
    assert_eq!(ran.text(), "runs.runlog opens: nothing was changed\n");
    let events = world.good(&["salvage", "--replace", "runs.runlog", "--json"]).json();
    assert_eq!((events.len(), &events[0]["event"]), (1, &"opens".into()));
    assert!(fs::read(world.store()).expect("the store") == before);
}

#[test]
fn a_store_that_lost_records_is_replaced_with_code_0_and_they_are_listed() {
    let world = world();
    damage(&world, |bytes| {
        bytes[..64 << 10].fill(0);
        flip(bytes, b"the text of record 2");
    });
    let events = world.good(&["salvage", "--replace", "runs.runlog", "--json"]).json();
    assert!(events.iter().any(|event| event["event"] == "missing"), "{events:?}");
    let last = events.last().expect("events");
    assert_eq!(last["event"], "replaced");
    assert_eq!(last["damaged"], "runs.runlog.damaged");
    assert_eq!(world.good(&["show", "done", "--raw"]).text().lines().count(), 4);
}

#[test]
fn a_store_that_is_open_or_is_none_is_not_replaced() {
    let world = world();
    let log = world.open();
    assert_eq!(world.run(&["salvage", "--replace", "runs.runlog"]).code, Some(4));
    log.close().expect("closed");
    world.write("noise", vec![7; 300_000]);
    assert_eq!(world.run(&["salvage", "--replace", "noise"]).code, Some(1));
    assert_eq!(fs::read(world.path("noise")).expect("the file"), vec![7; 300_000]);
    assert_eq!(world.run(&["salvage", "--replace", "none"]).code, Some(1));
    // The new store has no other place.
    assert_eq!(world.run(&["salvage", "--replace", "runs.runlog", "out"]).code, Some(2));
    assert_eq!(world.run(&["salvage", "runs.runlog"]).code, Some(2));
    assert_eq!(fs::read_dir(world.path("")).expect("the folder").count(), 2);
}

/// A store of 40 runs of 40 records without its front.
fn large_world() -> World {
    let world = World::new();
    let log = world.open();
    for run in 0..40 {
        let metadata = Metadata::new(b"{}").durability(Durability::Process);
        let writer = log.start_run("planner", &format!("run-{run}"), metadata).expect("a run");
        for n in 0..40 {
            let text = format!("record {n} of {run} {}", "-".repeat(1000));
            let record = runlog::NewRecord::new(text.as_bytes()).durability(Durability::Process);
            writer.append_record(&record).expect("a record");
        }
    }
    log.close().expect("a store");
    lose_the_front(&world);
    world
}

fn is_whole(world: &World, store: &str) -> bool {
    let shown = world.run(&["ls", "--json", "--all", "--store", store]);
    let shown = if shown.code == Some(0) { shown.json() } else { Vec::new() };
    shown.len() == 40
        && shown.iter().all(|run| run["records"] == 40)
        && world.run(&["verify", "--store", store]).code == Some(0)
}

/// Runs a salvage, and kills it once it has written so much. Returns whether it ended before.
fn killed_at(world: &World, args: &[&str], most: u64) -> bool {
    let mut child = world.command(args);
    let mut child = child.stdout(Stdio::null()).spawn().expect("it starts");
    let io = format!("/proc/{}/io", child.id());
    let has_ended = loop {
        if child.try_wait().expect("asked").is_some() {
            break true;
        }
        if written(&io).is_some_and(|bytes| bytes >= most) {
            break false;
        }
    };
    // An error only if it has just ended.
    let _ = (child.kill(), child.wait().expect("it ended"));
    has_ended
}

/// Goal: the new store has its name once all of it is there, and never before.
#[test]
fn a_salvage_that_is_killed_leaves_no_new_store_or_a_whole_one() {
    let world = large_world();
    let before = fs::read(world.store()).expect("the store");
    let out = world.path("out.runlog");
    let (mut killed, mut finished) = (0, 0);
    // Killed as soon as it has written so much, until it has written all before.
    for step in 0.. {
        let args = ["salvage", "runs.runlog", "out.runlog"];
        let has_ended = killed_at(&world, &args, step * 300_000);
        if out.exists() {
            assert!(is_whole(&world, "out.runlog"));
            fs::remove_file(&out).expect("removed");
            finished += 1;
        } else {
            assert!(!has_ended, "it ended without a new store");
            killed += 1;
        }
        assert!(fs::read(world.store()).expect("the store") == before);
        if has_ended {
            break;
        }
    }
    let names = fs::read_dir(world.path("")).expect("the folder").count();
    assert_eq!(names, 1, "only the damaged store is left");
    assert!(killed > 0 && finished > 0, "{killed} killed, {finished} finished");
}

#[test]
fn a_replacement_that_is_killed_leaves_the_damaged_store_or_the_new_one() {
    let world = large_world();
    let before = fs::read(world.store()).expect("the store");
    let (mut killed, mut finished) = (0, 0);
    for step in 0.. {
        let args = ["salvage", "--replace", "runs.runlog"];
        let has_ended = killed_at(&world, &args, step * 300_000);
        if fs::read(world.store()).expect("the store") == before {
            assert!(!has_ended, "it ended without a new store");
            killed += 1;
        } else {
            assert!(is_whole(&world, "runs.runlog"));
            assert!(fs::read(world.path("runs.runlog.damaged")).expect("the file") == before);
            finished += 1;
            break;
        }
    }
    assert!(killed > 0 && finished > 0, "{killed} killed, {finished} finished");
}

/// How many bytes a process has handed to the system to write.
fn written(io: &str) -> Option<u64> {
    let text = fs::read_to_string(io).ok()?;
    text.lines().find_map(|line| line.strip_prefix("wchar: ")?.parse().ok())
}
