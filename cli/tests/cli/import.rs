//! Files go in and come back byte for byte.

use std::fs;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};

use runlog::{ContentType, Metadata, NewRecord, Options, RunLog, RunQuery};
use serde_json::{Value, json};

use crate::world::{Ran, Terminal, World};

/// Files that differ in what they have lines of, and the numbers of their damaged lines.
fn awkward_files() -> Vec<(&'static str, Vec<u8>, Vec<u64>)> {
    let big = format!("{{\"text\":\"{}\"}}\n", "x".repeat(3 << 20));
    let many = (0..2000)
        .map(|n| format!("{{\"type\":\"turn\",\"n\":{n}}}\n"))
        .collect::<Vec<_>>()
        .concat();
    vec![
        ("plain", b"{\"a\":1}\n{\"b\":2}\n".to_vec(), vec![]),
        ("crlf", b"{\"a\":1}\r\n{\"b\":2}\r\n".to_vec(), vec![]),
        ("mixed-ends", b"{\"a\":1}\r\n{\"b\":2}\n\r{\"c\":3}\n".to_vec(), vec![]),
        ("blank", b"\n\n{\"a\":1}\n\n \t\n\r\n{\"b\":2}\n\n".to_vec(), vec![]),
        ("no-final-newline", b"{\"a\":1}\n{\"b\":2}".to_vec(), vec![]),
        ("one-without-newline", b"{\"a\":1}".to_vec(), vec![]),
        ("carriage-return-at-the-end", b"{\"a\":1}\r".to_vec(), vec![]),
        ("empty", vec![], vec![]),
        ("newline", b"\n".to_vec(), vec![]),
        ("welded", b"{\"a\":1}{\"b\":2}\n{\"c\":3}\n".to_vec(), vec![1]),
        ("torn", b"{\"a\":1}\n{\"b\":\"xy\n{\"c\":3}\n{\"d\":".to_vec(), vec![2, 4]),
        ("not-utf8", b"{\"a\":\"\xff\xfe\"}\n\x80\n{\"b\":2}\n".to_vec(), vec![1, 2]),
        ("nul", b"{\"a\":1}\n\0\0\0\0\0\0\n{\"b\":2}\n\0".to_vec(), vec![2, 4]),
        ("bom", b"\xef\xbb\xbf{\"a\":1}\n".to_vec(), vec![]),
        ("not-jsonl", b"{\n  \"a\": 1\n\n".to_vec(), vec![1, 2]),
        ("scalars", b"1\n\"x\"\nnull\n[1]\n".to_vec(), vec![]),
        (
            "reserved-kinds",
            b"{\"type\":\"unterminated-line\"}\n{\"type\":\"raw\"}\n".to_vec(),
            vec![],
        ),
        ("big", [b"{}\n", big.as_bytes(), b"{}"].concat(), vec![]),
        ("many", many.into_bytes(), vec![]),
    ]
}

#[test]
fn every_file_comes_back_byte_for_byte() {
    let world = World::new();
    for (name, bytes, _) in awkward_files() {
        world.write(&format!("runs/agent/{name}.jsonl"), bytes);
    }
    world.damaged(&["import", "--create", "runs"]);
    world.good(&["verify"]);
    for (name, bytes, _) in awkward_files() {
        let shown = world.good(&["show", name, "--raw"]);
        assert!(shown.stdout == bytes, "{name} came back as {} bytes", shown.stdout.len());
    }
}

#[test]
fn damaged_lines_are_kept_and_reported_with_their_place() {
    let world = World::new();
    for (name, bytes, _) in awkward_files() {
        world.write(&format!("runs/agent/{name}.jsonl"), bytes);
    }
    let report = world.damaged(&["import", "--create", "runs", "--json"]).json();
    let mut total = 0;
    for (name, _, damaged) in awkward_files() {
        let file = format!("runs/agent/{name}.jsonl");
        let lines: Vec<u64> = report
            .iter()
            .filter(|event| event["event"] == "damaged_line" && event["file"] == file.as_str())
            .map(|event| event["line"].as_u64().expect("a number"))
            .collect();
        assert_eq!(lines, damaged, "{name}");
        total += damaged.len();
        let kinds = world.good(&["show", name, "--json"]).json();
        for (line, record) in (1..).zip(&kinds) {
            let content_type = if damaged.contains(&line) { "bytes" } else { "json_line" };
            assert_eq!(record["content_type"], content_type, "{name}:{line}");
        }
    }
    let sums = report.last().expect("a summary");
    assert_eq!(sums["event"], "summary");
    assert_eq!(sums["imported"], awkward_files().len());
    assert_eq!(sums["damaged_lines"], total);
}

#[test]
fn people_are_told_of_damaged_lines_as_well() {
    let world = World::new();
    world.write("a/torn.jsonl", "{}\n{\"x\":\n{}{}\n");
    let report = world.damaged(&["import", "--create", "a"]);
    let text = report.text();
    assert!(text.contains("imported a/torn (json-lines): 3 records"), "{text}");
    assert!(text.contains("a/torn.jsonl:2: torn off within a JSON value"), "{text}");
    assert!(text.contains("a/torn.jsonl:3: more than one JSON value"), "{text}");
    assert!(text.contains("2 damaged lines kept as raw records"), "{text}");
}

#[test]
fn lines_become_records_with_kind_time_and_content_type() {
    let world = World::new();
    world.write(
        "a/r.jsonl",
        "{\"type\":\"message\",\"timestamp\":\"2025-11-20T23:33:50.805Z\"}\n\nnot json\n{}",
    );
    world.damaged(&["import", "--create", "a"]);
    let rows = world.good(&["show", "r", "--json"]).json();
    let kinds: Vec<&Value> = rows.iter().map(|row| &row["kind"]).collect();
    assert_eq!(
        kinds,
        [&json!("message"), &Value::Null, &json!("raw"), &json!("unterminated-line")]
    );
    let types: Vec<&Value> = rows.iter().map(|row| &row["content_type"]).collect();
    assert_eq!(types, ["json_line", "json_line", "bytes", "json_line"]);
    assert_eq!(rows[0]["timestamp"], "2025-11-20T23:33:50.805000000Z");
    let runs = world.good(&["ls", "--json"]).json();
    assert_eq!(runs[0]["started_at"], "2025-11-20T23:33:50.805000000Z");
}

#[test]
fn the_files_of_the_car_daemon_say_how_their_runs_ended() {
    let started = r#"{"record":"started","run_id":"r","started_at":"2026-01-02T03:04:05Z"}"#;
    let turn = r#"{"record":"turn","index":0,"verifier_verdict":"not_run"}"#;
    let ended = |termination: &str| {
        let at = "2026-01-02T04:00:00Z";
        format!(r#"{{"record":"ended","termination":{termination},"ended_at":"{at}"}}"#)
    };
    let world = World::new();
    let files = [
        ("done", Some(r#"{"kind":"outcome","status":"success","outcome":{}}"#), "completed"),
        ("failed", Some(r#"{"kind":"outcome","status":"failure","outcome":{}}"#), "failed"),
        ("incomplete", Some(r#"{"kind":"incomplete"}"#), "interrupted"),
        ("orphan", None, "in_progress"),
    ];
    for (name, termination, _) in files {
        let end = termination.map(|termination| ended(termination) + "\n").unwrap_or_default();
        world.write(&format!("car/runs/agent/{name}.jsonl"), format!("{started}\n{turn}\n{end}"));
    }
    world.good(&["import", "--create", "car"]);
    let runs = world.good(&["ls", "--json"]).json();
    for (name, termination, status) in files {
        let run = runs.iter().find(|run| run["run"] == name).expect("the run");
        assert_eq!(run["status"], status, "{name}");
        assert_eq!(run["started_at"], "2026-01-02T03:04:05.000000000Z");
        if termination.is_some() {
            assert_eq!(run["ended_at"], "2026-01-02T04:00:00.000000000Z");
        }
    }
}

#[test]
fn importing_again_adds_nothing() {
    let world = World::new();
    for (name, bytes, _) in awkward_files() {
        world.write(&format!("runs/agent/{name}.jsonl"), bytes);
    }
    world.damaged(&["import", "--create", "runs"]);
    let before = world.good(&["ls", "--all", "--json"]).stdout;
    let again = world.damaged(&["import", "--create", ".", "--json"]).json();
    let sums = again.last().expect("a summary");
    assert_eq!(sums["already_there"], awkward_files().len());
    assert_eq!((&sums["imported"], &sums["records"]), (&json!(0), &json!(0)));
    assert_eq!(world.good(&["ls", "--all", "--json"]).stdout, before);
}

#[test]
fn a_file_that_differs_from_its_run_is_refused_and_the_others_go_on() {
    let world = World::new();
    world.write("a/r.jsonl", "{}\n{\"x\":1}\n");
    world.good(&["import", "--create", "a"]);
    for changed in ["{}\n{\"x\":2}\n", "{}\n", "{}\n{\"x\":1}", "{\n \"x\":1\n}\n"] {
        world.write("a/r.jsonl", changed);
        world.write("a/s.jsonl", "{}\n");
        let ran = world.run(&["import", "a"]);
        assert_eq!(ran.code, Some(1), "{changed:?}");
        assert!(ran.stderr.contains("run \"r\" of agent \"a\" is there already"), "{ran:?}");
        assert_eq!(world.good(&["show", "r", "--raw"]).stdout, b"{}\n{\"x\":1}\n");
        assert_eq!(world.good(&["show", "s", "--raw"]).stdout, b"{}\n");
    }
    let ran = world.good(&["import", "a", "--replace"]);
    assert!(ran.text().contains("replaced a/r (json)"), "{}", ran.text());
    assert_eq!(world.good(&["show", "r", "--raw"]).stdout, b"{\n \"x\":1\n}\n");
    world.write("a/r.jsonl", "{}\n");
    world.good(&["hold", "r", "--reason", "audit"]);
    let ran = world.run(&["import", "a", "--replace"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("is held"), "{ran:?}");
    assert_eq!(world.good(&["show", "r", "--raw"]).stdout, b"{\n \"x\":1\n}\n");
}

#[test]
fn an_import_that_was_cut_short_is_gone_on_with() {
    let world = World::new();
    world.write("a/r.jsonl", "{\"n\":0}\n{\"n\":1}\n{\"n\":2}\n");
    let log = world.open();
    // As the first versions wrote it.
    let metadata: &[u8] = br#"{"imported_from":"r.jsonl"}"#;
    let writer = log.start_run("a", "r", metadata).expect("a run");
    let line = NewRecord::new(b"{\"n\":0}").content_type(ContentType::JSON_LINE);
    let _ = writer.append_record(&line).expect("an append");
    drop(writer);
    log.close().expect("closed");
    let ran = world.good(&["import", "--create", "a", "--end", "completed"]);
    assert!(ran.text().contains("continued a/r (json-lines): 3 records"), "{}", ran.text());
    assert_eq!(world.good(&["show", "r", "--raw"]).stdout, b"{\"n\":0}\n{\"n\":1}\n{\"n\":2}\n");
    assert_eq!(world.good(&["ls", "--json"]).json()[0]["status"], "completed");
}

#[test]
fn a_run_from_elsewhere_is_not_touched() {
    let world = World::new();
    world.write("a/r.jsonl", "{}\n{}\n");
    let log = world.open();
    let writer = log.start_run("a", "r", ()).expect("a run");
    let _ = writer.append(b"{}").expect("an append");
    drop(writer);
    log.close().expect("closed");
    let ran = world.run(&["import", "a"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("from elsewhere"), "{ran:?}");
    assert_eq!(world.good(&["show", "r", "--raw"]).stdout, b"{}\n");
}

#[test]
fn a_growing_file_can_be_imported_again() {
    let world = World::new();
    world.write("a/r.jsonl", "{}\n");
    world.good(&["import", "--create", "a"]);
    assert_eq!(world.good(&["ls", "--json"]).json()[0]["status"], "in_progress");
    world.write("a/r.jsonl", "{}\n[]\n");
    let ran = world.good(&["import", "a"]);
    assert!(ran.text().contains("continued a/r (json-lines): 2 records"), "{}", ran.text());
    assert_eq!(world.good(&["show", "r", "--raw"]).stdout, b"{}\n[]\n");
    world.good(&["import", "a", "--end", "cancelled"]);
    assert_eq!(world.good(&["ls", "--json"]).json()[0]["status"], "cancelled");
    world.write("a/r.jsonl", "{}\n[]\n1\n");
    world.good(&["import", "a"]);
    assert_eq!(world.good(&["show", "r", "--raw"]).stdout, b"{}\n[]\n1\n");
    let run = &world.good(&["ls", "--json"]).json()[0];
    assert_eq!((&run["status"], &run["late_records"]), (&json!("cancelled"), &json!(1)));
}

/// A last line that was half written is whole in the file later, and then in the run.
#[test]
fn a_half_written_line_is_completed() {
    let world = World::new();
    let whole = "{\"type\":\"a\"}\n{\"type\":\"b\"}\n";
    for cut in 0..whole.len() {
        let name = format!("a/r{cut}.jsonl");
        world.write(&name, &whole[..cut]);
        world.run(&["import", "--create", "a"]);
        world.write(&name, whole);
        let run = format!("a/r{cut}");
        let again = world.good(&["import", "a", "--json"]).json();
        let told = again.iter().find(|event| event["run"] == format!("r{cut}")).expect("told of");
        assert_eq!(told["records"], 2, "{told}");
        assert_eq!(world.good(&["show", &run, "--raw"]).text(), whole, "{cut}");
        let rows = world.good(&["show", &run, "--json"]).json();
        let kinds: Vec<_> = rows.iter().map(|row| row["kind"].clone()).collect();
        assert_eq!(kinds, ["a", "b"], "{cut}");
    }
    assert_eq!(world.good(&["ls", "--all", "--json"]).json().len(), whole.len());
}

/// Goal: a run that is imported anew is not lost when the disk is full or the process dies, also
/// where its file is gone by then. Method: a limit of the size of files, which grows until the
/// import succeeds; what exceeds it is an error, or kills the process.
#[test]
fn a_run_that_is_imported_anew_survives_a_full_disk_and_a_kill_without_its_file() {
    let line = |n: u32| format!("{{\"type\":\"turn\",\"n\":{n},\"of\":\"{}\"}}\n", n % 7);
    let lines = (0..3000).map(line).collect::<Vec<_>>().concat();
    let (old, new) = (format!("{lines}{{\"last\""), format!("{lines}{{\"last\":1}}\n"));
    let (world, saved) = (World::new(), World::new());
    let options = Options::new().extent_size(64 << 10);
    options.create(world.store()).and_then(RunLog::close).expect("a store");
    world.write("a/r.jsonl", &old);
    world.damaged(&["import", "a"]);
    fs::copy(world.store(), saved.store()).expect("saved");
    // What is written behind it does not fit from the start.
    let first = fs::metadata(saved.store()).expect("a store").len() / 1024;
    for (trap, behind) in [("trap '' XFSZ; ", 0), ("", 128)] {
        let mut kept = Vec::new();
        for blocks in (first + behind..).step_by(256) {
            fs::copy(saved.store(), world.store()).expect("copied");
            world.write("a/r.jsonl", &new);
            let script = format!("{trap}ulimit -f {blocks}; exec \"$0\" import a");
            let mut command = Command::new("sh");
            command.args(["-c", &script, env!("CARGO_BIN_EXE_runlog")]);
            let ran = Ran::of(command.current_dir(world.path(".")));
            fs::remove_file(world.path("a/r.jsonl")).expect("removed");
            world.good(&["import", "a"]);
            let shown = world.good(&["show", "a/r", "--raw"]).stdout;
            let is_new = shown == new.as_bytes();
            assert!(is_new || shown == old.as_bytes(), "{blocks}: {ran:?}");
            let log = world.open();
            assert_eq!(log.runs(&RunQuery::new()).count(), 1, "{blocks}: {ran:?}");
            assert!(log.verify().expect("a report").is_clean(), "{blocks}: {ran:?}");
            kept.push((ran.code == Some(0), is_new));
            if ran.code == Some(0) {
                break;
            }
        }
        let ends = (kept.first(), kept.last());
        assert_eq!(ends, (Some(&(false, false)), Some(&(true, true))), "{kept:?}");
    }
}

#[test]
fn a_line_above_the_limit_refuses_its_file_only() {
    let world = World::new();
    let mut long = b"{}\n".to_vec();
    long.resize(long.len() + (64 << 20) + 1, b'x');
    world.write("a/long.jsonl", &long);
    world.write("a/short.jsonl", "{}\n");
    let ran = world.run(&["import", "--create", "a", "--json"]);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.contains("a/long.jsonl: line 2 has more than 67,108,864 bytes"),
        "{}",
        ran.stderr
    );
    let runs = world.good(&["ls", "--json"]).json();
    assert_eq!(runs.len(), 1);
    assert_eq!(runs[0]["run"], "short");
}

#[test]
fn a_line_of_many_extents_is_imported_whole() {
    let world = World::new();
    let options = Options::new().extent_size(64 << 10);
    options.create(world.store()).and_then(RunLog::close).expect("a store");
    let long = "{}\n".repeat(300) + &"x".repeat(32 << 20) + "\n{}\n";
    world.write("a/long.jsonl", &long);
    world.damaged(&["import", "--create", "a"]);
    assert!(world.good(&["show", "long", "--raw"]).stdout == long.as_bytes());
    world.good(&["verify"]);
}

#[test]
fn single_files_belong_to_the_named_agent() {
    let world = World::new();
    world.write("one.jsonl", "{}\n");
    world.write("two.log", "{}\n");
    world.good(&["import", "--create", "one.jsonl"]);
    world.good(&["import", "--create", "two.log", "--agent", "me"]);
    assert_eq!(world.good(&["ls", "--agent", "imported", "--json"]).json()[0]["run"], "one");
    assert_eq!(world.good(&["ls", "--agent", "me", "--json"]).json()[0]["run"], "two");
}

#[test]
fn a_missing_path_is_an_error_and_the_others_go_on() {
    let world = World::new();
    world.write("one.jsonl", "{}\n");
    let ran = world.run(&["import", "--create", "none.jsonl", "one.jsonl"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("none.jsonl"), "{}", ran.stderr);
    assert_eq!(world.good(&["ls", "--json"]).json().len(), 1);
    let ran = world.run(&["import", "none.jsonl", "--store", "other.runlog"]);
    assert_eq!(ran.code, Some(1));
    assert!(!fs::exists(world.path("other.runlog")).expect("a look"));
}

/// The next import finishes what another one was cut short in, also if it finds no file itself.
#[test]
fn an_import_without_a_file_finishes_the_one_before() {
    let world = World::new();
    let log = Options::new().create(world.store()).expect("a store");
    let said = json!({
        "stands_for": ["a", "r", 1],
        "imported_from": "r.jsonl", "layout": "lines",
    });
    let said = said.to_string();
    let said = Metadata::json(said.as_bytes());
    let run = log.start_run("runlog-import", "1", said).expect("a run");
    let _ = run.append_record(&NewRecord::new(b"{}")).expect("an append");
    drop(run);
    let _ = log.hold(("runlog-import", "1"), "").expect("held");
    log.close().expect("closed");
    let ran = world.run(&["import", "a"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("a: no such file or folder"), "{}", ran.stderr);
    let runs = world.good(&["ls", "--all", "--json"]).json();
    let names: Vec<_> = runs.iter().map(|run| (&run["agent"], &run["run"])).collect();
    assert_eq!(names, [(&json!("a"), &json!("r"))]);
    assert_eq!(world.good(&["show", "a/r", "--raw"]).text(), "{}\n");
}

#[test]
fn links_in_folders_are_skipped_and_named() {
    let world = World::new();
    world.write("secret.jsonl", "{\"secret\":1}\n");
    world.write("runs/a/r.jsonl", "{}\n");
    std::os::unix::fs::symlink(world.path("secret.jsonl"), world.path("runs/a/s.jsonl"))
        .expect("a link");
    let ran = world.good(&["import", "--create", "runs"]);
    assert!(ran.text().contains("skipped runs/a/s.jsonl: a symbolic link"), "{}", ran.text());
    assert_eq!(world.good(&["ls", "--json"]).json().len(), 1);
}

#[test]
fn an_empty_folder_makes_an_empty_store() {
    let world = World::new();
    fs::create_dir(world.path("runs")).expect("a folder");
    let ran = world.good(&["import", "--create", "runs"]);
    assert!(ran.text().starts_with("0 runs imported"), "{}", ran.text());
    assert_eq!(world.good(&["ls", "--json"]).text(), "");
}

/// A file that claims to be long and holds next to nothing, also where its lines are short enough.
#[test]
fn a_file_of_holes_is_refused_at_once_and_the_others_go_on() {
    use std::os::unix::fs::FileExt as _;

    let world = World::new();
    world.write("a/short.jsonl", "{}\n");
    let sparse = |name: &str, step: usize| {
        world.write(name, "{}\n");
        let file = fs::File::options().write(true).open(world.path(name)).expect("the file");
        file.set_len(4 << 40).expect("a length");
        for at in (0_u64..1 << 30).step_by(step) {
            file.write_all_at(b"\n", at).expect("a line");
        }
    };
    sparse("a/holes.jsonl", 1 << 30);
    sparse("a/lines.jsonl", 32 << 20);
    let ran = world.run(&["import", "--create", "a"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for name in ["holes", "lines"] {
        let said = format!("a/{name}.jsonl: more than 64 MiB of it are holes");
        assert!(ran.stderr.contains(&said), "{ran:?}");
    }
    assert_eq!(world.good(&["ls", "--json"]).json().len(), 1);
}

/// A crash may leave a hole at the end of a file. The lines before it are worth having.
#[test]
fn a_file_with_a_small_hole_comes_back_byte_for_byte() {
    let world = World::new();
    world.write("a/r.jsonl", "{}\n");
    let file = fs::File::options().write(true).open(world.path("a/r.jsonl")).expect("the file");
    file.set_len(1 << 20).expect("a length");
    let ran = world.damaged(&["import", "--create", "a"]);
    assert!(ran.text().contains("a/r.jsonl:2: NUL bytes"), "{}", ran.text());
    let bytes = fs::read(world.path("a/r.jsonl")).expect("the file");
    assert!(world.good(&["show", "r", "--raw"]).stdout == bytes);
}

#[test]
fn an_array_says_nothing_of_how_a_run_ended() {
    let world = World::new();
    let started = r#"{"record":"started","started_at":"2026-01-02T03:04:05Z"}"#;
    let ended = r#"["ended","turn",null,null,null,{"kind":"outcome"}]"#;
    world.write("a/r.jsonl", format!("{started}\n{ended}\n"));
    world.good(&["import", "--create", "a"]);
    assert_eq!(world.good(&["ls", "--json"]).json()[0]["status"], "in_progress");
    assert_eq!(world.good(&["show", "r", "--json"]).json()[1]["kind"], Value::Null);
}

/// A process that follows, and what it tells.
struct Follower {
    child: Child,
    told: Lines<BufReader<ChildStdout>>,
}

impl Follower {
    fn start(world: &World, args: &[&str]) -> Self {
        let mut command = world.command(&[&["import", "--follow", "--json"], args].concat());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the command runs");
        let told = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self { child, told }
    }

    /// Waits for the next thing that it tells.
    fn next(&mut self) -> Value {
        let line = self.told.next().expect("it tells more").expect("a line");
        serde_json::from_str(&line).expect("JSON")
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn files_are_followed_until_the_command_is_killed() {
    let world = World::new();
    world.write("a/r.jsonl", "{\"n\":1}\n{\"n\"");
    let mut follower = Follower::start(&world, &["--create", "a"]);
    let told = follower.next();
    assert_eq!((&told["result"], &told["records"]), (&json!("imported"), &json!(1)));
    let mut file = fs::File::options().append(true).open(world.path("a/r.jsonl")).expect("a file");
    file.write_all(b":2}\n").expect("the rest of the line");
    let told = follower.next();
    assert_eq!((&told["result"], &told["records"]), (&json!("continued"), &json!(2)));
    world.write("a/new.json", "{\"messages\": [");
    let told = follower.next();
    assert_eq!((&told["event"], &told["file"]), (&json!("waits"), &json!("a/new.json")));
    world.write("a/new.json", "{\"messages\": []}");
    let told = follower.next();
    assert_eq!((&told["run"], &told["format"]), (&json!("new"), &json!("json")));
    let chat = r#"{"messages": [{"role":"user","content":"a"}]}"#;
    world.write("longer.json", chat);
    fs::rename(world.path("longer.json"), world.path("a/new.json")).expect("it replaces the file");
    let told = follower.next();
    assert_eq!((&told["run"], &told["result"]), (&json!("new"), &json!("continued")));
    drop(follower);
    assert_eq!(world.good(&["show", "r", "--raw"]).text(), "{\"n\":1}\n{\"n\":2}\n");
    assert_eq!(world.good(&["show", "new", "--raw"]).text(), chat);
    world.good(&["verify"]);
    assert_eq!(world.run(&["import", "--follow", "a", "--end", "failed"]).code, Some(2));
}

#[test]
fn a_terminal_is_asked_before_a_store_is_made() {
    let world = World::new();
    world.write("a/r.jsonl", "{\"n\":1}\n");
    for args in [&["import", "a"][..], &["put", "space", "key", "a/r.jsonl"]] {
        let no = Terminal { typed: "n\n", ..Terminal::of(80) };
        let (code, shown) = no.run(&world, args);
        assert_eq!(code, Some(1), "{shown}");
        assert!(shown.contains("make it? [y/N]") && shown.contains("--create"), "{shown}");
        assert!(!world.store().exists());
        let yes = Terminal { typed: "y\n", ..Terminal::of(80) };
        let (code, shown) = yes.run(&world, args);
        assert_eq!(code, Some(0), "{shown}");
        fs::remove_file(world.store()).expect("the store");
        let ran = world.run(args);
        assert_eq!((ran.code, world.store().exists()), (Some(1), false), "{ran:?}");
    }
}
