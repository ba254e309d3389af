//! What a power loss may leave, checked against the fault model of the crate.

use std::collections::BTreeSet;

use super::*;

fn write(offset: usize, data: &[u8]) -> Op {
    Op::Write { offset, data: data.into() }
}

fn durable(base: &[u8], ops: &[Op]) -> Durable {
    let mut durable = Durable::new(base.to_vec());
    for op in ops {
        durable.push(op);
    }
    durable
}

fn image(durable: &mut Durable, survivors: Survivors, seed: u64) -> Vec<u8> {
    let mut out = vec![0xee; 3];
    durable.image_into(survivors, seed, &mut out);
    out
}

fn volatile(durable: &Durable) -> Vec<u8> {
    let mut out = Vec::new();
    durable.volatile_into(&mut out);
    out
}

/// All images that many seeds give, each written as the first byte of each sector.
fn outcomes(base: &[u8], ops: &[Op], survivors: Survivors) -> BTreeSet<Vec<u8>> {
    let mut durable = durable(base, ops);
    let firsts = |image: Vec<u8>| image.chunks(SECTOR_LEN).map(|sector| sector[0]).collect();
    (0..200).map(|seed| firsts(image(&mut durable, survivors, seed))).collect()
}

fn set<const N: usize>(images: [&[u8]; N]) -> BTreeSet<Vec<u8>> {
    images.map(<[u8]>::to_vec).into()
}

#[test]
fn sectors_of_unsynced_writes_are_kept_or_lost_each_on_its_own() {
    let ops = [write(0, &[2; 1024]), write(1024, &[3; 512])];
    let base = [1; 1536];
    let all = set([
        &[1, 1, 1],
        &[1, 1, 3],
        &[1, 2, 1],
        &[1, 2, 3],
        &[2, 1, 1],
        &[2, 1, 3],
        &[2, 2, 1],
        &[2, 2, 3],
    ]);
    assert_eq!(outcomes(&base, &ops, Survivors::Half), all);
    assert_eq!(outcomes(&base, &ops, Survivors::Nothing), set([&[1, 1, 1]]));
    assert_eq!(outcomes(&base, &ops, Survivors::Everything), set([&[2, 2, 3]]));
    assert_eq!(outcomes(&base, &ops, Survivors::OnlyLast), set([&[1, 1, 3]]));
    let but_one = set([&[1, 2, 3], &[2, 1, 3], &[2, 2, 1]]);
    assert_eq!(outcomes(&base, &ops, Survivors::AllButOneSector), but_one);
    let but_op = set([&[1, 1, 3], &[2, 2, 1]]);
    assert_eq!(outcomes(&base, &ops, Survivors::AllButOneOp), but_op);
    assert_eq!(outcomes(&base, &ops, Survivors::TornLast), set([&[2, 2, 1]]));
    let torn = set([&[1, 1, 1], &[2, 1, 1]]);
    assert_eq!(outcomes(&base, &ops[..1], Survivors::TornLast), torn);
}

#[test]
fn a_sector_holds_what_it_held_after_some_of_its_writes() {
    // The second write covers half of the sector: with it comes what the first one left there.
    let mut durable = durable(&[1; 512], &[write(0, &[2; 512]), write(0, &[3; 256])]);
    let mut found = BTreeSet::new();
    for seed in 0..100 {
        let image = image(&mut durable, Survivors::Half, seed);
        found.insert((image[0], image[511]));
    }
    assert_eq!(found, [(1, 1), (2, 2), (3, 2)].into());
}

#[test]
fn a_sync_makes_everything_before_it_durable() {
    let ops = [write(0, &[2; 700]), Op::Sync, write(0, &[3; 512])];
    let mut durable = durable(&[1; 512], &ops);
    assert_eq!(durable.base(), [2; 700]);
    assert_eq!(durable.unsynced(), 1);
    for seed in 0..50 {
        let image = image(&mut durable, Survivors::Half, seed);
        assert_eq!(image.len(), 700);
        assert_eq!(image[512..], [2; 188]);
    }
}

#[test]
fn a_kept_write_behind_a_lost_length_grows_the_file() {
    let found = outcomes(&[1; 512], &[write(512, &[2; 1024])], Survivors::Half);
    // The length alone; the length and sectors; a sector without the length.
    let all = set([&[1], &[1, 0, 0], &[1, 0, 2], &[1, 2, 0], &[1, 2, 2], &[1, 2]]);
    assert_eq!(found, all);
    let mut partial = durable(b"", &[write(0, &[2; 700])]);
    let lens: BTreeSet<usize> =
        (0..50).map(|seed| image(&mut partial, Survivors::Half, seed).len()).collect();
    assert_eq!(lens, [0, 512, 700].into());
}

#[test]
fn what_was_cut_off_does_not_come_back_with_a_later_length() {
    let ops = [Op::SetLen { len: 512 }, Op::SetLen { len: 2048 }];
    let found = outcomes(&[1; 2048], &ops, Survivors::Half);
    assert_eq!(found, set([&[1, 1, 1, 1], &[1], &[1, 0, 0, 0]]));
    let ops = [Op::SetLen { len: 512 }, write(1536, &[2; 512])];
    let found = outcomes(&[1; 2560], &ops, Survivors::Half);
    let all = set([&[1, 1, 1, 1, 1], &[1, 1, 1, 2, 1], &[1], &[1, 0, 0, 2], &[1, 0, 0, 0]]);
    assert_eq!(found, all);
    let ops = [Op::SetLen { len: 100 }, Op::Allocate { end: 600 }];
    let mut durable = durable(&[1; 600], &ops);
    for seed in 0..50 {
        let image = image(&mut durable, Survivors::Half, seed);
        let kept = image.iter().take_while(|byte| **byte == 1).count();
        assert!(image[kept..].iter().all(|byte| *byte == 0));
        assert!(matches!((image.len(), kept), (100, 100) | (600, 100 | 600)), "{image:?}");
    }
}

#[test]
fn a_punch_is_a_write_of_zeros() {
    let ops = [Op::Punch { offset: 512, end: 9_999 }];
    let found = outcomes(&[1; 1536], &ops, Survivors::Half);
    assert_eq!(found, set([&[1, 1, 1], &[1, 0, 1], &[1, 1, 0], &[1, 0, 0]]));
    let mut durable = durable(&[1; 1536], &ops);
    assert_eq!(image(&mut durable, Survivors::Everything, 0).len(), 1536);
}

#[test]
fn a_failed_sync_drops_sectors_for_good() {
    let data: Vec<u8> = (1..=64).flat_map(|fill| [fill; SECTOR_LEN]).collect();
    let mut durable = durable(b"", &[write(0, &data), Op::FailedSync, Op::Sync, Op::Sync]);
    assert_eq!(volatile(&durable), data, "reads see everything");
    let survived = image(&mut durable, Survivors::Everything, 1);
    assert_eq!(survived, durable.base());
    assert_eq!(survived.len(), data.len(), "the length is stored with the next sync");
    let dropped: Vec<usize> = (0..64).filter(|sector| survived[sector * SECTOR_LEN] == 0).collect();
    assert!((16..48).contains(&dropped.len()), "{dropped:?}");

    // A write to a part of a dropped sector brings all of it to the disk.
    let sector = dropped[3];
    let at = sector * SECTOR_LEN;
    durable.push(&write(at + 100, b"new"));
    durable.push(&Op::Sync);
    let mut expected = data[at..at + SECTOR_LEN].to_vec();
    expected[100..103].copy_from_slice(b"new");
    assert_eq!(durable.base()[at..at + SECTOR_LEN], expected);
    let other = dropped[4] * SECTOR_LEN;
    assert_eq!(durable.base()[other], 0);
}

/// A random operation on a file of about eight sectors.
fn any_op(random: &mut SplitMix64, fill: u8) -> Op {
    let offset = random.index(8 * SECTOR_LEN);
    let len = 1 + random.index(3 * SECTOR_LEN);
    match random.index(10) {
        0 => Op::SetLen { len: offset },
        1 => Op::Allocate { end: offset + len },
        2 => Op::Punch { offset, end: offset + len },
        3 => Op::Sync,
        4 => Op::Refused,
        _ => write(offset, &vec![fill; len]),
    }
}

/// Goal: no choice leaves an image that the fault model does not allow. Method: random operations;
/// each sector of each image must be that of the volatile image after some of the operations since
/// the last sync, and no image may be longer than all of these.
#[test]
fn all_images_follow_the_fault_model() {
    let mut random = SplitMix64::new(0x5eed);
    let sector = |image: &[u8], number: usize| {
        let mut content = [0; SECTOR_LEN];
        let found = image.get(number * SECTOR_LEN..).unwrap_or_default();
        let len = found.len().min(SECTOR_LEN);
        content[..len].copy_from_slice(&found[..len]);
        content
    };
    for round in 0..300_u64 {
        let mut durable = Durable::new(Vec::new());
        let mut now = Vec::new();
        let mut moments = vec![Vec::new()];
        for step in 0..40 {
            let op = any_op(&mut random, step + 1);
            op.apply(&mut now);
            durable.push(&op);
            if op == Op::Sync {
                moments.clear();
            }
            moments.push(now.clone());
            assert_eq!(volatile(&durable), now);
            for survivors in Survivors::ALL {
                let image = image(&mut durable, survivors, round);
                let longest = moments.iter().map(Vec::len).max().unwrap();
                assert!(image.len() <= longest);
                for number in 0..image.len().div_ceil(SECTOR_LEN) {
                    let found = sector(&image, number);
                    let full = (number + 1) * SECTOR_LEN <= image.len();
                    let allowed = moments.iter().any(|moment| {
                        let mut was = sector(moment, number);
                        if !full {
                            was[image.len() % SECTOR_LEN..].fill(0);
                        }
                        was == found
                    });
                    assert!(allowed, "round {round}, step {step}, {survivors:?}, sector {number}");
                }
            }
            let nothing = image(&mut durable, Survivors::Nothing, 0);
            assert_eq!(nothing, moments[0]);
            let everything = image(&mut durable, Survivors::Everything, 0);
            assert_eq!(everything, now);
        }
    }
}

fn store(offset: usize, data: &[u8]) -> Op {
    Op::Store { offset, data: data.into() }
}

/// The words of an image that the stores of an unsynced sector left, as many seeds give them.
fn words(ops: &[Op], survivors: Survivors) -> BTreeSet<[u8; 3]> {
    let mut durable = durable(&[0; 1024], ops);
    let picked = |image: Vec<u8>| {
        assert!(image.chunks(WORD_LEN).all(|word| word.iter().all(|byte| *byte == word[0])));
        [image[0], image[WORD_LEN], image[512]]
    };
    (0..300).map(|seed| picked(image(&mut durable, survivors, seed))).collect()
}

#[test]
fn words_of_unsynced_stores_are_kept_or_lost_each_on_its_own() {
    let ops = [store(0, &[1; 16]), store(512, &[2; 16])];
    let half = words(&ops, Survivors::Half);
    for first in [[0, 0], [0, 1], [1, 0], [1, 1]] {
        for second in [0, 2] {
            assert!(half.contains(&[first[0], first[1], second]), "{first:?} {second}: {half:?}");
        }
    }
    assert_eq!(words(&ops, Survivors::Nothing), [[0, 0, 0]].into());
    assert_eq!(words(&ops, Survivors::Everything), [[1, 1, 2]].into());
    assert_eq!(words(&ops, Survivors::OnlyLast), [[0, 0, 2]].into());
    assert_eq!(words(&ops, Survivors::AllButOneOp), [[0, 0, 2], [1, 1, 0]].into());
    assert_eq!(words(&ops, Survivors::TornLast), [[1, 1, 0], [1, 1, 2]].into());
    let but_some = words(&ops, Survivors::AllButOneSector);
    assert!(but_some.contains(&[1, 0, 2]) && but_some.contains(&[0, 1, 2]), "{but_some:?}");
    assert!(but_some.iter().all(|found| found[2] == 2 || found[..2] == [1, 1]), "{but_some:?}");
}

#[test]
fn a_store_may_be_torn_although_a_later_one_into_the_same_sector_is_whole() {
    let ops = [store(0, &[1; 16]), store(16, &[2; 16])];
    let mut durable = durable(&[0; 512], &ops);
    let torn = (0..200).any(|seed| {
        let image = image(&mut durable, Survivors::AllButOneSector, seed);
        image[16..32] == [2; 16] && image[..16].contains(&0)
    });
    assert!(torn);
}

#[test]
fn a_store_that_was_synced_is_whole() {
    let mut durable = durable(&[0; 512], &[store(0, &[1; 64]), Op::Sync]);
    for survivors in Survivors::ALL {
        assert_eq!(image(&mut durable, survivors, 7)[..64], [1; 64]);
    }
    assert_eq!(volatile(&durable)[..64], [1; 64]);
}
