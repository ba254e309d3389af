//! Appends at the pace of a daemon: a few threads append now and then, and no append waits for the
//! one before. An engine that can append a million records a second shows here what its slowest
//! calls wait for.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use super::{Context, Row};
use crate::engine::{Engine, Kind, New};
use crate::measure::{folder, quantile, run};
use crate::workload::runs::payloads;
use crate::workload::sizes::Sizes;

const THREADS: u32 = 4;
const A_SECOND: u32 = 10_000;
const LEN: usize = 1_200;

#[derive(Debug, Default)]
struct Paced {
    payloads: Vec<Vec<u8>>,
}

pub(super) fn rows() -> Vec<Box<dyn Row>> {
    vec![Box::new(Paced::default())]
}

impl Paced {
    /// Appends records of one run at its share of the pace. Returns the time of each call.
    fn appends(
        &self,
        engine: &dyn Engine,
        thread: u32,
        time: Duration,
        gate: &Barrier,
    ) -> Vec<u32> {
        let pause = Duration::from_secs(1) * THREADS / A_SECOND;
        let mut writer = engine.start(&run(thread.into()));
        let calls = time.as_nanos() / pause.as_nanos();
        let mut times = Vec::with_capacity(usize::try_from(calls).unwrap());
        gate.wait();
        // The threads take turns.
        let mut next = Instant::now() + pause / THREADS * thread;
        for payload in self.payloads.iter().cycle().take(times.capacity()) {
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            let began = Instant::now();
            writer.append(&[New { kind: "tool_result", payload }]);
            times.push(u32::try_from(began.elapsed().as_nanos()).unwrap_or(u32::MAX));
            next += pause;
        }
        times
    }
}

impl Row for Paced {
    fn name(&self) -> String {
        format!("paced append, {LEN} B, {THREADS} threads, {A_SECOND} a second")
    }

    fn what(&self) -> String {
        "Each thread appends to a run of its own, and sleeps between two calls. Times are \
         microseconds of a call."
            .to_owned()
    }

    fn columns(&self) -> Vec<&'static str> {
        vec!["p99 us", "p50 us", "p99.5 us", "p99.9 us", "p99.99 us"]
    }

    fn lines(&self) -> Vec<(usize, String)> {
        let name = self.name();
        vec![(0, format!("{name}, 99 %: us")), (3, "the same, 99.9 %: us".to_owned())]
    }

    fn takes(&self, kind: Kind) -> bool {
        matches!(kind, Kind::Ours | Kind::Lmdb | Kind::Fjall | Kind::Sqlite)
    }

    fn prepare(&mut self, context: &Context, _kinds: &[Kind]) {
        self.payloads = payloads(Sizes::Fixed(LEN), context.scale.payloads);
    }

    fn round(&mut self, context: &Context, kind: Kind) -> Vec<Option<f64>> {
        let folder = folder(&context.dir);
        let engine = kind.open(folder.path(), self.level());
        context.calm();
        let (gate, time) = (Barrier::new(THREADS as usize), context.scale.paced);
        let mut times: Vec<u32> = std::thread::scope(|scope| {
            let (this, engine, gate) = (&*self, &*engine, &gate);
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| scope.spawn(move || this.appends(engine, thread, time, gate)))
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        times.sort_unstable();
        engine.close();
        [9_900, 5_000, 9_950, 9_990, 9_999].map(|part| quantile(&times, part)).to_vec()
    }

    fn finish(&mut self, _context: &Context) {
        self.payloads = Vec::new();
    }
}
