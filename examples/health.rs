//! What an operator sees of a store while a disk fills up and gets space again: metrics from an
//! observer, events through `tracing`, and `RunLog::health`.
//!
//! `cargo run --example health`

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use runlog::storage::MemoryStorage;
use runlog::{Activity, NewRecord, Observer, Options, Outcome, Phase, RunLog};

/// How often each activity ended, how often it failed, and how long it took in total.
#[derive(Debug, Default)]
struct Metrics(Mutex<BTreeMap<Activity, (u64, u64, Duration)>>);

impl Observer for Metrics {
    fn observe(&self, activity: Activity, phase: Phase<'_>) {
        if let Phase::End(finished) = phase
            && let Ok(mut metrics) = self.0.lock()
        {
            let (count, failed, took) = metrics.entry(activity).or_default();
            *count += 1;
            *failed += u64::from(finished.result.is_err());
            *took += finished.took;
        }
    }
}

fn print_health(log: &RunLog, when: &str) {
    let health = log.health();
    println!("{when}: well: {}", health.is_well());
    if let Some(since) = health.disk_full_since {
        println!("  the disk is full since {since:.0}");
    }
    for failing in &health.failures {
        println!("  {}: {} ({} times)", failing.activity, failing.why, failing.count);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_ansi(false).with_max_level(tracing::Level::WARN).init();
    let metrics = Arc::new(Metrics::default());
    let options = Options::new()
        .extent_size(64 << 10)
        .background(false)
        .observer(Arc::<Metrics>::clone(&metrics));
    // A disk of 8 MiB.
    let log = options.create_storage(Arc::new(MemoryStorage::with_limit(8 << 20)))?;
    print_health(&log, "at first");

    let mut runs = 0;
    let full = loop {
        let run = match log.start_run("planner", &format!("run-{runs}"), ()) {
            Ok(run) => run,
            Err(error) => break error,
        };
        runs += 1;
        let filled =
            (0..8).try_for_each(|_| run.append_record(&NewRecord::new(&[0; 4096])).map(drop));
        run.end(&Outcome::completed())?;
        if let Err(error) = filled {
            break error;
        }
    };
    assert!(full.is_disk_full(), "{full}");
    print_health(&log, "after many runs");
    assert!(log.health().disk_full_since.is_some());

    for number in 0..runs {
        log.delete_run(("planner", format!("run-{number}").as_str()))?;
    }
    log.reclaim()?;
    let run = log.start_run("planner", "another", ())?;
    for _ in 0..32 {
        let _ = run.append_record(&NewRecord::new(&[0; 4096]))?;
    }
    print_health(&log, "after their deletion");
    assert!(log.health().is_well());
    drop(run);
    log.close()?;
    for (activity, (count, failed, took)) in metrics.0.lock().map_err(|_| "a panic")?.iter() {
        println!("{activity}: {count} times, {failed} failed, {took:.1?}");
    }
    Ok(())
}
