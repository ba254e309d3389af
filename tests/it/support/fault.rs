//! What goes wrong with the disk of a world, chosen from a seed.
//!
//! - [`FaultPlan`]: failures of a disk that is in use: kills, failed syncs and other calls, no
//!   space.
//! - [`Loss`]: how a process ends, and what a disk has of its work then.
//! - [`damage`]: faults of the medium between two lives.

pub(crate) mod damage;

use std::io::ErrorKind;

use runlog_sim::{CrashImages, Fault, OpKind, SimDisk, SplitMix64, Survivors};

use super::gate::Gate;
use super::machine::EXTENT;
use super::model::Model;

/// What the header of a segment begins with.
const HEADER: &[u8] = b"RLOGSEG2";

/// Something that goes wrong with a disk.
#[derive(Debug, Clone)]
pub(crate) enum FaultPlan {
    /// The process dies before this operation.
    Kill(usize),
    /// This operation fails.
    Fails(usize, Fault),
    /// Each operation fails from this one on.
    FailsFrom(usize, Fault),
    /// Calls of these kinds fail, each after so many others of its kind.
    Calls(Vec<(OpKind, u64, Fault)>),
    /// The call behind one of the next headers of segments fails.
    BehindHeader(u64, Fault),
    /// All space is gone from this operation on.
    FullFrom(usize),
    /// The disk has room for so many bytes.
    Capacity(u64),
}

impl FaultPlan {
    /// A failure within about so many operations from now on, for which there is space.
    pub(crate) fn failure(random: &mut SplitMix64, disk: &SimDisk, within: usize) -> Self {
        Self::of_way(random.below(11), random, disk, within)
    }

    /// A failure within about so many operations from now on, or too little space.
    pub(crate) fn choose(random: &mut SplitMix64, disk: &SimDisk, within: usize) -> Self {
        Self::of_way(random.below(13), random, disk, within)
    }

    fn of_way(way: u64, random: &mut SplitMix64, disk: &SimDisk, within: usize) -> Self {
        let fault = some_fault(random);
        let soon = disk.op_count() + random.index(within);
        match way {
            0..=1 => {
                let passed = random.below(1 + within as u64 / 12);
                Self::Calls(vec![(OpKind::Sync, passed, fault)])
            }
            2 => Self::Fails(soon, fault),
            3 => Self::FailsFrom(soon, fault),
            4..=5 => Self::Kill(soon),
            6..=7 => Self::behind_header(random),
            8..=10 => Self::some_calls(random, within as u64),
            11 => Self::FullFrom(soon),
            _ => Self::Capacity(disk.allocated() + random.below(8) * EXTENT / 2),
        }
    }

    pub(crate) fn behind_header(random: &mut SplitMix64) -> Self {
        Self::BehindHeader(random.below(16), some_fault(random))
    }

    fn some_calls(random: &mut SplitMix64, within: u64) -> Self {
        let mut calls = Vec::new();
        for _ in 0..1 + random.index(2) {
            // And how many of each there are about among 400 operations.
            let kinds = [
                (OpKind::Read, 200),
                (OpKind::Write, 200),
                (OpKind::Store, 100),
                (OpKind::SetLen, 2),
                (OpKind::Allocate, 8),
                (OpKind::Punch, 8),
            ];
            let (kind, often) = kinds[random.index(kinds.len())];
            // Reads take no space.
            let fault = match kind {
                OpKind::Read => Fault::error(ErrorKind::Other),
                _ => some_fault(random),
            };
            let first = random.below((often * within / 400).max(2));
            let times = if random.below(3) == 0 { 20 } else { 1 };
            calls.extend((first..first + times).map(|number| (kind, number, fault)));
        }
        Self::Calls(calls)
    }

    pub(crate) fn apply(&self, disk: &SimDisk, gate: &Gate) {
        match self {
            Self::Kill(at) => gate.shut_at(*at),
            Self::Fails(at, fault) => disk.fail_op(*at, *fault),
            Self::FailsFrom(at, fault) => disk.fail_from(*at, *fault),
            Self::Calls(calls) => {
                calls
                    .iter()
                    .for_each(|(kind, passed, fault)| disk.fail_nth(*kind, *passed, *fault));
            }
            Self::BehindHeader(passed, fault) => disk.fail_behind(HEADER, *passed, *fault),
            Self::FullFrom(at) => disk.fill_from(*at),
            Self::Capacity(bytes) => disk.set_capacity(*bytes),
        }
    }
}

/// The disk has space again.
pub(crate) fn give_space(disk: &SimDisk) {
    disk.fill_from(usize::MAX);
    disk.set_capacity(u64::MAX);
}

fn some_fault(random: &mut SplitMix64) -> Fault {
    let errors = [ErrorKind::Other, ErrorKind::StorageFull, ErrorKind::Interrupted];
    let error = errors[random.index(errors.len())];
    match random.coin() {
        true => Fault::error(error),
        false => Fault::short(error, random.index(9000)),
    }
}

/// How a process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The power went.
    Power(Survivors),
    /// The process was killed; of the next write or store a part was stored.
    Kill,
}

/// The losses to try at each operation.
pub(crate) const LOSSES: [Loss; 11] = [
    Loss::Power(Survivors::Nothing),
    Loss::Power(Survivors::Everything),
    Loss::Power(Survivors::Half),
    Loss::Power(Survivors::OnlyLast),
    Loss::Power(Survivors::AllButOneSector),
    Loss::Power(Survivors::AllButOneOp),
    Loss::Power(Survivors::TornLast),
    Loss::Power(Survivors::Half),
    Loss::Power(Survivors::AllButOneSector),
    Loss::Kill,
    Loss::Kill,
];

impl Loss {
    pub(crate) fn choose(random: &mut SplitMix64) -> Self {
        if random.coin() { Self::Kill } else { Self::Power(some_survivors(random)) }
    }

    /// What it leaves of a recorded life here. Returns how many events must be there, and how many
    /// may be.
    pub(crate) fn image_into(
        self,
        images: &mut CrashImages<'_>,
        model: &Model,
        random: &mut SplitMix64,
        image: &mut Vec<u8>,
    ) -> (usize, usize) {
        let boundary = images.boundary();
        match self {
            Self::Power(survivors) => {
                images.image_into(survivors, random.next_u64(), image);
                model.after_power_loss(boundary)
            }
            Self::Kill => {
                let torn = images.killed_within_into(random, image);
                model.after_kill(boundary, torn)
            }
        }
    }
}

/// What a power cut leaves of the unsynced operations.
pub(crate) fn some_survivors(random: &mut SplitMix64) -> Survivors {
    Survivors::ALL[random.index(Survivors::ALL.len())]
}
