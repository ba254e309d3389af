//! Bytes that programs really write: byte order marks, UTF-16, compression, arrays, values over
//! several lines, and members of archives that cannot be read.

use std::fs;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use zip::write::{SimpleFileOptions, ZipWriter};

use crate::world::{Ran, World};

/// What a user asks, and an answer with what it used.
fn session() -> Vec<Value> {
    let usage = json!({"input_tokens": 100, "output_tokens": 20});
    vec![
        json!({"type": "user", "uuid": "u1", "sessionId": "s", "timestamp": "2026-08-01T10:00:01Z",
            "message": {"role": "user", "content": "Say h\u{e9}llo \u{1f980}"}}),
        json!({"type": "assistant", "uuid": "u2", "sessionId": "s",
            "timestamp": "2026-08-01T10:00:02Z", "message": {"role": "assistant", "id": "msg_1",
            "model": "m", "content": [{"type": "text", "text": "h\u{e9}llo"}], "usage": usage}}),
    ]
}

fn lines() -> String {
    session().iter().map(|line| line.to_string() + "\n").collect()
}

fn utf16(text: &str, bytes: fn(u16) -> [u8; 2]) -> Vec<u8> {
    std::iter::once(0xfeff).chain(text.encode_utf16()).flat_map(bytes).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(bytes).expect("packed");
    packed.finish().expect("packed")
}

fn pretty(values: &[Value]) -> String {
    values.iter().map(|value| serde_json::to_string_pretty(value).expect("JSON") + "\n").collect()
}

fn event(ran: &Ran, name: &str) -> Value {
    let told = ran.json();
    told.iter().find(|event| event["event"] == name).expect("told of").clone()
}

/// Goal: however the same session is written, it is read as it is, and its file comes back.
#[test]
fn a_session_is_read_however_its_characters_are_written() {
    let text = lines();
    let whole = Value::Array(session());
    let files: Vec<(&str, Vec<u8>, Vec<u8>)> = vec![
        ("plain.jsonl", text.clone().into_bytes(), text.clone().into_bytes()),
        ("bom.jsonl", [b"\xef\xbb\xbf", text.as_bytes()].concat(), vec![]),
        ("le.jsonl", utf16(&text, u16::to_le_bytes), vec![]),
        ("be.jsonl", utf16(&text, u16::to_be_bytes), vec![]),
        ("packed.jsonl.gz", gzip(text.as_bytes()), text.clone().into_bytes()),
        ("packed.jsonl.zst", zstd::encode_all(text.as_bytes(), 3).expect("packed"), text.into()),
        ("array.json", whole.to_string().into_bytes(), vec![]),
        ("array.jsonl", (whole.to_string() + "\n").into_bytes(), vec![]),
        ("pretty.json", serde_json::to_vec_pretty(&whole).expect("JSON"), vec![]),
        ("values.jsonl", pretty(&session()).into_bytes(), vec![]),
        ("values.json", utf16(&pretty(&session()), u16::to_le_bytes), vec![]),
    ];
    for (name, bytes, unpacked) in &files {
        let world = World::new();
        world.write(&format!("a/{name}"), bytes);
        let ran = world.good(&["import", "--create", "a", "--json"]);
        let run = event(&ran, "run");
        assert_eq!(run["format"], "claude-code", "{name}");
        assert_eq!(run["run"], name.split('.').next().expect("a name"), "{name}");
        let runs = world.good(&["ls", "--json", "--titles"]).json();
        assert_eq!(runs[0]["title"], "Say h\u{e9}llo \u{1f980}", "{name}");
        assert_eq!(runs[0]["started_at"], "2026-08-01T10:00:01.000000000Z", "{name}");
        let usage = world.good(&["usage", "--json"]).json();
        let total = usage.last().expect("a total");
        assert_eq!(
            (&total["input_tokens"], &total["messages"]),
            (&json!(100), &json!(1)),
            "{name}"
        );
        let file = if unpacked.is_empty() { bytes } else { unpacked };
        let run = run["run"].as_str().expect("a run");
        assert!(world.good(&["show", run, "--raw"]).stdout == *file, "{name}");
        world.good(&["export", "out"]);
        let ending = name.trim_end_matches(".gz").trim_end_matches(".zst");
        assert!(
            fs::read(world.path(&format!("out/a/{ending}"))).expect("a file") == *file,
            "{name}"
        );
        let ran = world.good(&["import", "a", "--json"]);
        assert_eq!(event(&ran, "run")["result"], "already_there", "{name}");
    }
}

#[test]
fn a_file_of_utf16_that_grows_is_gone_on_with() {
    let world = World::new();
    for text in
        ["", "{\"n\":1}\n", "{\"n\":1}\n{\"n\":2}\n{\"h", "{\"n\":1}\n{\"n\":2}\n{\"h\":3}\n"]
    {
        for (name, bytes) in [
            ("a/le.jsonl", utf16(text, u16::to_le_bytes)),
            ("a/bom.jsonl", [b"\xef\xbb\xbf", text.as_bytes()].concat()),
        ] {
            world.write(name, &bytes);
            let ran = world.run(&["import", "--create", name, "--agent", "a"]);
            assert_eq!(ran.stderr, "", "{text:?}");
            let run = name.trim_end_matches(".jsonl");
            assert!(world.good(&["show", run, "--raw"]).stdout == bytes, "{name} {text:?}");
        }
    }
    assert_eq!(world.good(&["ls", "--json"]).json().len(), 2);
}

/// Codex compresses a session once it is old.
#[test]
fn a_session_that_was_compressed_is_the_same_run_and_its_copy_is_none() {
    let world = World::new();
    let name = "codex/sessions/2026/07/01/rollout-1.jsonl";
    world.write(name, lines());
    world.good(&["import", "--create", "codex"]);
    world.write(&format!("{name}.zst"), zstd::encode_all(lines().as_bytes(), 3).expect("packed"));
    let ran = world.good(&["import", "codex"]);
    assert!(ran.text().contains("copies 1"), "{ran:?}");
    fs::remove_file(world.path(name)).expect("removed");
    let ran = world.good(&["import", "codex"]);
    assert!(ran.text().contains("already there codex/rollout-1 "), "{ran:?}");
    let total = world.good(&["usage", "--json"]).json().last().expect("a total").clone();
    assert_eq!(total["input_tokens"], 100);
    assert_eq!(world.good(&["ls", "--json"]).json().len(), 1);
}

#[test]
fn what_cannot_be_unpacked_or_decoded_is_named_and_the_others_go_on() {
    let world = World::new();
    let packed = gzip(lines().as_bytes());
    world.write("a/cut.jsonl.gz", &packed[..packed.len() / 2]);
    world.write("a/cut.jsonl.zst", b"\x28\xb5\x2f\xfd\0");
    world.write("a/odd.txt", b"\xff\xfea");
    world.write("a/whole.jsonl", lines());
    let ran = world.run(&["import", "--create", "a"]);
    assert_eq!(ran.code, Some(1));
    for said in [
        "a/cut.jsonl.gz: gzip data that cannot be unpacked",
        "a/cut.jsonl.zst: zstd data that cannot be unpacked",
        "a/odd.txt: it begins with the mark of UTF-16, and is not valid UTF-16",
    ] {
        assert!(ran.stderr.contains(said), "{said}: {ran:?}");
    }
    assert_eq!(world.good(&["ls", "--json"]).json().len(), 1);
}

#[test]
fn values_over_several_lines_that_end_in_a_torn_one_are_read_and_the_last_one_is_named() {
    let world = World::new();
    let text = pretty(&session()) + "{\n  \"type\":";
    world.write("a/s.jsonl", &text);
    let ran = world.damaged(&["import", "--create", "a", "--json"]);
    let line = text.lines().count() - 1;
    let damaged = event(&ran, "damaged_line");
    assert_eq!(
        (&damaged["line"], &damaged["damage"]),
        (&json!(line), &json!("torn off within a JSON value"))
    );
    assert!(world.good(&["show", "s", "--raw"]).stdout == text.as_bytes());
    // It goes on, and then all of it is there.
    let text = pretty(&session()) + "{\n  \"type\": \"x\"\n}\n";
    world.write("a/s.jsonl", &text);
    world.good(&["import", "a"]);
    assert!(world.good(&["show", "s", "--raw"]).stdout == text.as_bytes());
}

fn archive(members: &[(&str, &str)]) -> Vec<u8> {
    let mut writer = ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, text) in members {
        writer.start_file(*name, SimpleFileOptions::default()).expect("a member");
        writer.write_all(text.as_bytes()).expect("written");
    }
    writer.finish().expect("an archive").into_inner()
}

const HEADER: &str = r#"{"status":"success","eval":{"created":"2026-09-01T10:00:00+00:00"}}"#;
const SAMPLE: &str = r#"{"id":1,"messages":[{"role":"user","content":"What is two plus two?"}]}"#;

#[test]
fn a_sample_that_cannot_be_read_is_named_and_counted() {
    let world = World::new();
    let bytes = archive(&[
        ("samples/1.json", SAMPLE),
        ("samples/2.json", "{\"id\": 2, \"messages\": [{\"role\""),
        ("samples/notes.txt", "no JSON"),
        ("header.json", HEADER),
    ]);
    world.write("logs/log.eval", &bytes);
    let ran = world.damaged(&["import", "--create", "logs"]);
    assert!(ran.text().contains("logs/log.eval: samples/2.json: not JSON"), "{ran:?}");
    assert!(ran.text().contains("; 1 member not read\n"), "{ran:?}");
    assert!(world.good(&["show", "log", "--raw"]).stdout == bytes);
    // It is as bad the second time.
    let ran = world.damaged(&["import", "logs", "--json"]);
    assert_eq!(event(&ran, "unread_member")["member"], "samples/2.json");
    assert_eq!(event(&ran, "run")["unread_members"], 1);
}

/// Inspect writes them as Python does.
#[test]
fn members_with_numbers_that_are_none_are_read() {
    let world = World::new();
    let sample = SAMPLE.replace("\"id\":1", "\"id\":1,\"score\":NaN,\"limits\":[-Infinity]");
    let header = HEADER.replace("\"eval\"", "\"results\":NaN,\"eval\"");
    let bytes = archive(&[("samples/1.json", &sample), ("header.json", &header)]);
    world.write("logs/nan.eval", &bytes);
    world.good(&["import", "--create", "logs"]);
    let run = &world.good(&["ls", "--json", "--titles"]).json()[0];
    assert_eq!(run["status"], "completed");
    assert_eq!(run["started_at"], "2026-09-01T10:00:00.000000000Z");
    assert_eq!(run["title"], "What is two plus two?");
    assert!(world.good(&["show", "nan", "--raw"]).stdout == bytes);
}

/// A program that is killed leaves an archive without its directory.
#[test]
fn what_is_whole_in_an_archive_that_was_cut_off_is_read() {
    let world = World::new();
    let whole = archive(&[("_journal/start.json", HEADER), ("samples/1.json", SAMPLE)]);
    let directory = memchr::memmem::find(&whole, b"PK\x01\x02").expect("a directory");
    world.write("logs/cut.eval", &whole[..directory]);
    world.write("logs/torn.eval", &whole[..directory - 10]);
    let ran = world.damaged(&["import", "--create", "logs"]);
    assert_eq!(ran.text().matches("the archive has no directory").count(), 2, "{ran:?}");
    assert!(ran.text().contains("logs/torn.eval: samples/1.json: "), "{ran:?}");
    let said = |run: &str| world.good(&["show", run, "--json"]).json();
    let is_question = |record: &Value| record.to_string().contains("two plus two");
    assert!(said("cut").iter().any(is_question));
    assert!(!said("torn").iter().any(is_question));
}
