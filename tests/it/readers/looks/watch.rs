//! Readers of one life of a writer.

use std::sync::Arc;

use runlog::storage::MemoryStorage;
use runlog::{Error, Reader, ReaderOptions, RunQuery, RunStatus, Seq, Trace};
use runlog_sim::{CrashImages, SimDisk, SplitMix64, Survivors};

use crate::support::campaign::{Counts, caught};
use crate::support::cuts::{Epoch, check_whole};
use crate::support::fault::some_survivors;
use crate::support::machine::Machine;
use crate::support::model::{Change, Model, SPACE};
use crate::support::scene::Scene;

/// Readers at a time.
const READERS: usize = 5;
/// One look of so many brings a reader up to date, so that some fall far behind.
const REFRESHED: [u64; READERS] = [2, 2, 2, 8, 32];
/// And one of so many replaces it.
const REPLACED: [u64; READERS] = [4, 4, 8, 16, 64];
/// One look of this many compares everything.
const WHOLE: u64 = 24;
/// How far the writer goes during a look, at most: rarely far, so that a life has many looks.
const FAR: [usize; 8] = [3, 3, 3, 12, 12, 40, 40, 500];

/// A reader, and what it must show at least.
struct Watcher {
    reader: Reader,
    durable_only: bool,
    least: usize,
    /// A trace that was begun.
    held: Option<Held>,
}

/// A trace that is read in pieces.
struct Held {
    trace: Trace,
    run: usize,
    /// It is of a moment between these.
    least: usize,
    most: usize,
    /// It begins with the record of this number.
    from: usize,
    seqs: Vec<u64>,
    backward: bool,
}

struct Watch<'a> {
    /// Whether most looks are at the last records of the first run, while segments move.
    hunts: bool,
    model: &'a Model,
    machine: &'a Machine,
    scene: Arc<Scene>,
    random: SplitMix64,
    counts: &'a mut Counts,
}

/// Looks at each operation of an epoch.
pub(super) fn watch(
    epoch: &Epoch,
    random: SplitMix64,
    hunts: bool,
    counts: &mut Counts,
) -> Result<(), String> {
    let recording = Arc::new(epoch.recording.clone());
    let mut random = random;
    let scene = Scene::new(Arc::clone(&recording), epoch.first, random.next_u64());
    let (model, machine, last) = (&epoch.model, &epoch.machine, recording.ops.len());
    let mut images = CrashImages::new(&epoch.recording);
    let mut watch = Watch { hunts, model, machine, scene, random, counts };
    let mut watchers: Vec<Watcher> = Vec::new();
    loop {
        let at = watch.scene.at().0;
        caught(|| watch.look(&mut watchers, &mut images))
            .map_err(|error| format!("at {at} of {last}, now {:?}: {error}", watch.scene.at()))?;
        if watch.scene.at().0 >= last {
            break;
        }
        watch.scene.play_to(watch.scene.at().0 + 1);
    }
    let met = watch.scene.met();
    watch.counts.add("met", met);
    Ok(())
}

impl Watch<'_> {
    /// What is acknowledged by now, and what was begun.
    fn bounds(&self) -> (usize, usize) {
        let (at, torn) = self.scene.at();
        self.model.after_kill(at, torn)
    }

    fn begun(&self) -> usize {
        self.bounds().1
    }

    fn open(&mut self, durable_only: bool) -> Result<Option<Watcher>, String> {
        let kept = self.bounds().0;
        let options = ReaderOptions::new()
            .durable_only(durable_only)
            .list_bytes([0, 400, 64 << 20][self.random.index(3)])
            .shared_bytes([0, 1 << 20][self.random.index(2)])
            .environment(self.machine.environment());
        let scene: Arc<Scene> = Arc::clone(&self.scene);
        match options.open_storage(scene) {
            Ok(reader) => {
                self.counts.one("opened");
                self.check_report(&reader)?;
                let least = if durable_only { 0 } else { kept };
                Ok(Some(Watcher { reader, durable_only, least, held: None }))
            }
            Err(Error::Overtaken { .. }) => {
                self.counts.one("overtaken");
                Ok(None)
            }
            Err(error) => Err(format!("open: {error}")),
        }
    }

    /// A writer that works damages nothing, however far it went while the reader read. Only half of
    /// an operation that stands still looks like damage.
    fn check_report(&self, reader: &Reader) -> Result<(), String> {
        let report = reader.recovery_report();
        let is_whole = report.damaged.is_empty();
        if is_whole || self.scene.at().1 { Ok(()) } else { Err(format!("damage: {report}")) }
    }

    fn look(
        &mut self,
        watchers: &mut Vec<Watcher>,
        images: &mut CrashImages<'_>,
    ) -> Result<(), String> {
        self.counts.one("looks");
        let at = self.scene.at().0;
        let moves = self.hunts || self.random.coin();
        let pace = if moves { [1, 2, 6, 30][self.random.index(4)] } else { 0 };
        let far = if self.hunts { FAR[FAR.len() - 1] } else { FAR[self.random.index(FAR.len())] };
        self.scene.set_pace(pace, at + self.random.index(far));
        if self.random.below(3) == 0 {
            self.scene.tear();
            self.counts.add("torn", u64::from(self.scene.at().1));
        }
        let mut place = self.random.index(READERS);
        if place >= watchers.len() || self.random.below(REPLACED[place]) == 0 {
            let durable_only = self.random.below(4) == 0;
            let Some(watcher) = self.open(durable_only)? else { return Ok(()) };
            match place < watchers.len() {
                true => watchers[place] = watcher,
                false => {
                    watchers.push(watcher);
                    place = watchers.len() - 1;
                }
            }
        }
        let watcher = &mut watchers[place];
        if self.random.below(REFRESHED[place]) == 0 && !self.refresh(watcher)? {
            return Ok(());
        }
        if self.random.below(WHOLE) == 0 {
            self.compare_whole(watcher, images)?;
        }
        match self.ask(watcher) {
            Err(error) => {
                let Watcher { least, durable_only, .. } = watcher;
                let events = self.model.describe(*least);
                Err(format!("{error} (durable only: {durable_only}){events}"))
            }
            Ok(()) => Ok(()),
        }
    }

    fn refresh(&mut self, watcher: &mut Watcher) -> Result<bool, String> {
        let kept = self.bounds().0;
        match watcher.reader.refresh() {
            Ok(_) => {
                self.counts.one("refreshed");
                self.check_report(&watcher.reader)?;
                if !watcher.durable_only {
                    watcher.least = watcher.least.max(kept);
                }
                Ok(true)
            }
            Err(Error::Overtaken { .. }) => {
                self.counts.one("overtaken");
                Ok(false)
            }
            Err(error) => Err(format!("refresh: {error}")),
        }
    }

    /// Everything at once, while the writer waits.
    fn compare_whole(
        &mut self,
        watcher: &mut Watcher,
        images: &mut CrashImages<'_>,
    ) -> Result<(), String> {
        self.scene.set_pace(0, 0);
        if !self.refresh(watcher)? {
            return Err("overtaken by a writer that waits".to_owned());
        }
        self.counts.one("whole");
        let fail = |error| format!("everything, durable only {}: {error}", watcher.durable_only);
        let found = self.model.check(&watcher.reader, watcher.least, self.begun()).map_err(fail)?;
        watcher.least = watcher.least.max(found.prefix);
        let verified = watcher.reader.verify().map_err(|error| format!("verify: {error}"))?;
        let torn = self.scene.at().1;
        if let Some(problem) = verified.problems.first().filter(|_| !torn) {
            return Err(format!("verify: {problem}"));
        }
        let _ = watcher.reader.stats().map_err(|error| format!("stats: {error}"))?;
        if !watcher.durable_only || torn {
            return Ok(());
        }
        // No power cut takes any of that.
        images.seek(self.scene.at().0);
        let ways = [Survivors::Nothing, some_survivors(&mut self.random)];
        for survivors in ways {
            self.counts.one("cuts");
            let image = images.image(survivors, self.random.next_u64());
            let machine = Machine { background: None, ..self.machine.clone() };
            let log = machine
                .options()
                .open_storage(Arc::new(SimDisk::untracked(image)))
                .map_err(|error| format!("after a cut: {error}"))?;
            let most = self.model.events.len();
            let left = self.model.check(&log, found.prefix, most);
            left.map_err(|error| format!("shown as durable, and {survivors:?} took it: {error}"))?;
            check_whole(&log).map_err(|error| format!("after {survivors:?}: {error}"))?;
        }
        Ok(())
    }

    /// A copy that is made while the writer goes on tells of no damage, and is the store of one
    /// moment.
    fn ask_copy(&mut self, watcher: &mut Watcher) -> Result<(), String> {
        let (copy, kept) = (Arc::new(MemoryStorage::new()), self.bounds().0);
        match watcher.reader.backup_to_storage(copy.clone()) {
            Ok(report) if report.damaged.is_empty() || self.scene.at().1 => {}
            Ok(report) => return Err(format!("a copy: {report:?}")),
            Err(Error::Overtaken { .. }) => {
                self.counts.one("overtaken");
                return Ok(());
            }
            Err(error) => return Err(format!("a copy: {error}")),
        }
        self.counts.one("copies");
        let least = if watcher.durable_only { 0 } else { kept };
        let options = ReaderOptions::new().environment(self.machine.environment());
        let copied = options.open_storage(copy).map_err(|error| format!("of a copy: {error}"))?;
        self.check_report(&copied)?;
        let found = self.model.check(&copied, watcher.least.max(least), self.begun());
        found.map_err(|error| format!("a copy: {error}"))?;
        Ok(())
    }

    fn ask(&mut self, watcher: &mut Watcher) -> Result<(), String> {
        if self.random.below(200) == 0 {
            return self.ask_copy(watcher);
        }
        match self.random.below(if self.hunts { 40 } else { 17 }) {
            17.. => self.ask_last(watcher),
            16 => self.ask_receipts(watcher),
            0..=5 => self.ask_trace(watcher),
            6..=7 => self.ask_list(watcher, false),
            8 => self.ask_list(watcher, true),
            9..=10 => self.ask_document(watcher),
            11 => self.ask_run(watcher),
            _ => self.ask_held(watcher),
        }
    }

    /// Of which moment an answer was; no later one is of a moment before.
    fn settle(
        &mut self,
        watcher: &mut Watcher,
        found: Option<usize>,
        what: impl FnOnce() -> String,
    ) -> Result<(), String> {
        let (least, begun) = (watcher.least, self.begun());
        let found = found.ok_or_else(|| format!("{} in {least}..={begun}", what()))?;
        watcher.least = found;
        Ok(())
    }

    fn some_run(&mut self) -> Option<usize> {
        let begun = self.begun();
        // One that was begun: the model knows those of the future too.
        let runs = self.model.runs.iter();
        let count = runs.take_while(|run| run.events.first().is_some_and(|at| *at < begun)).count();
        if count == 0 {
            return None;
        }
        let newest = self.random.below(3) == 0;
        let from = if newest { count.saturating_sub(6) } else { 0 };
        Some(from + self.random.index(count - from))
    }

    fn name(&self, run: usize) -> (&str, &str) {
        let run = &self.model.runs[run];
        (&run.agent, &run.run)
    }

    fn is_gone<T>(&mut self, answer: Result<T, Error>) -> Result<Option<T>, String> {
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(Error::RunNotFound { .. } | Error::Evicted { .. }) => {
                self.counts.one("gone");
                Ok(None)
            }
            Err(error) => Err(error.to_string()),
        }
    }

    fn ask_trace(&mut self, watcher: &mut Watcher) -> Result<(), String> {
        let Some(run) = self.some_run() else { return Ok(()) };
        let least = watcher.least;
        let trace = watcher.reader.trace(self.name(run));
        let Some(trace) = self.is_gone(trace).map_err(|error| format!("trace {run}: {error}"))?
        else {
            let found =
                self.model.moment(least..=self.begun(), |now, _| now.records(run).is_none());
            return self.settle(watcher, found, || format!("run {run} is missing"));
        };
        let (most, backward) = (self.begun(), self.random.below(4) == 0);
        let held = Held { trace, run, least, most, from: 0, seqs: Vec::new(), backward };
        if self.random.below(3) == 0 {
            watcher.held = Some(held);
            return Ok(());
        }
        self.read_on(watcher, held, usize::MAX)
    }

    /// The last records of the first run alone.
    fn ask_last(&mut self, watcher: &mut Watcher) -> Result<(), String> {
        let Some(summary) = self.is_gone(watcher.reader.run(self.name(0)))? else { return Ok(()) };
        let from = (summary.records as usize).saturating_sub(self.random.index(4));
        let least = watcher.least;
        let trace =
            watcher.reader.trace(self.name(0)).and_then(|trace| trace.range(Seq(from as u64)..));
        let Some(trace) = self.is_gone(trace)? else { return Ok(()) };
        let (most, seqs) = (self.begun(), Vec::new());
        let held = Held { trace, run: 0, least, most, from, seqs, backward: self.random.coin() };
        self.read_on(watcher, held, usize::MAX)
    }

    fn ask_held(&mut self, watcher: &mut Watcher) -> Result<(), String> {
        match watcher.held.take() {
            None => self.ask_trace(watcher),
            Some(held) => {
                let most = if self.random.coin() { usize::MAX } else { self.random.index(6) };
                self.read_on(watcher, held, most)
            }
        }
    }

    /// Reads some records of a trace.
    fn read_on(
        &mut self,
        watcher: &mut Watcher,
        mut held: Held,
        most: usize,
    ) -> Result<(), String> {
        let run = &self.model.runs[held.run];
        for _ in 0..most {
            let next = if held.backward { held.trace.next_back() } else { held.trace.next() };
            let Some(item) = next else { return self.check_count(watcher, &held) };
            let record = match item {
                Ok(record) => record,
                Err(Error::Evicted { .. }) => {
                    let begun = self.begun();
                    let gone = self
                        .model
                        .moment(held.least..=begun, |now, _| now.records(held.run).is_none());
                    self.counts.one("ended");
                    if held.trace.next().is_some() {
                        return Err("a record behind the end".to_owned());
                    }
                    return gone.map(drop).ok_or(format!("{} was not deleted", run.run));
                }
                Err(error) => return Err(format!("{} after {:?}: {error}", run.run, held.seqs)),
            };
            let seq = record.seq().0;
            let expected = run.records.get(seq as usize);
            let expected = expected.ok_or_else(|| format!("{} has no {seq}", run.run))?;
            if !expected.is(&record, seq as usize) {
                return Err(format!("{} {seq} is another one: {record:?}", run.run));
            }
            let step = held.seqs.last().map(|last| match held.backward {
                true => *last == seq + 1,
                false => *last + 1 == seq,
            });
            let first = held.from as u64;
            if step == Some(false) || step.is_none() && !held.backward && seq != first {
                return Err(format!("{} goes from {:?} to {seq}", run.run, held.seqs));
            }
            held.seqs.push(seq);
        }
        watcher.held = Some(held);
        Ok(())
    }

    fn check_count(&mut self, watcher: &mut Watcher, held: &Held) -> Result<(), String> {
        let count = held.from + held.seqs.len();
        if held.backward && held.seqs.last().is_some_and(|last| *last != held.from as u64) {
            return Err(format!("backwards it ends at {:?}", held.seqs));
        }
        let is_so = |had| had == count || had < count && held.seqs.is_empty();
        let found = self
            .model
            .moment(held.least..=held.most, |now, _| now.records(held.run).is_some_and(is_so));
        let (run, least, most) = (&self.model.runs[held.run].run, held.least, held.most);
        let found = found.ok_or(format!("{run} never had {count} in {least}..={most}"))?;
        watcher.least = watcher.least.max(found);
        Ok(())
    }

    fn ask_run(&mut self, watcher: &mut Watcher) -> Result<(), String> {
        let Some(run) = self.some_run() else { return Ok(()) };
        let least = watcher.least;
        let summary = watcher.reader.run(self.name(run));
        let summary = self.is_gone(summary).map_err(|error| format!("run {run}: {error}"))?;
        let records = summary.as_ref().map(|found| found.records as usize);
        let found = self.model.moment(least..=self.begun(), |now, _| now.records(run) == records);
        self.settle(watcher, found, || format!("run {run} is of no moment: {summary:?}"))?;
        // The last records alone.
        if let Some(summary) = summary
            && summary.records > 0
        {
            let trace = watcher.reader.trace(self.name(run));
            let Some(trace) = self.is_gone(trace)? else { return Ok(()) };
            let ranged = trace.range(Seq(summary.records - 1)..);
            let Some(mut ranged) = self.is_gone(ranged)? else { return Ok(()) };
            match ranged.next() {
                Some(Ok(record)) if record.seq().0 == summary.records - 1 => {}
                Some(Err(Error::Evicted { .. })) => {}
                other => return Err(format!("the last of {summary:?} is {other:?}")),
            }
        }
        Ok(())
    }

    fn ask_list(&mut self, watcher: &mut Watcher, running: bool) -> Result<(), String> {
        let mut query = RunQuery::new().limit(100_000);
        if running {
            query = query.status(RunStatus::InProgress);
        }
        let page = watcher.reader.list_runs(&query).map_err(|error| format!("list: {error}"))?;
        let range = watcher.least..=self.begun();
        watcher.least = self.model.moment_of_list(range, &page.runs, running)?;
        Ok(())
    }

    /// Each deletion of this life has its receipt, however often that moves, where the writer drops
    /// none.
    fn ask_receipts(&mut self, watcher: &Watcher) -> Result<(), String> {
        if self.machine.receipts < 10_000 {
            return Ok(());
        }
        let receipts = watcher.reader.receipts(usize::MAX);
        let receipts = receipts.map_err(|error| format!("receipts: {error}"))?;
        let (least, begun) = (watcher.least, self.begun());
        for run in &self.model.runs {
            let events = &self.model.events;
            let is_deletion = |at: &&usize| matches!(events[**at].change, Change::Delete { .. });
            let deleted = run.events.iter().find(is_deletion);
            let is_there = receipts.iter().any(|receipt| receipt.run.as_str() == run.run);
            let may_be_there = deleted.is_some_and(|at| *at < begun);
            let must_be_there = deleted.is_some_and(|at| *at < least && events[*at].begin > 0);
            if is_there && !may_be_there || must_be_there && !is_there {
                return Err(format!("{}: {is_there} in {least}..={begun}: {receipts:?}", run.run));
            }
        }
        Ok(())
    }

    fn ask_document(&mut self, watcher: &mut Watcher) -> Result<(), String> {
        let key = format!("key {}", self.random.index(6));
        let found = watcher.reader.docs().get(SPACE, &key);
        let value = found.map_err(|error| format!("{key}: {error}"))?;
        let value = value.as_ref().map(|found| found.payload());
        let range = watcher.least..=self.begun();
        let found = self.model.moment(range, |now, _| now.document(&key) == value);
        let is_there = value.is_some();
        self.settle(watcher, found, || format!("{key} ({is_there}) is of no moment"))
    }
}
