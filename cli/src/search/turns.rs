//! What several threads find, printed in the order of the runs.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::failure::{Exit, Failure};
use crate::message::damaged;
use crate::output::Output;

/// The most bytes of finished runs that wait for runs in front of them.
const MAX_WAITING: usize = 64 << 20;

/// How often progress is shown, and when for the first time.
const PROGRESS: Duration = Duration::from_millis(500);

/// What was found in a run, as it is printed.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) bytes: Vec<u8>,
    /// Where each match begins.
    pub(crate) starts: Vec<usize>,
}

/// Takes what was found in each run, and prints it in their order.
pub(crate) struct Turns<'o> {
    state: Mutex<State<'o>>,
    /// The turn went on. Threads wait for it.
    moved: Condvar,
    /// All is printed, or something failed. The thread that began the search waits for it: it
    /// takes no processor time from those that search.
    over: Condvar,
    runs: usize,
    shows_progress: bool,
}

struct State<'o> {
    out: &'o mut Output,
    /// The run whose turn it is.
    next: usize,
    /// Finished runs behind it.
    waiting: BTreeMap<usize, Found>,
    waiting_bytes: usize,
    /// How many more matches are wanted.
    left: usize,
    /// Whether something is printed already, and whether runs stand apart from one another.
    has_found: bool,
    has_groups: bool,
    /// Whether a part of the run is printed.
    is_within: bool,
    is_damaged: bool,
    failure: Option<Failure>,
    /// Whether a line of progress is on the terminal.
    is_on_screen: bool,
}

impl<'o> Turns<'o> {
    pub(crate) fn new(out: &'o mut Output, runs: usize, most: usize, has_groups: bool) -> Self {
        let state = State {
            out,
            next: 0,
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
            left: most,
            has_found: false,
            has_groups,
            is_within: false,
            is_damaged: false,
            failure: None,
            is_on_screen: false,
        };
        let shows_progress = io::stderr().is_terminal();
        let (moved, over) = (Condvar::new(), Condvar::new());
        Self { state: Mutex::new(state), moved, over, runs, shows_progress }
    }

    fn lock(&self) -> MutexGuard<'_, State<'o>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a part of what was found in the run at this place, the last one or not. It waits for
    /// the runs in front if there is much. Answers whether to go on.
    pub(crate) fn give(&self, place: usize, found: Found, is_last: bool) -> bool {
        let mut state = self.lock();
        loop {
            if state.is_over() {
                return false;
            }
            if state.next == place {
                break;
            }
            if is_last && state.waiting_bytes + found.bytes.len() <= MAX_WAITING {
                state.waiting_bytes += found.bytes.len();
                state.waiting.insert(place, found);
                return true;
            }
            state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let printed = state.print(&found, is_last);
        if let Err(error) = printed {
            state.failure = Some(error.into());
        }
        self.moved.notify_all();
        if state.next >= self.runs || state.is_over() {
            self.over.notify_all();
        }
        !state.is_over()
    }

    /// Reports damage of a record. The search goes on.
    pub(crate) fn complain(&self, message: &str) {
        let mut state = self.lock();
        state.clear();
        state.is_damaged = true;
        damaged(message);
    }

    /// Ends the search. Answers that it does not go on.
    pub(crate) fn fail(&self, failure: Failure) -> bool {
        self.lock().failure.get_or_insert(failure);
        self.moved.notify_all();
        self.over.notify_all();
        false
    }

    /// Waits for all runs, for a failure, or for the end of all threads, and shows progress
    /// meanwhile: `text` is given the number of runs that are done.
    pub(crate) fn wait(&self, are_over: impl Fn() -> bool, text: impl Fn(usize) -> String) {
        let mut state = self.lock();
        while state.next < self.runs && !state.is_over() && !are_over() {
            let (now, waited) = self
                .over
                .wait_timeout_while(state, PROGRESS, |state| {
                    state.next < self.runs && !state.is_over()
                })
                .unwrap_or_else(PoisonError::into_inner);
            state = now;
            if waited.timed_out() && self.shows_progress {
                let text = text(state.next + state.waiting.len());
                state.is_on_screen = true;
                // It is only a service.
                let _ = io::stderr().lock().write_all(format!("\r\x1b[K{text}").as_bytes());
            }
        }
        state.clear();
    }

    /// The exit code: those of grep.
    pub(crate) fn end(self) -> Result<Exit, Failure> {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        match state.failure {
            Some(failure) => Err(failure),
            None if state.is_damaged => Ok(Exit::Trouble),
            None if state.has_found => Ok(Exit::Fine),
            None => Ok(Exit::Error),
        }
    }
}

impl State<'_> {
    /// Whether nothing more is printed.
    fn is_over(&self) -> bool {
        self.failure.is_some() || self.left == 0
    }

    fn print(&mut self, found: &Found, is_last: bool) -> io::Result<()> {
        self.write(found)?;
        if is_last {
            self.is_within = false;
            self.next += 1;
            while let Some(found) = self.waiting.remove(&self.next) {
                self.waiting_bytes -= found.bytes.len();
                self.write(&found)?;
                self.is_within = false;
                self.next += 1;
            }
        }
        Ok(())
    }

    fn write(&mut self, found: &Found) -> io::Result<()> {
        let most = found.starts.get(self.left).copied().unwrap_or(found.bytes.len());
        let bytes = found.bytes.get(..most).unwrap_or_default();
        if bytes.is_empty() || self.left == 0 {
            return Ok(());
        }
        self.left -= found.starts.len().min(self.left);
        self.clear();
        if self.has_groups && self.has_found && !self.is_within {
            self.out.raw(b"\n")?;
        }
        (self.has_found, self.is_within) = (true, true);
        self.out.raw(bytes)?;
        // At once, as it is found.
        self.out.flush()
    }

    /// Takes the line of progress away.
    fn clear(&mut self) {
        if self.is_on_screen {
            self.is_on_screen = false;
            let _ = io::stderr().lock().write_all(b"\r\x1b[K");
        }
    }
}
