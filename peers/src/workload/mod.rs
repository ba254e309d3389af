//! The data of the engines: the same runs with the same bytes in the same order, from a seed.
//!
//! - [`sizes`]: how long records are, and how many a run has.
//! - [`text`]: their contents, as compressible as what agents write.
//! - [`shapes`]: runs that repeat themselves.
//! - [`runs`]: runs, one after the other or many at a time.

pub(crate) mod runs;
pub(crate) mod shapes;
pub(crate) mod sizes;
pub(crate) mod text;
