//! Showing the records of a run.

use std::io::Read as _;
use std::process::Stdio;

use runlog::{ContentType, NewRecord, Outcome};
use serde_json::json;

use crate::world::{Ran, Terminal, World, keys};

#[test]
fn payloads_are_shown_by_their_content_type() {
    let world = World::new();
    let log = world.open();
    let writer = log.start_run("a", "r", ()).expect("a run");
    let records = [
        NewRecord::new(b"{\"n\": 1.50}").content_type(ContentType::JSON).kind("turn"),
        NewRecord::new(b"[1,\n2]").content_type(ContentType::JSON),
        NewRecord::new(b"{\"n\": 1}"),
        NewRecord::new("caf\u{e9}\x1b[2J".as_bytes()).content_type(ContentType::TEXT),
        NewRecord::new(b"\xff\x00").content_type(ContentType::from_code(200)),
        NewRecord::new(b"").content_type(ContentType::JSON),
    ];
    for record in &records {
        let _ = writer.append_record(record).expect("an append");
    }
    let _ = writer.end(&Outcome::completed()).expect("an end");
    drop(writer);
    log.close().expect("closed");

    let ran = world.good(&["show", "r", "--json"]);
    assert!(ran.text().contains("\"payload\":{\"n\": 1.50}}\n"), "digits are kept: {}", ran.text());
    let rows = ran.json();
    for row in &rows {
        assert_eq!(keys(row), ["content_type", "kind", "payload", "seq", "timestamp"]);
    }
    let payloads: Vec<_> = rows.iter().map(|row| row["payload"].clone()).collect();
    assert_eq!(
        payloads,
        [
            json!({ "n": 1.5 }),
            json!([1, 2]),
            json!("{\"n\": 1}"),
            json!("caf\u{e9}\u{1b}[2J"),
            json!({ "base64": "/wA=" }),
            json!(""),
        ]
    );
    assert_eq!(
        (&rows[0]["kind"], &rows[4]["content_type"]),
        (&json!("turn"), &json!("custom:200"))
    );

    let text = world.good(&["show", "r"]);
    assert!(text.text().contains("caf\u{e9}\\u{1b}[2J"), "{}", text.text());
    assert!(text.text().contains("\\xff\\u{0}"), "{}", text.text());
    assert!(text.text().starts_with("run r of agent a: completed, started "), "{}", text.text());
}

#[test]
fn parts_of_a_run_can_be_asked_for() {
    let world = World::new();
    let lines = (0..10).map(|n| format!("{n}\n")).collect::<Vec<_>>().concat();
    world.write("a/r.jsonl", lines);
    world.good(&["import", "--create", "a"]);
    for (args, expected) in [
        (&["--from", "8"][..], "8\n9\n"),
        (&["--to", "1"], "0\n1\n"),
        (&["--from", "3", "--to", "4"], "3\n4\n"),
        (&["--from", "4", "--to", "3"], ""),
        (&["--from", "99"], ""),
        (&["--last", "2"], "8\n9\n"),
        (&["--last", "0"], ""),
        (&["--last", "99"], "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n"),
        (&["--to", "18446744073709551615", "--from", "9"], "9\n"),
    ] {
        let args = [&["show", "r", "--raw"], args].concat();
        assert_eq!(world.good(&args).text(), expected, "{args:?}");
    }
}

#[test]
fn long_payloads_are_cut_for_people_unless_they_want_all() {
    let world = World::new();
    world.write("a/r.jsonl", format!("\"{}\"\n", "x".repeat(1000)));
    world.good(&["import", "--create", "a"]);
    let cut = world.good(&["show", "r"]);
    assert!(cut.text().contains(" ... 762 B more"), "{}", cut.text());
    let full = world.good(&["show", "r", "--full"]);
    assert!(full.text().contains(&"x".repeat(1000)));
}

/// A session with a question and an answer that calls a tool.
fn session() -> World {
    let world = World::new();
    let lines = [
        json!({"type": "user", "uuid": "1", "sessionId": "s", "timestamp": "2026-01-31T20:30:05Z",
            "message": {"role": "user", "content": "Fix\u{1b}[2J it"}}),
        json!({"type": "assistant", "uuid": "2", "sessionId": "s",
            "timestamp": "2026-01-31T20:30:06Z", "message": {"role": "assistant", "model": "m-1",
            "content": [{"type": "tool_use", "name": "Bash", "input": {"lines":
                (0..40).collect::<Vec<_>>()}}]}}),
    ];
    world.write("a/r.jsonl", lines.map(|line| format!("{line}\n")).concat());
    world.good(&["import", "--create", "a"]);
    world
}

#[test]
fn records_have_headings_and_indented_json() {
    let world = session();
    let terminal = Terminal::of(80);
    let (code, shown) = terminal.run(&world, &["show", "r", "--records"]);
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.starts_with("run r of agent a: in_progress, started 2026-02-01 05:30:05,"));
    for line in [
        "#0  2026-02-01 05:30:05  user  ",
        "#1  2026-02-01 05:30:06  assistant  Bash  m-1  ",
        "\n      \"message\": {\n        \"content\": \"Fix\\u001b[2J it\",\n",
        " more lines (--full)",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    assert!(!shown.contains('\x1b'), "{shown}");
    let (_, full) = terminal.run(&world, &["show", "r", "--records", "--full"]);
    assert!(full.contains("                39\n") && !full.contains("more"), "{full}");
    let (_, lines) = terminal.run(&world, &["show", "r", "--lines"]);
    assert_eq!(lines.lines().count(), 3, "{lines}");
    let colours = Terminal { has_colours: true, ..Terminal::of(80) };
    let (_, shown) = colours.run(&world, &["show", "r", "--records"]);
    assert!(shown.contains("\x1b[35m\"message\"\x1b[0m: {"), "{shown}");
    // The same elsewhere when it is asked for, in UTC.
    let pretty = world.good(&["show", "r", "--records"]);
    assert!(pretty.text().contains("#0  2026-01-31T20:30:05Z  user"), "{}", pretty.text());
    assert_eq!(world.good(&["show", "r"]).text().lines().count(), 3);
}

#[test]
fn a_terminal_shows_a_run_in_the_pager() {
    let world = session();
    let terminal = Terminal::of(80);
    let shown = |args: &[&str], pager: &str| {
        let (code, shown) = terminal.show(world.command(args).env("PAGER", pager));
        assert_eq!(code, Some(0), "{shown}");
        shown
    };
    let paged = shown(&["show", "r"], "sed 's/^/| /'");
    assert!(paged.lines().all(|line| line.starts_with("| ")), "{paged}");
    for args in
        [&["show", "r", "--no-pager"][..], &["show", "r", "--raw"], &["show", "r", "--json"]]
    {
        assert!(!shown(args, "sed 's/^/| /'").starts_with("| "), "{args:?}");
    }
    // A pager that the user leaves early, and one that there is not.
    assert_eq!(shown(&["show", "r", "--full"], "head -n 1").lines().count(), 1);
    let (code, told) = terminal.show(world.command(&["show", "r"]).env("PAGER", "/no/pager"));
    assert!(code == Some(0) && told.contains("/no/pager"), "{told}");
    // A pipe has no pager.
    let ran = Ran::of(world.command(&["show", "r"]).env("PAGER", "false"));
    assert_eq!((ran.code, ran.text().lines().count()), (Some(0), 3));
}

#[test]
fn a_run_id_of_two_agents_needs_the_agent() {
    let world = World::new();
    world.write("runs/a/r.jsonl", "1\n");
    world.write("runs/b/r.jsonl", "2\n");
    world.good(&["import", "--create", "."]);
    let ran = world.run(&["show", "r"]);
    assert_eq!((ran.code, ran.text()), (Some(1), ""));
    assert!(ran.stderr.contains("\"a\", \"b\""), "{}", ran.stderr);
    assert_eq!(world.good(&["show", "r", "--agent", "b", "--raw"]).text(), "2\n");
}

#[test]
fn a_run_that_is_not_there_is_an_error() {
    let world = World::new();
    world.write("a/r.jsonl", "1\n");
    world.good(&["import", "--create", "a"]);
    for args in [&["show", "none"][..], &["show", "r", "--agent", "none"]] {
        let ran = world.run(args);
        assert_eq!((ran.code, ran.text()), (Some(1), ""));
        assert!(ran.stderr.contains("no"), "{}", ran.stderr);
    }
}

/// A reader such as `head` may leave early: the command ends quietly.
#[test]
fn a_closed_pipe_is_no_error() {
    let world = World::new();
    let lines = (0..20_000)
        .map(|n| format!("{{\"a line of the file\":{n}}}\n"))
        .collect::<Vec<_>>()
        .concat();
    world.write("a/r.jsonl", lines);
    world.good(&["import", "--create", "a"]);
    for form in ["--raw", "--json", "--full"] {
        let mut command = world.command(&["show", "r", form]);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut first = [0; 100];
        let mut stdout = child.stdout.take().expect("a pipe");
        stdout.read_exact(&mut first).expect("some output");
        drop(stdout);
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(0), "{form}");
        assert_eq!(output.stderr, b"", "{form}");
    }
}

/// A talk with a long answer, a call of a tool and much that the tool says.
fn talk() -> World {
    let world = World::new();
    let answer: Vec<String> = (0..60).map(|n| format!("line {n} of the answer")).collect();
    let output: Vec<String> = (0..60).map(|n| format!("line {n} of the output")).collect();
    let lines = [
        json!({"type": "user", "uuid": "1", "sessionId": "s", "timestamp": "2026-01-31T20:30:05Z",
            "message": {"role": "user", "content": "Fix \"it\"\nnow"}}),
        json!({"type": "assistant", "uuid": "2", "sessionId": "s",
            "timestamp": "2026-01-31T20:30:06Z", "message": {"role": "assistant", "model": "m-1",
            "content": [{"type": "text", "text": answer.join("\n")},
                {"type": "tool_use", "id": "t", "name": "Bash",
                    "input": {"command": "cargo test"}}]}}),
        json!({"type": "user", "uuid": "3", "sessionId": "s", "timestamp": "2026-01-31T20:30:07Z",
            "message": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t",
                "content": output.join("\n")}]}}),
        json!({"type": "queue-operation", "sessionId": "s", "timestamp": "2026-01-31T20:30:08Z"}),
    ];
    world.write("a/r.jsonl", lines.map(|line| format!("{line}\n")).concat());
    world.good(&["import", "--create", "a"]);
    world
}

#[test]
fn a_terminal_shows_a_conversation() {
    let world = talk();
    for columns in [80, 200] {
        let (code, shown) = Terminal::of(columns).run(&world, &["show", "r"]);
        assert_eq!(code, Some(0), "{shown}");
        for part in [
            "\nuser  05:30:05\n  Fix \"it\"\n  now\n",
            "\nassistant  05:30:06  m-1\n  line 0 of the answer\n",
            "\n  line 59 of the answer\n  > Bash  cargo test\n",
            "\ntool  05:30:07",
            "\n  line 7 of the output\n  ... 52 more lines (--full)\n",
            "\n(1 record not shown: --records)\n",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(!shown.contains('{'), "{shown}");
    }
    let (_, full) = Terminal::of(80).run(&world, &["show", "r", "--full"]);
    assert!(full.contains("line 59 of the output") && !full.contains("--full"), "{full}");
    // The same in a pipe, where it is asked for; `cat` is another name.
    let chat = world.good(&["cat", "r", "--chat"]);
    assert!(chat.text().contains("\nuser  2026-01-31T20:30:05Z\n  Fix \"it\"\n"), "{chat:?}");
}

#[test]
fn records_are_picked_by_who_speaks_and_by_their_kind() {
    let world = talk();
    for (args, expected) in [
        (&["--role", "user"][..], &[0, 2][..]),
        (&["--role", "tool"], &[2]),
        (&["--role", "assistant", "--role", "tool"], &[1, 2]),
        (&["--role", "nobody"], &[]),
        (&["--kind", "queue-operation"], &[3]),
        (&["--kind", "user", "--role", "tool"], &[2]),
    ] {
        let rows = world.good(&[&["show", "r", "--json"], args].concat()).json();
        let found: Vec<u64> = rows.iter().filter_map(|row| row["seq"].as_u64()).collect();
        assert_eq!(found, expected, "{args:?}");
    }
    let (_, shown) = Terminal::of(80).run(&world, &["show", "r", "--role", "tool"]);
    assert!(shown.contains("of the output") && !shown.contains("of the answer"), "{shown}");
}
