//! clark-agent 0.4.

use clark_agent_0_4 as clark;

#[path = "cases.rs"]
#[allow(clippy::duplicate_mod, reason = "the cases are the same for each version")]
mod cases;
#[path = "scripted.rs"]
#[allow(clippy::duplicate_mod, reason = "as above")]
mod scripted;
