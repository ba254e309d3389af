//! Readers of what a crash left, without a writer: they show what opening it would recover.

use std::sync::Arc;

use runlog::{Corruption, Place, Reader, ReaderOptions, RecoveryReport};
use runlog_sim::settings::scale;
use runlog_sim::{CrashImages, SimDisk, SplitMix64};

use crate::support::answers::{answers, first_difference};
use crate::support::campaign::Campaign;
use crate::support::cuts::Epoch;
use crate::support::fault::Loss;
use crate::support::fault::damage::Harm;
use crate::support::machine::Machine;
use crate::support::model::SPACE;
use crate::support::stories::tell_any;

/// Few enough for a plain `cargo test`, and those of CI.
const IMAGES: [u64; 2] = [400, 600];
const SEED: u64 = 2026;
/// Of so many images one is damaged besides.
const HARMED: u64 = 5;

/// What both must report alike. A reader reads all directories at once, and may tell more damage.
fn compare_reports(found: &RecoveryReport, recovered: &RecoveryReport) -> Result<(), String> {
    let of = |report: &RecoveryReport| {
        let RecoveryReport { clean, sealed_segments, .. } = *report;
        let counts = (sealed_segments, report.scanned_segments, report.frames);
        (clean, counts, report.torn)
    };
    let missing = recovered.damaged.iter().find(|damage| !found.damaged.contains(damage));
    if of(found) != of(recovered) || missing.is_some() {
        return Err(format!("the reader reports\n{found}\nand the opening\n{recovered}"));
    }
    Ok(())
}

fn compare(epoch: &Epoch, image: Vec<u8>) -> Result<(), String> {
    let machine = Machine { background: None, ..epoch.machine.clone() };
    let options = ReaderOptions::new().environment(machine.environment());
    let disk = SimDisk::untracked(image.clone());
    let reader: Result<Reader, _> = options.open_storage(Arc::new(disk.clone()));
    let copy = SimDisk::untracked(image.clone());
    let options = machine.options().receipts(u64::MAX, core::time::Duration::MAX);
    let log = options.open_storage(Arc::new(copy));
    let (reader, log) = match (reader, log) {
        (Ok(reader), Ok(log)) => (reader, log),
        (Err(one), Err(other)) if one.to_string() == other.to_string() => return Ok(()),
        (one, other) => return Err(format!("{:?}, and {:?}", one.err(), other.err())),
    };
    compare_reports(&reader.recovery_report(), log.recovery_report())?;
    let (mine, expected) = (answers(&reader, SPACE), answers(&log, SPACE));
    if let Some(difference) = first_difference(&mine, &expected) {
        return Err(format!("{}\nthe reader answers {difference}", log.recovery_report()));
    }
    let verified = reader.verify().map_err(|error| format!("verify: {error}"))?;
    let after = log.verify().map_err(|error| format!("verify of the opened: {error}"))?;
    // Opening writes the page of the owner anew, of which a power cut may leave a part.
    let is_left = |problem: &&Corruption| problem.place != Place::OwnerPage;
    if after.is_clean()
        && log.recovery_report().damaged.is_empty()
        && let Some(problem) = verified.problems.iter().find(is_left)
    {
        return Err(format!("verify: {problem}"));
    }
    match reader.refresh() {
        Ok(false) => {}
        other => return Err(format!("refresh without a writer: {other:?}")),
    }
    (disk.image() == image).then_some(()).ok_or_else(|| "a reader changed the file".to_owned())
}

#[test]
fn what_a_crash_left_reads_as_opening_it_would_recover_it() {
    let campaign = Campaign::new("looks::images", SEED);
    let (seed, images_wanted) = (campaign.seed, scale(IMAGES[0], IMAGES[1]));
    campaign.run(
        |_, counts| counts.of("images") >= images_wanted,
        &["images", "harmed"],
        |story, counts| {
            let mut random = SplitMix64::for_case(seed ^ 0x696d_6167_6573, story);
            for (number, epoch) in tell_any(seed, story).1.iter().enumerate() {
                let mut images = CrashImages::new(&epoch.recording);
                let mut at = epoch.first;
                // Some of each of the first stories.
                while at <= epoch.recording.ops.len()
                    && counts.of("images") < images_wanted.div_ceil(8)
                {
                    images.seek(at);
                    let (loss, mut image) = (Loss::choose(&mut random), Vec::new());
                    let _ = loss.image_into(&mut images, &epoch.model, &mut random, &mut image);
                    let harm = Harm::ALL[random.index(Harm::ALL.len())];
                    let harm = (random.below(HARMED) == 0).then_some(harm);
                    if let Some(harm) = harm {
                        harm.on_image(&mut image, &mut random);
                        counts.one("harmed");
                    }
                    compare(epoch, image).map_err(|error| {
                        format!("epoch {number}, at {at}, {loss:?}, {harm:?}: {error}")
                    })?;
                    counts.one("images");
                    at += 1 + random.index(60);
                }
            }
            Ok(())
        },
    );
}
