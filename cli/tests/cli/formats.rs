//! Each format of agent logs is recognised, says what is in it, and comes back byte for byte. The
//! files are made here, in the shapes that the programs write.

use std::fs;
use std::io::{Cursor, Write as _};

use serde_json::{Value, json};
use sha2::Digest as _;
use zip::CompressionMethod;
use zip::write::{SimpleFileOptions, ZipWriter};

use crate::world::World;

const AT: &str = "2026-01-02T03:04:05.000000000Z";
const AT_SHORT: &str = "2026-01-02T03:04:05Z";

fn lines(values: &[Value]) -> Vec<u8> {
    values.iter().flat_map(|value| [value.to_string().into_bytes(), vec![b'\n']].concat()).collect()
}

fn pretty(value: &Value) -> Vec<u8> {
    serde_json::to_vec_pretty(value).expect("JSON")
}

/// A file, and what is to be read out of it: its format, its status, and of the records that say
/// anything, by number, their kinds and facts.
pub(crate) struct Case {
    name: &'static str,
    bytes: Vec<u8>,
    format: &'static str,
    status: &'static str,
    says: Vec<(usize, &'static str, Value)>,
}

fn car() -> Case {
    let ended = json!({"kind": "outcome", "status": "give_up", "outcome": {}});
    Case {
        name: "car.jsonl",
        bytes: lines(&[
            json!({"record": "started", "run_id": "r", "started_at": AT_SHORT}),
            json!({"record": "turn", "index": 0, "tool": "sh", "verifier_verdict": "pass"}),
            json!({"record": "ended", "termination": ended, "ended_at": AT_SHORT}),
        ]),
        format: "car",
        status: "failed",
        says: vec![(0, "started", json!({"time": AT})), (1, "turn", json!({"tools": ["sh"]}))],
    }
}

fn claude() -> Case {
    let line = |kind: &str, message: Value| {
        json!({"type": kind, "uuid": format!("u-{kind}"), "parentUuid": null, "sessionId": "s",
            "timestamp": AT_SHORT, "cwd": "/w", "message": message})
    };
    let usage = json!({"input_tokens": 3, "output_tokens": 5, "cache_read_input_tokens": 7});
    let called = json!([{"type": "text", "text": "t"}, {"type": "tool_use", "name": "Bash"}]);
    Case {
        name: "claude.jsonl",
        bytes: lines(&[
            json!({"type": "summary", "summary": "s", "leafUuid": "l"}),
            line("user", json!({"role": "user", "content": "hello"})),
            line(
                "assistant",
                json!({"role": "assistant", "id": "msg_1", "model": "claude-x", "content": called,
                    "usage": usage}),
            ),
        ]),
        format: "claude-code",
        status: "in_progress",
        says: vec![
            (1, "user", json!({"time": AT, "role": "user", "id": "u-user"})),
            (
                2,
                "assistant",
                json!({"time": AT, "role": "assistant", "tools": ["Bash"], "model": "claude-x",
                    "id": "u-assistant", "message_id": "msg_1",
                    "usage": {"input_tokens": 3, "output_tokens": 5, "cache_read_tokens": 7}}),
            ),
        ],
    }
}

fn claude_stream() -> Case {
    Case {
        name: "stream.jsonl",
        bytes: lines(&[
            json!({"type": "system", "subtype": "init", "session_id": "s"}),
            json!({"type": "result", "subtype": "success", "is_error": false, "session_id": "s"}),
        ]),
        format: "claude-code",
        status: "completed",
        says: vec![],
    }
}

fn codex() -> Case {
    let line = |kind: &str, payload: Value| {
        let mut line = json!({"timestamp": AT_SHORT, "type": kind});
        line["payload"] = payload;
        line
    };
    let last = json!({"input_tokens": 4, "output_tokens": 2, "reasoning_output_tokens": 1});
    Case {
        name: "rollout.jsonl",
        bytes: lines(&[
            line("session_meta", json!({"id": "s", "cwd": "/w", "timestamp": AT_SHORT})),
            line("turn_context", json!({"model": "gpt-x"})),
            line(
                "response_item",
                json!({"type": "function_call", "name": "shell", "call_id": "c"}),
            ),
            line("event_msg", json!({"type": "token_count", "info": {"last_token_usage": last}})),
        ]),
        format: "codex",
        status: "in_progress",
        says: vec![
            (0, "session_meta", json!({"time": AT, "id": "s"})),
            (1, "turn_context", json!({"time": AT, "model": "gpt-x"})),
            (2, "function_call", json!({"time": AT, "tools": ["shell"], "id": "c"})),
            (
                3,
                "token_count",
                json!({"time": AT, "usage": {"input_tokens": 4, "output_tokens": 2,
                    "reasoning_tokens": 1}}),
            ),
        ],
    }
}

fn pi_lines() -> Vec<Value> {
    let usage = json!({"input": 1, "output": 2, "cacheRead": 3, "cost": {"total": 0.5}});
    vec![
        json!({"type": "session", "version": 3, "id": "s", "timestamp": AT_SHORT, "cwd": "/w"}),
        json!({"type": "message", "id": "1", "timestamp": AT_SHORT, "message": {"role":
            "assistant", "model": "m", "usage": usage, "content":
                [{"type": "toolCall", "name": "read"}, {"type": "toolCall", "name": "edit"}]}}),
        json!({"type": "message", "timestamp": AT_SHORT,
            "message": {"role": "toolResult", "toolName": "read", "content": []}}),
    ]
}

fn pi() -> Case {
    Case {
        name: "pi.jsonl",
        bytes: lines(&pi_lines()),
        format: "pi",
        status: "in_progress",
        says: vec![
            (
                1,
                "message",
                json!({"time": AT, "role": "assistant", "tools": ["read", "edit"], "model": "m",
                    "id": "1", "usage": {"input_tokens": 1, "output_tokens": 2,
                        "cache_read_tokens": 3, "cost": 0.5}}),
            ),
            (2, "message", json!({"time": AT, "role": "toolResult", "tools": ["read"]})),
        ],
    }
}

fn openclaw() -> Case {
    let snapshot = json!({"type": "custom", "customType": "model-snapshot", "id": "2",
        "timestamp": AT_SHORT, "data": {}});
    let mut all = pi_lines();
    all.insert(1, snapshot);
    Case {
        name: "claw.jsonl",
        bytes: lines(&all),
        format: "openclaw",
        status: "in_progress",
        says: vec![(1, "custom", json!({"time": AT, "id": "2"}))],
    }
}

fn gemini_message() -> Value {
    json!({"id": "g", "timestamp": AT_SHORT, "type": "gemini", "content": "c", "model": "gemini-x",
        "toolCalls": [{"name": "glob"}], "tokens": {"input": 8, "output": 9, "cached": 1}})
}

fn gemini_says() -> Value {
    json!({"time": AT, "role": "gemini", "tools": ["glob"], "model": "gemini-x", "id": "g",
        "usage": {"input_tokens": 8, "output_tokens": 9, "cache_read_tokens": 1}})
}

fn gemini() -> Case {
    let user = json!({"id": "u", "timestamp": AT_SHORT, "type": "user", "content": "c"});
    Case {
        name: "session.json",
        bytes: pretty(&json!({"sessionId": "s", "projectHash": "p", "startTime": AT_SHORT,
            "messages": [user, gemini_message()], "lastUpdated": AT_SHORT})),
        format: "gemini",
        status: "in_progress",
        says: vec![
            (1, "user", json!({"time": AT, "role": "user", "id": "u"})),
            (2, "gemini", gemini_says()),
        ],
    }
}

fn gemini_lines() -> Case {
    let first = json!({"sessionId": "s", "projectHash": "p", "startTime": AT_SHORT});
    Case {
        name: "chat.jsonl",
        bytes: lines(&[first, gemini_message()]),
        format: "gemini-lines",
        status: "in_progress",
        says: vec![(1, "gemini", gemini_says())],
    }
}

fn swe_agent() -> Case {
    let step = |n: u64| json!({"action": format!("ls {n}"), "observation": "", "thought": "t"});
    let calls = json!([{"function": {"name": "bash", "arguments": "{}"}}]);
    Case {
        name: "issue.traj",
        bytes: pretty(&json!({"environment": "e", "trajectory": [step(1), step(2), step(3)],
            "history": [
                {"role": "system", "content": "s", "agent": "main"},
                {"role": "assistant", "content": "a", "agent": "main", "tool_calls": calls}],
            "info": {"exit_status": "submitted", "submission": "diff"}})),
        format: "swe-agent",
        status: "completed",
        says: vec![
            (1, "history", json!({"role": "system"})),
            (2, "history", json!({"role": "assistant", "tools": ["bash"]})),
            (4, "trajectory", Value::Null),
        ],
    }
}

fn mini_swe_agent() -> Case {
    let response = json!({"id": "chatcmpl", "model": "gpt-x", "usage": {"prompt_tokens": 6,
        "completion_tokens": 7}});
    Case {
        name: "issue.traj.json",
        bytes: pretty(&json!({"info": {"exit_status": "LimitsExceeded", "mini_version": "2"},
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "assistant", "content": "a", "extra":
                    {"timestamp": 1_767_323_045.5, "response": response}}],
            "trajectory_format": "mini-swe-agent-1"})),
        format: "mini-swe-agent",
        status: "failed",
        says: vec![
            (1, "messages", json!({"role": "system"})),
            (
                2,
                "messages",
                json!({"time": "2026-01-02T03:04:05.500000000Z", "role": "assistant",
                    "model": "gpt-x", "message_id": "chatcmpl",
                    "usage": {"input_tokens": 6, "output_tokens": 7}}),
            ),
        ],
    }
}

pub(crate) fn sample() -> Value {
    let usage = json!({"input_tokens": 1, "output_tokens": 2, "reasoning_tokens": 0});
    json!({"id": 1, "epoch": 1, "input": "i", "messages": [
            {"role": "user", "content": "q", "id": "m1"},
            {"role": "assistant", "content": "a", "id": "m2", "model": "gpt-x",
                "tool_calls": [{"id": "c", "function": "browse", "arguments": {}}]}],
        "events": [
            {"event": "model", "timestamp": "2026-01-01T22:04:05-05:00", "uuid": "e1",
                "model": "gpt-x", "output": {"usage": usage}},
            {"event": "tool", "timestamp": AT_SHORT, "function": "browse", "id": "c"}]})
}

pub(crate) fn inspect_header(status: &str) -> Value {
    json!({"version": 2, "status": status, "eval": {"task": "t", "created": AT_SHORT},
        "stats": {"started_at": AT_SHORT, "completed_at": "2026-01-02T03:05:00Z"}})
}

fn inspect_says() -> Vec<(&'static str, Value)> {
    vec![
        (
            "model",
            json!({"time": AT, "model": "gpt-x", "id": "e1",
                "usage": {"input_tokens": 1, "output_tokens": 2, "reasoning_tokens": 0}}),
        ),
        ("tool", json!({"time": AT, "tools": ["browse"]})),
        ("messages", json!({"role": "user", "id": "m1"})),
        (
            "messages",
            json!({"role": "assistant", "tools": ["browse"], "model": "gpt-x", "id": "m2"}),
        ),
    ]
}

fn inspect() -> Case {
    let mut log = inspect_header("cancelled");
    log["samples"] = json!([sample()]);
    // Keys are in the order of the alphabet: the events in front of the messages.
    let numbers = [1, 2, 4, 5];
    let says = numbers.into_iter().zip(inspect_says());
    Case {
        name: "log.json",
        bytes: pretty(&log),
        format: "inspect",
        status: "cancelled",
        says: says.map(|(number, (kind, facts))| (number, kind, facts)).collect(),
    }
}

fn inspect_eval() -> Case {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    let methods = [CompressionMethod::Deflated, CompressionMethod::Zstd, CompressionMethod::Stored];
    let members = [
        ("_journal/start.json", json!({"version": 2, "eval": {"task": "t"}})),
        ("samples/1_epoch_1.json", sample()),
        ("header.json", inspect_header("error")),
    ];
    for (method, (name, member)) in methods.into_iter().zip(members) {
        let options = SimpleFileOptions::default().compression_method(method);
        archive.start_file(name, options).expect("a member");
        archive.write_all(&pretty(&member)).expect("its bytes");
    }
    // The archive is one record, the first member another; the sample begins with what is no step.
    let numbers = [3, 4, 6, 7];
    let says = numbers.into_iter().zip(inspect_says());
    Case {
        name: "log.eval",
        bytes: archive.finish().expect("an archive").into_inner(),
        format: "inspect-eval",
        status: "failed",
        says: says.map(|(number, (kind, facts))| (number, kind, facts)).collect(),
    }
}

fn atif() -> Case {
    let metrics = json!({"prompt_tokens": 5, "completion_tokens": 6, "cached_tokens": 4,
        "cost_usd": 0.25});
    Case {
        name: "trajectory.json",
        bytes: serde_json::to_vec(&json!({"schema_version": "ATIF-v1.4", "session_id": "s",
            "agent": {"name": "a", "version": "1"}, "steps": [
                {"step_id": 1, "source": "user", "timestamp": AT_SHORT, "message": "m"},
                {"step_id": 2, "source": "agent", "timestamp": AT_SHORT, "message": "m",
                    "model_name": "gpt-x", "metrics": metrics,
                    "tool_calls": [{"tool_call_id": "c", "function_name": "bash"}]}]}))
        .expect("JSON"),
        format: "atif",
        status: "in_progress",
        says: vec![
            (1, "user", json!({"time": AT, "role": "user", "id": "1"})),
            (
                2,
                "agent",
                json!({"time": AT, "role": "agent", "tools": ["bash"], "model": "gpt-x", "id": "2",
                    "usage": {"input_tokens": 5, "output_tokens": 6, "cache_read_tokens": 4,
                        "cost": 0.25}}),
            ),
        ],
    }
}

fn others() -> Vec<Case> {
    let chat = json!([{"role": "user", "content": "q"}, {"role": "tool", "name": "sh",
        "content": "r"}]);
    let case =
        |name, bytes, format, says| Case { name, bytes, format, status: "in_progress", says };
    vec![
        case(
            "chat.json",
            pretty(&chat),
            "chat",
            vec![(2, "-", json!({"role": "tool", "tools": ["sh"]}))],
        ),
        case("any.json", pretty(&json!({"a": {"b": [1, 2]}})), "json", vec![]),
        case("word.json", b"\"word\"".to_vec(), "json", vec![]),
        case(
            "any.jsonl",
            lines(&[json!({"type": "x", "timestamp": AT_SHORT}), json!([1])]),
            "json-lines",
            vec![(0, "x", json!({"time": AT}))],
        ),
        case("notes.md", "# Notes\r\n\nsome text, \u{e9}".into(), "text", vec![]),
        case("agent.log", b"12:00 start\n12:01 stop\n".to_vec(), "text", vec![]),
    ]
}

fn cases() -> Vec<Case> {
    let mut all = vec![
        car(),
        claude(),
        claude_stream(),
        codex(),
        pi(),
        openclaw(),
        gemini(),
        gemini_lines(),
        swe_agent(),
        mini_swe_agent(),
        inspect(),
        inspect_eval(),
        atif(),
    ];
    all.extend(others());
    all
}

/// A folder `logs` with a file of each format.
pub(crate) fn written() -> (World, Vec<Case>) {
    let (world, cases) = (World::new(), cases());
    for (number, case) in cases.iter().enumerate() {
        world.write(&format!("logs/a{number}/{}", case.name), &case.bytes);
    }
    (world, cases)
}

#[test]
fn each_format_is_recognised_and_comes_back_byte_for_byte() {
    let (world, cases) = written();
    let told = world.good(&["import", "--create", "logs", "--json"]).json();
    assert_eq!(told.len(), cases.len() + 1);
    world.good(&["verify"]);
    for (number, case) in cases.iter().enumerate() {
        let agent = format!("a{number}");
        let run = told.iter().find(|event| event["agent"] == agent.as_str()).expect("told of");
        let said = (&run["format"], &run["status"], &run["result"]);
        assert_eq!(said, (&json!(case.format), &json!(case.status), &json!("imported")), "{run}");
        let run = run["run"].as_str().expect("a run");
        let shown = world.good(&["show", run, "--agent", &agent, "--raw"]).stdout;
        assert!(shown == case.bytes, "{}: {}", case.name, String::from_utf8_lossy(&shown));
        let rows = world.good(&["show", run, "--agent", &agent, "--json"]).json();
        for (number, kind, facts) in &case.says {
            let row = &rows[*number];
            let shown = row["kind"].as_str().unwrap_or("-");
            assert_eq!(shown, if *kind == "-" { shown } else { *kind }, "{}: {row}", case.name);
            assert_eq!(row["facts"], *facts, "{}: {row}", case.name);
            if let Some(time) = facts.get("time") {
                assert_eq!(row["timestamp"], *time, "{}: {row}", case.name);
            }
        }
    }
}

#[test]
fn what_was_imported_is_there_already() {
    let (world, cases) = written();
    world.good(&["import", "--create", "logs"]);
    let before = world.good(&["ls", "--all", "--json"]).stdout;
    let again = world.good(&["import", "logs", "--json"]).json();
    let sums = again.last().expect("a summary");
    assert_eq!(sums["already_there"], cases.len());
    assert_eq!((&sums["imported"], &sums["records"]), (&json!(0), &json!(0)));
    assert_eq!(world.good(&["ls", "--all", "--json"]).stdout, before);
}

#[test]
fn the_metadata_say_from_which_file_in_which_format_with_which_digest() {
    let (world, cases) = written();
    world.good(&["import", "--create", "logs"]);
    let log = world.open();
    for (number, case) in cases.iter().enumerate() {
        let agent = format!("a{number}");
        let query = runlog::RunQuery::new().agent(&agent);
        let run = log.runs(&query).next().expect("a run").expect("a run");
        let metadata = log.metadata(&run).expect("metadata").expect("metadata");
        let origin: Value = serde_json::from_slice(metadata.payload()).expect("JSON");
        assert_eq!(origin["imported_from"], case.name);
        let path = origin["path"].as_str().expect("a path");
        assert!(path.ends_with(&format!("logs/{agent}/{}", case.name)), "{path}");
        assert_eq!(
            (&origin["format"], &origin["bytes"]),
            (&json!(case.format), &json!(case.bytes.len()))
        );
        assert_eq!(origin["records"], run.records);
        let digest = sha2::Sha256::digest(&case.bytes);
        let number = digest.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat();
        assert_eq!(origin["digest"], format!("sha256:{number}"));
    }
    log.close().expect("closed");
}

/// What is neither JSON nor text is named, and is a failure unless the user says otherwise.
#[test]
fn files_that_are_not_recognised_are_named_and_counted() {
    let world = World::new();
    world.write("a/core.bin", b"\x7f\xff\0\0\0\0");
    world.write("a/torn.json", "{\"messages\": [");
    world.write("a/good.jsonl", "{}\n");
    world.write("a/.hidden.jsonl", "{}\n");
    let ran = world.run(&["import", "--create", "a"]);
    assert_eq!((ran.code, &*ran.stderr), (Some(1), ""), "{ran:?}");
    for said in [
        "not recognised a/core.bin: neither JSON, nor text",
        "not recognised a/torn.json: not JSON: it ends early in line 1, column 14",
        "skipped a/.hidden.jsonl: hidden",
        "imported a/good (json-lines): 1 record, 2 B, in_progress",
        "1 run imported into runs.runlog: 1 record, 2 B; 1 skipped; 2 not recognised",
    ] {
        assert!(ran.text().contains(said), "{said}: {ran:?}");
    }
    let ran = world.good(&["import", "a", "--skip-unknown", "--json"]).json();
    let unknown = ran.iter().filter(|event| event["event"] == "unknown").count();
    assert_eq!((unknown, &ran.last().expect("sums")["unknown"]), (2, &json!(2)));
    // A store is passed over.
    let ran = world.good(&["import", ".", "--skip-unknown"]);
    assert!(ran.text().contains("skipped ./runs.runlog: a store of runlog"), "{ran:?}");
}

#[test]
fn a_document_that_changed_is_reported_and_replaced_when_asked_to() {
    let world = World::new();
    let chat = |first: &str| {
        let steps = [first, "b"].map(|said| json!({"role": "user", "content": said}));
        pretty(&json!(steps))
    };
    world.write("a/chat.json", chat("a"));
    world.good(&["import", "--create", "a"]);
    world.write("a/chat.json", chat("c"));
    let ran = world.run(&["import", "a"]);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.contains("is there already and differs from step 1 on; --replace"),
        "{ran:?}"
    );
    assert_eq!(world.good(&["show", "chat", "--raw"]).stdout, chat("a"));
    world.good(&["import", "a", "--replace"]);
    assert_eq!(world.good(&["show", "chat", "--raw"]).stdout, chat("c"));
    let sums = world.good(&["import", "a", "--replace", "--json"]).json();
    assert_eq!(sums.last().expect("sums")["already_there"], 1);
}

#[test]
fn an_import_of_a_document_that_was_cut_short_is_done_anew() {
    let world = World::new();
    let case = swe_agent();
    world.write("a/issue.traj", &case.bytes);
    world.good(&["import", "--create", "a"]);
    let log = world.open();
    let metadata = log.metadata("issue").expect("metadata").expect("metadata").into_payload();
    log.delete_run("issue").expect("deleted");
    let writer = log.start_run("a", "issue", runlog::Metadata::json(&metadata)).expect("a run");
    let _ = writer.append_record(&runlog::NewRecord::new(b"{").kind("document")).expect("a record");
    drop(writer);
    log.close().expect("closed");
    world.good(&["import", "a"]);
    assert_eq!(world.good(&["show", "issue", "--raw"]).stdout, case.bytes);
    assert_eq!(world.good(&["ls", "--json"]).json()[0]["status"], "completed");
}

/// What a program appended to an imported run is never taken away without being asked.
#[test]
fn a_run_that_a_program_went_on_with_is_kept() {
    let world = World::new();
    world.write("a/chat.json", "{\"messages\": []}");
    world.write("a/lines.jsonl", "{}\n");
    world.good(&["import", "--create", "a"]);
    let log = world.open();
    for run in ["chat", "lines"] {
        let writer = log.writer(run).expect("a writer");
        let _ = writer.append(b"a step of its own").expect("a record");
    }
    log.close().expect("closed");
    world.write("a/lines.jsonl", "{}\n{}\n");
    let ran = world.run(&["import", "a"]);
    assert_eq!(ran.code, Some(1));
    assert_eq!(ran.stderr.matches("is there already and differs").count(), 2, "{ran:?}");
    for run in ["chat", "lines"] {
        assert!(world.good(&["show", run, "--raw"]).text().contains("a step of its own"));
    }
}

/// Reads a folder of real traces where there is one: nothing in it is unmentioned or changed.
#[test]
fn a_folder_of_real_traces_comes_back_byte_for_byte() {
    let Some(folder) = std::env::var_os("RUNLOG_TEST_TRACES") else {
        return;
    };
    let world = World::new();
    let folder = folder.to_str().expect("a path");
    let told = world.good(&["import", "--create", folder, "--json"]).json();
    let runs: Vec<&Value> = told.iter().filter(|event| event["event"] == "run").collect();
    for run in &runs {
        let (agent, run, file) = (&run["agent"], &run["run"], &run["file"]);
        let text = |value: &Value| value.as_str().expect("a string").to_owned();
        let shown = world.good(&["show", &text(run), "--agent", &text(agent), "--raw"]).stdout;
        assert!(shown == fs::read(text(file)).expect("the file"), "{file}");
    }
    let mut files = 0;
    let mut folders = vec![std::path::PathBuf::from(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() { folders.push(path) } else { files += 1 }
        }
    }
    assert_eq!(runs.len(), files);
}
