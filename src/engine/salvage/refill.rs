//! Writing what was found into the new store, through the calls that every program uses.

use core::mem;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};

use crate::engine::api::run_log::RunLog;
use crate::engine::api::run_writer::RunWriter;
use crate::engine::salvage::census::{Census, Contents, Known};
use crate::engine::salvage::gather::{FrameAt, Frames, ReadRecord, Rereader, gather};
use crate::engine::salvage::locate::Located;
use crate::engine::salvage::report::{Doubt, Missing, SalvageReport};
use crate::engine::state::scan::payload_of;
use crate::engine::values::new_record::NewRecord;
use crate::engine::values::{Allow, Metadata, Outcome};
use crate::error::{Error, Result};
use crate::format::FrameKind;
use crate::format::frames::eviction::{Eviction, decode_evictions};
use crate::format::frames::frame::decode_ids;
use crate::types::{
    AgentId, ContentType, Durability, Lsn, MAX_ID_LEN, RunId, RunNo, RunRef, RunStatus, Seq,
    Timestamp,
};

/// So many records are noted at a time, in about 50 bytes each; the records of one run always.
const RECORDS_AT_ONCE: u64 = 1 << 20;
/// An EVICT frame of so many bytes is written.
const EVICTIONS_LEN: usize = 16 << 10;
/// The agent, or namespace, of what has lost its name.
const NAMELESS: &str = "salvaged";

type Name = (AgentId, RunId);

/// A new store that is being filled.
pub(crate) struct Refill<'s> {
    log: &'s RunLog,
    located: &'s Located,
    census: &'s Census,
    rereader: Rereader<'s>,
    report: &'s mut SalvageReport,
    /// The last run with each name, and the last version of each document; and made-up names.
    names: HashMap<(bool, Name), RunNo>,
}

/// The run that is being written.
struct Writing {
    name: Name,
    /// Its START has this order; `None` if no caller started it.
    start: Option<(Lsn, Timestamp)>,
    metadata: Option<(ContentType, Vec<u8>)>,
    outcome: Option<Outcome>,
    writer: Option<RunWriter>,
    exists: bool,
    ended: bool,
}

impl<'s> Refill<'s> {
    pub(crate) fn new(
        log: &'s RunLog,
        located: &'s Located,
        census: &'s Census,
        report: &'s mut SalvageReport,
    ) -> Self {
        let rereader = Rereader::new(located);
        let mut refill = Self { log, located, census, rereader, report, names: HashMap::new() };
        for (run_no, known) in refill.living() {
            if let Some(name) = &known.name {
                refill.names.insert((known.is_document, name.clone()), run_no);
            }
        }
        refill
    }

    /// The runs that count, by number.
    fn living(&self) -> impl Iterator<Item = (RunNo, &'s Known)> + use<'s> {
        let census = self.census;
        census.runs.iter().filter_map(|(&run_no, known)| {
            (known.counts() && !census.evicted.contains(&run_no)).then_some((run_no, known))
        })
    }

    /// Writes all runs and documents.
    pub(crate) fn write_runs(&mut self) -> Result<()> {
        let (mut wanted, mut records) = (BTreeSet::new(), 0);
        for (run_no, known) in self.living() {
            if records > 0 && records + known.frames > RECORDS_AT_ONCE {
                self.write_some(&mem::take(&mut wanted))?;
                records = 0;
            }
            wanted.insert(run_no);
            records += known.frames;
        }
        self.write_some(&wanted)
    }

    fn write_some(&mut self, wanted: &BTreeSet<RunNo>) -> Result<()> {
        let mut all = gather(self.located, self.census, wanted)?;
        for run_no in wanted {
            let frames = all.remove(run_no).unwrap_or_default();
            let Some(known) = self.census.runs.get(run_no) else { continue };
            if known.is_document {
                self.write_document(*run_no, known, &frames)?;
            } else {
                self.write_run(*run_no, known, &frames)?;
            }
        }
        Ok(())
    }

    /// The name of a run in the new store; of a document none, if a later version has its name.
    fn name_for(&mut self, run_no: RunNo, known: &Known) -> Result<Option<Name>> {
        let is_document = known.is_document;
        if let Some(name) = &known.name {
            let last = self.names.get(&(is_document, name.clone()));
            if last == Some(&run_no) {
                return Ok(Some(name.clone()));
            }
            if is_document {
                return Ok(None);
            }
            let (agent, run) = name.clone();
            let to = self.free_id(&agent, &format!("{run}~{run_no}"), run_no, false)?;
            self.report.doubts.push(Doubt::Renamed { agent: agent.clone(), run, to: to.clone() });
            return Ok(Some((agent, to)));
        }
        let agent = AgentId::new(NAMELESS)?;
        let kind = if is_document { "document" } else { "run" };
        let run = self.free_id(&agent, &format!("{kind}-{run_no}"), run_no, is_document)?;
        let (named, number) = ((agent.clone(), run.clone()), run_no);
        self.report.missing.push(Missing::Name { agent, run, number });
        Ok(Some(named))
    }

    /// An id like this one that no run of the agent has.
    fn free_id(
        &mut self,
        agent: &AgentId,
        wish: &str,
        run_no: RunNo,
        is_document: bool,
    ) -> Result<RunId> {
        let mut number = 0_u64;
        loop {
            let end = if number == 0 { String::new() } else { format!("~{number}") };
            // The end of a long id has what makes it different.
            let most = MAX_ID_LEN - end.len();
            let from = wish.len().saturating_sub(most);
            let from = (from..=wish.len()).find(|at| wish.is_char_boundary(*at)).unwrap_or(0);
            let run = RunId::new(&format!("{}{end}", wish.get(from..).unwrap_or_default()))?;
            let name = (is_document, (agent.clone(), run.clone()));
            if let Entry::Vacant(free) = self.names.entry(name) {
                free.insert(run_no);
                return Ok(run);
            }
            number += 1;
        }
    }

    fn write_document(&mut self, run_no: RunNo, known: &Known, frames: &Frames) -> Result<()> {
        let read = self.rereader.record(frames, &frames.records)?;
        let Some((namespace, key)) = self.name_for(run_no, known)? else { return Ok(()) };
        let Some(read) = read else {
            self.report.missing.push(Missing::Document { namespace, key });
            return Ok(());
        };
        self.log.docs().put(namespace.as_str(), key.as_str(), &new_record(&read))?;
        self.report.documents += 1;
        self.report.bytes += read.payload().len() as u64;
        Ok(())
    }

    fn write_run(&mut self, run_no: RunNo, known: &Known, frames: &Frames) -> Result<()> {
        let Some(name) = self.name_for(run_no, known)? else { return Ok(()) };
        let (start, metadata) = self.start_of(&name, known, frames)?;
        let outcome = self.outcome_of(&name, known, frames)?;
        let (writer, exists, ended) = (None, false, false);
        let mut writing = Writing { name, start, metadata, outcome, writer, exists, ended };
        let mut next = Seq(0);
        for copies in frames.records.chunk_by(|one, other| one.seq == other.seq) {
            let Some(first) = copies.first() else { continue };
            self.miss_records(&writing.name, next, first.seq);
            next = Seq(first.seq.0.saturating_add(1));
            let Some(read) = self.rereader.record(frames, copies)? else {
                self.miss_records(&writing.name, first.seq, next);
                continue;
            };
            let lsn = copies.iter().map(|copy| copy.lsn).max().unwrap_or_default();
            writing.append(self.log, &read, lsn)?;
            self.report.records += 1;
            self.report.bytes += read.payload().len() as u64;
        }
        self.miss_records(&writing.name, next, known.next_seq);
        writing.finish(self.log)?;
        self.report.runs += 1;
        self.hold(&writing.name, known, frames)
    }

    /// Notes the records from `from` up to `to`, which is not included.
    fn miss_records(&mut self, (agent, run): &Name, from: Seq, to: Seq) {
        let more = to.0.saturating_sub(from.0);
        if more == 0 {
            return;
        }
        if let Some(Missing::Records { agent: known, run: of, first, count }) =
            self.report.missing.last_mut()
            && (&*known, &*of) == (agent, run)
            && first.0 + *count == from.0
        {
            *count += more;
            return;
        }
        let (agent, run) = (agent.clone(), run.clone());
        self.report.missing.push(Missing::Records { agent, run, first: from, count: more });
    }

    /// When the run was started, and its metadata; `None` if no caller started it.
    #[allow(clippy::type_complexity, reason = "the two belong to different fields")]
    fn start_of(
        &mut self,
        (agent, run): &Name,
        known: &Known,
        frames: &Frames,
    ) -> Result<(Option<(Lsn, Timestamp)>, Option<(ContentType, Vec<u8>)>)> {
        let start = frames.starts.first();
        let is_implicit = frames.created.or(known.listed.created).is_some();
        if start.is_none() && known.listed.started.is_none() && is_implicit {
            return Ok((None, None));
        }
        let payload = match start {
            Some(frame) => self.rereader.payload(frame)?,
            None => None,
        };
        let max = self.log.log().extent_size.max_metadata() as usize;
        let metadata = payload.and_then(|payload| {
            let (.., metadata) = decode_ids(&payload).ok()?;
            (metadata.len() <= max).then(|| metadata.to_vec())
        });
        if metadata.is_none() {
            let (agent, run) = (agent.clone(), run.clone());
            self.report.missing.push(Missing::Metadata { agent, run });
        }
        let content = start.map_or(ContentType::BYTES, |frame| frame.content);
        let first = || self.first_time(frames);
        let at = start.map(|frame| frame.at).or(known.listed.started).or(known.listed.created);
        let at = match at {
            Some(at) => at,
            None => first()?,
        };
        let lsn = start.map_or(Lsn(0), |frame| frame.lsn);
        Ok((Some((lsn, at)), metadata.map(|bytes| (content, bytes))))
    }

    /// The time of the first record that can be read, or of the end.
    fn first_time(&self, frames: &Frames) -> Result<Timestamp> {
        let mut rereader = Rereader::new(self.located);
        for copies in frames.records.chunk_by(|one, other| one.seq == other.seq) {
            if let Some(read) = rereader.record(frames, copies)? {
                return Ok(read.at);
            }
        }
        let end = frames.ends.last().map(|frame| frame.at);
        Ok(end.unwrap_or_else(|| self.log.now()))
    }

    fn outcome_of(
        &mut self,
        (agent, run): &Name,
        known: &Known,
        frames: &Frames,
    ) -> Result<Option<Outcome>> {
        let last = frames.ends.last();
        let listed = known.listed.end.filter(|end| last.is_none_or(|last| last.lsn < end.0));
        let (status, at, frame) = match (listed, last) {
            (Some((_, status, at)), _) => (status, at, None),
            (None, Some(frame)) => {
                let status = RunStatus::from_code(frame.content.code());
                (status.unwrap_or(RunStatus::Interrupted), frame.at, Some(frame))
            }
            (None, None) => return Ok(None),
        };
        let status = if status.is_ended() { status } else { RunStatus::Interrupted };
        let outcome = Outcome::new(status).durability(Durability::Process).at(at);
        let payload = match frame {
            Some(frame) => self.rereader.payload(frame)?,
            None => None,
        };
        let max = crate::format::MAX_OUTCOME as usize;
        let body = payload.as_deref().and_then(<[u8]>::split_first);
        if let Some((content, bytes)) = body.filter(|(_, bytes)| bytes.len() <= max) {
            let content = ContentType::from_code(*content);
            return Ok(Some(outcome.bytes(bytes).content_type(content)));
        }
        let (agent, run) = (agent.clone(), run.clone());
        self.report.missing.push(Missing::Outcome { agent, run });
        Ok(Some(outcome))
    }

    /// Holds the run if it was held.
    fn hold(&mut self, (agent, run): &Name, known: &Known, frames: &Frames) -> Result<()> {
        let last: Option<&FrameAt> = frames.holds.last();
        let listed = known.listed.hold.filter(|hold| last.is_none_or(|last| last.lsn < hold.0));
        let held = listed.map_or_else(|| last.is_some_and(|last| last.extra != 0), |hold| hold.1);
        if !held {
            return Ok(());
        }
        let payload = match last.filter(|_| listed.is_none()) {
            Some(frame) => self.rereader.payload(frame)?,
            None => None,
        };
        let reason = payload.and_then(|payload| String::from_utf8(payload).ok());
        let named = RunRef::from((agent, run));
        let level = Durability::Process;
        let put = |reason: &str| self.log.log().hold(named, Some(reason), level);
        let done = match &reason {
            Some(reason) => put(reason),
            None => Err(Error::InvalidArgument { what: "the reason is lost" }),
        };
        let done = match done {
            Err(Error::InvalidArgument { .. }) => {
                let (agent, run) = (agent.clone(), run.clone());
                self.report.missing.push(Missing::HoldReason { agent, run });
                put("the reason was lost in a damaged store")
            }
            done => done,
        };
        self.log.log().told(done, level).map(drop)
    }

    /// Writes the receipts of deleted runs.
    pub(crate) fn write_receipts(&mut self) -> Result<()> {
        let mut known: HashSet<RunNo> = HashSet::new();
        let (mut items, mut len) = (Vec::new(), 0);
        for at in &self.census.evictions_in {
            let Some(found) = self.located.segments.get(*at) else { continue };
            let mut floor = self.census.floor;
            let contents = Contents::read(self.located, found, &mut floor)?;
            let evicts = contents
                .frames
                .iter()
                .filter(|lexed| lexed.header.kind == FrameKind::Evict && lexed.payload.is_ok());
            for lexed in evicts {
                let payload = payload_of(&contents.bytes, &lexed.header);
                for eviction in decode_evictions(payload).unwrap_or_default() {
                    if eviction.receipt.is_some() && known.insert(eviction.run_no) {
                        len += eviction.encoded_len();
                        items.push(eviction);
                    }
                    if len >= EVICTIONS_LEN {
                        self.place_receipts(&mut items)?;
                        len = 0;
                    }
                }
            }
        }
        self.place_receipts(&mut items)
    }

    /// Writes receipts, of numbers that no run of the new store has.
    fn place_receipts(&mut self, items: &mut Vec<Eviction>) -> Result<()> {
        if items.is_empty() {
            return Ok(());
        }
        let log = self.log.log();
        let mut place = || {
            let now = log.setup.now();
            let mut state = log.reader.open()?;
            for item in items.iter_mut() {
                item.run_no = state.take_run_no();
            }
            let end = log.place_evictions(&mut state, items, now)?;
            log.finish(state, end, Durability::Process)
        };
        let placed = place();
        log.told(placed, Durability::Process)?;
        self.report.receipts += items.len() as u64;
        items.clear();
        Ok(())
    }
}

impl Writing {
    /// Appends a record, after the start and the end that were in front of it.
    fn append(&mut self, log: &RunLog, read: &ReadRecord, lsn: Lsn) -> Result<()> {
        if self.start.is_some_and(|(start, _)| start < lsn) {
            self.begin(log)?;
        }
        if read.is_late {
            self.end(log)?;
        }
        let record = new_record(read);
        match &self.writer {
            Some(writer) if !self.ended => drop(writer.append_record(&record)?),
            _ => {
                let (agent, run) = &self.name;
                let allow = Allow::everything();
                let _ = log.append_to(agent.as_str(), run.as_str(), &record, allow)?;
            }
        }
        self.exists = true;
        Ok(())
    }

    /// Starts the run, unless that was done.
    fn begin(&mut self, log: &RunLog) -> Result<()> {
        let Some((_, at)) = self.start.filter(|_| self.writer.is_none() && !self.ended) else {
            return Ok(());
        };
        let (content, bytes) = self.metadata.take().unwrap_or((ContentType::BYTES, Vec::new()));
        let metadata = Metadata::new(&bytes).content_type(content).at(at);
        let metadata = metadata.durability(Durability::Process);
        let (agent, run) = &self.name;
        self.writer = Some(log.start_run(agent.as_str(), run.as_str(), metadata)?);
        self.exists = true;
        Ok(())
    }

    /// Ends the run, if it has ended, unless that was done.
    fn end(&mut self, log: &RunLog) -> Result<()> {
        if let Some(outcome) = &self.outcome
            && !self.ended
        {
            let (agent, run) = &self.name;
            let allow = Allow::everything();
            let _ = log.end_run(agent.as_str(), run.as_str(), outcome, allow)?;
            (self.exists, self.ended) = (true, true);
        }
        Ok(())
    }

    /// Does what is left when all records are there.
    fn finish(&mut self, log: &RunLog) -> Result<()> {
        self.begin(log)?;
        self.end(log)?;
        if !self.exists {
            // Nothing of it but its name can be read.
            self.start = Some((Lsn(0), log.now()));
            self.begin(log)?;
        }
        Ok(())
    }
}

fn new_record(read: &ReadRecord) -> NewRecord<'_> {
    NewRecord::new(read.payload()).kind(read.kind()).content_type(read.content).at(read.at)
}
