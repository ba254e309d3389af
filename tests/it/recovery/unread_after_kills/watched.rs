//! A process that reads a store while another one writes it.

use std::collections::BTreeMap;
use std::sync::Arc;

use runlog::storage::MemoryStorage;
use runlog::{Error, Follow, Follower, LogCursor, LogEventKind, Reader, ReaderOptions};
use runlog_sim::SimDisk;

use super::answers::{Answers, Faults, number};
use super::story::{Known, Settings, identify};
use super::{Case, Tally};

/// A file with copies of the store.
#[derive(Debug, Default)]
pub(super) struct Copied {
    storage: Arc<MemoryStorage>,
    /// What the last copy has, and the store had since: a backup that breaks off leaves the copy
    /// at any of these moments.
    moments: Vec<Known>,
}

impl Copied {
    pub(super) fn note(&mut self, known: &Known) {
        if !self.moments.is_empty() {
            self.moments.push(known.clone());
        }
    }
}

/// A reader, and a follower that has followed from the start.
pub(super) struct Watch<'c> {
    case: &'c Case,
    settings: Settings,
    reader: Reader,
    follower: Option<Follower>,
    /// The records of which it was told, by run.
    told: BTreeMap<u64, Vec<u64>>,
}

impl<'c> Watch<'c> {
    /// `None` if the faults refuse it.
    pub(super) fn new(
        case: &'c Case,
        disk: &SimDisk,
        settings: &Settings,
        faults: &Faults,
    ) -> Option<Self> {
        let options = ReaderOptions::new().environment(settings.environment());
        let settings = settings.clone();
        match options.open_storage(Arc::new(disk.clone())) {
            Ok(reader) => {
                Some(Self { case, settings, reader, follower: None, told: BTreeMap::new() })
            }
            Err(error) => {
                assert!(faults.explain(&error), "{case}: a reader beside a writer: {error:?}");
                None
            }
        }
    }

    /// After a refresh it knows all that was acknowledged.
    pub(super) fn look(&mut self, known: &Known, faults: &Faults, tally: &mut Tally) {
        let case = self.case;
        tally.looks += 1;
        match self.reader.refresh() {
            Ok(_) => drop(case.check("a reader beside a writer", &self.reader, known, faults)),
            Err(error) => {
                tally.failed_looks += 1;
                assert!(faults.explain(&error), "{case}: a refresh: {error:?}");
            }
        }
        self.follow(faults);
    }

    fn follow(&mut self, faults: &Faults) {
        let case = self.case;
        if self.follower.is_none() {
            match self.reader.follow(Follow::Everything, LogCursor::START) {
                Ok(follower) => self.follower = Some(follower),
                Err(error) => assert!(faults.explain(&error), "{case}: a follower: {error:?}"),
            }
        }
        let Some(follower) = &mut self.follower else { return };
        let (mut idle, mut errors) = (0, 0);
        while idle < 3 && errors < 4 {
            self.settings.clock.advance(3_000_000_000);
            match follower.try_next() {
                Ok(Some(event)) => {
                    idle = 0;
                    if let LogEventKind::Record(record) = &event.kind {
                        let id = identify(record.kind(), record.payload());
                        self.told.entry(number(event.run.as_str())).or_default().push(id);
                    }
                }
                Ok(None) => idle += 1,
                Err(error) => {
                    errors += 1;
                    assert!(faults.explain(&error), "{case}: a follower: {error:?}");
                }
            }
        }
    }

    /// Once the disk reads all, the follower was told of each record.
    pub(super) fn end(&mut self, known: &Known, tally: &mut Tally) {
        let case = self.case;
        self.look(known, &case.healed(), tally);
        for (run, wanted) in &known.runs {
            let told = self.told.get(run).cloned().unwrap_or_default();
            let is_sure = !known.half_gone.contains(run);
            assert!(
                told == wanted.ids || !is_sure,
                "{case}: a follower was told {told:?} of run {run}, which has {wanted:?}"
            );
        }
    }

    /// A backup has all that was acknowledged, or leaves the copy as it was.
    pub(super) fn copy(&self, copied: &mut Copied, known: &Known, faults: &Faults) {
        let case = self.case;
        match self.reader.backup_to_storage(copied.storage.clone()) {
            Ok(done) => {
                assert!(done.damaged.is_empty(), "{case}: a copy: {done:?}");
                copied.moments = vec![known.clone()];
            }
            Err(Error::InvalidArgument { .. }) if copied.moments.is_empty() => {
                // The first one broke off.
                copied.storage = Arc::default();
            }
            Err(error) => assert!(faults.explain(&error), "{case}: a copy: {error:?}"),
        }
        if copied.moments.is_empty() {
            return;
        }
        let bytes = Arc::new(MemoryStorage::from_bytes(copied.storage.to_bytes()));
        let options = ReaderOptions::new().environment(self.settings.environment());
        let reader = options.open_storage(bytes);
        let reader = reader.unwrap_or_else(|error| panic!("{case}: the copy: {error:?}"));
        let answers = Answers::of(&reader, known.runs.keys().next_back().map_or(0, |run| run + 1));
        let wrong = |known: &Known| answers.check(known, &Faults::default()).err();
        let wrong: Vec<_> = copied.moments.iter().map_while(wrong).collect();
        assert!(wrong.len() < copied.moments.len(), "{case}: the copy: {wrong:?}");
    }
}
