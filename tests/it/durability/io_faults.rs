//! Disks that fail: failed syncs, failed and short writes, no space.
//!
//! After a failed write or sync nothing more is acknowledged (I10), reads still work, and opening
//! the store again recovers everything that was acknowledged before. A full disk is not a failure:
//! the append that meets it is refused as a whole, runs can still be ended, and appends work again
//! when there is space.

use std::io::ErrorKind;
use std::sync::Arc;

use runlog::format::EXTENTS_AT;
use runlog::format::map::manifest::read_area;
use runlog::format::map::superblock::Superblock;
use runlog::storage::Storage;
use runlog::{
    Allow, Durability, Error, ExtentNo, IndexRecovery, Metadata, NewRecord, Outcome, Retention,
    RunLog, RunQuery,
};
use runlog_sim::{Fault, SimDisk, SplitMix64, Survivors};

use crate::support::cuts::{check_whole, open, recover_again};
use crate::support::world::{Abandoned, EXTENT, Machine, World};

/// A small store with some runs, and a disk that fails at the operation `number`.
fn fail_at(number: usize, fault: Fault, seed: u64) -> World {
    let mut world = World::create(seed, Machine::new(seed, 1), true);
    world.may_fail = true;
    world.disk.fail_op(number, fault);
    for step in 0..160 {
        world.step();
        if step % 50 == 49 && world.failure.is_none() {
            world.end_oldest(3);
            if world.failure.is_none() {
                world.delete_run();
            }
            // Later success says nothing about the failed call.
            if world.failure.is_none() {
                world.checkpoint();
            }
        }
        if world.failure.is_some() {
            break;
        }
    }
    world
}

/// Every call that writes is refused.
fn assert_poisoned(log: &RunLog) {
    let refused = |result: Result<(), Error>| matches!(result, Err(Error::Poisoned));
    let allow = Allow::everything();
    // A policy can still be planned, but not carried out.
    let policy = Retention::new().max_bytes(1);
    let plan = log.gc_plan(&policy).unwrap();
    let collected = log.gc(&policy).map(|_| ());
    assert!(refused(collected));
    assert_eq!(log.gc_plan(&policy).unwrap(), plan);
    assert!(refused(log.compact().map(|_| ())));
    let started = log.start_run("agent-9", "started", ());
    assert!(refused(started.map(|_| ())));
    let appended = log.append_to("agent-9", "appended", &NewRecord::new(b"x"), allow);
    assert!(refused(appended.map(|_| ())));
    let ended = log.end_run("agent-9", "ended", &Outcome::completed(), allow);
    assert!(refused(ended.map(|_| ())));
    for summary in log.list_runs(&RunQuery::new().limit(100)).unwrap().runs {
        let name = (&summary.agent, &summary.run);
        let (agent, run) = (summary.agent.as_str(), summary.run.as_str());
        let record = NewRecord::new(b"x");
        let appended = log.append_batch_to(agent, run, &[record, record], allow);
        assert!(refused(appended.map(|_| ())), "{name:?}");
        if summary.status.is_ended() && !summary.held {
            assert!(refused(log.delete_run(name).map(|_| ())), "{name:?}");
            assert!(refused(log.erase_run(name).map(|_| ())), "{name:?}");
            assert!(refused(log.hold(name, "late").map(|_| ())), "{name:?}");
        }
    }
}

/// Everything that must be there is there: live, after a kill, and after a power loss.
fn assert_nothing_lost(world: World, seed: u64, what: &str) {
    let acknowledged = world.disk.op_count();
    let all = world.model.events.len();
    let (least, _) = world.model.after_kill(acknowledged, false);
    let live = world.model.check(world.log(), least, all);
    live.unwrap_or_else(|error| panic!("{what}, live: {error}"));
    let Abandoned { disk, model, machine, .. } = world.abandon();
    disk.clear_faults();
    let reopen = |image: Vec<u8>, machine: &Machine, least: usize, how: &str| {
        let opened = open(&SimDisk::untracked(image), machine);
        let (gate, log) = opened.unwrap_or_else(|error| panic!("{what}, {how}: {error}"));
        let found = model.check(&log, least, all).and_then(|_| check_whole(&log));
        found.unwrap_or_else(|error| panic!("{what}, {how}: {error}"));
        let more = log.append_to("agent-9", "more", &NewRecord::new(b"x"), Allow::everything());
        let _ = more.unwrap_or_else(|error| panic!("{what}, {how}: {error}"));
        gate.shut();
    };
    reopen(disk.image(), &machine, least, "killed");
    let (least, _) = model.after_power_loss(acknowledged);
    let other = Machine { boot: 2, ..machine.clone() };
    let losses = [Survivors::Nothing, Survivors::Half, Survivors::Everything];
    for survivors in losses {
        let image = disk.crash(survivors, seed);
        reopen(image, &other, least, &format!("power loss, {survivors:?}"));
    }
    // What the opening found on the same disk and boot is durable from then on, even if a failed
    // sync dropped it.
    let fail = |error: String| -> ! { panic!("{what}, opened once more: {error}") };
    let (gate, log) = open(&disk, &machine).unwrap_or_else(|error| fail(error));
    let found = model.check(&log, least, all).unwrap_or_else(|error| fail(error));
    check_whole(&log).unwrap_or_else(|error| fail(error));
    log.checkpoint().unwrap_or_else(|error| fail(error.to_string()));
    gate.shut();
    for survivors in losses {
        let image = SimDisk::untracked(disk.crash(survivors, seed));
        let what = format!("power loss after that, {survivors:?}");
        let again = recover_again(&image, &model, &other, &found, &what);
        again.unwrap_or_else(|error| fail(error));
    }
}

/// Makes each of many operations fail, one store for each.
fn fail_many(seed: u64, fault_of: impl Fn(&mut SplitMix64) -> Fault) {
    let mut random = SplitMix64::new(seed);
    let mut poisoned = 0;
    let whole = fail_at(usize::MAX, Fault::error(ErrorKind::Other), seed).disk.op_count();
    let mut number = 4 + random.index(6);
    while number < whole {
        let fault = fault_of(&mut random);
        let world = fail_at(number, fault, seed);
        let what = format!("operation {number} of {whole} with {fault:?}, {:?}", world.failure);
        let probe = NewRecord::new(b"probe");
        match world.log().append_to("agent-9", "probe", &probe, Allow::everything()) {
            Err(Error::Poisoned) => {
                poisoned += 1;
                assert_poisoned(world.log());
                assert_nothing_lost(world, random.next_u64(), &what);
            }
            // The failed call was not essential: the index, or space set aside ahead of time.
            Ok(_) => {
                let (_gate, log) = {
                    let Abandoned { disk, machine, .. } = world.abandon();
                    open(&disk, &machine).unwrap_or_else(|error| panic!("{what}: {error}"))
                };
                check_whole(&log).unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            Err(error) => panic!("{what}: {error}"),
        }
        number += 1 + random.index(6);
    }
    assert!(poisoned > 20, "{poisoned}");
}

#[test]
fn a_failed_operation_ends_all_writing_and_loses_nothing() {
    fail_many(1, |_| Fault::error(ErrorKind::Other));
}

#[test]
fn a_short_write_ends_all_writing_and_loses_nothing() {
    for seed in [2, 3] {
        fail_many(seed, |random| Fault::short(ErrorKind::Other, random.index(600)));
    }
}

#[test]
fn an_index_of_which_a_failed_sync_dropped_pages_is_whole_after_a_power_loss() {
    let mut kept = 0;
    for seed in 0..20 {
        let mut world = World::create(seed, Machine::new(seed, 1), true);
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
        let (gate, log) = open(&image, &Machine { boot: 2, ..machine }).unwrap();
        kept += usize::from(log.recovery_report().index == IndexRecovery::Kept);
        check_whole(&log).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        gate.shut();
    }
    assert!(kept > 10, "{kept}");
}

#[test]
fn a_full_disk_refuses_appends_whole_and_loses_nothing() {
    for seed in 0..8 {
        full_disk(seed);
    }
}

fn full_disk(seed: u64) {
    let machine = Machine::new(seed, 1);
    let mut random = SplitMix64::new(seed);
    let mut world = World::create(seed, machine.clone(), seed % 4 < 2);
    world.documents = false;
    for _ in 0..6 {
        world.start_run();
    }
    for _ in 0..40 {
        world.step();
    }
    world.start_run();
    world.may_fail = true;
    world.disk.set_capacity(world.disk.allocated() + EXTENT * random.below(4) + 4096 * seed);
    let lens = [300, 3000, 30_000];
    let mut refused = 0;
    while refused < 12 {
        let running = world.running();
        let (before, run) = (world.model.events.len(), running[random.index(running.len())]);
        world.append(run, lens[random.index(3)], random.below(8) == 0);
        match world.failure.take() {
            Some(Error::DiskFull { .. }) => {
                assert_eq!(world.model.events.len(), before + 1);
                world.take_back();
                refused += 1;
            }
            Some(error) => panic!("seed {seed}: {error}"),
            None => {}
        }
    }
    let all = |world: &World| world.model.events.len();
    world.model.check(world.log(), all(&world), all(&world)).unwrap();
    // The reserve lets every run end.
    for run in world.running() {
        world.end(run, true);
        assert!(world.failure.is_none(), "seed {seed}: {:?}", world.failure);
    }
    world.model.check(world.log(), all(&world), all(&world)).unwrap();
    // Opening works on the full disk too.
    world.kill();
    world.model.check(world.log(), all(&world), all(&world)).unwrap();
    world.disk.set_capacity(u64::MAX);
    for _ in 0..40 {
        world.step();
        assert!(world.failure.is_none(), "seed {seed}: {:?}", world.failure);
    }
    world.reopen();
    world.model.check(world.log(), all(&world), all(&world)).unwrap();
    check_whole(world.log()).unwrap();
}

/// Releases the blocks of free extents, as if other files took them; there is no more space.
fn fill_up(disk: &SimDisk) {
    let image = disk.image();
    let slots = [4096, 8192].map(|at| Superblock::decode(&image[at..at + 4096]));
    let newest = slots.into_iter().flatten().max_by_key(|block| block.epoch).unwrap();
    let at = newest.manifest;
    let area = &image[at.offset as usize..(at.offset + at.len) as usize];
    let owned = read_area(area, newest.uuid, at.generation).unwrap().extents.uses;
    for number in 0..(image.len() as u64 - EXTENTS_AT) / EXTENT {
        if !owned.contains_key(&ExtentNo(u32::try_from(number).unwrap())) {
            disk.punch(EXTENTS_AT + number * EXTENT, EXTENT).unwrap();
        }
    }
    disk.set_capacity(disk.allocated());
}

#[test]
fn a_store_opens_on_a_disk_that_was_full_when_the_power_went_and_runs_can_be_deleted() {
    let (mut deleted, mut torn) = (0, 0);
    for seed in 0..24 {
        let machine = Machine::new(seed, 1);
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
            for boot in [2, 3] {
                let machine = Machine { boot, ..machine.clone() };
                let (gate, log) = open(&left, &machine).unwrap_or_else(|error| fail(error));
                torn += usize::from(log.recovery_report().torn.is_some());
                if boot == 2 {
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
        let options = Machine::new(1, 1).options();
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
