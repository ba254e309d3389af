//! Documents from a shell: written, shown, listed, deleted.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use serde_json::json;

use crate::world::{Ran, World, keys};

/// A store with documents of each type.
fn world() -> World {
    let world = World::new();
    world.write("a.json", "{\"n\": 1.50}");
    world.write("b.txt", "caf\u{e9}\x1b[2J\n");
    world.write("c.bin", b"\xff\0");
    world.good(&["put", "--create", "space", "a", "a.json", "--type", "json"]);
    world.good(&["put", "--create", "space", "b", "b.txt", "--type", "text"]);
    world.good(&["put", "--create", "space", "c", "c.bin"]);
    world
}

/// Runs a command with this standard input.
fn fed(world: &World, args: &[&str], input: &[u8]) -> Ran {
    let mut command = world.command(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command runs");
    child.stdin.take().expect("a pipe").write_all(input).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8(output.stderr).expect("messages are UTF-8");
    Ran { code: output.status.code(), stdout: output.stdout, stderr }
}

#[test]
fn a_document_comes_back_byte_for_byte_and_is_shown_by_its_type() {
    let world = world();
    for (key, file) in [("a", "a.json"), ("b", "b.txt"), ("c", "c.bin")] {
        let raw = world.good(&["get", "space", key, "--raw"]);
        assert_eq!(raw.stdout, fs::read(world.path(file)).expect("the file"), "{key}");
    }
    assert_eq!(world.good(&["get", "space", "b"]).text(), "caf\u{e9}\\u{1b}[2J\\n\n");
    assert_eq!(world.good(&["get", "space", "c"]).text(), "\\xff\\u{0}\n");
    let found = world.good(&["get", "space", "a", "--json"]);
    assert!(found.text().contains("\"payload\":{\"n\": 1.50}}\n"), "{}", found.text());
    let found = &found.json()[0];
    let all = ["content_type", "key", "kind", "namespace", "payload", "timestamp", "version"];
    assert_eq!(keys(found), all);
    assert_eq!(found["namespace"], "space");
    let binary = &world.good(&["get", "space", "c", "--json"]).json()[0];
    assert_eq!(binary["payload"], json!({ "base64": "/wA=" }));
    assert_eq!((&binary["kind"], &binary["content_type"]), (&json!(null), &json!("bytes")));
}

#[test]
fn a_value_may_come_from_standard_input_and_makes_the_store() {
    let world = World::new();
    for (key, args) in
        [("a", &["put", "--create", "space", "a"][..]), ("b", &["put", "space", "b", "-"])]
    {
        let ran = fed(&world, args, b"\0 from a pipe\n");
        assert_eq!((ran.code, &*ran.stderr), (Some(0), ""), "{ran:?}");
        assert!(ran.text().starts_with(&format!("put {key} in space, 14 B")), "{}", ran.text());
        assert_eq!(world.good(&["get", "space", key, "--raw"]).stdout, b"\0 from a pipe\n");
    }
}

#[test]
fn a_value_that_is_not_of_its_type_is_refused_and_makes_no_store() {
    let world = World::new();
    world.write("torn", "{\"n\":");
    world.write("bytes", b"\xff");
    for (file, kind) in [("torn", "json"), ("bytes", "json"), ("bytes", "text")] {
        let ran = world.run(&["put", "--create", "space", "a", file, "--type", kind]);
        assert_eq!((ran.code, ran.text()), (Some(1), ""), "{file} {kind}: {ran:?}");
        assert!(ran.stderr.contains("not of that type"), "{}", ran.stderr);
    }
    let ran = world.run(&["put", "--create", "space", "a", "no such file"]);
    assert_eq!((ran.code, ran.text()), (Some(1), ""));
    assert!(!fs::exists(world.store()).expect("a look"));
}

#[test]
fn a_document_is_written_only_if_it_is_as_expected() {
    let world = world();
    let version =
        |key: &str| world.good(&["get", "space", key, "--json"]).json()[0]["version"].clone();
    let before = version("a");
    let ran = world.run(&["put", "--create", "space", "a", "b.txt", "--if-absent"]);
    assert_eq!((ran.code, ran.text()), (Some(1), ""), "{ran:?}");
    world.good(&["put", "--create", "space", "d", "b.txt", "--if-absent"]);
    let before = before.to_string();
    let rows = world
        .good(&["put", "--create", "space", "a", "b.txt", "--if-version", &before, "--json"])
        .json();
    assert_eq!(keys(&rows[0]), ["action", "bytes", "key", "namespace", "version"]);
    assert_eq!(rows[0]["version"], version("a"));
    let ran = world.run(&["put", "--create", "space", "a", "c.bin", "--if-version", &before]);
    assert_eq!((ran.code, ran.text()), (Some(1), ""), "{ran:?}");
    let same = world.good(&["get", "space", "a", "--raw"]).stdout;
    assert_eq!(same, fs::read(world.path("b.txt")).expect("the file"));
}

#[test]
fn documents_are_listed_by_key_page_by_page() {
    let world = world();
    world.good(&["put", "--create", "space", "prefix/1", "c.bin"]);
    world.good(&["put", "--create", "other", "x", "c.bin"]);
    let rows = world.good(&["docs", "space", "--json"]).json();
    let listed: Vec<_> = rows.iter().map(|row| row["key"].as_str().expect("a key")).collect();
    assert_eq!(listed, ["a", "b", "c", "prefix/1"]);
    assert_eq!(keys(&rows[0]), ["bytes", "key", "timestamp", "version"]);
    assert_eq!(rows[0]["bytes"], 11);
    let text = world.good(&["docs", "space"]);
    assert!(text.text().starts_with("KEY       VERSION  WRITTEN"), "{}", text.text());
    assert_eq!(text.text().lines().count(), 5);
    let some = world.good(&["docs", "space", "--prefix", "prefix/", "--json"]).json();
    assert_eq!((some.len(), &some[0]["key"]), (1, &json!("prefix/1")));
    let first = world.run(&["docs", "space", "--limit", "2", "--json"]);
    assert_eq!((first.code, first.json().len()), (Some(0), 2));
    assert_eq!(first.message(), Some(json!({"event": "more", "what": "documents", "after": "b"})));
    let first = world.run(&["docs", "space", "--limit", "2"]);
    assert_eq!(first.stderr, "more documents: --after b, or --all\n");
    let rest = world.good(&["docs", "space", "--after", "b", "--all", "--json"]).json();
    assert_eq!((rest.len(), &rest[0]["key"]), (2, &json!("c")));
    let none = world.run(&["docs", "nobody"]);
    assert_eq!((none.code, none.text(), &*none.stderr), (Some(0), "", "no documents\n"));
}

#[test]
fn a_deleted_document_is_gone_and_an_erased_one_leaves_no_byte() {
    let world = world();
    let secret = "what nobody may read any more";
    let holds = || {
        let bytes = fs::read(world.store()).expect("the store");
        bytes.windows(secret.len()).any(|window| window == secret.as_bytes())
    };
    world.write("secret", secret);
    for key in ["gone", "deleted"] {
        world.good(&["put", "--create", "space", key, "secret"]);
        world.good(&["put", "--create", "space", key, "a.json"]);
    }
    assert_eq!(world.good(&["del", "space", "deleted"]).text(), "deleted deleted of space\n");
    let again = world.run(&["del", "space", "deleted"]);
    assert_eq!((again.code, again.text()), (Some(1), ""));
    assert!(again.stderr.contains("there is no document deleted in space"), "{}", again.stderr);
    assert!(holds());
    let rows = world.good(&["del", "space", "gone", "--erase", "--json"]).json();
    assert_eq!(keys(&rows[0]), ["action", "bytes", "key", "namespace", "pinned_extents"]);
    assert_eq!((&rows[0]["action"], &rows[0]["bytes"]), (&json!("erase"), &json!(11)));
    // What was deleted can still be erased.
    assert_eq!(
        world.good(&["del", "space", "deleted", "--erase"]).text(),
        "erased deleted of space\n"
    );
    assert!(!holds());
    assert_eq!(world.run(&["get", "space", "gone"]).code, Some(1));
    let listed = world.good(&["docs", "space", "--json"]).json();
    assert_eq!(listed.len(), 3);
    world.good(&["verify"]);
}

#[test]
fn documents_and_runs_of_the_same_names_are_not_mixed_up() {
    let world = world();
    world.write("runs/space/a.jsonl", "{}\n");
    world.good(&["import", "--create", "--end", "completed", "runs"]);
    assert_eq!(world.good(&["ls", "--json"]).json().len(), 1);
    world.good(&["rm", "a"]);
    assert_eq!(world.good(&["docs", "space", "--json"]).json().len(), 3);
}

/// An endless pipe, or a file of 4 TiB without data, ends where no store would take more.
#[test]
fn a_value_that_no_store_takes_is_refused_before_all_of_it_is_read() {
    let world = World::new();
    let file = fs::File::create(world.path("sparse")).expect("a file");
    file.set_len(4 << 40).expect("a length");
    for name in ["/dev/zero", "sparse"] {
        let ran = world.run(&["put", "--create", "space", "key", name]);
        assert_eq!((ran.code, ran.text()), (Some(1), ""), "{ran:?}");
        assert!(ran.stderr.contains("at most 67,108,864 bytes"), "{}", ran.stderr);
    }
    assert!(!fs::exists(world.store()).expect("a look"));
}
