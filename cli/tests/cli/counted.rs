//! `usage`: what repeats a message in each format, what a file states as its sum, and what is said
//! of runs that say nothing.

use serde_json::{Value, json};

use crate::world::World;

fn lines(values: &[Value]) -> String {
    values.iter().fold(String::new(), |text, line| text + &format!("{line}\n"))
}

/// A store of these files.
fn imported(files: &[(&str, String)]) -> World {
    let world = World::new();
    for (name, text) in files {
        world.write(&format!("in/{name}"), text);
    }
    world.good(&["import", "--create", "in"]);
    world
}

/// The sum of all, in order of the fields: messages, input, output, cost.
fn sum(world: &World) -> (u64, u64, u64, Option<f64>) {
    let rows = world.good(&["usage", "--json"]).json();
    let total = rows.last().expect("a sum");
    let count = |field: &str| total[field].as_u64().expect("a number");
    // To a tenth of a microdollar, as far as people compare.
    let cost = total["cost"].as_f64().map(|cost| (cost * 1e7).round() / 1e7);
    (count("messages"), count("input_tokens"), count("output_tokens"), cost)
}

/// The input of each model.
fn by_model(world: &World) -> Vec<(String, u64)> {
    let rows = world.good(&["usage", "--by", "model", "--json"]).json();
    let models = rows.iter().filter(|row| row["what"] == "model");
    let row = |row: &Value| {
        let model = row["model"].as_str().unwrap_or("-").to_owned();
        (model, row["input_tokens"].as_u64().expect("a number"))
    };
    models.map(row).collect()
}

/// A time of a day in 2026.
fn at(minute: u64, second: u64) -> String {
    format!("2026-03-01T10:{minute:02}:{second:02}Z")
}

fn gemini(id: &str, minute: u64, (input, output): (u64, u64)) -> Value {
    json!({"id": id, "timestamp": at(minute, 0), "type": "gemini", "content": "c", "model": "g",
        "tokens": {"input": input, "output": output, "cached": 1}})
}

#[test]
fn an_answer_that_gemini_writes_again_counts_once() {
    let head = |id: &str| json!({"sessionId": id, "projectHash": "p", "startTime": at(0, 0)});
    let mut longer = gemini("a1", 1, (100, 8));
    longer["content"] = "a longer content".into();
    let first = lines(&[
        head("s1"),
        gemini("a1", 1, (100, 5)),
        longer.clone(),
        json!({"$set": {"lastUpdated": at(2, 0)}}),
        json!({"$set": {"messages": [gemini("a0", 0, (10, 1)), longer]}}),
        gemini("a2", 3, (200, 7)),
    ]);
    // Another session has the same short id at another time.
    let second = lines(&[head("s2"), gemini("a1", 9, (1000, 50))]);
    let world = imported(&[("chats/one.jsonl", first), ("chats/two.jsonl", second)]);
    assert_eq!(sum(&world), (4, 1310, 66, None));
}

/// The lines of a rollout: its thread, and then turns, each with the sum so far.
fn codex(thread: Value, start: (u64, u64), turns: &[(u64, u64, (u64, u64))]) -> String {
    let line = |(minute, second), kind: &str, payload: Value| {
        let time = at(minute, second);
        json!({"timestamp": time, "type": kind, "payload": payload})
    };
    let mut all = vec![line(start, "session_meta", thread)];
    all.push(line(start, "turn_context", json!({"model": "gpt-x"})));
    for (total, last, time) in turns {
        all.push(line(
            *time,
            "event_msg",
            json!({"type": "token_count", "info": {
                "total_token_usage": {"input_tokens": total, "output_tokens": total / 10},
                "last_token_usage": {"input_tokens": last, "output_tokens": last / 10}}}),
        ));
    }
    lines(&all)
}

#[test]
fn turns_that_a_thread_of_codex_copies_from_its_parent_count_once() {
    let spawned = |id: &str| {
        let spawn = json!({"thread_spawn": {"parent_thread_id": "p"}});
        json!({"id": id, "source": {"subagent": spawn}})
    };
    // The parent goes on after the forks, and its third turn is as large as theirs.
    let turns = [(100, 100, (1, 0)), (200, 100, (2, 0)), (300, 100, (20, 0))];
    let parent = codex(json!({"id": "p"}), (0, 0), &turns);
    // Copied at the time of the fork, and then two turns of its own.
    let fork = json!({"id": "f", "forked_from_id": "p"});
    let turns = [(100, 100, (5, 0)), (200, 100, (5, 1)), (300, 100, (6, 0)), (400, 100, (7, 0))];
    let fork = codex(fork, (5, 0), &turns);
    // Copied with the times of the parent, and a turn that is as large as one of the other fork.
    let turns = [(100, 100, (1, 0)), (200, 100, (2, 0)), (300, 100, (9, 0))];
    let child = codex(spawned("c"), (8, 0), &turns);
    // Nothing is copied, and the first turn is as large as the first one of the parent.
    let fresh = codex(spawned("n"), (11, 0), &[(100, 100, (12, 0))]);
    // Of the fork: a fork of a fork.
    let second = json!({"id": "g", "forked_from_id": "f"});
    let turns = [(100, 100, (13, 0)), (200, 100, (13, 0)), (300, 100, (13, 0)), (350, 50, (15, 0))];
    let second = codex(second, (13, 0), &turns);
    let world = imported(&[
        ("codex/parent.jsonl", parent),
        ("codex/fork.jsonl", fork),
        ("codex/child.jsonl", child),
        ("codex/fresh.jsonl", fresh),
        ("codex/second.jsonl", second),
    ]);
    assert_eq!(sum(&world), (3 + 2 + 1 + 1 + 1, 300 + 200 + 100 + 100 + 50, 75, None));
}

#[test]
fn copies_of_a_thread_that_is_not_there_count_once_for_all_its_forks() {
    let fork = |id: &str, start: u64| {
        let turns = [(100, 100, (start, 0)), (200, 100, (start, 1)), (250, 50, (start + 3, 0))];
        codex(json!({"id": id, "forked_from_id": "lost"}), (start, 0), &turns)
    };
    let world = imported(&[("codex/a.jsonl", fork("a", 1)), ("codex/b.jsonl", fork("b", 7))]);
    assert_eq!(sum(&world), (4, 300, 30, None));
}

#[test]
fn a_call_that_codex_records_in_two_ways_counts_once() {
    let record = |id: &str| {
        json!({"timestamp": at(4, 0), "type": "token_usage_record", "payload": {"response_id": id,
            "usage": {"input_tokens": 100, "output_tokens": 10}}})
    };
    let turns = [(100, 100, (1, 0))];
    let begin = codex(json!({"id": "t"}), (0, 0), &turns) + &lines(&[record("r1")]);
    let again = codex(json!({"id": "t"}), (0, 0), &[(200, 100, (2, 0))]);
    let turn = again.lines().last().expect("a turn").to_owned() + "\n";
    let both = begin + &turn + &lines(&[record("r2")]);
    let alone = |thread: &str, last: &str| {
        let meta = json!({"id": thread, "forked_from_id": "t"});
        let meta = json!({"timestamp": at(3, 0), "type": "session_meta", "payload": meta});
        lines(&[meta, record("r2"), record(last), record(last)])
    };
    let world = imported(&[
        ("codex/both.jsonl", both),
        // The same thread goes on elsewhere, and a fork of it has one of its calls.
        ("codex/other/both.jsonl", alone("t", "r3")),
        ("codex/fork.jsonl", alone("f", "r4")),
    ]);
    assert_eq!(sum(&world), (4, 400, 40, None));
}

#[test]
fn entries_that_a_fork_of_pi_copies_count_once() {
    let head = |id: &str| json!({"type": "session", "id": id, "timestamp": at(0, 0), "cwd": "/w"});
    let entry = |id: &str, minute: u64, input: u64| {
        json!({"type": "message", "id": id, "timestamp": at(minute, 0), "message":
            {"role": "assistant", "model": "m", "content": [],
                "usage": {"input": input, "output": 1, "cost": {"total": 0.25}}}})
    };
    let (first, second) = (entry("e1", 1, 10), entry("e2", 2, 20));
    let world = imported(&[
        ("pi/a.jsonl", lines(&[head("a"), first.clone(), second.clone()])),
        ("pi/b.jsonl", lines(&[head("b"), first, second, entry("e9", 5, 40)])),
        // Another session has an id of eight letters by chance.
        ("pi/c.jsonl", lines(&[head("c"), entry("e1", 8, 80)])),
    ]);
    assert_eq!(sum(&world), (4, 150, 4, Some(1.0)));
}

fn inspect(used: &Value, events: &[Value]) -> Value {
    json!({"version": 2, "status": "success", "eval": {"created": at(0, 0), "model": "m"},
        "stats": {"started_at": at(0, 0), "model_usage": used},
        "samples": [{"id": 1, "messages": [{"role": "user", "content": "q"}], "events": events,
            "model_usage": {"m": {"input_tokens": 9_999}}}]})
}

fn model_event(minute: u64, input: u64) -> Value {
    json!({"event": "model", "timestamp": at(minute, 0), "model": "m", "uuid": minute.to_string(),
        "output": {"usage": {"input_tokens": input, "output_tokens": 1}}})
}

#[test]
fn what_a_log_of_inspect_states_counts_for_what_its_events_do_not_say() {
    let used = json!({"m": {"input_tokens": 50, "output_tokens": 5},
        "grader": {"input_tokens": 7, "output_tokens": 1}});
    let mut cached = model_event(3, 1000);
    cached["cache"] = "read".into();
    let events = [model_event(1, 20), model_event(2, 30), cached];
    let none = inspect(&used, &[]).to_string();
    let world = imported(&[("logs/none.json", none)]);
    assert_eq!(sum(&world), (1, 57, 6, None));
    assert_eq!(by_model(&world), [("m".to_owned(), 50), ("grader".to_owned(), 7)]);
    let world = imported(&[("logs/some.json", inspect(&used, &events).to_string())]);
    assert_eq!(sum(&world), (2, 57, 6, None));
    assert_eq!(by_model(&world), [("m".to_owned(), 50), ("grader".to_owned(), 7)]);
    // A log that is tried again has the samples that were done before.
    let again = [events[0].clone(), events[1].clone(), model_event(9, 5)];
    let log = |events: &[Value]| inspect(&json!({}), events).to_string();
    let files = [("logs/a.json", log(&events[..2])), ("logs/b.json", log(&again))];
    assert_eq!(sum(&imported(&files)), (3, 55, 3, None));
}

#[test]
fn a_log_of_inspect_with_numbers_that_are_none_is_read_whole() {
    let used = json!({"m": {"input_tokens": 20, "output_tokens": 1}});
    let mut log = inspect(&used, &[model_event(1, 20)]);
    log["results"] = "NAN".into();
    log["samples"][0]["score"] = "NAN".into();
    log["samples"][0]["events"][0]["score"] = "NAN".into();
    let text = serde_json::to_string_pretty(&log).expect("JSON").replace("\"NAN\"", "NaN");
    let world = imported(&[("logs/nan.json", text.clone())]);
    assert_eq!(sum(&world), (1, 20, 1, None));
    let run = &world.good(&["ls", "--json"]).json()[0];
    assert_eq!(run["status"], "completed");
    assert_eq!(world.good(&["show", "nan", "--raw"]).text(), text);
}

#[test]
fn what_a_trajectory_states_or_copies_counts_once() {
    let step = |source: &str, metrics: Value| {
        json!({"step_id": 1, "timestamp": at(1, 0), "source": source, "message": "m",
            "metrics": metrics})
    };
    let trajectory = |steps: &[Value], finals: Value| {
        json!({"schema_version": "ATIF-v1.6", "agent": {"model_name": "m"}, "steps": steps,
            "final_metrics": finals})
        .to_string()
    };
    let metrics = json!({"prompt_tokens": 200, "completion_tokens": 20, "cost_usd": 0.002});
    let mut copied = step("agent", json!({"prompt_tokens": 100, "cost_usd": 0.5}));
    copied["is_copied_context"] = true.into();
    let finals = json!({"total_prompt_tokens": 200, "total_completion_tokens": 20,
        "total_cached_tokens": 5, "total_cost_usd": 0.002, "total_steps": 2});
    let own = trajectory(&[copied, step("agent", metrics)], finals);
    let only = trajectory(
        &[json!({"step_id": 1, "source": "agent", "message": "m"})],
        json!({"total_prompt_tokens": 4000, "total_completion_tokens": 300,
            "total_cost_usd": 0.031}),
    );
    let world = imported(&[("atif/own.json", own), ("atif/only.json", only)]);
    assert_eq!(sum(&world), (2, 4200, 320, Some(0.033)));
}

fn claude(id: &str, usage: &Value) -> Value {
    json!({"type": "assistant", "uuid": id, "sessionId": "s", "timestamp": at(1, 0), "message":
        {"role": "assistant", "id": id, "model": "c", "content": [], "usage": usage}})
}

#[test]
fn an_advisor_of_claude_counts_besides_the_model_that_asked_it() {
    let usage = json!({"input_tokens": 2, "output_tokens": 491, "iterations": [
        {"type": "message", "input_tokens": 1, "output_tokens": 45},
        {"type": "advisor_message", "model": "o", "input_tokens": 15_000, "output_tokens": 780},
        {"type": "message", "input_tokens": 1, "output_tokens": 446}]});
    let mut error = claude("e", &json!({"input_tokens": 0, "output_tokens": 0}));
    error["message"]["model"] = "<synthetic>".into();
    let twice = lines(&[claude("a", &usage), claude("a", &usage), error]);
    let world = imported(&[("claude/s.jsonl", twice)]);
    assert_eq!(sum(&world), (2, 15_002, 1271, None));
    assert_eq!(by_model(&world), [("o".to_owned(), 15_000), ("c".to_owned(), 2)]);
}

#[test]
fn costs_of_claude_are_those_of_the_line_or_of_the_end_of_a_stream() {
    let usage = json!({"input_tokens": 10, "output_tokens": 20});
    let mut old = claude("old", &usage);
    old["costUSD"] = json!(0.0123);
    let world = imported(&[("claude/old.jsonl", lines(&[old]))]);
    assert_eq!(sum(&world), (1, 10, 20, Some(0.0123)));
    let answer = json!({"type": "assistant", "session_id": "s", "message": {"id": "m",
        "role": "assistant", "model": "c", "content": [], "usage": usage}});
    let mut result = json!({"type": "result", "session_id": "s", "is_error": false,
        "total_cost_usd": 0.0456, "usage": usage, "modelUsage":
        {"c": {"inputTokens": 10, "outputTokens": 20, "costUSD": 0.04},
            "haiku": {"inputTokens": 3, "outputTokens": 1, "costUSD": 0.0056}}});
    let stream = lines(&[answer.clone(), result.clone()]);
    let world = imported(&[("claude/stream.jsonl", stream)]);
    assert_eq!(sum(&world), (1, 13, 21, Some(0.0456)));
    assert_eq!(by_model(&world), [("c".to_owned(), 10), ("haiku".to_owned(), 3)]);
    result.as_object_mut().expect("an object").remove("modelUsage");
    let world = imported(&[("claude/stream.jsonl", lines(&[answer, result]))]);
    assert_eq!(sum(&world), (1, 10, 20, Some(0.0456)));
}

#[test]
fn lines_that_are_not_strict_json_count_like_others() {
    let usage = json!({"input_tokens": 10, "output_tokens": 20});
    let line = |id: &str| claude(id, &usage).to_string();
    let end = "\"type\":\"assistant\"";
    let deep = "[".repeat(300) + &"]".repeat(300);
    let text = [
        line("cut").replace("\"content\":[]", r#""content":[{"type":"text","text":"\ud83d"}]"#),
        line("nan").replace(end, &format!("\"score\":NaN,\"best\":-Infinity,{end}")),
        line("deep").replace(end, &format!("\"deep\":{deep},{end}")),
        line("twice").replace(end, &format!("{end},{end}")),
        line("float").replace(":10,", ":10.0,").replace(":20}", ":\"20\"}"),
    ];
    let world = imported(&[("claude/odd.jsonl", text.join("\n") + "\n")]);
    assert_eq!(sum(&world), (5, 50, 100, None));
    // The records are shown as they are, which the reader of this test does not take.
    let shown = world.good(&["show", "odd", "--json"]).text().replace("\\ud83d", "");
    let shown = shown.replace(&deep, "0");
    for row in shown.lines().map(|line| line.parse::<Value>().expect("JSON")) {
        assert_eq!(row["kind"], "assistant");
        assert_eq!(row["facts"]["role"], "assistant", "{row}");
        assert_eq!(row["facts"]["time"], "2026-03-01T10:01:00.000000000Z", "{row}");
    }
    let raw = world.good(&["show", "odd", "--raw"]);
    assert_eq!(raw.text(), text.join("\n") + "\n");
}

#[test]
fn messages_in_lines_count_like_those_in_a_document() {
    let messages = [
        json!({"role": "user", "content": "Plan a trip"}),
        json!({"role": "assistant", "model": "m", "content": "Sure",
            "usage": {"prompt_tokens": 11, "completion_tokens": 7, "cost": 0.5}}),
    ];
    let document = json!({"messages": messages}).to_string();
    let array = serde_json::to_string_pretty(&messages).expect("JSON");
    for (name, text) in [("a.jsonl", lines(&messages)), ("a.json", document), ("b.json", array)] {
        let world = imported(&[(name, text)]);
        assert_eq!(sum(&world), (1, 11, 7, Some(0.5)), "{name}");
        assert_eq!(by_model(&world), [("m".to_owned(), 11)]);
    }
    let autogen = lines(&[
        json!({"type": "TextMessage", "source": "user", "content": "Plan", "models_usage": null,
            "created_at": at(0, 0)}),
        json!({"type": "TextMessage", "source": "planner", "content": "Sure",
            "models_usage": {"prompt_tokens": 11, "completion_tokens": 7}, "created_at": at(1, 0)}),
    ]);
    assert_eq!(sum(&imported(&[("autogen.jsonl", autogen)])), (1, 11, 7, None));
    let step = json!([{"step_number": 1, "timing": {"start_time": 1_770_000_000.5},
        "token_usage": {"input_tokens": 11, "output_tokens": 7}}]);
    assert_eq!(sum(&imported(&[("smol.json", step.to_string())])), (1, 11, 7, None));
}

#[test]
fn a_copy_of_a_file_counts_once_and_runs_that_say_nothing_are_numbered() {
    let message = json!({"role": "assistant", "content": "a", "usage": {"prompt_tokens": 5}});
    let text = lines(&[message.clone(), message]);
    let world = imported(&[
        ("a/one.jsonl", text.clone()),
        ("b/two.jsonl", text),
        ("a/silent.jsonl", lines(&[json!({"role": "user", "content": "a"})])),
        ("a/mute.jsonl", lines(&[json!({"event": "x"})])),
    ]);
    assert_eq!(sum(&world), (2, 10, 0, None));
    let total = world.good(&["usage", "--json"]).json().pop().expect("a sum");
    assert_eq!((&total["runs_without_usage"], &total["duplicate_runs"]), (&json!(2), &json!(1)));
    let table = world.good(&["usage"]);
    let said: Vec<&str> = table.text().lines().rev().take(2).collect();
    let copy = "1 run is a copy of another run, which counts once";
    assert_eq!(said, [copy, "2 runs say nothing of usage that is understood"]);
    assert!(!table.text().contains('$'), "{}", table.text());
}
