//! The tests that the pages for those who migrate name are there.

/// A page, and the least number of rules that it shows.
const PAGES: [(&str, usize); 5] = [
    (include_str!("../../../docs/migrate/checkpoints.md"), 15),
    (include_str!("../../../docs/migrate/consume-once.md"), 8),
    (include_str!("../../../docs/migrate/run-store.md"), 20),
    (include_str!("../../../docs/migrate/sessions.md"), 18),
    (include_str!("../../../docs/migrate/trajectory.md"), 10),
];

/// Whether a source file of the tests has a test with this path, or a package beside the workspace
/// one with this name: `` `test` in `package` ``.
fn is_there(path: &str) -> bool {
    if let Some((test, package)) = path.split_once("` in `") {
        let tests = format!("{}/../{package}/tests", env!("CARGO_MANIFEST_DIR"));
        let mut files = std::fs::read_dir(tests).unwrap().map(|file| file.unwrap().path());
        let has_test =
            |file| std::fs::read_to_string(file).unwrap().contains(&format!("fn {test}("));
        return files.any(has_test);
    }
    let (modules, test) = path.rsplit_once("::").unwrap();
    let file =
        format!("{}/tests/stores/{}.rs", env!("CARGO_MANIFEST_DIR"), modules.replace("::", "/"));
    let source = std::fs::read_to_string(file).unwrap_or_default();
    source.contains(&format!("#[test]\nfn {test}() {{"))
}

#[test]
fn each_rule_of_the_originals_names_a_test_that_there_is() {
    for (page, least) in PAGES {
        let (_, table) = page.split_once("\n## Rule by rule\n").unwrap();
        let (table, _) = table.split_once("\n## ").unwrap();
        let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
        assert!(rows.len() >= least, "{} rules", rows.len());
        for row in rows {
            let shown_by = row.trim_end_matches(" |").rsplit_once(" | ").unwrap().1;
            for test in shown_by.split(", ") {
                assert!(is_there(test.trim_matches('`')), "{test}: {row}");
            }
            let here = row.split(" | ").nth(1).unwrap();
            let kinds = ["same", "better", "different"];
            assert!(kinds.iter().any(|kind| here.starts_with(kind)), "{row}");
        }
    }
}
