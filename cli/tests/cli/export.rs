//! Runs become files again: the ones that were imported, byte for byte, or JSON Lines that can be
//! imported with the same ids and payloads.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use runlog::{Metadata, NewRecord, Options, Outcome, RunLog, RunQuery};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::formats;
use crate::world::{Ran, World};

/// All files below a folder, by their way from it.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut found, mut waiting) = (BTreeMap::new(), vec![folder.to_path_buf()]);
    while let Some(path) = waiting.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).expect("a folder");
            waiting.extend(entries.map(|entry| entry.expect("an entry").path()));
        } else {
            let way = path.strip_prefix(folder).expect("below it").to_path_buf();
            found.insert(way, fs::read(&path).expect("a file"));
        }
    }
    found
}

/// All runs of a store: ids and payloads.
fn runs(store: &Path) -> BTreeMap<(String, String), Vec<Vec<u8>>> {
    let log = runlog::Reader::open(store).expect("a store");
    let all = log.runs(&RunQuery::new()).map(|run| {
        let run = run.expect("a run");
        let records = log.trace(&run).expect("a trace");
        let payloads = records.map(|record| record.expect("a record").payload().to_vec());
        ((run.agent.to_string(), run.run.to_string()), payloads.collect())
    });
    all.collect()
}

/// Payloads of every shape.
fn payloads() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = [
        &b"{\"a\":1}"[..],
        b" {\"spaces\" : 1e400} \r",
        b"[]",
        b"null",
        b"",
        b" ",
        b"text",
        b"two\nlines\n",
        b"{\n  \"pretty\": true\n}",
        b"{\"torn\":",
        b"{}{}",
        b"\x93RUNLOG\x01",
        b"PK\x03\x04",
        b"\xef\xbb\xbf{}",
        b"\xff\xfe\x00",
        b"\n",
        b"{\"runlog_text\":\"a\"}",
        b"{\"runlog_base64\":\"/wA=\"}",
        b"{\"runlog_base64\":\"aGk=\"}",
        b"{\"runlog_run\":{\"agent\":\"x\",\"run\":\"y\"}}",
        b"{\"type\":\"unterminated-line\"}",
    ]
    .map(<[u8]>::to_vec)
    .into();
    all.push("\u{2028}\u{202e}\u{85}\u{0}\u{7f}\"\\".into());
    all.push((0..=255).collect());
    all
}

/// Ids that are no names of files.
fn hostile_ids() -> Vec<(String, String)> {
    let mut ids: Vec<(String, String)> = [
        ("a", "plain"),
        ("a", "plain.jsonl"),
        ("a", "with/slash"),
        ("a", "../../../etc/passwd"),
        ("..", ".."),
        (".", "."),
        ("/", "/"),
        ("a", "/abs"),
        ("a", "dir/"),
        ("a", "x//y"),
        ("a", ".hidden"),
        ("a", ".hidden/.x"),
        ("runs", "x"),
        ("2026", "01/31/x"),
        ("a", "sessions/chats/x"),
        ("a", "2026"),
        ("a\0b", "new\nline\r\t\u{1b}[2J"),
        ("a%2Fb", "50%"),
        ("%", "%-"),
        ("a/b", "c"),
        ("a", "b/c"),
        (" ", " "),
        ("-", "-n"),
        ("caf\u{e9}", "\u{65e5}\u{672c}\u{202e}"),
        ("a", "x.traj"),
        ("a", "Plain"),
    ]
    .map(|(agent, run)| (agent.to_owned(), run.to_owned()))
    .into();
    for byte in ["x", "/", "\0", ".", "%"] {
        ids.push((byte.repeat(512), byte.repeat(512)));
    }
    ids
}

fn fill(log: &RunLog, agent: &str, run: &str, payloads: &[Vec<u8>]) {
    let writer = log.start_run(agent, run, ()).expect("a run");
    for payload in payloads {
        let _ = writer.append(payload).expect("a record");
    }
    let _ = writer.end(&Outcome::completed()).expect("an end");
}

#[test]
fn files_of_each_format_come_back_byte_for_byte() {
    let (world, cases) = formats::written();
    world.good(&["import", "--create", "logs"]);
    let told = world.good(&["export", "out", "--json"]).json();
    assert_eq!(told.len(), cases.len() + 1);
    assert_eq!(told.last().expect("sums")["exported"], cases.len());
    let before = files(&world.path("logs"));
    assert_eq!(before.len(), cases.len());
    assert!(files(&world.path("out")) == before, "the same files, and no others");
    // And again, by way of another store.
    world.good(&["import", "--create", "out", "--store", "second.runlog"]);
    assert!(runs(&world.path("second.runlog")) == runs(&world.store()));
    world.good(&["export", "again", "--store", "second.runlog"]);
    assert!(files(&world.path("again")) == before);
    // In the first store they are there already.
    let sums = world.good(&["import", "out", "--json"]).json();
    assert_eq!(sums.last().expect("sums")["already_there"], cases.len());
}

#[test]
fn lines_come_back_however_they_look() {
    let world = World::new();
    let odd = b"{\"a\":1}\r\n\n  \nnot json\n{\"torn\":\n\xff\0\n{\"runlog_text\":\"a\\nb\"}\n\
        {\"runlog_base64\":\"/wA=\"}\n{\"runlog_base64\":\"aGk=\"}\n{\"runlog_text\": \"a\"}\n";
    for (name, bytes) in [
        ("a/odd.jsonl", &odd[..]),
        ("a/open.jsonl", b"{}\n{\"runlog_text\":\"a\"}"),
        ("a/torn.jsonl", b"{}\n{\"half\":"),
        ("a/empty.jsonl", b""),
        ("a/newline.jsonl", b"\n"),
        ("a/README", b"no ending\n"),
        ("a/text.log", b"{not json\n{\"runlog_text\":\"a\"}\nno newline"),
        ("a/100%.jsonl", b"{}\n"),
        ("a/deep/er/x.ndjson", b"{}\n"),
        ("b/x.JSONL", b"{}\n"),
    ] {
        world.write(&format!("logs/{name}"), bytes);
    }
    let mut import = vec!["import", "--create", "logs"];
    let ran = world.run(&import);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert_eq!(world.good(&["show", "odd", "--raw"]).stdout, odd);
    assert_eq!(runs(&world.store())[&("a".to_owned(), "odd".to_owned())][6], b"a\nb");
    world.good(&["export", "out"]);
    let before = files(&world.path("logs"));
    assert!(files(&world.path("out")) == before);
    import.extend(["--json"]);
    let sums = world.run(&import).json();
    assert_eq!(sums.last().expect("sums")["already_there"], before.len(), "{sums:?}");
    // It goes on where it ended, with envelopes too.
    world.write("logs/a/odd.jsonl", [odd, &b"{\"runlog_text\":\"\"}\n"[..]].concat());
    let sums = world.run(&import).json();
    assert_eq!(sums.last().expect("sums")["continued"], 1, "{sums:?}");
    world.good(&["export", "grown", "odd"]);
    assert_eq!(
        files(&world.path("grown"))[Path::new("a/odd.jsonl")],
        files(&world.path("logs"))[Path::new("a/odd.jsonl")]
    );
}

#[test]
fn any_payload_under_any_id_can_be_imported_again() {
    let world = World::new();
    let log = world.open();
    for (number, (agent, run)) in hostile_ids().iter().enumerate() {
        let payloads = if number == 1 { payloads() } else { vec![format!("{number}").into()] };
        fill(&log, agent, run, &payloads);
    }
    fill(&log, "a", "empty", &[]);
    log.close().expect("closed");
    let before = runs(&world.store());
    assert_eq!(before.len(), hostile_ids().len() + 1);
    let told = world.good(&["export", "out", "--json"]).json();
    assert_eq!(told.last().expect("sums")["exported"], before.len());
    for (path, bytes) in files(&world.path("out")) {
        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let _: IgnoredAny = serde_json::from_slice(line).expect("each line is JSON");
        }
        let mode = fs::metadata(world.path("out").join(path)).expect("a file").permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
    }
    world.good(&["import", "--create", "out", "--store", "second.runlog"]);
    assert!(runs(&world.path("second.runlog")) == before, "the same ids and payloads");
    world.good(&["export", "again", "--store", "second.runlog"]);
    assert!(files(&world.path("again")) == files(&world.path("out")));
    // By itself, a file has its run again.
    world.good(&["export", "one", "../../../etc/passwd", "--agent", "a"]);
    let names: Vec<PathBuf> = files(&world.path("one")).into_keys().collect();
    assert_eq!(names, [Path::new("a/%2E./%2E./%2E./etc/passwd.jsonl")]);
}

/// What a stream says: the runs by its headings, and their payloads out of the lines.
fn of_stream(stream: &[u8]) -> BTreeMap<(String, String), Vec<Vec<u8>>> {
    let (mut found, mut ids) = (BTreeMap::new(), None);
    for line in stream.split_inclusive(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\n").expect("an end of the line");
        let _: IgnoredAny = serde_json::from_slice(line).expect("each line is JSON");
        let is_own = line.starts_with(b"{\"runlog_");
        let value: Value = if is_own {
            serde_json::from_slice(line).expect("a line of its own")
        } else {
            Value::Null
        };
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        if let Some(run) = value.get("runlog_run") {
            let id = |key: &str| run[key].as_str().expect("an id").to_owned();
            ids = Some((id("agent"), id("run")));
            found.insert(ids.clone().expect("ids"), Vec::new());
            continue;
        }
        let payload = match (text("runlog_text"), text("runlog_base64")) {
            (Some(text), None) => text.into_bytes(),
            (None, Some(text)) => BASE64_STANDARD.decode(text).expect("base64"),
            _ => line.to_vec(),
        };
        let ids = ids.clone().expect("a heading in front");
        found.get_mut(&ids).expect("its run").push(payload);
    }
    found
}

#[test]
fn a_stream_has_every_run_and_every_payload() {
    let (world, _) = formats::written();
    world.good(&["import", "--create", "logs"]);
    let log = world.open();
    for (agent, run) in hostile_ids() {
        fill(&log, &agent, &run, &payloads());
    }
    fill(&log, "a", "empty", &[]);
    log.close().expect("closed");
    let stream = world.good(&["export", "-"]).stdout;
    assert!(of_stream(&stream) == runs(&world.store()));
    let chosen = world.good(&["export", "-", "a/empty", "a8/issue"]).stdout;
    let text = String::from_utf8(chosen).expect("UTF-8");
    let headings: Vec<Value> = text
        .lines()
        .filter(|line| line.starts_with("{\"runlog_run\":"))
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(headings.len(), 2);
    assert_eq!(headings[0]["runlog_run"]["status"], "completed");
    assert_eq!(headings[0]["runlog_run"]["records"], 0);
}

#[test]
fn jsonl_is_a_line_for_each_record_of_any_run() {
    let (world, cases) = formats::written();
    world.good(&["import", "--create", "logs"]);
    world.good(&["export", "out", "--format", "jsonl"]);
    let out = files(&world.path("out"));
    assert_eq!(out.len(), cases.len());
    for (name, bytes) in &out {
        assert_eq!(name.extension().expect("an ending"), "jsonl");
        assert!(bytes.is_empty() || bytes.ends_with(b"\n"));
    }
    world.good(&["import", "--create", "out", "--store", "second.runlog"]);
    assert!(runs(&world.path("second.runlog")) == runs(&world.store()));
}

#[test]
fn only_the_runs_that_were_asked_for_are_exported() {
    let world = World::new();
    let log = world.open();
    let at = |text: &str| text.parse().expect("a time");
    for (agent, run, time, ends) in [
        ("a", "old", "2026-01-01T00:00:00Z", true),
        ("a", "new", "2026-02-01T00:00:00Z", true),
        ("a", "open", "2026-02-02T00:00:00Z", false),
        ("b", "new", "2026-02-03T00:00:00Z", true),
    ] {
        let start = Metadata::json(b"{}").at(at(time));
        let writer = log.start_run(agent, run, start).expect("a run");
        if ends {
            let _ = writer.end(&Outcome::failed()).expect("an end");
        }
    }
    log.close().expect("closed");
    let exported = |args: &[&str]| {
        let ran = world.good(&[&["export", "-"], args].concat());
        ran.json()
            .iter()
            .map(|line| {
                let run = &line["runlog_run"];
                format!(
                    "{}/{}",
                    run["agent"].as_str().expect("id"),
                    run["run"].as_str().expect("id")
                )
            })
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(exported(&[]), "a/old a/new a/open b/new");
    assert_eq!(exported(&["--agent", "a"]), "a/old a/new a/open");
    assert_eq!(exported(&["--status", "failed", "--agent", "a"]), "a/old a/new");
    assert_eq!(exported(&["--status", "in_progress", "--status", "failed"]).split(' ').count(), 4);
    assert_eq!(exported(&["--since", "2026-02-01T00:00:00Z"]), "a/new a/open b/new");
    assert_eq!(exported(&["--until", "2026-02-01T00:00:00Z"]), "a/old");
    assert_eq!(exported(&["b/new", "a/old"]), "b/new a/old");
    assert_eq!(exported(&["new", "--agent", "b"]), "b/new");
    assert_eq!(exported(&["old", "open", "--status", "in_progress"]), "a/open");
    let ran = world.run(&["export", "out", "a/old", "none"]);
    assert_eq!((ran.code, ran.text()), (Some(1), ""), "{ran:?}");
    assert!(ran.stderr.contains("none"), "{ran:?}");
    assert!(files(&world.path("out")).is_empty(), "an error before any file");
    let ran = world.run(&["export", "-", "--format", "original"]);
    assert_eq!((ran.code, ran.text()), (Some(1), ""), "{ran:?}");
}

#[test]
fn a_run_that_is_named_twice_is_exported_once() {
    let world = World::new();
    world.write("a/run-1.jsonl", "{}\n");
    world.write("a/run-2.jsonl", "{}\n");
    world.good(&["import", "--create", "a"]);
    let all = ["run-2", "run-1", "a/run-1", "run-1", "run-2"];
    let exported = world.good(&[&["export", "out", "--json"], &all[..]].concat()).json();
    let runs: Vec<_> = exported.iter().filter_map(|event| event["run"].as_str()).collect();
    assert_eq!(runs, ["run-2", "run-1"]);
    let stream = world.good(&[&["export", "-"], &all[..]].concat()).json();
    let runs: Vec<_> =
        stream.iter().filter_map(|line| line["runlog_run"]["run"].as_str()).collect();
    assert_eq!(runs, ["run-2", "run-1"]);
}

#[test]
fn nothing_that_is_there_is_replaced() {
    let world = World::new();
    let log = world.open();
    for run in ["1", "2", "3", "d/x"] {
        fill(&log, "a", run, &[b"{}".to_vec()]);
    }
    log.close().expect("closed");
    world.write("out/a/1.jsonl", "mine");
    world.write("secret/file", "theirs");
    symlink(world.path("nowhere"), world.path("out/a/2.jsonl")).expect("a link");
    symlink(world.path("secret"), world.path("out/a/d")).expect("a link");
    let ran = world.run(&["export", "out", "--json"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("out/a/1.jsonl: is there already, and is not replaced"));
    let told = ran.json();
    let why: Vec<&Value> = told.iter().map(|event| &event["why"]).collect();
    assert_eq!(why[..4], [&json!("exists"), &json!("exists"), &Value::Null, &json!("in_the_way")]);
    assert_eq!((&told[2]["event"], &told[2]["run"]), (&json!("run"), &json!("3")));
    assert_eq!((&told[4]["exported"], &told[4]["errors"]), (&json!(1), &json!(3)));
    assert_eq!(fs::read(world.path("out/a/1.jsonl")).expect("a file"), b"mine");
    assert!(!fs::exists(world.path("nowhere")).expect("a look"));
    assert_eq!(files(&world.path("secret")).len(), 1);
    let again = world.run(&["export", "out"]);
    assert_eq!(again.code, Some(1), "{again:?}");
    assert_eq!(again.stderr.matches("is there already").count(), 3, "{again:?}");
    // A file in the place of the folder, and the store itself.
    for target in ["secret/file", "runs.runlog"] {
        let ran = world.run(&["export", target]);
        assert_eq!((ran.code, ran.text()), (Some(1), ""), "{ran:?}");
        assert!(ran.stderr.contains(target), "{ran:?}");
    }
    world.good(&["verify"]);
}

#[test]
fn a_target_that_takes_no_files_is_told() {
    let world = World::new();
    let log = world.open();
    fill(&log, "a", "1", &[b"{}".to_vec()]);
    log.close().expect("closed");
    fs::set_permissions(world.path("."), Permissions::from_mode(0o755)).expect("a mode");
    fs::set_permissions(world.store(), Permissions::from_mode(0o444)).expect("a mode");
    fs::create_dir(world.path("out")).expect("a folder");
    fs::set_permissions(world.path("out"), Permissions::from_mode(0o555)).expect("a mode");
    let mut command = Command::new(world.own_program());
    command.args(["export", "out"]).current_dir(world.path("."));
    if fs::metadata(world.store()).map(|store| std::os::unix::fs::MetadataExt::uid(&store)).ok()
        == Some(0)
    {
        command.uid(65_534);
    }
    let ran = Ran::of(&mut command);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("Permission denied"), "{ran:?}");
    assert!(files(&world.path("out")).is_empty());
}

/// The limit of the size of files stands for a disk that becomes full: a write fails half way.
#[test]
fn a_file_that_cannot_be_written_whole_is_not_there() {
    let world = World::new();
    let log = world.open();
    fill(&log, "a", "1", &[vec![b'1'; 3_000_000]]);
    fill(&log, "a", "2", &[b"{}".to_vec()]);
    log.close().expect("closed");
    let script = "trap '' XFSZ; ulimit -f 1000; exec \"$0\" export out --json";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_runlog")]).current_dir(world.path("."));
    let ran = Ran::of(&mut command);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let told = ran.json();
    assert_eq!((&told[0]["event"], &told[0]["why"]), (&json!("error"), &json!("io")), "{ran:?}");
    let names: Vec<PathBuf> = files(&world.path("out")).into_keys().collect();
    assert_eq!(names, [Path::new("a/2.jsonl")], "no other file, also no unfinished one");
}

#[test]
fn a_stream_that_takes_no_more_ends_the_export() {
    let world = World::new();
    let log = world.open();
    fill(&log, "a", "1", &[vec![b'1'; 1_000_000]]);
    log.close().expect("closed");
    let mut command = world.command(&["export", "-"]);
    command.stdout(File::create("/dev/full").expect("a device")).stderr(Stdio::piped());
    let output = command.spawn().and_then(std::process::Child::wait_with_output).expect("run");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("cannot write the output: No space left on device"), "{said}");
    // A reader that has enough is no error.
    let mut command = world.command(&["export", "-"]);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a process");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("an end");
    assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]));
}

#[test]
fn runs_of_a_live_writer_are_exported_as_far_as_they_are() {
    let world = World::new();
    let log = Options::new().background(false).open(world.store()).expect("a store");
    let writer = log.start_run("a", "live", ()).expect("a run");
    let _ = writer.append(b"{\"n\":0}").expect("a record");
    let before = fs::read(world.store()).expect("the store");
    world.good(&["export", "first"]);
    assert!(fs::read(world.store()).expect("the store") == before, "nothing is written to it");
    let _ = writer.append(b"{\"n\":1}").expect("a record");
    world.good(&["export", "second"]);
    let name = Path::new("a/live.jsonl");
    assert_eq!(files(&world.path("first"))[name], b"{\"n\":0}\n");
    assert_eq!(files(&world.path("second"))[name], b"{\"n\":0}\n{\"n\":1}\n");
    let _ = writer.end(&Outcome::completed()).expect("an end");
    log.close().expect("closed");
}

#[test]
fn a_file_that_is_not_the_imported_one_is_refused() {
    let world = World::new();
    let chat =
        "[\n {\"role\": \"user\", \"content\": 1},\n {\"role\": \"user\", \"content\": 2}\n]";
    for name in ["cut.json", "more.json"] {
        world.write(&format!("logs/a/{name}"), chat);
    }
    world.write("logs/a/lines.jsonl", "{}\n{}");
    world.write("logs/a/other.jsonl", "{}\n[]\n");
    world.good(&["import", "--create", "logs"]);
    let log = world.open();
    let again = |run: &str, keep: usize, extra: &[&[u8]]| {
        let metadata = log.metadata(run).expect("metadata").expect("metadata").into_payload();
        let records: Vec<_> =
            log.trace(run).expect("a trace").collect::<Result<_, _>>().expect("records");
        let _ = log.end_run("a", run, &Outcome::failed(), runlog::Allow::nothing()).expect("end");
        log.delete_run(run).expect("deleted");
        let writer = log.start_run("a", run, Metadata::json(&metadata)).expect("a run");
        for record in &records[..keep] {
            let new = NewRecord::new(record.payload()).kind(record.kind().unwrap_or_default());
            let _ = writer.append_record(&new).expect("a record");
        }
        for payload in extra {
            let _ = writer.append(payload).expect("a record");
        }
    };
    again("cut", 2, &[]);
    again("more", 4, &[b"{\"more\":1}"]);
    again("lines", 2, &[b"{\"more\":1}", b"two\nlines"]);
    again("other", 1, &[b"{}"]);
    log.close().expect("closed");
    let ran = world.run(&["export", "out", "--json"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let told = ran.json();
    let why = |run: &str| {
        let event = told.iter().find(|event| event["run"] == run).expect("told of");
        event["why"].as_str().unwrap_or("exported").to_owned()
    };
    assert_eq!(why("cut"), "unfinished");
    assert_eq!(why("more"), "differs");
    assert_eq!(why("other"), "differs");
    assert_eq!(why("lines"), "exported", "its lines, and behind them what was appended since");
    let lines = b"{}\n{}\n{\"more\":1}\n{\"runlog_text\":\"two\\nlines\"}\n";
    let out = files(&world.path("out"));
    assert_eq!(out.len(), 1);
    assert_eq!(out[Path::new("a/lines.jsonl")], lines);
    // Nothing is lost.
    world.good(&["export", "records", "--format", "jsonl"]);
    world.good(&["import", "--create", "records", "--store", "second.runlog"]);
    assert!(runs(&world.path("second.runlog")) == runs(&world.store()));
}

#[test]
fn memory_is_bounded_by_the_longest_record() {
    let world = World::new();
    let log = world.open();
    let payload = |byte: u8| vec![byte; 8 << 20];
    fill(&log, "a", "huge", &(0..30).map(|_| payload(0xff)).collect::<Vec<_>>());
    fill(&log, "a", "long", &[payload(b'1'), payload(b'"')]);
    log.close().expect("closed");
    let before = runs(&world.store());
    // In KiB: less than the run has.
    let script = "ulimit -v 200000; exec \"$0\" \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_runlog"), "export", "out"]);
    let ran = Ran::of(command.current_dir(world.path(".")));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    world.good(&["import", "--create", "out", "--store", "second.runlog"]);
    assert!(runs(&world.path("second.runlog")) == before);
}

/// The spans of a line of OTLP/JSON, checked against what the protocol says of them.
fn spans(line: &str) -> Vec<Value> {
    let request: Value = serde_json::from_str(line).expect("JSON");
    let resources = request["resourceSpans"].as_array().expect("resources");
    assert_eq!((request.as_object().expect("an object").len(), resources.len()), (1, 1));
    let schema = "https://opentelemetry.io/schemas/1.41.0";
    let scopes = resources[0]["scopeSpans"].as_array().expect("scopes");
    assert_eq!(
        (&resources[0]["schemaUrl"], &scopes[0]["schemaUrl"]),
        (&schema.into(), &schema.into())
    );
    assert_eq!(scopes[0]["scope"]["name"], "runlog");
    let spans = scopes[0]["spans"].as_array().expect("spans").clone();
    let hex = |value: &Value, len: usize| {
        let text = value.as_str().expect("an id").to_owned();
        assert!(text.len() == len && text.bytes().all(|byte| b"0123456789abcdef".contains(&byte)));
        assert!(text.bytes().any(|byte| byte != b'0'));
        text
    };
    let root = hex(&spans[0]["spanId"], 16);
    let trace = hex(&spans[0]["traceId"], 32);
    let time = |value: &Value| value.as_str().expect("a string").parse::<u64>().expect("a time");
    let mut ids = std::collections::HashSet::new();
    for (number, span) in spans.iter().enumerate() {
        assert!(ids.insert(hex(&span["spanId"], 16)), "{span}");
        assert_eq!(span["traceId"], trace.as_str());
        let parent = span.get("parentSpanId").map(|parent| hex(parent, 16));
        assert_eq!(parent, (number > 0).then(|| root.clone()), "{span}");
        assert!(time(&span["startTimeUnixNano"]) <= time(&span["endTimeUnixNano"]), "{span}");
        assert!([1, 3].contains(&span["kind"].as_u64().expect("a kind")));
        for event in span["events"].as_array().into_iter().flatten() {
            time(&event["timeUnixNano"]);
            assert!(event["name"].is_string() && event["attributes"].is_array());
        }
        for attribute in span["attributes"].as_array().expect("attributes") {
            let value = attribute["value"].as_object().expect("a value");
            let (kind, value) = value.iter().next().expect("a value");
            match kind.as_str() {
                "stringValue" => assert!(value.is_string()),
                "intValue" => drop(value.as_str().expect("a string").parse::<u64>().expect("int")),
                "doubleValue" => assert!(value.is_number()),
                other => panic!("{other}"),
            }
        }
    }
    spans
}

/// An attribute of a span.
fn attribute(span: &Value, key: &str) -> Option<String> {
    let mut all = span["attributes"].as_array().expect("attributes").iter();
    let value = &all.find(|attribute| attribute["key"] == key)?["value"];
    let value = value.as_object().expect("a value").values().next().expect("a value");
    Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

fn names(spans: &[Value]) -> Vec<&str> {
    spans.iter().map(|span| span["name"].as_str().expect("a name")).collect()
}

const SECOND: u64 = 1_000_000_000;
/// 2026-01-02T03:04:05Z.
const AT: u64 = 1_767_323_045 * SECOND;

#[test]
fn traces_have_messages_of_models_and_calls_of_tools() {
    let world = World::new();
    let line = |kind: &str, second: u64, message: Value| {
        json!({"type": kind, "uuid": format!("u{second}"), "sessionId": "s",
            "timestamp": format!("2026-01-02T03:04:{second:02}Z"), "message": message})
        .to_string()
    };
    let usage = json!({"input_tokens": 3, "output_tokens": 5, "cache_read_input_tokens": 7});
    let said = |content: Value| {
        json!({"role": "assistant", "id": "msg_1", "model": "m-1", "usage": usage,
            "content": content})
    };
    let call = |id: &str, tool: &str| json!([{"type": "tool_use", "id": id, "name": tool}]);
    let answer = |id: &str, failed: bool| {
        json!({"role": "user", "content":
            [{"type": "tool_result", "tool_use_id": id, "is_error": failed, "content": "secret"}]})
    };
    let lines = [
        line("user", 5, json!({"role": "user", "content": "a secret question"})),
        line("assistant", 6, said(json!([{"type": "text", "text": "secret"}]))),
        line("assistant", 6, said(call("t1", "Bash"))),
        line("assistant", 7, said(call("t2", "Read"))),
        line("user", 9, answer("t1", false)),
        line("user", 10, answer("t2", true)),
        line(
            "assistant",
            11,
            json!({"role": "assistant", "id": "msg_2", "content": call("t3", "Edit")}),
        ),
        "{\"type\":\"summary\",\"summary\":\"s\",\"leafUuid\":\"l\"}".to_owned(),
        "not json".to_owned(),
    ];
    world.write("logs/coder/s.jsonl", lines.join("\n") + "\n");
    world.damaged(&["import", "--create", "logs", "--end", "failed"]);
    let stream = world.good(&["export", "-", "--format", "otlp"]);
    assert!(!stream.text().contains("secret"), "what was said is not exported");
    let spans = spans(stream.text());
    assert_eq!(
        names(&spans),
        [
            "invoke_agent coder",
            "chat m-1",
            "execute_tool Bash",
            "execute_tool Read",
            "chat",
            "execute_tool Edit"
        ]
    );
    let root = &spans[0];
    assert_eq!(root["startTimeUnixNano"], AT.to_string());
    assert_eq!(root["endTimeUnixNano"], (AT + 6 * SECOND).to_string());
    assert_eq!((&root["kind"], &root["status"]["code"]), (&json!(1), &json!(2)));
    for (key, value) in [
        ("gen_ai.operation.name", "invoke_agent"),
        ("gen_ai.agent.name", "coder"),
        ("gen_ai.conversation.id", "s"),
        ("runlog.status", "failed"),
        ("error.type", "_OTHER"),
    ] {
        assert_eq!(attribute(root, key).as_deref(), Some(value), "{key}");
    }
    let events = root["events"].as_array().expect("events");
    assert_eq!(events.len(), 3, "the messages of the user and of the tools");
    assert_eq!(events[0]["timeUnixNano"], AT.to_string());
    let chat = &spans[1];
    for (key, value) in [
        ("gen_ai.operation.name", Some("chat")),
        ("gen_ai.response.model", Some("m-1")),
        ("gen_ai.response.id", Some("msg_1")),
        ("gen_ai.usage.input_tokens", Some("3")),
        ("gen_ai.usage.output_tokens", Some("5")),
        ("gen_ai.usage.cache_read.input_tokens", Some("7")),
        ("gen_ai.usage.cache_creation.input_tokens", None),
        ("runlog.seq", Some("1")),
    ] {
        assert_eq!(attribute(chat, key).as_deref(), value, "{key}");
    }
    assert_eq!((&chat["kind"], chat.get("status")), (&json!(3), None));
    let times = |span: &Value| {
        ["startTimeUnixNano", "endTimeUnixNano"].map(|key| {
            let time = span[key].as_str().expect("a time").parse::<u64>().expect("a number");
            (time - AT) / SECOND
        })
    };
    assert_eq!(
        spans[1..].iter().map(times).collect::<Vec<_>>(),
        [[1, 1], [1, 4], [2, 5], [6, 6], [6, 6]]
    );
    assert_eq!(attribute(&spans[2], "gen_ai.tool.call.id").as_deref(), Some("t1"));
    assert_eq!(attribute(&spans[2], "gen_ai.tool.name").as_deref(), Some("Bash"));
    assert_eq!((spans[2].get("status"), &spans[3]["status"]["code"]), (None, &json!(2)));
    // A later export has the same ids, in a file as well.
    world.good(&["export", "out", "--format", "otlp"]);
    assert_eq!(files(&world.path("out"))[Path::new("coder/s.otlp.jsonl")], stream.stdout);
}

#[test]
fn every_format_gives_a_trace_and_makes_up_no_time() {
    let (world, cases) = formats::written();
    world.good(&["import", "--create", "logs"]);
    let log = world.open();
    let writer = log.start_run("native", "run", ()).expect("a run");
    let record = |json: &Value| NewRecord::json(json.to_string().leak().as_bytes());
    let called =
        json!({"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "sh"}}]});
    let _ = writer.append_record(&record(&called)).expect("a record");
    let answered = json!({"role": "tool", "tool_call_id": "c"});
    let _ = writer.append_record(&record(&answered)).expect("a record");
    let _ = writer.append(b"\xff").expect("a record");
    log.close().expect("closed");
    let text = world.good(&["export", "-", "--format", "otlp"]).text().to_owned();
    let all: Vec<Vec<Value>> = text.lines().map(spans).collect();
    assert_eq!(all.len(), cases.len() + 1);
    let of = |agent: &str| {
        let root = format!("invoke_agent {agent}");
        let mut traces = all.iter().filter(|spans| spans[0]["name"] == root.as_str());
        names(traces.next().expect("a trace"))[1..].join(", ")
    };
    for (agent, wanted) in [
        ("a1", "chat claude-x, execute_tool Bash"),
        ("a3", "execute_tool shell, chat"),
        ("a4", "chat m, execute_tool read, execute_tool edit"),
        ("a6", "chat gemini-x, execute_tool glob"),
        ("a8", ""),
        ("a9", "chat gpt-x"),
        ("a10", "chat gpt-x, execute_tool browse"),
        ("a11", "chat gpt-x, execute_tool browse"),
        ("a12", "chat gpt-x, execute_tool bash"),
        ("a17", ""),
        ("native", "chat, execute_tool sh"),
    ] {
        assert_eq!(of(agent), wanted, "{agent}");
    }
    let mut ids: Vec<&Value> = all.iter().map(|spans| &spans[0]["traceId"]).collect();
    ids.sort_by_key(ToString::to_string);
    ids.dedup();
    assert_eq!(ids.len(), all.len(), "each run is a trace of its own");
}

/// Reads a folder of real traces where there is one.
#[test]
fn a_folder_of_real_traces_is_exported_as_it_was() {
    let Some(folder) = std::env::var_os("RUNLOG_TEST_TRACES") else {
        return;
    };
    let world = World::new();
    let folder = folder.to_str().expect("a path");
    let ran = world.run(&["import", "--create", folder, "--skip-unknown"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    world.good(&["export", "out"]);
    let (mut before, mut after) = (files(Path::new(folder)), files(&world.path("out")));
    // What is not in the folder of an agent belongs to the agent of the whole folder.
    before.retain(|name, _| name.components().count() > 1);
    after.retain(|name, _| before.contains_key(name));
    assert!(before == after);
}
