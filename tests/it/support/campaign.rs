//! Campaigns: very many cases from one seed, distributed over threads.
//!
//! `RUNLOG_REPLAY` repeats only one case, as the failure names it.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use runlog_sim::settings;

/// How often each event happened.
#[derive(Default)]
pub(crate) struct Counts(BTreeMap<&'static str, u64>);

impl Counts {
    pub(crate) fn add(&mut self, what: &'static str, count: u64) {
        *self.0.entry(what).or_default() += count;
    }

    pub(crate) fn one(&mut self, what: &'static str) {
        self.add(what, 1);
    }

    pub(crate) fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or_default()
    }

    pub(crate) fn merge(&mut self, other: Self) {
        other.0.into_iter().for_each(|(what, count)| self.add(what, count));
    }

    /// Fails unless each of these happened.
    pub(crate) fn expect(&self, all: &[&str]) {
        let missing: Vec<_> = all.iter().filter(|what| self.of(what) == 0).collect();
        assert!(missing.is_empty(), "never met: {missing:?}");
    }
}

impl fmt::Debug for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A campaign of cases with numbers.
pub(crate) struct Campaign {
    /// The tests that repeat it.
    pub(crate) name: &'static str,
    pub(crate) seed: u64,
}

impl Campaign {
    pub(crate) fn new(name: &'static str, seed: u64) -> Self {
        let seed = settings::seed(seed);
        println!("RUNLOG_SEED={seed}");
        Self { name, seed }
    }

    /// Does the cases from 0 on until it is enough, or only the one that is repeated. Panics at the
    /// first that fails. What the cases must have met is only asked of all of them together.
    pub(crate) fn run(
        &self,
        is_enough: impl Fn(u64, &Counts) -> bool + Sync,
        must_meet: &[&str],
        case: impl Fn(u64, &mut Counts) -> Result<(), String> + Sync,
    ) {
        let only = settings::replayed();
        let is_over = |number, counts: &Counts| match only {
            Some(only) => number > only,
            None => is_enough(number, counts),
        };
        let done = in_parallel(only.unwrap_or_default(), is_over, |number, counts| {
            caught(|| case(number, counts)).map_err(|error| self.again(&number.to_string(), &error))
        });
        let counts = done.unwrap_or_else(|error| panic!("{error}"));
        println!("{counts:?}");
        if only.is_none() {
            counts.expect(must_meet);
        }
    }

    /// How to repeat a case that failed.
    pub(crate) fn again(&self, case: &str, error: &str) -> String {
        let Self { name, seed } = self;
        format!(
            "again: RUNLOG_SEED={seed} RUNLOG_REPLAY={case} cargo test -p runlog --test it {name}\n\
             {error}"
        )
    }
}

/// Does the cases from this one on with all processors, until one of them fails or it is over.
pub(crate) fn in_parallel(
    first: u64,
    is_over: impl Fn(u64, &Counts) -> bool + Sync,
    case: impl Fn(u64, &mut Counts) -> Result<(), String> + Sync,
) -> Result<Counts, String> {
    let (next, total) = (AtomicU64::new(first), Mutex::new(Counts::default()));
    let (failure, has_failed) = (Mutex::new(None), AtomicBool::new(false));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::SeqCst);
            if has_failed.load(Ordering::SeqCst) || is_over(number, &total.lock().unwrap()) {
                return;
            }
            let mut counts = Counts::default();
            if let Err(error) = caught(|| case(number, &mut counts)) {
                has_failed.store(true, Ordering::SeqCst);
                failure.lock().unwrap().get_or_insert(error);
            }
            total.lock().unwrap().merge(counts);
        }
    };
    let threads = std::thread::available_parallelism().map_or(2, |count| count.get().min(8));
    std::thread::scope(|scope| {
        (0..threads).for_each(|_| drop(scope.spawn(work)));
    });
    failure.into_inner().unwrap().map_or(Ok(total.into_inner().unwrap()), Err)
}

/// The answer of a check; a panic in it is an error.
pub(crate) fn caught<T>(check: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}
