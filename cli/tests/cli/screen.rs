//! What a real terminal shows: a pseudo terminal of 80 or of 200 columns.

use runlog::{Metadata, NewRecord, Outcome, Timestamp};
use unicode_width::UnicodeWidthStr;

use crate::world::{Terminal, World};

/// 2026-01-31T20:30:05Z, which is the next day in Tokyo.
const AT: Timestamp = Timestamp(1_769_891_405_000_000_000);

/// Runs with ids and titles in several scripts, and one with an id of 146 columns.
fn world() -> World {
    let world = World::new();
    let log = world.open();
    let lengthy = format!("{}-end", "0123456789".repeat(15).split_at(142).0);
    for (agent, run, said) in [
        ("planner", "run-1", "Fix the build, and say in a sentence or two why it was broken"),
        (
            "\u{8a08}\u{753b}",
            "\u{5b9f}\u{884c}-2",
            "\u{30d3}\u{30eb}\u{30c9}\u{3092}\u{76f4}\u{3059}",
        ),
        (
            "planner",
            &lengthy,
            "\u{41f}\u{43e}\u{447}\u{438}\u{43d}\u{438} \u{441}\u{431}\u{43e}\u{440}\u{43a}\u{443}",
        ),
        (
            "\u{92f}\u{94b}\u{91c}\u{928}\u{93e}",
            "\u{5e8}\u{5d9}\u{5e6}\u{5d4}",
            "\u{645}\u{631}\u{62d}\u{628}\u{627}",
        ),
    ] {
        let writer = log.start_run(agent, run, Metadata::new(b"").at(AT)).expect("a run");
        let record = NewRecord::new(said.as_bytes())
            .kind("user")
            .content_type(runlog::ContentType::TEXT)
            .at(AT);
        let _ = writer.append_record(&record).expect("an append");
        let _ = writer.end(&Outcome::failed()).expect("an end");
    }
    log.close().expect("closed");
    world
}

#[test]
fn a_list_fits_the_terminal_and_its_columns_are_in_line() {
    let world = world();
    for columns in [80, 200] {
        let (code, shown) = Terminal::of(columns).run(&world, &["ls"]);
        assert_eq!(code, Some(0), "{shown}");
        assert_eq!(shown.lines().count(), 6, "{shown}");
        let (same, table) = shown.split_once('\n').expect("lines");
        assert!(same.starts_with("STATUS failed"), "what each line says: {shown}");
        let started = table.lines().next().expect("a heading").find("STARTED").expect("a column");
        for line in shown.lines() {
            assert!(line.width() <= usize::from(columns), "{columns}: {line}\n{shown}");
            assert!(!line.contains('\x1b'), "{line}");
        }
        for line in table.lines().skip(1) {
            let (before, _) = line.split_once("2026-02-01 05:30").expect("the local time");
            assert_eq!(before.width(), started, "{shown}");
        }
        assert!(shown.contains("\n01234567  "), "a beginning that no other run has: {shown}");
        let long = shown.contains("why it was broken");
        assert_eq!(long, columns == 200, "{shown}");
    }
}

#[test]
fn other_tables_fit_the_terminal_too() {
    let world = world();
    let log = world.open();
    drop(log.start_run("planner", &"r".repeat(120), ()).expect("a run"));
    log.close().expect("closed");
    for columns in [80, 200] {
        for args in [
            &["du"][..],
            &["du", "--by", "run"],
            &["gc", "--keep", "1", "--dry-run"],
            &["adopt", "--dry-run"],
        ] {
            let (_, shown) = Terminal::of(columns).run(&world, args);
            for line in shown.lines() {
                assert!(line.width() <= usize::from(columns), "{args:?}, {columns}: {line}");
            }
        }
    }
}

#[test]
fn a_run_fits_the_terminal_and_long_lines_go_on_where_they_began() {
    let world = World::new();
    let log = world.open();
    let writer = log.start_run("planner", "run-1", Metadata::new(b"").at(AT)).expect("a run");
    for said in ["word ".repeat(60), "\u{30d3}\u{30eb}\u{30c9}".repeat(60), "\u{7}".repeat(60)] {
        let json = serde_json::json!({"role": "user", "content": [{"text": said}]}).to_string();
        let _ = writer.append_record(&NewRecord::json(json.as_bytes()).at(AT)).expect("appended");
        let _ = writer.append(said.as_bytes()).expect("appended");
    }
    drop(writer);
    log.close().expect("closed");
    for columns in [80, 200] {
        let show = |form: &str| Terminal::of(columns).run(&world, &["show", "run-1", form]);
        let (code, shown) = show("--chat");
        assert_eq!(code, Some(0), "{shown}");
        for line in shown.lines() {
            assert!(line.width() <= usize::from(columns), "{columns}: {line}\n{shown}");
        }
        let (code, shown) = show("--records");
        assert_eq!(code, Some(0), "{shown}");
        let mut widest = 0;
        for line in shown.lines() {
            assert!(line.width() <= usize::from(columns), "{columns}: {line}\n{shown}");
            let is_heading = line.starts_with('#') || line.starts_with("run run-1");
            assert!(is_heading || line.is_empty() || line.starts_with("    "), "{line}\n{shown}");
            widest = widest.max(line.width());
        }
        assert!(widest + 12 > usize::from(columns), "the width is used: {widest}");
        let dense: String = shown.split_whitespace().collect();
        assert_eq!(dense.matches(&"word".repeat(60)).count(), 2, "{shown}");
    }
}

#[test]
fn a_pipe_gets_everything_whole_and_in_utc() {
    let world = world();
    let ran = world.good(&["ls"]);
    assert!(ran.text().contains("why it was broken"), "{}", ran.text());
    assert!(ran.text().contains("01234567890123456789"), "{}", ran.text());
    assert!(ran.text().contains("2026-01-31T20:30:05Z"), "{}", ran.text());
    assert!(!ran.text().contains('\u{2026}') && !ran.text().contains('\x1b'), "{}", ran.text());
    let long = ran.text().lines().map(UnicodeWidthStr::width).max();
    assert!(long > Some(200), "{}", ran.text());
}

#[test]
fn colours_are_on_terminals_that_want_them() {
    let world = world();
    let terminal = Terminal { has_colours: true, ..Terminal::of(80) };
    let (_, shown) = terminal.run(&world, &["ls"]);
    assert!(shown.contains("\x1b[1mrun-1\x1b[0m"), "{shown}");
    let (_, shown) = Terminal::of(80).run(&world, &["ls"]);
    assert!(!shown.contains('\x1b'), "{shown}");
    let (_, shown) = terminal.run(&world, &["ls", "--json"]);
    assert!(!shown.contains('\x1b') && shown.contains("20:30:05"), "{shown}");
}
