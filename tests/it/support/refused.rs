//! What a store refuses, by its rules or because the disk is full, and the consequences.
//!
//! - A refusal at Disk level rests on other writes, and is returned once these are durable.
//! - An append that a full disk refuses leaves nothing behind.
//! - Whatever failed before: once there is space, everything can be deleted, and frees its space.

use runlog::{Allow, Durability, Error, Metadata, NewRecord, Outcome, Rule, RunRef, RunStatus};

use super::model::Change;
use super::world::{EXTENT, Now, World};

/// What a refused append may leave: a segment was sealed, and its directory now counts.
const LEFT: u64 = 4 << 10;

impl World {
    /// Asks for something that cannot be done, at Disk level.
    pub(crate) fn be_refused(&mut self) {
        let (what, fits): (_, fn(&Now) -> bool) = match self.random.below(5) {
            0 => ("start again", |now| now.explicit && !now.deleted),
            1 => ("end again", |now| !now.running && !now.deleted),
            2 => ("append late", |now| !now.running && !now.deleted),
            3 => ("delete", |now| now.running || (now.held && !now.deleted)),
            _ => ("delete again", |now| now.deleted),
        };
        let runs: Vec<usize> = (0..self.now.len()).filter(|run| fits(&self.now[*run])).collect();
        let Some(run) = self.pick(&runs) else { return };
        let (agent, name) = self.name(run);
        let (agent, name) = (agent.as_str(), name.as_str());
        let refused = match what {
            "start again" => {
                let metadata = Metadata::new(b"other metadata").durability(Durability::Disk);
                self.log().start_run(agent, name, metadata).map(drop)
            }
            "end again" => {
                let outcome = Outcome::new(RunStatus::Failed).durability(Durability::Disk);
                self.log().end_run(agent, name, &outcome, Allow::nothing()).map(drop)
            }
            "append late" => {
                let record = NewRecord::new(b"late").durability(Durability::Disk);
                self.log().append_to(agent, name, &record, Allow::nothing()).map(drop)
            }
            _ => self.log().delete_run((agent, name)).map(drop),
        };
        match refused {
            // Only an identical end is not refused; it is durable too.
            Ok(()) => assert_eq!(what, "end again", "{agent}/{name}"),
            Err(
                Error::RunExists { .. }
                | Error::RunEnded { .. }
                | Error::RunInProgress { .. }
                | Error::RunHeld { .. }
                | Error::RunNotFound { .. }
                | Error::Evicted { .. },
            ) => {}
            Err(error) => {
                self.succeeded::<()>(Err(error));
                return;
            }
        }
        self.acknowledge(true);
    }

    /// Appends a record; if the disk has no space for it, nothing of it remains.
    pub(super) fn append_whole(&mut self, run: usize, len: usize, durable: bool) {
        let before = self.live_bytes();
        self.append(run, len, durable);
        if let (Some(Error::DiskFull { .. }), true) = (&self.failure, self.only_fills) {
            let (before, after) = (before.expect("it was open"), self.live_bytes());
            let after = after.expect("a full disk can be read");
            assert!(
                after <= before + LEFT,
                "of a record of {len} bytes that was refused, {} bytes are left",
                after - before
            );
        }
    }

    fn live_bytes(&self) -> Option<u64> {
        self.log().stats().ok().map(|stats| stats.live_bytes)
    }

    /// Deletes runs with one call.
    pub(crate) fn delete_together(&mut self, all: &[usize]) {
        let begin = self.begin();
        for run in all {
            self.note(*run, Change::Delete, begin);
        }
        let names: Vec<_> = all.iter().map(|run| self.name(*run)).collect();
        let runs: Vec<(RunRef<'_>, Rule)> = names
            .iter()
            .map(|(agent, run)| (RunRef::from((agent.as_str(), run.as_str())), Rule::Deleted))
            .collect();
        let collected = self.log().evict(&runs);
        let Some(collected) = self.succeeded(collected) else { return };
        assert_eq!(collected.plan.evict.len(), all.len(), "all of them can go");
        for run in all {
            self.now[*run].deleted = true;
        }
        self.acknowledge(!all.is_empty());
    }

    /// Ends and deletes all runs, and checks that the space of the log is freed.
    pub(crate) fn empty(&mut self) {
        self.reading = None;
        self.release_all();
        for run in self.running() {
            if self.failure.is_none() {
                self.end(run, false);
            }
        }
        if self.failure.is_some() {
            return;
        }
        let all: Vec<usize> = (0..self.now.len()).filter(|run| !self.now[*run].deleted).collect();
        self.delete_together(&all);
        if self.failure.is_none() {
            self.reclaim();
        }
        if self.failure.is_some() {
            return;
        }
        let stats = self.log().stats().expect("it is open");
        // Documents and receipts remain, and so do segments with other living runs.
        let most = 10 + stats.live_bytes / (EXTENT / 2);
        assert!(stats.log_extents <= most, "little is left, and takes {stats:?}");
        assert_eq!(stats.retired_extents, 0, "nobody reads: {stats:?}");
    }
}
