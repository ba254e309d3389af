//! The table that says where the entries of runs are.

use super::log::{AGENTS, KEY, Log, RUNS};
use crate::format::codec::Decoded;
use crate::index::{Directories, Locator};
use crate::types::RunNo;

/// Far beyond 4 GiB.
const START: u64 = 5 << 40;
const EXTENT: u64 = 4 << 20;

/// A table of all directories of a log, and where each of them starts.
fn located(log: &Log, is_deleted: impl Fn(RunNo) -> bool + Copy) -> (Locator, Vec<u64>) {
    let (locator, mut starts) = (Locator::default(), Vec::new());
    for (index, segment) in log.segments().iter().enumerate() {
        let start = START + index as u64 * EXTENT;
        let add = |directory: crate::format::Directory<'_>| {
            locator.add((*segment, 1), start, &directory, Some(&is_deleted))
        };
        log.with(index, add).unwrap();
        starts.push(start);
    }
    (locator, starts)
}

#[test]
fn each_entry_is_at_one_of_the_places_of_its_ids() {
    for seed in 0..8 {
        let log = Log::generate(seed, 400, 60);
        let (locator, starts) = located(&log, |_| false);
        for (index, start) in starts.iter().enumerate() {
            let check = |directory: crate::format::Directory<'_>| -> Decoded<()> {
                for slot in 0..directory.run_count() {
                    let (run, agent) = directory.ids(slot)?;
                    let hash = if directory.is_document(slot)? {
                        KEY.ids.of_document(agent, run)
                    } else {
                        KEY.ids.of_run(run)
                    };
                    let place = start + u64::from(directory.place(slot)?);
                    for both in [None, Some(KEY.ids.of_both(agent, run))] {
                        let (places, _) = locator.places((hash, both));
                        assert!(places.contains(&place), "seed {seed}: {agent} {run}");
                    }
                }
                Ok(())
            };
            log.with(index, check).unwrap();
        }
    }
}

/// Of each run id 8 entries are in the table itself.
#[test]
fn of_a_run_id_with_many_agents_few_places_are_those_of_other_agents() {
    let (locator, _) = located(&Log::generate(3, 2_000, 60), |_| false);
    for run in RUNS {
        let count = |both| locator.places((KEY.ids.of_run(run), both)).0.len();
        let of_agents = AGENTS.map(|agent| count(Some(KEY.ids.of_both(agent, run))));
        assert!(count(None) > 60, "{run:?}");
        assert!(of_agents.iter().sum::<usize>() <= count(None) + 8 * (AGENTS.len() - 1));
    }
}

#[test]
fn a_segment_at_the_place_of_another_one_adds_no_place_twice() {
    let log = Log::generate(1, 200, 30);
    let (locator, starts) = located(&log, |_| false);
    let all = || RUNS.map(|run| locator.places((KEY.ids.of_run(run), None)));
    let before = all();
    assert!(before.iter().all(|places| !places.0.is_empty()));
    for (index, segment) in log.segments().iter().enumerate() {
        let again = |directory: crate::format::Directory<'_>| {
            locator.add((*segment, 2), starts[index], &directory, Some(&|_| false))
        };
        log.with(index, again).unwrap();
    }
    assert_eq!(before, all());
}

#[test]
fn a_table_with_more_entries_of_segments_that_are_gone_is_stale() {
    let log = Log::generate(2, 1_000, 60);
    let (locator, _) = located(&log, |_| false);
    let stamped: Vec<_> = log.segments().iter().map(|segment| (*segment, 1)).collect();
    assert!(!locator.is_stale(stamped.iter().copied()));
    assert!(locator.is_stale(stamped.iter().copied().take(stamped.len() / 4)));
    assert!(locator.is_stale(log.segments().iter().map(|segment| (*segment, 2))), "other stamps");
}
