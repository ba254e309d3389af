//! Writing to a store on a disk with places that cannot be read.

use std::sync::Arc;

use runlog::RunLog;
use runlog_sim::{SimDisk, SplitMix64, Survivors};

use super::answers::{Answers, Faults};
use super::story::{Caller, Event, Known, Settings};
use super::watched::{Copied, Watch};
use super::{Case, Tally};

/// How often the store is opened.
const SESSIONS: usize = 3;

/// A store from one opening to the next.
struct Session<'c> {
    case: &'c Case,
    disk: SimDisk,
    settings: Settings,
    caller: Caller,
    /// What it had at its opening, the calls since, and how many of them are durable.
    first: Known,
    events: Vec<Event>,
    durable: usize,
    copied: Copied,
}

impl Case {
    pub(super) fn writes(&self, tally: &mut Tally, seed: u64) {
        let caller = self.caller.clone_with(SplitMix64::new(seed), self.known.clone());
        let mut session = Session {
            case: self,
            disk: SimDisk::from_image(self.image.clone()),
            settings: self.settings.clone(),
            caller,
            first: Known::default(),
            events: Vec::new(),
            durable: 0,
            copied: Copied::default(),
        };
        for number in 0..SESSIONS {
            session.live(tally, number == 0);
        }
        let log = session.open().unwrap_or_else(|error| panic!("{self}: in the end: {error:?}"));
        session.check(&log, &self.healed(), "in the end");
    }
}

impl Session<'_> {
    fn open(&self) -> Result<RunLog, runlog::Error> {
        self.settings.options().open_storage(Arc::new(self.disk.clone()))
    }

    /// Opens the store, before or after its places can no longer be read, and uses it.
    fn live(&mut self, tally: &mut Tally, is_first: bool) {
        let case = self.case;
        let (healed, is_harmless) = (case.healed(), case.is_harmless && is_first);
        let mut is_late = self.caller.random.coin();
        if !is_late {
            case.fail(&self.disk);
        }
        let mut opened = self.open();
        if let Err(error) = &opened {
            assert!(!is_late && !is_harmless, "{case}: an opening: {error:?}");
            case.allow("an opening", error);
            tally.refused += 1;
            is_late = true;
            self.disk.clear_faults();
            opened = self.open();
        } else {
            tally.opened += 1;
        }
        let log = opened.unwrap_or_else(|error| panic!("{case}: after a refusal: {error:?}"));
        (self.first, self.durable) = (self.caller.known.clone(), 0);
        self.events.clear();
        let faults = if is_late { &healed } else { &case.faults };
        let watch = Watch::new(case, &self.disk, &self.settings, faults);
        let mut watch = watch.filter(|_| !faults.has_damage);
        if is_late {
            if self.caller.random.coin() {
                self.check(&log, &healed, "opened");
                self.look(&mut watch, &healed, tally);
            }
            case.fail(&self.disk);
        }
        let errors = self.check(&log, &case.faults, "opened with faults");
        assert!(!is_harmless || errors == 0, "{case}: {errors} errors of a writer");
        self.work(&log, &case.faults, tally);
        self.check(&log, &case.faults, "a writer that worked");
        self.look(&mut watch, &case.faults, tally);
        if self.caller.random.coin() {
            self.disk.clear_faults();
            self.check(&log, &healed, "a writer later");
            if let Some(watch) = &mut watch {
                watch.end(&self.caller.known, tally);
            }
            self.work(&log, &healed, tally);
            if self.caller.random.coin() {
                case.fail(&self.disk);
                self.look(&mut watch, &case.faults, tally);
            }
        }
        drop(watch);
        self.stop(log);
    }

    fn look(&mut self, watch: &mut Option<Watch<'_>>, faults: &Faults, tally: &mut Tally) {
        if let Some(watch) = watch {
            watch.look(&self.caller.known, faults, tally);
            if self.caller.random.coin() {
                watch.copy(&mut self.copied, &self.caller.known, faults);
            }
        }
    }

    /// Calls that write, on a disk with these faults.
    fn work(&mut self, log: &RunLog, faults: &Faults, tally: &mut Tally) {
        for _ in 0..self.caller.random.index(25) {
            let call = self.caller.step(log, &self.settings);
            tally.calls += 1;
            // Also one that failed may have deleted what it was to erase.
            self.copied.note(&self.caller.known);
            if let Err(error) = call.result {
                let case = self.case;
                tally.failed_calls += 1;
                assert!(faults.explain(&error), "{case}: {:?}: {error:?}", call.event);
                continue;
            }
            self.events.push(call.event);
            if call.is_durable {
                self.durable = self.events.len();
            }
        }
    }

    /// The answers, and what `verify` says. Returns how many are errors.
    fn check(&self, log: &RunLog, faults: &Faults, what: &str) -> usize {
        let case = self.case;
        let errors = case.check(what, log, &self.caller.known, faults);
        match log.verify() {
            Ok(report) => {
                let may_have = faults.has_damage || !faults.unread.is_empty();
                assert!(report.is_clean() || may_have, "{case}: {what}: {:?}", report.problems);
            }
            Err(error) => assert!(faults.explain(&error), "{case}: {what}: verify: {error:?}"),
        }
        errors
    }

    /// Closes the store, kills its process, or takes its power. The disk that is left reads all.
    fn stop(&mut self, log: RunLog) {
        let case = self.case;
        match self.caller.random.below(4) {
            0 | 1 => {
                if let Err(error) = log.close() {
                    case.allow("a close", &error);
                }
                self.disk.clear_faults();
            }
            2 if !case.faults.has_damage => {
                let ways = Survivors::ALL;
                let way = ways[self.caller.random.index(ways.len())];
                let image = self.disk.crash(way, self.caller.random.next_u64());
                drop(log);
                self.settings.boot += 1;
                self.after_power_loss(&image);
                self.disk = SimDisk::from_image(image);
            }
            _ => {
                let image = self.disk.image();
                drop(log);
                self.disk = SimDisk::from_image(image);
            }
        }
    }

    /// The store has what was durable, and a beginning of the rest.
    fn after_power_loss(&mut self, image: &[u8]) {
        let case = self.case;
        let disk = Arc::new(SimDisk::untracked(image.to_vec()));
        let log = self.settings.options().open_storage(disk);
        let log = log.unwrap_or_else(|error| panic!("{case}: after a power loss: {error:?}"));
        let answers = Answers::of(&log, self.caller.runs);
        let mut known = self.first.clone();
        known.half_gone.extend(&self.caller.known.half_gone);
        known.half_gone_docs.extend(&self.caller.known.half_gone_docs);
        let (mut wrong, mut found) = (Vec::new(), None);
        for number in 0..=self.events.len() {
            if number >= self.durable {
                match answers.check(&known, &Faults::default()) {
                    Ok(()) => found = Some(known.clone()),
                    Err(error) => wrong.push(error),
                }
            }
            self.events.get(number).into_iter().for_each(|event| known.apply(event));
        }
        let durable = self.durable;
        let none = || panic!("{case}: a power loss, {durable} durable: {wrong:?}");
        self.caller.known = found.unwrap_or_else(none);
    }
}
