//! Writing what was found into the new store, through the calls that every program uses.

use core::mem;
use std::collections::HashMap;

use crate::engine::api::run_log::RunLog;
use crate::engine::api::run_writer::RunWriter;
use crate::engine::salvage::locate::Located;
use crate::engine::salvage::read::ReadRecord;
use crate::engine::salvage::report::{Missing, SalvageReport};
use crate::engine::salvage::scan::{Run, Scan};
use crate::engine::values::new_record::NewRecord;
use crate::engine::values::{Allow, Metadata, Outcome};
use crate::error::Result;
use crate::format::FrameHeader;
use crate::format::frames::eviction::Eviction;
use crate::format::frames::frame::FLAG_LATE;
use crate::format::frames::ids::decode_ids;
use crate::types::{AgentId, ContentType, Durability, RunId, RunNo, RunRef, RunStatus, Seq};

/// The length of an EVICT frame with receipts, roughly.
const RECEIPTS_LEN: usize = 16 << 10;
/// The agent, or namespace, of what has lost its name.
const NAMELESS: &str = "salvaged";

type Name = (AgentId, RunId);

/// A new store that is being filled.
pub(crate) struct NewStore<'s> {
    pub(crate) log: &'s RunLog,
    pub(crate) located: &'s Located,
    pub(crate) scan: &'s Scan,
    pub(crate) report: &'s mut SalvageReport,
}

/// The run that is being written.
struct Writing<'s> {
    log: &'s RunLog,
    name: &'s Name,
    outcome: Option<Outcome>,
    /// `None` if no caller started the run.
    writer: Option<RunWriter>,
    ended: bool,
}

impl NewStore<'_> {
    /// Writes all runs and documents in the order of their numbers. Of several runs with one name
    /// the last counts, because a name is free again only after its run was deleted.
    pub(crate) fn write_runs(&mut self) -> Result<()> {
        let mut by_name: HashMap<(bool, Name), Vec<RunNo>> = HashMap::new();
        for (&run_no, run) in self.scan.runs.iter().filter(|(_, run)| run.is_there) {
            let name = match &run.name {
                Some(name) => name.clone(),
                None if self.scan.evicted.contains(&run_no) => {
                    self.report.deleted += 1;
                    continue;
                }
                None => self.new_name(run_no, run.is_document)?,
            };
            by_name.entry((run.is_document, name)).or_default().push(run_no);
        }
        let mut last: Vec<_> = by_name.into_iter().collect();
        last.sort_unstable_by_key(|(_, numbers)| numbers.last().copied());
        for ((is_document, name), numbers) in last {
            let evicted = |run_no: &RunNo| self.scan.evicted.contains(run_no);
            let alive = numbers.iter().rev().take_while(|run_no| !evicted(run_no));
            let alive: Vec<&Run> = alive.filter_map(|no| self.scan.runs.get(no)).collect();
            self.report.deleted += (numbers.len() - alive.len()) as u64;
            match alive.split_first() {
                Some(_) if is_document => self.write_document(&name, &alive)?,
                Some((run, earlier)) => {
                    self.report.deleted += earlier.len() as u64;
                    self.write_run(&name, run)?;
                }
                None => {}
            }
        }
        Ok(())
    }

    /// The name of a run or document that has lost its own.
    fn new_name(&mut self, number: RunNo, is_document: bool) -> Result<Name> {
        let kind = if is_document { "document" } else { "run" };
        let run = RunId::new(&format!("{kind}-{number}"))?;
        let name = (AgentId::new(NAMELESS)?, run);
        let (agent, run) = name.clone();
        self.report.missing.push(Missing::Name { agent, run, number });
        Ok(name)
    }

    /// Writes the latest version of a document that can be read.
    fn write_document(&mut self, (namespace, key): &Name, versions: &[&Run]) -> Result<()> {
        for version in versions {
            let mut value = None;
            for at in version.records.iter().rev() {
                let mut keep = |record| {
                    value = Some(record);
                    Ok(())
                };
                self.located.each_record(self.scan, version, at, Seq(0), &mut keep)?;
                if let Some(value) = &value {
                    let record = new_record(value);
                    self.log.docs().put(namespace.as_str(), key.as_str(), &record)?;
                    self.report.documents += 1;
                    self.report.bytes += value.payload().len() as u64;
                    return Ok(());
                }
            }
            let (namespace, key) = (namespace.clone(), key.clone());
            self.report.missing.push(Missing::Document { namespace, key });
        }
        Ok(())
    }

    fn write_run(&mut self, name: &Name, run: &Run) -> Result<()> {
        let (log, located, scan) = (self.log, self.located, self.scan);
        let outcome = self.outcome_of(name, run)?;
        let writer = if run.start.is_some() || !run.is_created {
            Some(self.begin(name, run)?)
        } else {
            None
        };
        let mut writing = Writing { log, name, writer, outcome, ended: false };
        // Several frames may have the same record, since a compaction copies records.
        let (report, mut next) = (&mut *self.report, Seq(0));
        for at in &run.records {
            let from = next;
            located.each_record(scan, run, at, from, &mut |record| {
                let seq = record.header.seq;
                if seq < next {
                    return Ok(());
                }
                miss_records(report, name, next, seq);
                next = Seq(seq.0.saturating_add(1));
                report.records += 1;
                report.bytes += record.payload().len() as u64;
                writing.append(&record)
            })?;
        }
        miss_records(report, name, next, run.next_seq);
        writing.end()?;
        if next == Seq(0) && writing.writer.is_none() && run.end.is_none() {
            // It has no frame that could create it.
            let _ = self.begin(name, run)?;
        }
        self.report.runs += 1;
        self.hold(name, run)
    }

    /// Starts a run with its metadata.
    fn begin(&mut self, (agent, run): &Name, found: &Run) -> Result<RunWriter> {
        let payload = found.start.map(|frame| self.located.payload(&frame)).transpose()?.flatten();
        let body = payload.as_deref().and_then(|payload| Some(decode_ids(payload).ok()?.2));
        if body.is_none() && (found.start.is_some() || !found.is_created) {
            let (agent, run) = (agent.clone(), run.clone());
            self.report.missing.push(Missing::Metadata { agent, run });
        }
        let at = found.start.map(|frame| frame.at).or(found.first_at);
        let code = found.start.filter(|_| body.is_some()).map(|frame| frame.code);
        let about = Metadata::new(body.unwrap_or_default())
            .content_type(code.map_or(ContentType::BYTES, ContentType::from_code))
            .at(at.unwrap_or_else(|| self.log.now()))
            .durability(Durability::Process);
        self.log.start_run(agent.as_str(), run.as_str(), about)
    }

    fn outcome_of(&mut self, (agent, run): &Name, found: &Run) -> Result<Option<Outcome>> {
        let Some(frame) = &found.end else { return Ok(None) };
        let status = RunStatus::from_code(frame.code).filter(|status| status.is_ended());
        let outcome = Outcome::new(status.unwrap_or(RunStatus::Interrupted));
        let outcome = outcome.durability(Durability::Process).at(frame.at);
        let payload = self.located.payload(frame)?;
        if let Some((content, bytes)) = payload.as_deref().and_then(<[u8]>::split_first) {
            let content = ContentType::from_code(*content);
            return Ok(Some(outcome.bytes(bytes).content_type(content)));
        }
        let (agent, run) = (agent.clone(), run.clone());
        self.report.missing.push(Missing::Outcome { agent, run });
        Ok(Some(outcome))
    }

    /// Holds the run if it was held.
    fn hold(&mut self, (agent, run): &Name, found: &Run) -> Result<()> {
        let Some(frame) = found.hold.filter(|frame| frame.code != 0) else { return Ok(()) };
        let payload = self.located.payload(&frame)?;
        let reason = payload.and_then(|payload| String::from_utf8(payload).ok());
        let reason = reason.unwrap_or_else(|| {
            let (agent, run) = (agent.clone(), run.clone());
            self.report.missing.push(Missing::HoldReason { agent, run });
            "the reason was lost in a damaged store".to_owned()
        });
        let level = Durability::Process;
        let held = self.log.log().hold(RunRef::from((agent, run)), Some(&reason), level);
        self.log.log().told(held, level).map(drop)
    }

    /// Writes the receipts of deleted runs, with numbers that no run of the new store has.
    pub(crate) fn write_receipts(&mut self) -> Result<()> {
        let (mut items, mut len) = (Vec::new(), 0);
        for (&run_no, receipt) in &self.scan.receipts {
            let item = Eviction { run_no, receipt: Some(receipt.clone()) };
            len += item.encoded_len();
            items.push(item);
            if len >= RECEIPTS_LEN {
                self.place_receipts(mem::take(&mut items))?;
                len = 0;
            }
        }
        self.place_receipts(items)
    }

    fn place_receipts(&mut self, mut items: Vec<Eviction>) -> Result<()> {
        if items.is_empty() {
            return Ok(());
        }
        let log = self.log.log();
        let mut place = || {
            let now = log.setup.now();
            let mut state = log.reader.open()?;
            for item in &mut items {
                item.run_no = state.take_run_no();
            }
            let end = log.place_evictions(&mut state, &items, now)?;
            log.finish(state, end, Durability::Process)
        };
        let placed = place();
        log.told(placed, Durability::Process)?;
        self.report.receipts += items.len() as u64;
        Ok(())
    }
}

/// Reports the records from `from` up to `to`, which is not included.
fn miss_records(report: &mut SalvageReport, (agent, run): &Name, from: Seq, to: Seq) {
    if let Some(count) = to.0.checked_sub(from.0).filter(|count| *count > 0) {
        let (agent, run) = (agent.clone(), run.clone());
        report.missing.push(Missing::Records { agent, run, first: from, count });
    }
}

impl Writing<'_> {
    /// Appends a record, and ends the run before its first late one.
    fn append(&mut self, read: &ReadRecord) -> Result<()> {
        if read.header.flags & FLAG_LATE != 0 {
            self.end()?;
        }
        let record = new_record(read);
        if let Some(writer) = self.writer.as_ref().filter(|_| !self.ended) {
            return writer.append_record(&record).map(drop);
        }
        let (agent, run) = self.name;
        self.log.append_to(agent.as_str(), run.as_str(), &record, Allow::everything()).map(drop)
    }

    /// Ends the run, if it has ended, unless that was done.
    fn end(&mut self) -> Result<()> {
        let Some(outcome) = self.outcome.as_ref().filter(|_| !self.ended) else { return Ok(()) };
        let (agent, run) = self.name;
        self.ended = true;
        self.log.end_run(agent.as_str(), run.as_str(), outcome, Allow::everything()).map(drop)
    }
}

fn new_record(read: &ReadRecord) -> NewRecord<'_> {
    let FrameHeader { content, at, .. } = read.header;
    NewRecord::new(read.payload()).kind(read.kind()).content_type(content).at(at)
}
