//! Stores with many runs, made once and kept open for all rows that read them.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use super::Context;
use crate::engine::{Engine, Kind, Level};
use crate::measure::folder;
use crate::workload::runs::Runs;

/// Stores that rows share. The last row that uses them drops them.
pub(super) type Shared = Rc<RefCell<Stores>>;

/// The order of the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The runs were written one after the other.
    Contiguous,
    /// This many runs were interleaved.
    Interleaved(usize),
    /// The same, and then each engine reorganized its data.
    Compacted(usize),
}

/// The same runs in a store of each engine.
pub(super) struct Stores {
    runs: Runs,
    /// `None` until they are made.
    order: Option<Order>,
    open: Vec<(Kind, Box<dyn Engine>, tempfile::TempDir)>,
}

impl Stores {
    pub(super) fn shared(runs: Runs) -> Shared {
        Rc::new(RefCell::new(Self { runs, order: None, open: Vec::new() }))
    }

    pub(super) fn runs(&self) -> &Runs {
        &self.runs
    }

    pub(super) fn of(&self, kind: Kind) -> &dyn Engine {
        &*self.open.iter().find(|(of, ..)| *of == kind).unwrap().1
    }

    /// Lets another process work on the store of an engine, which is closed meanwhile.
    pub(super) fn while_closed<R>(&mut self, kind: Kind, work: impl FnOnce(&Path) -> R) -> R {
        let at = self.open.iter().position(|(of, ..)| *of == kind).unwrap();
        let (_, engine, folder) = self.open.remove(at);
        engine.close();
        let done = work(folder.path());
        self.open.insert(at, (kind, kind.open(folder.path(), Level::Process), folder));
        done
    }

    /// Makes the stores, unless they exist in this order. All get the same records at once.
    pub(super) fn make(&mut self, context: &Context, kinds: &[Kind], order: Order) {
        if self.order == Some(order) {
            return;
        }
        match order {
            Order::Contiguous => self.write(context, kinds, 1),
            Order::Interleaved(at_once) => self.write(context, kinds, at_once),
            Order::Compacted(at_once) => {
                self.make(context, kinds, Order::Interleaved(at_once));
                std::thread::scope(|scope| {
                    for (_, engine, _) in &mut self.open {
                        scope.spawn(|| engine.compact());
                    }
                });
            }
        }
        self.order = Some(order);
        context.calm();
    }

    /// Writes the runs again, for engines for which the order matters.
    fn write(&mut self, context: &Context, kinds: &[Kind], at_once: usize) {
        self.runs.at_once = at_once;
        self.let_go(context, |kind| !kind.has_file_for_each_run());
        let made = self.open.len();
        for &kind in kinds {
            if self.open.iter().all(|(of, ..)| *of != kind) {
                let folder = folder(&context.dir);
                self.open.push((kind, kind.open(folder.path(), Level::Process), folder));
            }
        }
        let empty: Vec<&dyn Engine> = self.open[made..].iter().map(|one| &*one.1).collect();
        self.runs.load(&empty);
        for engine in empty {
            engine.settle();
        }
    }

    /// Closes the stores of these engines.
    fn let_go(&mut self, context: &Context, of: impl Fn(Kind) -> bool) {
        for (kind, engine, folder) in self.open.extract_if(.., |(kind, ..)| of(*kind)) {
            engine.close();
            context.discard(kind, folder);
        }
    }

    pub(super) fn finish(&mut self, context: &Context) {
        self.let_go(context, |_| true);
        self.order = None;
    }
}
