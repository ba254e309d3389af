//! Compares the records of the store with the acknowledgements, record by record.

use std::collections::BTreeMap;

use runlog::{RunLog, RunStatus};

use super::ack::{Ack, Level, What};
use super::workload::{RunNumber, Workload};

/// Everything that was acknowledged of one run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Acknowledged {
    pub(crate) started: bool,
    pub(crate) ended: bool,
    /// The number of records, from 0 on.
    pub(crate) records: u64,
    /// How many of them at Disk level.
    pub(crate) disk: u64,
}

/// The acknowledgements of one writing process.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    pub(crate) runs: BTreeMap<RunNumber, Acknowledged>,
    /// The payload bytes of the records.
    pub(crate) bytes: u64,
}

impl Acks {
    /// Adds one. One thread writes each run, so its acknowledgements arrive in order.
    pub(crate) fn add(&mut self, ack: Ack, workload: &Workload) {
        let run = self.runs.entry(ack.run).or_default();
        match ack.what {
            What::Start => run.started = true,
            What::End => run.ended = true,
            What::Record(seq) => {
                assert_eq!(seq, run.records, "acknowledgements of a run arrive in order");
                run.records += 1;
                run.disk += u64::from(ack.level == Level::Disk);
                self.bytes += workload.size(ack.run, seq) as u64;
            }
        }
    }

    pub(crate) fn records(&self) -> u64 {
        self.runs.values().map(|run| run.records).sum()
    }

    pub(crate) fn disk(&self) -> u64 {
        self.runs.values().map(|run| run.disk).sum()
    }

    pub(crate) fn ended(&self) -> u64 {
        self.runs.values().filter(|run| run.ended).count() as u64
    }
}

/// The result of the comparison.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Acknowledged records that were compared and are there byte for byte.
    pub(crate) intact: u64,
    /// Acknowledged and missing.
    pub(crate) missing: u64,
    /// There, but with other bytes than were written, or unreadable.
    pub(crate) changed: u64,
    /// Acknowledged starts and ends that are missing.
    pub(crate) lost_boundaries: u64,
    /// There and whole, though the kill came before their acknowledgement.
    pub(crate) in_flight: u64,
    /// The first few problems, in words.
    pub(crate) complaints: Vec<String>,
}

impl Verdict {
    pub(crate) fn is_good(&self) -> bool {
        self.missing == 0 && self.changed == 0 && self.lost_boundaries == 0
    }

    fn complain(&mut self, complaint: String) {
        const KEPT: usize = 10;
        if self.complaints.len() < KEPT {
            self.complaints.push(complaint);
        }
    }
}

/// Reads every run that was acknowledged and compares it.
pub(crate) fn check(
    log: &RunLog,
    acks: &Acks,
    workload: &Workload,
) -> Result<Verdict, runlog::Error> {
    let mut verdict = Verdict::default();
    let mut expected = Vec::new();
    for (run, acknowledged) in &acks.runs {
        check_run(log, *run, acknowledged, workload, &mut expected, &mut verdict)?;
    }
    Ok(verdict)
}

fn check_run(
    log: &RunLog,
    run: RunNumber,
    acknowledged: &Acknowledged,
    workload: &Workload,
    expected: &mut Vec<u8>,
    verdict: &mut Verdict,
) -> Result<(), runlog::Error> {
    let id = Workload::run_id(run);
    let key = (workload.agent(run), id.as_str());
    let summary = match log.run(key) {
        Ok(summary) => summary,
        Err(error) if error.is_not_found() => {
            verdict.missing += acknowledged.records;
            verdict.lost_boundaries += u64::from(acknowledged.started);
            verdict.complain(format!("{id} is not there"));
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    if acknowledged.ended && summary.status != RunStatus::Completed {
        verdict.lost_boundaries += 1;
        verdict.complain(format!("{id} was ended and is {}", summary.status));
    }
    let mut next = 0;
    for record in log.trace(key)? {
        let record = match record {
            Ok(record) => record,
            Err(error) if error.is_corruption() => {
                verdict.changed += 1;
                verdict.complain(error.to_string());
                next += 1;
                continue;
            }
            Err(error) => return Err(error),
        };
        workload.payload(run, next, expected);
        let is_same = record.seq().0 == next
            && record.payload() == expected
            && record.kind() == Some(workload.kind(run, next));
        if !is_same {
            verdict.changed += 1;
            verdict.complain(format!("record {next} of {id} is not what was written"));
        } else if next < acknowledged.records {
            verdict.intact += 1;
        } else {
            verdict.in_flight += 1;
        }
        next += 1;
    }
    if next < acknowledged.records {
        verdict.missing += acknowledged.records - next;
        verdict.complain(format!("{id} ends after {next} of {} records", acknowledged.records));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use runlog::{ContentType, NewRecord, Options};

    use super::*;

    /// A store with the first records of a run, of which the last is not what it should be where
    /// `spoilt` is set.
    fn verdict(written: u64, spoilt: bool, acknowledged: u64) -> Verdict {
        let (workload, run) = (Workload::new(1), RunNumber(5));
        let folder = tempfile::tempdir().expect("a folder");
        let log = Options::new().create(folder.path().join("s")).expect("a store");
        let metadata = Workload::metadata(run);
        let (agent, id) = (workload.agent(run), Workload::run_id(run));
        let writer = log.start_run(agent, &id, metadata.as_bytes()).expect("a run");
        let mut payload = Vec::new();
        for seq in 0..written {
            workload.payload(run, seq, &mut payload);
            if spoilt && seq + 1 == written {
                payload[40] ^= 1;
            }
            let record = NewRecord::new(&payload)
                .kind(workload.kind(run, seq))
                .content_type(ContentType::JSON);
            let _ = writer.append_record(&record).expect("an append");
        }
        let mut acks = Acks::default();
        for seq in 0..acknowledged {
            let what = What::Record(seq);
            acks.add(Ack { run, what, level: Level::Process }, &workload);
        }
        check(&log, &acks, &workload).expect("a readable store")
    }

    #[test]
    fn what_is_there_is_good() {
        let verdict = verdict(5, false, 3);
        assert!(verdict.is_good());
        assert_eq!((verdict.intact, verdict.in_flight), (3, 2));
    }

    #[test]
    fn a_missing_record_is_noticed() {
        let verdict = verdict(3, false, 5);
        assert!(!verdict.is_good());
        assert_eq!((verdict.intact, verdict.missing), (3, 2));
    }

    #[test]
    fn a_changed_record_is_noticed() {
        let verdict = verdict(3, true, 3);
        assert!(!verdict.is_good());
        assert_eq!((verdict.intact, verdict.changed), (2, 1));
    }

    #[test]
    fn a_missing_run_is_noticed() {
        let (workload, run) = (Workload::new(1), RunNumber(5));
        let folder = tempfile::tempdir().expect("a folder");
        let log = Options::new().create(folder.path().join("s")).expect("a store");
        let mut acks = Acks::default();
        for what in [What::Start, What::Record(0), What::Record(1)] {
            acks.add(Ack { run, what, level: Level::Disk }, &workload);
        }
        let verdict = check(&log, &acks, &workload).expect("a readable store");
        assert!(!verdict.is_good());
        assert_eq!((verdict.missing, verdict.lost_boundaries), (2, 1));
    }
}
