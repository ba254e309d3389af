//! `tail`: the last records, and what follows them.

use std::io::{BufRead as _, BufReader, Lines, Read as _};
use std::process::{Child, ChildStdout, Stdio};

use runlog::{Options, Outcome, RunLog};
use serde_json::Value;

use crate::world::World;

fn open(world: &World) -> RunLog {
    Options::new().extent_size(64 << 10).open(world.store()).expect("a store")
}

/// A command that is running, and the lines of its output.
fn start(world: &World, args: &[&str]) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut command = world.command(args);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    (child, lines)
}

/// The next event of this kind.
fn next(lines: &mut Lines<BufReader<ChildStdout>>, event: &str) -> Value {
    loop {
        let line = lines.next().expect("a line").expect("a line");
        let value: Value = serde_json::from_str(&line).expect("JSON");
        if value["event"] == event {
            return value;
        }
    }
}

fn said(mut child: Child) -> (Option<i32>, String) {
    let mut text = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut text).expect("UTF-8");
    (child.wait().expect("its end").code(), text)
}

#[test]
fn the_last_records_of_a_run_an_agent_and_the_store_are_printed() {
    let world = World::new();
    let log = open(&world);
    let [a, b] = ["a", "b"].map(|agent| log.start_run(agent, &format!("of-{agent}"), ()).unwrap());
    for n in 0..1000 {
        a.append(format!("a{n}").as_bytes()).expect("a record");
        if n % 100 == 0 {
            b.append(format!("b{n}").as_bytes()).expect("a record");
        }
    }
    a.end(&Outcome::completed()).expect("an end");
    for (args, payloads) in [
        (&["tail", "of-a", "--raw", "-n", "3"][..], "a997\na998\na999\n"),
        (&["tail", "a/of-a", "--raw", "-n", "1"], "a999\n"),
        (&["tail", "of-a", "--raw", "-n", "1", "-f"], "a999\n"),
        (&["tail", "--agent", "b", "--raw", "-n", "2"], "b800\nb900\n"),
        (&["tail", "--raw", "-n", "2"], "a998\na999\n"),
        (&["tail", "--raw", "-n", "0"], ""),
        (&["tail", "of-b", "--raw", "-n", "0"], ""),
    ] {
        assert_eq!(world.good(args).text(), payloads, "{args:?}");
    }
    assert_eq!(world.good(&["tail", "--agent", "b"]).text().lines().count(), 10);
    assert_eq!(world.good(&["tail", "--json", "-n", "2000"]).json().len(), 1010);
    let rows = world.good(&["tail", "--agent", "b", "--json", "-n", "1"]).json();
    assert_eq!((&rows[0]["event"], &rows[0]["run"]), (&"record".into(), &"of-b".into()));
    assert_eq!((&rows[0]["seq"], &rows[0]["payload"]), (&9.into(), &"b900".into()));
    let text = world.good(&["tail", "-n", "1"]);
    assert!(text.text().starts_with("a/of-a    999  "), "{text:?}");
    let ran = world.run(&["tail", "none"]);
    assert_eq!((ran.code, ran.text()), (Some(1), ""), "{ran:?}");
    log.close().expect("closed");
}

/// Goal: what is appended while it starts and while it runs comes whole, in order and once, across
/// full segments.
#[test]
fn a_follower_of_a_run_gets_each_record_of_a_live_writer_once_until_the_run_ends() {
    let world = World::new();
    let log = open(&world);
    let run = log.start_run("a", "r", ()).expect("a run");
    let other = log.start_run("a", "other", ()).expect("a run");
    let payload = |n: u64| format!("{n}:{}", "x".repeat(usize::try_from(n * 37 % 900).unwrap()));
    run.append(payload(0).as_bytes()).expect("a record");
    let (child, mut lines) = start(&world, &["tail", "-f", "r", "--json", "-n", "5000"]);
    for n in 1..3000 {
        run.append(payload(n).as_bytes()).expect("a record");
        other.append(b"not this").expect("a record");
    }
    for n in 0..2000 {
        let row = next(&mut lines, "record");
        assert_eq!((&row["seq"], &row["payload"]), (&n.into(), &payload(n).into()));
    }
    // It has seen these by now, so the rest is appended under its eyes.
    run.append(payload(3000).as_bytes()).expect("a record");
    run.end(&Outcome::failed()).expect("an end");
    for n in 2000..=3000 {
        assert_eq!(next(&mut lines, "record")["payload"], payload(n));
    }
    assert_eq!(next(&mut lines, "ended")["status"], "failed");
    assert!(lines.next().is_none());
    assert_eq!(said(child), (Some(0), String::new()));
    log.close().expect("closed");
}

#[test]
fn a_follower_of_everything_tells_starts_records_ends_and_deletions() {
    let world = World::new();
    let log = open(&world);
    log.start_run("a", "before", ()).expect("a run").append(b"old").expect("a record");
    let (mut child, mut lines) = start(&world, &["tail", "-f", "--json", "--agent", "a"]);
    assert_eq!(next(&mut lines, "record")["payload"], "old");
    let run = log.start_run("a", "r", ()).expect("a run");
    assert_eq!(next(&mut lines, "started")["run"], "r");
    log.start_run("b", "else", ()).expect("a run").append(b"other").expect("a record");
    run.append(b"new").expect("a record");
    assert_eq!(next(&mut lines, "record")["payload"], "new");
    run.end(&Outcome::completed()).expect("an end");
    assert_eq!(next(&mut lines, "ended")["status"], "completed");
    log.delete_run("r").expect("deleted");
    assert_eq!(next(&mut lines, "deleted")["run"], "r");
    child.kill().expect("killed");
    child.wait().expect("its end");
    log.close().expect("closed");
}

#[test]
fn a_follower_of_a_run_that_is_deleted_says_so_and_ends() {
    let world = World::new();
    let log = open(&world);
    let run = log.start_run("a", "r", ()).expect("a run");
    run.append(b"first").expect("a record");
    let (child, mut lines) = start(&world, &["tail", "-f", "r", "--raw"]);
    assert_eq!(lines.next().expect("a line").expect("a line"), "first");
    // Both at once, so that the end may be overtaken by the deletion.
    run.end(&Outcome::completed()).expect("an end");
    log.delete_run("r").expect("deleted");
    assert!(lines.next().is_none());
    let (code, text) = said(child);
    let ends = [(Some(1), "was deleted"), (Some(0), "has ended")];
    assert!(ends.iter().any(|end| code == end.0 && text.contains(end.1)), "{code:?}: {text}");
    log.close().expect("closed");
}

#[test]
fn a_follower_ends_quietly_when_its_pipe_is_closed() {
    let world = World::new();
    let log = open(&world);
    log.start_run("a", "r", ()).expect("a run").append(b"first").expect("a record");
    for args in [&["tail", "-f", "--raw"][..], &["tail", "-f", "r", "--raw"]] {
        let (child, mut lines) = start(&world, args);
        assert_eq!(lines.next().expect("a line").expect("a line"), "first");
        drop(lines);
        assert_eq!(said(child), (Some(0), String::new()), "{args:?}");
    }
    log.close().expect("closed");
}
