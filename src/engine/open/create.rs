//! Writing a new store: everything before the extents, and the first segment. The caller makes it
//! durable and visible as a whole.

use crate::engine::setup::options::Options;
use crate::engine::state::tail::FIRST_STEP;
use crate::engine::storage::Storage;
use crate::error::{Error, IoAction, Result};
use crate::format::frames::frame::SegmentKey;
use crate::format::map::header::StaticHeader;
use crate::format::map::manifest::{AreaHeader, Change, RecordKey, encode_batch};
use crate::format::map::superblock::{FLAG_CLEAN, ManifestAt, Superblock};
use crate::format::segments::segment::{Purpose, SEGMENT_HEADER_LEN, SegmentHeader};
use crate::format::{EXTENTS_AT, ExtentSize, MANIFEST_AREA_LEN, MANIFEST_AT};
use crate::types::{Epoch, ExtentNo, LogPosition, Lsn, RunNo, SegmentId};

/// Writes an empty store, and syncs it.
pub(crate) fn write_store(storage: &dyn Storage, options: &Options) -> Result<()> {
    let what = "the extent size must be a power of two from 64 KiB to 64 MiB";
    let extent_size = ExtentSize::from_bytes(options.extent_size);
    let extent_size = extent_size.ok_or(Error::InvalidArgument { what })?;
    let environment = &options.environment;
    let mut random = [0; 24];
    environment
        .entropy
        .fill(&mut random)
        .map_err(|source| Error::io(IoAction::Randomness, source))?;
    let (uuid, salt) = random.split_at(16);
    let uuid: [u8; 16] = uuid.try_into().expect("the first 16 of 24 bytes");
    let salt = u64::from_le_bytes(salt.try_into().expect("the last 8 of 24 bytes"));
    let key = SegmentKey { id: SegmentId(1), salt };
    let extent = ExtentNo(0);

    let mut front = StaticHeader::new(uuid, extent_size, environment.clock.now()).encode();
    let records = [
        Change::Reserve { extent, segment: key.id, salt, purpose: Purpose::Log },
        Change::IndexLen { len: 0 },
    ];
    let generation = 1;
    let mut superblock = Superblock {
        uuid,
        extent_size,
        epoch: Epoch(0),
        durable: LogPosition { segment: key.id, offset: SEGMENT_HEADER_LEN },
        manifest: ManifestAt {
            offset: MANIFEST_AT,
            len: MANIFEST_AREA_LEN,
            generation,
            records: records.len() as u64,
        },
        next_segment: SegmentId(2),
        next_run_no: RunNo(1),
        next_lsn: Lsn(1),
        flags: FLAG_CLEAN,
        dead: 0,
    };
    for epoch in [Epoch(0), Epoch(1)] {
        superblock.epoch = epoch;
        front.extend(superblock.encode());
    }
    front.resize(usize::try_from(MANIFEST_AT).unwrap_or(0), 0);
    let snapshot = u32::try_from(records.len()).expect("two");
    front.extend(AreaHeader { uuid, generation, area_len: MANIFEST_AREA_LEN, snapshot }.encode());
    front.extend(encode_batch(&records, RecordKey { generation, index: 0 }));
    front.resize(usize::try_from(EXTENTS_AT).unwrap_or(0), 0);
    let (next_run_no, next_lsn) = (RunNo(1), Lsn(1));
    let purpose = Purpose::Log;
    let header = SegmentHeader { uuid, key, purpose, extent_size, next_run_no, next_lsn };
    front.extend(header.encode());
    let io = |action| move |source| Error::io(action, source);
    let step = EXTENTS_AT + u64::from(FIRST_STEP);
    storage.allocate(0, step).map_err(io(IoAction::Create))?;
    storage.write_at(0, &front).map_err(io(IoAction::Create))?;
    storage.sync().map_err(io(IoAction::Create))
}
