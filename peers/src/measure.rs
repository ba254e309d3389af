//! Time, processor time, quantiles, and appends by threads.

use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use crate::engine::{Engine, New, Run};

/// The processor time of this process so far, of all threads.
pub(crate) fn processor() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap()
}

/// A temporary folder.
pub(crate) fn folder(within: &Path) -> tempfile::TempDir {
    tempfile::tempdir_in(within).unwrap()
}

/// Microseconds.
pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// When to stop: at the first of these.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    pub(crate) count: usize,
    pub(crate) time: Duration,
}

impl Limit {
    /// A part of it.
    pub(crate) fn part(self, parts: u32) -> Self {
        Self { count: self.count.div_ceil(parts as usize), time: self.time / parts }
    }
}

/// The average time of reading the clock.
pub(crate) fn clock() -> Duration {
    const READS: u32 = 100_000;
    let began = Instant::now();
    for _ in 0..READS {
        std::hint::black_box(Instant::now());
    }
    began.elapsed() / READS
}

/// The durations of many operations, in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Latencies {
    nanos: Vec<u32>,
    len: usize,
}

impl Latencies {
    /// Allocates the memory for this many, so that measuring allocates nothing.
    fn with_room(count: usize) -> Self {
        Self { nanos: vec![1; count], len: 0 }
    }

    fn push(&mut self, time: Duration) {
        self.nanos[self.len] = u32::try_from(time.as_nanos()).unwrap_or(u32::MAX);
        self.len += 1;
    }

    /// All of them, sorted.
    fn sorted(all: Vec<Self>) -> Vec<u32> {
        let taken = all.into_iter().flat_map(|one| one.nanos.into_iter().take(one.len));
        let mut nanos: Vec<u32> = taken.collect();
        nanos.sort_unstable();
        nanos
    }
}

/// The quantile in ten-thousandths, in microseconds. `None` if there are so few calls that not even
/// one is expected to be longer.
pub(crate) fn quantile(sorted: &[u32], of_ten_thousand: usize) -> Option<f64> {
    if sorted.len() * (10_000 - of_ten_thousand) < 10_000 {
        return None;
    }
    let nanos = sorted.get(sorted.len() * of_ten_thousand / 10_000)?;
    Some(f64::from(*nanos) / 1e3)
}

pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// What was done, and how long it took.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) count: usize,
    /// Of the payloads of what was appended.
    pub(crate) bytes: u64,
    pub(crate) elapsed: Duration,
    pub(crate) processor: Duration,
    /// Of each call, sorted, if they were asked for.
    pub(crate) latencies: Vec<u32>,
}

impl Done {
    /// Microseconds for each.
    pub(crate) fn mean(&self) -> f64 {
        micros(self.elapsed) / f64::from(u32::try_from(self.count).unwrap())
    }

    /// Microseconds of the processor for each.
    pub(crate) fn processor(&self) -> f64 {
        micros(self.processor) / f64::from(u32::try_from(self.count).unwrap())
    }
}

/// Does something repeatedly. With `each` it measures each call, from the end of the one before, so
/// that the clock is read once per call; otherwise it reads the clock from time to time.
pub(crate) fn repeat(limit: Limit, each: bool, act: impl FnMut()) -> Done {
    let worked = processor();
    let (began, ended, count, latencies) = work(limit, each, 1, act);
    let processor = processor().saturating_sub(worked);
    let latencies = Latencies::sorted(vec![latencies]);
    Done { count, bytes: 0, elapsed: ended - began, processor, latencies }
}

fn work(
    limit: Limit,
    each: bool,
    between: usize,
    mut act: impl FnMut(),
) -> (Instant, Instant, usize, Latencies) {
    let mut latencies = Latencies::with_room(if each { limit.count } else { 0 });
    let began = Instant::now();
    let (mut last, mut count) = (began, 0);
    while count < limit.count && last - began < limit.time {
        if each {
            act();
            let now = Instant::now();
            latencies.push(now - last);
            last = now;
            count += 1;
        } else {
            let calls = between.min(limit.count - count);
            for _ in 0..calls {
                act();
            }
            last = Instant::now();
            count += calls;
        }
    }
    (began, last, count, latencies)
}

/// Appends: how and by whom.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Appends<'a> {
    pub(crate) threads: usize,
    /// Records of one call.
    pub(crate) batch: usize,
    pub(crate) payloads: &'a [Vec<u8>],
    /// Calls of all threads.
    pub(crate) limit: Limit,
    /// Calls between two looks at the clock.
    pub(crate) between: usize,
}

impl Appends<'_> {
    /// Each thread appends to its own run; the first has this number. Counts records.
    pub(crate) fn by_threads(self, engine: &dyn Engine, first: u64, each: bool) -> Done {
        let barrier = Barrier::new(self.threads + 1);
        let count = self.limit.count.div_ceil(self.threads);
        let limit = Limit { count, time: self.limit.time };
        let (all, processor) = std::thread::scope(|scope| {
            let thread = |thread: usize| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let run = run(first + thread as u64);
                    let mut writer = engine.start(&run);
                    let mut next = self.calls(thread);
                    let mut records = Vec::with_capacity(self.batch);
                    barrier.wait();
                    work(limit, each, self.between, || {
                        records.clear();
                        records.extend(next.by_ref().take(self.batch));
                        writer.append(&records);
                    })
                })
            };
            let threads: Vec<_> = (0..self.threads).map(thread).collect();
            let worked = processor();
            barrier.wait();
            let all: Vec<_> = threads.into_iter().map(|one| one.join().unwrap()).collect();
            (all, processor().saturating_sub(worked))
        });
        let began = all.iter().map(|(began, ..)| *began).min().unwrap();
        let ended = all.iter().map(|(_, ended, ..)| *ended).max().unwrap();
        let counts = all.iter().map(|(_, _, count, _)| self.batch * count);
        let bytes = (0..).zip(counts.clone()).map(|(thread, count)| {
            self.calls(thread).take(count).map(|new| new.payload.len() as u64).sum::<u64>()
        });
        let (count, bytes) = (counts.clone().sum(), bytes.sum());
        let latencies = Latencies::sorted(all.into_iter().map(|(.., all)| all).collect());
        Done { count, bytes, elapsed: ended - began, processor, latencies }
    }

    /// The records of a thread, for ever.
    fn calls(&self, thread: usize) -> impl Iterator<Item = New<'_>> {
        let skipped = thread * 7_919 % self.payloads.len();
        let payloads = self.payloads.iter().cycle().skip(skipped);
        payloads.map(|payload| New { kind: "tool_result", payload })
    }
}

/// The runs of threads.
pub(crate) fn run(number: u64) -> Run {
    Run { number, agent: format!("agent-{:03}", number % 50), id: format!("run-{number:08}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_told_only_of_enough_calls() {
        let nanos: Vec<u32> = (0..1_000).map(|number| number * 1_000).collect();
        assert_eq!(quantile(&nanos, 5_000), Some(500.0));
        assert_eq!(quantile(&nanos, 9_990), Some(999.0));
        assert_eq!(quantile(&nanos[..999], 9_990), None);
        assert_eq!(quantile(&nanos[..1], 5_000), None);
        assert_eq!(quantile(&[], 5_000), None);
    }

    #[test]
    fn a_median_is_one_of_the_values() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(Vec::new()), None);
    }
}
