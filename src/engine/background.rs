//! What must be done now and then: syncing, setting segments aside, checkpoints of the index,
//! giving space back. Three threads do it by default, so that a long checkpoint never holds up a
//! sync, nor a compaction a checkpoint; without threads each call that changes the store does what
//! is due before it returns. In all cases the work is made of [`Step`]s, which a [`Scheduler`] can
//! run in any order: no step may rely on another one having run before.
//!
//! [`Scheduler`]: crate::engine::setup::environment::Scheduler

use std::sync::Arc;
use std::thread::JoinHandle;

use crate::engine::Engine;
use crate::engine::setup::due::{Helper, Wanted, Worker};
use crate::engine::setup::environment::{RunStep, Step};
use crate::engine::setup::options::Rate;
use crate::error::{Error, IoAction, Result};
use crate::format::map::superblock::FLAG_CLEAN;

/// The background threads; they are stopped and joined when this is dropped.
#[derive(Debug)]
pub(crate) struct Threads {
    engine: Arc<Engine>,
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Starts them.
    pub(crate) fn start(engine: &Arc<Engine>) -> Result<Self> {
        let mut threads = Self { engine: Arc::clone(engine), handles: Vec::new() };
        for (number, worker) in engine.log.due.workers.iter().enumerate() {
            let engine = Arc::clone(engine);
            let thread = std::thread::Builder::new().name(worker.name.to_owned());
            let run = move || engine.log.due.workers.get(number).map(|one| engine.work_on(one));
            let spawned = thread.spawn(move || run().unwrap_or_default());
            let handle = spawned.map_err(|source| Error::io(IoAction::Thread, source))?;
            threads.handles.push(handle);
        }
        Ok(threads)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if self.engine.log.disk.is_inherited() {
            // They are threads of the parent, and would never end here.
            core::mem::forget(core::mem::take(&mut self.handles));
            return;
        }
        self.engine.log.due.stop();
        for handle in self.handles.drain(..) {
            let _ = handle.join();
        }
    }
}

impl Engine {
    /// What one of the threads does until the store is closed.
    fn work_on(&self, worker: &Worker) {
        let options = &self.log.setup.options;
        let (mut deadline, rate) = (None, options.compaction.rate);
        if worker.does.has(Wanted::CHECKPOINT) {
            // An index that the file holds is opened at once.
            let _ = self.run_step(Step::Checkpoint, rate);
        }
        while let Some(work) = self.log.due.await_work(worker, options.sync_interval, &mut deadline)
        {
            self.do_work(work, rate);
        }
    }

    fn do_work(&self, work: Wanted, rate: Rate) {
        if work.has(Wanted::RESERVE) {
            let _ = self.run_step(Step::Reserve, rate);
        }
        if work.has(Wanted::SYNC) {
            let _ = self.run_step(Step::Sync, rate);
        }
        if work.has(Wanted::CHECKPOINT) && self.checkpoints.is_due() {
            let _ = self.run_step(Step::Checkpoint, rate);
        }
        if work.has(Wanted::SPACE_WORK) {
            let freed = self.run_step(Step::Reclaim, rate);
            let freed = freed.and_then(|()| self.run_step(Step::GiveBack, rate));
            // What compaction can do does not depend on it.
            let compacted = if work.has(Wanted::COMPACT) {
                self.run_step(Step::Compact, rate)
            } else if work.has(Wanted::PACK) {
                self.run_step(Step::Compress, rate)
            } else {
                Ok(())
            };
            let failure = freed.and(compacted).err();
            self.log.due.note_failure(failure.map(|error| error.to_string()));
        }
    }

    /// Does one step of the work. Poison tells those who wait for a sync, and the next call, of a
    /// failure; everything else is tried again when it is next wanted.
    fn run_step(&self, step: Step, rate: Rate) -> Result<()> {
        let automatic = self.log.setup.options.compaction.automatic;
        match step {
            Step::Reserve => self.log.reserve_ahead().and(self.log.space.keep_reserve()),
            Step::Sync => {
                self.log.due.begin_sync();
                // The lock orders this thread and each append: one that was placed before is
                // covered by this sync, one that comes later finds the flag down and wakes this
                // thread. Else each could miss the other, and the append waited for the next one.
                drop(self.log.state.lock());
                self.log.sync_all()
            }
            Step::Checkpoint => self.checkpoints.checkpoint(),
            Step::Reclaim => self.reclaimer.reclaim(),
            Step::GiveBack => self.log.space.give_back_freed(),
            Step::Compact if automatic => self.compactor.compact_for_space(rate).map(drop),
            Step::Compress if automatic => self.compactor.compress_cold(rate),
            Step::Compact | Step::Compress => Ok(()),
        }
    }

    /// Makes everything durable, marks the file as closed in order, and releases it, also after a
    /// failure. Closing again answers the same.
    pub(crate) fn close(&self) -> Result<()> {
        if self.log.disk.is_inherited() {
            return Err(Error::Closed);
        }
        self.log.due.stop();
        let mut closing = self.closing.lock();
        if let Some(known) = &*closing {
            return known.clone();
        }
        let closed = self.close_in_order();
        let released = self.release();
        let closed = closed.and(released);
        *closing = Some(closed.clone());
        closed
    }

    fn close_in_order(&self) -> Result<()> {
        let Self { log, checkpoints, .. } = self;
        let space = &log.space;
        log.state.lock().closed = true;
        if space.allocator.lock().superblock.flags & FLAG_CLEAN != 0 {
            return Ok(());
        }
        log.disk.check()?;
        checkpoints.cover_seals()?;
        space.release_reserve();
        space.give_back_at_close()?;
        // A failure costs some space and nothing else.
        let _ = log.trim_unused();
        checkpoints.close_index();
        log.disk.sync()?;
        let (end, next) = {
            let state = log.state.lock();
            (state.end_of_log(), (state.next_segment, state.next_run_no, state.next_lsn))
        };
        let mut allocator = space.allocator.lock();
        allocator.write_superblock(|block| {
            block.durable = end;
            block.flags = FLAG_CLEAN;
            (block.next_segment, block.next_run_no, block.next_lsn) = next;
        })?;
        // No change of the manifest follows it.
        log.disk.close();
        Ok(())
    }

    /// Releases the file and its lock, whatever refers to the store still.
    fn release(&self) -> Result<()> {
        let log = &self.log;
        log.disk.close();
        log.state.lock().tail.close();
        // Those who wait for a sync are told that there is none.
        log.commit.fail();
        log.disk.release()
    }
}

impl RunStep for Engine {
    fn run_step(&self, step: Step) -> bool {
        if self.log.state.lock().closed {
            return false;
        }
        let _ = Self::run_step(self, step, Rate::Unlimited);
        true
    }
}

impl Helper for Engine {
    fn help(&self, work: Wanted) {
        self.do_work(work, Rate::Unlimited);
    }

    fn catch_up(&self) {
        let _ = self.log.sync_all();
        let _ = self.checkpoints.checkpoint();
    }
}
