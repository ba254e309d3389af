//! How a run is named: by its id, its agent and id, or the beginning of these.

use crate::world::{Terminal, World};

/// Runs of two agents; one id is the beginning of another.
fn world() -> World {
    let world = World::new();
    for (agent, run) in
        [("alpha", "run-1"), ("alpha", "run-10"), ("beta", "run-2"), ("beta", "5c2e8f1a-1b7b")]
    {
        world.write(&format!("runs/{agent}/{run}.jsonl"), format!("\"{agent}/{run}\"\n"));
    }
    world.good(&["import", "--create", "--end", "completed", "."]);
    world
}

#[test]
fn a_beginning_that_one_run_has_is_its_name() {
    let world = world();
    for (args, expected) in [
        (&["5c"][..], "beta/5c2e8f1a-1b7b"),
        (&["run-1"], "alpha/run-1"),
        (&["run-10"], "alpha/run-10"),
        (&["run-2"], "beta/run-2"),
        (&["beta/5"], "beta/5c2e8f1a-1b7b"),
        (&["alpha/run-1"], "alpha/run-1"),
        (&["run", "--agent", "beta"], "beta/run-2"),
    ] {
        let shown = world.good(&[&["show", "--raw"], args].concat());
        assert_eq!(shown.text(), format!("\"{expected}\"\n"), "{args:?}");
    }
    let shown = world.good(&["tail", "--raw", "5c"]);
    assert_eq!(shown.text(), "\"beta/5c2e8f1a-1b7b\"\n");
    let found = world.good(&["search", "beta", "--run", "5c", "-l"]);
    assert_eq!(found.text(), "beta/5c2e8f1a-1b7b\n");
}

#[test]
fn a_beginning_of_several_names_them() {
    let world = world();
    let ran = world.run(&["show", "run"]);
    assert_eq!((ran.code, ran.text()), (Some(1), ""));
    for said in ["3 runs", "alpha/run-1\n", "alpha/run-10,", "beta/run-2"] {
        assert!(ran.stderr.contains(said), "{said}: {}", ran.stderr);
    }
    let ran = world.run(&["show", "alpha/run"]);
    assert!(ran.stderr.contains("2 runs") && !ran.stderr.contains("beta"), "{}", ran.stderr);
    let ran = world.run(&["show", ""]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
}

#[test]
fn runs_with_similar_names_are_suggested() {
    let world = world();
    for (args, suggested) in [
        (&["rum-2"][..], "did you mean beta/run-2"),
        (&["1b7b"], "did you mean beta/5c2e8f1a-1b7b?"),
        (&["betta/run-2"], "did you mean beta/run-2"),
        (&["run-3", "--agent", "beta"], "did you mean beta/run-2?"),
    ] {
        let ran = world.run(&[&["show"], args].concat());
        assert_eq!((ran.code, ran.text()), (Some(1), ""));
        assert!(ran.stderr.contains(suggested), "{args:?}: {}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    }
    let ran = world.run(&["show", "zzzzzz"]);
    assert!(!ran.stderr.contains("did you mean"), "{}", ran.stderr);
}

/// `rm run-1` twice in a script must not delete `run-10`.
#[test]
fn a_script_changes_no_run_by_a_beginning() {
    let world = world();
    world.good(&["rm", "run-1"]);
    for args in [
        &["rm", "run-1"][..],
        &["erase", "run-1"],
        &["hold", "run-1", "--reason", "r"],
        &["release", "run-1"],
        &["end", "run-1", "--status", "failed"],
    ] {
        let ran = world.run(args);
        assert_eq!((ran.code, ran.text()), (Some(1), ""), "{args:?}");
        assert!(ran.stderr.contains("did you mean alpha/run-10?"), "{}", ran.stderr);
        assert!(ran.stderr.contains("whole id"), "{}", ran.stderr);
    }
    let (code, shown) = Terminal::of(80).run(&world, &["hold", "5c", "--reason", "r"]);
    assert_eq!(code, Some(0), "{shown}");
    assert_eq!(shown, "run 5c2e8f1a-1b7b of agent beta is held now\n");
}
