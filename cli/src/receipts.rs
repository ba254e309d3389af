//! `runlog receipts`: lists what was deleted, when and why, as far as receipts are kept.

use std::path::Path;

use crate::failure::{Exit, Failure};
use crate::limit::Limit;
use crate::message::{more, note};
use crate::output::Output;
use crate::store;
use crate::table::{self, Column};

#[derive(Debug, clap::Args)]
pub(crate) struct ReceiptsArgs {
    #[command(flatten)]
    pub(crate) limit: Limit,
}

pub(crate) fn run(args: &ReceiptsArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let log = store::open_to_read(path)?;
    let wanted = args.limit.wanted();
    // One more than requested shows whether there are more.
    let mut receipts = log.receipts(wanted.saturating_add(1))?;
    let has_more = receipts.len() > wanted;
    receipts.truncate(wanted);
    let columns = [
        Column::id("run"),
        Column::id("agent"),
        Column::left("deleted_at"),
        Column::left("rule"),
        Column::right("bytes"),
    ];
    table::list(out, &columns, &receipts)?;
    out.flush()?;
    if has_more {
        more("receipts", None, "-n N, or --all");
    } else if receipts.is_empty() && !out.is_json() {
        note("no receipts");
    }
    Ok(Exit::Fine)
}
