//! Disks that fail while an index is written, while a store is created, and when they are full.
//! `every_call` has one failure of each call.

use std::io::ErrorKind;
use std::sync::Arc;

use runlog::{Durability, Error, IndexRecovery, Metadata, RunQuery};
use runlog_sim::{SimDisk, SplitMix64, Survivors};

use crate::support::cuts::{check_whole, open};
use crate::support::manifest::fill_up;
use crate::support::world::{Abandoned, EXTENT, Machine, World};

#[test]
fn an_index_of_which_a_failed_sync_dropped_pages_is_whole_after_a_power_loss() {
    let mut kept = 0;
    for seed in 0..20 {
        let mut world = World::create(seed, Machine::new(seed), true);
        world.padding = 480;
        for round in 0..4 {
            (0..150).for_each(|_| world.start_run());
            if round == 3 {
                world.may_fail = true;
                let number = world.disk.op_count() + 4 + 2 * seed as usize;
                world.disk.fail_op(number, ErrorKind::Other);
            }
            world.checkpoint();
        }
        let Abandoned { disk, machine, .. } = world.abandon();
        disk.clear_faults();
        let (gate, log) = open(&disk, &machine).unwrap();
        for run in 0..300 {
            let unsynced = Metadata::default().durability(Durability::Process);
            log.start_run("agent-0", &format!("{run:0480}"), unsynced).unwrap();
        }
        log.checkpoint().unwrap();
        gate.shut();
        let image = SimDisk::untracked(disk.crash(Survivors::Nothing, seed));
        let (gate, log) = open(&image, &machine).unwrap();
        kept += usize::from(log.recovery_report().index == IndexRecovery::Kept);
        check_whole(&log).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        gate.shut();
    }
    assert!(kept > 10, "{kept}");
}

#[test]
fn a_store_opens_on_a_disk_that_was_full_when_the_power_went_and_runs_can_be_deleted() {
    let (mut deleted, mut torn) = (0, 0);
    for seed in 0..24 {
        let machine = Machine::new(seed);
        let mut random = SplitMix64::new(seed);
        let mut world = World::create(seed, machine.clone(), seed % 4 < 2);
        world.documents = false;
        (0..6).for_each(|_| world.start_run());
        (0..40 + random.index(200)).for_each(|_| world.step());
        world.end_oldest(3);
        world.start_run();
        world.may_fail = true;
        let more = EXTENT * random.below(4) + 4096 * random.below(16);
        world.disk.set_capacity(world.disk.allocated() + more);
        let mut refused = 0;
        while refused < 6 {
            let running = world.running();
            let run = running[random.index(running.len())];
            world.append(run, [300, 3000][random.index(2)], random.below(8) == 0);
            if let Some(error) = world.failure.take() {
                assert!(matches!(error, Error::DiskFull { .. }), "seed {seed}: {error}");
                world.take_back();
                refused += 1;
            }
        }
        let Abandoned { disk, model, machine, .. } = world.abandon();
        let (least, most) = model.after_power_loss(disk.op_count());
        for survivors in Survivors::ALL {
            let fail = |error: String| -> ! { panic!("seed {seed}, {survivors:?}: {error}") };
            let left = SimDisk::untracked(disk.crash(survivors, seed));
            fill_up(&left);
            for is_first in [true, false] {
                let (gate, log) = open(&left, &machine).unwrap_or_else(|error| fail(error));
                torn += usize::from(log.recovery_report().torn.is_some());
                if is_first {
                    let found = model.check(&log, least, most).map(|_| ());
                    found.and_then(|()| check_whole(&log)).unwrap_or_else(|error| fail(error));
                }
                let runs = log.list_runs(&RunQuery::new().limit(100)).unwrap().runs;
                if let Some(run) = runs.iter().find(|run| run.status.is_ended() && !run.held) {
                    let name = (run.agent.as_str(), run.run.as_str());
                    log.delete_run(name).unwrap_or_else(|error| fail(error.to_string()));
                    deleted += 1;
                }
                gate.shut();
            }
            left.set_capacity(u64::MAX);
            let (gate, log) = open(&left, &machine).unwrap_or_else(|error| fail(error));
            log.start_run("agent", "later", ()).unwrap_or_else(|error| fail(error.to_string()));
            check_whole(&log).unwrap_or_else(|error| fail(error));
            gate.shut();
        }
    }
    assert!(deleted > 100 && torn > 10, "{deleted} deleted, {torn} torn");
}

#[test]
fn a_store_that_cannot_be_created_leaves_a_typed_error() {
    for number in 0..12 {
        let disk = SimDisk::new();
        disk.fail_op(number, ErrorKind::Other);
        let options = Machine::new(1).options();
        match options.create_storage(Arc::new(disk.clone())) {
            Ok(log) => drop(log),
            Err(error) => assert!(matches!(error, Error::Io { .. } | Error::Poisoned), "{error}"),
        }
        let full = SimDisk::new();
        full.set_capacity(4096 * number as u64);
        let error = options.create_storage(Arc::new(full)).unwrap_err();
        assert!(matches!(error, Error::DiskFull { .. }), "{error}");
    }
}
