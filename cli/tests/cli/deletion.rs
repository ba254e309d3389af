//! Single runs that go: deleted, erased, and what receipts tell of them.

use std::fs;

use crate::world::{World, keys};

const SECRET: &str = "what nobody may read any more";

/// Two agents that both have a run `r`, and a secret in a run of its own.
fn world() -> World {
    let world = World::new();
    world.write("runs/a/r.jsonl", "\"kept by a\"\n");
    world.write("runs/b/r.jsonl", "\"kept by b\"\n");
    world.write("runs/b/secret.jsonl", format!("\"{SECRET}\"\n").repeat(50));
    world.good(&["import", "."]);
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
    world.good(&["import", ".", "--keep-open"]);
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
    assert_eq!(ran.stderr, "more receipts: --limit N\n");
}

#[test]
fn compact_can_compress_what_has_ended_and_show_reads_it() {
    let world = world();
    let line = |number: usize| format!("{{\"step\":{number},\"text\":\"again and again\"}}\n");
    let lines: String = (0..120_000).map(line).collect();
    for file in ["runs/c/long.jsonl", "runs/d/longer.jsonl"] {
        world.write(file, &lines);
    }
    world.good(&["import", "."]);
    let size = || fs::metadata(world.store()).expect("the store").len();
    world.good(&["compact"]);
    let before = size();
    assert!(before > 2 * lines.len() as u64);
    for args in [&["compact", "--zstd"][..], &["compact", "--zstd", "19"]] {
        world.good(args);
        let after = size();
        assert!(after < before * 3 / 4, "{after} of {before}");
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
