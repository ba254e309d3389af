//! The options of `search`.

use crate::filters::Filters;

/// The options of `search`.
#[derive(Debug, clap::Args)]
pub(crate) struct SearchArgs {
    /// What to find in the payloads: text as it reads, or with -e a regular expression.
    pub(super) pattern: String,

    /// PATTERN is a regular expression, in the syntax of the crate `regex`.
    #[arg(short = 'e', long)]
    pub(super) regex: bool,

    /// Do not distinguish upper and lower case.
    #[arg(short, long)]
    pub(super) ignore_case: bool,

    #[command(flatten)]
    pub(super) filters: Filters,

    /// Only this run: its id or AGENT/RUN, or a beginning of these.
    #[arg(long)]
    pub(super) run: Option<String>,

    /// Only records of this kind; may be repeated.
    #[arg(long)]
    pub(super) kind: Vec<String>,

    /// Print only the runs that have a match.
    #[arg(short = 'l', long)]
    pub(super) runs: bool,

    /// Print only how many records match, for each run that has one.
    #[arg(short, long, conflicts_with = "runs")]
    pub(super) count: bool,

    /// Show N records of the run after each match too.
    #[arg(short = 'A', long, value_name = "N", default_value_t = 0)]
    pub(super) after: u64,

    /// Show N records of the run before each match too.
    #[arg(short = 'B', long, value_name = "N", default_value_t = 0)]
    pub(super) before: u64,

    /// Show N records of the run on both sides of each match too.
    #[arg(short = 'C', long, value_name = "N", conflicts_with_all = ["after", "before"])]
    pub(super) context: Option<u64>,

    /// The most matches to list [default: all].
    #[arg(short = 'n', long, value_name = "N")]
    pub(super) limit: Option<usize>,

    /// Do not cut long payloads.
    #[arg(long)]
    pub(super) full: bool,
}

impl SearchArgs {
    /// The number of records shown before a match, and after it.
    pub(super) fn context(&self) -> (u64, u64) {
        self.context.map_or((self.before, self.after), |both| (both, both))
    }
}
