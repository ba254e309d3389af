//! The short table: one line per kind of work, one column per engine.

use crate::engine::{Kind, Level};
use crate::results::{Measured, Results};

/// The table in Markdown: less is better everywhere, and the best value of each line is bold.
pub(crate) fn table(results: &Results) -> String {
    let kinds = &results.setting.engines;
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
    let mut lines = vec![
        format!("| | {} | best peer / runlog |", names.join(" | ")),
        format!("|---|{}--:|", "--:|".repeat(kinds.len())),
    ];
    for row in &results.rows {
        lines.extend(row.lines.iter().map(|(column, name)| line(row, *column, name, kinds)));
    }
    lines.extend([String::new(), about(results), String::new(), NOTE.to_owned(), String::new()]);
    for level in [Level::Process, Level::Disk] {
        if results.rows.iter().any(|row| row.level == level) {
            lines.push(guarantees(level, kinds));
        }
    }
    lines.push(String::new());
    lines.join("\n")
}

const NOTE: &str = "Less is better in each line, and the best engine is in bold; the last column \
                    is how many times as much the best of the others takes, below 1 where runlog \
                    loses. \"bare\" is no engine, but the least work. When an append returns:";

fn line(row: &Measured, column: usize, name: &str, kinds: &[Kind]) -> String {
    let of = |kind: &Kind| row.median(*kind, column);
    let best = kinds.iter().filter(|kind| kind.answers()).filter_map(of).reduce(f64::min);
    let cell = |kind: &Kind| {
        let told = row.told(*kind, column);
        let bold = kind.answers() && best.is_some() && of(kind) == best;
        if bold { format!("**{told}**") } else { told }
    };
    let cells: Vec<String> = kinds.iter().map(cell).collect();
    let times = match (row.best_peer(column), row.times(column)) {
        (Some((peer, _)), Some(times)) => format!("{} {times:.2}", peer.name()),
        _ => String::new(),
    };
    format!("| {name} | {} | {times} |", cells.join(" | "))
}

/// Machine, file system, commit, in a sentence.
fn about(results: &Results) -> String {
    let about = results.setting.about.iter().map(|(name, value)| format!("{name} {value}"));
    format!("Measured with {}.", about.collect::<Vec<_>>().join("; "))
}

/// The guarantee of each engine at this level.
fn guarantees(level: Level, kinds: &[Kind]) -> String {
    let what = match level {
        Level::Process => "append",
        Level::Disk => "durable append",
    };
    let each = kinds.iter().map(|kind| format!("{}: {}", kind.name(), kind.guarantee(level)));
    format!("- **{what}**: {}.", each.collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use crate::results::tests::results;

    #[test]
    fn the_best_engine_is_bold_also_where_ours_loses() {
        let table = super::table(&results());
        for line in [
            "| | runlog | SQLite | LMDB | bare | best peer / runlog |",
            "| append: us | **0.500** | 10.0 | 1.50 | 0.100 | LMDB 3.00 |",
            "| lost: us | 6.00 |  | **3.00** |  | LMDB 0.50 |",
            "| the same, 99 %: us |  |  |  |  |  |",
            "Measured with commit abc.",
        ] {
            assert!(table.lines().any(|found| found == line), "{line}\nin\n{table}");
        }
        assert!(table.contains("**append**: runlog: survives a kill"), "{table}");
        assert!(!table.contains("**durable append**"), "{table}");
    }
}
