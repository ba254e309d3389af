//! Behaviour of the store through its public API. The list of modules is the index.

mod basics;
