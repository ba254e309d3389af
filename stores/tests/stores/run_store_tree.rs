//! Trees of JSON Lines files go into `RunStore` and come out again, byte for byte.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use runlog_sim::SplitMix64;
use runlog_stores::run_store::{Refusal, RunRecord, RunStatus, RunStore};

use super::run_store_world::{DAY, NOW, World, ended, ids, in_lives, started, success, turn};

type Tree = BTreeMap<String, Vec<u8>>;

fn write(root: &Path, tree: &Tree) {
    for (name, bytes) in tree {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

fn read(root: &Path) -> Tree {
    let mut tree = Tree::new();
    for agent in fs::read_dir(root).unwrap().map(Result::unwrap) {
        for run in fs::read_dir(agent.path()).unwrap().map(Result::unwrap) {
            let name = run.path().strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            tree.insert(name, fs::read(run.path()).unwrap());
        }
    }
    tree
}

fn exported(store: &RunStore) -> Tree {
    let folder = tempfile::tempdir().unwrap();
    let exported = store.export_tree(folder.path()).unwrap();
    assert!(exported.problems.is_empty(), "{:?}", exported.problems);
    let tree = read(folder.path());
    assert_eq!(exported.files, tree.len() as u64);
    tree
}

fn line(record: &RunRecord) -> Vec<u8> {
    let mut line = record.to_line();
    line.push(b'\n');
    line
}

/// A finished run as the original writes it.
fn run(agent: &str, run: &str, at: i64) -> Vec<u8> {
    let records = [
        RunRecord::Started(started(agent, run, at)),
        turn(0, "p"),
        RunRecord::Ended(ended(agent, run, at + 1, success())),
    ];
    records.iter().flat_map(line).collect()
}

/// Files of every kind that were seen, and some more.
fn tree() -> Tree {
    let mut torn = run("a", "torn", NOW - 3);
    torn.truncate(torn.len() - 20);
    let mut welded = line(&RunRecord::Started(started("a", "welded", NOW - 4)));
    welded.pop();
    welded.extend(line(&turn(0, "p")));
    let crlf = String::from_utf8(run("a", "crlf", NOW - 5)).unwrap().replace('\n', "\r\n");
    [
        ("a/plain.jsonl", run("a", "plain", NOW - 1)),
        ("a/open.jsonl", line(&RunRecord::Started(started("a", "open", NOW - 2)))),
        ("a/torn.jsonl", torn),
        ("a/welded.jsonl", welded),
        ("a/crlf.jsonl", crlf.into_bytes()),
        ("a/empty.jsonl", Vec::new()),
        ("a/newline.jsonl", b"\n".to_vec()),
        ("a/newlines.jsonl", b"\n\n\n".to_vec()),
        ("a/blank.jsonl", b" ".to_vec()),
        ("a/bytes.jsonl", b"\xff\xfe\n\0\0\n{\"record\":\"future\"}\n\xc3".to_vec()),
        ("a/whole-last.jsonl", run("a", "whole-last", NOW).trim_ascii_end().to_vec()),
        ("a/no.start.jsonl", line(&turn(3, "p"))),
        ("b_c/x_y.jsonl", run("b/c", "x:y", NOW)),
        ("b_c/hidden.jsonl", run(".b/c.", "..hidden", NOW)),
        ("b_c/strange: name .jsonl", run("elsewhere", "other", NOW)),
        ("\u{e9}/\u{1f980}.jsonl", run("\u{e9}", "\u{1f980}", NOW)),
    ]
    .into_iter()
    .map(|(name, bytes)| (name.to_owned(), bytes))
    .collect()
}

fn import(world: &World, tree: &Tree) -> runlog_stores::run_store::Imported {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), tree);
    world.store().import_tree(folder.path()).unwrap()
}

#[test]
fn a_tree_comes_out_as_it_went_in_name_by_name_and_byte_by_byte() {
    in_lives(|world| {
        let tree = tree();
        let imported = import(world, &tree);
        assert!(imported.problems.is_empty(), "{:?}", imported.problems);
        assert_eq!((imported.new, imported.unchanged), (tree.len() as u64, 0));
        let out = exported(&world.store());
        assert_eq!(out.keys().collect::<Vec<_>>(), tree.keys().collect::<Vec<_>>());
        assert_eq!(out, tree);
        // Once more changes nothing.
        let again = import(world, &tree);
        assert_eq!((again.new, again.unchanged), (0, tree.len() as u64), "{again:?}");
        assert_eq!(again.lines, 0);
        assert_eq!(exported(&world.store()), tree);
    });
}

#[test]
fn an_imported_tree_is_listed_and_read_like_runs_that_were_written_here() {
    in_lives(|world| {
        let imported = import(world, &tree());
        // The torn end, the two welded records, three lines of bytes.
        assert_eq!(imported.damaged_lines, 5, "{imported:?}");
        assert_eq!(
            ids(&world.store(), "a"),
            ["whole-last", "plain", "open", "torn", "crlf"],
            "a line with two records is none"
        );
        let store = world.store();
        let by_id = |run: &str| {
            let runs = store.list_runs("a");
            runs.into_iter().find(|summary| summary.run_id == run).unwrap()
        };
        assert_eq!(by_id("plain").status, RunStatus::Completed);
        assert_eq!(by_id("plain").turn_count, 1);
        assert_eq!(by_id("whole-last").status, RunStatus::Completed);
        assert_eq!(by_id("crlf").status, RunStatus::Completed);
        assert_eq!(by_id("torn").status, RunStatus::InProgress);
        assert_eq!(by_id("torn").damaged_lines, 1);
        assert_eq!(store.get_run_trace_for("a", "empty"), Some(Vec::new()));
        assert_eq!(store.get_run_trace_for("a", "no.start"), Some(vec![turn(3, "p")]));
        // The real ids, where the names may have been made of them.
        assert_eq!(store.agent_for_run("x:y").as_deref(), Some("b/c"));
        assert_eq!(store.agent_for_run("..hidden").as_deref(), Some(".b/c."));
        assert_eq!(store.agent_for_run("strange: name ").as_deref(), Some("b_c"));
    });
}

#[test]
fn imported_runs_are_adopted_collected_and_gone_on_with_like_others() {
    in_lives(|world| {
        let mut tree = tree();
        tree.insert("a/old.jsonl".to_owned(), run("a", "old", NOW - 40 * DAY));
        import(world, &tree);
        world.store().append_turns("a", "torn", &[turn(1, "after")]).unwrap();
        let adoption = world.store().try_adopt_orphans().unwrap();
        assert_eq!((adoption.adopted, adoption.taken_out), (2, 0), "`open` and `torn`");
        assert_eq!(world.store().gc(), 1);
        let out = exported(&world.store());
        assert!(!out.contains_key("a/old.jsonl"));
        // The torn line ends where it was torn, and what came later is behind it.
        let torn = &out["a/torn.jsonl"];
        let mut expected = tree["a/torn.jsonl"].clone();
        expected.push(b'\n');
        expected.extend(line(&turn(1, "after")));
        assert_eq!(torn[..expected.len()], expected);
        assert_eq!(out["a/empty.jsonl"], b"");
    });
}

#[test]
fn files_that_have_grown_are_gone_on_with_and_those_that_differ_are_left() {
    in_lives(|world| {
        let mut tree = Tree::new();
        let whole = run("a", "r", NOW);
        let first = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        tree.insert("a/r.jsonl".to_owned(), whole[..first].to_vec());
        assert_eq!(import(world, &tree).new, 1);
        tree.insert("a/r.jsonl".to_owned(), whole.clone());
        let imported = import(world, &tree);
        assert_eq!((imported.continued, imported.lines), (1, 2));
        assert_eq!(world.store().list_runs("a")[0].status, RunStatus::Completed);
        // What went on here is not behind what the file has.
        world.store().append_turns("a", "r", &[turn(9, "late")]).unwrap();
        assert_eq!(import(world, &tree).unchanged, 1);

        let mut other = whole.clone();
        other[first + 12] ^= 1;
        tree.insert("a/r.jsonl".to_owned(), other);
        let imported = import(world, &tree);
        assert!(matches!(imported.problems[0].why, Refusal::Differs { line: 2 }), "{imported:?}");
        assert_eq!(world.store().get_run_trace("r").unwrap().len(), 4);
    });
}

#[test]
fn runs_whose_ids_are_no_names_are_exported_under_names_of_their_own() {
    in_lives(|world| {
        for run in ["a/b", "a_b", "a:b", "a_b~1", "..", "_"] {
            world.store().write_started(&started("x/y", run, NOW)).unwrap();
        }
        let out = exported(&world.store());
        let names: Vec<_> = out.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "x_y/_.jsonl",
                "x_y/_~1.jsonl",
                "x_y/a_b.jsonl",
                "x_y/a_b~1.jsonl",
                "x_y/a_b~2.jsonl",
                "x_y/a_b~3.jsonl"
            ]
        );
        // And come back under their ids.
        let other = World::new(super::run_store_world::Life::Long, Default::default());
        assert_eq!(import(&other, &out).new, 6);
        assert_eq!(ids(&other.store(), "x/y"), ids(&world.store(), "x/y"));
        assert_eq!(exported(&other.store()), out);
    });
}

#[test]
fn links_hidden_folders_and_strangers_are_named_and_not_followed() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("runs");
    write(&root, &Tree::from([("a/r.jsonl".to_owned(), run("a", "r", NOW))]));
    fs::write(folder.path().join("secret.jsonl"), "secret\n").unwrap();
    symlink(folder.path().join("secret.jsonl"), root.join("a/link.jsonl")).unwrap();
    symlink(root.join("a"), root.join("b")).unwrap();
    fs::create_dir_all(root.join("a/deep")).unwrap();
    fs::create_dir_all(root.join(".run-summaries-v2")).unwrap();
    for name in ["stray.jsonl", ".nobackup", "a/notes.txt"] {
        fs::write(root.join(name), "x\n").unwrap();
    }
    let world = World::new(super::run_store_world::Life::Long, Default::default());
    let imported = world.store().import_tree(&root).unwrap();
    assert_eq!((imported.new, imported.lines), (1, 3));
    let passed: Vec<_> = imported
        .problems
        .iter()
        .map(|problem| {
            assert!(matches!(problem.why, Refusal::NotARun), "{problem}");
            problem.path.strip_prefix(&root).unwrap().to_str().unwrap()
        })
        .collect();
    assert_eq!(passed, [".run-summaries-v2", "a/deep", "a/link.jsonl", "b", "stray.jsonl"]);
    // What comes out is for the owner alone, and nothing is overwritten.
    let out = folder.path().join("out");
    world.store().export_tree(&out).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&out), mode(&out.join("a/r.jsonl"))), (0o700, 0o600));
    // Nor is anything written behind a link.
    fs::rename(out.join("a"), folder.path().join("elsewhere")).unwrap();
    symlink(folder.path().join("elsewhere"), out.join("a")).unwrap();
    fs::remove_file(out.join("a/r.jsonl")).unwrap();
    let through = world.store().export_tree(&out).unwrap();
    assert!(matches!(through.problems[0].why, Refusal::Io(_)), "{through:?}");
    assert!(!out.join("a/r.jsonl").exists());
    fs::remove_file(out.join("a")).unwrap();
    world.store().export_tree(&out).unwrap();
    let again = world.store().export_tree(&out).unwrap();
    assert!(matches!(again.problems[0].why, Refusal::AlreadyThere));
    assert!(world.store().import_tree(&root.join("none")).is_err());
}

#[test]
fn trees_of_any_bytes_come_out_as_they_went_in() {
    let seed = 0x7ee5;
    println!("seed {seed:#x}");
    let mut random = SplitMix64::new(seed);
    let pieces: [&[u8]; 9] = [
        b"\n",
        b"\r\n",
        b"{\"record\":\"turn\",\"index\":1,\"verifier_verdict\":\"pass\"}",
        b"\0",
        b"\xff",
        b"{",
        b" ",
        b"{\"record\":\"x\"}",
        b"\n\n",
    ];
    for _ in 0..20 {
        let mut tree = Tree::new();
        for file in 0..10 {
            let mut bytes = Vec::new();
            for _ in 0..random.index(40) {
                bytes.extend(pieces[random.index(pieces.len())]);
            }
            tree.insert(format!("a/{file}.jsonl"), bytes);
        }
        let world = World::new(super::run_store_world::Life::Killed, Default::default());
        import(&world, &tree);
        assert_eq!(exported(&world.store()), tree);
        assert_eq!(import(&world, &tree).unchanged, 10);
    }
}

/// The original ends a torn line by a newline before it goes on, in one write that may be torn too.
#[test]
fn files_that_went_on_behind_a_torn_line_are_gone_on_with() {
    in_lives(|world| {
        let mut file = line(&RunRecord::Started(started("a", "r", NOW)));
        file.extend(b"{\"record\":\"turn\",\"ind");
        let tree = |file: &[u8]| Tree::from([("a/r.jsonl".to_owned(), file.to_vec())]);
        assert_eq!(import(world, &tree(&file)).new, 1);
        let next = |index| [b"\n", &line(&turn(index, "p"))[..]].concat();
        let whole_but_its_newline = line(&turn(3, "p")).trim_ascii_end().to_vec();
        let pieces = [
            next(0),
            b"{\"rec".to_vec(),
            next(1),
            b"x".to_vec(),
            b"\n".to_vec(),
            line(&turn(2, "p")),
            whole_but_its_newline,
            next(4),
            b"y".to_vec(),
            b"\n".to_vec(),
            b"z".to_vec(),
            b"\n\n".to_vec(),
        ];
        for (number, piece) in pieces.iter().enumerate() {
            file.extend(piece);
            let imported = import(world, &tree(&file));
            assert!(imported.problems.is_empty(), "piece {number}: {imported:?}");
            assert_eq!(imported.continued, 1, "piece {number}: {imported:?}");
            assert_eq!(exported(&world.store()), tree(&file), "piece {number}");
            assert_eq!(import(world, &tree(&file)).unchanged, 1, "piece {number}");
        }
        let trace = world.store().try_get_run_trace("r").unwrap().unwrap();
        assert_eq!(trace.records[1..], [0, 1, 2, 3, 4].map(|index| turn(index, "p")));
        assert_eq!(trace.damage.len(), 5);
    });
}

#[test]
fn files_that_have_grown_come_out_whole_or_are_named_and_left() {
    let seed = 0x6709;
    println!("seed {seed:#x}");
    let mut random = SplitMix64::new(seed);
    let pieces: [&[u8]; 6] = [b"\n", b"\n", b"\r\n", b"{\"record\":\"x\"}", b"{", b" "];
    let (mut grown, mut named) = (0, 0);
    for _ in 0..80 {
        let mut file = Vec::new();
        for _ in 0..random.index(12) {
            file.extend(pieces[random.index(pieces.len())]);
        }
        let mut cuts = [random.index(file.len() + 1), random.index(file.len() + 1), file.len()];
        cuts.sort_unstable();
        let world = World::new(super::run_store_world::Life::Killed, Default::default());
        let mut there: Option<usize> = None;
        for cut in cuts {
            let tree = Tree::from([("a/r.jsonl".to_owned(), file[..cut].to_vec())]);
            let imported = import(&world, &tree);
            // A line that was there in part has grown in place.
            let is_torn = there.is_some_and(|there| {
                there > 0 && cut > there && file[there - 1] != b'\n' && file[there] != b'\n'
            });
            assert_eq!(imported.problems.len(), usize::from(is_torn), "{file:?} {cuts:?}");
            if is_torn {
                assert!(matches!(imported.problems[0].why, Refusal::Differs { .. }));
                named += 1;
            } else {
                grown += usize::from(there.is_some_and(|there| there < cut));
                there = Some(cut);
            }
            // Each export syncs its files.
            if cut == file.len() || random.index(4) == 0 {
                let expected = file[..there.unwrap()].to_vec();
                assert_eq!(exported(&world.store())["a/r.jsonl"], expected, "{file:?} {cuts:?}");
            }
        }
    }
    assert!(grown > 20 && named > 10, "{grown} {named}");
}

#[test]
fn long_files_and_long_lines_go_in_and_out() {
    in_lives(|world| {
        let mut file = line(&RunRecord::Started(started("a", "r", NOW)));
        let long = "x".repeat(150_000);
        for index in 0..1_000 {
            file.extend(line(&turn(index, if index % 200 == 7 { &long } else { "p" })));
        }
        let tree = Tree::from([("a/r.jsonl".to_owned(), file)]);
        assert_eq!(import(world, &tree).lines, 1_001);
        assert_eq!(world.store().list_runs("a")[0].turn_count, 1_000);
        assert_eq!(exported(&world.store()), tree);
    });
}

#[test]
fn of_a_file_with_a_line_that_no_record_can_hold_nothing_is_imported() {
    let folder = tempfile::tempdir().unwrap();
    let first = line(&RunRecord::Started(started("a", "r", NOW)));
    let endless_from = first.len() as u64;
    let mut larger_than_the_store_takes = first.clone();
    larger_than_the_store_takes.extend(vec![b'x'; 3 << 20]);
    let tree = Tree::from([
        ("a/good.jsonl".to_owned(), run("a", "good", NOW)),
        ("a/endless.jsonl".to_owned(), first.clone()),
        ("a/sparse.jsonl".to_owned(), first),
        ("a/long.jsonl".to_owned(), larger_than_the_store_takes),
    ]);
    write(folder.path(), &tree);
    // Zeros, nearly all of them in a hole.
    let extend = |name: &str, len| {
        let file = fs::OpenOptions::new().write(true).open(folder.path().join(name));
        file.unwrap().set_len(len).unwrap();
    };
    extend("a/endless.jsonl", endless_from + (64 << 20) + 1);
    extend("a/sparse.jsonl", 4 << 40);
    let world = World::new(super::run_store_world::Life::Long, Default::default());
    let imported = world.store().import_tree(folder.path()).unwrap();
    assert_eq!((imported.new, imported.problems.len()), (1, 3));
    assert!(matches!(imported.problems[0].why, Refusal::LineTooLong { line: 2 }), "{imported:?}");
    assert!(matches!(imported.problems[1].why, Refusal::Store(_)), "{imported:?}");
    assert!(matches!(imported.problems[2].why, Refusal::Sparse), "{imported:?}");
    assert!(!format!("{imported:?}").contains("xxxx"), "no payloads");
    assert_eq!(ids(&world.store(), "a"), ["good"]);
    assert!(world.store().get_run_trace("long").is_none());
}

/// A store may come from another program, and claim that a run came from a file outside of the
/// folder.
#[test]
fn nothing_is_written_outside_of_the_folder_of_an_export() {
    let world = World::new(super::run_store_world::Life::Long, Default::default());
    for (number, path) in ["..", "../up", "/absolute", "a/../../up", "."].iter().enumerate() {
        for (run, file) in [("folder", [path, "r"]), ("stem", ["a", path])] {
            let mark = serde_json::json!({ "store": "run_store", "file": file }).to_string();
            let metadata = runlog::Metadata::json(mark.as_bytes());
            let writer = world.log().start_run("a", &format!("{run}{number}"), metadata).unwrap();
            let _ = writer.append(&turn(0, "p").to_line()).unwrap();
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let exported = world.store().export_tree(&out).unwrap();
    assert!(exported.problems.is_empty(), "{:?}", exported.problems);
    let names: Vec<_> = read(&out).into_keys().collect();
    let expected = |run| (0..5).map(move |number| format!("a/{run}{number}.jsonl"));
    assert_eq!(names, expected("folder").chain(expected("stem")).collect::<Vec<_>>());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}
