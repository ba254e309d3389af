//! Crashes of a recorded workload, and what must hold after each.
//!
//! [`check_cut`] asserts, by the names of the invariants:
//!
//! - I1: each extent has one owner; the numbers of the store match its file.
//! - I2: the records are a prefix of what was appended, over all runs, with everything that was
//!   acknowledged at the level that the crash preserves; no old and no foreign byte.
//! - I3: recovering twice gives the same, even if a crash interrupts the recovery.
//! - I4: the index agrees with the directories (`verify` compares them), and without it the answers
//!   are the same.
//! - I7: deleted runs stay deleted, ended ones ended, others in progress; no old version of a
//!   document comes back, and documents that were written together are there together.
//! - I9: nothing panics.

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;

use runlog::{Batch, Durability, IndexRecovery, Lsn, NewRecord, Outcome, Place, RunLog, Version};
use runlog_sim::settings::replay;
use runlog_sim::{CrashImages, Op, Recording, SimDisk, SplitMix64};

use super::background::Background;
use super::campaign::{Campaign, Counts, caught, in_parallel};
use super::fault::damage::Harm;
use super::fault::{LOSSES, Loss, some_survivors};
use super::gate::Gate;
use super::manifest;
use super::model::{Found, Model, read_documents};
use super::world::{Abandoned, EXTENT, Machine, World};

/// The pieces into which the operations of an epoch are split for threads.
const PIECES: usize = 16;

/// A recorded part of a store's life, and its model.
#[derive(Debug)]
pub(crate) struct Epoch {
    pub(crate) recording: Recording,
    pub(crate) model: Model,
    pub(crate) machine: Machine,
    /// The store exists from this operation on.
    pub(crate) first: usize,
    /// The operations in front of which a crash is worth a look.
    pub(crate) boundaries: Vec<usize>,
    /// Where the index was in order, except where it was being built.
    pub(crate) ready: Vec<Range<usize>>,
    pub(crate) building: Vec<Range<usize>>,
    /// After one cut of this many, a superblock or the end of the manifest is also damaged.
    pub(crate) harmed: u64,
}

impl Epoch {
    /// What was recorded of a world, which exists since the operation `first`.
    pub(crate) fn of(world: World, first: usize) -> Self {
        let Abandoned { disk, model, machine, ready } = world.abandon();
        let recording = disk.take_recording();
        let boundaries = (first..=recording.ops.len()).collect();
        let building = machine.activities.building.lock().unwrap().clone();
        Self { recording, model, machine, first, boundaries, ready, building, harmed: 16 }
    }
}

/// A crash: the place of its loss in [`LOSSES`], and the seed of all other choices.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    pub(crate) loss: usize,
    pub(crate) seed: u64,
}

/// Cuts a story at each of its boundaries in each way, or about `most` times.
///
/// `RUNLOG_REPLAY=story:epoch:boundary:loss` repeats only this cut.
pub(crate) fn cut_story(campaign: &Campaign, story: u64, epochs: &[Epoch], most: u64) -> Counts {
    let all = epochs.iter().map(|epoch| (epoch.boundaries.len() * LOSSES.len()) as u64).sum();
    let (only, mut total) = (replay(), Counts::default());
    for (number, epoch) in epochs.iter().enumerate() {
        let len = epoch.boundaries.len().div_ceil(PIECES);
        let pieces: Vec<&[usize]> = epoch.boundaries.chunks(len).collect();
        let is_over = |piece: u64, _: &Counts| piece >= pieces.len() as u64;
        let done = in_parallel(0, is_over, |piece, counts| {
            let (mut images, mut image) = (CrashImages::new(&epoch.recording), Vec::new());
            for &boundary in pieces[piece as usize] {
                images.seek(boundary);
                for loss in 0..LOSSES.len() {
                    let name = format!("{story}:{number}:{boundary}:{loss}");
                    let place = u64::from(crc32fast::hash(name.as_bytes())) << 32 | story;
                    let seed = SplitMix64::for_case(campaign.seed, place).next_u64();
                    let is_wanted = match &only {
                        Some(only) => *only == name,
                        None => SplitMix64::for_case(seed, 1).below(all) < most,
                    };
                    if is_wanted {
                        let cut = Cut { loss, seed };
                        let cut = check_cut(epoch, &mut images, cut, &mut image, counts);
                        let fail = |error| format!("{error}{}", describe(epoch, boundary, loss));
                        cut.map_err(|error| campaign.again(&name, &fail(error)))?;
                    }
                }
            }
            Ok(())
        });
        total.merge(done.unwrap_or_else(|error| panic!("{error}")));
    }
    total
}

/// Whether a story is to be cut, or only another one is.
pub(crate) fn is_wanted(story: u64) -> bool {
    replay().is_none_or(|only| only.split(':').next() == Some(&story.to_string()))
}

/// The operations around a cut, in a few words.
fn describe(epoch: &Epoch, boundary: usize, loss: usize) -> String {
    let mut text = format!("\nof {} operations, {:?}", epoch.recording.ops.len(), LOSSES[loss]);
    let from = boundary.saturating_sub(12);
    for (place, op) in epoch.recording.ops.iter().enumerate().skip(from).take(16) {
        let cut = if place == boundary { " <- not done" } else { "" };
        let _ = match op {
            Op::Write { offset, data } => {
                let len = data.len();
                let extent = (*offset as u64).checked_sub(64 << 10).map(|at| at / EXTENT);
                write!(text, "\n  {place}: write {len} at {offset:#x}, extent {extent:?}{cut}")
            }
            Op::Store { offset, data } => {
                let len = data.len();
                write!(text, "\n  {place}: store {len} at {offset:#x}{cut}")
            }
            other => write!(text, "\n  {place}: {other:?}{cut}"),
        };
    }
    text
}

fn contains(ranges: &[Range<usize>], place: usize) -> bool {
    ranges.iter().any(|range| range.contains(&place))
}

/// Opens the store that a crash in front of this operation left, and checks everything.
pub(crate) fn check_cut(
    epoch: &Epoch,
    images: &mut CrashImages<'_>,
    cut: Cut,
    image: &mut Vec<u8>,
    counts: &mut Counts,
) -> Result<Found, String> {
    let (loss, boundary) = (LOSSES[cut.loss], images.boundary());
    let mut random = SplitMix64::new(cut.seed);
    let mut machine = Machine { activities: Arc::default(), ..epoch.machine.clone() };
    machine.background = machine.background.map(|_| Background::default());
    let limits = loss.image_into(images, &epoch.model, &mut random, image);
    counts.one("cuts");
    caught(|| {
        let crash = Crash {
            model: &epoch.model,
            machine: &machine,
            loss,
            limits,
            index: contains(&epoch.ready, boundary) && !contains(&epoch.building, boundary),
            given: epoch.model.given_before(boundary),
            harmed: epoch.harmed,
        };
        check_image(&crash, image, &mut random, counts)
    })
}

/// What is known of a crash.
struct Crash<'a> {
    model: &'a Model,
    machine: &'a Machine,
    loss: Loss,
    /// How many events must be there, and how many may.
    limits: (usize, usize),
    /// There was an intact index, so there must be one.
    index: bool,
    /// The largest order and version that callers were given.
    given: (Lsn, Option<Version>),
    /// See [`Epoch::harmed`].
    harmed: u64,
}

fn check_image(
    crash: &Crash<'_>,
    image: &[u8],
    random: &mut SplitMix64,
    counts: &mut Counts,
) -> Result<Found, String> {
    let Crash { model, machine, loss, limits: (least, most), index, given, harmed } = *crash;
    let nested = random.below(8) == 0;
    let disk = match nested {
        true => SimDisk::recording_from(image.to_vec()),
        false => SimDisk::untracked(image.to_vec()),
    };
    let (gate, log) = open(&disk, machine)?;
    run_background(machine, random);
    let found = model.check(&log, least, most)?;
    check_report(&log, loss)?;
    // Without an index, shortening the file had dropped it durably before the crash.
    if index && log.recovery_report().index == IndexRecovery::Dropped {
        return Err(format!("the crash cost the index: {}", log.recovery_report()));
    }
    check_whole(&log)?;
    if random.below(8) == 0 {
        check_reversed(&log, model, &found)?;
    }
    let go_on = random.below(4) == 0;
    if go_on {
        counts.one("continued");
        go_on_appending(&log, model, &found)?;
        check_numbers(&log, given)?;
    }
    gate.shut();
    drop(log);
    if go_on {
        // I3 again: the later appends are there too, and nothing else has changed.
        let (gate, log) = open(&disk, machine)?;
        run_background(machine, random);
        check_continued(&log, model, &found, "killed after appending")?;
        log.close().map_err(|error| format!("close: {error}"))?;
        drop(gate);
        let (gate, log) = open(&disk, machine)?;
        if !log.recovery_report().is_clean() || !log.recovery_report().clean {
            return Err(format!("after closing in order: {}", log.recovery_report()));
        }
        check_continued(&log, model, &found, "closed and opened")?;
        gate.shut();
    } else {
        recover_again(&disk, model, machine, &found, "recovered twice")?;
    }
    if random.below(4) == 0 {
        let mut machine = machine.clone();
        machine.index = false;
        let disk = SimDisk::untracked(image.to_vec());
        recover_again(&disk, model, &machine, &found, "recovered without the index")?;
    }
    if random.below(harmed) == 0 {
        check_harmed(crash, image, random)?;
    }
    if nested {
        let recording = disk.take_recording();
        let mut images = CrashImages::new(&recording);
        let mut boundaries: Vec<usize> =
            (0..3).map(|_| random.index(recording.ops.len() + 1)).collect();
        boundaries.sort_unstable();
        for boundary in boundaries {
            if go_on {
                break;
            }
            counts.one("nested");
            images.seek(boundary);
            let survivors = some_survivors(random);
            let image = images.image(survivors, random.next_u64());
            let what = format!("crashed at {boundary} of its recovery with {survivors:?}");
            recover_again(&SimDisk::untracked(image), model, machine, &found, &what)?;
        }
    }
    Ok(found)
}

/// A superblock or the end of the manifest is also damaged: nothing is lost by that.
fn check_harmed(crash: &Crash<'_>, image: &[u8], random: &mut SplitMix64) -> Result<(), String> {
    let mut image = image.to_vec();
    let harm = Harm::ALL[random.index(Harm::ALL.len())];
    // A crash may have torn a slot, and damage of the other one is a second fault.
    if harm != Harm::ManifestEnd && manifest::slots(&image).iter().any(Result::is_err) {
        return Ok(());
    }
    harm.on_image(&mut image, random);
    let fail = |error: String| format!("with damage, {harm:?}: {error}");
    let (gate, log) = open(&SimDisk::untracked(image), crash.machine).map_err(fail)?;
    if log.recovery_report().damaged.is_empty() && harm != Harm::ManifestEnd {
        return Err(fail(format!("not told: {}", log.recovery_report())));
    }
    crash.model.check(&log, crash.limits.0, crash.limits.1).map_err(fail)?;
    check_whole(&log).map_err(fail)?;
    gate.shut();
    Ok(())
}

/// Opens the store with a gate, so that it can be dropped without a last write.
pub(crate) fn open(disk: &SimDisk, machine: &Machine) -> Result<(Gate, RunLog), String> {
    let gate = Gate::new(disk);
    let log = machine.options().open_storage(gate.storage());
    log.map(|log| (gate, log)).map_err(|error| format!("open: {error}"))
}

/// Does some of the background work, which the calls do not do.
fn run_background(machine: &Machine, random: &mut SplitMix64) {
    if let Some(background) = &machine.background {
        background.run_after_opening(random);
    }
}

/// Opens the store and sees to it that it holds what was found before.
pub(crate) fn recover_again(
    disk: &SimDisk,
    model: &Model,
    machine: &Machine,
    found: &Found,
    what: &str,
) -> Result<(), String> {
    let fail = |error: String| format!("{what}: {error}");
    let (gate, log) = open(disk, machine).map_err(fail)?;
    run_background(machine, &mut SplitMix64::new(found.prefix as u64));
    let again = model.check(&log, 0, model.events.len()).map_err(fail)?;
    if again.seen != found.seen {
        return Err(format!("{what}: not the same any more: {:?}, {:?}", found.seen, again.seen));
    }
    if again.documents != found.documents {
        return Err(format!("{what}: the documents are not the same any more"));
    }
    check_whole(&log).map_err(fail)?;
    gate.shut();
    Ok(())
}

/// A crash damages nothing that was there: it only tears what was being written.
fn check_report(log: &RunLog, loss: Loss) -> Result<(), String> {
    let report = log.recovery_report();
    // The owner page and a superblock can be torn.
    let is_front = |damage: &&runlog::Corruption| {
        matches!(damage.place, Place::Superblock { .. } | Place::OwnerPage)
    };
    match report.damaged.iter().find(|damage| !is_front(damage)) {
        Some(damage) => Err(format!("{loss:?} was taken for damage: {damage}")),
        None => Ok(()),
    }
}

/// What `verify` and the numbers report for a newly recovered store.
pub(crate) fn check_whole(log: &RunLog) -> Result<(), String> {
    let quarantined = log.health().quarantined;
    if !quarantined.is_empty() {
        return Err(format!("quarantined: {quarantined:?}"));
    }
    let verified = log.verify().map_err(|error| format!("verify: {error}"))?;
    if let Some(problem) = verified.problems.first() {
        let count = verified.problems.len();
        return Err(format!("verify found {count} problems, the first: {problem}"));
    }
    let stats = log.stats().map_err(|error| format!("stats: {error}"))?;
    let owned =
        stats.log_extents + stats.index_extents + stats.meta_extents + stats.retired_extents;
    let extents = stats.file_len.saturating_sub(64 << 10).div_ceil(stats.extent_len);
    if owned + stats.free_extents < extents {
        return Err(format!("{extents} extents: {stats:?}"));
    }
    Ok(())
}

/// Reads each run backwards and in a range.
fn check_reversed(log: &RunLog, model: &Model, found: &Found) -> Result<(), String> {
    for (run, seen) in model.runs.iter().zip(&found.seen) {
        let Some((count, _)) = *seen else { continue };
        let name = (run.agent.as_str(), run.run.as_str());
        let fail = |error: runlog::Error| format!("{name:?} backwards: {error}");
        let mut next = count;
        for record in log.trace(name).map_err(fail)?.rev() {
            let record = record.map_err(fail)?;
            next -= 1;
            if record.seq().0 != next as u64 || *record.payload() != *run.records[next].payload {
                return Err(format!("{name:?} backwards: record {next} is {record:?}"));
            }
        }
        if next != 0 {
            return Err(format!("{name:?} backwards: ends at {next}"));
        }
    }
    Ok(())
}

const LATER: (&str, &str) = ("later", "later");
const LATER_RECORDS: usize = 12;

fn later_payload(number: usize) -> Vec<u8> {
    vec![u8::try_from(number % 251).unwrap_or(0); 3000 + number]
}

/// Appends to the recovered store: to a run that is in progress and to a new one.
fn go_on_appending(log: &RunLog, model: &Model, found: &Found) -> Result<(), String> {
    let fail = |error: runlog::Error| format!("appending after recovery: {error}");
    let writer = log.start_run(LATER.0, LATER.1, b"later").map_err(fail)?;
    for number in 0..LATER_RECORDS {
        let payload = later_payload(number);
        let mut record = NewRecord::new(&payload);
        if number + 1 == LATER_RECORDS {
            record = record.durability(Durability::Disk);
        }
        let appended = writer.append_record(&record).map_err(fail)?;
        if appended.seq.0 != number as u64 {
            return Err(format!("the new run goes on at {}", appended.seq));
        }
    }
    writer.end(&Outcome::completed()).map_err(fail)?;
    drop(writer);
    for (run, seen) in model.runs.iter().zip(&found.seen) {
        let Some((count, status)) = *seen else { continue };
        if status.is_ended() {
            continue;
        }
        let writer = log.writer((run.agent.as_str(), run.run.as_str())).map_err(fail)?;
        let appended = writer.append(b"more").map_err(fail)?;
        if appended.seq.0 != count as u64 {
            return Err(format!("{} goes on at {} instead of {count}", run.run, appended.seq));
        }
        break;
    }
    Ok(())
}

/// Numbers that were given out before the crash are not given out again, whatever was lost.
fn check_numbers(log: &RunLog, given: (Lsn, Option<Version>)) -> Result<(), String> {
    let mut batch = Batch::new();
    batch.put("later", "document", NewRecord::new(b"later"));
    let committed = log.commit(&batch).map_err(|error| format!("later: {error}"))?;
    let next = (committed.lsn, committed.versions[0]);
    match next.0 > given.0 && next.1 > given.1 {
        true => Ok(()),
        false => Err(format!("{next:?} were given out though {given:?} had been before")),
    }
}

/// The appends of [`go_on_appending`] are there, besides everything that was found before.
fn check_continued(log: &RunLog, model: &Model, found: &Found, what: &str) -> Result<(), String> {
    let fail = |error: runlog::Error| format!("{what}: {error}");
    let later: Vec<Vec<u8>> = log
        .trace(LATER)
        .map_err(fail)?
        .map(|record| record.map(|record| record.payload().to_vec()))
        .collect::<Result<_, _>>()
        .map_err(fail)?;
    if later != (0..LATER_RECORDS).map(later_payload).collect::<Vec<_>>() {
        return Err(format!("{what}: the new run has {} other records", later.len()));
    }
    let mut continued = false;
    for (run, seen) in model.runs.iter().zip(&found.seen) {
        let name = (run.agent.as_str(), run.run.as_str());
        let summary = log.run(name);
        let Some((count, status)) = *seen else {
            if !matches!(summary, Err(runlog::Error::RunNotFound { .. })) {
                return Err(format!("{what}: {name:?} came back: {summary:?}"));
            }
            continue;
        };
        let summary = summary.map_err(fail)?;
        let more = u64::from(!continued && !status.is_ended());
        continued |= more == 1;
        if summary.status != status || summary.records != count as u64 + more {
            return Err(format!("{what}: {name:?} is {summary:?}, not {count} + {more}"));
        }
        for (place, record) in log.trace(name).map_err(fail)?.enumerate() {
            let record = record.map_err(fail)?;
            let expected = run.records[..count].get(place).map_or(&b"more"[..], |rec| &rec.payload);
            if *record.payload() != *expected {
                return Err(format!("{what}: {name:?} record {place} is another one"));
            }
        }
    }
    if read_documents(log).map_err(|error| format!("{what}: {error}"))? != found.documents {
        return Err(format!("{what}: the documents are others"));
    }
    check_whole(log).map_err(|error| format!("{what}: {error}"))
}
