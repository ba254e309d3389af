//! Which files are imported: what a dry run says, standard input, formats and patterns.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::world::{Ran, World};

fn with_input(world: &World, args: &[&str], input: &[u8]) -> Ran {
    let mut command = world.command(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command runs");
    child.stdin.take().expect("a pipe").write_all(input).expect("written");
    let output = child.wait_with_output().expect("it ends");
    Ran {
        code: output.status.code(),
        stdout: output.stdout,
        stderr: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

fn results(ran: &Ran) -> Vec<String> {
    let event = |event: &Value| {
        let word = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
        (event["event"] == "run").then(|| format!("{} {}", word("result"), word("run")))
    };
    ran.json().iter().filter_map(event).collect()
}

#[test]
fn a_dry_run_says_what_an_import_would_do_and_writes_nothing() {
    let world = World::new();
    world.write("a/new.jsonl", "{}\n{\"a\":\n");
    world.write("a/grows.jsonl", "{}\n");
    world.write("a/chat.json", r#"{"messages":[{"role":"user","content":"a"}]}"#);
    world.write("a/same.jsonl", "{}\n");
    let ran = world.damaged(&["import", "--create", "--dry-run", "a"]);
    assert!(ran.text().contains("would import a/new (json-lines): 2 records"), "{ran:?}");
    assert!(ran.text().contains("a/new.jsonl:2: torn off"), "{ran:?}");
    assert!(ran.text().contains("4 runs would be imported into runs.runlog"), "{ran:?}");
    assert!(ran.text().contains("; nothing was written\n"), "{ran:?}");
    assert!(!fs::exists(world.store()).expect("a look"));
    world.good(&[
        "import",
        "--create",
        "a/grows.jsonl",
        "a/same.jsonl",
        "a/chat.json",
        "--agent",
        "a",
    ]);
    let before = fs::read(world.store()).expect("the store");
    world.write("a/grows.jsonl", "{}\n{}\n");
    world.write("a/chat.json", r#"{"messages":[{"role":"user","content":"a"},{}]}"#);
    let ran = world.damaged(&["import", "--dry-run", "a", "--json"]);
    let wanted = ["continued chat", "continued grows", "imported new", "already_there same"];
    assert_eq!(results(&ran), wanted);
    assert_eq!(ran.json().last().expect("sums")["dry_run"], true);
    assert!(fs::read(world.store()).expect("the store") == before);
    // What it says is what happens.
    assert_eq!(results(&world.damaged(&["import", "a", "--json"])), wanted);
}

#[test]
fn a_dry_run_of_a_file_that_changed_says_that_it_would_be_refused_or_replaced() {
    let world = World::new();
    world.write("a/r.jsonl", "{}\n");
    world.good(&["import", "--create", "a"]);
    world.write("a/r.jsonl", "[]\n");
    let ran = world.run(&["import", "--dry-run", "a"]);
    assert!(ran.stderr.contains("is there already and differs from line 1 on"), "{ran:?}");
    let ran = world.good(&["import", "--dry-run", "--replace", "a"]);
    assert!(ran.text().contains("would replace a/r (json-lines): 1 record"), "{ran:?}");
    assert_eq!(world.good(&["show", "r", "--raw"]).text(), "{}\n");
}

#[test]
fn standard_input_is_a_run_that_the_user_names() {
    let world = World::new();
    let text = b"{\"n\":1}\n{\"n\":2}\n";
    let args = ["import", "--create", "-", "--agent", "me", "--run", "pipe/1"];
    let ran = with_input(&world, &args, text);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    assert!(ran.text().contains("imported me/pipe/1 (json-lines): 2 records"), "{ran:?}");
    assert_eq!(world.good(&["show", "pipe/1", "--raw"]).stdout, text);
    // The same again, more of it, and something else.
    let ran = with_input(&world, &args, text);
    assert!(ran.text().contains("already there me/pipe/1"), "{ran:?}");
    let ran = with_input(&world, &args, b"{\"n\":1}\n{\"n\":2}\n{\"n\":3}\n");
    assert!(ran.text().contains("continued me/pipe/1"), "{ran:?}");
    let ran = with_input(&world, &args, b"{\"n\":9}\n");
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("differs from line 1 on"), "{ran:?}");
    // It does not take the place of another run.
    world.write("x.jsonl", "{}\n");
    world.good(&["import", "x.jsonl", "--agent", "me"]);
    let ran = with_input(&world, &["import", "-", "--agent", "me", "--run", "x"], b"{}\n");
    assert!(ran.stderr.contains("from elsewhere"), "{ran:?}");
}

#[test]
fn arguments_that_do_not_go_together_are_wrong_usage() {
    let world = World::new();
    world.write("a/r.jsonl", "{}\n");
    for args in [
        &["import", "--create", "-"][..],
        &["import", "--create", "-", "--run", "r", "--follow"],
        &["import", "--create", "a", "--run", "r"],
        &["import", "--create", "a", "--only", "claude"],
        &["import", "--create", "a", "--dry-run", "--follow"],
    ] {
        let ran = world.run(args);
        assert_eq!(ran.code, Some(2), "{args:?}: {ran:?}");
    }
    assert!(!fs::exists(world.store()).expect("a look"));
    world.good(&["import", "--create", "a/r.jsonl", "--run", "renamed", "--agent", "b"]);
    assert_eq!(world.good(&["show", "b/renamed", "--raw"]).text(), "{}\n");
}

#[test]
fn only_files_of_the_formats_that_are_named_are_imported() {
    let world = World::new();
    world.write("a/lines.jsonl", "{}\n");
    world.write("a/notes.txt", "hello\n");
    world.write("a/chat.json", r#"[{"role":"user","content":"a"}]"#);
    let ran =
        world.good(&["import", "--create", "a", "--only", "chat", "--only", "text", "--json"]);
    assert_eq!(results(&ran), ["imported chat", "imported notes"]);
    let kinds = |ran: &Ran| {
        let told = ran.json();
        told.iter().find(|event| event["event"] == "sidecars").expect("told")["kinds"].clone()
    };
    assert_eq!(kinds(&ran), json!({"other_formats": 1}));
    let ran = world.run(&["import", "a", "--only", "claude"]);
    assert!(ran.stderr.contains("claude-code"), "the formats are named: {ran:?}");
}

#[test]
fn files_and_folders_are_excluded_by_name_and_by_path() {
    let world = World::new();
    for name in
        ["t/a/1.jsonl", "t/a/1.bak.jsonl", "t/old/2.jsonl", "t/b/old/3.jsonl", "t/b/4.jsonl"]
    {
        world.write(name, "{}\n");
    }
    let import = |options: &[&str]| {
        let _ = fs::remove_file(world.store());
        let ran = world.good(&[&["import", "--create", "t", "--json"], options].concat());
        let kinds = ran.json().into_iter().find(|event| event["event"] == "sidecars");
        (results(&ran), kinds.map(|event| event["kinds"]["excluded"].clone()))
    };
    let all = ["imported 1.bak", "imported 1", "imported 4", "imported old/3", "imported 2"];
    assert_eq!(import(&[]), (all.map(str::to_owned).to_vec(), None));
    for (options, wanted, excluded) in [
        (
            &["--exclude", "*.bak.*"][..],
            &["imported 1", "imported 4", "imported old/3", "imported 2"][..],
            1,
        ),
        (&["--exclude", "old"], &["imported 1.bak", "imported 1", "imported 4"], 2),
        (
            &["--exclude", "/old/"],
            &["imported 1.bak", "imported 1", "imported 4", "imported old/3"],
            1,
        ),
        (&["--exclude", "b/*.jsonl", "--exclude", "a"], &["imported old/3", "imported 2"], 2),
        (&["--exclude", "**/old/*.jsonl"], &["imported 1.bak", "imported 1", "imported 4"], 2),
    ] {
        let (imported, kinds) = import(options);
        assert_eq!(imported, wanted, "{options:?}");
        assert_eq!(kinds, Some(json!(excluded)), "{options:?}");
    }
    let ran = world.run(&["import", "--create", "t", "--exclude", "a[b"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("--exclude"), "{ran:?}");
}

#[test]
fn a_path_that_leads_nowhere_is_an_error_of_its_own() {
    let world = World::new();
    world.write("one.jsonl", "{}\n");
    let ran = world.run(&["import", "--create", "none.jsonl", "one.jsonl", "--json"]);
    assert_eq!(ran.code, Some(1));
    let report = ran.json();
    assert!(report.contains(&json!({"event": "missing", "file": "none.jsonl"})), "{ran:?}");
    let sums = report.last().expect("sums");
    assert_eq!(
        (&sums["missing"], &sums["errors"], &sums["imported"]),
        (&json!(1), &json!(0), &json!(1))
    );
    let ran = world.run(&["import", "none.jsonl"]);
    assert_eq!(ran.stderr, "runlog: none.jsonl: no such file or folder\n");
    assert!(ran.text().contains("; 1 not found"), "{ran:?}");
}
