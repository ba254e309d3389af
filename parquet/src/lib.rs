//! The runs and the records of a `runlog` store as two Parquet tables, for `DuckDB`, pandas and
//! other programs that read Parquet.
//!
//! [`export()`] writes `runs.parquet` and `records.parquet` as of one moment, also while another
//! process writes the store. The columns are those of [`runs`] and [`records`], compressed with
//! zstd. What a message used is in the row of the record that says it, and counts once:
//! `sum(input_tokens)` over any rows is what `runlog usage` prints for them.
//!
//! ```no_run
//! use std::path::Path;
//!
//! let store = runlog::Reader::open("runs.runlog")?;
//! let exported = runlog_parquet::export(&store, Path::new("tables"), None)?;
//! println!("{} runs, {} records", exported.runs, exported.records);
//! # Ok::<(), runlog_parquet::ExportError>(())
//! ```

mod error;
pub mod records;
pub mod runs;
mod table;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;

use runlog::{Error, Reader, RunQuery, RunRef, RunSummary};
use runlog_formats::Format;
use runlog_formats::count::{Counted, Counting, Words};
use runlog_formats::origin::Origin;

pub use crate::error::ExportError;
use crate::records::Records;
use crate::runs::{Runs, Said};

/// What was exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Exported {
    /// The rows of `runs.parquet`.
    pub runs: u64,
    /// The rows of `records.parquet`.
    pub records: u64,
    /// The bytes of all payloads.
    pub bytes: u64,
    /// How many records could not be read, because their bytes are damaged. They have no row.
    pub damaged: u64,
}

/// Writes all runs, or those of an agent, into `runs.parquet` and `records.parquet` of a folder,
/// which is made if it is not there.
///
/// Both files get their names once they are whole and survive power loss; where one of them exists
/// nothing is written. It takes memory for 64 MiB of payloads, and about 100 bytes for each message
/// that has an id.
///
/// # Errors
/// [`ExportError::Exists`] if one of the two files is there, [`ExportError::Store`] if the store
/// cannot be read, [`ExportError::File`] and [`ExportError::Parquet`] if a table cannot be written.
/// Damaged records are no error: [`Exported::damaged`] counts them.
pub fn export(store: &Reader, folder: &Path, agent: Option<&str>) -> Result<Exported, ExportError> {
    let mut runs = Runs::create(folder)?;
    let mut records = Records::create(folder)?;
    let query = agent.map_or_else(RunQuery::new, |agent| RunQuery::new().agent(agent));
    let (mut counting, mut exported) = (Counting::default(), Exported::default());
    for run in store.runs(&query.oldest_first()) {
        let run = run?;
        match one(store, &run, &mut counting, &mut exported, (&mut runs, &mut records)) {
            // It was deleted since it was listed.
            Err(ExportError::Store(error)) if error.is_not_found() => {}
            done => done?,
        }
    }
    let (runs, records) = (runs.finish()?, records.finish()?);
    runs.publish()?;
    records.publish()?;
    Ok(exported)
}

fn one(
    store: &Reader,
    run: &RunSummary,
    counting: &mut Counting,
    exported: &mut Exported,
    (runs, records): (&mut Runs, &mut Records),
) -> Result<(), ExportError> {
    let said =
        Said { metadata: readable(store.metadata(run))?, outcome: readable(store.outcome(run))? };
    let origin = Origin::of(said.metadata.as_ref());
    let format = origin.as_ref().and_then(|origin| origin.format);
    let is_copy = counting.is_copy(run, origin.as_ref());
    let added = if is_copy { HashMap::new() } else { added(store, run, format, counting)? };
    let mut trace = store.trace(RunRef::from(run))?;
    runs.push(run, &said, origin.as_ref())?;
    exported.runs += 1;
    while let Some(record) = trace.next_view() {
        match record {
            Ok(record) => {
                records.push(run, format, &record, added.get(&record.seq().0))?;
                exported.records += 1;
                exported.bytes += record.payload().len() as u64;
            }
            Err(error) if error.is_corruption() => exported.damaged += 1,
            // It was deleted meanwhile, or overtaken by the writer.
            Err(Error::Evicted { .. }) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// What the records of a run add to what was used, by their numbers.
fn added(
    store: &Reader,
    run: &RunSummary,
    format: Option<Format>,
    counting: &mut Counting,
) -> Result<HashMap<u64, Counted>, ExportError> {
    let (words, mut said) = (Words::default(), Vec::new());
    let mut trace = store.trace(RunRef::from(run))?;
    while let Some(record) = trace.next_view() {
        match record {
            Ok(record) => words.read(format.unwrap_or(Format::JsonLines), &record, &mut said),
            Err(error) if error.is_corruption() => {}
            Err(Error::Evicted { .. }) => break,
            Err(error) => return Err(error.into()),
        }
    }
    let mut added: HashMap<u64, Counted> = HashMap::new();
    counting.run(&said, &mut |counted| match added.entry(counted.seq) {
        // Several models, in one row.
        Entry::Occupied(mut row) => row.get_mut().sum = row.get().sum.plus(counted.sum),
        Entry::Vacant(row) => drop(row.insert(counted)),
    });
    Ok(added)
}

/// Nothing, where it is damaged: the row says what is left.
fn readable<T>(read: runlog::Result<Option<T>>) -> runlog::Result<Option<T>> {
    match read {
        Err(error) if error.is_corruption() => Ok(None),
        read => read,
    }
}
