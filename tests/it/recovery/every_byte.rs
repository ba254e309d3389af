//! Each byte of a store with everything in it, flipped, and each sector of it, zeroed.
//!
//! The store has each structure and each kind of frame: sealed segments of the log and outputs of
//! compactions, compressed and not, an index, and an unsealed tail that a kill left. For each
//! fault:
//!
//! - Opening refuses and changes no byte, or each answer is right, or is an error that names the
//!   place. Only damage of what is not an item may refuse.
//! - The same holds after a compaction, and after another opening.
//! - Salvage brings out each record that is whole and in no lost batch, and invents none.
//!
//! `RUNLOG_SCALE` sets how many bytes and sectors are taken.

mod answers;
mod parts;
mod store;

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use runlog::{Error, RunLog, salvage_storage};
use runlog_sim::{SimDisk, settings};

use self::answers::{Found, check_salvaged, is_right};
use self::parts::{Part, parts};
use self::store::{Store, everything, options};
use crate::support::gate::Gate;

const SECTOR: usize = 512;

#[test]
fn each_flipped_byte_costs_what_it_hits_or_refuses_the_file() {
    let store = everything();
    let parts = parts(&store.image);
    let stride = usize::try_from(settings::stride(997, 397)).unwrap();
    let is_used =
        |at: &usize| store.image[*at] != 0 || parts.iter().any(|part| part.range.contains(at));
    let used: Vec<usize> = (0..store.image.len()).filter(is_used).collect();
    let taken = used.into_iter().step_by(stride);
    let faults = taken.map(|at| Fault { at: at..at + 1, flip: 1 << (at % 8) }).collect();
    check_all(&store, &parts, faults);
}

#[test]
fn each_zeroed_sector_costs_what_it_hits_or_refuses_the_file() {
    let store = everything();
    let parts = parts(&store.image);
    let stride = usize::try_from(settings::stride(13, 5)).unwrap();
    let sectors = (0..store.image.len()).step_by(SECTOR);
    let has_bytes = |at: &usize| store.image[*at..].iter().take(SECTOR).any(|byte| *byte != 0);
    let taken = sectors.filter(has_bytes).step_by(stride);
    let end = |at: usize| (at + SECTOR).min(store.image.len());
    let faults = taken.map(|at| Fault { at: at..end(at), flip: 0 }).collect();
    check_all(&store, &parts, faults);
}

/// One fault of the medium: these bytes have a flipped bit, or are zero.
#[derive(Debug, Clone)]
struct Fault {
    at: Range<usize>,
    flip: u8,
}

impl Fault {
    fn apply(&self, image: &[u8]) -> Vec<u8> {
        let mut image = image.to_vec();
        for byte in &mut image[self.at.clone()] {
            *byte = if self.flip == 0 { 0 } else { *byte ^ self.flip };
        }
        image
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
    let (next, counts) = (AtomicUsize::new(0), Mutex::new(BTreeMap::<_, usize>::new()));
    let wrong = Mutex::new(BTreeMap::<String, Vec<String>>::new());
    let threads = std::thread::available_parallelism().map_or(2, |count| count.get().min(8));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(fault) = faults.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let checked = catch_unwind(AssertUnwindSafe(|| check(store, parts, fault)));
                    let hit = parts::name_of(parts, &fault.at);
                    let told = match checked {
                        Ok(Ok(outcome)) => {
                            *counts.lock().unwrap().entry((hit, outcome)).or_default() += 1;
                            continue;
                        }
                        Ok(Err(error)) => error,
                        Err(_) => "panic".to_owned(),
                    };
                    let told = format!("{:#x}: {told}", fault.at.start);
                    wrong.lock().unwrap().entry(hit).or_default().push(told);
                }
            });
        }
    });
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
    check_salvage(store, parts, fault, image)?;
    Ok(outcome)
}

fn open(disk: &SimDisk) -> (Gate, runlog::Result<RunLog>) {
    let gate = Gate::new(disk);
    (gate.clone(), options().open_storage(Arc::new(gate)))
}

fn check_opening(
    store: &Store,
    parts: &[Part],
    fault: &Fault,
    image: &[u8],
) -> Result<Outcome, String> {
    let disk = SimDisk::untracked(image.to_vec());
    let (_gate, opened) = open(&disk);
    let log = match opened {
        Ok(log) => log,
        Err(error) => {
            if disk.image() != image {
                return Err(format!("refused, and changed: {error}"));
            }
            let may = parts::may_refuse(parts, &fault.at);
            return if may && names_a_place(&error) {
                Ok(Outcome::Refused)
            } else {
                Err(format!("refused: {error}"))
            };
        }
    };
    let mut has_errors = false;
    let found = Found::of(&log, store);
    let judged: Vec<_> = store.states.iter().map(|state| is_right(&found, state)).collect();
    let Some(which) = judged.iter().position(Result::is_ok) else {
        return Err(format!("as of no moment: {judged:#?}"));
    };
    let state = &store.states[which];
    has_errors |= found.has_errors();
    for call in [log.compact().map(drop), log.reclaim(), log.checkpoint()] {
        if let Err(error) = call
            && !matches!(error, Error::Corrupt(_))
        {
            return Err(format!("after the opening: {error}"));
        }
    }
    let again = Found::of(&log, store);
    is_right(&again, state).map_err(|error| format!("after a compaction, {which}: {error}"))?;
    if let Err(error) = log.close()
        && !matches!(error, Error::Corrupt(_))
    {
        return Err(format!("closing: {error}"));
    }
    let (_gate, opened) = open(&disk);
    let log = opened.map_err(|error| format!("not opened again: {error}"))?;
    let again = Found::of(&log, store);
    is_right(&again, state).map_err(|error| format!("opened again, {which}: {error}"))?;
    has_errors |= again.has_errors();
    Ok(if has_errors { Outcome::Errors } else { Outcome::Right })
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
    let (broken, out) = (SimDisk::untracked(image.clone()), SimDisk::untracked(Vec::new()));
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
