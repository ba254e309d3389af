//! The guide, block by block, in a folder of traces; and the variables that CLI.md lists.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use regex::Regex;

use crate::world::World;

/// A file of the project.
fn project(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

/// A block of the guide: its language, and its text.
type Block = (String, String);

fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut parts = text.split("\n```");
    // In front of the first block.
    parts.next();
    while let Some(block) = parts.next() {
        let (language, text) = block.split_once('\n').expect("a block has lines");
        blocks.push((language.to_owned(), text.to_owned()));
        // Behind it.
        parts.next();
    }
    blocks
}

/// Whether lines are as the guide shows them; `...` stands for anything within a line, and alone
/// for any lines.
fn is_shown(shown: &str, printed: &str) -> bool {
    let mut pattern = String::from("(?s)^");
    for line in shown.lines() {
        if line == "..." {
            pattern.push_str("(?:[^\n]*\n)*");
        } else {
            let parts: Vec<String> = line.split("...").map(regex::escape).collect();
            pattern.push_str(&parts.join("[^\n]*"));
            pattern.push('\n');
        }
    }
    pattern.push('$');
    Regex::new(&pattern).expect("a pattern").is_match(printed)
}

/// The files that the guide begins with.
fn world() -> World {
    let world = World::new();
    let user = |text: &str| format!("{{\"role\":\"user\",\"content\":\"{text}\"}}\n");
    let agent = |text: &str| format!("{{\"role\":\"assistant\",\"content\":\"{text}\"}}\n");
    let build = [
        user("Fix the build"),
        agent("I run cargo test first."),
        "{\"role\":\"tool\",\"content\":\"test result: ok\"}\n".to_owned(),
        agent("It is fixed."),
    ];
    world.write("traces/planner/build.jsonl", build.concat());
    world.write("traces/planner/deploy.jsonl", user("Deploy it") + &agent("On my way."));
    world.write("traces/reviewer/pull-17.jsonl", user("Look at it") + &agent("It is good."));
    world
}

#[test]
fn every_block_of_the_guide_does_what_the_guide_says() {
    let world = world();
    let text = fs::read_to_string(project("docs/guide.md")).expect("the guide");
    let program = Path::new(env!("CARGO_BIN_EXE_runlog"));
    let mut path: OsString = program.parent().expect("a folder").into();
    path.push(":");
    path.push(std::env::var_os("PATH").expect("a path"));
    let (mut printed, mut ran, mut compared) = (None, 0, 0);
    for (language, block) in blocks(&text) {
        match language.as_str() {
            "sh" => {
                let mut shell = Command::new("sh");
                shell.args(["-euc", &block]).current_dir(world.path("."));
                shell.env("PATH", &path).env("PAGER", "").env_remove("RUNLOG_STORE");
                let output = shell.output().expect("a shell");
                let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
                let stdout = String::from_utf8(output.stdout).expect("UTF-8");
                assert!(output.status.success(), "{block}\n{stdout}\n{stderr}");
                printed = Some(stdout);
                ran += 1;
            }
            "text" => {
                // The first one shows the files.
                let Some(printed) = printed.take() else { continue };
                assert!(is_shown(&block, &printed), "shown:\n{block}\nprinted:\n{printed}");
                compared += 1;
            }
            "rust" => {}
            other => panic!("a block of {other}"),
        }
    }
    assert!(ran >= 11 && compared >= 5, "{ran} and {compared}");
}

#[test]
fn what_the_guide_leaves_out_is_any_text() {
    assert!(is_shown("a\n", "a\n") && is_shown("...\n", "a\nb\n") && is_shown("...\n", ""));
    assert!(is_shown("a...c\n...\n", "abc\n") && is_shown("...\nb\n", "a\nb\n"));
    assert!(!is_shown("a\n", "ab\n") && !is_shown("a...\n", "a\nb\n"));
}

/// All files of Rust below a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                sources(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The variables of the environment that a text names.
fn variables(text: &str) -> BTreeSet<String> {
    let pattern = Regex::new("RUNLOG_[A-Z][A-Z_]*[A-Z]").expect("a pattern");
    pattern.find_iter(text).map(|found| found.as_str().to_owned()).collect()
}

/// The variables of the whole project: the command has the first one, the tests those up to
/// `RUNLOG_TEST_TRACES`, and the benchmarks the others.
const VARIABLES: [&str; 10] = [
    "RUNLOG_STORE",
    "RUNLOG_SCALE",
    "RUNLOG_SEED",
    "RUNLOG_REPLAY",
    "RUNLOG_CHILD",
    "RUNLOG_BLESS",
    "RUNLOG_PYTHON",
    "RUNLOG_TEST_TRACES",
    "RUNLOG_BENCH_DIR",
    "RUNLOG_BENCH_RUNS",
];

#[test]
fn the_project_has_no_other_variables_than_these_ten() {
    let (mut files, mut found) = (Vec::new(), BTreeSet::new());
    sources(&project("."), &mut files);
    for folder in [".ci", "docs"] {
        let entries = fs::read_dir(project(folder)).expect("a folder");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        files.extend(paths.filter(|path| path.is_file()));
    }
    for file in &files {
        found.extend(variables(&fs::read_to_string(file).expect("a file")));
    }
    let expected: BTreeSet<String> = VARIABLES.map(str::to_owned).into();
    assert_eq!(found, expected);
}

#[test]
fn every_variable_of_the_command_is_listed_and_every_listed_one_is_read() {
    let page = fs::read_to_string(project("docs/CLI.md")).expect("the page");
    let section = page.split("\n## Variables\n").nth(1).expect("a section");
    let listed = variables(section.split("\n## ").next().unwrap_or_default());
    let (mut files, mut read) = (Vec::new(), BTreeSet::new());
    sources(&project("cli/src"), &mut files);
    for file in &files {
        read.extend(variables(&fs::read_to_string(file).expect("a file")));
    }
    let unlisted: Vec<_> = read.difference(&listed).collect();
    let unread: Vec<_> = listed.difference(&read).collect();
    assert!(unlisted.is_empty() && unread.is_empty(), "{unlisted:?} and {unread:?}");
}
