//! The real recorder and the real loop of clark-agent, with a model that follows a script, writing
//! into `TrajectoryLog`: once with each of two versions.

#![cfg(feature = "clark")]

mod v0_2;
mod v0_4;
