//! `runlog compact`: moves the records of each run together, compresses them if requested, and
//! frees dead space.

use std::path::Path;

use runlog::{Compression, Options};
use serde_json::json;

use crate::failure::{Exit, Failure};
use crate::output::{Output, count, size};

/// The options of `compact`.
#[derive(Debug, clap::Args)]
pub(crate) struct CompactArgs {
    /// Compress ended runs with zstd, from 1 (fast) to 19 (small); 3 if no level is given.
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, default_missing_value = "3")]
    #[arg(value_parser = clap::value_parser!(i32).range(1..=19))]
    pub(crate) zstd: Option<i32>,
}

pub(crate) fn run(path: &Path, args: &CompactArgs, out: &mut Output) -> Result<Exit, Failure> {
    let compression = args.zstd.map_or(Compression::None, |level| Compression::Zstd { level });
    let log = Options::new().compression(compression).open_existing(path)?;
    let before = log.stats()?.file_len;
    let done = log.compact()?;
    let after = log.stats()?.file_len;
    log.close()?;
    let object = json!({
        "segments": done.segments,
        "outputs": done.outputs,
        "written_bytes": done.bytes,
        "file_bytes_before": before,
        "file_bytes": after,
    });
    let (victims, outputs) = (count(done.segments, "segment"), count(done.outputs, "segment"));
    let text = format!(
        "compacted {victims} into {outputs}, {} written; the file had {}, and has {} now",
        size(done.bytes),
        size(before),
        size(after),
    );
    out.tell(&object, text)?;
    Ok(Exit::Fine)
}
