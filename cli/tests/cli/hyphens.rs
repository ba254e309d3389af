//! Ids that begin with a hyphen, as Claude Code names its projects.

use crate::world::World;

/// Two sessions of the project `/home/u/app`, both ended.
fn world() -> World {
    let world = World::new();
    for id in ["one", "two"] {
        world.write(
            &format!("projects/-home-u-app/{id}.jsonl"),
            format!("{{\"text\":\"{id} -home-u-app\"}}\n"),
        );
    }
    world.good(&["import", "--create", "--end", "completed", "projects"]);
    let listed = world.good(&["ls"]);
    assert!(listed.text().contains("-home-u-app"), "{listed:?}");
    world
}

#[test]
fn every_command_takes_the_names_that_import_prints() {
    let world = world();
    world.write("-new/2026/three.jsonl", "{\"n\":3}\n");
    for (args, shown) in [
        (&["show", "-home-u-app/one", "--raw"][..], "one -home-u-app"),
        (&["show", "--raw", "-home-u-app/one"], "one -home-u-app"),
        (&["show", "one", "--agent", "-home-u-app", "--raw"], "one -home-u-app"),
        (&["tail", "-home-u-app/two", "-n1"], "two -home-u-app"),
        (&["tail", "-n", "1", "--agent", "-home-u-app"], "-home-u-app/"),
        (&["search", "-home-u-app", "-c"], "-home-u-app/two:1"),
        (&["search", "one", "--run", "-home-u-app/one", "-l"], "-home-u-app/one"),
        (&["ls", "--grep", "-u-app", "--agent", "-home-u-app"], "completed"),
        (&["du", "--agent", "-home-u-app"], "-home-u-app"),
        (&["usage", "--by", "run", "--agent", "-home-u-app"], "(all)"),
        (&["gc", "--keep", "5", "--agent", "-home-u-app"], "evicted 0 runs"),
        (&["hold", "-home-u-app/one", "--reason", "-because"], "is held now"),
        (&["release", "-home-u-app/one"], "is released"),
        (&["export", "-out", "-home-u-app/one", "-home-u-app/two"], "2 runs exported"),
        (&["import", "-new/2026/three.jsonl", "--agent", "-home-u-app"], "-home-u-app/three"),
        (&["end", "-home-u-app/three", "--status", "failed"], "is failed now"),
    ] {
        let ran = world.run(args);
        assert_eq!(ran.code, Some(0), "{args:?}: {ran:?}");
        assert!(ran.text().contains(shown), "{args:?}: {ran:?}");
    }
}

#[test]
fn what_is_deleted_by_such_a_name_is_gone() {
    let world = world();
    let ran = world.good(&["rm", "--yes", "-home-u-app/one"]);
    assert!(ran.text().contains("deleted run one of agent -home-u-app"), "{ran:?}");
    let ran = world.good(&["erase", "-home-u-app/two", "--yes"]);
    assert!(ran.text().contains("erased run two of agent -home-u-app"), "{ran:?}");
    assert_eq!(world.good(&["ls", "--json"]).text(), "");
}

#[test]
fn a_command_that_deleted_nothing_never_succeeds() {
    let world = world();
    for (args, code) in [
        (&["erase", "--yes", "-home-u-app/none"][..], 1),
        (&["rm", "-home-u-ap/one"], 1),
        (&["rm", "-yh"], 1),
        (&["rm", "--yess", "-home-u-app/one"], 2),
        (&["erase", "-x", "-home-u-app/one"], 2),
        (&["erase", "--agnet", "-home-u-app", "one"], 2),
        (&["rm", "--agent", "-home-u-ap", "one"], 1),
        (&["rm"], 2),
    ] {
        let ran = world.run(args);
        assert_eq!((ran.code, ran.text()), (Some(code), ""), "{args:?}: {ran:?}");
        if let Some(named) = args.get(1) {
            assert!(
                ran.stderr.contains(named.trim_start_matches("--yes ")) || code == 1,
                "{ran:?}"
            );
        }
    }
    assert_eq!(world.good(&["ls", "--json"]).json().len(), 2);
}
