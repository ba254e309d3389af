//! Exit codes, and which store is meant.

use std::fs;

use serde_json::from_value;

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
        &["show", "r", "--pretty", "--lines"],
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
        &["end", "r"],
        &["end", "r", "--status", "in_progress"],
        &["adopt", "run"],
        &["inspect", "--segment", "x"],
        &["adopt", "--older-than", "1"],
        &["adopt", "--status", "in_progress"],
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
        ("show", "a long one is cut"),
        ("get", "shown in one line"),
        ("demo", "removed at the end"),
        ("doctor", "3 if anything is damaged, else 1"),
        ("inspect", "works on a file that does not open"),
        ("adopt", "no run in progress has a writer any more"),
    ] {
        let help = world.good(&[command, "--help"]);
        let words: Vec<&str> = help.text().split_whitespace().collect();
        assert!(words.join(" ").contains(text), "{}", help.text());
    }
    let help = world.good(&["gc", "--help"]);
    assert!(help.text().contains("A run in progress or held is never evicted"), "{}", help.text());
}

#[test]
fn shells_and_man_learn_the_command_line_from_it() {
    let world = World::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = world.good(&["completions", shell]);
        assert!(script.text().contains("no-pager"), "{shell}");
    }
    let bash = world.good(&["completions", "bash"]);
    let checked = std::process::Command::new("bash").args(["-n", "-c", bash.text()]).status();
    assert!(checked.expect("bash").success());
    let page = world.good(&["man"]);
    assert!(page.text().contains(".TH runlog 1") && page.text().contains("runlog\\-import"));
    assert!(!page.text().contains("demo\\-writer"), "{}", page.text());
    let page = world.good(&["man", "show"]);
    assert!(page.text().contains("no\\-pager") && page.text().contains(".TH runlog-show 1"));
    assert_eq!(world.run(&["man", "demo-writer"]).code, Some(1));
    assert_eq!(world.run(&["completions", "cmd"]).code, Some(2));
}

/// Whatever prints much or little: the reader may be gone before the first line.
#[test]
fn no_command_minds_a_closed_pipe() {
    let world = World::new();
    world.write("runs/a/r.jsonl", "{\"n\":1}\n".repeat(20_000));
    world.write("runs/a/s.jsonl", "{\"n\":1}\n");
    let import = ["import", "--create", "--end", "completed", "."];
    for args in [
        &import[..],
        &["ls"],
        &["ls", "--json"],
        &["show", "r"],
        &["show", "r", "--pretty"],
        &["show", "r", "--json"],
        &["show", "r", "--raw"],
        &["tail", "r"],
        &["tail", "-f", "s"],
        &["verify"],
        &["backup", "copy"],
        &["stat"],
        &["du"],
        &["gc", "--keep", "5"],
        &["hold", "r", "--reason", "x"],
        &["release", "r"],
        &["put", "space", "key", "runs/a/s.jsonl"],
        &["get", "space", "key"],
        &["docs", "space"],
        &["del", "space", "key"],
        &["rm", "r"],
        &["receipts"],
        &["compact"],
        &["completions", "bash"],
        &["man"],
        &["--help"],
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = world.command(args).stdout(writer).output().expect("it ends");
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*told), (Some(0), ""), "{args:?}");
    }
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
fn a_mistyped_store_is_made_by_nothing_but_create() {
    let world = World::new();
    world.write("a/r.jsonl", "{}\n");
    for args in [&["import", "a"][..], &["put", "space", "key"]] {
        let ran = world.run(args);
        assert_eq!((ran.code, ran.text()), (Some(1), ""), "{args:?}");
        assert!(ran.stderr.contains("there is no store at runs.runlog; --create"), "{ran:?}");
        assert!(!fs::exists(world.store()).expect("a look"));
        assert_eq!(world.run(&[args, &["--create"]].concat()).code, Some(0), "{args:?}");
        assert_eq!(world.run(args).code, Some(0), "{args:?}");
        fs::remove_file(world.store()).expect("removed");
    }
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
        &["import", "a"][..],
        &["gc", "--keep", "1"],
        &["hold", "r", "--reason", "audit"],
        &["release", "r"],
        &["rm", "r"],
        &["end", "r", "--status", "failed"],
        &["erase", "r"],
        &["compact"],
        &["put", "space", "key"],
        &["del", "space", "key"],
    ] {
        let ran = world.run(args);
        assert_eq!(ran.code, Some(4), "{args:?}: {ran:?}");
        let owner = format!("process {}", std::process::id());
        assert!(ran.stderr.contains(&owner), "{}", ran.stderr);
    }
    log.close().expect("closed");
    assert_eq!(world.run(&["import", "a"]).code, Some(0));
}

#[test]
fn the_store_is_the_option_else_the_variable_else_the_default() {
    let world = World::new();
    world.write("a/one.jsonl", "{}\n");
    world.good(&["import", "--create", "a", "--store", "option.runlog"]);
    let mut command = world.command(&["import", "--create", "a"]);
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
    world.good(&["import", "--create", "a"]);
    let text = world.good(&["stat"]);
    assert!(text.text().contains("runs.runlog"), "{}", text.text());
    let objects = world.good(&["stat", "--json"]).json();
    assert_eq!(objects.len(), 1);
    assert!(objects[0]["file"].as_str().expect("a path").ends_with("runs.runlog"));
    let stats: runlog::Stats = from_value(objects[0].clone()).expect("the library reads it");
    assert_eq!((stats.runs, stats.space_failure), (1, None));
    let len = fs::metadata(world.store()).expect("the store").len();
    assert_eq!(objects[0]["file_len"], len);
}
