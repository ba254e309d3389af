//! Watching activities: however one ends, the observer, `tracing` and [`Monitor`] are told.

use core::panic::AssertUnwindSafe;
use core::time::Duration;
use std::panic::catch_unwind;

use crate::engine::setup::health::Monitor;
use crate::engine::setup::observer::{Activity, Finished, Phase};
use crate::error::{Error, Result};

/// What is reported of an activity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    /// Its begin and its end.
    All,
    /// Both, if it fails.
    Failure,
    /// Both, if it panics.
    Panic,
}

/// An activity under way.
struct Open<'m> {
    monitor: &'m Monitor,
    activity: Activity,
    told: Told,
    begun: Duration,
    is_over: bool,
}

impl Monitor {
    /// Does an activity, and reports that it begins and how it ends.
    pub(crate) fn watch<T>(
        &self,
        activity: Activity,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        #[cfg(feature = "tracing")]
        let _entered = super::traced::span(activity).entered();
        self.tell(activity, Phase::Begin);
        self.work_on(activity, Told::All, work)
    }

    /// Does small work that belongs to an activity, and reports it only if it fails.
    pub(crate) fn watch_failure<T>(
        &self,
        activity: Activity,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.work_on(activity, Told::Failure, work)
    }

    /// Does work whose parts are watched, and reports it only if it panics.
    pub(crate) fn watch_panic<T>(
        &self,
        activity: Activity,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.work_on(activity, Told::Panic, work)
    }

    fn work_on<T>(
        &self,
        activity: Activity,
        told: Told,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let begun = self.monotonic();
        let mut open = Open { monitor: self, activity, told, begun, is_over: false };
        let done = work();
        open.is_over = true;
        open.end(done.as_ref().map(|_| ()));
        done
    }

    fn tell(&self, activity: Activity, phase: Phase<'_>) {
        if let Some(observer) = &self.observer {
            // An observer that panics must neither stop the engine half-way nor, while a panic is
            // reported, end the process.
            let tell = AssertUnwindSafe(|| observer.observe(activity, phase));
            let _ = catch_unwind(tell);
        }
    }
}

impl Open<'_> {
    fn end(&self, result: Result<(), &Error>) {
        let Self { monitor, activity, told, begun, is_over } = *self;
        let is_told = match told {
            Told::All => true,
            Told::Failure => result.is_err(),
            Told::Panic => !is_over,
        };
        if !is_told {
            return;
        }
        let now = monitor.monotonic();
        let finished = Finished { took: now.saturating_sub(begun), result };
        monitor.note(activity, now, &finished);
        #[cfg(feature = "tracing")]
        super::traced::ended(activity, &finished);
        if told != Told::All {
            monitor.tell(activity, Phase::Begin);
        }
        monitor.tell(activity, Phase::End(&finished));
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.end(Err(&Error::Panicked));
        }
    }
}
