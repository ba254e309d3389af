//! What the README shows is what works: its example is `examples/embed.rs`, and that runs.

use runlog::{Options, RunStatus};

#[path = "../../examples/embed.rs"]
#[expect(
    dead_code,
    unreachable_pub,
    reason = "`tea` and `main` are for `cargo run --example embed`"
)]
mod embed;

const README: &str = include_str!("../../README.md");
const EXAMPLE: &str = include_str!("../../examples/embed.rs");

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
    embed::tea(&path).unwrap();
    let log = Options::new().open_existing(&path).unwrap();
    let run = log.run("run-1").unwrap();
    assert_eq!((run.records, run.status), (2, RunStatus::Completed));
    assert!(log.recovery_report().clean);
}
