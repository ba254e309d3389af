//! Reading a store beside its writer, or without one: a replica of the state that the writer has in
//! memory, built from the file alone and brought forward on request. Writes nothing, takes no lock,
//! maps nothing; FORMAT.md, section 24, says what it may conclude from what it sees.

mod advance;
pub(crate) mod backup;
mod copied;
pub(crate) mod events;
pub(crate) mod follow;
pub(crate) mod found;
pub(crate) mod only_reading;
mod target;
mod view;

use core::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::engine::read::Reader as Answers;
use crate::engine::reader::advance::Progress;
use crate::engine::reader::view::{Earlier, Seen, View, Wanted, build};
use crate::engine::setup::Setup;
use crate::engine::setup::health::Monitor;
use crate::engine::setup::locks::{Rank, Ranked};
use crate::engine::setup::options::Options;
use crate::engine::state::log_state::LogState;
use crate::engine::state::run_slice::Opened;
use crate::engine::state::scan::Names;
use crate::engine::state::segment::Segment;
use crate::engine::storage::FileStorage;
use crate::engine::storage::disk::Disk;
use crate::engine::values::report::RecoveryReport;
use crate::error::{Corruption, Error, Owner, Place, Result};
use crate::format::map::extents::Extents;
use crate::format::map::owner;
use crate::format::map::superblock::Superblock;
use crate::format::{OWNER_AT, PAGE_LEN};
use crate::types::{LogPosition, RunNo, Timestamp};

/// How often a question is asked again because the writer was faster.
const ATTEMPTS: usize = 16;

/// A store that this process only reads.
pub(crate) struct Replica {
    pub(crate) disk: Disk,
    /// Its file, and where that was found.
    file: Option<(Arc<FileStorage>, PathBuf)>,
    /// Answers what is asked, from the state as of the last refresh.
    pub(crate) answers: Answers,
    wanted: Wanted,
    current: Mutex<Current>,
}

/// What the replica knows of the file.
struct Current {
    /// Counts the views.
    number: u64,
    seen: Seen,
    extents: Extents,
    superblock: Superblock,
    report: Arc<RecoveryReport>,
    lost_end: Option<Corruption>,
    floor: LogPosition,
    /// The ids of the runs in the segment that takes frames, of its newer frames, or of all.
    names: Names,
    has_all_names: bool,
    /// Where bytes did not check, and at how many looks.
    stuck: (LogPosition, u64),
}

impl Current {
    fn of(view: View, number: u64) -> (LogState, Self) {
        let View { state, seen, extents, superblock, report, lost_end, floor, .. } = view;
        let current = Self {
            number,
            seen,
            extents,
            superblock,
            report: Arc::new(report),
            lost_end,
            floor,
            names: Names::new(),
            has_all_names: false,
            stuck: (LogPosition::default(), 0),
        };
        (state, current)
    }

    /// Whether to build a view because of bytes that do not check. At the first look they may be a
    /// frame that is being written. If they stay, the view says whether they are damage of a frame
    /// that counts; it is built more and more rarely.
    fn is_stuck(&mut self, at: LogPosition) -> bool {
        let looks = if self.stuck.0 == at { self.stuck.1 + 1 } else { 1 };
        self.stuck = (at, looks);
        looks > 1 && looks.is_power_of_two()
    }
}

impl Replica {
    /// Opens the store in `disk`.
    pub(crate) fn open(
        disk: Disk,
        options: Options,
        file: Option<(Arc<FileStorage>, PathBuf)>,
        (durable_only, list_bytes): (bool, usize),
    ) -> Result<Self> {
        let wanted = Wanted { durable_only, list_bytes };
        let view = build(&disk, wanted, &Earlier::default())?;
        let monitor = Arc::new(Monitor::new(&options));
        let (uuid, extent_size) = (view.uuid, view.extent_size);
        let setup = Arc::new(Setup { options, monitor, uuid, extent_size });
        let (state, current) = Current::of(view, 0);
        let answers = Answers { setup, state: Arc::new(Ranked::new(Rank::State, state)) };
        let current = Mutex::new(current);
        Ok(Self { disk, file, answers, wanted, current })
    }

    /// Brings the state up to what the file has now. Answers whether anything was new.
    pub(crate) fn refresh(&self) -> Result<bool> {
        self.check_path()?;
        let mut current = self.current.lock();
        let progress = self.advance(&mut current)?;
        // Behind the frames: zeros mean that nothing is there only if they were read before a look
        // at the manifest that still has the segment.
        if progress == Progress::Rebuild || current.seen.has_changed(&self.disk)? {
            return self.rebuild(&mut current).map(|()| true);
        }
        Ok(progress == Progress::Frames)
    }

    fn rebuild(&self, current: &mut Current) -> Result<()> {
        let (known, catalog) = {
            let state = self.answers.state.lock();
            let sealed = state.catalog.segments().iter().chain(&state.unapplied);
            (sealed.cloned().collect::<Vec<_>>(), Arc::clone(&state.catalog))
        };
        let segments = known.into_iter().map(|segment| (segment.extent(), segment)).collect();
        let earlier = Earlier { segments, catalog };
        let view = build(&self.disk, self.wanted, &earlier)?;
        if (view.uuid, view.extent_size)
            != (self.answers.setup.uuid, self.answers.setup.extent_size)
        {
            return Err(Error::Replaced {
                path: self.path().map(Path::to_owned).unwrap_or_default(),
            });
        }
        let (state, mut next) = Current::of(view, current.number + 1);
        next.stuck = current.stuck;
        *self.answers.state.lock() = state;
        *current = next;
        Ok(())
    }

    /// Refuses if the path names another file by now.
    fn check_path(&self) -> Result<()> {
        match &self.file {
            Some((file, path)) if !file.is_at(path)? => Err(Error::Replaced { path: path.clone() }),
            _ => Ok(()),
        }
    }

    /// Where its file was found.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|(_, path)| &**path)
    }

    /// The number of the view.
    pub(crate) fn number(&self) -> u64 {
        self.current.lock().number
    }

    /// The damage at which the log ends: later records of each run may be missing.
    pub(crate) fn lost_end(&self) -> Option<Corruption> {
        self.current.lock().lost_end.clone()
    }

    /// What recovery would find.
    pub(crate) fn report(&self) -> Arc<RecoveryReport> {
        Arc::clone(&self.current.lock().report)
    }

    /// The superblock that the view rests on, with numbers that no segment of it goes beyond.
    pub(crate) fn superblock(&self) -> Result<Superblock> {
        let mut block = self.current.lock().superblock;
        let state = self.answers.open()?;
        block.next_segment = block.next_segment.max(state.next_segment);
        block.next_run_no = block.next_run_no.max(state.next_run_no);
        block.next_lsn = block.next_lsn.max(state.next_lsn);
        Ok(block)
    }

    /// Who has the writer lock, as far as the system and the page of the owner tell.
    pub(crate) fn writer(&self) -> Result<Option<Owner>> {
        let Some(pid) = self.file.as_ref().and_then(|(file, _)| file.locked_by()) else {
            return Ok(None);
        };
        let page = self.disk.read_padded(OWNER_AT, PAGE_LEN)?;
        let owner =
            owner::decode(&page).unwrap_or(Owner { pid, host: String::new(), since: Timestamp(0) });
        Ok(Some(owner))
    }

    /// The identity of the store.
    pub(crate) fn uuid(&self) -> [u8; 16] {
        self.answers.setup.uuid
    }

    /// Another replica of the same store.
    pub(crate) fn again(&self) -> Result<Self> {
        let Wanted { durable_only, list_bytes, .. } = self.wanted;
        let options = self.answers.setup.options.clone();
        Self::open(self.disk.clone(), options, self.file.clone(), (durable_only, list_bytes))
    }

    /// Who owns which extent, and where the durable part of the log ends.
    pub(crate) fn extents(&self) -> (Extents, LogPosition) {
        let current = self.current.lock();
        (current.extents.clone(), current.floor)
    }

    /// Whether the writer has changed what a view of this number rests on. The view is brought up
    /// to date then, if no other thread did it.
    pub(crate) fn was_overtaken(&self, number: u64) -> Result<bool> {
        let mut current = self.current.lock();
        if current.number != number {
            return Ok(true);
        }
        let has_changed = current.seen.has_changed(&self.disk)?;
        if has_changed {
            self.rebuild(&mut current)?;
        }
        Ok(has_changed)
    }

    /// Whether a segment still counts, at the place where it was.
    pub(crate) fn holds(&self, segment: &Segment) -> Result<bool> {
        self.was_overtaken(self.number())?;
        let now = self.answers.state.lock().segment(segment.id());
        Ok(now.is_some_and(|now| (now.key(), now.extent()) == (segment.key(), segment.extent())))
    }

    /// Whether what did not check in the view of this number is damage. The bytes of a segment
    /// change only after it was retired: as long as its extent holds it, they are its own.
    pub(crate) fn is_damage(&self, found: &Corruption, view: u64) -> Result<bool> {
        let id = match found.place {
            Place::Frame(at) => Some(at.segment),
            Place::Directory { segment } => Some(segment),
            _ => None,
        };
        let segment = id.and_then(|id| self.answers.state.lock().segment(id));
        match segment {
            Some(segment) => self.holds(&segment),
            None => Ok(!self.was_overtaken(view)?),
        }
    }

    /// Asks, and asks again if the writer has moved what does not check.
    pub(crate) fn ask<T>(&self, question: impl Fn(&Answers) -> Result<T>) -> Result<T> {
        self.ask_leaving_out(|answers| Ok((question(answers)?, Vec::new())))
    }

    /// The same of an answer that leaves out what does not check, which it names.
    pub(crate) fn ask_leaving_out<T>(
        &self,
        question: impl Fn(&Answers) -> Result<(T, Vec<Corruption>)>,
    ) -> Result<T> {
        for _ in 0..ATTEMPTS {
            let view = self.number();
            let (answer, damaged) = match question(&self.answers) {
                Ok((answer, damaged)) => (Ok(answer), damaged),
                Err(Error::Corrupt(damage)) => (Err(Error::Corrupt(damage.clone())), vec![damage]),
                Err(error) => return Err(error),
            };
            let mut has_moved = false;
            for damage in &damaged {
                has_moved = has_moved || !self.is_damage(damage, view)?;
            }
            if !has_moved {
                return answer;
            }
        }
        Err(Error::Overtaken { attempts: ATTEMPTS as u64 })
    }
}

impl crate::engine::read::trace::Reopen for Replica {
    fn reopen(&self, run_no: RunNo) -> Result<(Arc<Opened>, u64)> {
        let view = self.number();
        let opened = self.ask(|answers| answers.open_number(run_no))?;
        let opened = opened.ok_or(Error::Evicted { run: None })?;
        Ok((Arc::new(opened), view))
    }

    fn is_damage(&self, found: &Corruption, view: u64) -> Result<bool> {
        self.is_damage(found, view)
    }
}

impl fmt::Debug for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replica").field("path", &self.path()).finish_non_exhaustive()
    }
}
