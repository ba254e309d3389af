//! The rules of the code that no compiler checks. Here: which floor each folder stands on, that a
//! folder uses only what stands below it, and that nothing goes round in circles; in `text`: how
//! long files and functions may be, and how the text looks.

#[path = "tidy/text.rs"]
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// From the lowest floor to the highest. A file uses its own folder and lower floors.
const FLOORS: [(&str, &str); 24] = [
    ("src/types", "ids and numbers"),
    ("src/damage.rs", "damage, and its place"),
    ("src/error.rs", "errors"),
    ("src/error", "what an error is"),
    ("src/format", "what the bytes mean"),
    ("src/index", "where a run lives"),
    ("src/gc", "what may go"),
    ("src/engine/storage", "the file"),
    ("src/engine/values", "what goes in and comes out"),
    ("src/engine/setup", "what a store is opened with"),
    ("src/engine/space", "extents"),
    ("src/engine/state", "segments and runs"),
    ("src/engine/read", "finding and reading"),
    ("src/engine/write", "appending"),
    ("src/engine/checkpoint", "the index"),
    ("src/engine/reclaim", "freeing what is dead"),
    ("src/engine/compact", "moving what lives"),
    ("src/engine/retain", "deleting"),
    ("src/engine/mod.rs", "the sum of these"),
    ("src/engine/open", "recovery"),
    ("src/engine/reader", "reading beside a writer"),
    ("src/engine/verify", "checking everything"),
    ("src/engine", "threads, and the handles of the public API"),
    ("src/engine/salvage", "reading out of damaged stores"),
];

/// The most files of a folder.
const FOLDER_FILES: usize = 12;
/// The most files that may use one another in a circle.
const CIRCLE_FILES: usize = 3;

/// Each file of the engine that is not of tests, and the files that it uses.
fn imports() -> BTreeMap<String, BTreeSet<String>> {
    imports_of("src")
}

/// The same of the crate with its sources in this folder.
fn imports_of(sources: &str) -> BTreeMap<String, BTreeSet<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut texts = BTreeMap::new();
    let mut waiting = vec![root.join(sources)];
    while let Some(folder) = waiting.pop() {
        for entry in folder.read_dir().unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            if path.is_dir() {
                waiting.push(path);
            } else if !name.contains("tests") {
                let text = std::fs::read_to_string(&path).unwrap();
                // A module of tests in its own file stands among the others.
                let text = text.replace("\n#[cfg(test)]\nmod tests;", "");
                let code = text.split("\n#[cfg(test)]\n").next().unwrap();
                let lines = code.lines().map(|line| line.split("//").next().unwrap());
                texts.insert(name, lines.collect::<Vec<_>>().join(" "));
            }
        }
    }
    let names: BTreeSet<&String> = texts.keys().collect();
    let used = |name: &String, text: &str| -> BTreeSet<String> {
        let found = paths(text).into_iter().filter_map(|path| {
            let path = absolute(name.strip_prefix(sources)?.strip_prefix('/')?, &path)?;
            (1..=path.len()).rev().find_map(|len| {
                let module = path[..len].join("/");
                let places = [".rs", "/mod.rs"].map(|end| format!("{sources}/{module}{end}"));
                places.into_iter().find(|place| names.contains(place))
            })
        });
        found.filter(|used| used != name).collect()
    };
    texts.iter().map(|(name, text)| (name.clone(), used(name, text))).collect()
}

/// The paths of a text that begin with `crate`, `super` or `self`, those of braces one by one.
fn paths(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in text.match_indices(start) {
            let before = text[..at].chars().next_back();
            if !before.is_some_and(|letter| letter.is_alphanumeric() || "_:".contains(letter)) {
                expand("", &text[at..], &mut found);
            }
        }
    }
    found
}

/// Adds the path that `text` begins with to `found`; answers the text behind it.
fn expand<'t>(base: &str, text: &'t str, found: &mut Vec<String>) -> &'t str {
    let is_path = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
    let end = text.find(|letter| !is_path(letter)).unwrap_or(text.len());
    let path = format!("{base}{}", &text[..end]);
    let mut rest = &text[end..];
    if !(path.ends_with("::") && rest.starts_with('{')) {
        found.push(path.trim_end_matches(':').to_owned());
        return rest;
    }
    rest = &rest[1..];
    loop {
        rest = rest.trim_start_matches(|letter: char| letter.is_whitespace() || letter == ',');
        if rest.is_empty() || rest.starts_with('}') {
            return rest.get(1..).unwrap_or_default();
        }
        let behind = expand(&path, rest, found);
        // What a name is renamed to, and anything else that is no path.
        let skipped = behind.find([',', '}']).unwrap_or(behind.len());
        rest = if behind.len() == rest.len() { &rest[1..] } else { &behind[skipped..] };
    }
}

/// The modules of a path, from the root of the crate on.
fn absolute(file: &str, path: &str) -> Option<Vec<String>> {
    let module = file.strip_suffix(".rs")?;
    let module = module.strip_suffix("/mod").unwrap_or(module);
    let mut found: Vec<String> = module.split('/').map(str::to_owned).collect();
    for part in path.split("::") {
        match part {
            "crate" => found.clear(),
            "self" => {}
            "super" => drop(found.pop()),
            name => found.push(name.to_owned()),
        }
    }
    Some(found)
}

/// The floor of a file, and where it stands there: its folder, or the file itself.
fn place(file: &str) -> (usize, &str) {
    let stands = |(_, (place, _)): &(usize, &(&'static str, &str))| {
        file == *place || file.strip_prefix(place).is_some_and(|rest| rest.starts_with('/'))
    };
    let floor = FLOORS.iter().enumerate().filter(stands).max_by_key(|(_, floor)| floor.0.len());
    let (number, _) = floor.unwrap_or_else(|| panic!("{file} has no floor"));
    let folder = file.rsplit_once('/').map_or(file, |(folder, _)| folder);
    (number, if FLOORS[number].0 == file { file } else { folder })
}

/// The sets of nodes that lead to one another.
fn circles(edges: &BTreeMap<String, BTreeSet<String>>) -> Vec<BTreeSet<String>> {
    let reach = |from: &String| {
        let (mut seen, mut waiting) = (BTreeSet::new(), vec![from]);
        while let Some(node) = waiting.pop() {
            for next in edges.get(node).into_iter().flatten() {
                if seen.insert(next.clone()) {
                    waiting.push(next);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> =
        edges.keys().map(|node| (node, reach(node))).collect();
    let both =
        |one: &String, two: &String| reached[one].contains(two) && reached[two].contains(one);
    let mut found = BTreeSet::new();
    for node in edges.keys() {
        let circle: BTreeSet<String> =
            edges.keys().filter(|other| both(node, other)).cloned().collect();
        if circle.len() > 1 {
            found.insert(circle);
        }
    }
    found.into_iter().collect()
}

#[test]
fn nothing_uses_what_stands_above_it() {
    let mut problems = Vec::new();
    for (file, used) in imports().iter().filter(|(file, _)| *file != "src/lib.rs") {
        for used in used {
            let (here, there) = (place(file), place(used));
            if there.0 > here.0 {
                problems.push(format!("{file} uses {used}, which stands above it"));
            }
        }
    }
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

#[test]
fn no_folders_use_one_another_and_few_files_do() {
    let files = imports();
    let large: Vec<_> =
        circles(&files).into_iter().filter(|circle| circle.len() > CIRCLE_FILES).collect();
    assert!(large.is_empty(), "files in a circle: {large:#?}");
    let mut folders: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (file, used) in files.iter().filter(|(file, _)| *file != "src/lib.rs") {
        let here = place(file).1;
        let used = used.iter().map(|used| place(used).1).filter(|there| *there != here);
        folders.entry(here.to_owned()).or_default().extend(used.map(str::to_owned));
    }
    let circles = circles(&folders);
    assert!(circles.is_empty(), "folders in a circle: {circles:#?}");
}

#[test]
fn no_files_of_the_command_and_of_the_formats_use_one_another_in_a_circle() {
    for sources in ["cli/src", "formats/src"] {
        let circles = circles(&imports_of(sources));
        assert!(circles.is_empty(), "files in a circle: {circles:#?}");
    }
}

#[test]
fn folders_are_small() {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for file in imports().keys() {
        let folder = file.rsplit_once('/').unwrap().0;
        *counts.entry(folder.to_owned()).or_default() += 1;
    }
    // The index and the format are one file for each structure.
    counts.retain(|_, count| *count > FOLDER_FILES);
    assert!(counts.is_empty(), "folders of more than {FOLDER_FILES} files: {counts:?}");
}

#[test]
fn the_engine_is_only_the_sum_of_its_components() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let methods: usize = imports()
        .keys()
        .map(|file| {
            let text = std::fs::read_to_string(root.join(file)).unwrap();
            let code = text.split("\n#[cfg(test)]\n").next().unwrap().to_owned();
            let blocks = code.split("\nimpl").skip(1).map(|block| {
                let block = block.split("\n}\n").next().unwrap();
                let head = block.lines().next().unwrap();
                let is_engine = head.ends_with(" Engine {");
                let is_method = |line: &&str| {
                    line.starts_with("    ") && !line.starts_with("     ") && line.contains("fn ")
                };
                if is_engine { block.lines().filter(is_method).count() } else { 0 }
            });
            blocks.sum::<usize>()
        })
        .sum();
    assert!((1..30).contains(&methods), "{methods} methods");
}
