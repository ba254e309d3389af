//! `runlog receipts`: what was deleted, when and why, as far as receipts are kept.

use std::path::Path;

use runlog::Receipt;
use serde::Serialize;

use crate::args::ReceiptsArgs;
use crate::failure::{Exit, Failure};
use crate::output::{self, Align, Output, note, size};
use crate::{store, time};

#[derive(Serialize)]
struct Row<'a> {
    run: &'a str,
    agent: &'a str,
    deleted_at: String,
    rule: &'static str,
    bytes: u64,
}

pub(crate) fn run(args: &ReceiptsArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let log = store::open_existing(path)?;
    // One more than wanted tells whether there are more.
    let mut receipts = log.receipts(args.limit.saturating_add(1))?;
    let more = receipts.len() > args.limit;
    receipts.truncate(args.limit);
    print(&receipts, out)?;
    out.flush()?;
    if more {
        note("more receipts: --limit N");
    } else if receipts.is_empty() && !out.is_json() {
        note("no receipts");
    }
    log.close()?;
    Ok(Exit::Fine)
}

fn print(receipts: &[Receipt], out: &mut Output) -> Result<(), Failure> {
    if out.is_json() {
        for receipt in receipts {
            out.object(&row(receipt))?;
        }
        return Ok(());
    }
    if receipts.is_empty() {
        return Ok(());
    }
    let heading = [
        ("RUN", Align::Left),
        ("AGENT", Align::Left),
        ("DELETED", Align::Left),
        ("RULE", Align::Left),
        ("SIZE", Align::Right),
    ];
    let rows: Vec<[String; 5]> = receipts.iter().map(cells).collect();
    output::table(out, heading, &rows)?;
    Ok(())
}

fn row(receipt: &Receipt) -> Row<'_> {
    Row {
        run: receipt.run.as_str(),
        agent: receipt.agent.as_str(),
        deleted_at: time::precise(receipt.at),
        rule: receipt.rule.as_str(),
        bytes: receipt.bytes,
    }
}

fn cells(receipt: &Receipt) -> [String; 5] {
    [
        receipt.run.to_string(),
        receipt.agent.to_string(),
        time::seconds(receipt.at),
        receipt.rule.as_str().to_owned(),
        size(receipt.bytes),
    ]
}
