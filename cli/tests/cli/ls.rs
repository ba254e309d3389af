//! Listing runs and agents.

use runlog::{Metadata, RunSummary, Timestamp};
use serde_json::{Value, from_value, json};

use crate::world::{Terminal, World, keys};

/// Five runs of two agents, an hour apart.
fn world() -> World {
    let world = World::new();
    for (hour, (agent, run)) in
        [("b", "r0"), ("a", "r1"), ("a", "r2"), ("b", "r3"), ("a", "r4")].into_iter().enumerate()
    {
        let line = format!("{{\"timestamp\":\"2026-01-01T0{hour}:00:00Z\"}}\n");
        world.write(&format!("runs/{agent}/{run}.jsonl"), line);
    }
    world.good(&["import", "--create", "--end", "completed", "."]);
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
    let ran = world.run(&["ls", "--agent", "nobody"]);
    assert_eq!((ran.code, ran.text()), (Some(1), ""));
    assert_eq!(ran.stderr, "runlog: no agent nobody has runs\n");
}

#[test]
fn the_fields_of_a_run_are_these() {
    let world = world();
    let rows = world.good(&["ls", "--json", "--limit", "5"]).json();
    for row in &rows {
        let all = [
            "agent",
            "bytes",
            "created_at",
            "ended_at",
            "held",
            "last_at",
            "late_records",
            "number",
            "records",
            "run",
            "started",
            "started_at",
            "status",
            "stored_bytes",
        ];
        assert_eq!(keys(row), all);
        let run: RunSummary = from_value(row.clone()).expect("the library reads it");
        assert_eq!(run, world.open().run(&run).expect("the run"));
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
        if let Some(message) = ran.message() {
            let cursor = message["after"].as_str().expect("a cursor");
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
    world.good(&["import", "--create", "."]);
    let rows = world.good(&["ls", "--json", "--status", "in_progress"]).json();
    assert_eq!(runs(&rows), ["open"]);
    let rows = world.good(&["ls", "--json", "--status", "completed", "--agent", "b"]).json();
    assert_eq!(runs(&rows), ["r3", "r0"]);
    let ran = world.run(&["ls", "--json", "--status", "completed", "--limit", "1"]);
    assert_eq!(runs(&ran.json()), ["r4"]);
}

#[test]
fn runs_are_picked_by_time_and_by_hold_in_both_orders() {
    let world = world();
    let listed = |args: &[&str]| {
        let args = [&["ls", "--json"], args].concat();
        runs(&world.good(&args).json()).join(" ")
    };
    let (one, three) = ("2026-01-01T01:00:00Z", "2026-01-01T04:00:00+01:00");
    assert_eq!(listed(&["--since", one]), "r4 r3 r2 r1");
    assert_eq!(listed(&["--until", one]), "r0");
    assert_eq!(listed(&["--since", one, "--until", three, "--oldest"]), "r1 r2");
    assert_eq!(listed(&["--since", one, "--agent", "b"]), "r3");
    assert_eq!(listed(&["--held"]), "");
    world.good(&["hold", "r3", "--reason", "a look"]);
    world.good(&["hold", "r1", "--reason", "a look"]);
    assert_eq!(listed(&["--held"]), "r3 r1");
    let first = world.run(&["ls", "--json", "--held", "--oldest", "--limit", "1"]);
    assert_eq!(runs(&first.json()).join(" "), "r1");
    assert_eq!(
        listed(&["--status", "failed", "--status", "completed", "--oldest"]),
        "r0 r1 r2 r3 r4"
    );
    let ran = world.run(&["ls", "--since", "tomorrow"]);
    assert_eq!((ran.code, ran.text()), (Some(2), ""));
}

#[test]
fn twenty_runs_are_listed_where_nothing_else_is_said() {
    let world = World::new();
    for n in 0..25 {
        world.write(&format!("a/{n}.jsonl"), "{}\n");
    }
    world.good(&["import", "--create", "a"]);
    let ran = world.run(&["ls"]);
    assert_eq!(ran.text().lines().count(), 21);
    assert!(ran.stderr.contains("more runs"), "{}", ran.stderr);
    assert_eq!(world.good(&["ls", "--all"]).text().lines().count(), 26);
    assert_eq!(world.good(&["ls", "--limit", "25"]).text().lines().count(), 26);
}

#[test]
fn runs_are_listed_in_both_directions() {
    let world = World::new();
    for (run, len) in [("small", 2), ("large", 900), ("middle", 30), ("other", 30)] {
        world.write(&format!("runs/a/{run}.jsonl"), format!("\"{}\"\n", "x".repeat(len)));
    }
    world.good(&["import", "--create", "."]);
    let listed = |args: &[&str]| {
        let args = [&["ls", "--json"], args].concat();
        runs(&world.good(&args).json()).join(" ")
    };
    let by_age = listed(&[]);
    let oldest = listed(&["--oldest"]);
    assert_eq!(listed(&["--reverse"]), oldest);
    assert_eq!(oldest.split(' ').rev().collect::<Vec<_>>().join(" "), by_age);
}

#[test]
fn a_title_is_the_first_message_of_the_user() {
    let world = World::new();
    let said = |id: &str, content: Value| {
        let line = json!({"type": "user", "uuid": id, "sessionId": "s",
            "message": {"role": "user", "content": content}});
        format!("{line}\n")
    };
    let claude = [
        said("1", json!("<command-name>/clear</command-name>")),
        said("2", json!([{"type": "text", "text": "Fix the\n\u{1b}[31m build"}])),
        said("3", json!("Then the tests")),
    ]
    .concat();
    world.write("runs/a/claude.jsonl", claude);
    let chat =
        json!([{"role": "system", "content": "s"}, {"role": "user", "content": "Say hello"}]);
    world.write("runs/a/chat.json", chat.to_string());
    world.write("runs/a/none.jsonl", "{\"a\":1}\n");
    world.good(&["import", "--create", "."]);
    let rows = world.good(&["ls", "--json", "--titles"]).json();
    let title = |run: &str| {
        let row = rows.iter().find(|row| row["run"] == run).expect("the run");
        row["title"].clone()
    };
    assert_eq!(title("claude"), "Fix the \u{1b}[31m build");
    assert_eq!(title("chat"), "Say hello");
    assert_eq!(title("none"), Value::Null);
    let text = world.good(&["ls"]);
    assert!(text.text().contains("  Fix the \\u{1b}[31m build\n"), "{}", text.text());
    assert_eq!(world.run(&["ls", "--titles"]).code, Some(2), "titles are there in any case");
    let short = world.good(&["ls", "--no-titles"]);
    assert!(!short.text().contains("TITLE") && !short.text().contains("build"), "{}", short.text());
    let without = |line: &str| line.split("  Fix").next().unwrap().trim_end().to_owned();
    let line = text.text().lines().find(|line| line.contains("claude")).map(without).unwrap();
    assert!(short.text().contains(&format!("{line}\n")), "{}", short.text());
}

#[test]
fn runs_are_picked_by_a_pattern_for_names_and_titles() {
    let world = World::new();
    for (run, said) in [("r1", "Fix the build"), ("r2", "Write docs"), ("build-3", "Hello")] {
        let line = format!("{{\"role\":\"user\",\"content\":\"{said}\"}}\n");
        world.write(&format!("runs/a/{run}.jsonl"), line);
    }
    world.good(&["import", "--create", "."]);
    let listed = |args: &[&str]| {
        let mut found: Vec<String> = world
            .run(&[&["ls", "--json", "--grep"], args].concat())
            .json()
            .iter()
            .map(|row| row["run"].as_str().expect("a string").to_owned())
            .collect();
        found.sort_unstable();
        found.join(" ")
    };
    assert_eq!(listed(&["BUILD"]), "build-3 r1");
    assert_eq!(listed(&["^a/r"]), "r1 r2");
    assert_eq!(listed(&["^(hello|write docs)$"]), "build-3 r2");
    assert_eq!(listed(&["nothing"]), "");
    // Pages of what matches.
    let mut seen = 0;
    let mut after: Option<String> = None;
    while seen < 9 {
        let mut args = vec!["ls", "--json", "--grep", "build", "--limit", "1"];
        args.extend(after.iter().flat_map(|after| ["--after", after]));
        let ran = world.run(&args);
        seen += ran.json().len();
        let Some(message) = ran.message() else { break };
        after = message["after"].as_str().map(str::to_owned);
    }
    assert_eq!(seen, 2);
    assert_eq!(world.run(&["ls", "--grep", "("]).code, Some(2));
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

#[test]
fn a_terminal_shows_ids_that_can_be_typed_and_what_differs() {
    let world = World::new();
    let ids = ["0198a1b2-7c3d-7000-8000-000000000001", "5c2e8f1a-1b7b-4000-8000-000000000001"];
    for id in ids {
        world.write(
            &format!("-home-u-app/{id}.jsonl"),
            "{\"role\":\"user\",\"content\":\"Fix it\"}\n",
        );
    }
    world.good(&["import", "--create", "-home-u-app"]);
    for columns in [80, 200] {
        let (code, shown) = Terminal::of(columns).run(&world, &["ls"]);
        assert_eq!(code, Some(0), "{shown}");
        let (same, table) = shown.split_once('\n').expect("lines");
        assert_eq!(same, "AGENT -home-u-app, STATUS in_progress", "{shown}");
        assert!(table.starts_with("RUN       STARTED"), "{shown}");
        for id in ids {
            let short = &id[..8];
            assert!(shown.contains(&format!("\n{short}  ")), "{short}: {shown}");
            world.good(&["show", short]);
        }
        assert!(table.lines().skip(1).all(|line| line.ends_with("Fix it")), "{shown}");
    }
    // A pipe gets whole ids, and all columns.
    let ran = world.good(&["list"]);
    assert!(ids.iter().all(|id| ran.text().contains(id)), "{ran:?}");
    assert!(ran.text().contains("in_progress") && ran.text().contains("-home-u-app"), "{ran:?}");
}

#[test]
fn runs_are_picked_by_days_and_by_how_long_ago_they_began() {
    let world = World::new();
    let log = world.open();
    let now = Timestamp::from(std::time::SystemTime::now());
    for (run, days) in [("now", 0), ("week", 5), ("old", 30)] {
        let at = Timestamp(now.0 - days * 86_400_000_000_000);
        let _ = log.start_run("a", run, Metadata::new(b"").at(at)).expect("a run");
    }
    log.close().expect("closed");
    for (since, expected) in [
        ("yesterday", "now"),
        ("1d", "now"),
        ("7d", "now week"),
        ("4w", "now week"),
        ("2020-01-31", "now week old"),
        ("2020-01-31T12:00:00Z", "now week old"),
    ] {
        let rows = world.good(&["ls", "--json", "--since", since]).json();
        assert_eq!(runs(&rows).join(" "), expected, "{since}");
    }
    let ran = world.run(&["ls", "--since", "soon"]);
    assert!(ran.code == Some(2) && ran.stderr.contains("expected a time such as"), "{ran:?}");
}

#[test]
fn n_is_the_most_rows_in_every_list() {
    let world = world();
    for args in [
        &["ls", "-n", "1", "--json"][..],
        &["ls", "-n1", "--json"],
        &["ls", "--limit", "1", "--json"],
        &["tail", "-n", "1", "--json"],
        &["search", "", "-n", "1", "--json"],
        &["show", "r1", "-n", "1", "--json"],
    ] {
        let ran = world.run(args);
        assert!(ran.code == Some(0) && ran.json().len() <= 1, "{args:?}: {ran:?}");
    }
}
