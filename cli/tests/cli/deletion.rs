//! Single runs that go: deleted, erased, and what receipts tell of them.

use std::fs;

use crate::world::{Terminal, World, keys};

const SECRET: &str = "what nobody may read any more";

/// Two agents that both have a run `r`, and a secret in a run of its own.
fn world() -> World {
    let world = World::new();
    world.write("runs/a/r.jsonl", "\"kept by a\"\n");
    world.write("runs/b/r.jsonl", "\"kept by b\"\n");
    world.write("runs/b/secret.jsonl", format!("\"{SECRET}\"\n").repeat(50));
    world.good(&["import", "--create", "--end", "completed", "."]);
    world
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn rm_deletes_one_run() {
    let world = world();
    let ran = world.good(&["rm", "secret"]);
    assert!(ran.text().starts_with("deleted run secret of agent b, 1.5 KiB"), "{}", ran.text());
    let ran = world.run(&["show", "secret"]);
    assert_eq!((ran.code, ran.text()), (Some(1), ""));
    assert_eq!(world.good(&["ls"]).text().lines().count(), 3);
    let rows = world.good(&["rm", "r", "--agent", "b", "--json"]).json();
    assert_eq!(keys(&rows[0]), ["action", "agent", "bytes", "run"]);
    assert_eq!((&rows[0]["action"], &rows[0]["agent"]), (&"delete".into(), &"b".into()));
    assert_eq!(world.good(&["show", "r", "--raw"]).text(), "\"kept by a\"\n");
    world.good(&["verify"]);
}

#[test]
fn several_runs_are_deleted_or_none() {
    let world = world();
    let ran = world.run(&["rm", "secret", "a/r", "none"]);
    assert_eq!((ran.code, ran.text()), (Some(1), ""));
    assert_eq!(world.good(&["ls"]).text().lines().count(), 4, "none is deleted");
    let ran = world.good(&["rm", "secret", "a/r", "b/secret"]);
    assert_eq!(ran.text().lines().count(), 2, "each once: {}", ran.text());
    let rows = world.good(&["erase", "b/r", "--json"]).json();
    assert_eq!(rows.len(), 1);
    assert_eq!(world.run(&["ls"]).stderr, "no runs\n");
}

#[test]
fn a_terminal_asks_before_runs_are_deleted() {
    let world = world();
    let asks = |typed, args: &[&str]| Terminal { typed, ..Terminal::of(80) }.run(&world, args);
    let runs = || world.good(&["ls", "--json"]).json().len();
    for no in ["n\n", "\n", "yess\n"] {
        let (code, shown) = asks(no, &["rm", "secret", "a/r"]);
        assert_eq!((code, runs()), (Some(1), 3), "{shown}");
        assert!(shown.contains("delete 2 runs, 1.5 KiB: b/secret, a/r? [y/N]"), "{shown}");
        assert!(shown.contains("nothing is deleted"), "{shown}");
    }
    let (code, shown) = asks("y\n", &["erase", "secret"]);
    assert_eq!((code, runs()), (Some(0), 2), "{shown}");
    assert!(shown.contains("erase 1 run") && shown.contains("erased run secret"), "{shown}");
    let (code, shown) = asks("", &["rm", "--yes", "b/r"]);
    assert_eq!((code, runs()), (Some(0), 1), "{shown}");
    assert!(!shown.contains("[y/N]"), "{shown}");
    // The beginning of an id, for a person.
    let (code, shown) = asks("yes\n", &["rm", "a/"]);
    assert!(code == Some(0) && shown.contains("deleted run r of agent a"), "{shown}");
}

#[test]
fn erase_leaves_no_byte_of_the_payloads() {
    let world = world();
    assert!(holds(&fs::read(world.store()).expect("the store"), SECRET));
    let rows = world.good(&["erase", "secret", "--json"]).json();
    assert_eq!(keys(&rows[0]), ["action", "agent", "bytes", "pinned_extents", "run"]);
    assert_eq!((&rows[0]["action"], &rows[0]["pinned_extents"]), (&"erase".into(), &0.into()));
    assert!(!holds(&fs::read(world.store()).expect("the store"), SECRET));
    assert_eq!(world.good(&["show", "r", "--agent", "a", "--raw"]).text(), "\"kept by a\"\n");
    let text = world.good(&["erase", "r", "--agent", "b"]);
    assert!(text.text().starts_with("erased run r of agent b, 11 B"), "{}", text.text());
    let bytes = fs::read(world.store()).expect("the store");
    assert!(!holds(&bytes, "kept by b"));
    assert!(holds(&bytes, "kept by a"));
    world.good(&["verify"]);
}

#[test]
fn erase_leaves_nothing_of_a_run_that_was_moved_before() {
    let world = world();
    world.good(&["erase", "r", "--agent", "b"]);
    assert!(holds(&fs::read(world.store()).expect("the store"), SECRET));
    world.good(&["compact"]);
    world.good(&["erase", "secret"]);
    assert!(!holds(&fs::read(world.store()).expect("the store"), SECRET));
}

#[test]
fn a_run_that_is_not_there_or_there_twice_or_in_progress_is_an_error() {
    let world = world();
    world.write("runs/c/open.jsonl", "{}\n");
    world.good(&["import", "--create", "."]);
    for command in ["rm", "erase", "release", "hold"] {
        for (run, said) in [("nobody", "nobody"), ("r", "agent"), ("", "run id")] {
            let mut args = vec![command, run];
            if command == "hold" {
                args.extend(["--reason", "audit"]);
            }
            let ran = world.run(&args);
            assert_eq!((ran.code, ran.text()), (Some(1), ""), "{args:?}: {ran:?}");
            assert!(ran.stderr.contains(said), "{args:?}: {}", ran.stderr);
        }
    }
    for command in ["rm", "erase"] {
        let ran = world.run(&[command, "open"]);
        assert_eq!((ran.code, ran.text()), (Some(1), ""));
        assert!(ran.stderr.contains("in progress"), "{}", ran.stderr);
    }
    assert_eq!(world.good(&["ls", "--json"]).json().len(), 4);
}

#[test]
fn receipts_tell_what_went_by_which_rule() {
    let world = world();
    let none = world.run(&["receipts"]);
    assert_eq!((none.code, none.text(), &*none.stderr), (Some(0), "", "no receipts\n"));
    world.good(&["rm", "r", "--agent", "b"]);
    world.good(&["erase", "secret"]);
    world.good(&["gc", "--max-bytes", "1", "--json"]);
    let rows = world.good(&["receipts", "--json"]).json();
    let told: Vec<_> = rows.iter().map(|row| (&row["run"], &row["agent"], &row["rule"])).collect();
    let (a, b, r) = (&"a".into(), &"b".into(), &"r".into());
    let wanted = [
        (r, a, &"bytes".into()),
        (&"secret".into(), b, &"erased".into()),
        (r, b, &"deleted".into()),
    ];
    assert_eq!(told, wanted);
    assert_eq!(keys(&rows[0]), ["agent", "bytes", "deleted_at", "rule", "run"]);
    let text = world.good(&["receipts"]);
    assert_eq!(text.text().lines().count(), 4);
    let ran = world.run(&["receipts", "--limit", "2"]);
    assert_eq!((ran.code, ran.text().lines().count()), (Some(0), 3));
    assert_eq!(ran.stderr, "more receipts: -n N, or --all\n");
}

#[test]
fn compact_can_compress_what_has_ended_and_show_reads_it() {
    let world = world();
    let line = |number: usize| format!("{{\"step\":{number},\"text\":\"again and again\"}}\n");
    let lines: String = (0..120_000).map(line).collect();
    for file in ["runs/c/long.jsonl", "runs/d/longer.jsonl"] {
        world.write(file, &lines);
    }
    world.good(&["import", "--create", "--end", "completed", "."]);
    let size = || fs::metadata(world.store()).expect("the store").len();
    world.good(&["compact"]);
    let before = size();
    assert!(before > 2 * lines.len() as u64);
    for args in [&["compact", "--zstd"][..], &["compact", "--zstd", "19"]] {
        world.good(args);
        let after = size();
        assert!(after < before * 4 / 5, "{after} of {before}");
        assert_eq!(world.good(&["show", "long", "--raw"]).text(), lines);
        world.good(&["verify"]);
    }
    assert_eq!(world.run(&["compact", "--zstd", "20"]).code, Some(2));
}

#[test]
fn compact_keeps_what_lives() {
    let world = world();
    world.good(&["rm", "secret"]);
    let rows = world.good(&["compact", "--json"]).json();
    let all = ["file_bytes", "file_bytes_before", "outputs", "segments", "written_bytes"];
    assert_eq!((rows.len(), keys(&rows[0])), (1, all.to_vec()));
    assert!(world.good(&["compact"]).text().starts_with("compacted "));
    assert_eq!(world.good(&["show", "r", "--agent", "a", "--raw"]).text(), "\"kept by a\"\n");
    world.good(&["verify"]);
}

#[test]
fn a_run_that_its_program_left_behind_is_ended_by_hand() {
    let world = world();
    world.write("runs/c/open.jsonl", "{}\n");
    world.good(&["import", "."]);
    let rows = world.good(&["end", "open", "--status", "failed", "--json"]).json();
    assert_eq!(keys(&rows[0]), ["action", "agent", "run", "status"]);
    assert_eq!((&rows[0]["action"], &rows[0]["status"]), (&"end".into(), &"failed".into()));
    let runs = world.good(&["ls", "--status", "failed", "--json"]).json();
    assert_eq!((runs.len(), &runs[0]["run"]), (1, &"open".into()));
    let ran = world.run(&["end", "open", "--status", "completed"]);
    assert_eq!((ran.code, ran.text()), (Some(1), ""));
    assert!(ran.stderr.contains("ended"), "{}", ran.stderr);
}

#[test]
fn a_run_is_found_by_what_import_and_ls_print_of_it() {
    let world = world();
    let log = world.open();
    for (agent, run) in [("x/y", "z"), ("x", "y/z"), ("p/q", "r/s")] {
        let writer = log.start_run(agent, run, ()).expect("a run");
        let _ = writer.append(b"0").expect("an append");
    }
    log.close().expect("closed");
    assert_eq!(world.good(&["show", "a/r", "--raw"]).text(), "\"kept by a\"\n");
    assert_eq!(world.good(&["show", "p/q/r/s", "--raw"]).text(), "0\n");
    let ran = world.run(&["show", "x/y/z"]);
    assert_eq!((ran.code, ran.text()), (Some(1), ""));
    assert!(ran.stderr.contains("names several runs"), "{}", ran.stderr);
    world.good(&["show", "y/z"]);
    let ran = world.run(&["show", "a/none"]);
    assert!(ran.stderr.contains("a/none"), "{}", ran.stderr);
    world.good(&["hold", "b/r", "--reason", "audit"]);
    world.good(&["release", "b/r"]);
    world.good(&["end", "p/q/r/s", "--status", "cancelled"]);
    world.good(&["rm", "p/q/r/s"]);
    world.good(&["erase", "b/r"]);
}
