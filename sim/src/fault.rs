//! Which calls of a disk must fail, and how.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use crate::record::OpKind;

/// How one call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The error it reports.
    pub error: io::ErrorKind,
    /// How many bytes of a failing write are stored nevertheless.
    pub stored: usize,
}

impl Fault {
    /// A call that reports `error` and changes nothing.
    #[must_use]
    pub fn error(error: io::ErrorKind) -> Self {
        Self { error, stored: 0 }
    }

    /// A write that stores its first `stored` bytes and reports `error`.
    #[must_use]
    pub fn short(error: io::ErrorKind, stored: usize) -> Self {
        Self { error, stored }
    }
}

impl From<io::ErrorKind> for Fault {
    fn from(error: io::ErrorKind) -> Self {
        Self::error(error)
    }
}

/// The pending faults.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    numbered: BTreeMap<usize, Fault>,
    next: Vec<(OpKind, Fault)>,
    /// Calls of a kind that succeed before one fails.
    nth: Vec<(OpKind, u64, Fault)>,
    from: Option<(usize, Fault)>,
    /// Writes that begin with these bytes and succeed before the following call fails.
    behind: Vec<(&'static [u8], u64, Fault)>,
    unreadable: Vec<(Range<u64>, io::ErrorKind)>,
    /// Nothing fails for now, and no call counts.
    pub(crate) aside: bool,
}

impl Plan {
    pub(crate) fn fail_op(&mut self, number: usize, fault: Fault) {
        self.numbered.insert(number, fault);
    }

    pub(crate) fn fail_next(&mut self, kind: OpKind, fault: Fault) {
        self.next.push((kind, fault));
    }

    pub(crate) fn fail_nth(&mut self, kind: OpKind, passed: u64, fault: Fault) {
        self.nth.push((kind, passed, fault));
    }

    pub(crate) fn fail_from(&mut self, number: usize, fault: Fault) {
        self.from = Some((number, fault));
    }

    pub(crate) fn fail_behind(&mut self, bytes: &'static [u8], passed: u64, fault: Fault) {
        self.behind.push((bytes, passed, fault));
    }

    /// Notes that a write of these bytes succeeded as operation `number`.
    pub(crate) fn wrote(&mut self, number: usize, data: &[u8]) {
        if self.aside {
            return;
        }
        self.behind.retain_mut(|(bytes, passed, fault)| {
            let is_due = data.starts_with(bytes) && *passed == 0;
            *passed -= u64::from(data.starts_with(bytes) && *passed > 0);
            if is_due {
                self.numbered.insert(number + 1, *fault);
            }
            !is_due
        });
    }

    pub(crate) fn fail_reads_in(&mut self, range: Range<u64>, error: io::ErrorKind) {
        self.unreadable.push((range, error));
    }

    /// The result of operation `number`; a fault for one call is used up by it.
    pub(crate) fn for_op(&mut self, kind: OpKind, number: usize) -> Option<Fault> {
        if self.aside {
            return None;
        }
        if let Some(fault) = self.numbered.remove(&number) {
            return Some(fault);
        }
        if let Some(fault) = self.take_next(kind) {
            return Some(fault);
        }
        self.from.filter(|(first, _)| number >= *first).map(|(_, fault)| fault)
    }

    /// The result of a read of `range`.
    pub(crate) fn for_read(&mut self, range: Range<u64>) -> Option<io::ErrorKind> {
        if self.aside {
            return None;
        }
        if let Some(fault) = self.take_next(OpKind::Read) {
            return Some(fault.error);
        }
        let hit = |(bad, _): &&(Range<u64>, _)| bad.start < range.end && range.start < bad.end;
        self.unreadable.iter().find(hit).map(|(_, error)| *error)
    }

    fn take_next(&mut self, kind: OpKind) -> Option<Fault> {
        let mut due = None;
        self.nth.retain_mut(|(planned, passed, fault)| {
            if *planned != kind {
                return true;
            }
            let is_due = *passed == 0;
            *passed = passed.saturating_sub(1);
            if is_due {
                due = Some(*fault);
            }
            !is_due
        });
        if due.is_some() {
            return due;
        }
        let at = self.next.iter().position(|(planned, _)| *planned == kind)?;
        Some(self.next.remove(at).1)
    }
}
