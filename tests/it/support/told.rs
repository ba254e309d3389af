//! An observer that keeps its calls.

use std::sync::Mutex;
use std::sync::mpsc::Sender;
use std::time::Duration;

use runlog::{Activity, Error, Observer, Phase};

/// How an activity ended.
#[derive(Debug, Clone)]
pub(crate) struct End {
    pub(crate) activity: Activity,
    pub(crate) took: Duration,
    pub(crate) result: Result<(), Error>,
}

/// The calls of an observer.
#[derive(Debug, Default)]
pub(crate) struct Told {
    ends: Mutex<Vec<End>>,
    /// Activities that have begun and not ended.
    open: Mutex<Vec<Activity>>,
    /// Receives each failure.
    failures: Mutex<Option<Sender<End>>>,
}

impl Observer for Told {
    fn observe(&self, activity: Activity, phase: Phase<'_>) {
        let mut open = self.open.lock().unwrap();
        let Phase::End(finished) = phase else {
            open.push(activity);
            return;
        };
        let begun = open.iter().rposition(|begun| *begun == activity);
        open.remove(begun.expect("what ends has begun"));
        let (took, result) = (finished.took, finished.result.map_err(Error::clone));
        let end = End { activity, took, result };
        if end.result.is_err()
            && let Some(failures) = &*self.failures.lock().unwrap()
        {
            let _ = failures.send(end.clone());
        }
        self.ends.lock().unwrap().push(end);
    }
}

impl Told {
    /// Sends each failure from now on.
    pub(crate) fn send_failures(&self, to: Sender<End>) {
        *self.failures.lock().unwrap() = Some(to);
    }

    /// The calls since the last `take`; each activity that began must have ended.
    pub(crate) fn take(&self) -> Vec<End> {
        assert_eq!(*self.open.lock().unwrap(), [], "what begins ends");
        std::mem::take(&mut self.ends.lock().unwrap())
    }

    /// The failures among the calls since the last `take`.
    pub(crate) fn take_failures(&self) -> Vec<(Activity, Error)> {
        let ends = self.take().into_iter();
        ends.filter_map(|end| Some((end.activity, end.result.err()?))).collect()
    }
}

/// Sends each activity that ends.
#[derive(Debug)]
pub(crate) struct Ends(pub(crate) Sender<Activity>);

impl Observer for Ends {
    fn observe(&self, activity: Activity, phase: Phase<'_>) {
        if let Phase::End(_) = phase {
            let _ = self.0.send(activity);
        }
    }
}
