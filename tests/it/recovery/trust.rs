/// From the first areas to wider ones and on, by commits that each meet a full disk.
#[test]
fn a_full_disk_never_keeps_the_manifest_from_telling_what_was_freed() {
    for runs in [120, 150, 220, 280, 330, 450, 560, 640] {
        let disk = SimDisk::untracked(Vec::new());
        let log = options().index(false).create_storage(Arc::new(disk.clone())).unwrap();
        for run in 0..runs {
            fill(&log, &format!("run-{run}"));
        }
        log.checkpoint().unwrap();
        disk.set_capacity(disk.allocated());
        let extents = log.stats().unwrap().log_extents;
        for run in 0..runs - 4 {
            let _ = log.delete_run(format!("run-{run}").as_str()).unwrap();
        }
        log.reclaim().unwrap();
        let stats = log.stats().unwrap();
        assert!(stats.log_extents < extents / 2, "{runs}: {stats:?}");
        assert_filled(&log, runs - 4..runs);
        assert!(log.verify().unwrap().is_clean());
    }
}

/// A record of the manifest that was being written, on a disk without a free block.
#[test]
fn a_torn_manifest_is_opened_on_a_full_disk() {
    for runs in [60, 140, 250, 330, 500, 620] {
        let disk = SimDisk::untracked(Vec::new());
        let log = options().index(false).create_storage(Arc::new(disk.clone())).unwrap();
        for run in 0..runs {
            fill(&log, &format!("run-{run}"));
        }
        log.checkpoint().unwrap();
        drop(log);
        let mut image = disk.image();
        let (newest, end, index) = manifest(&image);
        let key = RecordKey { generation: newest.manifest.generation, index };
        let (extent, segment, salt) = (ExtentNo(9999), SegmentId(9999), u64::MAX);
        let reserve = Change::Reserve { extent, segment, salt, purpose: Purpose::Log };
        let record = encode_batch(&[reserve], key);
        image[end..end + 20].copy_from_slice(&record[..20]);
        let disk = SimDisk::from_image(image);
        disk.set_capacity(disk.allocated());
        for _ in 0..2 {
            let log = options().index(false).open_storage(Arc::new(disk.clone())).unwrap();
            assert_filled(&log, 0..runs);
        }
    }
}
