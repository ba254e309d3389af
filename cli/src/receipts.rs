//! `runlog receipts`: lists what was deleted, when and why, as far as receipts are kept.

use std::path::Path;

use runlog::Receipt;

use crate::failure::{Exit, Failure};
use crate::limit::Limit;
use crate::message::{more, note};
use crate::output::{Output, size};
use crate::store;
use crate::table::{self, Cell, Column};

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
    print(&receipts, out)?;
    out.flush()?;
    if has_more {
        more("receipts", None, "-n N, or --all");
    } else if receipts.is_empty() && !out.is_json() {
        note("no receipts");
    }
    Ok(Exit::Fine)
}

fn print(receipts: &[Receipt], out: &mut Output) -> Result<(), Failure> {
    if out.is_json() {
        for receipt in receipts {
            out.object(receipt)?;
        }
        return Ok(());
    }
    if receipts.is_empty() {
        return Ok(());
    }
    let columns = [
        Column::id("RUN"),
        Column::id("AGENT"),
        Column::left("DELETED"),
        Column::left("RULE"),
        Column::right("SIZE"),
    ];
    let rows: Vec<_> = receipts.iter().map(|receipt| cells(receipt, out)).collect();
    table::write(out, &columns, &rows)?;
    Ok(())
}

fn cells(receipt: &Receipt, out: &Output) -> [Cell; 5] {
    [
        receipt.run.as_str().into(),
        receipt.agent.as_str().into(),
        out.time(receipt.deleted_at).into(),
        receipt.rule.as_str().into(),
        size(receipt.bytes).into(),
    ]
}
