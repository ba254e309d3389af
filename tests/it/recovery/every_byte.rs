//! Each byte of a store with everything in it, flipped, each sector of it, zeroed, and each page of
//! it, unreadable.
//!
//! The store has each structure and each kind of frame: sealed segments of the log and outputs of
//! compactions, compressed and not, an index, and an unsealed tail that a kill left. For each
//! fault:
//!
//! - Opening refuses and changes no byte, or each answer is right, or is an error that names the
//!   place. Only damage of what is not an item may refuse.
//! - The same holds after a compaction, and after another opening.
//! - A reader opens if the manifest is whole. Each of its answers is right, or is an error that
//!   names the place; if the log ends at the damage, its report says so.
//! - Salvage brings out each record that is whole and in no lost batch, and invents none.
//!
//! `RUNLOG_SCALE` sets how many bytes, sectors and pages are taken, and `RUNLOG_SEED` which bytes.

mod answers;
mod parts;
mod store;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use runlog::format::{EXTENTS_AT, PAGE};
use runlog::{Error, IoAction, ReaderOptions, RunLog, salvage_storage};
use runlog_sim::{SimDisk, settings};

use self::answers::{Found, check_salvaged, is_right};
use self::parts::{Part, parts};
use self::store::{Store, everything, options};
use crate::support::campaign::{Counts, caught, in_parallel};
use crate::support::gate::Gate;

const SECTOR: usize = 512;

#[test]
fn each_flipped_byte_costs_what_it_hits_or_refuses_the_file() {
    let store = everything();
    let parts = parts(&store.image);
    let stride = usize::try_from(settings::stride(125, 50)).unwrap();
    let is_used =
        |at: &usize| store.image[*at] != 0 || parts.iter().any(|part| part.range.contains(at));
    let used = (0..store.image.len()).filter(is_used);
    // Nine of ten bytes are covered by the checksum of a payload, or by nothing.
    let (bulk, structure): (Vec<_>, Vec<_>) =
        used.partition(|at| parts::is_bulk(&parts::name_of(&parts, &(*at..at + 1))));
    let taken = |bytes: Vec<usize>, stride: usize| {
        let first = settings::seed(0) % stride as u64;
        bytes.into_iter().skip(usize::try_from(first).unwrap()).step_by(stride)
    };
    let taken = taken(structure, stride).chain(taken(bulk, 20 * stride));
    let faults = taken.map(|at| Fault { at: at..at + 1, way: Way::Flip(1 << (at % 8)) }).collect();
    check_all(&store, &parts, faults);
}

#[test]
fn each_zeroed_sector_costs_what_it_hits_or_refuses_the_file() {
    check_blocks(SECTOR, Way::Zero, settings::stride(13, 5));
}

#[test]
fn each_page_that_cannot_be_read_costs_what_it_hits_or_refuses_the_file() {
    check_blocks(PAGE as usize, Way::Unreadable, settings::stride(5, 1));
}

/// Checks one of so many blocks of this length that have bytes.
fn check_blocks(len: usize, way: Way, stride: u64) {
    let store = everything();
    let blocks = (0..store.image.len()).step_by(len);
    let has_bytes = |at: &usize| store.image[*at..].iter().take(len).any(|byte| *byte != 0);
    let taken = blocks.filter(has_bytes).step_by(usize::try_from(stride).unwrap());
    let end = |at: usize| (at + len).min(store.image.len());
    let faults = taken.map(|at| Fault { at: at..end(at), way }).collect();
    check_all(&store, &parts(&store.image), faults);
}

/// One fault of the medium.
#[derive(Debug, Clone)]
struct Fault {
    at: Range<usize>,
    way: Way,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// These bits are flipped.
    Flip(u8),
    Zero,
    /// Reads fail.
    Unreadable,
}

impl Fault {
    fn apply(&self, image: &[u8]) -> Vec<u8> {
        let mut image = image.to_vec();
        for byte in &mut image[self.at.clone()] {
            match self.way {
                Way::Flip(bits) => *byte ^= bits,
                Way::Zero => *byte = 0,
                Way::Unreadable => {}
            }
        }
        image
    }

    /// A disk with this fault.
    fn disk(&self, image: &[u8]) -> SimDisk {
        let disk = SimDisk::untracked(image.to_vec());
        if self.way == Way::Unreadable {
            disk.fail_reads_in(self.at.start as u64..self.at.end as u64, ErrorKind::Other);
        }
        disk
    }

    /// Whether an error names the place of this fault.
    fn is_named_by(&self, error: &Error) -> bool {
        match error {
            Error::Corrupt(_) => true,
            Error::Io { action: IoAction::Read { offset }, .. } => {
                self.way == Way::Unreadable && *offset < self.at.end as u64
            }
            _ => false,
        }
    }
}

/// What an opening did with a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Refused,
    Errors,
    Right,
}

/// Checks each fault, and fails with all that are wrong, by the part that they hit.
fn check_all(store: &Store, parts: &[Part], faults: Vec<Fault>) {
    let counts = Mutex::new(BTreeMap::<_, usize>::new());
    let wrong = Mutex::new(BTreeMap::<String, Vec<String>>::new());
    let is_over = |number: u64, _: &Counts| number >= faults.len() as u64;
    println!("{} faults", faults.len());
    let done = in_parallel(0, is_over, |number, _| {
        let fault = &faults[number as usize];
        let hit = parts::name_of(parts, &fault.at);
        match caught(|| check(store, parts, fault)) {
            Ok(outcome) => *counts.lock().unwrap().entry((hit, outcome)).or_default() += 1,
            Err(error) => {
                let told = format!("{:#x}: {error}", fault.at.start);
                wrong.lock().unwrap().entry(hit).or_default().push(told);
            }
        }
        Ok(())
    });
    done.expect("all are checked");
    for ((hit, outcome), count) in counts.into_inner().unwrap() {
        println!("{hit}: {outcome:?} {count}");
    }
    let wrong = wrong.into_inner().unwrap();
    for (hit, all) in &wrong {
        println!("WRONG {hit}: {} times", all.len());
        all.iter().take(6).for_each(|told| println!("  {told}"));
    }
    assert!(wrong.is_empty(), "{} kinds of faults", wrong.len());
}

fn check(store: &Store, parts: &[Part], fault: &Fault) -> Result<Outcome, String> {
    let image = fault.apply(&store.image);
    let outcome = check_opening(store, parts, fault, &image)?;
    check_reader(store, parts, fault, &image, outcome)?;
    check_salvage(store, parts, fault, image)?;
    Ok(outcome)
}

fn open(disk: &SimDisk) -> (Gate, runlog::Result<RunLog>) {
    let gate = Gate::new(disk);
    (gate.clone(), options().open_storage(gate.storage()))
}

fn check_opening(
    store: &Store,
    parts: &[Part],
    fault: &Fault,
    image: &[u8],
) -> Result<Outcome, String> {
    let disk = fault.disk(image);
    let (_gate, opened) = open(&disk);
    let log = match opened {
        Ok(log) => log,
        Err(error) => {
            // A read may also fail once the opening writes.
            if disk.image() != image && fault.way != Way::Unreadable {
                return Err(format!("refused, and changed: {error}"));
            }
            return if may_refuse(parts, fault)
                && (names_a_place(&error) || fault.is_named_by(&error))
            {
                Ok(Outcome::Refused)
            } else {
                Err(format!("refused: {error}"))
            };
        }
    };
    let found = Found::of(&log, store);
    let state = found.state(store, fault)?;
    let mut has_errors = found.has_errors();
    for call in [log.compact().map(drop), log.reclaim(), log.checkpoint()] {
        if let Err(error) = call
            && !fault.is_named_by(&error)
        {
            return Err(format!("after the opening: {error}"));
        }
    }
    let again = Found::of(&log, store);
    is_right(&again, state, fault).map_err(|error| format!("after a compaction: {error}"))?;
    if let Err(error) = log.close()
        && !fault.is_named_by(&error)
    {
        return Err(format!("closing: {error}"));
    }
    let (_gate, opened) = open(&disk);
    let log = match opened {
        Ok(log) => log,
        Err(error) if fault.is_named_by(&error) && fault.way == Way::Unreadable => {
            return Ok(Outcome::Errors);
        }
        Err(error) => return Err(format!("not opened again: {error}")),
    };
    let again = Found::of(&log, store);
    is_right(&again, state, fault).map_err(|error| format!("opened again: {error}"))?;
    has_errors |= again.has_errors();
    Ok(if has_errors { Outcome::Errors } else { Outcome::Right })
}

/// Whether opening for writing may refuse the file. What it has to read must be readable.
fn may_refuse(parts: &[Part], fault: &Fault) -> bool {
    let is_read = fault.way == Way::Unreadable && parts::has_segment(parts, &fault.at);
    is_read || parts::may_refuse(parts, &fault.at)
}

fn check_reader(
    store: &Store,
    parts: &[Part],
    fault: &Fault,
    image: &[u8],
    outcome: Outcome,
) -> Result<(), String> {
    let disk = fault.disk(image);
    let reader = match ReaderOptions::new().open_storage(Arc::new(disk.clone())) {
        Ok(reader) => reader,
        Err(error) => {
            let is_front = fault.at.start < EXTENTS_AT as usize;
            let is_read = fault.way == Way::Unreadable && may_refuse(parts, fault);
            let is_named = names_a_place(&error) || fault.is_named_by(&error);
            return if is_named && (is_front || is_read) {
                Ok(())
            } else {
                Err(format!("a reader: {error}"))
            };
        }
    };
    let found = Found::of(&reader, store);
    if outcome == Outcome::Refused {
        // The log ends for it at the damage, of which it tells.
        let is_told = !reader.recovery_report().damaged.is_empty();
        let known = found.has_only_records_of(store);
        return if is_told { known } else { Err("a reader reports no damage".to_owned()) };
    }
    found.state(store, fault).map(drop).map_err(|error| format!("a reader: {error}"))
}

/// Whether an opening that refuses says which structure is damaged.
fn names_a_place(error: &Error) -> bool {
    error.is_corruption()
        || matches!(
            error,
            Error::NotAStore { .. }
                | Error::UnsupportedVersion { .. }
                | Error::UnsupportedFeatures { .. }
        )
}

fn check_salvage(
    store: &Store,
    parts: &[Part],
    fault: &Fault,
    image: Vec<u8>,
) -> Result<(), String> {
    let (broken, out) = (fault.disk(&image), SimDisk::untracked(Vec::new()));
    let report = salvage_storage(Arc::new(broken.clone()), Arc::new(out.clone()))
        .map_err(|error| format!("salvage: {error}"))?;
    if broken.image() != image {
        return Err("salvage changed the damaged file".to_owned());
    }
    let (_gate, opened) = open(&out);
    let log = opened.map_err(|error| format!("salvaged, not opened: {error}"))?;
    let lost = parts::lost_items(parts, &fault.at);
    check_salvaged(&log, store, &lost, &report).map_err(|error| format!("salvage: {error}"))
}
