//! All runs that match a query, one after the other.

use core::fmt;
use core::iter::FusedIterator;
use std::vec;

use crate::engine::api::read_log::ReadLog;
use crate::engine::values::query::RunQuery;
use crate::engine::values::summary::RunSummary;
use crate::error::Result;

/// How many runs one page has.
const PAGE: usize = 128;

/// The runs that match a query; see [`RunLog::runs`](crate::RunLog::runs).
pub struct Runs<L> {
    log: L,
    /// The rest of the query; `None` after the last page or an error.
    rest: Option<RunQuery>,
    /// How many more runs the limit of the query permits.
    left: usize,
    page: vec::IntoIter<RunSummary>,
}

impl<L: ReadLog> Runs<L> {
    pub(crate) fn new(log: L, query: RunQuery) -> Self {
        let left = query.total_limit();
        Self { log, rest: Some(query), left, page: Vec::new().into_iter() }
    }
}

impl<L: ReadLog> Iterator for Runs<L> {
    type Item = Result<RunSummary>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(run) = self.page.next() {
            return Some(Ok(run));
        }
        let query = self.rest.take()?.limit(self.left.min(PAGE));
        let page = match self.log.list_runs(&query) {
            Ok(page) => page,
            Err(error) => return Some(Err(error)),
        };
        self.left -= page.runs.len();
        self.rest = page.next.filter(|_| self.left > 0).map(|next| query.after(next));
        self.page = page.runs.into_iter();
        self.page.next().map(Ok)
    }
}

impl<L: ReadLog> FusedIterator for Runs<L> {}

impl<L> fmt::Debug for Runs<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runs").field("rest", &self.rest).finish_non_exhaustive()
    }
}
