//! What the pure layers may know, where files, time and threads are touched, how long a file and a
//! function may be, and how the text looks.

use std::path::{Path, PathBuf};

/// The most lines of a file that are not tests.
const FILE_LINES: usize = 500;
/// The most lines of a function that is not a test, from its first to its closing brace.
const FUNCTION_LINES: usize = 70;
const COLUMNS: usize = 100;

/// What the pure layers must not know: bytes and values only. The index may know its library.
const WORLD: [&str; 4] = ["fs", "io", "time", "thread"];

/// What only these files may touch.
const TOUCHES: [(&str, &[&str]); 3] = [
    (
        "fs",
        &[
            "src/engine/storage/",
            "src/engine/setup/host.rs",
            "stores/src/json_lines.rs",
            "stores/src/run_store/below.rs",
            "stores/src/run_store/folder.rs",
            "stores/src/run_store/tree.rs",
            "stores/src/safe_open.rs",
        ],
    ),
    // The types convert times, and do not look at the clock.
    ("time", &["src/engine/setup/", "src/types/timestamp.rs", "stores/src/worker.rs"]),
    (
        "thread",
        &[
            "src/engine/background.rs",
            "src/engine/open/mod.rs",
            "src/engine/setup/locks.rs",
            "stores/src/worker.rs",
        ],
    ),
];

struct File {
    path: String,
    text: String,
}

impl File {
    /// The lines in front of the unit tests; of a file of tests none.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let tests = self.path.contains("/tests") || self.path.starts_with("tests");
        let whole = if tests { 0 } else { usize::MAX };
        let lines = self.text.lines().take(whole);
        (1..).zip(lines).take_while(|(_, line)| *line != "#[cfg(test)]")
    }

    /// The code without comments.
    fn statements(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code().map(|(number, line)| (number, line.split("//").next().unwrap_or(line)))
    }
}

fn files(folders: &[&str]) -> Vec<File> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut waiting: Vec<PathBuf> = folders.iter().map(|folder| root.join(folder)).collect();
    let mut files = Vec::new();
    while let Some(path) = waiting.pop() {
        if path.is_dir() {
            waiting.extend(path.read_dir().unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let path = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            files.push(File { path, text });
        }
    }
    files.sort_by(|left, right| left.path.cmp(&right.path));
    assert!(!files.is_empty(), "there is code in {folders:?}");
    files
}

/// All code of the repository.
fn all() -> Vec<File> {
    files(&[
        "src",
        "cli",
        "formats",
        "parquet",
        "conformance/src",
        "conformance/tests",
        "conformance/a3s/src",
        "conformance/a3s/tests",
        "peers",
        "sim",
        "stores",
        "tests",
        "benches",
        "fuzz/src",
        "fuzz/fuzz_targets",
    ])
}

fn must_be_empty(problems: &[String]) {
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

#[test]
fn pure_layers_do_not_know_the_world() {
    let mut problems = Vec::new();
    for file in files(&["src/format", "src/index", "src/gc"]) {
        for (number, line) in file.statements() {
            if WORLD.iter().any(|name| names_of_std(line).any(|used| used == *name)) {
                problems.push(format!("{}:{number}: {line}", file.path));
            }
        }
    }
    must_be_empty(&problems);
}

#[test]
fn files_time_and_threads_are_touched_in_few_places() {
    let mut problems = Vec::new();
    for file in files(&["src", "stores/src"]) {
        for (number, line) in file.statements() {
            for (name, allowed) in TOUCHES {
                let here = allowed.iter().any(|place| file.path.starts_with(place));
                if !here && names_of_std(line).any(|used| used == name) {
                    problems.push(format!("{}:{number}: {line}", file.path));
                }
            }
        }
    }
    must_be_empty(&problems);
}

/// The modules of the standard library that a line names, also in braces.
fn names_of_std(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("std::").flat_map(|(at, _)| {
        let rest = &line[at + "std::".len()..];
        let names = rest.strip_prefix('{').unwrap_or(rest);
        let count = if rest.starts_with('{') { usize::MAX } else { 1 };
        names.split(|letter: char| !(letter.is_alphanumeric() || letter == '_')).take(count)
    })
}

#[test]
fn files_are_short_and_say_what_they_are_for() {
    let mut problems = Vec::new();
    for file in all() {
        let lines = file.code().count();
        if lines > FILE_LINES {
            problems.push(format!("{}: {lines} lines without tests", file.path));
        }
        let first = file.text.lines().next().unwrap_or_default();
        if !first.starts_with("//! ") {
            problems.push(format!("{}: does not begin with its purpose", file.path));
        }
    }
    must_be_empty(&problems);
}

#[test]
fn functions_are_short() {
    let mut problems = Vec::new();
    for file in all() {
        let mut begun: Option<(usize, String)> = None;
        for (number, line) in file.code() {
            let indent = &line[..line.len() - line.trim_start().len()];
            if let Some((begin, closing)) = &begun {
                if line == closing {
                    let lines = number - begin + 1;
                    if lines > FUNCTION_LINES {
                        problems.push(format!("{}:{begin}: {lines} lines", file.path));
                    }
                    begun = None;
                }
            } else if is_function(line) && !line.ends_with([';', '}']) {
                begun = Some((number, format!("{indent}}}")));
            }
        }
    }
    must_be_empty(&problems);
}

fn is_function(line: &str) -> bool {
    let mut words = line.split_whitespace();
    words.by_ref().take_while(|word| !word.starts_with("//")).any(|word| word == "fn")
}

#[test]
fn text_is_plain_and_finished() {
    // In two parts, so that this file does not find itself.
    let unfinished = ["TO", "FIX", "XX"].iter().zip(["DO", "ME", "X"]);
    let unfinished: Vec<String> =
        unfinished.map(|(left, right)| format!("{left}{right}")).collect();
    let mut problems = Vec::new();
    for file in all() {
        for (number, line) in (1..).zip(file.text.lines()) {
            let mut complain = |what: &str| {
                problems.push(format!("{}:{number}: {what}", file.path));
            };
            if line.chars().count() > COLUMNS {
                complain("too wide");
            }
            if !line.is_ascii() {
                complain("not ASCII");
            }
            if line.ends_with(char::is_whitespace) {
                complain("white space at the end");
            }
            if unfinished.iter().any(|word| line.contains(word.as_str())) {
                complain("unfinished");
            }
        }
    }
    must_be_empty(&problems);
}
