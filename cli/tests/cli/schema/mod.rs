//! What commands print with `--json` is what docs/schema says, on both outputs.

mod validator;

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use self::validator::Schemas;
use crate::world::{Ran, World};

/// Runs, a document, something held, something deleted, and something damaged.
fn world() -> World {
    let world = World::new();
    let claude = "{torn\n{\"type\":\"assistant\",\"uuid\":\"1\",\"sessionId\":\"s\",\
        \"timestamp\":\"2026-01-31T20:30:05Z\",\"message\":{\"role\":\"assistant\",\"model\":\"m\",\
        \"id\":\"x\",\"content\":[{\"type\":\"tool_use\",\"name\":\"Bash\"}],\
        \"usage\":{\"input_tokens\":1}}}\n";
    world.write("runs/a/r1.jsonl", claude);
    world.write("runs/a/r2.jsonl", "{\"role\":\"user\",\"content\":\"hello\"}\n\"\u{e9}\"\n");
    world.write("runs/b/r3.jsonl", "{\"n\":1}\n");
    world.write("runs/b/r4.jsonl", "{\"n\":4}\n");
    world.write("runs/b/junk.bin", b"\x00\xff\x01");
    world.write("runs/b/.hidden", "x");
    world.write("runs/b/torn.jsonl.gz", b"\x1f\x8b\x08\0");
    let mut archive = zip::write::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default();
    archive.start_file("_journal/start.json", options).expect("a member");
    let archive = archive.finish().expect("an archive").into_inner();
    world.write("runs/b/torn.eval", archive);
    world
}

/// Checks what was printed; answers the commands and variants that it was.
fn check(schemas: &mut Schemas, command: &str, ran: &Ran, seen: &mut BTreeSet<String>) {
    for row in ran.json() {
        let problems = schemas.check(command, &row);
        assert_eq!(problems, Vec::<String>::new(), "{command}: {row}");
        let variant = ["event", "action", "what"].iter().find_map(|tag| row.get(*tag)?.as_str());
        seen.insert(format!("{command} {}", variant.unwrap_or_default()));
    }
    for line in ran.stderr.lines() {
        let message: Value = serde_json::from_str(line).expect("an object on standard error");
        assert_eq!(schemas.check("messages", &message), Vec::<String>::new(), "{message}");
        seen.insert(format!("messages {}", message["event"].as_str().expect("a tag")));
    }
}

#[test]
fn every_command_prints_what_its_schema_says() {
    let world = world();
    let mut schemas = Schemas::read();
    let mut seen = BTreeSet::new();
    for args in [
        &["import", "--create", "."][..],
        &["import", "."],
        &["import", "missing"],
        &["end", "r1", "--status", "failed"],
        &["end", "r2", "--status", "completed"],
        &["end", "r3", "--status", "completed"],
        &["ls"],
        &["ls", "--titles", "--limit", "1"],
        &["show", "r1"],
        &["show", "a/r2"],
        &["show", "r"],
        &["show", "s1"],
        &["show"],
        &["tail"],
        &["tail", "r1"],
        &["search", "n"],
        &["search", "n", "-l"],
        &["search", "n", "-c"],
        &["search", "-e", "("],
        &["verify"],
        &["salvage", "runs.runlog", "out.runlog"],
        &["export", "out"],
        &["export", "out"],
        &["completions", "bash"],
        &["completions", "cmd"],
        &["man"],
        &["man", "show"],
        &["man", "none"],
        &["backup", "copy.runlog"],
        &["backup", "runs"],
        &["stat"],
        &["doctor"],
        &["doctor", "--store", "runs"],
        &["inspect"],
        &["inspect", "--segment", "1"],
        &["inspect", "1:64", "--payload"],
        &["du"],
        &["du", "--by", "run", "--limit", "1"],
        &["usage"],
        &["usage", "--by", "run"],
        &["usage", "--by", "model", "--limit", "1"],
        &["usage", "--by", "day"],
        &["hold", "r1", "--reason", "a look"],
        &["gc", "--dry-run", "--keep", "1", "--max-bytes", "1"],
        &["gc", "--dry-run", "--keep", "1", "--agent", "none"],
        &["gc"],
        &["rm", "r1"],
        &["release", "r1"],
        &["rm", "r2"],
        &["erase", "r3"],
        &["receipts"],
        &["receipts", "--limit", "1"],
        &["put", "space", "key", "runs/b/r4.jsonl", "--type", "json"],
        &["put", "space", "other", "runs/b/r4.jsonl"],
        &["get", "space", "key"],
        &["get", "space", "none"],
        &["docs", "space", "--limit", "1"],
        &["del", "space", "key"],
        &["del", "space", "other", "--erase"],
        &["compact", "--zstd"],
        &["adopt", "--dry-run"],
        &["adopt", "--status", "failed"],
        &["demo", "--millis", "50"],
    ] {
        let ran = world.run(&[args, &["--json"]].concat());
        check(&mut schemas, args[0], &ran, &mut seen);
    }
    let unseen: Vec<_> = schemas
        .names()
        .filter(|name| {
            *name != "common" && !seen.iter().any(|seen| seen.starts_with(&format!("{name} ")))
        })
        .collect();
    assert_eq!(unseen, [""; 0], "a schema that no command was checked with");
    for variant in [
        "adopt adopt",
        "adopt total",
        "doctor finding",
        "doctor summary",
        "du agent",
        "du documents",
        "du file",
        "du run",
        "du runs",
        "export error",
        "export run",
        "export summary",
        "gc evict",
        "gc protect",
        "gc total",
        "import damaged_line",
        "import error",
        "import missing",
        "import run",
        "import sidecars",
        "import skipped",
        "import summary",
        "import unknown",
        "import unread_member",
        "del delete",
        "del erase",
        "inspect extent",
        "inspect frame",
        "inspect gap",
        "inspect header",
        "inspect manifest",
        "inspect owner",
        "inspect summary",
        "inspect superblock",
        "messages error",
        "messages more",
        "messages note",
        "tail record",
        "usage total",
        "verify summary",
    ] {
        assert!(seen.contains(variant), "{variant} was not printed: {seen:?}");
    }
}

/// The commands come from the command line itself: a new one without a schema is a failure.
#[test]
fn every_command_has_a_schema_and_every_schema_a_command() {
    let world = World::new();
    let help = world.good(&["--help"]);
    let listed = help.text().split("\nOptions:\n").next().expect("the commands");
    let commands: BTreeSet<&str> = listed
        .lines()
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
        .filter(|name| !name.is_empty())
        .filter(|name| *name != "help")
        .collect();
    assert!(commands.len() > 25 && commands.contains("import"), "{commands:?}");
    let schemas = Schemas::read();
    let known: BTreeSet<&str> =
        schemas.names().filter(|name| !["common", "messages"].contains(name)).collect();
    assert_eq!(commands, known);
}

#[test]
fn a_damaged_store_is_told_in_objects() {
    let world = world();
    world.run(&["import", "--create", "."]);
    let mut bytes = fs::read(world.store()).expect("the store");
    let at = bytes.windows(7).position(|window| window == b"{\"n\":1}").expect("a payload");
    bytes[at + 5] ^= 1;
    fs::write(world.store(), bytes).expect("written");
    let mut schemas = Schemas::read();
    let mut seen = BTreeSet::new();
    for args in [
        &["verify"][..],
        &["salvage", "runs.runlog", "out"],
        &["show", "r3"],
        &["tail"],
        &["search", "x"],
        &["backup", "copy"],
        &["doctor"],
        &["inspect", "--segment", "1"],
    ] {
        let ran = world.run(&[args, &["--json"]].concat());
        assert!(matches!(ran.code, Some(2 | 3)), "{args:?}: {ran:?}");
        check(&mut schemas, args[0], &ran, &mut seen);
    }
    assert!(seen.contains("salvage missing") && seen.contains("salvage summary"), "{seen:?}");
    assert!(seen.contains("verify problem") && seen.contains("messages error"), "{seen:?}");
}

#[test]
fn errors_and_cursors_are_objects_with_their_parts() {
    let world = world();
    world.run(&["import", "--create", "."]);
    let message = |args: &[&str]| {
        let ran = world.run(&[args, &["--json"]].concat());
        let last = ran.stderr.lines().last().expect("a message").to_owned();
        (ran.code, serde_json::from_str::<Value>(&last).expect("an object"))
    };
    let (code, said) = message(&["show", "r"]);
    assert_eq!(
        (code, &said["error"], &said["exit_code"]),
        (Some(1), &"ambiguous".into(), &1.into())
    );
    assert_eq!(said["candidates"].as_array().expect("names").len(), 4);
    let (code, said) = message(&["show", "a/r9"]);
    assert_eq!((code, &said["error"]), (Some(1), &"no_run".into()));
    let (code, said) = message(&["ls", "--status", "odd"]);
    assert_eq!((code, &said["error"], &said["exit_code"]), (Some(2), &"usage".into(), &2.into()));
    let (code, said) = message(&["ls", "--store", "none"]);
    assert_eq!((code, &said["error"]), (Some(1), &"not_found".into()));
    let (code, said) = message(&["ls", "--limit", "1"]);
    assert_eq!((code, &said["event"]), (Some(0), &"more".into()));
    let after = said["after"].as_str().expect("a cursor");
    assert_eq!(world.good(&["ls", "--json", "--after", after]).json().len(), 4);
    let log = world.open();
    let (code, said) = message(&["compact"]);
    assert_eq!((code, &said["error"], &said["exit_code"]), (Some(4), &"busy".into(), &4.into()));
    log.close().expect("closed");
}
