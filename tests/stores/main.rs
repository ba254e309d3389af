//! Behaviour of the typed stores through their public API. The list of modules is the index.

#![allow(clippy::pedantic, reason = "tests count and compare; the strict lints are for what ships")]

mod trajectory;
