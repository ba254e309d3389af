//! The options that several commands share choose the same in each.

use runlog::{Metadata, NewRecord, Options, Outcome, Timestamp};
use serde_json::{Value, json};

use crate::world::World;

const COMMANDS: [&[&str]; 4] = [
    &["ls", "--json", "--all"],
    &["search", "case", "-l", "--json"],
    &["export", "-"],
    &["usage", "--by", "run", "--json", "--all"],
];

/// Four runs, each with one record with the time of its start.
fn world() -> World {
    let world = World::new();
    let log = Options::new().open(world.store()).expect("a store");
    let runs =
        [("a", "one", "completed"), ("a", "two", "failed"), ("b", "three", ""), ("b", "x", "")];
    for (number, (agent, run, end)) in (1..).zip(runs) {
        let at = Timestamp(number * 3_600_000_000_000);
        let writer = log.start_run(agent, run, Metadata::new(b"{}").at(at)).expect("a run");
        let message = json!({"type": "message", "message": {"role": "assistant", "id": run,
            "model": "m", "content": "case", "usage": {"input_tokens": 1, "output_tokens": 2}}});
        let text = message.to_string();
        writer.append_record(&NewRecord::json(text.as_bytes()).at(at)).expect("a record");
        match end {
            "completed" => writer.end(&Outcome::completed().at(at)).map(drop).expect("an end"),
            "failed" => writer.end(&Outcome::failed().at(at)).map(drop).expect("an end"),
            _ => {}
        }
    }
    let _ = log.hold("two", "kept").expect("held");
    let _ = log.hold("x", "kept").expect("held");
    log.close().expect("closed");
    world
}

/// The runs that a command names, sorted.
fn chosen(world: &World, command: &[&str], filters: &[&str]) -> Vec<String> {
    let ran = world.run(&[command, filters].concat());
    let mut runs: Vec<String> = ran
        .json()
        .iter()
        .filter_map(|row| {
            let row = row.get("runlog_run").unwrap_or(row);
            Some(row.get("run").and_then(Value::as_str)?.to_owned())
        })
        .collect();
    runs.sort_unstable();
    runs
}

#[test]
fn every_command_with_filters_chooses_the_same() {
    let world = world();
    for (filters, runs) in [
        (&[][..], &["one", "three", "two", "x"][..]),
        (&["--agent", "a"], &["one", "two"]),
        (&["--status", "failed", "--status", "completed"], &["one", "two"]),
        (&["--held"], &["two", "x"]),
        (&["--held", "--status", "in_progress"], &["x"]),
        (&["--since", "1970-01-01T02:00:00Z"], &["three", "two", "x"]),
        (&["--until", "1970-01-01T02:00:00Z"], &["one"]),
        (
            &["--since", "1970-01-01T02:00:00Z", "--until", "1970-01-01T04:00:00Z"],
            &["three", "two"],
        ),
        (&["--agent", "b", "--held", "--since", "1970-01-01T05:00:00Z"], &[]),
    ] {
        for command in COMMANDS {
            assert_eq!(chosen(&world, command, filters), runs, "{command:?} {filters:?}");
        }
    }
}

#[test]
fn a_run_that_is_named_is_chosen_by_the_same_options() {
    let world = world();
    for (run, filters, is_chosen) in [
        ("two", &["--held"][..], true),
        ("one", &["--held"], false),
        ("two", &["--status", "failed"], true),
        ("two", &["--status", "completed"], false),
        ("two", &["--until", "1970-01-01T02:00:00Z"], false),
        ("two", &["--agent", "a"], true),
    ] {
        let runs = if is_chosen { vec![run] } else { Vec::new() };
        assert_eq!(chosen(&world, &["export", "-", run], filters), runs, "{run} {filters:?}");
        let search = ["search", "case", "-l", "--json", "--run", run];
        assert_eq!(chosen(&world, &search, filters), runs, "{run} {filters:?}");
    }
}
