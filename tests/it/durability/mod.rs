//! What was acknowledged is there afterwards: levels, kills, power cuts, failed syncs.

pub(crate) mod deferred;
pub(crate) mod every_call;
pub(crate) mod handles;
pub(crate) mod io_faults;
pub(crate) mod kill;
#[expect(clippy::disallowed_methods, reason = "it waits or measures")]
pub(crate) mod levels;
pub(crate) mod lives;
pub(crate) mod making;
pub(crate) mod moments;
pub(crate) mod poison;
pub(crate) mod power_cuts;
pub(crate) mod steps;
