//! Reading the directories of many segments at once, on all processors, into memory that they
//! share.

use core::num::NonZero;
use core::ops::Range;
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;

use crate::engine::state::segment::Segment;
use crate::engine::storage::mmap_read::Room;
use crate::format::frames::frame::FRAME_HEADER_LEN;
use crate::format::{Directory, FrameHeader};

/// Reading fewer directories takes less time than starting a thread.
const WORTH_THREADS: usize = 8;

/// How many bytes share memory, which is given back when none of them is needed: few, since one
/// segment that stays keeps all of them.
const SHARED: usize = 4 << 20;

/// A directory to read: its segment, the header of its frame, and where it comes to lie.
type Job<'s> = (&'s Arc<Segment>, FrameHeader, Range<usize>);

/// Reads those that were not read yet. What cannot be read is read again, and told, when it is
/// needed.
pub(super) fn read_directories(segments: &[Arc<Segment>]) {
    let unread: Vec<_> = segments.iter().filter(|segment| !segment.has_directory()).collect();
    if unread.len() < WORTH_THREADS {
        return;
    }
    let (mut jobs, mut end) = (Vec::new(), 0);
    for segment in unread {
        let Ok(header) = segment.seal_header() else { continue };
        let len = header.frame_len() - FRAME_HEADER_LEN;
        let size = usize::try_from(segment.extent_size().bytes()).unwrap_or(usize::MAX);
        if header.position.offset as usize + FRAME_HEADER_LEN + len > size {
            // Not a frame of this segment, whatever its header says: reading it tells that.
            continue;
        }
        if end > 0 && end + len > SHARED {
            read(&jobs, end);
            jobs.clear();
            end = 0;
        }
        jobs.push((segment, header, end..end + len));
        end += len;
    }
    read(&jobs, end);
}

fn read(jobs: &[Job<'_>], len: usize) {
    let Ok(mut room) = Room::new(len.max(1)) else { return };
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = processors.min(jobs.len() / (WORTH_THREADS / 2));
    let done = {
        let (mut free, mut parts) = (&mut *room, Vec::new());
        for job in jobs {
            let Some((part, rest)) = free.split_at_mut_checked(job.2.len()) else { return };
            parts.push((job, part));
            free = rest;
        }
        let (parts, done) = (Mutex::new(parts), Mutex::new(Vec::new()));
        let next = || parts.lock().pop();
        let work = || {
            while let Some((job, part)) = next() {
                if is_read(job, part) {
                    done.lock().push(job);
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..threads {
                // Without the thread it only takes longer.
                let name = "runlog-check".to_owned();
                let _ = thread::Builder::new().name(name).spawn_scoped(scope, work);
            }
            work();
        });
        done.into_inner()
    };
    let room = Arc::new(room);
    for (segment, header, range) in done {
        let end = range.start + header.payload_len as usize;
        segment.keep_directory(Arc::clone(&room), range.start..end);
    }
}

/// Reads and checks a directory.
fn is_read((segment, header, _): &Job<'_>, part: &mut [u8]) -> bool {
    let at = segment.file_offset() + u64::from(header.position.offset) + FRAME_HEADER_LEN as u64;
    segment.disk().read(at, part).is_ok()
        && header.check_payload(segment.frames(), part).is_ok()
        && part
            .get(..header.payload_len as usize)
            .is_some_and(|payload| Directory::new(payload).is_ok_and(|found| found.check().is_ok()))
}
