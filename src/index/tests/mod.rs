//! Tests of the index as a whole. A generated log is given to the index and to the directory scan,
//! which must give the same answers. The tests of the engine damage an index, and move runs.

mod lifecycle;
mod listing;
mod locator;
mod log;
mod model;
