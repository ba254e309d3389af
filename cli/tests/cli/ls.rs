//! Listing runs and agents.

use serde_json::Value;

use crate::world::{World, keys};

/// Five runs of two agents, an hour apart.
fn world() -> World {
    let world = World::new();
    for (hour, (agent, run)) in
        [("b", "r0"), ("a", "r1"), ("a", "r2"), ("b", "r3"), ("a", "r4")].into_iter().enumerate()
    {
        let line = format!("{{\"timestamp\":\"2026-01-01T0{hour}:00:00Z\"}}\n");
        world.write(&format!("runs/{agent}/{run}.jsonl"), line);
    }
    world.good(&["import", "."]);
    world
}

fn runs(rows: &[Value]) -> Vec<&str> {
    rows.iter().map(|row| row["run"].as_str().expect("a string")).collect()
}

#[test]
fn runs_are_listed_newest_first() {
    let world = world();
    let rows = world.good(&["ls", "--json"]).json();
    assert_eq!(runs(&rows), ["r4", "r3", "r2", "r1", "r0"]);
    let rows = world.good(&["ls", "--json", "--agent", "a"]).json();
    assert_eq!(runs(&rows), ["r4", "r2", "r1"]);
    assert_eq!(world.good(&["ls", "--json", "--agent", "nobody"]).text(), "");
}

#[test]
fn the_fields_of_a_run_are_these() {
    let world = world();
    let rows = world.good(&["ls", "--json", "--limit", "5"]).json();
    for row in &rows {
        let all = ["agent", "bytes", "ended_at", "held", "records", "run", "started_at", "status"];
        assert_eq!(keys(row), all);
    }
    assert_eq!(rows[4]["started_at"], "2026-01-01T00:00:00.000000000Z");
    assert_eq!((rows[4]["records"].as_u64(), rows[4]["bytes"].as_u64()), (Some(1), Some(36)));
}

#[test]
fn pages_follow_each_other_without_gap_or_repetition() {
    let world = world();
    let mut seen = Vec::new();
    let mut args = vec!["ls".to_owned(), "--json".into(), "--limit".into(), "2".into()];
    for _ in 0..3 {
        let ran = world.run(&args);
        assert_eq!(ran.code, Some(0));
        seen.extend(ran.json());
        args.truncate(4);
        if let Some((_, after)) = ran.stderr.split_once("--after ") {
            let cursor = after.split(',').next().expect("a cursor");
            args.extend(["--after".to_owned(), cursor.to_owned()]);
        }
    }
    assert_eq!(runs(&seen), ["r4", "r3", "r2", "r1", "r0"]);
    assert_eq!(args.len(), 4, "the last page names no next one");
}

#[test]
fn a_bad_cursor_is_an_error() {
    let ran = world().run(&["ls", "--after", "nonsense"]);
    assert_eq!((ran.code, ran.text()), (Some(1), ""));
}

#[test]
fn runs_are_picked_by_status() {
    let world = world();
    world.write("runs/c/open.jsonl", "{}\n");
    world.good(&["import", ".", "--keep-open"]);
    let rows = world.good(&["ls", "--json", "--status", "in_progress"]).json();
    assert_eq!(runs(&rows), ["open"]);
    let rows = world.good(&["ls", "--json", "--status", "completed", "--agent", "b"]).json();
    assert_eq!(runs(&rows), ["r3", "r0"]);
    let ran = world.run(&["ls", "--json", "--status", "completed", "--limit", "1"]);
    assert_eq!(runs(&ran.json()), ["r4"]);
}

#[test]
fn twenty_runs_are_listed_where_nothing_else_is_said() {
    let world = World::new();
    for n in 0..25 {
        world.write(&format!("a/{n}.jsonl"), "{}\n");
    }
    world.good(&["import", "a"]);
    let ran = world.run(&["ls"]);
    assert_eq!(ran.text().lines().count(), 21);
    assert!(ran.stderr.contains("more runs"), "{}", ran.stderr);
    assert_eq!(world.good(&["ls", "--all"]).text().lines().count(), 26);
    assert_eq!(world.good(&["ls", "--limit", "25"]).text().lines().count(), 26);
}

#[test]
fn agents_are_listed() {
    let world = world();
    assert_eq!(world.good(&["ls", "--agents"]).text(), "a\nb\n");
    assert_eq!(
        world.good(&["ls", "--agents", "--json"]).text(),
        "{\"agent\":\"a\"}\n{\"agent\":\"b\"}\n"
    );
    let ran = world.run(&["ls", "--agents", "--limit", "1"]);
    assert_eq!((ran.text(), ran.stderr.as_str()), ("a\n", "more agents: --all\n"));
}

#[test]
fn ids_cannot_play_with_the_terminal() {
    let world = World::new();
    let log = world.open();
    log.start_run("a\x1b[31m", "../r\n\u{202e}", ()).expect("a run");
    log.close().expect("closed");
    let ran = world.good(&["ls"]);
    assert!(ran.text().contains("../r\\n\\u{202e}  a\\u{1b}[31m"), "{}", ran.text());
    assert_eq!(ran.text().lines().count(), 2);
    let shown = world.good(&["show", "../r\n\u{202e}"]);
    assert!(!shown.text().contains('\x1b'));
    assert_eq!(world.good(&["ls", "--json"]).json()[0]["run"], "../r\n\u{202e}");
}
