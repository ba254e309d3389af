//! Which run is a file's, when other files have its name and some are gone.

use std::fs;

use serde_json::Value;

use crate::world::{Ran, World};

/// What became of each file of an import, by its path: the result and the run.
fn told(ran: &Ran) -> Vec<String> {
    let of_file = |event: &Value| {
        let word = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
        match event["event"].as_str() {
            Some("run") => Some(format!("{} {} {}", word("file"), word("result"), word("run"))),
            Some("error") => Some(format!("{} error", word("file"))),
            _ => None,
        }
    };
    ran.json().iter().filter_map(of_file).collect()
}

fn import(world: &World, args: &[&str]) -> Vec<String> {
    told(&world.run(&[&["import", "--create", "--json", "--agent", "me"], args].concat()))
}

fn bytes(world: &World, run: &str) -> String {
    world.good(&["show", &format!("me/{run}"), "--raw"]).text().to_owned()
}

fn count(world: &World) -> usize {
    world.good(&["ls", "--all", "--json"]).json().len()
}

#[test]
fn a_file_keeps_its_run_when_an_earlier_one_of_its_name_is_gone() {
    for options in [&["t"][..], &["t", "--replace"]] {
        let world = World::new();
        world.write("t/2026/01/01/log.jsonl", "{\"a\":1}\n");
        world.write("t/2026/01/02/log.jsonl", "{\"a\":2}\n");
        world.write("t/2026/01/03/log.jsonl", "{\"a\":3}\n");
        assert_eq!(
            import(&world, options),
            [
                "t/2026/01/01/log.jsonl imported log",
                "t/2026/01/02/log.jsonl imported log.jsonl",
                "t/2026/01/03/log.jsonl imported 2026/01/03/log.jsonl",
            ]
        );
        fs::remove_dir_all(world.path("t/2026/01/01")).expect("removed");
        world.write("t/2026/01/03/log.jsonl", "{\"a\":3}\n{\"a\":4}\n");
        assert_eq!(
            import(&world, options),
            [
                "t/2026/01/02/log.jsonl already_there log.jsonl",
                "t/2026/01/03/log.jsonl continued 2026/01/03/log.jsonl",
            ]
        );
        assert_eq!(bytes(&world, "log"), "{\"a\":1}\n");
        assert_eq!(bytes(&world, "log.jsonl"), "{\"a\":2}\n");
        assert_eq!(bytes(&world, "2026/01/03/log.jsonl"), "{\"a\":3}\n{\"a\":4}\n");
        // It comes back, as from a backup.
        world.write("t/2026/01/01/log.jsonl", "{\"a\":1}\n");
        assert_eq!(import(&world, options)[0], "t/2026/01/01/log.jsonl already_there log");
        assert_eq!(count(&world), 3);
    }
}

#[test]
fn a_run_whose_file_is_gone_is_not_gone_on_with_by_a_new_file_of_its_name() {
    for (old, new) in [
        ("{\"a\":1}\n", "{\"a\":2}\n"),
        ("", "{\"a\":2}\n"),
        ("{\"a\":1}\n{\"a\":2}\n", "{\"a\":1}\n"),
        ("a line of text\n", "{\"a\":2}\n"),
        ("{\n \"messages\": []\n}", "{\n \"messages\": [1]\n}"),
        ("{\"a\":1}\n{\"a\"", "{\"a\":1}\n{\"b\":2}\n"),
    ] {
        for options in [&["t"][..], &["t", "--replace"]] {
            let world = World::new();
            world.write("t/2026/01/01/log.jsonl", old);
            assert_eq!(import(&world, options), ["t/2026/01/01/log.jsonl imported log"]);
            fs::remove_dir_all(world.path("t/2026/01/01")).expect("removed");
            world.write("t/2026/01/02/log.jsonl", new);
            let first = import(&world, options);
            assert_eq!(first, ["t/2026/01/02/log.jsonl imported log.jsonl"], "{old:?} {new:?}");
            let again = import(&world, options);
            assert_eq!(again, ["t/2026/01/02/log.jsonl already_there log.jsonl"]);
            assert_eq!((bytes(&world, "log").as_str(), count(&world)), (old, 2));
            assert_eq!(bytes(&world, "log.jsonl"), new);
        }
    }
}

/// What was imported first is the beginning of another file, and what the run has by now is not.
#[test]
fn a_run_that_grew_is_not_that_of_a_file_that_only_begins_like_it() {
    let world = World::new();
    world.write("t/2026/01/01/log.jsonl", "{\"a\":0}\n");
    import(&world, &["t"]);
    world.write("t/2026/01/01/log.jsonl", "{\"a\":0}\n{\"a\":1}\n");
    assert_eq!(import(&world, &["t"]), ["t/2026/01/01/log.jsonl continued log"]);
    fs::remove_dir_all(world.path("t/2026/01/01")).expect("removed");
    world.write("t/2026/01/02/log.jsonl", "{\"a\":0}\n{\"a\":2}\n{\"a\":3}\n");
    assert_eq!(import(&world, &["t"]), ["t/2026/01/02/log.jsonl imported log.jsonl"]);
    assert_eq!(bytes(&world, "log"), "{\"a\":0}\n{\"a\":1}\n");
}

#[test]
fn new_files_that_sort_in_front_of_a_file_leave_it_its_run() {
    let world = World::new();
    world.write("t/a/sessions/x.jsonl", "{\"a\":1}\n");
    import(&world, &["t"]);
    // One of them is a copy.
    world.write("t/a/chats/x.jsonl", "{\"a\":1}\n");
    world.write("t/a/logs/2026/x.jsonl", "{\"a\":2}\n");
    world.write("t/a/0/x.jsonl", "{\"a\":3}\n");
    let wanted = [
        "t/a/0/x.jsonl imported x.jsonl",
        "t/a/chats/x.jsonl imported chats/x.jsonl",
        "t/a/logs/2026/x.jsonl imported logs/x",
        "t/a/sessions/x.jsonl already_there x",
    ];
    assert_eq!(import(&world, &["t"]), wanted);
    let again = wanted.map(|line| line.replace("imported", "already_there"));
    assert_eq!(import(&world, &["t"]), again);
}

#[test]
fn a_tree_that_moved_is_there_already_and_is_gone_on_with() {
    let world = World::new();
    for (name, text) in [
        ("01/log.jsonl", "{\"a\":1}\n"),
        ("02/log.jsonl", "{\"a\":2}\n"),
        ("03/empty.jsonl", ""),
        ("03/torn.jsonl", "{\"a\":1}\n{\"a\""),
        ("03/whole.json", "{\n \"messages\": []\n}"),
        ("03/text.log", "a line\nand one"),
        ("03/other.jsonl", "{}\n"),
    ] {
        world.write(&format!("t/{name}"), text);
    }
    let first = import(&world, &["t"]);
    assert_eq!(first.len(), 7);
    fs::rename(world.path("t"), world.path("u")).expect("renamed");
    let moved =
        first.iter().map(|line| format!("u{}", &line[1..]).replace("imported", "already_there"));
    assert_eq!(import(&world, &["u"]), moved.collect::<Vec<_>>());
    // Half of it is gone, and the rest grew.
    fs::remove_dir_all(world.path("u/01")).expect("removed");
    world.write("u/02/log.jsonl", "{\"a\":2}\n{\"a\":3}\n");
    world.write("u/03/torn.jsonl", "{\"a\":1}\n{\"a\":2}\n");
    // A name of its own is another file.
    fs::rename(world.path("u/03/other.jsonl"), world.path("u/03/renamed.jsonl")).expect("renamed");
    assert_eq!(
        import(&world, &["u"]),
        [
            "u/02/log.jsonl continued log.jsonl",
            "u/03/empty.jsonl already_there empty",
            "u/03/renamed.jsonl imported renamed",
            "u/03/text.log already_there text",
            "u/03/torn.jsonl replaced torn",
            "u/03/whole.json already_there whole",
        ]
    );
    assert_eq!(bytes(&world, "log"), "{\"a\":1}\n");
    assert_eq!(bytes(&world, "other"), "{}\n");
    assert_eq!(count(&world), 8);
}

/// The original and its copy are both there: whose run it is does not hang on their order.
#[test]
fn a_copy_beside_its_original_gets_a_run_of_its_own() {
    let world = World::new();
    world.write("m/x.jsonl", "{}\n");
    import(&world, &["m"]);
    for name in ["c/x.jsonl", "n/x.jsonl"] {
        world.write(name, "{}\n");
    }
    for result in ["imported", "already_there"] {
        let (first, last) =
            (format!("c/x.jsonl {result} x.jsonl"), format!("n/x.jsonl {result} x.jsonl~2"));
        let told = import(&world, &["c", "m", "n"]);
        assert_eq!(told, [first.as_str(), "m/x.jsonl already_there x", last.as_str()]);
    }
}

/// The original is no file of the import, but it is there.
#[test]
fn a_copy_that_has_more_than_its_original_gets_a_run_of_its_own() {
    let world = World::new();
    for original in ["{}\n", "{}\n{\"a\""] {
        let folder = format!("m{}", original.len());
        let name = format!("{folder}/x.jsonl");
        world.write(&name, original);
        let run = import(&world, &[&folder])[0].replace(&format!("{name} imported "), "");
        world.write("c/x.jsonl", original);
        let told = import(&world, &["c"]);
        assert_eq!(told, [format!("c/x.jsonl already_there {run}")]);
        world.write("c/x.jsonl", "{}\n{\"a\":1}\n");
        let told = import(&world, &["c"]);
        assert!(told[0].starts_with("c/x.jsonl imported x.jsonl"), "{told:?}");
        assert_eq!(bytes(&world, &run), original);
        // Without the original it would be this file, moved.
        fs::remove_file(world.path(&name)).expect("removed");
        world.good(&["end", told[0].rsplit(' ').next().expect("a run"), "--status", "completed"]);
        world.good(&["rm", told[0].rsplit(' ').next().expect("a run")]);
        let told = import(&world, &["c"]);
        assert!(told[0].ends_with(&format!(" {run}")), "{told:?}");
        assert_eq!(bytes(&world, &run), "{}\n{\"a\":1}\n");
        world.good(&["end", &run, "--status", "completed"]);
        world.good(&["rm", &run]);
    }
}

/// Files of one name from many folders have numbers, and some of their runs are deleted.
#[test]
fn a_file_with_a_number_keeps_its_run_when_runs_before_it_are_deleted() {
    let world = World::new();
    let names = ["1", "2", "3", "4", "5"].map(|folder| format!("{folder}/x.jsonl"));
    let names = names.each_ref().map(String::as_str);
    for name in names {
        world.write(name, format!("[{name:?}]\n"));
    }
    let told = import(&world, &names);
    assert_eq!(told[4], "5/x.jsonl imported x.jsonl~4");
    for run in ["me/x", "me/x.jsonl~2", "me/x.jsonl~3"] {
        world.good(&["end", run, "--status", "completed"]);
        world.good(&["rm", run]);
    }
    assert_eq!(import(&world, &names[4..]), ["5/x.jsonl already_there x.jsonl~4"]);
    let told = import(&world, &names);
    assert_eq!(told[1], "2/x.jsonl already_there x.jsonl");
    assert_eq!(told[4], "5/x.jsonl already_there x.jsonl~4");
    assert_eq!(count(&world), 5);
    for (name, line) in names.iter().zip(&told) {
        let run = line.rsplit(' ').next().expect("a run");
        assert_eq!(bytes(&world, run), format!("[{name:?}]\n"));
    }
}

#[test]
fn a_file_whose_way_is_too_long_for_an_id_is_refused_and_the_others_go_on() {
    let world = World::new();
    let folder = ["t"].into_iter().chain([&*"x".repeat(200); 5]).collect::<Vec<_>>().join("/");
    let long = format!("{folder}/log.jsonl");
    world.write(&long, "{}\n");
    world.write("t/z/log.jsonl", "{}\n");
    let wanted = [format!("{long} error"), "t/z/log.jsonl imported log".to_owned()];
    assert_eq!(import(&world, &["t/"]), wanted);
}

#[test]
fn a_file_that_is_named_twice_is_imported_once() {
    let world = World::new();
    world.write("t/x.jsonl", "{}\n");
    let whole = world.path("t").into_os_string().into_string().expect("UTF-8");
    for result in ["imported", "already_there"] {
        let told = import(&world, &["t", "t", "./t", "t/x.jsonl", &whole]);
        assert_eq!(told, [format!("t/x.jsonl {result} x")]);
        assert_eq!((bytes(&world, "x").as_str(), count(&world)), ("{}\n", 1));
    }
}

/// Goal: a file has one run, however its path is spelled.
#[test]
fn a_file_that_is_reached_on_another_way_is_gone_on_with() {
    let link = |world: &World, to: &str, name: &str| {
        std::os::unix::fs::symlink(to, world.path(name)).expect("a link");
    };
    for way in ["w/../logs/s.jsonl", "u", "u/s.jsonl", "v/s.jsonl"] {
        let world = World::new();
        world.write("logs/s.jsonl", "{\"a\":1}\n");
        fs::create_dir_all(world.path("w")).expect("a folder");
        fs::create_dir_all(world.path("v")).expect("a folder");
        link(&world, "logs", "u");
        link(&world, "../logs/s.jsonl", "v/s.jsonl");
        assert_eq!(import(&world, &["logs/s.jsonl"]), ["logs/s.jsonl imported s"]);
        for (text, result) in [("{\"a\":1}\n{\"a\":2}\n", "continued"), ("{\"b\":1}\n", "replaced")]
        {
            world.write("logs/s.jsonl", text);
            let told = import(&world, &[way, "--replace"]);
            assert!(told[0].ends_with(&format!("/s.jsonl {result} s")), "{way}: {told:?}");
            assert_eq!((bytes(&world, "s").as_str(), count(&world)), (text, 1), "{way}");
        }
        // And on both ways at once.
        fs::write(world.path("logs/t.jsonl"), "{}\n").expect("written");
        let ways = [&["logs", "u", "w/../logs", "u/t.jsonl"][..], &["u", "logs"]];
        for (ways, result) in ways.into_iter().zip(["imported", "already_there"]) {
            let told = import(&world, ways);
            assert_eq!(told.len(), 2, "{told:?}");
            assert!(told[0].ends_with("/s.jsonl already_there s"), "{told:?}");
            assert!(told[1].ends_with(&format!("/t.jsonl {result} t")), "{told:?}");
        }
        assert_eq!(count(&world), 2);
    }
}

/// A run of an import that stored the path as the user spelled it.
#[test]
fn the_path_of_an_older_run_is_compared_as_what_it_leads_to() {
    let world = World::new();
    world.write("m/x.jsonl", "{\"a\":1}\n");
    world.write("c/x.jsonl", "{\"a\":1}\n");
    std::os::unix::fs::symlink("m", world.path("n")).expect("a link");
    let metadata = serde_json::json!({
        "imported_from": "x.jsonl", "path": world.path("c/../n/x.jsonl"), "layout": "lines",
    });
    let log = runlog::Options::new().create(world.store()).expect("a store");
    let metadata = metadata.to_string();
    let metadata = runlog::Metadata::json(metadata.as_bytes());
    let run = log.start_run("me", "x", metadata).expect("a run");
    let _ = run.append_record(&runlog::NewRecord::new(b"{\"a\":1}")).expect("an append");
    drop(run);
    log.close().expect("closed");
    let wanted = ["c/x.jsonl imported x.jsonl", "m/x.jsonl already_there x"];
    assert_eq!(import(&world, &["c", "m"]), wanted);
    world.write("m/x.jsonl", "{\"a\":1}\n{\"a\":2}\n");
    assert_eq!(import(&world, &["m"]), ["m/x.jsonl continued x"]);
}

/// Two names of a file are two files.
#[test]
fn hard_links_of_one_name_keep_a_run_each() {
    let world = World::new();
    world.write("a/x.jsonl", "{}\n");
    fs::create_dir_all(world.path("b")).expect("a folder");
    fs::hard_link(world.path("a/x.jsonl"), world.path("b/x.jsonl")).expect("a hard link");
    let wanted = ["a/x.jsonl imported x", "b/x.jsonl imported x.jsonl"];
    assert_eq!(import(&world, &["a", "b"]), wanted);
    let wanted = ["b/x.jsonl already_there x.jsonl", "a/x.jsonl already_there x"];
    assert_eq!(import(&world, &["b", "a"]), wanted);
}

/// Goal: two folders whose names are not UTF-8 are two, also where they read the same to people.
#[test]
fn a_path_that_is_not_utf8_is_not_taken_for_another() {
    use std::os::unix::ffi::OsStrExt as _;
    let world = World::new();
    let mut told = Vec::new();
    for (byte, text) in [(0xff_u8, "{\"a\":1}\n"), (0xfe, "{\"b\":1}\n")] {
        let folder = world.path(".").join(std::ffi::OsStr::from_bytes(&[b'd', byte]));
        fs::create_dir(&folder).expect("a folder");
        fs::write(folder.join("s.jsonl"), text).expect("a file");
        let mut command = world.command(&["import", "--create", "--json", "--replace"]);
        told.extend(self::told(&Ran::of(command.arg(folder.join("s.jsonl")))));
    }
    assert!(told[0].ends_with(" imported s"), "{told:?}");
    assert!(told[1].ends_with(" imported s.jsonl"), "{told:?}");
}

#[test]
fn a_file_keeps_its_run_when_all_runs_before_it_are_deleted() {
    let world = World::new();
    let names: Vec<_> = (0..16).map(|folder| format!("{folder}/s.jsonl")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    for name in &names {
        world.write(name, format!("[{name:?}]\n"));
    }
    // Another file, whose name only looks as if it had a number.
    world.write("s~18446744073709551615.jsonl", "{}\n");
    world.write("s.jsonl~1000000000000.jsonl", "{}\n");
    import(&world, &["s~18446744073709551615.jsonl", "s.jsonl~1000000000000.jsonl"]);
    let told = import(&world, &names);
    assert_eq!(told[3], "3/s.jsonl imported s.jsonl~3");
    assert_eq!(told[15], "15/s.jsonl imported s.jsonl~15");
    for line in told[..3].iter().chain(&told[4..15]) {
        let run = format!("me/{}", line.rsplit(' ').next().expect("a run"));
        world.good(&["end", &run, "--status", "completed"]);
        world.good(&["rm", &run]);
    }
    for place in [3, 15] {
        let wanted = told[place].replace("imported", "already_there");
        assert_eq!(import(&world, &names[place..=place]), [wanted]);
    }
    world.write("new/s.jsonl", "{}\n");
    assert_eq!(import(&world, &["new/s.jsonl"]), ["new/s.jsonl imported s"]);
}

/// `codex archive` moves a session to a folder of another name, beside the one that it was in.
#[test]
fn a_session_that_was_archived_stays_one_run() {
    let world = World::new();
    world.write("codex/sessions/2026/09/01/x.jsonl", "{\"a\":1}\n");
    world.good(&["import", "--create", "codex"]);
    fs::create_dir(world.path("codex/archived_sessions")).expect("a folder");
    let to = world.path("codex/archived_sessions/x.jsonl");
    fs::rename(world.path("codex/sessions/2026/09/01/x.jsonl"), to).expect("renamed");
    let ran = world.good(&["import", "codex"]);
    assert!(ran.text().contains("already there codex/x "), "{ran:?}");
    // Also where each of the two folders is imported by itself, and after it went on.
    world.write("codex/archived_sessions/x.jsonl", "{\"a\":1}\n{\"a\":2}\n");
    let ran = world.good(&["import", "codex/archived_sessions"]);
    assert!(ran.text().contains("continued codex/x "), "{ran:?}");
    assert_eq!(count(&world), 1);
}
