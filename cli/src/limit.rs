//! How many rows a command lists at most.

/// The options for it: `-n` means the same in every command.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Limit {
    /// The most rows to list.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20, conflicts_with = "all")]
    limit: usize,

    /// List all.
    #[arg(long)]
    all: bool,
}

impl Limit {
    /// The most rows.
    pub(crate) fn wanted(self) -> usize {
        if self.all { usize::MAX } else { self.limit }
    }
}
