//! Exit codes, and which store is meant.

use std::fs;

use crate::world::{Ran, World};

#[test]
fn wrong_usage_is_code_2() {
    let world = World::new();
    for args in [
        &[][..],
        &["unknown"],
        &["show"],
        &["import"],
        &["ls", "--status", "odd"],
        &["ls", "--limit", "3", "--all"],
        &["show", "r", "--raw", "--json"],
        &["gc", "--keep", "few"],
        &["gc", "--keep=-1"],
        &["gc", "--max-age", "30"],
        &["gc", "--max-age=-1d"],
        &["gc", "--max-age", "300000w"],
        &["gc", "--max-bytes", "1 XB"],
        &["gc", "--max-bytes=-1"],
        &["gc", "--max-bytes", "16EiB"],
        &["hold", "r"],
        &["release"],
        &["rm"],
        &["erase"],
        &["receipts", "--limit", "all"],
        &["get", "space"],
        &["get", "space", "key", "--raw", "--json"],
        &["put", "space"],
        &["put", "space", "key", "--type", "odd"],
        &["put", "space", "key", "--if-absent", "--if-version", "1"],
        &["docs"],
        &["docs", "space", "--limit", "3", "--all"],
        &["del", "space"],
    ] {
        let ran = world.run(args);
        assert_eq!(ran.code, Some(2), "{args:?}");
        assert_ne!(ran.stderr, "");
    }
}

#[test]
fn help_tells_the_exit_codes_and_hides_the_inner_command() {
    let world = World::new();
    let help = world.good(&["--help"]);
    assert!(help.text().contains("3 damage found"), "{}", help.text());
    assert!(!help.text().contains("demo-writer"), "{}", help.text());
    world.good(&["--version"]);
    for (command, text) in [
        ("import", "Links inside a folder are not followed"),
        ("show", "cut where it is long"),
        ("get", "shown in one line"),
        ("demo", "removed at the end"),
    ] {
        let help = world.good(&[command, "--help"]);
        assert!(help.text().contains(text), "{}", help.text());
    }
    let help = world.good(&["gc", "--help"]);
    assert!(help.text().contains("A run in progress never goes"), "{}", help.text());
}

#[test]
fn a_missing_store_is_an_error_and_is_not_made() {
    let world = World::new();
    for command in ["ls", "verify", "stat", "gc", "receipts", "compact"] {
        let ran = world.run(&[command]);
        assert_eq!((ran.code, ran.text()), (Some(1), ""), "{command}");
        assert!(ran.stderr.contains("no store"), "{}", ran.stderr);
    }
    assert!(!fs::exists(world.store()).expect("a look"));
}

#[test]
fn a_file_of_another_program_is_an_error_and_is_not_touched() {
    let world = World::new();
    let bytes = b"SQLite format 3\0 and so on".repeat(1000);
    world.write("runs.runlog", &bytes);
    world.write("a/r.jsonl", "{}\n");
    for args in [&["ls"][..], &["verify"], &["import", "a"]] {
        let ran = world.run(args);
        assert_eq!((ran.code, ran.text()), (Some(1), ""), "{args:?}");
        assert!(ran.stderr.contains("not a run log"), "{}", ran.stderr);
    }
    assert_eq!(fs::read(world.store()).expect("the file"), bytes);
}

#[test]
fn a_store_that_is_open_elsewhere_is_code_4() {
    let world = World::new();
    world.write("a/r.jsonl", "{}\n");
    let log = world.open();
    for args in [
        &["ls"][..],
        &["show", "r"],
        &["verify"],
        &["stat"],
        &["import", "a"],
        &["gc", "--keep", "1"],
        &["hold", "r", "--reason", "audit"],
        &["release", "r"],
        &["rm", "r"],
        &["erase", "r"],
        &["receipts"],
        &["compact"],
        &["get", "space", "key"],
        &["put", "space", "key"],
        &["docs", "space"],
        &["del", "space", "key"],
    ] {
        let ran = world.run(args);
        assert_eq!(ran.code, Some(4), "{args:?}: {ran:?}");
        let owner = format!("process {}", std::process::id());
        assert!(ran.stderr.contains(&owner), "{}", ran.stderr);
    }
    log.close().expect("closed");
    world.good(&["ls", "--json"]);
}

#[test]
fn the_store_is_the_option_else_the_variable_else_the_default() {
    let world = World::new();
    world.write("a/one.jsonl", "{}\n");
    world.good(&["import", "a", "--store", "option.runlog"]);
    let mut command = world.command(&["import", "a"]);
    assert_eq!(Ran::of(command.env("RUNLOG_STORE", "variable.runlog")).code, Some(0));
    let mut command = world.command(&["ls", "--json", "--store", "option.runlog"]);
    let ran = Ran::of(command.env("RUNLOG_STORE", "none.runlog"));
    assert_eq!(ran.json().len(), 1);
    for name in ["option.runlog", "variable.runlog"] {
        assert!(fs::exists(world.path(name)).expect("a look"), "{name}");
    }
    assert!(!fs::exists(world.store()).expect("a look"));
}

#[test]
fn stat_tells_what_is_there() {
    let world = World::new();
    world.write("a/one.jsonl", "{}\n");
    world.good(&["import", "a"]);
    let text = world.good(&["stat"]);
    assert!(text.text().contains("runs.runlog"), "{}", text.text());
    let objects = world.good(&["stat", "--json"]).json();
    assert_eq!(objects.len(), 1);
    let len = fs::metadata(world.store()).expect("the store").len();
    assert_eq!(objects[0]["file_bytes"], len);
}
