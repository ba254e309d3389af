//! The machine that a simulated store runs on, and how the store is opened there.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use runlog::env::Environment;
use runlog::{
    Activity, Compaction, Compression, Observer, Options, Phase, SpaceReturn, TailWriter, Timestamp,
};
use runlog_sim::{SimClock, SimDisk, SimEntropy};

use super::background::Background;

/// The extents of all simulated stores: the smallest, so that much happens in a short time.
pub(crate) const EXTENT: u64 = 64 << 10;

/// Time and randomness of a simulated machine, and how it opens stores.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    pub(crate) clock: SimClock,
    pub(crate) entropy: SimEntropy,
    /// How frames reach the disk.
    pub(crate) tail_writer: TailWriter,
    /// Whether runs that have ended are compressed.
    pub(crate) compression: Compression,
    /// What happens to free extents.
    pub(crate) space: SpaceReturn,
    /// How many receipts are kept: without them, evictions go as soon as they are not needed.
    pub(crate) receipts: u64,
    /// How long a trace keeps the segments of its run.
    pub(crate) pin_age: Option<Duration>,
    /// Whether there is an index.
    pub(crate) index: bool,
    /// The background work, if the calls do not do it.
    pub(crate) background: Option<Background>,
    /// Whether it compacts by itself.
    pub(crate) automatic: bool,
    pub(crate) activities: Arc<Activities>,
}

/// How often the engine did each activity.
#[derive(Debug, Default)]
pub(crate) struct Activities {
    pub(crate) rolls: AtomicUsize,
    pub(crate) checkpoints: AtomicUsize,
    pub(crate) rebuilds: AtomicUsize,
    pub(crate) compactions: AtomicUsize,
    /// The bytes that background compactions wrote.
    pub(crate) compacted: AtomicU64,
    /// A call is asking for compaction.
    pub(super) asked: AtomicBool,
    /// The disk of the store, and what was written to it when a compaction began.
    pub(super) disk: Mutex<Option<(SimDisk, u64)>>,
    /// The ranges of operations in which the index was built: a crash may drop it.
    pub(super) building: Mutex<Vec<Range<usize>>>,
}

impl Activities {
    fn compacts(&self, phase: Phase<'_>) {
        let mut disk = self.disk.lock().unwrap();
        let Some((disk, before)) = disk.as_mut() else { return };
        let now = disk.counts().written_bytes;
        match phase {
            Phase::Begin => *before = now,
            _ if self.asked.load(Ordering::Relaxed) => {}
            _ => drop(self.compacted.fetch_add(now - *before, Ordering::Relaxed)),
        }
    }

    fn builds(&self, phase: Phase<'_>) {
        let disk = self.disk.lock().unwrap();
        let Some((disk, _)) = disk.as_ref() else { return };
        let (now, mut building) = (disk.op_count(), self.building.lock().unwrap());
        match (phase, building.last_mut()) {
            (Phase::Begin, _) => building.push(now..usize::MAX),
            (_, Some(last)) => last.end = now + 1,
            _ => {}
        }
    }
}

impl Observer for Activities {
    fn observe(&self, activity: Activity, phase: Phase<'_>) {
        let count = match activity {
            Activity::Roll => &self.rolls,
            Activity::IndexCheckpoint => &self.checkpoints,
            Activity::IndexRebuild => &self.rebuilds,
            Activity::Compaction => &self.compactions,
            _ => return,
        };
        if activity == Activity::Compaction {
            self.compacts(phase);
        }
        if activity == Activity::IndexRebuild {
            self.builds(phase);
        }
        count.fetch_add(usize::from(phase.is_begin()), Ordering::Relaxed);
    }
}

impl Machine {
    pub(crate) fn new(seed: u64) -> Self {
        let clock = SimClock::new(Timestamp(1_000_000_000));
        // Both ways to write the file, alternating.
        let tail_writer = if seed % 2 == 0 { TailWriter::Pwrite } else { TailWriter::Mapped };
        let compression = match seed / 3 % 2 {
            0 => Compression::None,
            _ => Compression::Zstd { level: 1 },
        };
        let spaces = [SpaceReturn::Shrink, SpaceReturn::Punch, SpaceReturn::Keep];
        let space = spaces[usize::try_from(seed >> 8).unwrap_or(0) % 3];
        let receipts = [0, 4, 10_000][usize::try_from(seed >> 1).unwrap_or(0) % 3];
        let (entropy, activities) = (SimEntropy::new(seed), Arc::default());
        Self {
            clock,
            entropy,
            tail_writer,
            compression,
            space,
            receipts,
            pin_age: None,
            index: true,
            background: None,
            automatic: true,
            activities,
        }
    }

    pub(crate) fn environment(&self) -> Environment {
        Environment::system()
            .clock(Arc::new(self.clock.clone()))
            .entropy(Arc::new(self.entropy.clone()))
    }

    pub(crate) fn options(&self) -> Options {
        let options = match &self.background {
            None => Options::new().background(false),
            Some(background) => Options::new().scheduler(Arc::new(background.clone())),
        };
        let compaction = Compaction::new()
            .space_return(self.space)
            .automatic(self.automatic)
            .max_pin_age(self.pin_age);
        options
            .extent_size(EXTENT)
            .tail_writer(self.tail_writer)
            .compression(self.compression)
            .compaction(compaction)
            .index(self.index)
            .receipts(self.receipts, Duration::from_secs(1 << 40))
            .sync_interval(None)
            .index_cache(1 << 20)
            .observer(self.activities.clone())
            .environment(self.environment())
    }
}
