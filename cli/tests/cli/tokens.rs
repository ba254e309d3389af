//! `usage`: what messages say of tokens and cost, each counted once.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::world::World;

/// A line of Claude Code: a part of an answer, with what the answer as a whole used so far.
fn claude(session: &str, (uuid, message): (&str, &str), at: &str, output: u64) -> String {
    let line = json!({"type": "assistant", "uuid": uuid, "sessionId": session, "timestamp": at,
        "message": {"role": "assistant", "id": message, "model": "claude-x",
            "content": [{"type": "text", "text": "words"}],
            "usage": {"input_tokens": 10, "output_tokens": output,
                "cache_creation_input_tokens": 4, "cache_read_input_tokens": 100}}});
    format!("{line}\n")
}

fn codex(kind: &str, payload: &Value) -> String {
    let line = json!({"timestamp": "2026-01-03T00:00:00Z", "type": kind, "payload": payload});
    format!("{line}\n")
}

fn pi(id: &str, model: &str, cost: Option<f64>) -> String {
    let mut usage = json!({"input": 7, "output": 3});
    if let Some(cost) = cost {
        usage["cost"] = json!({"total": cost});
    }
    let line = json!({"type": "message", "id": id, "timestamp": "2026-01-02T23:59:59Z",
        "message": {"role": "assistant", "model": model, "content": [], "usage": usage}});
    format!("{line}\n")
}

/// Three agents: one with a session that was resumed, one that repeats its sums, one with costs.
fn world() -> World {
    let world = World::new();
    let first = claude("s", ("u1", "msg_1"), "2026-01-02T10:00:00Z", 1)
        + &claude("s", ("u2", "msg_1"), "2026-01-02T10:00:01Z", 20)
        + &claude("s", ("u3", "msg_2"), "2026-01-02T11:00:00Z", 5);
    let resumed = first.clone() + &claude("s", ("u4", "msg_3"), "2026-01-03T11:00:00Z", 6);
    world.write("runs/claude/one.jsonl", first);
    let count = |total: u64, last: u64| {
        codex(
            "event_msg",
            &json!({"type": "token_count", "info": {
                "total_token_usage": {"input_tokens": total},
                "last_token_usage": {"input_tokens": last, "cached_input_tokens": 2,
                    "output_tokens": 8, "reasoning_output_tokens": 5}}}),
        )
    };
    let rollout = codex("session_meta", &json!({"id": "c"}))
        + &codex("turn_context", &json!({"model": "gpt-x"}))
        + &count(50, 50)
        + &count(50, 50)
        + &count(90, 40);
    world.write("runs/codex/c.jsonl", rollout);
    let session = json!({"type": "session", "id": "p", "timestamp": "2026-01-02T23:00:00Z",
        "cwd": "/"});
    let turns = pi("1", "m", Some(0.25)) + &pi("2", "n", Some(0.5)) + &pi("3", "n", None);
    world.write("runs/pi/p.jsonl", format!("{session}\n{turns}"));
    world.good(&["import", "--create", "."]);
    // Of runs that began at the same time, the one that was there first.
    world.write("runs/claude/two.jsonl", resumed);
    world.good(&["import", "."]);
    world
}

/// The rows by what they are of, and the sum of all.
fn rows(world: &World, args: &[&str]) -> (BTreeMap<String, Value>, Value) {
    let printed = world.good(&[&["usage", "--json", "--all"], args].concat()).json();
    let mut named = BTreeMap::new();
    for row in &printed {
        let name = ["day", "model", "run", "agent"].iter().find_map(|key| row[key].as_str());
        named.insert(name.unwrap_or("-").to_owned(), row.clone());
    }
    let total = named.remove("-").expect("a sum");
    assert_eq!(total["what"], "total");
    (named, total)
}

fn tokens(row: &Value) -> Vec<u64> {
    let fields = [
        "messages",
        "input_tokens",
        "output_tokens",
        "cache_read_tokens",
        "cache_write_tokens",
        "reasoning_tokens",
    ];
    fields.iter().map(|field| row[field].as_u64().expect("a number")).collect()
}

#[test]
fn each_message_counts_once_whatever_repeats_it() {
    let world = world();
    let (agents, total) = rows(&world, &[]);
    assert_eq!(tokens(&agents["claude"]), [3, 30, 31, 300, 12, 0]);
    assert_eq!(tokens(&agents["codex"]), [2, 90, 16, 4, 0, 10]);
    assert_eq!(tokens(&agents["pi"]), [3, 21, 9, 0, 0, 0]);
    assert_eq!(tokens(&total), [8, 141, 56, 304, 12, 10]);
    // What two runs have counts for the one that began first.
    let (runs, _) = rows(&world, &["--by", "run"]);
    assert_eq!(tokens(&runs["one"]), [2, 20, 25, 200, 8, 0]);
    assert_eq!(tokens(&runs["two"]), [1, 10, 6, 100, 4, 0]);
}

#[test]
fn the_sums_by_each_thing_are_the_sum_of_all() {
    let world = world();
    let (_, total) = rows(&world, &[]);
    for by in ["agent", "run", "model", "day"] {
        let (rows, same) = rows(&world, &["--by", by]);
        assert_eq!(same, total, "{by}");
        let mut sum = vec![0; 6];
        for row in rows.values() {
            sum.iter_mut().zip(tokens(row)).for_each(|(sum, tokens)| *sum += tokens);
        }
        assert_eq!(sum, tokens(&total), "{by}");
    }
}

#[test]
fn models_are_those_of_the_message_or_of_the_turn_and_days_those_of_utc() {
    let world = world();
    let (models, _) = rows(&world, &["--by", "model"]);
    assert_eq!(models.keys().collect::<Vec<_>>(), ["claude-x", "gpt-x", "m", "n"]);
    assert_eq!(tokens(&models["gpt-x"])[..2], [2, 90]);
    let (days, _) = rows(&world, &["--by", "day"]);
    assert_eq!(days.keys().collect::<Vec<_>>(), ["2026-01-02", "2026-01-03"]);
    assert_eq!(tokens(&days["2026-01-03"])[..2], [3, 100]);
    let (days, total) = rows(&world, &["--by", "day", "--since", "2026-01-03T00:00:00Z"]);
    assert_eq!((days.len(), &tokens(&total)[..2]), (1, &[3, 100][..]));
}

#[test]
fn costs_are_added_where_the_data_has_them_and_the_rest_is_marked() {
    let world = world();
    let (models, total) = rows(&world, &["--by", "model"]);
    assert_eq!(
        (&models["n"]["cost"], &models["n"]["messages_with_cost"]),
        (&0.5.into(), &1.into())
    );
    assert_eq!((&total["cost"], &total["messages_with_cost"]), (&0.75.into(), &2.into()));
    let text = world.good(&["usage", "--by", "model"]).text().to_owned();
    let line =
        |name: &str| text.lines().find(|line| line.starts_with(name)).expect("a line").trim_end();
    assert!(line("m ").ends_with("$0.2500") && line("n ").ends_with("$0.5000+"), "{text}");
    assert!(line("gpt-x").ends_with(" 10") && line("(all)").ends_with("$0.7500+"), "{text}");
    assert_eq!(models["gpt-x"]["cost"], Value::Null);
}

/// SWE-agent tells it only there, mini-swe-agent in part with its messages, in front or behind.
#[test]
fn what_a_run_used_as_a_whole_counts_once_and_for_what_its_messages_do_not_say() {
    let world = World::new();
    let stats = json!({"total_cost": 9.0, "instance_cost": 0.5, "tokens_sent": 100,
        "tokens_received": 20, "api_calls": 3});
    let quoted = r#"a log said: {"model_stats": {"tokens_sent": 7000, "api_calls": 1}}"#;
    let traj = json!({"environment": "e", "trajectory": [{"action": "ls", "observation": quoted}],
        "history": [{"role": "user", "content": quoted, "agent": "main"}],
        "info": {"exit_status": "submitted", "submission": quoted, "model_stats": stats}});
    world.write("runs/swe/one.traj", traj.to_string());
    let free = json!({"trajectory": [{"action": "ls", "observation": ""}], "info":
        {"model_stats": {"instance_cost": 0, "tokens_sent": 0, "tokens_received": 0,
            "api_calls": 0}}});
    world.write("runs/swe/free.traj", free.to_string());
    let message = |id: &str, sent: u64| {
        json!({"role": "assistant", "content": "a", "extra": {"response": {"id": id, "model": "m",
            "usage": {"prompt_tokens": sent, "completion_tokens": 7}}}})
    };
    let info = r#""info":{"mini_version":"2","config":{"model":{"model_name":"m"}},
        "model_stats":{"instance_cost":0.25,"api_calls":2}}"#;
    for (name, ids) in [("front", ["1", "2"]), ("behind", ["3", "4"])] {
        let [first, second] = ids.map(|id| message(id, 6).to_string());
        let messages = format!(r#""messages":[{first},{second}]"#);
        let text = match name {
            "front" => format!("{{{info},{messages}}}"),
            _ => format!("{{{messages},{info}}}"),
        };
        world.write(&format!("runs/mini/{name}.traj.json"), text);
    }
    world.good(&["import", "--create", "."]);
    let (runs, total) = rows(&world, &["--by", "run"]);
    let said = |run: &str| (tokens(&runs[run]), runs[run]["cost"].clone());
    assert_eq!(said("one"), (vec![3, 100, 20, 0, 0, 0], json!(0.5)));
    assert_eq!(said("front"), (vec![2, 12, 14, 0, 0, 0], json!(0.25)));
    assert_eq!(said("behind"), said("front"));
    assert!(!runs.contains_key("free"));
    assert_eq!(total["messages_with_cost"], 7);
    let (models, _) = rows(&world, &["--by", "model"]);
    assert_eq!(tokens(&models["m"]), [4, 24, 28, 0, 0, 0]);
}

#[test]
fn a_store_without_usage_has_only_the_sum() {
    let world = World::new();
    world.open().close().expect("closed");
    let (rows, total) = rows(&world, &[]);
    assert_eq!((rows.len(), tokens(&total)), (0, vec![0; 6]));
    assert_eq!(world.run(&["usage", "--by", "colour"]).code, Some(2));
}
