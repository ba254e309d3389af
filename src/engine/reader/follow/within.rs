//! Records that a follower cannot read from the frame alone: they lie in a block or in chunks.

use std::sync::Arc;

use crate::engine::read::record::Record;
use crate::engine::read::trace::Trace;
use crate::engine::reader::Replica;
use crate::engine::reader::follow::{TRACES, Tailing};
use crate::error::{Corruption, Damage, Error, Place as DamagePlace, Result};
use crate::types::{RunNo, Seq};

impl Tailing {
    /// A record that lies in a block or in chunks, by its run.
    pub(super) fn record_within(&mut self, run_no: RunNo, seq: Seq) -> Result<Record> {
        // One that is kept ends where the run ended when it was opened.
        let kept = self.traces.remove(&run_no).filter(|(_, next)| *next == seq);
        let mut read = None;
        let is_it = |found: &Result<Record>| found.as_ref().is_ok_and(|record| record.seq() == seq);
        if let Some((mut trace, _)) = kept {
            read = trace.next().map(|record| (record, trace)).filter(|(found, _)| is_it(found));
        }
        let (record, trace) = match read {
            Some(read) => read,
            None => {
                let mut trace = self.trace_from(run_no, seq)?;
                let missing = || Corruption::new(DamagePlace::Index, Damage::Missing);
                (trace.next().unwrap_or_else(|| Err(Error::Corrupt(missing()))), trace)
            }
        };
        if is_it(&record) {
            if self.traces.len() >= TRACES {
                self.traces.clear();
            }
            self.traces.insert(run_no, (trace, Seq(seq.0.saturating_add(1))));
        }
        record
    }

    /// The records of a run as of now, from one on.
    fn trace_from(&self, run_no: RunNo, seq: Seq) -> Result<Trace> {
        let view = self.replica.number();
        let opened = self.replica.ask(|answers| answers.open_number(run_no))?;
        let opened = Arc::new(opened.ok_or(Error::Evicted { run: None })?);
        let reader = Arc::<Replica>::clone(&self.replica);
        Trace::new(opened, run_no, None).moving(reader, view).range(seq..)
    }
}
