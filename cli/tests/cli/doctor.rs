//! What the doctor finds, on whole and on ailing stores, and what it says to do.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, SystemTime};

use runlog::{Durability, Metadata, NewRecord, Outcome, Timestamp};
use serde_json::Value;

use crate::world::{Ran, Terminal, World, keys};

/// A store that was closed properly, with a run that has ended.
fn world() -> World {
    let world = World::new();
    let log = world.open();
    let writer = log.start_run("planner", "done", ()).expect("a run");
    writer.append(b"the text of a record").expect("a record");
    writer.end(&Outcome::completed()).expect("an end");
    drop(writer);
    log.close().expect("closed");
    world
}

fn doctor(world: &World, args: &[&str]) -> Ran {
    world.run(&[&["doctor", "--json"][..], args].concat())
}

/// The severities of the findings, by the check; the worst of each.
fn severities(ran: &Ran) -> BTreeMap<String, String> {
    let rank = |severity: &str| {
        let order = ["ok", "note", "warning", "error"];
        order.iter().position(|known| *known == severity).expect("a severity")
    };
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for row in ran.json().iter().filter(|row| row["event"] == "finding") {
        let text = |key: &str| row[key].as_str().expect("text").to_owned();
        let worst = found.entry(text("check")).or_insert_with(|| "ok".to_owned());
        if rank(&text("severity")) > rank(worst) {
            *worst = text("severity");
        }
    }
    found
}

/// The finding of a check.
fn finding(ran: &Ran, check: &str) -> Value {
    let rows = ran.json();
    let found = rows.iter().find(|row| row["check"] == check);
    found.unwrap_or_else(|| panic!("no {check}: {ran:?}")).clone()
}

/// The code that the findings lead to.
fn code(ran: &Ran) -> i32 {
    let rows = ran.json();
    let sum = rows.last().expect("a summary");
    let bad = sum["warnings"].as_u64().expect("a sum") + sum["errors"].as_u64().expect("a sum");
    if sum["damaged"] == true { 3 } else { i32::from(bad > 0) }
}

#[test]
fn a_store_that_is_well_has_nothing_to_do() {
    let world = world();
    let before = fs::read(world.store()).expect("the store");
    let ran = doctor(&world, &[]);
    let mut found = severities(&ran);
    // These are of the machine that runs the test.
    for check in ["file_system", "space"] {
        assert!(found.remove(check).is_some(), "{check}: {ran:?}");
    }
    let bad: Vec<_> = found.iter().filter(|(_, severity)| *severity != "ok").collect();
    assert!(bad.is_empty(), "{bad:?}: {ran:?}");
    for check in ["open", "damage", "dead_bytes", "runs", "rights", "clock"] {
        assert!(found.contains_key(check), "{check}: {ran:?}");
    }
    assert_eq!(ran.code, Some(code(&ran)), "{ran:?}");
    assert_eq!(
        keys(&finding(&ran, "open")),
        ["advice", "check", "command", "damage", "event", "message", "severity"]
    );
    let text = world.run(&["doctor"]);
    assert!(text.text().contains("\nok       open         the store opens"), "{}", text.text());
    assert!(before == fs::read(world.store()).expect("the store"), "it wrote");
    let names: Vec<_> = fs::read_dir(world.path(".")).expect("a folder").collect();
    assert_eq!(names.len(), 1, "it left a file");
}

#[test]
fn runs_without_a_writer_are_to_be_adopted_and_imported_ones_are_not() {
    let world = world();
    world.write("a/open.jsonl", "{\"n\":1}\n");
    world.good(&["import", "a"]);
    let ran = doctor(&world, &[]);
    assert_eq!(finding(&ran, "runs")["severity"], "note", "{ran:?}");
    let log = world.open();
    drop(log.start_run("planner", "left", ()).expect("a run"));
    let ran = doctor(&world, &[]);
    assert_eq!(finding(&ran, "runs")["severity"], "ok", "its writer lives: {ran:?}");
    let open = finding(&ran, "open");
    assert!(open["message"].as_str().expect("text").contains("open for writing since"), "{open}");
    log.close().expect("closed");
    let ran = doctor(&world, &[]);
    let runs = finding(&ran, "runs");
    assert_eq!((ran.code, &runs["severity"]), (Some(1), &"warning".into()), "{ran:?}");
    assert!(runs["message"].as_str().expect("text").contains("planner/left"), "{runs}");
    let command = runs["command"].as_str().expect("a command");
    let arguments: Vec<&str> = command.split(' ').skip(1).collect();
    let listed = world.good(&arguments);
    assert!(listed.text().contains("left"), "the command works: {listed:?}");
}

#[test]
fn damage_is_an_error_with_exit_code_3() {
    let world = world();
    let good = fs::read(world.store()).expect("the store");
    let text = b"the text of a record";
    let at = good.windows(text.len()).position(|found| found == text).expect("the record");
    let mut bytes = good.clone();
    bytes[at] ^= 1;
    fs::write(world.store(), &bytes).expect("written");
    let ran = doctor(&world, &[]);
    let damage = finding(&ran, "damage");
    assert_eq!((ran.code, &damage["damage"]), (Some(3), &true.into()), "{ran:?}");
    let message = damage["message"].as_str().expect("text");
    assert!(message.contains("run \"done\"") && !message.contains("the text"), "{message}");
    let command = damage["command"].as_str().expect("a command");
    assert_eq!(command, "runlog salvage runs.runlog salvaged.runlog");
    fs::write(world.store(), &good).expect("written");
    let damage = finding(&doctor(&world, &["--quick"]), "damage");
    assert_eq!(damage["severity"], "ok", "{damage}");
    assert!(damage["message"].as_str().expect("text").contains("not every byte"), "{damage}");
    // A store that does not open any more.
    bytes[..16 << 10].fill(0);
    fs::write(world.store(), &bytes).expect("written");
    let ran = doctor(&world, &[]);
    let open = finding(&ran, "open");
    assert_eq!(open["severity"], "error", "{ran:?}");
    assert!(open["command"].as_str().expect("a command").starts_with("runlog salvage"), "{open}");
    assert_eq!(ran.code, Some(code(&ran)));
}

#[test]
fn what_is_no_store_is_an_error_and_its_place_is_looked_at() {
    let world = World::new();
    world.write("text", "no store");
    for (store, word) in [("missing", "--create"), ("text", "check the path"), (".", "check")] {
        let ran = doctor(&world, &["--store", store]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        let open = finding(&ran, "open");
        assert_eq!(open["severity"], "error", "{ran:?}");
        assert!(open["advice"].as_str().expect("text").contains(word), "{open}");
        finding(&ran, "file_system");
    }
    assert!(!fs::exists(world.path("missing")).expect("a look"));
}

#[test]
fn rights_of_others_are_told() {
    let world = world();
    let mode = |mode| fs::set_permissions(world.store(), Permissions::from_mode(mode));
    for (bits, severity, command) in [
        (0o600, "ok", None),
        (0o640, "note", Some("chmod go-r runs.runlog")),
        (0o666, "warning", Some("chmod go-w runs.runlog")),
    ] {
        mode(bits).expect("a mode");
        let ran = doctor(&world, &[]);
        let rights = finding(&ran, "rights");
        assert_eq!(rights["severity"], severity, "{rights}");
        assert_eq!(rights["command"].as_str(), command, "{rights}");
    }
}

#[test]
fn a_clock_before_the_newest_record_is_told() {
    let world = world();
    let log = world.open();
    let ahead = Timestamp::from(SystemTime::now() + Duration::from_secs(3600));
    let metadata = Metadata::new(b"").at(ahead);
    let writer = log.start_run("planner", "ahead", metadata).expect("a run");
    writer.append_record(&NewRecord::new(b"later").at(ahead)).expect("a record");
    writer.end(&Outcome::completed().at(ahead)).expect("an end");
    drop(writer);
    log.close().expect("closed");
    let clock = finding(&doctor(&world, &[]), "clock");
    assert_eq!(clock["severity"], "warning", "{clock}");
    assert!(clock["message"].as_str().expect("text").contains(&format!("{ahead:.0}")), "{clock}");
}

#[test]
fn a_writer_that_died_leaves_notes_and_no_errors() {
    let world = world();
    let log = world.open();
    let writer = log.start_run("planner", "cut", ()).expect("a run");
    let record = NewRecord::new(b"not synced").durability(Durability::Process);
    writer.append_record(&record).expect("a record");
    writer.end(&Outcome::completed()).expect("an end");
    fs::copy(world.store(), world.path("left.runlog")).expect("a copy");
    drop(writer);
    log.close().expect("closed");
    let ran = doctor(&world, &["--store", "left.runlog"]);
    let open = finding(&ran, "open");
    assert_eq!(open["severity"], "note", "{ran:?}");
    assert!(open["advice"].as_str().expect("text").contains("recovers it"), "{open}");
    assert_eq!(severities(&ran)["damage"], "ok", "{ran:?}");
}

#[test]
fn a_terminal_shows_it_in_colours() {
    let world = world();
    let terminal = Terminal { has_colours: true, ..Terminal::of(80) };
    let (_, shown) = terminal.run(&world, &["doctor"]);
    assert!(shown.contains("\n\x1b[32mok       \x1b[0mopen         "), "{shown}");
}
