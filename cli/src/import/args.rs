//! The arguments of `import`.

use std::path::PathBuf;

use runlog::RunStatus;

use crate::formats::Format;
use crate::status;

/// The arguments of `import`.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct ImportArgs {
    /// Files, or folders of them; - is standard input, whose run --run names.
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,

    /// Create the store if there is none.
    #[arg(long)]
    pub(crate) create: bool,

    /// The agent of files that are not in the folder of an agent [default: imported].
    #[arg(long)]
    pub(crate) agent: Option<String>,

    /// The run of - or of the only file.
    #[arg(long, value_name = "ID")]
    pub(crate) run: Option<String>,

    /// Show what would become a run, and write nothing. No store is made.
    #[arg(long, conflicts_with = "follow")]
    pub(crate) dry_run: bool,

    /// Import only files of this format, such as claude-code; may be given several times.
    #[arg(long, value_name = "FORMAT", value_parser = parse_format)]
    pub(crate) only: Vec<Format>,

    /// Leave out files and folders whose name matches, or whose path below PATH does if GLOB has a
    /// slash; may be given several times.
    #[arg(long, value_name = "GLOB")]
    pub(crate) exclude: Vec<String>,

    /// Import sidecars and hidden files as well: all but credentials.
    #[arg(long)]
    pub(crate) all_files: bool,

    /// How runs ended whose files do not say so. Without it they stay in progress, and the next
    /// import of a file that grew appends to its run.
    #[arg(long, value_name = "STATUS", conflicts_with = "follow", value_parser = status::ended())]
    pub(crate) end: Option<RunStatus>,

    /// Go on importing as the files grow and new ones come, until the command is interrupted.
    #[arg(long)]
    pub(crate) follow: bool,

    /// Import files that changed in the place of their runs. Without it they are refused.
    #[arg(long)]
    pub(crate) replace: bool,

    /// Pass over files that are not recognised. They are named in any case; without it the exit
    /// code is 1.
    #[arg(long)]
    pub(crate) skip_unknown: bool,
}

/// Reads the name of a format.
fn parse_format(text: &str) -> Result<Format, String> {
    let named = serde_json::from_value(serde_json::Value::from(text));
    named.map_err(|error| error.to_string())
}
