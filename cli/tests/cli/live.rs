//! Commands that only read: beside a writer, without rights to write, and without a trace.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use runlog::{Allow, NewRecord, Options, Outcome, Reader, Retention, RunLog};

use crate::world::{Ran, World};

/// Every command that only reads, with what a person would look for in its output.
pub(crate) const READING: [(&[&str], &str); 22] = [
    (&["ls"], "ended"),
    (&["du"], "planner"),
    (&["ls", "--json", "--status", "in_progress"], "\"running\""),
    (&["show", "running"], "step 3"),
    (&["show", "planner/ended", "--raw"], "{\"n\":0}"),
    (&["show", "running", "--last", "1", "--json"], "step 3"),
    (&["export", "-"], "runlog_run"),
    (&["export", "-", "running", "--json"], "{\"runlog_text\":\"step 3\"}"),
    (&["verify"], "the index was not compared"),
    (&["verify", "--json"], "\"index_checked\":false"),
    (&["stat"], "2 runs"),
    (&["stat", "--json"], "\"runs\":2"),
    (&["inspect"], "superblock  "),
    (&["inspect", "--segment", "1"], "running"),
    (&["inspect", "1:64", "--json"], "\"start\""),
    (&["gc", "--dry-run", "--max-bytes", "1"], "WOULD GO"),
    (&["gc", "--dry-run", "--keep", "1", "--json"], "\"dry_run\":true"),
    (&["receipts"], "gone"),
    (&["receipts", "--json"], "gone"),
    (&["get", "space", "key"], "a value"),
    (&["get", "space", "key", "--raw"], "a value"),
    (&["docs", "space"], "key"),
];

/// A store with a run that has ended, one in progress, a deleted one and a document. Its writer
/// does nothing by itself.
pub(crate) fn open(world: &World) -> RunLog {
    let log = Options::new().background(false).open(world.store()).expect("a store");
    let running = log.start_run("planner", "running", ()).expect("a run");
    for run in ["gone", "ended"] {
        let writer = log.start_run("planner", run, ()).expect("a run");
        writer.append_json(&serde_json::json!({ "n": 0 })).expect("a record");
        writer.end(&Outcome::completed()).expect("an end");
    }
    log.delete_run("gone").expect("deleted");
    log.docs().put("space", "key", &NewRecord::new(b"a value")).expect("a document");
    for step in 0..4 {
        running.append(format!("step {step}").as_bytes()).expect("a record");
    }
    log
}

/// Everything that reading could change.
pub(crate) fn state(file: &Path) -> (Vec<u8>, [i64; 6]) {
    let known = fs::metadata(file).expect("the store");
    let numbers = [
        known.mtime(),
        known.mtime_nsec(),
        known.ctime(),
        known.ctime_nsec(),
        known.blocks().cast_signed(),
        i64::from(known.mode()),
    ];
    (fs::read(file).expect("the store"), numbers)
}

fn each_reads(world: &World, mut run: impl FnMut(&[&str]) -> Ran) {
    let before = state(&world.store());
    for (args, text) in READING {
        let ran = run(args);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{args:?}: {ran:?}");
        assert!(ran.text().contains(text), "{args:?}: {ran:?}");
        assert!(before == state(&world.store()), "{args:?} changed the file");
    }
}

#[test]
fn every_reading_command_works_beside_a_writer_and_changes_nothing() {
    let world = World::new();
    let log = open(&world);
    each_reads(&world, |args| world.run(args));
    // The writer has noticed nothing either.
    let record = NewRecord::new(b"step 4");
    log.append_to("planner", "running", &record, Allow::nothing()).expect("a record");
    assert!(world.good(&["show", "running"]).text().contains("step 4"));
    log.close().expect("closed");
}

#[test]
fn every_reading_command_works_on_a_closed_store_and_changes_nothing() {
    let world = World::new();
    open(&world).close().expect("closed");
    each_reads(&world, |args| world.run(args));
}

#[test]
fn a_store_that_another_user_may_only_read_is_read() {
    let world = World::new();
    open(&world).close().expect("closed");
    fs::set_permissions(world.store(), Permissions::from_mode(0o444)).expect("a mode");
    fs::set_permissions(world.path("."), Permissions::from_mode(0o755)).expect("a mode");
    let program = world.own_program();
    each_reads(&world, |args| {
        let mut command = Command::new(&program);
        command.args(args).arg("--store").arg(world.store()).current_dir("/");
        if fs::metadata(world.store()).expect("the store").uid() == 0 {
            command.uid(65_534);
        }
        Ran::of(&mut command)
    });
}

#[test]
fn a_store_without_its_writer_shows_what_opening_it_would_recover() {
    let world = World::new();
    let log = open(&world);
    fs::copy(world.store(), world.path("left.runlog")).expect("a copy");
    let ran = world.good(&["show", "running", "--store", "left.runlog"]);
    assert!(ran.text().contains("step 3"), "{ran:?}");
    log.close().expect("closed");
}

#[test]
fn no_reading_command_makes_a_store() {
    let world = World::new();
    for (args, _) in READING {
        let ran = world.run(args);
        assert_eq!((ran.code, ran.text()), (Some(1), ""), "{args:?}");
        assert!(ran.stderr.contains("there is no store at runs.runlog"), "{ran:?}");
    }
    assert!(!fs::exists(world.store()).expect("a look"));
}

#[test]
fn a_dry_run_of_gc_beside_a_writer_is_the_plan_of_the_writer() {
    let world = World::new();
    let log = open(&world);
    let policy = Retention::new().keep_newest(0_u64).max_bytes(1_u64);
    let reader = Reader::open(world.store()).expect("a reader");
    assert_eq!(reader.gc_plan(&policy).expect("a plan"), log.gc_plan(&policy).expect("a plan"));
    let ran = world.good(&["gc", "--dry-run", "--max-bytes", "1", "--json"]);
    assert_eq!(
        (&ran.json()[0]["action"], &ran.json()[0]["run"]),
        (&"evict".into(), &"ended".into())
    );
    assert_eq!(log.run("ended").expect("still there").records, 1);
    log.close().expect("closed");
}

#[test]
fn a_backup_beside_a_writer_is_restored_by_opening_it() {
    let world = World::new();
    let log = open(&world);
    let before = state(&world.store());
    let first = world.good(&["backup", "copy.runlog"]);
    assert!(first.text().contains("it had 0 segments already"), "{first:?}");
    let again = world.good(&["backup", "copy.runlog", "--json"]);
    // Only the segment that takes frames is copied again.
    assert!(again.text().contains("\"copied_segments\":1"), "{again:?}");
    assert!(before == state(&world.store()), "it changed the store");
    let own = world.store();
    assert_eq!(world.run(&["backup", own.to_str().expect("text")]).code, Some(4), "it is open");
    log.close().expect("closed");
    let restored = Options::new().open_existing(world.path("copy.runlog")).expect("a store");
    assert_eq!(restored.trace("running").expect("a trace").count(), 4);
    restored.close().expect("closed");
    let ran = world.run(&["backup", "copy.runlog"]);
    assert_eq!(ran.code, Some(1), "it was gone on with: {ran:?}");
}
