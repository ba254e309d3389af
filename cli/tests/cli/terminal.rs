//! What a command prints has nothing that a terminal obeys, hides or reorders, whatever ids,
//! payloads, paths and arguments hold. JSON says the same text all the same.

use std::fs;
use std::process::Stdio;

use runlog::{ContentType, Durability, NewRecord, Outcome};
use serde_json::Value;

use crate::world::{Ran, World};

/// A character of each kind that must not come through: controls of all three blocks, marks and
/// overrides of direction, what joins and separates, selectors, tags, fillers, other blanks.
const HOSTILE: &str = "a\u{1b}[2J\u{7f}\u{80}\u{9b}31m\u{ad}\u{34f}\u{61c}\u{115f}\u{180b}\u{200b}\
    \u{200d}\u{202e}\u{2028}\u{2066}\u{3164}\u{fe0f}\u{feff}\u{fff9}\u{e000}\u{e0041}\u{e0100}\
    \u{a0}\u{ffff}z";

/// As [`HOSTILE`], with the controls that a file name and a line of a file may have as well.
fn lines() -> String {
    format!("{HOSTILE}\r\n\t\u{7}")
}

/// A store with the text wherever a user may write one.
fn hostile_world() -> World {
    let world = World::new();
    let text = lines();
    // A kind has 64 bytes at most.
    let kind: String = HOSTILE.chars().rev().take(16).collect();
    let log = world.open();
    for run in [text.clone(), format!("{text}2")] {
        let writer = log.start_run(&text, &run, text.as_bytes()).expect("a run");
        let record = |bytes, content| NewRecord::new(bytes).kind(&kind).content_type(content);
        let json = serde_json::to_string(&text).expect("JSON");
        for (bytes, content) in [
            (text.as_bytes(), ContentType::TEXT),
            (json.as_bytes(), ContentType::JSON),
            (format!("[\r\n{json},\n\t1]").as_bytes(), ContentType::JSON_LINE),
            (b"\xff\x9b\x1b", ContentType::BYTES),
        ] {
            let _ = writer.append_record(&record(bytes, content)).expect("an append");
        }
        let _ = writer.end(&Outcome::completed()).expect("an end");
    }
    log.hold((text.as_str(), text.as_str()), &text).expect("a hold");
    let document = NewRecord::new(text.as_bytes()).kind(&kind).durability(Durability::Process);
    log.docs().put(&text, &text, &document).expect("a document");
    log.docs().put(&text, &format!("{text}2"), &document).expect("a document");
    log.close().expect("closed");
    world
}

/// Nothing but letters that print themselves, and the ends of lines.
fn assert_plain(ran: &Ran, args: &[&str]) {
    for bytes in [&ran.stdout[..], ran.stderr.as_bytes()] {
        let bad = bytes.iter().find(|byte| !matches!(**byte, b' '..=b'~' | b'\n'));
        assert_eq!(bad, None, "{args:?}: {ran:?}");
    }
}

fn strings<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => found.push(text),
        Value::Array(values) => values.iter().for_each(|value| strings(value, found)),
        Value::Object(fields) => fields.values().for_each(|value| strings(value, found)),
        _ => {}
    }
}

#[test]
fn no_command_prints_what_others_wrote_as_it_is() {
    let world = hostile_world();
    let text = lines();
    let (text, other) = (text.as_str(), format!("{text}2"));
    for args in [
        &["ls"][..],
        &["ls", "--limit", "1"],
        &["ls", "--grep", "("],
        &["ls", "--grep", HOSTILE],
        &["ls", "--agent", text],
        &["ls", "--after", HOSTILE],
        &["show", text],
        &["show", text, "--full"],
        &["show", text, "--pretty"],
        &["show", &text[..10]],
        &["show", &format!("{text}3")],
        &["man", HOSTILE],
        &["du"],
        &["du", "--by", "run"],
        &["du", "--agent", text],
        &["show", text, "--agent", HOSTILE],
        &["show", HOSTILE],
        &["verify"],
        &["stat"],
        &["doctor"],
        &["doctor", "--store", HOSTILE],
        &["inspect"],
        &["inspect", "--segment", "1"],
        &["inspect", "1:64", "--payload"],
        &["inspect", HOSTILE],
        &["gc", "--dry-run", "--keep", "1", "--agent", text],
        &["gc", "--dry-run", "--keep", "1", "--agent", HOSTILE],
        &["docs", text],
        &["docs", text, "--limit", "1"],
        &["get", text, text],
        &["get", HOSTILE, HOSTILE],
        &["put", text, text, HOSTILE],
        &["put", text, text, "/dev/null", "--type", "json"],
        &["put", text, text, "/dev/null", "--if-absent"],
        &["put", text, text, "/dev/null"],
        &["del", text, &other],
        &["del", text, HOSTILE],
        &["del", text, text, "--erase"],
        &["hold", text, "--reason", HOSTILE],
        &["end", text, "--status", "failed"],
        &["adopt", "--dry-run", "--agent", text],
        &["adopt", "--dry-run"],
        &["end", HOSTILE, "--status", "failed"],
        &["rm", text],
        &["release", text],
        &["rm", text],
        &["erase", &other],
        &["receipts"],
        &["import", HOSTILE],
        &["compact"],
    ] {
        // Deletions happen once: JSON first of what can be asked twice, by itself otherwise.
        if !matches!(args[0], "rm" | "erase" | "del" | "release") {
            let ran = world.run(&[args, &["--json"]].concat());
            assert_plain(&ran, args);
            let _ = ran.json();
        }
        assert_plain(&world.run(args), args);
    }
}

#[test]
fn json_says_the_text_that_was_written() {
    let world = hostile_world();
    let text = lines();
    for (args, count) in [
        (&["ls"][..], 3),
        (&["du"], 1),
        (&["show", &text], 3),
        (&["gc", "--keep", "1", "--dry-run"], 2),
        (&["docs", &text], 1),
        (&["get", &text, &text], 3),
        (&["hold", &text, "--reason", "r"], 2),
        (&["release", &text], 2),
        (&["rm", &text], 2),
        (&["receipts"], 2),
        (&["del", &text, &text], 2),
    ] {
        let ran = world.good(&[args, &["--json"]].concat());
        assert_plain(&ran, args);
        let rows = ran.json();
        let mut found = Vec::new();
        for row in &rows {
            strings(row, &mut found);
        }
        let same = found.iter().filter(|found| ***found == *text).count();
        assert!(same >= count, "{args:?}: {same} of {count} in {ran:?}");
    }
}

#[test]
fn names_of_imported_files_are_escaped() {
    let world = World::new();
    let text = lines();
    world.write(&format!("{text}/{text}.jsonl"), "{}\n{torn\n");
    world.write(&format!("{text}/folder.jsonl/x"), "");
    world.write(&format!("{text}/long.jsonl"), vec![b'x'; (64 << 20) + 1]);
    world.write("bad\u{9b}.jsonl", "{}\n");
    for args in [
        &["import", &text][..],
        &["import", &text, "--json"],
        &["import", "bad\u{9b}.jsonl", "bad\u{9b}", "--store", "\u{9b}.runlog"],
        &["stat", "--store", "\u{9b}.runlog"],
        &["stat", "--store", "\u{9b}.runlog", "--json"],
        &["verify", "--store", "\u{9b}.runlog"],
        &["ls", "--store", "none\u{9b}.runlog"],
        &["demo", "--store", "no such folder\u{9b}/x"],
        &["demo", "--store", "no such folder\u{9b}/x", "--json"],
    ] {
        let ran = world.run(args);
        assert_plain(&ran, args);
        assert!(!ran.stdout.is_empty() || !ran.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn usage_errors_repeat_no_argument_as_it_is() {
    let world = World::new();
    let text = lines();
    let (option, joined) = (format!("--{text}"), format!("--store={text}"));
    for args in [
        &[text.as_str()][..],
        &[&option],
        &["ls", &text],
        &["ls", &option],
        &["ls", "--status", &text],
        &["ls", "--limit", &text],
        &["show", "r", &option],
        &["show", "r", "--from", &text],
        &["gc", "--max-age", &text],
        &["gc", "--max-bytes", &text],
        &["gc", "--keep", &text],
        &["put", "space", "key", "--type", &text],
        &["compact", &format!("--zstd={text}")],
        &["demo", "--millis", &text],
        &["verify", &joined, &text],
        &["lss\n\u{9b}"],
        &["ls", "--agentt\n\u{9b}"],
    ] {
        let ran = world.run(args);
        assert_eq!(ran.code, Some(2), "{args:?}: {ran:?}");
        assert_plain(&ran, args);
        let copies = ran.stderr.lines().filter(|line| line.starts_with('\t')).count();
        assert_eq!(copies, 0, "{args:?}: {ran:?}");
    }
}

/// An argument with the end of a line in it cannot make a line of its own.
#[test]
fn an_argument_makes_no_line_of_its_own() {
    let world = World::new();
    let line = "runlog: all is well";
    for args in [
        &["ls", &format!("--x\n{line}\n")][..],
        &["ls", &format!("x\n{line}\n")],
        &["ls", "--status", &format!("x\n{line}\n")],
        &[&format!("x\n{line}\n")],
        &["show", &format!("x\n{line}\n")],
        &["import", &format!("x\n{line}\n")],
    ] {
        let ran = world.run(args);
        assert!(ran.stderr.lines().all(|said| said != line), "{args:?}: {ran:?}");
    }
}

/// The command holds a payload, and not what is made of it: it writes that piece by piece.
#[cfg(target_os = "linux")]
#[test]
fn what_is_printed_of_a_payload_is_not_held_in_memory() {
    use std::io::Read as _;

    const LEN: usize = 16 << 20;
    let world = World::new();
    let log = world.open();
    let nul = vec![0; LEN];
    let mut bytes = nul.clone();
    bytes[0] = 0xff;
    let breaks = [b"[\n1,\"".to_vec(), vec![b'x'; LEN], b"\"]".to_vec()].concat();
    let writer = log.start_run("a", "r", ()).expect("a run");
    for (key, payload, content) in [
        ("nul", &nul, ContentType::TEXT),
        ("bytes", &bytes, ContentType::BYTES),
        ("json", &breaks, ContentType::JSON),
    ] {
        log.docs()
            .put("space", key, &NewRecord::new(payload).content_type(content))
            .expect("a document");
    }
    let _ = writer.append(&nul).expect("an append");
    drop(writer);
    log.close().expect("closed");
    for args in [
        &["get", "space", "nul"][..],
        &["get", "space", "nul", "--json"],
        &["get", "space", "nul", "--raw"],
        &["get", "space", "bytes"],
        &["get", "space", "bytes", "--json"],
        &["get", "space", "json", "--json"],
        &["show", "r", "--full"],
        &["show", "r"],
        &["show", "r", "--json"],
        &["show", "r", "--raw"],
    ] {
        let mut command = world.command(args);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut out = child.stdout.take().expect("a pipe");
        // The pipe is shorter than what follows: the command stands still within its output.
        out.read_exact(&mut [0]).expect("some output");
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).expect("linux");
        let mut rest = Vec::new();
        out.read_to_end(&mut rest).expect("the rest");
        assert!(child.wait().expect("it ends").success(), "{args:?}");
        // `show` of one line by itself may have ended by then.
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let Some(peak) = peak else { continue };
        let kib: usize = peak.trim().trim_end_matches(" kB").parse().expect("a number");
        // The stored bytes, as they are mapped, and a copy where they lie in several places.
        assert!(kib << 10 < 2 * LEN + (24 << 20), "{args:?}: {kib} KiB");
    }
}
