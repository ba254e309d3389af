//! What the parent of the kill test knows of each run, and the comparison with a store.

use std::collections::{BTreeMap, BTreeSet};

use runlog::{Error, RunLog, RunQuery, RunStatus, RunSummary};

use super::script::{LONGEST_BATCH, Message, Op, RunKey, THREADS, agent};

/// What is known of a run: all of it was acknowledged, or seen after a recovery.
#[derive(Debug, Default, Clone, Copy)]
struct Known {
    records: u64,
    ended: bool,
    /// A deletion was begun, and may or may not have happened.
    deleting: bool,
    deleted: bool,
}

/// All runs that were ever heard of.
#[derive(Debug)]
pub(crate) struct Model {
    seed: u64,
    runs: BTreeMap<RunKey, Known>,
}

impl Model {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, runs: BTreeMap::new() }
    }

    /// Takes what a child told.
    pub(crate) fn note(&mut self, message: &Message) {
        let known = self.runs.entry(message.run).or_default();
        match message.op {
            Op::Appended { count, .. } => {
                assert_eq!(known.records, message.seq, "acknowledged in order: {message:?}");
                known.records += u64::from(count);
            }
            Op::Ended => known.ended = true,
            Op::Deleting => known.deleting = true,
            Op::Deleted => known.deleted = true,
            _ => {}
        }
    }

    /// Compares everything. What is there beyond what was acknowledged is at most the one call
    /// that each thread had in flight; from then on it must stay.
    pub(crate) fn check(&mut self, log: &RunLog, context: &str) {
        let listed = self.list(log, context);
        let mut in_flight = BTreeMap::new();
        for summary in &listed {
            let run = RunKey::from_run(summary.run.as_str()).expect("a run of the test");
            assert_eq!(summary.agent, run.agent().as_str(), "{run:?} {context}");
            assert_eq!(log.agent_of(&run.run()).unwrap(), run.agent().as_str(), "{context}");
            if self.check_run(log, run, summary, context) {
                *in_flight.entry(run.thread).or_insert(0) += 1;
            }
        }
        let listed: BTreeSet<_> =
            listed.iter().filter_map(|summary| RunKey::from_run(summary.run.as_str())).collect();
        for (&run, known) in self.runs.iter_mut().filter(|(_, known)| !known.deleted) {
            if listed.contains(&run) {
                known.deleting = false;
                continue;
            }
            assert!(known.deleting, "{run:?} is missing, {known:?} {context}");
            known.deleted = true;
            *in_flight.entry(run.thread).or_insert(0) += 1;
            let gone = log.run((run.agent().as_str(), run.run().as_str()));
            assert!(matches!(gone, Err(Error::RunNotFound { .. })), "{gone:?} {context}");
        }
        assert!(in_flight.values().all(|calls| *calls <= 1), "{in_flight:?} {context}");
        let report = log.verify().unwrap();
        assert!(report.is_clean(), "{:?} {context}", report.problems);
        let found = log.recovery_report();
        assert!(found.damaged.is_empty(), "{found:?} {context}");
        // At most the write that was in flight is torn, and nothing whole is behind it.
    }

    /// All runs by three lists, which must agree.
    fn list(&self, log: &RunLog, context: &str) -> Vec<RunSummary> {
        let mut all = Vec::new();
        let mut after = None;
        loop {
            let page = log.list_runs(&RunQuery::new().limit(7).after(after)).unwrap();
            all.extend(page.runs);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        all.sort_by(|a, b| a.run.as_str().cmp(b.run.as_str()));
        let mut by_agent: Vec<_> = (0..THREADS)
            .flat_map(|thread| {
                log.list_runs(&RunQuery::new().agent(&agent(thread)).limit(10_000)).unwrap().runs
            })
            .collect();
        by_agent.sort_by(|a, b| a.run.as_str().cmp(b.run.as_str()));
        assert_eq!(all, by_agent, "{context}");
        let mut running = log
            .list_runs(&RunQuery::new().status(RunStatus::InProgress).oldest_first().limit(10_000))
            .unwrap()
            .runs;
        running.sort_by(|a, b| a.run.as_str().cmp(b.run.as_str()));
        let expected = all.iter().filter(|summary| summary.status == RunStatus::InProgress);
        assert!(expected.eq(&running), "{context}");
        all
    }

    /// Compares one run; whether there is more of it than was acknowledged.
    fn check_run(
        &mut self,
        log: &RunLog,
        run: RunKey,
        summary: &RunSummary,
        context: &str,
    ) -> bool {
        let before = self.runs.get(&run).copied();
        let known = self.runs.entry(run).or_default();
        assert!(!known.deleted, "{run:?} was deleted and is back {context}");
        let ids = (run.agent(), run.run());
        let ids = (ids.0.as_str(), ids.1.as_str());
        let metadata = log.metadata(ids).unwrap().expect("the run was started");
        assert_eq!(metadata.payload(), run.metadata(self.seed), "{run:?} {context}");
        let mut count = 0;
        let mut last = None;
        for record in log.trace(ids).unwrap() {
            let record = record.unwrap();
            assert_eq!(record.seq().0, count, "out of order: {run:?} {context}");
            assert!(last < Some(record.lsn()), "out of order: {run:?} {context}");
            let content = run.record(self.seed, count);
            assert!(content.is(&record), "record {count} of {run:?} was changed {context}");
            (count, last) = (count + 1, Some(record.lsn()));
        }
        assert_eq!(summary.records, count, "{run:?} {context}");
        assert!(count >= known.records, "{run:?}: {count} of {known:?} {context}");
        assert!(count <= known.records + LONGEST_BATCH, "{run:?}: {count} of {known:?} {context}");
        let ended = summary.status.is_ended();
        assert!(ended || !known.ended, "{run:?} had been ended {context}");
        if ended {
            let outcome = log.outcome(ids).unwrap().expect("the run was ended");
            let expected = run.outcome(self.seed);
            assert_eq!(outcome.status(), expected.status(), "{run:?} {context}");
            assert_eq!(outcome.payload(), expected.payload(), "{run:?} {context}");
            assert_eq!(count, run.len(self.seed), "{run:?} {context}");
        }
        let news = (count - known.records) + u64::from(ended && !known.ended);
        (known.records, known.ended) = (count, ended);
        before.is_none() || news > 0
    }
}
