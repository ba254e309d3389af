//! How runs stand, as words of the command line.

use clap::ValueEnum;
use clap::builder::PossibleValue;
use runlog::RunStatus;

/// Any status of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Status(pub(crate) RunStatus);

/// A status that a run ends with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EndStatus(RunStatus);

impl ValueEnum for Status {
    fn value_variants<'a>() -> &'a [Self] {
        use RunStatus::{Cancelled, Completed, Failed, InProgress, Interrupted};
        &[Self(InProgress), Self(Completed), Self(Failed), Self(Cancelled), Self(Interrupted)]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.as_str()))
    }
}

impl ValueEnum for EndStatus {
    fn value_variants<'a>() -> &'a [Self] {
        use RunStatus::{Cancelled, Completed, Failed, Interrupted};
        &[Self(Completed), Self(Failed), Self(Cancelled), Self(Interrupted)]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Status(self.0).to_possible_value()
    }
}

impl EndStatus {
    /// The status in the library.
    pub(crate) fn status(self) -> RunStatus {
        self.0
    }
}
