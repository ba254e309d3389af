//! Stores in which some fields are changed, with every checksum above them corrected: what a writer
//! produces that knows the format and is malicious or has a bug.
//!
//! - [`stores`]: stores with everything in them.
//! - [`map`]: where their structures are, and the fields of these.
//! - [`change`]: the changes that an input asks for; [`repair`] makes the checksums right.
//! - [`counted`]: a file in memory that counts its calls.
//! - [`exercise`]: opens, asks, writes, compacts, reopens.
//!
//! The campaign `hostile_structures` and the fuzz target of this name share this folder.
//!
//! An input is a byte that chooses the store, one that chooses what is done with it, and then 8
//! bytes for each change.

mod change;
mod counted;
mod exercise;
mod map;
mod repair;
mod stores;

#[cfg(test)]
use std::collections::BTreeSet;

pub(crate) use exercise::Work;
#[cfg(test)]
use map::EXTENT;
#[cfg(test)]
pub(crate) use map::Kind;
#[cfg(test)]
use map::Structure;
use stores::Store;
#[cfg(test)]
pub(crate) use stores::{evicted_again, options, with_records};

/// Runs of the store get records too.
#[cfg(test)]
pub(crate) const CONTINUE: u8 = 1 << 4;

/// The most changes of one input.
const MOST_CHANGES: usize = 24;

/// Changes a store as `input` says, and uses it. What is wrong panics.
pub(crate) fn run(input: &[u8]) -> Work {
    run_with(stores::stores(), input, 0)
}

/// The same with a store that has as little as there can be. The lower half of `more` says what is
/// left out of what is done with it, [`CONTINUE`] that its runs go on.
#[cfg(test)]
pub(crate) fn run_lean(input: &[u8], more: u8) -> Work {
    run_with(stores::lean_stores(), input, more)
}

fn run_with(stores: &[Store], input: &[u8], more: u8) -> Work {
    let Some((store, ways, changes)) = read(stores, input) else { return Work::default() };
    exercise::exercise(change::changed(store, changes), u16::from_le_bytes([ways, more]))
}

/// The store, what is done with it, and the changes.
fn read<'a, 'b>(stores: &'a [Store], input: &'b [u8]) -> Option<(&'a Store, u8, &'b [[u8; 8]])> {
    let [store, ways, changes @ ..] = input else { return None };
    let (changes, _) = changes.as_chunks::<8>();
    let changes = &changes[..changes.len().min(MOST_CHANGES)];
    Some((&stores[usize::from(*store) % stores.len()], *ways, changes))
}

/// The fields that a case sets: the kind of the structure, the number of the field, the value.
#[cfg(test)]
pub(crate) type Fields<'a> = &'a [(Kind, usize, u64)];

/// Sets the first field in some structures of its kind, one at a time, and the others in the last
/// one of theirs; then uses the store in some ways. How many of them opened.
#[cfg(test)]
pub(crate) fn with_each((kind, field, value): (Kind, usize, u64), others: Fields<'_>) -> usize {
    let mut opened = 0;
    for (number, store) in stores::stores().iter().enumerate() {
        let of_kind = |kind| {
            let structures = store.map.structures.iter().enumerate();
            structures.filter(move |(_, one)| one.kind == kind).map(|(number, _)| number)
        };
        let mut fixed = Vec::new();
        for &(kind, field, value) in others {
            fixed.extend(of_kind(kind).next_back().map(|last| (last, field, value)));
        }
        for target in of_kind(kind).take(4) {
            let fields: Vec<_> = fixed.iter().copied().chain([(target, field, value)]).collect();
            for ways in [0b0000_0000, 0b0101_0111] {
                println!("store {number}, structure {target}, ways {ways:b}");
                let work = exercise::exercise(change::with_fields(store, &fields), ways);
                opened += usize::from(work.opened);
            }
        }
    }
    opened
}

/// Sets the first field in each structure of its kind, one at a time, and the others in all of
/// theirs; lets the runs of the store go on, and compacts it in another boot. How many opened.
#[cfg(test)]
pub(crate) fn go_on_and_reopen_each(
    (kind, field, value): (Kind, usize, u64),
    others: Fields<'_>,
) -> usize {
    let mut opened = 0;
    for (number, store) in stores::stores().iter().enumerate() {
        let of_kind = |kind| {
            let structures = store.map.structures.iter().enumerate();
            structures.filter(move |(_, one)| one.kind == kind).map(|(number, _)| number)
        };
        let others = others.iter().flat_map(|&(kind, field, value)| {
            of_kind(kind).map(move |target| (target, field, value))
        });
        let others: Vec<_> = others.collect();
        for target in of_kind(kind) {
            println!("store {number}, structure {target}");
            let fields = [&others[..], &[(target, field, value)]].concat();
            let ways = u16::from(CONTINUE) << 8 | 0b0110_0000;
            let work = exercise::exercise(change::with_fields(store, &fields), ways);
            opened += usize::from(work.opened);
        }
    }
    opened
}

/// Sets a field in some structures of a kind, one at a time, and lets the runs of the store go on.
/// How many of them did.
#[cfg(test)]
pub(crate) fn go_on_with_each((kind, field, value): (Kind, usize, u64)) -> usize {
    let mut went_on = 0;
    for (number, store) in stores::stores().iter().enumerate() {
        let structures = store.map.structures.iter().enumerate();
        let of_kind = structures.filter(|(_, one)| one.kind == kind);
        for (target, _) in of_kind.step_by(5) {
            println!("store {number}, structure {target}");
            went_on +=
                exercise::go_on_and_move(change::with_fields(store, &[(target, field, value)]));
        }
    }
    went_on
}

/// Gives entries of directories, one at a time and with their frames or without, the number that
/// the next run gets, also where the manifest does not say how far the numbers of a directory go;
/// then uses the store in some ways. How many of them opened.
#[cfg(test)]
pub(crate) fn with_numbers_not_given_yet() -> usize {
    let mut opened = 0;
    for (number, store) in stores::stores().iter().enumerate() {
        let next = exercise::next_run_number(store.bytes.clone());
        let structures = || store.map.structures.iter().enumerate();
        let is_entry = |one: &Structure| one.kind == Kind::RunEntry;
        let is_last = |target: usize| !store.map.structures.get(target + 1).is_some_and(is_entry);
        let entries = structures()
            .filter(|(target, one)| is_entry(one) && (is_last(*target) || target % 4 == 0));
        let is_seal = |one: &Structure| one.kind == Kind::Record && store.bytes[one.at] == 2;
        let seals: Vec<_> = structures().filter(|(_, one)| is_seal(one)).collect();
        for (target, entry) in entries {
            let run_number = |at: usize| store.bytes.get(at..at + 8);
            let frames = structures().filter(|(_, one)| {
                let is_frame = matches!(one.kind, Kind::Frame(_));
                let same_extent = one.at / EXTENT == entry.at / EXTENT;
                is_frame && same_extent && run_number(one.field(9).0) == run_number(entry.at)
            });
            let entry = [(target, 0, next)];
            let frames: Vec<_> = frames.map(|(frame, _)| (frame, 9, next)).collect();
            for stated in [None, Some(0), Some(1 << 60)] {
                let stated: Vec<_> = stated
                    .map(|stated| seals.iter().map(move |(seal, _)| (*seal, 6, stated)))
                    .into_iter()
                    .flatten()
                    .collect();
                for fields in [[&entry[..], &stated].concat(), [&entry, &*frames, &stated].concat()]
                {
                    for ways in [0b0000_0000, 0b0001_0010, 0b0101_0111] {
                        println!("store {number}, {fields:?}, ways {ways:b}");
                        let work = exercise::exercise(change::with_fields(store, &fields), ways);
                        opened += usize::from(work.opened);
                    }
                }
            }
        }
    }
    opened
}

/// Gives each run of a store, one at a time, another number in the directories and in all frames,
/// where no manifest says how far numbers go; then lets the runs go on. How many times a run did,
/// and how many compactions left no damaged segment.
#[cfg(test)]
pub(crate) fn go_on_with_numbers(numbers: &[u64]) -> [usize; 2] {
    let [mut went_on, mut moved] = [0; 2];
    for (number, store) in stores::stores().iter().enumerate() {
        let of_kind = |wanted: fn(Kind) -> bool| {
            let structures = store.map.structures.iter().enumerate();
            structures.filter(move |(_, one)| wanted(one.kind)).map(|(target, _)| target)
        };
        let run_number = |target: usize, field| {
            let (at, width) = store.map.structures[target].field(field);
            u64::from_le_bytes(store.bytes[at..at + width].try_into().expect("eight bytes"))
        };
        let is_seal = |target: &usize| store.bytes[store.map.structures[*target].at] == 2;
        let seals: Vec<_> = of_kind(|kind| kind == Kind::Record).filter(is_seal).collect();
        let frames: Vec<_> = of_kind(|kind| matches!(kind, Kind::Frame(_))).collect();
        let entries: Vec<_> = of_kind(|kind| kind == Kind::RunEntry).collect();
        let runs: BTreeSet<u64> = entries.iter().map(|entry| run_number(*entry, 0)).collect();
        for (&run, &to) in runs.iter().flat_map(|run| numbers.iter().map(move |to| (run, to))) {
            println!("store {number}, run {run} becomes {to:#x}");
            let stated = seals.iter().map(|seal| (*seal, 6, 0));
            let of_run = |targets: &[usize], field| {
                let is_its = |target: &&usize| run_number(**target, field) == run;
                let its: Vec<_> = targets.iter().filter(is_its).copied().collect();
                its.into_iter().map(move |target| (target, field, to))
            };
            let fields = stated.chain(of_run(&frames, 9)).chain(of_run(&entries, 0));
            let fields: Vec<_> = fields.collect();
            let done = exercise::go_on_and_reopen(change::with_fields(store, &fields));
            (went_on, moved) = (went_on + done[0], moved + done[1]);
        }
    }
    [went_on, moved]
}

/// What an input changes, field by field, for people.
#[cfg(not(test))]
pub(crate) fn explain(input: &[u8]) -> String {
    explain_with(stores::stores(), input)
}

#[cfg(test)]
pub(crate) fn explain_lean(input: &[u8]) -> String {
    explain_with(stores::lean_stores(), input)
}

fn explain_with(stores: &[Store], input: &[u8]) -> String {
    let Some((store, ways, changes)) = read(stores, input) else { return String::new() };
    let bytes = change::changed(store, changes);
    let told = format!("store {}, ways {ways:08b}\n", input[0]);
    told + &store.map.differences(&store.bytes, &bytes)
}
