//! Tests of the index as a whole. A generated log is told to the index, to the directory scan and
//! to a plain model; all must give the same answers. Then the index's bytes are damaged.

mod hostile;
mod lifecycle;
mod log;
mod model;
