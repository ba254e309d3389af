//! Two runs of one agent with one id, which there are only if damage took the deletion of the
//! first: the name means the newer one, in each call.

use std::sync::Arc;

use runlog::format::FrameKind;
use runlog::format::frames::frame::FRAME_HEADER_LEN;
use runlog::{
    Allow, Batch, Error, Metadata, NewRecord, Options, Outcome, ReadLog, ReaderOptions, RunLog,
    RunNo, RunQuery, RunRef, RunStatus,
};
use runlog_sim::SimDisk;

use crate::documents::lost_documents::seal;
use crate::support::frames::{EXTENT, frames_in};

const NAME: (&str, &str) = ("planner", "run");

fn options(index: bool) -> Options {
    Options::new().extent_size(EXTENT as u64).background(false).index(index)
}

fn on(image: &[u8]) -> Arc<SimDisk> {
    Arc::new(SimDisk::untracked(image.to_vec()))
}

/// Which of the runs are in a sealed segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sealed {
    None,
    First,
    Both,
}

/// A closed store with two such runs, and their numbers.
fn store(sealed: Sealed, index: bool) -> (Vec<u8>, [RunNo; 2]) {
    let disk = on(&[]);
    let log = options(index).create_storage(disk.clone()).unwrap();
    let run = log.start_run(NAME.0, NAME.1, Metadata::json(b"1")).unwrap();
    let _ = run.append(b"first").unwrap();
    let _ = run.end(&Outcome::completed()).unwrap();
    if sealed == Sealed::First {
        seal(&log);
    }
    let _ = log.delete_run(NAME).unwrap();
    let run = log.start_run(NAME.0, NAME.1, Metadata::json(b"2")).unwrap();
    let _ = run.append(b"second").unwrap();
    drop(run);
    log.close().unwrap();
    let mut image = disk.image();
    let last = usize::from(sealed == Sealed::First);
    let frames = frames_in(&image, last);
    let (evict, _) = frames.iter().find(|(_, frame)| frame.kind == FrameKind::Evict).unwrap();
    image[evict.start + FRAME_HEADER_LEN + 4] ^= 1;
    let disk = on(&image);
    let log = options(index).open_storage(disk.clone()).unwrap();
    if sealed == Sealed::Both {
        seal(&log);
    }
    let mut numbers: Vec<_> =
        log.runs(&RunQuery::new().agent(NAME.0)).map(|run| run.unwrap().number()).collect();
    numbers.sort();
    log.close().unwrap();
    (disk.image(), numbers.try_into().expect("the deletion is lost"))
}

fn cases() -> impl Iterator<Item = (Vec<u8>, [RunNo; 2], bool, String)> {
    let all = [Sealed::None, Sealed::First, Sealed::Both];
    all.into_iter().flat_map(|sealed| {
        [false, true].map(|index| {
            let (image, numbers) = store(sealed, index);
            (image, numbers, index, format!("sealed {sealed:?}, index {index}"))
        })
    })
}

fn payloads<'r>(log: &impl ReadLog, run: impl Into<RunRef<'r>>) -> Vec<Vec<u8>> {
    log.trace(run).unwrap().map(|record| record.unwrap().payload().to_vec()).collect()
}

/// What each name means in a store in which nothing was changed.
fn check(log: &impl ReadLog, [first, second]: [RunNo; 2], what: &str) {
    assert_eq!(log.agent_of("run").unwrap().as_str(), NAME.0, "{what}");
    for name in [RunRef::from(NAME), RunRef::from("run")] {
        let found = log.run(name).unwrap();
        assert_eq!((found.number(), found.status), (second, RunStatus::InProgress), "{what}");
        assert_eq!(payloads(log, name), [b"second"], "{what}: {name:?}");
        assert_eq!(log.metadata(name).unwrap().unwrap().payload(), b"2", "{what}");
        assert!(log.outcome(name).unwrap().is_none(), "{what}");
        let (older, newer) = (name.numbered(first), name.numbered(second));
        assert_eq!(payloads(log, older), [b"first"], "{what}");
        assert_eq!(log.metadata(older).unwrap().unwrap().payload(), b"1", "{what}");
        assert!(log.outcome(older).unwrap().is_some(), "{what}");
        assert_eq!(payloads(log, newer), [b"second"], "{what}");
    }
    let listed = log.runs(&RunQuery::new().agent(NAME.0)).map(Result::unwrap);
    let mut listed: Vec<_> = listed.map(|run| payloads(log, &run).concat()).collect();
    listed.sort();
    assert_eq!(listed, [b"first".to_vec(), b"second".to_vec()], "{what}");
}

#[test]
fn a_name_means_the_newest_run_of_its_agent() {
    for (image, numbers, index, what) in cases() {
        let reader = ReaderOptions::new().open_storage(on(&image)).unwrap();
        check(&reader, numbers, &format!("{what}, a reader"));
        let log = options(index).open_storage(on(&image)).unwrap();
        check(&log, numbers, &what);
        // Both are in memory.
        assert!(log.writer(RunRef::from(NAME).numbered(numbers[0])).is_err());
        check(&log, numbers, &format!("{what}, in memory"));
        seal(&log);
        check(&log, numbers, &format!("{what}, sealed"));
    }
}

#[test]
fn writes_go_to_the_newest_run_of_an_agent() {
    for (image, numbers, index, what) in cases() {
        let [first, second] = numbers;
        for way in 0..6 {
            let (what, disk) = (format!("{what}, way {way}"), on(&image));
            let log = options(index).open_storage(disk.clone()).unwrap();
            let (agent, run) = NAME;
            let record = NewRecord::new(b"third");
            match way {
                0 => drop(log.writer("run").unwrap().append(b"third").unwrap()),
                1 => drop(log.append_to(agent, run, &record, Allow::everything()).unwrap()),
                2 => {
                    drop(log.start_run(agent, run, Metadata::json(b"2")).unwrap().append(b"third"))
                }
                3 => {
                    let mut batch = Batch::new();
                    batch.append(agent, run, record);
                    drop(log.commit(&batch).unwrap());
                }
                4 => {
                    let records = [record, NewRecord::new(b"fourth")];
                    drop(log.append_batch_to(agent, run, &records, Allow::nothing()).unwrap());
                }
                _ => {
                    drop(log.end_run(agent, run, &Outcome::completed(), Allow::nothing()).unwrap())
                }
            }
            let check = |log: &RunLog| {
                let older = RunRef::from(NAME).numbered(first);
                assert_eq!(payloads(log, older), [b"first"], "{what}");
                let found = log.run("run").unwrap();
                assert_eq!(found.number(), second, "{what}");
                assert_eq!(found.status.is_ended(), way == 5, "{what}");
                let third = payloads(log, NAME).get(1).cloned();
                assert_eq!(third.is_some(), way != 5, "{what}");
            };
            check(&log);
            log.close().unwrap();
            check(&options(index).open_storage(disk).unwrap());
        }
    }
}

#[test]
fn the_name_means_the_older_run_again_once_the_newer_one_is_deleted() {
    for (image, [first, second], index, what) in cases() {
        for erases in [false, true] {
            let what = format!("{what}, erases {erases}");
            let log = options(index).open_storage(on(&image)).unwrap();
            assert!(matches!(log.delete_run("run"), Err(Error::RunInProgress { .. })), "{what}");
            let _ = log.end_run(NAME.0, NAME.1, &Outcome::completed(), Allow::nothing()).unwrap();
            assert!(log.hold("run", "a reason").unwrap(), "{what}");
            assert_eq!(log.held_runs().unwrap().len(), 1, "{what}");
            assert!(matches!(log.delete_run("run"), Err(Error::RunHeld { .. })), "{what}");
            assert!(log.release(NAME).unwrap(), "{what}");
            for left in [Some(first), None] {
                assert!(log.run("run").unwrap().number() >= first, "{what}");
                if erases {
                    // The EVICT is damaged, so its segment cannot be copied.
                    let erased = log.erase_run("run");
                    assert!(!matches!(erased, Err(Error::RunNotFound { .. })), "{what}");
                } else {
                    let _ = log.delete_run("run").unwrap();
                }
                let is_left = log.run("run").map(|run| run.number());
                match left {
                    Some(number) => assert_eq!(is_left.unwrap(), number, "{what}"),
                    None => assert!(is_left.unwrap_err().is_not_found(), "{what}"),
                }
                let newer = log.run(RunRef::from(NAME).numbered(second));
                assert!(newer.unwrap_err().is_not_found(), "{what}");
            }
        }
    }
}

#[test]
fn an_agent_is_named_once_among_those_that_have_an_id() {
    for (image, [_, second], index, what) in cases() {
        let log = options(index).open_storage(on(&image)).unwrap();
        drop(log.start_run("another", "run", ()).unwrap());
        let Err(Error::Ambiguous { agents, .. }) = log.run("run") else { panic!("{what}") };
        let agents: Vec<_> = agents.iter().map(|agent| agent.as_str()).collect();
        assert_eq!(agents, ["another", NAME.0], "{what}");
        assert_eq!(log.run(NAME).unwrap().number(), second, "{what}");
    }
}
