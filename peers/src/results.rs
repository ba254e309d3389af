//! The measurements as data: printed at once, or written to a file row by row, so that they can be
//! printed again, and an interrupted run keeps its rows. The file has one JSON object per line:
//! first the setting of the measurement, then one per row.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::engine::{Kind, Level};
use crate::measure::median;

/// A line of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Entry {
    Setting(Setting),
    Row(Measured),
}

/// The setting of the measurement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Setting {
    /// Names and values, such as the processor and the commit.
    pub(crate) about: Vec<(String, String)>,
    pub(crate) engines: Vec<Kind>,
    /// What was compared before the measurements.
    pub(crate) checked: String,
}

/// A row that was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) name: String,
    pub(crate) what: String,
    pub(crate) level: Level,
    pub(crate) columns: Vec<String>,
    /// The lines of the short table: column and name.
    pub(crate) lines: Vec<(usize, String)>,
    /// Digits of a figure.
    pub(crate) digits: usize,
    /// The columns of each round of each engine.
    pub(crate) values: Vec<(Kind, Vec<Vec<Option<f64>>>)>,
    /// Remarks.
    pub(crate) notes: Vec<String>,
    /// How long all of it took.
    pub(crate) seconds: f64,
    /// The load of the machine at the end.
    pub(crate) load: String,
}

impl Measured {
    /// The median over the rounds of a column of an engine, if it has one.
    pub(crate) fn median(&self, kind: Kind, column: usize) -> Option<f64> {
        let (_, rounds) = self.values.iter().find(|(of, _)| *of == kind)?;
        median(rounds.iter().filter_map(|round| *round.get(column)?).collect())
    }

    /// The peer with the least value, and that value.
    pub(crate) fn best_peer(&self, column: usize) -> Option<(Kind, f64)> {
        let peers = self.values.iter().map(|(kind, _)| *kind);
        let peers = peers.filter(|kind| kind.answers() && *kind != Kind::Ours);
        let figures = peers.filter_map(|kind| Some((kind, self.median(kind, column)?)));
        figures.min_by(|left, right| left.1.total_cmp(&right.1))
    }

    /// The best peer's value divided by ours.
    pub(crate) fn times(&self, column: usize) -> Option<f64> {
        Some(self.best_peer(column)?.1 / self.median(Kind::Ours, column)?)
    }

    /// A median as text.
    pub(crate) fn told(&self, kind: Kind, column: usize) -> String {
        self.median(kind, column).map_or(String::new(), |value| figure(value, self.digits))
    }
}

/// This many significant digits, but all those before the decimal point.
pub(crate) fn figure(value: f64, digits: usize) -> String {
    let (mut before, mut power) = (0, 1.0);
    while value >= power && before < digits {
        (before, power) = (before + 1, power * 10.0);
    }
    format!("{value:.*}", digits - before)
}

/// All measurements.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Results {
    pub(crate) setting: Setting,
    pub(crate) rows: Vec<Measured>,
}

impl Results {
    /// # Errors
    /// If the file cannot be read, or has a line in another form.
    pub(crate) fn load(path: &Path) -> Result<Self, String> {
        let file = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| format!("{file}: {error}"))?;
        let (mut setting, mut rows) = (None, Vec::new());
        for (number, line) in (1..).zip(text.lines()) {
            match serde_json::from_str(line) {
                Ok(Entry::Setting(found)) => setting = Some(found),
                Ok(Entry::Row(row)) => rows.push(row),
                Err(error) => return Err(format!("{file}, line {number}: {error}")),
            }
        }
        let setting = setting.ok_or(format!("{file} does not say where it was measured"))?;
        Ok(Self { setting, rows })
    }
}

/// The file that receives rows as they come.
#[derive(Debug)]
pub(crate) struct Out(File);

impl Out {
    /// # Errors
    /// If the file cannot be created, or exists: half an hour of results must not be overwritten.
    pub(crate) fn create(path: &Path) -> Result<Self, String> {
        let file = File::create_new(path);
        file.map(Self).map_err(|error| format!("{}: {error}", path.display()))
    }

    pub(crate) fn write(&mut self, entry: &Entry) {
        let mut line = serde_json::to_vec(entry).unwrap();
        line.push(b'\n');
        self.0.write_all(&line).unwrap();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Two rounds of a row with four engines, and one that ours loses.
    pub(crate) fn results() -> Results {
        let row = |name: &str, values: &[(Kind, [f64; 2])]| Measured {
            name: name.to_owned(),
            what: "Something is done.".to_owned(),
            level: Level::Process,
            columns: vec!["mean us".to_owned(), "p99 us".to_owned()],
            lines: vec![(0, format!("{name}: us")), (1, "the same, 99 %: us".to_owned())],
            digits: 3,
            values: values
                .iter()
                .map(|(kind, means)| (*kind, means.map(|mean| vec![Some(mean), None]).to_vec()))
                .collect(),
            notes: Vec::new(),
            seconds: 1.5,
            load: "0.10".to_owned(),
        };
        let about = vec![("commit".to_owned(), "abc".to_owned())];
        let engines = vec![Kind::Ours, Kind::Sqlite, Kind::Lmdb, Kind::Bare];
        let checked = "All answers are the same".to_owned();
        let rows = vec![
            row(
                "append",
                &[
                    (Kind::Ours, [0.4, 0.5]),
                    (Kind::Sqlite, [10.0, 9.0]),
                    (Kind::Lmdb, [1.5, 1.5]),
                    (Kind::Bare, [0.1, 0.1]),
                ],
            ),
            row("lost", &[(Kind::Ours, [6.0, 6.0]), (Kind::Lmdb, [3.0, 3.0])]),
        ];
        Results { setting: Setting { about, engines, checked }, rows }
    }

    #[test]
    fn what_is_written_row_by_row_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let written = results();
        let mut out = Out::create(&path).unwrap();
        out.write(&Entry::Setting(written.setting.clone()));
        written.rows.iter().for_each(|row| out.write(&Entry::Row(row.clone())));
        assert_eq!(Results::load(&path).unwrap(), written);
        assert!(Out::create(&path).is_err(), "it is not overwritten");
        std::fs::write(&path, "{\"row\":1}\n").unwrap();
        assert!(Results::load(&path).unwrap_err().contains("line 1"));
    }

    #[test]
    fn the_best_peer_is_no_floor_and_not_ours() {
        let rows = results().rows;
        assert_eq!(rows[0].best_peer(0), Some((Kind::Lmdb, 1.5)));
        assert_eq!((rows[0].times(0), rows[1].times(0)), (Some(3.0), Some(0.5)));
        assert_eq!((rows[0].best_peer(1), rows[0].times(1)), (None, None));
    }

    #[test]
    fn figures_have_the_digits_that_count() {
        let told = [0.0432, 0.5, 1.0, 12.345, 123.4, 4_321.9].map(|value| figure(value, 3));
        assert_eq!(told, ["0.043", "0.500", "1.00", "12.3", "123", "4322"]);
        assert_eq!(figure(1.0437, 4), "1.044");
    }
}
