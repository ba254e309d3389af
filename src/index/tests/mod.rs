//! Tests of the index as a whole. A generated log is told to the index, to the directory scan and
//! to a plain model; all must give the same answers, also when runs are moved by a compaction. Then
//! the index's bytes are damaged.

mod compaction;
mod hostile;
mod lifecycle;
mod log;
mod model;
mod places;
