//! The records of a run: all of one that was listed, or the last ones.

use runlog::{Error, Reader, Record, RecordView, RunRef, RunSummary};

/// Calls `take` with each record of a run, and `lost` with each damage. A run that was deleted
/// since it was listed has no more records.
pub(crate) fn each<F: From<Error>>(
    log: &Reader,
    run: &RunSummary,
    mut take: impl FnMut(&RecordView<'_>) -> Result<(), F>,
    mut lost: impl FnMut(Error),
) -> Result<(), F> {
    let mut trace = match log.trace(RunRef::from(run)) {
        Err(error) if error.is_not_found() => return Ok(()),
        trace => trace?,
    };
    while let Some(record) = trace.next_view() {
        match record {
            Ok(record) => take(&record)?,
            Err(Error::Evicted { .. }) => break,
            Err(error) if error.is_corruption() => lost(error),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The last records of a run in their order, also those that are damaged.
pub(crate) fn last(
    log: &Reader,
    run: RunRef<'_>,
    most: usize,
) -> Result<Vec<Result<Record, Error>>, Error> {
    let mut last: Vec<_> = log.trace(run)?.rev().take(most).collect();
    last.reverse();
    Ok(last)
}
