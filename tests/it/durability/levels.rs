//! The meaning of an acknowledgement: levels, group commit, tickets, orphans, closing.
//!
//! Syncs are counted where the engine calls the storage. Nothing here sleeps: threads wait for
//! tickets or channels.

use core::future::Future;
use core::pin::{Pin, pin};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::task::{Context, Poll, Waker};
use std::io::{self, ErrorKind};
use std::sync::{Arc, Barrier};
use std::task::Wake;
use std::thread::{self, Thread};
use std::time::Duration;

use runlog::env::Environment;
use runlog::format::segments::segment::SEGMENT_HEADER_LEN;
use runlog::storage::{MemoryStorage, Storage};
use runlog::{
    Allow, Batch, ContentType, Durability, Error, Expected, LogPosition, Metadata, NewRecord,
    Options, Outcome, RunLog, RunQuery, RunStatus, Seq, Ticket,
};
use runlog_sim::{OpKind, SimDisk, Survivors};
use tempfile::TempDir;

const EXTENT: u64 = 64 << 10;

/// No threads: the store syncs only when a call asks for it.
fn quiet() -> Options {
    Options::new().extent_size(EXTENT).background(false)
}

/// Threads that sync only when a call asks for it.
fn on_demand() -> Options {
    Options::new().extent_size(EXTENT).sync_interval(None)
}

fn syncs(log: &RunLog) -> u64 {
    log.stats().unwrap().io.syncs
}

/// A start that is acknowledged at Process level.
fn unsynced() -> Metadata<'static> {
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

/// A storage whose syncs take time, like those of a disk.
#[derive(Debug)]
struct SlowSync(MemoryStorage);

impl Storage for SlowSync {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, data)
    }

    fn sync(&self) -> io::Result<()> {
        thread::sleep(Duration::from_millis(1));
        self.0.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.allocate(offset, len)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.punch(offset, len)
    }
}

#[test]
fn threads_that_append_at_disk_level_share_their_syncs() {
    const THREADS: usize = 8;
    const EACH: u64 = 50;
    let storage = Arc::new(SlowSync(MemoryStorage::new()));
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

/// Wakes a thread, and counts how often.
struct Parker {
    thread: Thread,
    woken: AtomicUsize,
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.woken.fetch_add(1, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// A minimal runtime.
fn block_on<F: Future>(future: F) -> F::Output {
    let parker = Arc::new(Parker { thread: thread::current(), woken: AtomicUsize::new(0) });
    let waker = Waker::from(Arc::clone(&parker));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
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
fn a_run_whose_writer_is_dropped_stays_in_progress_and_can_be_gone_on_with() {
    let storage = Arc::new(MemoryStorage::new());
    let log = quiet().create_storage(storage.clone()).unwrap();
    let run = log.start_run("agent", "run", b"goal").unwrap();
    run.append(b"0").unwrap();
    drop(run);
    assert_eq!(log.run("run").unwrap().status, RunStatus::InProgress);
    assert!(log.outcome("run").unwrap().is_none());
    log.writer("run").unwrap().append(b"1").unwrap();
    log.close().unwrap();
    let log = quiet().open_storage(storage).unwrap();
    assert_eq!(log.run("run").unwrap().status, RunStatus::InProgress);
    let run = log.writer(("agent", "run")).unwrap();
    assert_eq!((run.agent().as_str(), run.run().as_str()), ("agent", "run"));
    assert_eq!(run.append(b"2").unwrap().seq, Seq(2));
    log.start_run("agent", "run", b"goal").unwrap().append(b"3").unwrap();
    run.end(&Outcome::completed()).unwrap();
    assert!(matches!(log.writer("run"), Err(Error::RunEnded { .. })));
    assert!(matches!(log.writer("other"), Err(Error::RunNotFound { .. })));
    assert_eq!(log.run("run").unwrap().records, 4);
}

#[test]
fn an_identical_second_start_or_end_is_fine_in_each_state_and_a_different_one_is_an_error() {
    let storage = Arc::new(MemoryStorage::new());
    let mut log = quiet().create_storage(storage.clone()).unwrap();
    let metadata = Metadata::json(b"{\"goal\":1}");
    let outcome = Outcome::failed().bytes(b"why").content_type(ContentType::TEXT);
    log.start_run("agent", "open", metadata).unwrap();
    log.start_run("agent", "ended", metadata).unwrap().end(&outcome).unwrap();
    for reopened in [false, true] {
        if reopened {
            log.close().unwrap();
            log = quiet().open_storage(storage.clone()).unwrap();
        }
        let exists = |metadata: Metadata<'_>, run: &str| {
            matches!(log.start_run("agent", run, metadata), Err(Error::RunExists { .. }))
        };
        for run in ["open", "ended"] {
            log.start_run("agent", run, metadata).unwrap();
            assert!(exists(Metadata::json(b"{\"goal\":2}"), run));
            assert!(exists(Metadata::new(b"{\"goal\":1}"), run), "another content type");
            assert!(exists(Metadata::default(), run));
        }
        let run = log.start_run("agent", "ended", metadata).unwrap();
        run.end(&outcome).unwrap();
        log.end_run("agent", "ended", &outcome, Allow::nothing()).unwrap();
        let other = [
            Outcome::failed(),
            Outcome::completed().bytes(b"why").content_type(ContentType::TEXT),
            Outcome::failed().bytes(b"why"),
            Outcome::failed().bytes(b"why not").content_type(ContentType::TEXT),
        ];
        for other in other {
            let ended = run.end(&other);
            assert!(matches!(ended, Err(Error::RunEnded { status: RunStatus::Failed, .. })));
        }
        assert!(matches!(run.append(b"x"), Err(Error::RunEnded { .. })));
        assert!(matches!(run.append_batch(&[NewRecord::new(b"x")]), Err(Error::RunEnded { .. })));
        assert_eq!(log.outcome("ended").unwrap().unwrap().payload(), b"why");
        assert_eq!(log.run("ended").unwrap().records, 0);
        assert_eq!(
            log.list_runs(&RunQuery::new().limit(10)).unwrap().runs.len(),
            2,
            "nothing was started twice"
        );
    }
}

#[test]
fn orphans_are_adopted_once_and_only_if_nobody_touched_them() {
    let storage = Arc::new(MemoryStorage::new());
    let log = quiet().create_storage(storage.clone()).unwrap();
    for number in 0..300 {
        let run = log.start_run("agent", &format!("run-{number}"), unsynced()).unwrap();
        run.append(b"x").unwrap();
        if number % 3 == 0 {
            run.end(&Outcome::completed().durability(Durability::Process)).unwrap();
        }
    }
    assert!(log.adopt_orphans().unwrap().runs.is_empty(), "their writers are of this open");
    drop(log);
    let log = quiet().open_storage(storage.clone()).unwrap();
    log.writer("run-1").unwrap();
    log.start_run("agent", "run-2", unsynced()).unwrap();
    log.append_to("agent", "run-4", &NewRecord::new(b"y"), Allow::nothing()).unwrap();
    log.start_run("agent", "new", ()).unwrap();
    let adopted = log.adopt_orphans().unwrap();
    let ids: Vec<_> =
        adopted.runs.iter().map(|(agent, run)| (agent.as_str(), run.as_str())).collect();
    let wanted: Vec<String> = (0..300)
        .filter(|number| number % 3 != 0 && ![1, 2, 4].contains(number))
        .map(|number| format!("run-{number}"))
        .collect();
    let wanted: Vec<_> = wanted.iter().map(|run| ("agent", run.as_str())).collect();
    assert_eq!(ids, wanted);
    assert!(log.adopt_orphans().unwrap().runs.is_empty(), "once");
    let stats = log.stats().unwrap();
    assert_eq!(stats.durable, stats.end, "adoption is durable");
    assert_eq!(log.run("run-5").unwrap().status, RunStatus::Interrupted);
    assert_eq!(log.outcome("run-5").unwrap().unwrap().status(), RunStatus::Interrupted);
    for run in ["run-1", "run-2", "run-4", "new"] {
        assert_eq!(log.run(run).unwrap().status, RunStatus::InProgress);
    }
    drop(log);
    let log = quiet().open_storage(storage).unwrap();
    let ids: Vec<_> =
        log.adopt_orphans().unwrap().runs.iter().map(|(_, run)| run.to_string()).collect();
    assert_eq!(ids, ["run-1", "run-2", "run-4", "new"], "those of the open before");
}

#[test]
fn after_close_every_other_handle_is_told_so() {
    for background in [false, true] {
        let storage = Arc::new(MemoryStorage::new());
        let options = Options::new().extent_size(EXTENT).background(background);
        let log = options.create_storage(storage.clone()).unwrap();
        let run = log.start_run("agent", "run", ()).unwrap();
        let ticket = run.append(b"0").unwrap().ticket;
        let (second, third) = (log.clone(), log.clone());
        log.close().unwrap();
        let bytes = storage.to_bytes();
        let closed = |error: Error| matches!(error, Error::Closed);
        assert!(closed(run.append(b"1").unwrap_err()));
        assert!(closed(run.append(&vec![0; 100_000]).unwrap_err()));
        assert!(closed(run.append_batch(&[NewRecord::new(b"1"); 2]).unwrap_err()));
        assert!(closed(run.end(&Outcome::completed()).unwrap_err()));
        assert!(closed(second.start_run("agent", "other", ()).unwrap_err()));
        assert!(closed(second.writer("run").unwrap_err()));
        let all = Allow::everything();
        assert!(closed(second.append_to("a", "b", &NewRecord::new(b"1"), all).unwrap_err()));
        assert!(closed(second.end_run("a", "b", &Outcome::failed(), all).unwrap_err()));
        assert!(closed(second.trace("run").unwrap_err()));
        assert!(closed(second.agent_of("run").unwrap_err()));
        assert!(closed(second.run("run").unwrap_err()));
        assert!(closed(second.metadata("run").unwrap_err()));
        assert!(closed(second.outcome("run").unwrap_err()));
        assert!(closed(second.list_runs(&RunQuery::new().agent("agent").limit(1)).unwrap_err()));
        assert!(closed(second.list_runs(&RunQuery::new().limit(1)).unwrap_err()));
        assert!(closed(
            second
                .list_runs(&RunQuery::new().status(RunStatus::InProgress).oldest_first().limit(1))
                .unwrap_err()
        ));
        assert!(closed(second.agents(None, 1).unwrap_err()));
        assert!(closed(second.adopt_orphans().unwrap_err()));
        assert!(closed(second.delete_run("run").unwrap_err()));
        assert!(closed(second.stats().unwrap_err()));
        assert!(closed(second.verify().unwrap_err()));
        assert!(closed(second.checkpoint().unwrap_err()));
        assert!(closed(second.reclaim().unwrap_err()));
        assert!(closed(second.sync().unwrap_err()));
        second.recovery_report();
        block_on(ticket).unwrap();
        third.close().unwrap();
        drop((run, second));
        assert!(storage.to_bytes() == bytes, "written to after it was closed");
        let log = options.open_storage(storage).unwrap();
        assert!(log.recovery_report().clean);
        assert_eq!(log.trace("run").unwrap().count(), 1);
    }
}

#[test]
fn dropping_the_last_handle_closes_the_store() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    for _ in 0..3 {
        let log = on_demand().open(&path).unwrap();
        assert!(log.recovery_report().clean, "the first time it is new, then it was closed");
        let run = log.start_run("agent", "run", ()).unwrap();
        run.append(b"x").unwrap();
        let clone = log.clone();
        drop(log);
        clone.run("run").unwrap();
        drop(clone);
        run.append(b"a writer is a handle too").unwrap();
    }
    assert_eq!(on_demand().open(&path).unwrap().run("run").unwrap().records, 6);
}

#[test]
fn a_store_that_was_never_closed_opens_with_everything_in_it() {
    let storage = Arc::new(MemoryStorage::new());
    let log = quiet().create_storage(storage.clone()).unwrap();
    let run = log.start_run("agent", "run", b"m").unwrap();
    let mut images = Vec::new();
    for number in 0..300_u32 {
        run.append(&number.to_le_bytes().repeat(100)).unwrap();
        if number % 10 == 0 {
            images.push((number, storage.to_bytes()));
        }
    }
    for (number, image) in images {
        let log = quiet().open_storage(Arc::new(MemoryStorage::from_bytes(image))).unwrap();
        let report = log.recovery_report();
        assert!(!report.clean && report.is_clean(), "{report}");
        let summary = log.run("run").unwrap();
        assert_eq!((summary.records, summary.started), (u64::from(number) + 1, true));
        for (at, record) in (0..=number).zip(log.trace("run").unwrap()) {
            assert_eq!(record.unwrap().payload(), at.to_le_bytes().repeat(100));
        }
        assert_eq!(log.metadata("run").unwrap().unwrap().payload(), b"m");
        let appended = log.writer("run").unwrap().append(b"on").unwrap();
        assert_eq!(appended.seq, Seq(u64::from(number) + 1));
        assert!(log.verify().unwrap().is_clean());
    }
}

#[test]
fn no_version_and_no_order_is_given_out_twice_whatever_a_power_loss_takes() {
    let mut disk = SimDisk::new();
    let mut log = quiet().create_storage(Arc::new(disk.clone())).unwrap();
    let (mut versions, mut orders) = (Vec::new(), Vec::new());
    for life in 0..6 {
        let run = log.start_run("agent", &format!("run-{life}"), unsynced()).unwrap();
        for number in 0..3 {
            let value = format!("value {life} {number}");
            versions
                .push(log.docs().put("space", "key", &NewRecord::new(value.as_bytes())).unwrap());
            orders.push(run.append(value.as_bytes()).unwrap().lsn);
        }
        drop(run);
        disk = SimDisk::from_image(disk.crash(Survivors::Nothing, life));
        log = quiet().open_storage(Arc::new(disk.clone())).unwrap();
        // The store does not contain what a client of an earlier life has seen.
        let seen = *versions.last().unwrap();
        let again = log.docs().put("space", "key", &NewRecord::new(b"another's")).unwrap();
        versions.push(again);
        let stale = Expected::Version(seen);
        let refused = log.docs().put_if("space", "key", &NewRecord::new(b"based on that"), stale);
        assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
    }
    assert!(versions.is_sorted_by(|left, right| left < right), "{versions:?}");
    assert!(orders.is_sorted_by(|left, right| left < right), "{orders:?}");
}

#[test]
fn the_numbers_of_a_store_that_was_closed_go_on_without_a_gap() {
    let storage = Arc::new(MemoryStorage::new());
    let mut log = quiet().create_storage(storage.clone()).unwrap();
    for version in 1..5 {
        let found = log.docs().put("space", "key", &NewRecord::new(b"x")).unwrap();
        assert_eq!(found.0, version);
        log.close().unwrap();
        log = quiet().open_storage(storage.clone()).unwrap();
    }
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

/// Segments for a large record are set aside before it is written. If a power loss cuts the record
/// off, its last bytes may be there and none before them: an empty segment must not be continued
/// when one after it is closed.
#[test]
fn what_is_appended_after_a_large_record_that_was_lost_but_for_its_end_is_kept() {
    for number in 0.. {
        let disk = SimDisk::new();
        let log = quiet().create_storage(Arc::new(disk.clone())).unwrap();
        let run = log.start_run("agent", "run", ()).unwrap();
        let _ = log.start_run("agent", "gone", ()).unwrap().end(&Outcome::completed()).unwrap();
        // That leaves an empty tail; the next call sets a segment aside behind it.
        let _ = log.erase_run("gone").unwrap();
        drop(log.start_run("agent", "run", ()).unwrap());
        disk.fail_from(disk.op_count() + number, ErrorKind::Other);
        if run.append(&[1; 90_000]).is_ok() {
            assert!(number > 10, "{number}");
            return;
        }
        let disk = SimDisk::from_image(disk.crash(Survivors::OnlyLast, 0));
        // Another boot: the page cache is gone.
        let environment = Environment::system();
        let options = quiet().environment(environment);
        let log = options.open_storage(Arc::new(disk.clone())).unwrap();
        let run = log.start_run("agent", "next", ()).unwrap();
        for number in 0..200_u8 {
            run.append(&[number; 3000]).unwrap();
            if number % 30 == 0 {
                log.checkpoint().unwrap();
                log.compact().unwrap();
            }
        }
        drop(run);
        let trace = log.trace(("agent", "next")).unwrap();
        let found: Vec<u8> = trace.map(|record| record.unwrap().payload()[0]).collect();
        assert_eq!(found, (0..200).collect::<Vec<u8>>(), "cut before operation {number}");
        let found = log.verify().unwrap();
        assert!(found.is_clean(), "cut before operation {number}: {found:?}");
        log.close().unwrap();
        let log = quiet().open_storage(Arc::new(disk)).unwrap();
        assert_eq!(log.trace(("agent", "next")).unwrap().count(), 200);
    }
}
