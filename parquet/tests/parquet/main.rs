//! What other programs read out of the tables.

mod readers;
mod refused;
