//! What is searched for.

use memchr::memmem;
use regex::bytes::{Regex, RegexBuilder};

use crate::failure::Failure;

/// Text, or a regular expression, over bytes.
#[derive(Debug, Clone)]
pub(crate) enum Pattern {
    Text(Box<memmem::Finder<'static>>),
    Regex(Regex),
}

impl Pattern {
    pub(crate) fn new(text: &str, is_regex: bool, ignores_case: bool) -> Result<Self, Failure> {
        if !is_regex && !ignores_case {
            return Ok(Self::Text(Box::new(memmem::Finder::new(text).into_owned())));
        }
        let escaped = if is_regex { text.to_owned() } else { regex::escape(text) };
        let built = RegexBuilder::new(&escaped).case_insensitive(ignores_case).build();
        built.map(Self::Regex).map_err(|error| {
            let error = error.to_string();
            // The lines above show the place.
            let why = error.lines().last().unwrap_or_default().trim_start_matches("error: ");
            Failure::said(format!("{text} is not a regular expression that can be used: {why}"))
        })
    }

    /// Where it is first found.
    pub(crate) fn find(&self, bytes: &[u8]) -> Option<usize> {
        match self {
            Self::Text(finder) => finder.find(bytes),
            Self::Regex(regex) => regex.find(bytes).map(|found| found.start()),
        }
    }
}
