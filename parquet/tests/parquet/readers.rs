//! `DuckDB` and pandas read the tables, and their sums are those of the store.
//!
//! `RUNLOG_PYTHON` names a Python that has duckdb, pandas and pyarrow; `.ci/run` makes one. Without
//! it these tests print that and pass.

use std::path::{Path, PathBuf};
use std::process::Command;

use runlog::{NewRecord, Options, Outcome, Reader};
use runlog_parquet::export;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Runs a script with the folder of the tables as its argument, and reads the JSON that it prints.
fn python(script: &str, tables: &Path) -> Option<Value> {
    let Some(python) = std::env::var_os("RUNLOG_PYTHON") else {
        println!("not run: RUNLOG_PYTHON names no Python with duckdb and pandas");
        return None;
    };
    let ran = Command::new(python).arg("-c").arg(script).arg(tables).output().expect("it starts");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    Some(serde_json::from_slice(&ran.stdout).expect("JSON"))
}

const DAY: i64 = 86_400_000_000_000;

/// Two agents with answers on two days, each with ids of its own. One answer has several records,
/// and one record has bytes.
fn tables() -> (TempDir, PathBuf, u64) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("runs.runlog");
    let log = Options::new().open(&path).expect("a store");
    let mut bytes = 0;
    for (agent, day) in [("alpha", 1), ("beta", 2)] {
        let run = log.start_run(agent, "run", ()).expect("a run");
        for (message, output) in [("m1", 1), ("m1", 7), ("m2", 5)] {
            let at = runlog::Timestamp(day * DAY).to_string();
            let id = format!("{message}-{day}");
            let line = json!({"type": "assistant", "uuid": "u", "sessionId": "s", "timestamp": at,
                "message": {"role": "assistant", "id": id, "model": "x", "content": [
                    {"type": "tool_use", "name": "Bash"}],
                    "usage": {"input_tokens": 10, "output_tokens": output}}});
            let line = line.to_string();
            bytes += line.len() as u64;
            let record = NewRecord::new(line.as_bytes())
                .content_type(runlog::ContentType::JSON_LINE)
                .at(runlog::Timestamp(day * DAY));
            let _ = run.append_record(&record).expect("an append");
        }
        let _ = run.append(b"\xff\x00").expect("an append");
        bytes += 2;
        if agent == "alpha" {
            let _ = run.end(&Outcome::completed()).expect("an end");
        }
    }
    log.close().expect("closed");
    let tables = folder.path().join("tables");
    let store = Reader::open(&path).expect("a reader");
    let exported = export(&store, &tables, None).expect("tables");
    // What `runlog du` adds up.
    let usage = store.usage().expect("usage");
    assert_eq!(usage.agents.iter().map(|agent| agent.runs.bytes).sum::<u64>(), bytes);
    assert_eq!((exported.runs, exported.records, exported.bytes), (2, 8, bytes));
    (folder, tables, bytes)
}

#[test]
fn duckdb_answers_records_tokens_and_bytes_per_agent_and_day() {
    let (_folder, tables, bytes) = tables();
    let script = r#"
import duckdb, json, sys
rows = duckdb.sql(f"""
    select agent, count(*), sum(messages), sum(input_tokens), sum(output_tokens),
           sum(octet_length(payload))
    from '{sys.argv[1]}/records.parquet' group by agent order by agent""").fetchall()
days = duckdb.sql(f"""
    set timezone = 'UTC';
    select agent, strftime(message_time, '%Y-%m-%d') as day, sum(input_tokens)
    from '{sys.argv[1]}/records.parquet' where messages > 0 or message_time is not null
    group by all order by all""").fetchall()
joined = duckdb.sql(f"""
    select count(*) from '{sys.argv[1]}/records.parquet' join '{sys.argv[1]}/runs.parquet'
    using (run_number) where status = 'completed'""").fetchall()
print(json.dumps([[[int(c) if not isinstance(c, str) else c for c in r] for r in t]
                  for t in (rows, days, joined)]))
"#;
    let Some(read) = python(script, &tables) else { return };
    let expected = json!([
        [["alpha", 4, 2, 20, 12, bytes / 2], ["beta", 4, 2, 20, 12, bytes / 2]],
        [["alpha", "1970-01-02", 20], ["beta", "1970-01-03", 20]],
        [[4]],
    ]);
    assert_eq!(read, expected);
}

#[test]
fn pandas_reads_payloads_as_bytes_and_text_where_it_is_text() {
    let (_folder, tables, _) = tables();
    let script = r#"
import json, sys, pandas
records = pandas.read_parquet(sys.argv[1] + "/records.parquet")
runs = pandas.read_parquet(sys.argv[1] + "/runs.parquet")
texts = [t for t in records["text"] if t is not None and t == t]
pairs = zip(records["text"], records["payload"])
assert all(text.encode() == payload for text, payload in pairs if isinstance(text, str))
print(json.dumps([len(records), len(texts), records["payload"].iloc[3].hex(),
                  list(records["tools"].iloc[0]), records["role"].iloc[0], records["model"].iloc[0],
                  sorted(runs["status"]), str(records["time"].dtype),
                  int(records["output_tokens"].sum()), [int(s) for s in records["seq"]]]))
"#;
    let Some(read) = python(script, &tables) else { return };
    let expected = json!([
        8,
        6,
        "ff00",
        ["Bash"],
        "assistant",
        "x",
        ["completed", "in_progress"],
        "datetime64[ns, UTC]",
        24,
        [0, 1, 2, 3, 0, 1, 2, 3],
    ]);
    assert_eq!(read, expected);
}
