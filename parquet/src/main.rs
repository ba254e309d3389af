//! `runlog-parquet`: writes a store as two Parquet tables.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use runlog_parquet::export;

/// Writes the runs and the records of a runlog store as two Parquet tables.
///
/// It only reads the store, also while another process writes it. The tables are runs.parquet and
/// records.parquet in FOLDER; none is replaced. Exit codes: 0 fine, 1 error, 2 usage, 3 damaged
/// records, which have no row.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// The file that holds the store [default: `$RUNLOG_STORE`, else runs.runlog].
    #[arg(long, value_name = "FILE")]
    store: Option<PathBuf>,

    /// Only the runs of this agent.
    #[arg(long)]
    agent: Option<String>,

    /// The folder of the tables, which is made if it is not there.
    folder: PathBuf,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let variable = std::env::var_os("RUNLOG_STORE").filter(|path| !path.is_empty());
    let store = args.store.or_else(|| variable.map(PathBuf::from));
    let store = store.unwrap_or_else(|| PathBuf::from("runs.runlog"));
    let opened = runlog::Reader::open(&store).map_err(Into::into);
    match opened.and_then(|store| export(&store, &args.folder, args.agent.as_deref())) {
        Ok(exported) => {
            println!(
                "{} runs and {} records ({} bytes) in {}",
                exported.runs,
                exported.records,
                exported.bytes,
                args.folder.display()
            );
            if exported.damaged > 0 {
                eprintln!(
                    "runlog-parquet: {} records are damaged and have no row; see runlog verify",
                    exported.damaged
                );
                return ExitCode::from(3);
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("runlog-parquet: {error}");
            ExitCode::FAILURE
        }
    }
}
