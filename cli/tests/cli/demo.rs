//! The demonstration: it must hold what it shows, and leave nothing behind.

use std::fs;

use crate::world::{Ran, World};

#[test]
fn nothing_acknowledged_is_lost_and_nothing_is_left_behind() {
    let world = World::new();
    fs::create_dir(world.path("tmp")).expect("a folder");
    let mut command = world.command(&["demo", "--millis", "500", "--json"]);
    let ran = Ran::of(command.env("TMPDIR", world.path("tmp")));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{}", ran.text());
    let events = ran.json();
    let event = |name: &str| {
        events.iter().find(|event| event["event"] == name).unwrap_or_else(|| panic!("no {name}"))
    };
    let (killed, checked) = (event("killed"), event("checked"));
    assert!(killed["records"].as_u64() > Some(100), "{killed}");
    assert_eq!(checked["intact"], killed["records"]);
    assert_eq!((&checked["missing"], &checked["changed"]), (&0.into(), &0.into()));
    assert_eq!(event("end")["good"], true);
    assert!(events.iter().any(|event| event["status"] == "interrupted"), "runs were cut off");
    let left = fs::read_dir(world.path("tmp")).expect("a folder").count();
    assert_eq!(left, 0, "the temporary store is removed");
}

#[test]
fn the_store_can_be_kept_and_is_one_file() {
    let world = World::new();
    let ran = world.good(&["demo", "--millis", "300", "--store", "runs.runlog"]);
    assert!(ran.text().ends_with("nothing that was acknowledged is missing or changed\n"));
    world.good(&["verify"]);
    let names: Vec<_> = fs::read_dir(world.path(""))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(names, ["runs.runlog"]);
    let again = world.run(&["demo", "--millis", "300", "--store", "runs.runlog"]);
    assert_eq!(again.code, Some(1), "an existing store is not touched");
    assert!(again.stderr.contains("there is already a file"), "{}", again.stderr);
}

/// Somebody who has set the variable for daily use does not want a demonstration in that store.
#[test]
fn the_store_of_the_environment_is_left_alone() {
    let world = World::new();
    let mut command = world.command(&["demo", "--millis", "200"]);
    let ran = Ran::of(command.env("RUNLOG_STORE", world.store()));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(!fs::exists(world.store()).expect("a look"));
}
