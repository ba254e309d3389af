//! Sessions as programs leave them on disk: each is one run with the id of the session, its title
//! and what it used, and its files come back byte for byte.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use runlog::{Metadata, NewRecord, Options};
use serde_json::{Value, json};

use crate::world::World;

fn lines(values: &[Value]) -> String {
    values.iter().fold(String::new(), |text, line| text + &line.to_string() + "\n")
}

/// What `import` of the folder `in` answers, as JSON, whatever the exit code.
fn import(world: &World) -> Vec<Value> {
    world.run(&["import", "--create", "in", "--json"]).json()
}

/// Agent, run and status of each run, its title, and what it used: messages, input, output.
fn runs(world: &World) -> BTreeMap<String, (String, Option<String>, [u64; 3])> {
    let used = world.good(&["usage", "--by", "run", "--all", "--json"]).json();
    let tokens = |id: &str| {
        let row = used.iter().find(|row| {
            row["what"] == "run"
                && format!("{}/{}", row["agent"], row["run"]).replace('"', "") == id
        });
        ["messages", "input_tokens", "output_tokens"]
            .map(|key| row.map_or(0, |row| row[key].as_u64().expect("a number")))
    };
    let listed = world.good(&["ls", "--titles", "--all", "--json"]).json();
    let run = |row: &Value| {
        let text = |key: &str| row[key].as_str().map(str::to_owned);
        let id = format!("{}/{}", text("agent").expect("one"), text("run").expect("one"));
        let used = tokens(&id);
        (id, (text("status").expect("one"), text("title"), used))
    };
    listed.iter().map(run).collect()
}

/// All files below a folder, by their paths in it.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let (mut found, mut waiting) = (BTreeMap::new(), vec![folder.to_path_buf()]);
    while let Some(next) = waiting.pop() {
        for entry in fs::read_dir(next).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                waiting.push(path);
            } else {
                let name = path.strip_prefix(folder).expect("below").to_str().expect("UTF-8");
                found.insert(name.to_owned(), fs::read(&path).expect("a file"));
            }
        }
    }
    found
}

fn status(run: &(String, Option<String>, [u64; 3])) -> (&str, Option<&str>, [u64; 3]) {
    (&run.0, run.1.as_deref(), run.2)
}

fn copilot(id: &str) -> String {
    let event = |kind: &str, second: u64, data: Value| {
        json!({"type": kind, "data": data, "id": format!("{id}-{second}"), "parentId": null,
            "timestamp": format!("2026-03-01T10:00:{second:02}Z")})
    };
    let shutdown = |tokens: u64| {
        json!({"shutdownType": "routine", "modelMetrics": {"m": {"requests": {"count": 1},
            "usage": {"inputTokens": tokens, "outputTokens": 20, "cacheReadTokens": 5}}}})
    };
    let says = json!({"messageId": "m1", "content": "Done", "outputTokens": 20});
    lines(&[
        event("session.start", 0, json!({"sessionId": id})),
        event("user.message", 1, json!({"content": "Rename the flag"})),
        event("assistant.message", 2, says),
        event("session.shutdown", 3, shutdown(300)),
        event("session.resume", 4, json!({})),
        event("session.shutdown", 5, shutdown(400)),
    ])
}

const COPILOT: &str = "0f0f0f0f-1111-4222-8333-444444444444";

#[test]
fn a_session_of_copilot_has_the_name_of_its_folder_and_all_that_each_visit_used() {
    let world = World::new();
    let folder = format!("in/session-state/{COPILOT}");
    world.write(&format!("{folder}/events.jsonl"), copilot(COPILOT));
    for beside in ["workspace.yaml", "plan.md", "session.db", "checkpoints/1.md"] {
        world.write(&format!("{folder}/{beside}"), "id: x\n");
    }
    // A session that has no event yet.
    world.write("in/session-state/0f0f0f0f-1111-4222-8333-555555555555/events.jsonl", "");
    import(&world);
    let runs = runs(&world);
    assert_eq!(runs.len(), 2, "{runs:?}");
    let run = &runs[&format!("copilot/{COPILOT}")];
    assert_eq!(status(run), ("completed", Some("Rename the flag"), [2, 700, 40]));
    assert!(runs.contains_key("copilot/0f0f0f0f-1111-4222-8333-555555555555"));
}

/// The two files of a task of Cline.
fn cline(task: &str) -> [String; 2] {
    let said = format!("<task>\n{task}\n</task>");
    let history = json!([
        {"role": "user", "ts": 1_772_000_000_000_u64, "content": [{"type": "text", "text": said}]},
        {"role": "assistant", "ts": 1_772_000_005_000_u64, "content": [
            {"type": "tool_use", "id": "t", "name": "write_to_file", "input": {}}],
            "metrics": {"tokens": {"prompt": 70, "completion": 8, "cached": 3}, "cost": 0.25}}]);
    let request = r#"{"request":"x","tokensIn":70,"tokensOut":8,"cacheReads":3,"cost":0.25}"#;
    let seen = json!([
        {"ts": 1_772_000_000_000_u64, "type": "say", "say": "text", "text": task},
        {"ts": 1_772_000_001_000_u64, "type": "say", "say": "api_req_started", "text": request},
        {"ts": 1_772_000_009_000_u64, "type": "ask", "ask": "completion_result", "text": ""}]);
    [history.to_string(), serde_json::to_string_pretty(&seen).expect("JSON")]
}

#[test]
fn a_task_of_cline_is_one_run_by_its_number_and_counts_its_requests_once() {
    let world = World::new();
    for (folder, number, task) in [
        ("tasks", "1772000000000", "Sort the table"),
        ("rooveterinaryinc.roo-cline/tasks", "1772000000001", "Sort the list"),
    ] {
        let [history, seen] = cline(task);
        let folder = format!("in/{folder}/{number}");
        world.write(&format!("{folder}/api_conversation_history.json"), &history);
        world.write(&format!("{folder}/ui_messages.json"), &seen);
        world.write(&format!("{folder}/task_metadata.json"), "{}");
    }
    let newer = json!({"version": 1, "messages": [
        {"id": "a", "role": "user", "ts": 1_772_000_000_000_u64, "content": "Sort the rows"},
        {"id": "b", "role": "assistant", "ts": 1_772_000_000_001_u64, "content": "Sorted",
            "modelInfo": {"id": "m"}, "metrics": {"inputTokens": 40, "outputTokens": 4}}]});
    world.write("in/sessions/s7/s7.messages.json", newer.to_string());
    world.write("in/sessions/s7/s7.json", "{}");
    import(&world);
    let runs = runs(&world);
    assert_eq!(runs.len(), 3, "{runs:?}");
    let task = status(&runs["cline/1772000000000"]);
    assert_eq!(task, ("completed", Some("Sort the table"), [1, 70, 8]));
    assert!(runs.contains_key("roo/1772000000001"), "{runs:?}");
    let session = status(&runs["cline/s7"]);
    assert_eq!(session, ("in_progress", Some("Sort the rows"), [1, 40, 4]));
}

/// The files of a session of `OpenCode`, by their paths in its folder `storage`.
fn opencode() -> Vec<(&'static str, Value)> {
    let session = json!({"id": "ses_a", "directory": "/w", "title": "Cache headers",
        "time": {"created": 1_772_000_000_000_u64, "updated": 1_772_000_009_000_u64}});
    let asks = json!({"id": "msg_1", "sessionID": "ses_a", "role": "user",
        "time": {"created": 1_772_000_001_000_u64}});
    let answers = json!({"id": "msg_2", "sessionID": "ses_a", "role": "assistant", "modelID": "m",
        "cost": 0.5, "tokens": {"input": 90, "output": 9, "cache": {"read": 1, "write": 2}},
        "time": {"created": 1_772_000_002_000_u64}});
    let part = |message: &str, text: &str| {
        json!({"id": "prt", "messageID": message, "sessionID": "ses_a", "type": "text",
            "text": text})
    };
    vec![
        ("session/p/ses_a.json", session),
        ("message/ses_a/msg_1.json", asks),
        ("part/msg_1/prt_1.json", part("msg_1", "Add cache headers")),
        ("message/ses_a/msg_2.json", answers),
        ("part/msg_2/prt_2.json", part("msg_2", "Added")),
    ]
}

#[test]
fn a_session_of_opencode_is_one_run_in_its_storage_and_in_an_export() {
    let world = World::new();
    let files = opencode();
    for (name, value) in &files {
        world.write(&format!("in/storage/{name}"), value.to_string());
    }
    world.write("in/storage/project/p.json", "{}");
    let message =
        |info: usize, part: usize| json!({"info": files[info].1, "parts": [files[part].1]});
    let export = json!({"info": files[0].1, "messages": [message(1, 2), message(3, 4)]});
    world.write("in/other/export.json", serde_json::to_vec_pretty(&export).expect("JSON"));
    import(&world);
    let runs = runs(&world);
    assert_eq!(runs.len(), 2, "{runs:?}");
    let session = &runs["opencode/ses_a"];
    assert_eq!((session.1.as_deref()), Some("Cache headers"));
    assert_eq!(runs["other/export"].1.as_deref(), Some("Add cache headers"));
    let total = world.good(&["usage", "--json"]).json().pop().expect("a sum");
    // Both are the same messages.
    assert_eq!(
        [&total["messages"], &total["input_tokens"], &total["cost"]],
        [1, 90, 0].map(|n| { if n == 0 { json!(0.5) } else { json!(n) } }).each_ref()
    );
}

/// The files of a conversation of `OpenHands`.
fn openhands() -> Vec<(&'static str, Value)> {
    let event = |second: u64, source: &str, kind: &str, more: (&str, Value)| {
        let mut event = json!({"id": format!("e{second}"), "source": source, "kind": kind,
            "timestamp": format!("2026-02-03T04:05:{second:02}.5")});
        event[more.0] = more.1;
        event
    };
    let said = json!({"role": "user", "content": [{"type": "text", "text": "Speed up the build"}]});
    let metrics = json!({"model_name": "m", "accumulated_cost": 0.75,
        "accumulated_token_usage": {"prompt_tokens": 60, "completion_tokens": 6}});
    vec![
        ("events/event-00000-a.json", event(0, "agent", "SystemPromptEvent", ("x", json!(1)))),
        ("events/event-00001-b.json", event(1, "user", "MessageEvent", ("llm_message", said))),
        ("events/event-00002-c.json", event(2, "agent", "ActionEvent", ("tool_name", json!("sh")))),
        (
            "base_state.json",
            json!({"id": "c", "execution_status": "finished",
            "stats": {"usage_to_metrics": {"default": metrics}}}),
        ),
    ]
}

#[test]
fn a_conversation_of_openhands_is_one_run_at_its_time_in_utc() {
    let world = World::new();
    for (name, value) in openhands() {
        world.write(&format!("in/conversations/0042/{name}"), value.to_string());
    }
    world.write("in/conversations/0042/TASKS.json", "[]");
    import(&world);
    let found = runs(&world);
    assert_eq!(found.len(), 1, "{found:?}");
    let run = status(&found["openhands/0042"]);
    assert_eq!(run, ("completed", Some("Speed up the build"), [1, 60, 6]));
    let listed = world.good(&["ls", "--json"]).json();
    assert_eq!(listed[0]["started_at"], "2026-02-03T04:05:00.500000000Z");
    let shown = world.good(&["show", "0042", "--json"]).json();
    let tools: Vec<_> = shown.iter().filter_map(|row| row["facts"]["tools"].get(0)).collect();
    assert_eq!(tools, ["sh"]);
    let roles: Vec<_> = shown.iter().filter_map(|row| row["facts"]["role"].as_str()).collect();
    assert_eq!(roles, ["system", "user", "assistant"]);
}

#[test]
fn the_files_of_a_session_come_back_byte_for_byte_and_are_the_same_session_again() {
    let world = World::new();
    let [history, seen] = cline("Sort the table");
    world.write("in/tasks/1772000000000/api_conversation_history.json", history);
    world.write("in/tasks/1772000000000/ui_messages.json", seen);
    for (name, value) in opencode() {
        world
            .write(&format!("in/storage/{name}"), serde_json::to_vec_pretty(&value).expect("JSON"));
    }
    for (name, value) in openhands() {
        world.write(&format!("in/conversations/c/{name}"), format!("\n {value}\r\n"));
    }
    import(&world);
    let before = runs(&world);
    world.good(&["export", "out"]);
    let (wanted, found) = (files(&world.path("in")), files(&world.path("out")));
    let moved = |name: &str| {
        let folders = [
            ("tasks/", "cline/"),
            ("storage/", "opencode/ses_a/"),
            ("conversations/", "openhands/"),
        ];
        folders.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to))
    };
    let wanted: BTreeMap<_, _> =
        wanted.into_iter().map(|(name, bytes)| (moved(&name), bytes)).collect();
    assert_eq!(found, wanted);
    // Once more from what was exported.
    let again = World::new();
    fs::rename(world.path("out"), again.path("in")).expect("it moves");
    import(&again);
    assert_eq!(runs(&again), before);
    // And an import of the same files is none.
    let told = world.good(&["import", "in", "--json"]).json();
    let results: Vec<_> = told.iter().filter_map(|event| event["result"].as_str()).collect();
    assert_eq!(results, ["already_there"; 3]);
}

#[test]
fn a_session_of_several_files_that_goes_on_is_continued() {
    let world = World::new();
    let folder = "in/conversations/0042";
    for (name, value) in openhands() {
        world.write(&format!("{folder}/{name}"), value.to_string());
    }
    import(&world);
    let said = json!({"role": "user", "content": [{"type": "text", "text": "And the tests"}]});
    let next = json!({"id": "e7", "source": "user", "kind": "MessageEvent",
        "timestamp": "2026-02-03T04:05:07.5", "llm_message": said});
    world.write(&format!("{folder}/events/event-00003-d.json"), next.to_string());
    for result in ["continued", "already_there"] {
        assert_eq!(import(&world)[0]["result"], result);
        let shown = world.good(&["show", "0042", "--json"]).json();
        let asked = shown.iter().filter(|row| row["facts"]["role"] == "user").count();
        assert_eq!(asked, 2);
        let run = &runs(&world)["openhands/0042"];
        assert_eq!(status(run), ("completed", Some("Speed up the build"), [1, 60, 6]));
        world.good(&["export", "out"]);
        let out = files(&world.path("out/openhands/0042"));
        assert_eq!(out, files(&world.path(folder)));
        fs::remove_dir_all(world.path("out")).expect("it goes");
    }
}

#[test]
fn a_file_of_a_session_that_is_torn_off_is_named_and_comes_back() {
    let world = World::new();
    let folder = "in/conversations/0042";
    for (name, value) in openhands() {
        world.write(&format!("{folder}/{name}"), value.to_string());
    }
    let torn = format!("{folder}/events/event-00003-d.json");
    world.write(&torn, r#"{"id": "e7", "sou"#);
    let ran = world.damaged(&["import", "--create", "in"]);
    assert!(ran.text().contains(&format!("  {torn}: not JSON: it ends early")), "{ran:?}");
    assert!(!ran.text().contains("archive"), "{ran:?}");
    world.good(&["export", "out"]);
    assert_eq!(files(&world.path("out/openhands/0042")), files(&world.path(folder)));
}

#[test]
fn a_session_of_several_files_that_changed_is_replaced_only_when_asked_to() {
    let world = World::new();
    let [history, seen] = cline("Sort the table");
    let name = "in/tasks/1772000000000/api_conversation_history.json";
    world.write(name, &history);
    world.write("in/tasks/1772000000000/ui_messages.json", seen);
    import(&world);
    let before = world.good(&["show", "1772000000000", "--raw"]).text().to_owned();
    world.write(name, history.replace("Sort the table", "Drop the table"));
    for _ in 0..2 {
        let ran = world.run(&["import", "in"]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.stderr.contains("differs from step 1 on; --replace"), "{ran:?}");
        assert_eq!(world.good(&["show", "1772000000000", "--raw"]).text(), before);
    }
    world.good(&["import", "in", "--replace"]);
    assert_eq!(world.good(&["ls", "--json"]).json().len(), 1);
    let now = world.good(&["show", "1772000000000", "--raw"]);
    assert!(now.text().contains("Drop the table"), "{now:?}");
}

#[test]
fn a_path_in_a_session_that_leads_elsewhere_is_not_written() {
    let world = World::new();
    for path in ["../evil", "/tmp/evil", "a//b", "", "a/../../evil", &"d/".repeat(20)] {
        let text = format!("{}\n{{}}\n", json!({"runlog_file": {"path": path, "bytes": 2}}));
        let log = Options::new().create(world.store()).expect("a store");
        let origin = json!({"imported_from": "x", "layout": "files", "records": 1});
        let run = log.start_run("a", "x", Metadata::json(origin.to_string().as_bytes()));
        let run = run.expect("a run");
        run.append_record(&NewRecord::new(text.as_bytes()).kind("document")).expect("a record");
        log.close().expect("it closes");
        let ran = world.run(&["export", "out"]);
        assert_eq!(ran.code, Some(1), "{path}: {ran:?}");
        assert_eq!(files(&world.path("out")), BTreeMap::new(), "{path}");
        fs::remove_file(world.store()).expect("it goes");
    }
}

#[test]
fn what_is_not_read_is_called_by_its_name_with_what_to_do() {
    let world = World::new();
    let database = b"SQLite format 3\0\x10\0\x01\x01\0\x40\x20\x20".to_vec();
    for (name, bytes, words) in [
        ("opencode.db", database.clone(), ["SQLite database", "opencode export"]),
        ("sessions.db", database.clone(), ["SQLite database", "Goose"]),
        ("checkpoints.sqlite", database, ["SQLite database", "LangGraph"]),
        ("t.parquet", b"PAR1\x15\0".to_vec(), ["Parquet", "tables"]),
        ("x.tar", [vec![0; 257], b"ustar\x0000".to_vec()].concat(), ["tar archive", "unpack"]),
        ("x.bin", vec![0, 1, 2], ["neither JSON", "nor text"]),
    ] {
        world.write(&format!("{name}/{name}"), bytes);
        let ran = world.run(&["import", "--create", &format!("{name}/{name}")]);
        let said = format!("{}{}", ran.text(), ran.stderr);
        assert_eq!(ran.code, Some(1), "{name}: {said}");
        assert!(words.iter().all(|word| said.contains(word)), "{name}: {said}");
    }
}

/// One file each: its name, its text, and what its run says.
#[test]
fn lines_and_documents_of_each_program_have_a_title_a_status_and_what_they_used() {
    let at = "2026-03-01T10:00:00.000Z";
    let codex =
        |kind: &str, payload: Value| json!({"timestamp": at, "type": kind, "payload": payload});
    let item = |item: Value| codex("event_msg", json!({"type": "item_completed", "item": item}));
    let used = json!({"input_tokens": 50, "cached_input_tokens": 20, "output_tokens": 5});
    let count = json!({"type": "token_count", "info": {"total_token_usage": used,
        "last_token_usage": used}});
    let record = json!({"response_id": "r1", "usage": used});
    let rollout = lines(&[
        codex("session_meta", json!({"id": "t1", "timestamp": at, "cli_version": "0.149.0"})),
        item(json!({"type": "UserMessage", "id": "1", "content": [{"text": "Port it"}]})),
        item(json!({"type": "CommandExecution", "id": "2", "command": ["ls"]})),
        codex("event_msg", count),
        codex("token_usage_record", record),
    ]);
    let turn = |tokens: u64| {
        json!({"type": "turn.completed",
        "usage": {"input_tokens": tokens, "output_tokens": tokens / 10}})
    };
    let begins = json!({"type": "thread.started", "thread_id": "t"});
    let starts = json!({"type": "turn.started"});
    let exec = lines(&[begins.clone(), starts.clone(), turn(100), starts.clone(), turn(250)]);
    let failed = lines(&[
        begins.clone(),
        starts.clone(),
        json!({"type": "turn.failed", "error": {"message": "m"}}),
    ]);
    let runs_on = lines(&[begins, starts.clone(), turn(30), starts]);
    let goose = lines(&[
        json!({"working_dir": "/w", "description": "Sort imports", "message_count": 2,
            "input_tokens": 5, "accumulated_input_tokens": 80, "accumulated_output_tokens": 10}),
        json!({"role": "user", "created": 1_772_000_000, "content": [{"text": "x"}]}),
    ]);
    let request = json!({"requestId": "r", "timestamp": 1_772_000_000_000_u64,
        "message": {"text": "Explain it"}, "response": [], "promptTokens": 40,
        "completionTokens": 4});
    let chat = json!({"version": 3, "sessionId": "s", "requests": [request]});
    let set = |path: Value, value: Value| json!({"kind": 1, "k": path, "v": value});
    let changes = lines(&[
        json!({"kind": 0, "v": {"sessionId": "s", "creationDate": 1_772_000_000_000_u64,
            "requests": []}}),
        json!({"kind": 2, "k": ["requests"],
            "v": [{"requestId": "q", "message": {"text": "Why"}}]}),
        set(json!(["requests", 0, "promptTokens"]), json!(40)),
        set(json!(["requests", 0, "promptTokens"]), json!(60)),
        set(json!(["requests", 0, "completionTokens"]), json!(7)),
        set(json!(["customTitle"]), json!("Reasons")),
    ]);
    let attribute = |key: &str, value: Value| json!({"key": key, "value": value});
    let span = |id: &str, operation: &str, tokens: u64| {
        json!({"traceId": "t", "spanId": id, "startTimeUnixNano": "1772000000000000000",
            "attributes": [attribute("gen_ai.operation.name", json!({"stringValue": operation})),
                attribute("gen_ai.usage.input_tokens", json!({"intValue": tokens.to_string()}))]})
    };
    let trace = |spans: Value| json!({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]});
    // The agent's span has the sum of the others.
    let traces = lines(&[
        trace(json!([span("a", "invoke_agent", 90), span("b", "chat", 40)])),
        trace(json!([span("c", "chat", 50)])),
    ]);
    let world = World::new();
    for (name, text, format, wanted) in [
        ("rollout.jsonl", rollout, "codex", ("in_progress", Some("Port it"), [1, 50, 5])),
        ("exec.jsonl", exec, "codex-exec", ("completed", None, [1, 250, 25])),
        ("failed.jsonl", failed, "codex-exec", ("failed", None, [0, 0, 0])),
        ("on.jsonl", runs_on, "codex-exec", ("in_progress", None, [1, 30, 3])),
        ("goose.jsonl", goose, "goose", ("in_progress", Some("Sort imports"), [1, 80, 10])),
        ("chat.json", chat.to_string(), "vscode", ("in_progress", Some("Explain it"), [1, 40, 4])),
        ("changes.jsonl", changes, "vscode-lines", ("in_progress", Some("Reasons"), [1, 60, 7])),
        ("traces.jsonl", traces, "otlp", ("in_progress", None, [2, 90, 0])),
    ] {
        world.write(name, &text);
        let told = world.good(&["import", "--create", name, "--agent", "a", "--json"]).json();
        let run = told.iter().find(|event| event["event"] == "run").expect("a run");
        assert_eq!(run["format"], format, "{name}");
        let id = format!("a/{}", name.split('.').next().expect("a name"));
        assert_eq!(status(&runs(&world)[&id]), wanted, "{name}");
        let raw = world.good(&["show", &id, "--raw"]);
        assert!(raw.stdout == text.as_bytes(), "{name} comes back");
    }
}

#[test]
fn traces_that_were_exported_say_the_same_usage_when_they_are_imported() {
    let world = World::new();
    let at = |second: u64| format!("2026-03-01T10:00:{second:02}Z");
    // An answer of Claude Code grows while it is streamed.
    let answer = |second: u64, output: u64| {
        json!({"type": "assistant", "uuid": format!("u{second}"), "sessionId": "s",
            "timestamp": at(second), "message": {"role": "assistant", "id": "msg_1", "model": "m",
                "content": [], "usage": {"input_tokens": 30, "output_tokens": output}}})
    };
    world.write("in/claude/c.jsonl", lines(&[answer(1, 1), answer(2, 9)]));
    // One of Gemini is written again.
    let message = |input: u64| {
        json!({"id": "a", "timestamp": at(3), "type": "gemini", "content": "c", "model": "g",
            "tokens": {"input": input, "output": 2}})
    };
    world.write("in/gemini/g.jsonl", lines(&[message(10), message(12)]));
    world.write(&format!("in/session-state/{COPILOT}/events.jsonl"), copilot(COPILOT));
    let stats = json!({"info": {"model_stats": {"api_calls": 3, "tokens_sent": 70,
        "tokens_received": 7, "instance_cost": 0.5}}, "trajectory": [{"action": "a",
        "observation": "o"}], "history": [{"role": "user", "content": "x", "agent": "main"}]});
    world.write("in/swe/t.traj", stats.to_string());
    world.good(&["import", "--create", "in"]);
    world.good(&["export", "out", "--format", "otlp"]);
    let again = World::new();
    fs::rename(world.path("out"), again.path("in")).expect("it moves");
    again.good(&["import", "--create", "in"]);
    let total = |world: &World| world.good(&["usage", "--json"]).json().pop().expect("a sum");
    assert_eq!(total(&world)["input_tokens"], 30 + 12 + 700 + 70);
    let keys = ["messages", "input_tokens", "output_tokens", "cache_read_tokens", "cost"];
    for key in keys {
        assert_eq!(total(&again)[key], total(&world)[key], "{key}");
    }
}
