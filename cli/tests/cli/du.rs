//! What takes how much: the sums agree with one another, with `stat`, and with the file.

use std::fs;

use runlog::{Compression, NewRecord, Options, Outcome};
use serde_json::Value;

use crate::world::{World, keys};

/// Two agents with runs of several kinds, documents, and something deleted.
fn world() -> World {
    let world = World::new();
    // Several segments, so that compaction has something to do.
    let log = Options::new().extent_size(64 << 10).open(world.store()).expect("a store");
    for (agent, run, records) in
        [("alpha", "r1", 40), ("alpha", "r2", 400), ("beta", "r3", 10), ("beta", "gone", 300)]
    {
        let writer = log.start_run(agent, run, ()).expect("a run");
        for n in 0..records {
            let kind = if n % 4 == 0 { "turn" } else { "tool" };
            let text = format!("{{\"n\":{n},\"text\":\"{}\"}}", "word ".repeat(40));
            let record = NewRecord::new(text.as_bytes()).kind(kind);
            let _ = writer.append_record(&record).expect("an append");
        }
        if run != "r1" {
            let _ = writer.end(&Outcome::completed()).expect("an end");
        }
    }
    for key in ["one", "two"] {
        log.docs().put("space", key, &NewRecord::new(&[7; 1000])).expect("a document");
    }
    log.docs().put("space", "two", &NewRecord::new(&[7; 500])).expect("a document");
    log.delete_run("gone").expect("a deletion");
    log.close().expect("closed");
    world
}

fn rows<'a>(rows: &'a [Value], what: &str) -> Vec<&'a Value> {
    rows.iter().filter(|row| row["what"] == what).collect()
}

fn sum(rows: &[&Value], field: &str) -> u64 {
    rows.iter().map(|row| row[field].as_u64().expect("a number")).sum()
}

/// What must be true of any store.
fn assert_adds_up(world: &World) -> Value {
    let agents = world.good(&["du", "--json", "--all"]).json();
    let runs = world.good(&["du", "--json", "--all", "--by", "run"]).json();
    let listed = world.good(&["ls", "--json", "--all"]).json();
    let stat = &world.good(&["stat", "--json"]).json()[0];
    let all = rows(&agents, "runs")[0];
    for field in ["bytes", "stored_bytes"] {
        let wanted = all[field].as_u64().expect("a number");
        assert_eq!(sum(&rows(&agents, "agent"), field), wanted);
        assert_eq!(sum(&rows(&runs, "run"), field), wanted);
        assert_eq!(sum(&listed.iter().collect::<Vec<_>>(), field), wanted);
    }
    assert_eq!(sum(&rows(&agents, "agent"), "count"), stat["runs"].as_u64().expect("a number"));
    let file = rows(&agents, "file")[0];
    let total: u64 = keys(file)
        .into_iter()
        .filter(|key| key.ends_with("_bytes") && !["file_bytes", "allocated_bytes"].contains(key))
        .map(|key| file[key].as_u64().expect("a number"))
        .sum();
    assert_eq!(file["file_bytes"], total, "{file}");
    let stored = all["stored_bytes"].as_u64().expect("a number")
        + rows(&agents, "documents")[0]["stored_bytes"].as_u64().expect("a number");
    assert_eq!(file["stored_bytes"], stored, "{file}");
    // The file system may change what it has allocated between two commands.
    for row in [stat, file] {
        assert!(row["allocated_bytes"].as_u64() > Some(0), "{row}");
    }
    assert_eq!(stat["documents"], rows(&agents, "documents")[0]["count"]);
    file.clone()
}

/// The same of a store that no process has open, so that its file stays as it is.
fn assert_adds_up_to_the_file(world: &World) -> Value {
    let file = assert_adds_up(world);
    let stat = &world.good(&["stat", "--json"]).json()[0];
    let found = fs::metadata(world.store()).expect("the store");
    assert_eq!(file["file_bytes"], found.len());
    assert_eq!(stat["file_len"], found.len());
    file
}

#[test]
fn the_parts_add_up_to_the_file() {
    let world = world();
    let file = assert_adds_up_to_the_file(&world);
    assert!(file["stored_bytes"].as_u64() > Some(100_000), "{file}");
    world.good(&["compact", "--zstd"]);
    assert_adds_up_to_the_file(&world);
    let all = world.good(&["du", "--json"]).json();
    let alpha = all.iter().find(|row| row["agent"] == "alpha").expect("the agent");
    assert!(alpha["stored_bytes"].as_u64() < alpha["bytes"].as_u64(), "compressed: {alpha}");
    world.good(&["compact"]);
    assert_adds_up_to_the_file(&world);
    world.good(&["erase", "r2"]);
    assert_adds_up_to_the_file(&world);
}

#[test]
fn small_extents_and_many_segments_add_up_too() {
    let world = World::new();
    let log = Options::new()
        .extent_size(64 << 10)
        .compression(Compression::None)
        .open(world.store())
        .expect("a store");
    for run in 0..60 {
        let writer = log.start_run("a", &format!("r{run}"), ()).expect("a run");
        for _ in 0..10 {
            let _ = writer.append(&[b'x'; 3000]).expect("an append");
        }
        let _ = writer.end(&Outcome::completed()).expect("an end");
        if run % 3 == 0 {
            log.delete_run(&*format!("r{run}")).expect("a deletion");
        }
    }
    // While it is open, and space is given back in the background.
    assert_adds_up(&world);
    log.close().expect("closed");
    assert_adds_up_to_the_file(&world);
}

#[test]
fn an_empty_store_has_nothing_dead() {
    let world = World::new();
    world.open().close().expect("closed");
    let file = assert_adds_up_to_the_file(&world);
    assert_eq!((&file["dead_bytes"], &file["stored_bytes"]), (&0.into(), &0.into()), "{file}");
    let text = world.good(&["stat"]);
    assert!(!text.text().contains("documents"), "{}", text.text());
    assert!(!text.text().contains("dead"), "{}", text.text());
}

#[test]
fn people_read_it_in_columns() {
    let world = world();
    let text = world.good(&["du"]);
    for said in ["AGENT", "alpha", "(all documents)", "(all runs)", "allocated", "OF THE FILE"] {
        assert!(text.text().contains(said), "{said}: {}", text.text());
    }
    let ran = world.run(&["du", "--by", "run", "--limit", "1", "--json"]);
    assert_eq!(rows(&ran.json(), "run")[0]["run"], "r2", "the largest first");
    assert_eq!(ran.message().expect("a message")["event"], "more");
    let stat = world.good(&["stat"]);
    assert!(stat.text().contains("2 documents"), "{}", stat.text());
}
