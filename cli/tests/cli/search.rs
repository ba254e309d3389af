//! `search`: what it finds, where, and how it ends.

use std::fs;

use runlog::{Compression, Durability, NewRecord, Options, Outcome, RunLog, Timestamp};

use crate::world::{Terminal, World, keys};

/// Three runs of two agents, the oldest compressed, the last one in progress.
fn open(world: &World) -> RunLog {
    // Nothing is moved but by the call below.
    let options = Options::new().background(false).extent_size(64 << 10);
    let options = options.compression(Compression::Zstd { level: 3 });
    let log = options.open(world.store()).expect("a store");
    let pad = "-".repeat(400);
    for (agent, run) in [("a", "one"), ("b", "two"), ("a", "three")] {
        let writer = log.start_run(agent, run, ()).expect("a run");
        for n in 0..200 {
            let text = format!("{{\"step\":{n},\"tool\":\"Kettle {run}\",\"pad\":\"{pad}\"}}");
            let at = Timestamp(1_000_000_000 * (n + 1));
            let kind = if n % 2 == 0 { "even" } else { "odd" };
            let record = NewRecord::json(text.as_bytes()).kind(kind).at(at);
            writer.append_record(&record).expect("a record");
        }
        if run == "three" {
            let padded = format!("{} needle {}", "\u{e9}".repeat(3000), "\u{e9}".repeat(3000));
            writer.append(padded.as_bytes()).expect("a record");
        } else {
            writer.end(&Outcome::completed()).expect("an end");
        }
    }
    let written = log.compact().expect("compacted").bytes;
    // Of three runs of one size, the one in progress is moved as it is.
    let of_one = log.run("one").expect("the run").bytes;
    assert!(written > 0 && written < of_one + of_one / 2, "compressed: {written}, one: {of_one}");
    log
}

fn ids(world: &World, args: &[&str]) -> Vec<String> {
    let ran = world.good(&[&["search", "--json"], args].concat());
    let id = |row: &serde_json::Value| format!("{}{}", row["run"].as_str().unwrap(), row["seq"]);
    ran.json().iter().map(id).collect()
}

#[test]
fn text_and_regular_expressions_are_found_in_plain_and_compressed_runs() {
    let world = World::new();
    let log = open(&world);
    assert_eq!(ids(&world, &["\"step\":7,"]), ["three7", "two7", "one7"]);
    assert_eq!(
        ids(&world, &["-e", r#""step":1[0-2],"#, "--run", "one"]),
        ["one10", "one11", "one12"]
    );
    assert_eq!(ids(&world, &["kettle TWO", "-i", "--kind", "odd"]).len(), 100);
    assert_eq!(ids(&world, &["-e", "-i", "^.+19[78].*KETTLE"]).len(), 6);
    log.close().expect("closed");
}

/// They are searched together, and each has more to print than is kept of runs behind the first.
#[test]
fn runs_that_were_written_at_the_same_time_are_printed_whole_and_one_after_the_other() {
    let world = World::new();
    let log = world.open();
    let names = ["one", "two", "three", "four", "five"];
    let runs: Vec<_> = names.map(|name| log.start_run("agent", name, ()).expect("a run")).into();
    for number in 0..700 {
        for (run, name) in runs.iter().zip(names) {
            let text = format!("{name} {number} {}", "found ".repeat(1500));
            let record = NewRecord::new(text.as_bytes()).durability(Durability::Process);
            run.append_record(&record).expect("a record");
        }
    }
    log.sync().expect("synced");
    let ran = world.good(&["search", "found", "--full"]);
    let found: Vec<(String, String)> = ran
        .text()
        .lines()
        .map(|line| {
            let after = line.rsplit("found").last().expect("what is in front");
            let mut words = after.split_whitespace().rev();
            let number = words.next().expect("a number").to_owned();
            (words.next().expect("a name").to_owned(), number)
        })
        .collect();
    let newest_first = names.iter().rev();
    let expected: Vec<(String, String)> = newest_first
        .flat_map(|name| (0..700).map(|number| ((*name).to_owned(), number.to_string())))
        .collect();
    assert_eq!(found, expected);
    log.close().expect("closed");
}

#[test]
fn filters_choose_agents_runs_kinds_times_and_statuses() {
    let world = World::new();
    let log = open(&world);
    let step = "\"step\"";
    for (args, found) in [
        (&["--agent", "b"][..], 200),
        (&["--run", "a/one"], 200),
        (&["--run", "one", "--status", "completed"], 200),
        (&["--status", "in_progress"], 200),
        (&["--status", "in_progress", "--status", "completed"], 600),
        (&["--agent", "a", "--kind", "even"], 200),
        (&["--agent", "a", "--kind", "even", "--kind", "odd"], 400),
        (&["--since", "1970-01-01T00:03:20Z"], 3),
        (&["--until", "1970-01-01T00:00:03Z", "--agent", "b"], 2),
    ] {
        assert_eq!(ids(&world, &[&[step], args].concat()).len(), found, "{args:?}");
    }
    log.close().expect("closed");
}

#[test]
fn runs_and_counts_are_listed_instead_of_records() {
    let world = World::new();
    let log = open(&world);
    assert_eq!(world.good(&["search", "-l", "Kettle"]).text(), "a/three\nb/two\na/one\n");
    let counts = world.good(&["search", "-c", "-e", "step\":19[0-9]", "--agent", "a"]);
    assert_eq!(counts.text(), "a/three:10\na/one:10\n");
    let rows = world.good(&["search", "-c", "needle", "--json"]).json();
    assert_eq!(rows[0], serde_json::json!({ "agent": "a", "run": "three", "count": 1 }));
    let rows = world.good(&["search", "-l", "needle", "--json"]).json();
    assert_eq!(keys(&rows[0]), ["agent", "run"]);
    let rows = world.good(&["search", "needle", "--json"]).json();
    let wanted = ["agent", "content_type", "kind", "payload", "run", "seq", "timestamp"];
    assert_eq!(keys(&rows[0]), wanted);
    log.close().expect("closed");
}

#[test]
fn a_long_payload_is_shown_where_the_text_is_found() {
    let world = World::new();
    let log = open(&world);
    let ran = world.good(&["search", "needle"]);
    assert!(ran.text().starts_with("a/three    200  "), "{ran:?}");
    assert!(ran.text().contains("  ... \u{e9}"), "{ran:?}");
    assert!(ran.text().contains(" needle \u{e9}"), "{ran:?}");
    assert!(ran.text().ends_with(" more\n") && ran.text().len() < 800, "{ran:?}");
    assert!(world.good(&["search", "needle", "--full"]).text().len() > 12_000);
    log.close().expect("closed");
}

#[test]
fn exit_codes_are_those_of_grep() {
    let world = World::new();
    let missing = world.run(&["search", "x"]);
    assert_eq!((missing.code, missing.text()), (Some(2), ""), "{missing:?}");
    assert!(missing.stderr.contains("there is no store"), "{missing:?}");
    let log = open(&world);
    for (args, code) in [
        (&["search", "Kettle"][..], 0),
        (&["search", "nowhere"], 1),
        (&["search", "Kettle", "--agent", "nobody"], 2),
        (&["search", "Kettle", "--run", "none"], 2),
        (&["search", "-e", "(Kettle"], 2),
        (&["search"], 2),
    ] {
        assert_eq!(world.run(args).code, Some(code), "{args:?}");
    }
    let wrong = world.run(&["search", "-e", "(Kettle"]);
    assert!(wrong.stderr.contains("unclosed group"), "{wrong:?}");
    assert_eq!(wrong.stderr.lines().count(), 1, "{wrong:?}");
    log.close().expect("closed");
}

#[test]
fn a_damaged_record_is_reported_and_the_others_are_searched() {
    let world = World::new();
    world.write("a/r.jsonl", "\"the first\"\n\"the second\"\n\"the third\"\n");
    world.good(&["import", "--create", "a"]);
    let mut bytes = fs::read(world.store()).expect("the store");
    let at = bytes.windows(10).position(|found| found == b"the second").expect("the record");
    bytes[at] ^= 1;
    fs::write(world.store(), bytes).expect("the store");
    let ran = world.run(&["search", "the", "-c"]);
    assert_eq!((ran.code, ran.text()), (Some(2), "a/r:2\n"), "{ran:?}");
    assert!(ran.stderr.contains("record 1"), "{ran:?}");
}

#[test]
fn a_hit_is_within_one_payload_wherever_that_lies_in_the_file() {
    let world = World::new();
    let log = Options::new().background(false).open(world.store()).expect("a store");
    let writers: Vec<_> = (0..5)
        .map(|run| log.start_run("walnut", &format!("almond-{run}"), ()).expect("a run"))
        .collect();
    // Several pieces of the file, whose edges cut some of these records.
    let records = 1_500;
    for n in 0..records {
        for writer in &writers {
            let pad = "-".repeat(n * 7 % 900);
            let text = format!("pistachio {n} {pad} hazel");
            let record = NewRecord::new(text.as_bytes()).kind("cashew");
            writer.append_record(&record.durability(Durability::Process)).expect("a record");
        }
    }
    // In many parts: one text lies across two of them.
    let part = 64 << 10;
    let mut bytes = vec![b'.'; 40 * part];
    for at in [part / 2, 7 * part - 3, 40 * part - 6] {
        bytes[at..at + 6].copy_from_slice(b"pecan!");
    }
    writers[2].append(&bytes).expect("a record in parts");
    let lines = |args: &[&str]| world.run(&[&["search", "-c"], args].concat()).text().to_owned();
    let of_each = |count: usize| {
        let lines: Vec<_> =
            (0..5).rev().map(|run| format!("walnut/almond-{run}:{count}\n")).collect();
        lines.concat()
    };
    for pattern in [&["pistachio"][..], &["hazel"], &["-e", "hazel$"], &["-e", "^p.*l$"]] {
        assert_eq!(lines(pattern), of_each(records), "{pattern:?}");
    }
    assert_eq!(lines(&["pistachio 1499 "]), of_each(1));
    assert_eq!(lines(&["pecan!"]), "walnut/almond-2:1\n");
    assert_eq!(lines(&["pecan!", "--agent", "walnut"]), "walnut/almond-2:1\n");
    // Of two records, of the header and the kind in front of a payload, of the names of the run.
    for pattern in [&["hazelpistachio"][..], &["-e", "hazel.?p"], &["cashew"], &["almond"]] {
        assert_eq!(lines(pattern), "", "{pattern:?}");
    }
    drop(writers);
    log.close().expect("closed");
    assert_eq!(lines(&["pistachio"]), of_each(records));
}

#[test]
fn damage_within_a_piece_that_runs_share_is_told_of_its_run_alone() {
    let world = World::new();
    let log = Options::new().background(false).extent_size(64 << 10).open(world.store());
    let log = log.expect("a store");
    let writers: Vec<_> =
        (0..3).map(|run| log.start_run("a", &format!("r{run}"), ()).expect("a run")).collect();
    for n in 0..400 {
        for (run, writer) in writers.iter().enumerate() {
            let text = format!("record {n} of run {run} {}", "x".repeat(200));
            let record = NewRecord::new(text.as_bytes()).durability(Durability::Process);
            writer.append_record(&record).expect("a record");
        }
    }
    drop(writers);
    log.close().expect("closed");
    let mut bytes = fs::read(world.store()).expect("the store");
    let wanted = b"record 77 of run 1 ";
    let at = bytes.windows(wanted.len()).position(|found| found == wanted).expect("the record");
    bytes[at + 30] ^= 1;
    fs::write(world.store(), bytes).expect("the store");
    let ran = world.run(&["search", "record", "-c"]);
    assert_eq!((ran.code, ran.text()), (Some(2), "a/r2:400\na/r1:399\na/r0:400\n"), "{ran:?}");
    assert!(ran.stderr.contains("record 77"), "{ran:?}");
    assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
}

/// What Python writes: letters beyond ASCII and quotation marks as escapes.
fn escaped_world() -> World {
    let world = World::new();
    let lines = [
        r#"{"role":"user","content":"first"}"#,
        r#"{"role":"user","content":"Das ist sch\u00f6n, sagt \"Anna\" \ud83d\ude00\nund geht"}"#,
        r#"{"role":"assistant","content":"third"}"#,
        r#"{"role":"user","content":"fourth"}"#,
        r#"{"role":"user","content":"fifth is sch\u00F6n too"}"#,
    ];
    world.write("a/r.jsonl", lines.map(|line| format!("{line}\n")).concat());
    world.write("b/q.jsonl", "{\"role\":\"user\",\"content\":\"sch\u{f6}n\"}\n");
    world.good(&["import", "--create", "a", "b"]);
    world
}

#[test]
fn text_is_found_as_a_person_reads_it() {
    let world = escaped_world();
    for (args, expected) in [
        (&["sch\u{f6}n"][..], "q0 r1 r4"),
        (&["-i", "SCH\u{d6}N"], "q0 r1 r4"),
        (&["-e", "sch.n(,| too)"], "r1 r4"),
        (&["sagt \"Anna\""], "r1"),
        (&["\u{1f600}"], "r1"),
        (&["\u{1f600}\nund"], "r1"),
        (&["-e", "Anna\".*\nund geht"], "r1"),
        (&["und geht"], "r1"),
        (&["u00f6"], ""),
        (&["nund"], ""),
    ] {
        let ran = world.run(&[&["search", "--json"], args].concat());
        let mut found: Vec<String> = ran
            .json()
            .iter()
            .map(|row| format!("{}{}", row["run"].as_str().expect("a run"), row["seq"]))
            .collect();
        found.sort();
        assert_eq!(found.join(" "), expected, "{args:?}");
    }
    let shown = world.good(&["grep", "sagt", "--agent", "a"]);
    let said = "Das ist sch\u{f6}n, sagt \"Anna\" \u{1f600} und geht\n";
    assert!(shown.text().ends_with(said), "{shown:?}");
}

#[test]
fn records_beside_a_match_are_shown_where_they_are_asked_for() {
    let world = escaped_world();
    for (args, expected) in [
        (&["third", "-A1"][..], "2 3-"),
        (&["third", "-B", "2"], "0- 1- 2"),
        (&["third", "-C", "1"], "1- 2 3-"),
        (&["sch\u{f6}n", "-B1", "--agent", "a"], "0- 1 -- 3- 4"),
        (&["sch\u{f6}n", "-C9", "--agent", "a"], "0- 1 2- 3- 4"),
        (&["sch\u{f6}n", "-A1", "-n1", "--agent", "a"], "1 2-"),
    ] {
        let ran = world.good(&[&["search"], args].concat());
        let numbers: Vec<&str> = ran
            .text()
            .lines()
            .map(|line| line.split_whitespace().find(|word| !word.contains('/')).expect("a word"))
            .collect();
        assert_eq!(numbers.join(" "), expected, "{args:?}: {ran:?}");
    }
    let rows = world.good(&["search", "third", "-A1", "--json"]).json();
    assert_eq!(
        (&rows[0]["context"], &rows[1]["context"]),
        (&serde_json::Value::Null, &true.into())
    );
}

#[test]
fn a_terminal_groups_matches_by_run_and_marks_them() {
    let world = escaped_world();
    for columns in [80, 200] {
        let (code, shown) = Terminal::of(columns).run(&world, &["search", "sch\u{f6}n"]);
        assert_eq!(code, Some(0), "{shown}");
        let headings = |line: &&str| line.starts_with("a/r  ") || line.starts_with("b/q  ");
        assert_eq!(shown.lines().filter(headings).count(), 2, "{shown}");
        assert_eq!(shown.lines().filter(|line| line.is_empty()).count(), 1, "{shown}");
        assert!(shown.contains("  user  Das ist sch\u{f6}n, sagt \"Anna\""), "{shown}");
        assert!(shown.lines().all(|line| line.chars().count() <= columns.into()), "{shown}");
    }
    let colours = Terminal { has_colours: true, ..Terminal::of(80) };
    let (_, shown) = colours.run(&world, &["search", "sch\u{f6}n", "--agent", "b"]);
    assert!(shown.contains("\u{1b}[1m\u{1b}[31msch\u{f6}n\u{1b}[0m"), "{shown:?}");
}

#[test]
fn a_mistyped_agent_is_an_error_that_names_similar_ones() {
    let world = World::new();
    world.write("-home-u-app/r.jsonl", "{}\n");
    world.good(&["import", "--create", "-home-u-app"]);
    for (args, code) in [
        (&["search", "x"][..], 2),
        (&["ls"], 1),
        (&["usage"], 1),
        (&["du"], 1),
        (&["tail"], 1),
        (&["export", "out"], 1),
        (&["adopt", "--dry-run"], 1),
    ] {
        let ran = world.run(&[args, &["--agent", "-home-u-ap"]].concat());
        assert_eq!((ran.code, ran.text()), (Some(code), ""), "{args:?}: {ran:?}");
        let said = "no agent -home-u-ap has runs; did you mean -home-u-app?";
        assert!(ran.stderr.contains(said), "{args:?}: {ran:?}");
    }
}
