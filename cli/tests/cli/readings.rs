//! Kinds, times, tools, models and usage of each format, record by record, against a reading of the
//! same files by a script in another language (`tests/readings.py`).

use std::io::{Cursor, Write as _};
use std::path::Path;
use std::process::Command;

use runlog::Timestamp;
use serde_json::{Map, Value, json};
use zip::CompressionMethod;
use zip::write::{SimpleFileOptions, ZipWriter};

use crate::formats;
use crate::world::World;

/// What the script reads in these files; nothing where there is no Python.
fn read(files: &[String]) -> Option<Vec<Value>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/readings.py");
    let ran = match Command::new("python3").arg(script).args(files).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("skipped: there is no python3");
            return None;
        }
        ran => ran.expect("it runs"),
    };
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let lines = String::from_utf8(ran.stdout).expect("UTF-8");
    Some(lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect())
}

/// What the command says of a record, in the form of the script.
fn said(row: &Value) -> Value {
    let mut facts = row["facts"].as_object().cloned().unwrap_or_default();
    if let Some(time) = facts.get_mut("time") {
        let at: Timestamp = time.as_str().expect("a time").parse().expect("a time");
        *time = json!(at.0);
    }
    let mut said = Map::from_iter([("kind".to_owned(), row["kind"].clone())]);
    said.extend(facts);
    Value::Object(said)
}

/// Compares what is read of all files that were imported with what the script reads; answers how
/// many records that are.
fn compare(world: &World, told: &[Value]) -> Option<usize> {
    let runs: Vec<&Value> = told.iter().filter(|event| event["event"] == "run").collect();
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let files: Vec<String> = runs.iter().map(|run| text(&run["file"])).collect();
    let paths = files.iter().map(|file| world.path(file).to_str().expect("a path").to_owned());
    let read = read(&paths.collect::<Vec<_>>())?;
    let mut compared = 0;
    for ((run, file), read) in runs.iter().zip(&files).zip(&read) {
        assert_eq!(run["format"], read["format"], "{file}");
        let (agent, id) = (text(&run["agent"]), text(&run["run"]));
        let rows = world.good(&["show", &id, "--agent", &agent, "--json"]).json();
        // What stands between the steps of a document.
        let is_step = |row: &&Value| !matches!(row["kind"].as_str(), Some("document" | "member"));
        let said: Vec<Value> = rows.iter().filter(is_step).map(said).collect();
        let records = read["records"].as_array().expect("records");
        for (number, (said, read)) in said.iter().zip(records).enumerate() {
            assert_eq!(said, read, "{file}: record {number}");
        }
        let is_alone = rows.len() == 1 && rows[0]["kind"] == "document";
        assert!(said.len() == records.len() || is_alone, "{file}: {} records", said.len());
        // By itself: what it has of another run would count for that one.
        let used = world.good(&["usage", "--agent", &agent, "--json"]).json().pop().expect("a sum");
        for (name, sum) in read["usage"].as_object().expect("usage") {
            let counted = used[name].as_f64().unwrap_or(0.0);
            let sum = sum.as_f64().expect("a number");
            assert!((counted - sum).abs() < 1e-9, "{file}: {name}: {counted} and not {sum}");
        }
        compared += said.len();
    }
    Some(compared)
}

/// More of what the programs write: several turns, repetitions, values that are nothing.
fn more(world: &World) {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    let deflated = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
    let (header, sample) = (formats::inspect_header("success"), formats::sample());
    for (name, member) in [("header.json", header), ("samples/1_epoch_1.json", sample)] {
        archive.start_file(name, deflated).expect("a member");
        archive.write_all(member.to_string().as_bytes()).expect("its bytes");
    }
    let archive = archive.finish().expect("an archive").into_inner();
    world.write("logs/m1/deflated.eval", archive);
    let lines = |values: &[Value]| {
        values.iter().fold(String::new(), |text, line| text + &format!("{line}\n"))
    };
    let answer = |uuid: &str, output: u64| {
        json!({"type": "assistant", "uuid": uuid, "sessionId": "s",
            "timestamp": "2026-02-28T23:59:59.123456789+05:30",
            "message": {"role": "assistant", "id": "msg_1", "model": "claude-x", "content": [],
                "usage": {"input_tokens": 3, "output_tokens": output,
                    "cache_creation_input_tokens": 9}}})
    };
    let tool = json!([{"type": "tool_use", "name": "Read"}, {"type": "tool_use", "name": ""}]);
    let mut called = answer("u3", 7);
    called["message"]["content"] = tool;
    world.write("logs/m2/turns.jsonl", lines(&[answer("u1", 1), answer("u2", 7), called]));
    let count = |total: u64| {
        json!({"timestamp": "2028-02-29T00:00:00Z", "type": "event_msg", "payload":
            {"type": "token_count", "info": {"total_token_usage": {"input_tokens": total},
                "last_token_usage": {"input_tokens": 5, "cached_input_tokens": 4}}}})
    };
    let first = json!({"timestamp": "2026-01-02T03:04:05", "type": "session_meta", "payload":
        {"id": "", "cwd": "/w"}});
    world.write("logs/m3/counts.jsonl", lines(&[first, count(5), count(5), count(10)]));
    let torn = lines(&[json!({"type": "two words", "timestamp": "1969-12-31T23:59:59.5Z"})])
        + "not JSON\n\n[1, 2]\n{\"type\": \"last\"}";
    world.write("logs/m4/torn.jsonl", torn);
    let traj = json!({"trajectory": [{"action": "a", "observation": "o"}], "history": [],
        "info": {"model_stats": {"instance_cost": 0.125, "tokens_sent": 11, "tokens_received": 2,
            "api_calls": 4, "total_cost": 7}}});
    world.write("logs/m5/whole.traj", traj.to_string());
}

#[test]
fn another_program_reads_the_same_in_each_record_of_each_format() {
    let (world, _) = formats::written();
    more(&world);
    let mut told = world.damaged(&["import", "--create", "logs", "--json"]).json();
    // Python has no zstd, with which the other archive is compressed.
    told.retain(|event| !event["file"].as_str().is_some_and(|file| file.ends_with("log.eval")));
    let Some(compared) = compare(&world, &told) else { return };
    assert!(compared > 50, "{compared}");
}

/// Of real traces, where there are any: each file is of an agent of its own.
#[test]
fn another_program_reads_the_same_in_real_traces() {
    let Some(folder) = std::env::var_os("RUNLOG_TEST_TRACES") else { return };
    let world = World::new();
    let mut folders = vec![std::path::PathBuf::from(folder)];
    let mut number = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
            world.write(&format!("logs/t{number}/{name}"), std::fs::read(&path).expect("a file"));
            number += 1;
        }
    }
    let told = world.run(&["import", "--create", "logs", "--json"]).json();
    println!("{:?} records are read the same", compare(&world, &told));
}
