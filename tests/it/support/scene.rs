//! What another process sees of a file while its writer is at work: a recording that is played into
//! a page cache, also in the middle of a read, and also half an operation.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use runlog::storage::Storage;
use runlog_sim::{Op, Recording, SplitMix64};

const SECTOR: usize = 512;
const WORD: usize = 8;

/// The file, from outside of the process that writes it. Refuses all changes, and panics at them:
/// a reader makes none.
#[derive(Debug)]
pub(crate) struct Scene {
    ops: Arc<Recording>,
    state: Mutex<Now>,
}

#[derive(Debug)]
struct Now {
    /// What the page cache has.
    image: Vec<u8>,
    /// The operations that are done, and whether a part of the next one is.
    at: usize,
    torn: bool,
    /// After how many reads the next operation is whole, of which other parts than the first are
    /// visible: that state does not last.
    lasts: Option<u64>,
    random: SplitMix64,
    /// One read of this many sees the writer go on in front of it, or in its middle; 0 for none.
    pace: u64,
    /// How far the writer goes at most.
    limit: usize,
    /// How many reads saw the writer go on.
    met: u64,
}

impl Scene {
    /// The file as it was after the first `at` operations.
    pub(crate) fn new(ops: Arc<Recording>, at: usize, seed: u64) -> Arc<Self> {
        let mut image = ops.initial.clone();
        ops.ops[..at].iter().for_each(|op| op.apply(&mut image));
        let (random, limit) = (SplitMix64::new(seed), ops.ops.len());
        let now = Now { image, at, torn: false, lasts: None, random, pace: 0, limit, met: 0 };
        Arc::new(Self { ops, state: Mutex::new(now) })
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.state.lock().unwrap()
    }

    /// How many operations are done, and whether a part of the next one is.
    pub(crate) fn at(&self) -> (usize, bool) {
        let now = self.now();
        (now.at, now.torn)
    }

    /// The writer goes on to this operation.
    pub(crate) fn play_to(&self, at: usize) {
        let mut now = self.now();
        while now.at < at {
            now.step(&self.ops.ops);
        }
    }

    /// The first part of the next operation is done, or any part of a store, and the writer waits.
    pub(crate) fn tear(&self) {
        self.now().tear(&self.ops.ops, true);
    }

    /// How often the writer goes on while others read, and how far at most.
    pub(crate) fn set_pace(&self, pace: u64, limit: usize) {
        let mut now = self.now();
        if now.lasts.is_some() {
            now.step(&self.ops.ops);
        }
        (now.pace, now.limit) = (pace, limit.min(self.ops.ops.len()));
    }

    /// How many reads saw the writer go on.
    pub(crate) fn met(&self) -> u64 {
        self.now().met
    }
}

impl Now {
    fn step(&mut self, ops: &[Op]) {
        ops[self.at].apply(&mut self.image);
        (self.at, self.torn, self.lasts) = (self.at + 1, false, None);
    }

    fn tear(&mut self, ops: &[Op], waits: bool) {
        let Some(op) = ops.get(self.at) else { return };
        let (offset, data, unit) = match op {
            Op::Write { offset, data } => (*offset, data, SECTOR),
            Op::Store { offset, data } => (*offset, data, WORD),
            Op::Punch { offset, end } => {
                let end = (*end).min(self.image.len());
                if *offset < end {
                    let until = *offset + self.random.index(end - *offset);
                    self.image[*offset..until].fill(0);
                    self.torn = true;
                }
                return;
            }
            _ => return,
        };
        self.torn = true;
        let is_write = unit == SECTOR;
        let way = if waits && is_write { 0 } else { self.random.below(4) };
        self.lasts = (is_write && way > 0).then(|| self.random.below(6));
        let mut put = |from: usize, to: usize| {
            let data = data[from..to].to_vec();
            Op::Write { offset: offset + from, data: data.into() }.apply(&mut self.image);
        };
        // A prefix, a suffix, or any of the sectors of a write and of the words of a store.
        let place = self.random.index(data.len() + 1);
        match way {
            0 => put(0, place),
            1 => put(place, data.len()),
            way => {
                let mut from = 0;
                while from < data.len() {
                    let to = ((offset + from + unit) / unit * unit - offset).min(data.len());
                    if self.random.below(4) < way - 1 {
                        put(from, to);
                    }
                    from = to;
                }
            }
        }
    }

    /// Where in a read the writer may go on. Half of the time, if that is there: behind what it
    /// writes next, so that the read has what follows, and not that.
    fn middle(&mut self, ops: &[Op], offset: usize, len: usize) -> usize {
        let anywhere = self.random.index(len + 1);
        let next = ops[self.at..].iter().take(4).find_map(|op| match op {
            Op::Write { offset, data } | Op::Store { offset, data } => Some(offset + data.len()),
            _ => None,
        });
        let here = next.and_then(|end| end.checked_sub(offset)).filter(|middle| *middle < len);
        here.filter(|_| self.random.coin()).unwrap_or(anywhere)
    }

    /// The writer may go on.
    fn pass(&mut self, ops: &[Op]) {
        match &mut self.lasts {
            Some(0) => self.step(ops),
            Some(lasts) => *lasts -= 1,
            None => {}
        }
        if self.pace == 0 || self.random.below(self.pace) != 0 {
            return;
        }
        self.met += 1;
        let far = match self.random.below(12) {
            0 => 400,
            1..=3 => 40,
            _ => 4,
        };
        let to = self.at + self.random.index(far);
        while self.at < to.min(self.limit) {
            self.step(ops);
        }
        if self.at < self.limit && self.random.coin() {
            self.tear(ops, false);
        }
    }
}

impl Storage for Scene {
    fn len(&self) -> io::Result<u64> {
        let mut now = self.now();
        now.pass(&self.ops.ops);
        Ok(now.image.len() as u64)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut now = self.now();
        now.pass(&self.ops.ops);
        let offset = offset as usize;
        let middle =
            if now.pace == 0 { buf.len() } else { now.middle(&self.ops.ops, offset, buf.len()) };
        for (from, to) in [(0, middle), (middle, buf.len())] {
            if from == to {
                continue;
            }
            let found = now.image.get(offset + from..offset + to);
            buf[from..to].copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
            if to < buf.len() {
                now.pass(&self.ops.ops);
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, _: &[u8]) -> io::Result<()> {
        panic!("a reader writes at {offset}");
    }

    fn sync(&self) -> io::Result<()> {
        panic!("a reader syncs");
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        panic!("a reader sets the length to {len}");
    }

    fn allocate(&self, offset: u64, _: u64) -> io::Result<()> {
        panic!("a reader allocates at {offset}");
    }

    fn punch(&self, offset: u64, _: u64) -> io::Result<()> {
        panic!("a reader punches at {offset}");
    }
}
