//! The meaning of an acknowledgement: levels, group commit, tickets, orphans, closing.
//!
//! Syncs are counted where the engine calls the storage. Nothing here sleeps: threads wait for
//! tickets or channels.

use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Poll, Waker};
use std::io::ErrorKind;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use runlog::format::segments::segment::SEGMENT_HEADER_LEN;
use runlog::storage::MemoryStorage;
use runlog::{
    Batch, Durability, Error, Expected, LogPosition, Metadata, NewRecord, Options, Outcome, RunLog,
    Seq, Ticket,
};
use runlog_sim::{OpKind, SimDisk, Survivors};
use tempfile::TempDir;

use crate::support::tap::Tap;
use crate::support::tasks::block_on;

const EXTENT: u64 = 64 << 10;

/// No threads: the store syncs only when a call asks for it.
pub(super) fn quiet() -> Options {
    Options::new().extent_size(EXTENT).background(false)
}

/// Threads that sync only when a call asks for it.
pub(super) fn on_demand() -> Options {
    Options::new().extent_size(EXTENT).sync_interval(None)
}

fn syncs(log: &RunLog) -> u64 {
    log.stats().unwrap().io.syncs
}

/// A start that is acknowledged at Process level.
pub(super) fn unsynced() -> Metadata<'static> {
    Metadata::default().durability(Durability::Process)
}

fn at(level: Durability, payload: &[u8]) -> NewRecord<'_> {
    NewRecord::new(payload).durability(level)
}

#[test]
fn records_at_process_level_cost_no_sync_and_at_disk_level_one_each() {
    let log = quiet().create_storage(Arc::new(MemoryStorage::new())).unwrap();
    let before = syncs(&log);
    let run = log.start_run("agent", "run", unsynced()).unwrap();
    for _ in 0..20 {
        let appended = run.append(b"process").unwrap();
        assert!(!appended.ticket.is_durable());
    }
    run.append_batch(&[NewRecord::new(b"a"), NewRecord::new(b"b")]).unwrap();
    assert_eq!(syncs(&log), before, "Process level does not sync");
    for count in 1..=5 {
        let appended = run.append_record(&at(Durability::Disk, b"disk")).unwrap();
        assert!(appended.ticket.is_durable());
        assert_eq!(syncs(&log), before + count);
    }
    let batch = [NewRecord::new(b"a"), at(Durability::Disk, b"b")];
    assert!(run.append_batch(&batch).unwrap().ticket.is_durable(), "the strictest level holds");
    assert_eq!(syncs(&log), before + 6);
}

#[test]
fn starts_ends_and_deletions_are_at_disk_level_by_default() {
    let log = quiet().create_storage(Arc::new(MemoryStorage::new())).unwrap();
    let mut before = syncs(&log);
    let mut synced = |log: &RunLog| {
        let now = syncs(log);
        let grown = now > before;
        before = now;
        grown
    };
    let run = log.start_run("agent", "run", ()).unwrap();
    assert!(synced(&log), "start");
    run.append(b"x").unwrap();
    assert!(!synced(&log), "record");
    run.end(&Outcome::completed()).unwrap();
    assert!(synced(&log), "end");
    log.delete_run("run").unwrap();
    assert!(synced(&log), "deletion");
    let run = log.start_run("agent", "other", unsynced()).unwrap();
    assert!(!synced(&log), "start at Process level");
    run.end(&Outcome::completed().durability(Durability::Process)).unwrap();
    assert!(!synced(&log), "end at Process level");
}

#[test]
fn what_is_acknowledged_at_disk_level_survives_the_loss_of_everything_unsynced() {
    let disk = SimDisk::new();
    let log = quiet().create_storage(Arc::new(disk.clone())).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    run.append(b"0").unwrap();
    run.append_record(&at(Durability::Disk, b"1")).unwrap();
    let ticket = run.append(b"2").unwrap().ticket;
    let kept = |disk: &SimDisk| {
        let image = disk.crash(Survivors::Nothing, 0);
        let log = quiet().open_storage(Arc::new(MemoryStorage::from_bytes(image))).unwrap();
        log.trace("run").unwrap().count()
    };
    assert_eq!(kept(&disk), 2, "the record behind the sync is lost, the one in front is not");
    ticket.wait().unwrap();
    assert_eq!(kept(&disk), 3);
    run.append(b"3").unwrap();
    assert_eq!(kept(&disk), 3);
    log.sync().unwrap();
    assert_eq!(kept(&disk), 4);
}

#[test]
fn without_background_threads_nothing_is_synced_unless_asked_for() {
    let disk = SimDisk::new();
    let options = quiet().sync_interval(Some(Duration::from_millis(1)));
    let log = options.create_storage(Arc::new(disk.clone())).unwrap();
    let run = log.start_run("agent", "run", unsynced()).unwrap();
    let before = disk.counts().syncs;
    for _ in 0..50 {
        run.append(b"x").unwrap();
    }
    assert_eq!(disk.counts().syncs, before);
    let stats = log.stats().unwrap();
    assert!(stats.durable < stats.end);
    log.sync().unwrap();
    let stats = log.stats().unwrap();
    assert_eq!(stats.durable, stats.end);
    log.sync().unwrap();
    assert_eq!(disk.counts().syncs, before + 1, "what is durable needs no second sync");
}

#[test]
fn threads_that_append_at_disk_level_share_their_syncs() {
    const THREADS: usize = 8;
    const EACH: u64 = 50;
    // Its syncs take time, like those of a disk.
    let storage = Tap::new(Arc::new(MemoryStorage::new()), |call| {
        if call.kind == OpKind::Sync {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    });
    let log = Options::new().background(false).create_storage(storage).unwrap();
    let runs: Vec<_> = (0..THREADS)
        .map(|number| log.start_run("agent", &format!("run-{number}"), unsynced()).unwrap())
        .collect();
    let before = syncs(&log);
    let together = Barrier::new(THREADS);
    thread::scope(|scope| {
        for run in &runs {
            let together = &together;
            scope.spawn(move || {
                together.wait();
                for number in 0..EACH {
                    let appended = run.append_record(&at(Durability::Disk, b"x")).unwrap();
                    assert_eq!(appended.seq, Seq(number));
                    assert!(appended.ticket.is_durable());
                }
            });
        }
    });
    let (appends, syncs) = (THREADS as u64 * EACH, syncs(&log) - before);
    println!("{appends} appends at Disk level in {syncs} syncs");
    assert!(syncs <= appends / 2, "{syncs} syncs for {appends} appends");
    assert!(syncs >= EACH, "each append of one thread needs a sync of its own");
}

#[test]
fn many_threads_append_to_many_runs_and_to_one() {
    const THREADS: u64 = 8;
    const EACH: u64 = 400;
    let folder = TempDir::new().unwrap();
    let log = Options::new().extent_size(EXTENT).create(folder.path().join("store")).unwrap();
    let shared = log.start_run("agent", "shared", ()).unwrap();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (log, shared) = (&log, &shared);
            scope.spawn(move || {
                let own = log.start_run("agent", &format!("own-{thread}"), unsynced()).unwrap();
                for number in 0..EACH {
                    let payload = format!("{thread}/{number}");
                    assert_eq!(own.append(payload.as_bytes()).unwrap().seq, Seq(number));
                    shared.append(payload.as_bytes()).unwrap();
                }
                own.end(&Outcome::completed().durability(Durability::Process)).unwrap();
            });
        }
    });
    let payloads = |run: &str| -> Vec<String> {
        let text = |payload: &[u8]| String::from_utf8(payload.to_vec()).unwrap();
        log.trace(run).unwrap().map(|record| text(record.unwrap().payload())).collect()
    };
    let all = payloads("shared");
    for thread in 0..THREADS {
        let wanted: Vec<String> = (0..EACH).map(|number| format!("{thread}/{number}")).collect();
        assert_eq!(payloads(&format!("own-{thread}")), wanted);
        let prefix = format!("{thread}/");
        let found: Vec<_> = all.iter().filter(|payload| payload.starts_with(&prefix)).collect();
        assert!(found.into_iter().eq(&wanted), "a thread's records are in its order");
    }
    assert_eq!(all.len() as u64, THREADS * EACH);
    assert!(log.verify().unwrap().is_clean());
}

#[test]
fn a_ticket_can_be_awaited_and_the_background_thread_wakes_the_task() {
    let log = on_demand().create_storage(Arc::new(MemoryStorage::new())).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    for _ in 0..50 {
        let ticket = run.append(b"x").unwrap().ticket;
        block_on(ticket.clone()).unwrap();
        assert!(ticket.is_durable());
        block_on(ticket).unwrap();
    }
}

#[test]
fn many_tasks_await_their_tickets_at_once() {
    let log = on_demand().create_storage(Arc::new(MemoryStorage::new())).unwrap();
    thread::scope(|scope| {
        for number in 0..8 {
            let log = &log;
            scope.spawn(move || {
                let run = log.start_run("agent", &format!("run-{number}"), unsynced()).unwrap();
                for _ in 0..50 {
                    let tickets: Vec<Ticket> =
                        (0..4).map(|_| run.append(b"x").unwrap().ticket).collect();
                    for ticket in tickets {
                        block_on(ticket).unwrap();
                    }
                }
            });
        }
    });
}

#[test]
fn polling_without_background_threads_syncs_within_the_poll() {
    let log = quiet().create_storage(Arc::new(MemoryStorage::new())).unwrap();
    let run = log.start_run("agent", "run", unsynced()).unwrap();
    let mut ticket = run.append(b"x").unwrap().ticket;
    assert!(!ticket.is_durable());
    let polled = Pin::new(&mut ticket).poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Ready(Ok(()))));
    assert!(ticket.is_durable());
}

#[test]
fn a_sync_covers_all_earlier_tickets_and_no_later_one() {
    let log = quiet().create_storage(Arc::new(MemoryStorage::new())).unwrap();
    let run = log.start_run("agent", "run", unsynced()).unwrap();
    let tickets: Vec<Ticket> = (0..10).map(|_| run.append(b"x").unwrap().ticket).collect();
    tickets[9].wait().unwrap();
    assert!(tickets.iter().all(Ticket::is_durable));
    let before = syncs(&log);
    tickets[3].wait().unwrap();
    assert_eq!(syncs(&log), before, "waiting for what is durable costs nothing");
    assert!(!run.append(b"later").unwrap().ticket.is_durable());
}

#[test]
fn the_background_sync_makes_records_durable_without_being_asked() {
    let options = Options::new().extent_size(EXTENT).sync_interval(Some(Duration::from_millis(5)));
    let log = options.create_storage(Arc::new(MemoryStorage::new())).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    for _ in 0..10 {
        let ticket = run.append(b"x").unwrap().ticket;
        // Only checks: waiting for a ticket would cause the sync itself.
        let mut looks = 0_u64;
        while !ticket.is_durable() {
            looks += 1;
            assert!(looks < 1_000_000_000, "the background thread never synced");
            thread::yield_now();
        }
        let stats = log.stats().unwrap();
        assert_eq!(stats.durable, stats.end);
    }
}

#[test]
fn the_bytes_that_are_not_durable_are_those_of_all_frames_from_there_to_the_end() {
    let log = on_demand().create_storage(Arc::new(MemoryStorage::new())).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    log.sync().unwrap();
    let mut end = log.stats().unwrap().end;
    assert_eq!(log.stats().unwrap().undurable_bytes, 0);
    let (mut appended, mut crossed) = (Vec::new(), false);
    // The next segment is set aside early, which takes a sync.
    while !crossed && appended.len() < 10_000 {
        let _ = run.append_record(&at(Durability::Process, &[b'x'; 900])).unwrap();
        let stats = log.stats().unwrap();
        if stats.end.segment != end.segment {
            end = LogPosition { segment: stats.end.segment, offset: SEGMENT_HEADER_LEN };
        }
        appended.push((end, stats.end.offset - end.offset));
        end = stats.end;
        let behind = appended.iter().filter(|(start, _)| *start >= stats.durable);
        let bytes: u64 = behind.map(|(_, len)| u64::from(*len)).sum();
        assert_eq!(stats.undurable_bytes, bytes, "from {} to {}", stats.durable, stats.end);
        crossed |= stats.durable.segment < stats.end.segment && bytes > 0;
    }
    assert!(crossed, "they are in several segments");
    log.sync().unwrap();
    assert_eq!(log.stats().unwrap().undurable_bytes, 0);
}

#[test]
fn the_durable_position_is_never_ahead_of_the_end_beside_writers_and_syncs() {
    let options = Options::new().extent_size(EXTENT).sync_interval(Some(Duration::from_millis(1)));
    let log = options.create_storage(Arc::new(MemoryStorage::new())).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for writer in 0..2 {
            let (log, stop) = (&log, &stop);
            scope.spawn(move || {
                let run = log.start_run("agent", &format!("run-{writer}"), ()).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    let level = Durability::Disk;
                    let _ = run.append_record(&NewRecord::new(b"x").durability(level)).unwrap();
                }
            });
        }
        for _ in 0..2000 {
            let stats = log.stats().unwrap();
            assert!(stats.durable <= stats.end, "{} of {}", stats.durable, stats.end);
            let is_durable = stats.durable == stats.end;
            assert!(!is_durable || stats.undurable_bytes == 0, "{}", stats.undurable_bytes);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_failed_sync_is_told_to_everybody_and_nothing_is_acknowledged_afterwards() {
    let disk = SimDisk::new();
    let log = quiet().create_storage(Arc::new(disk.clone())).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let ticket = run.append(b"0").unwrap().ticket;
    disk.fail_next(OpKind::Sync, ErrorKind::Other);
    let failed = run.append_record(&at(Durability::Disk, b"1"));
    assert!(matches!(failed, Err(Error::Io { .. })), "{failed:?}");
    assert!(matches!(ticket.wait(), Err(Error::Poisoned)));
    assert!(matches!(block_on(ticket.clone()), Err(Error::Poisoned)));
    assert!(!ticket.is_durable());
    assert!(matches!(run.append(b"2"), Err(Error::Poisoned)));
    let other = log.start_run("agent", "other", unsynced());
    assert!(matches!(other, Err(Error::Poisoned)));
    assert!(matches!(run.end(&Outcome::completed()), Err(Error::Poisoned)));
    assert!(matches!(log.sync(), Err(Error::Poisoned)));
    // Reads still work.
    assert!(log.trace("run").unwrap().count() >= 1);
    assert!(log.close().is_err(), "closing says that not all is safe");
    drop(run);
    let log = quiet().open_storage(Arc::new(MemoryStorage::from_bytes(disk.image()))).unwrap();
    assert!(!log.recovery_report().clean);
    assert!(log.trace("run").unwrap().count() >= 1);
}

#[test]
fn a_refusal_at_disk_level_rests_on_what_no_power_loss_takes() {
    let disk = SimDisk::new();
    let log = quiet().create_storage(Arc::new(disk.clone())).unwrap();
    let after_power_loss = || {
        let image = disk.crash(Survivors::Nothing, 0);
        quiet().open_storage(Arc::new(MemoryStorage::from_bytes(image))).unwrap()
    };
    let value = NewRecord::new(b"value");
    log.docs().put("space", "key", &value).unwrap();
    let refused = log.docs().put_if("space", "key", &value, Expected::Absent);
    assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
    assert!(after_power_loss().docs().get("space", "key").unwrap().is_some());

    let mut batch = Batch::new();
    let version = log.docs().put("space", "key", &value).unwrap();
    log.commit(batch.delete("space", "key")).unwrap();
    let refused = log.docs().put_if("space", "key", &value, Expected::Version(version));
    assert!(matches!(refused, Err(Error::Conflict { found: None, .. })), "{refused:?}");
    assert!(after_power_loss().docs().get("space", "key").unwrap().is_none());

    let run = log.start_run("agent", "run", unsynced()).unwrap();
    let other = log.start_run("agent", "run", Metadata::json(b"{}"));
    assert!(matches!(other, Err(Error::RunExists { .. })), "{other:?}");
    assert!(after_power_loss().run("run").is_ok());

    run.end(&Outcome::completed().durability(Durability::Process)).unwrap();
    let late = run.append_record(&at(Durability::Disk, b"late"));
    assert!(matches!(late, Err(Error::RunEnded { .. })), "{late:?}");
    assert!(after_power_loss().run("run").unwrap().status.is_ended());

    // A lower level costs less.
    log.docs().put("space", "key", &value).unwrap();
    let before = syncs(&log);
    assert!(matches!(run.append(b"late"), Err(Error::RunEnded { .. })));
    assert_eq!(syncs(&log), before);
}
