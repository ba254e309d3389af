//! What a store refuses, by its rules or because the disk is full, and the consequences.
//!
//! - A refusal at Disk level rests on other writes, and is returned once these are durable.
//! - An append that a full disk refuses leaves nothing behind.
//! - Whatever failed before: once there is space, everything can be deleted, and frees its space.

use runlog::{
    Allow, Durability, Error, Metadata, NewRecord, Outcome, Retention, Rule, RunQuery, RunRef,
    RunStatus,
};

use super::model::{Change, SPACE};
use super::world::{EXTENT, Now, World};

/// What a refused append may leave: a segment was sealed, and its directory now counts.
const LEFT: u64 = 4 << 10;

impl World {
    /// Asks for something that cannot be done, at Disk level.
    pub(crate) fn be_refused(&mut self) {
        let (what, fits): (_, fn(&Now) -> bool) = match self.random.below(8) {
            0 => ("start again", |now| now.explicit && !now.deleted),
            1 => ("end again", |now| !now.running && !now.deleted),
            2 => ("append late", |now| !now.running && !now.deleted),
            3 => ("delete", |now| now.running || (now.held && !now.deleted)),
            4 => ("erase", |now| now.running || (now.held && !now.deleted)),
            5 => ("delete again", |now| now.deleted),
            6 => ("append to none", |now| now.deleted),
            _ => ("end none", |now| now.deleted),
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
            "end again" | "end none" => {
                let outcome = Outcome::new(RunStatus::Failed).durability(Durability::Disk);
                self.log().end_run(agent, name, &outcome, Allow::nothing()).map(drop)
            }
            "append late" | "append to none" => {
                let record = NewRecord::new(b"late").durability(Durability::Disk);
                self.log().append_to(agent, name, &record, Allow::nothing()).map(drop)
            }
            "erase" => self.log().erase_run((agent, name)).map(drop),
            _ => self.log().delete_run((agent, name)).map(drop),
        };
        let now = self.now[run];
        match refused {
            // Only an identical end is not refused; it is durable too.
            Ok(()) => assert_eq!(what, "end again", "{agent}/{name}"),
            Err(Error::RunExists { .. }) => assert_eq!(what, "start again"),
            Err(Error::RunEnded { .. }) => assert!(!now.running && !now.deleted, "{what}"),
            Err(Error::RunInProgress { .. }) => assert!(now.running, "{what}"),
            Err(Error::RunHeld { .. }) => assert!(now.held && !now.running, "{what}"),
            Err(Error::RunNotFound { .. }) => assert!(now.deleted, "{what}"),
            Err(error) => {
                self.succeeded::<()>(Err(error));
                return;
            }
        }
        self.acknowledge(true);
    }

    /// Each call that writes is refused. A policy can still be planned.
    pub(super) fn assert_poisoned(&self) {
        let log = self.log();
        let allow = Allow::everything();
        let records = [NewRecord::new(b"x"); 2];
        let policy = Retention::new().max_bytes(1);
        let plan = log.gc_plan(&policy).unwrap();
        let mut refused = vec![
            log.gc(&policy).map(drop),
            log.compact().map(drop),
            log.start_run("agent-9", "started", ()).map(drop),
            log.append_to("agent-9", "appended", &records[0], allow).map(drop),
            log.end_run("agent-9", "ended", &Outcome::completed(), allow).map(drop),
            log.docs().put(SPACE, "key 0", &records[0]).map(drop),
        ];
        for summary in log.list_runs(&RunQuery::new().limit(100)).unwrap().runs {
            let name = (summary.agent.as_str(), summary.run.as_str());
            refused.push(log.append_batch_to(name.0, name.1, &records, allow).map(drop));
            if summary.status.is_ended() && !summary.held {
                refused.push(log.delete_run(name).map(drop));
                refused.push(log.erase_run(name).map(drop));
                refused.push(log.hold(name, "late").map(drop));
            }
        }
        let is_so = refused.iter().all(|result| matches!(result, Err(Error::Poisoned)));
        assert!(is_so, "{refused:?}");
        assert_eq!(log.gc_plan(&policy).unwrap(), plan);
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

    /// Deletes runs with one call, which is asked to delete some too that have to stay.
    pub(crate) fn delete_together(&mut self, going: &[usize], staying: &[usize]) {
        let begin = self.begin();
        for run in going {
            self.note(*run, Change::Delete { rule: Rule::Deleted }, begin);
        }
        let names: Vec<_> = going.iter().chain(staying).map(|run| self.name(*run)).collect();
        let runs: Vec<(RunRef<'_>, Rule)> = names
            .iter()
            .map(|(agent, run)| (RunRef::from((agent.as_str(), run.as_str())), Rule::Deleted))
            .collect();
        let collected = self.log().evict(&runs);
        let Some(collected) = self.succeeded(collected) else { return };
        assert_eq!(collected.plan.evict.len(), going.len());
        for run in going {
            self.now[*run].deleted = true;
        }
        self.acknowledge(!going.is_empty());
    }

    /// Ends and deletes all runs, and checks that the space of the log is freed.
    pub(crate) fn empty(&mut self) {
        self.stop_reading();
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
        self.delete_together(&all, &[]);
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
