//! The documents are true: the README shows `examples/embed.rs`, which runs, and the code map of
//! ARCHITECTURE.md is complete.

use std::path::{Path, PathBuf};

use runlog::{Options, RunStatus};

#[path = "../../../examples/embed.rs"]
#[expect(
    dead_code,
    unreachable_pub,
    reason = "`tea` and `main` are for `cargo run --example embed`"
)]
mod embed;

const README: &str = include_str!("../../../README.md");
const EXAMPLE: &str = include_str!("../../../examples/embed.rs");

/// The part of the example that the README shows: everything but its own module doc and `main`.
fn shown() -> &'static str {
    let (_, rest) = EXAMPLE.split_once("\n\n").unwrap();
    let (part, _) = rest.split_once("\nfn main()").unwrap();
    part
}

#[test]
fn the_example_of_the_readme_is_the_one_that_is_tested() {
    let block = format!("```rust\n{}```\n", shown());
    assert!(README.contains(&block), "README.md does not show examples/embed.rs as it is");
}

#[test]
fn the_example_of_the_readme_works() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agents.runlog");
    let id = embed::tea(&path).unwrap();
    let log = Options::new().open_existing(&path).unwrap();
    let run = log.run(&id).unwrap();
    assert_eq!((run.records, run.status), (2, RunStatus::Completed));
    assert!(log.recovery_report().clean);
    log.close().unwrap();
    let again = embed::tea(&path).unwrap();
    assert_ne!(id, again, "the program can run again on the same file");
}

/// The Rust files below a folder of the repository.
fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn the_code_map_names_every_source_file() {
    let map = include_str!("../../../ARCHITECTURE.md");
    let mut files = Vec::new();
    for folder in ["src", "stores/src"] {
        rust_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut files);
    }
    assert!(files.len() > 50, "{} files", files.len());
    for file in files.iter().filter(|file| !file.to_string_lossy().contains("tests")) {
        let name = file.file_name().unwrap().to_str().unwrap();
        assert!(map.contains(name), "ARCHITECTURE.md does not name {}", file.display());
    }
}

#[test]
fn each_module_that_the_page_of_promises_names_is_there() {
    let page = include_str!("../../../docs/RELIABILITY.md");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let named = page.split('`').filter(|text| {
        text.contains("::")
            && !text.contains(|letter: char| !letter.is_ascii_lowercase() && !"_:".contains(letter))
    });
    let mut count = 0;
    for name in named {
        let path = folder.join(name.replace("::", "/")).with_extension("rs");
        assert!(path.exists(), "docs/RELIABILITY.md names {name}");
        count += 1;
    }
    assert!(count > 20, "{count} modules");
}
