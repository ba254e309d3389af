//! What `inspect` shows of the whole file, and of one segment.

use std::path::Path;

use runlog::format::Directory;
use runlog::format::map::manifest::Use;
use runlog::format::map::superblock::{FLAG_CLEAN, FLAG_COPY, FLAG_INDEX_OPENING, Superblock};
use runlog::{AgentId, Damage, LogPosition, RunId, RunNo, RunStatus, Timestamp};
use serde::Serialize;

use crate::escape::shown;
use crate::failure::{Exit, Failure};
use crate::inspect::Found;
use crate::inspect::frame::{FrameRow, cells, columns};
use crate::inspect::front::{Extent, Front, LOOKS, State, area_name};
use crate::inspect::raw::Raw;
use crate::inspect::segment::{Item, Segment};
use crate::output::{Output, count, grouped, size};
use crate::screen::Style;
use crate::table::{self, Cell, Column};

/// An object of the output.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Header {
        store: String,
        version: Option<u32>,
        created_at: Option<Timestamp>,
        extent_len: u64,
        guessed: bool,
        damage: Option<String>,
    },
    Superblock {
        slot: usize,
        newest: bool,
        epoch: Option<u64>,
        durable: Option<LogPosition>,
        next_segment: Option<u32>,
        next_run_number: Option<u64>,
        next_lsn: Option<u64>,
        flags: Vec<&'static str>,
        damage: Option<String>,
    },
    Owner {
        pid: Option<u32>,
        host: Option<&'a str>,
        since: Option<Timestamp>,
        damage: Option<String>,
    },
    Manifest {
        offset: Option<u64>,
        bytes: Option<u64>,
        generation: Option<u64>,
        records: Option<u64>,
        snapshot: Option<u32>,
        damage: Option<String>,
    },
    Extent(ExtentRow),
    Directory {
        segment: u32,
        offset: Option<u32>,
        runs: Option<u32>,
        evictions: Option<u32>,
        first_lsn: Option<u64>,
        last_lsn: Option<u64>,
        next_run_number: Option<u64>,
        damage: Option<String>,
    },
    Run(RunRow<'a>),
    Frame(&'a FrameRow<'a>),
    Gap {
        offset: u32,
        bytes: u32,
        blank: bool,
        damaged: bool,
    },
    Summary {
        damaged: usize,
    },
}

/// An extent, as an object.
#[derive(Serialize)]
struct ExtentRow {
    extent: u32,
    offset: u64,
    state: State,
    /// The segment by the manifest, else by the header.
    segment: Option<u32>,
    /// Where the log of a sealed segment ends, and where its directory is.
    end: Option<u32>,
    seal: Option<u32>,
    /// The place in the index.
    slot: Option<u32>,
    /// Of the header of a segment.
    next_run_number: Option<u64>,
    next_lsn: Option<u64>,
    damage: Option<String>,
}

/// A run of a directory.
#[derive(Serialize)]
struct RunRow<'a> {
    number: RunNo,
    agent: &'a AgentId,
    run: &'a RunId,
    document: bool,
    first_seq: Option<u64>,
    records: u32,
    chunks: u32,
    bytes: u64,
    stored_bytes: u64,
    started: bool,
    status: Option<RunStatus>,
    held: Option<bool>,
}

/// What is said at the end.
fn verdict(damaged: usize, out: &mut Output) -> Result<Exit, Failure> {
    if out.is_json() {
        out.object(&Event::Summary { damaged })?;
    } else if damaged > 0 {
        let places = count(damaged as u64, "place");
        let are = if damaged == 1 { "is" } else { "are" };
        out.line(format!("{places} of what is shown here {are} damaged"))?;
    }
    Ok(if damaged == 0 { Exit::Fine } else { Exit::Damage })
}

fn text_of(damage: Damage) -> String {
    damage.to_string()
}

/// The front of the file, and its extents.
pub(super) fn whole(
    raw: &Raw,
    mut front: Front,
    path: &Path,
    out: &mut Output,
) -> Result<Exit, Failure> {
    let mut extents = front.all(raw)?;
    // Where a writer went on in between, the two are of different moments.
    for _ in 1..LOOKS {
        if extents.iter().all(|extent| extent.damage.is_none()) {
            break;
        }
        front = Front::read(raw)?;
        extents = front.all(raw)?;
    }
    if out.is_json() {
        front_objects(&front, out)?;
        for extent in &extents {
            out.object(&Event::Extent(row_of(extent)))?;
        }
    } else {
        front_lines(&front, path, out)?;
        out.line("")?;
        let columns = [
            Column::right("EXTENT"),
            Column::right("OFFSET"),
            Column::left("STATE"),
            Column::left("OWNER"),
            Column::right("LENGTH"),
            Column::text("DAMAGE"),
        ];
        let rows: Vec<_> = extents.iter().map(extent_cells).collect();
        table::write(out, &columns, &rows)?;
    }
    let damaged = extents.iter().filter(|extent| extent.damage.is_some()).count();
    verdict(front.problems() + damaged, out)
}

fn hex(bytes: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(bytes))
}

fn front_objects(front: &Front, out: &mut Output) -> Result<(), Failure> {
    let header = front.header.as_ref();
    out.object(&Event::Header {
        store: hex(front.uuid),
        version: header.ok().map(|header| header.version),
        created_at: header.ok().map(|header| header.created),
        extent_len: front.size.bytes(),
        guessed: front.is_guessed,
        damage: header.err().copied().map(text_of),
    })?;
    for (slot, block) in front.slots.iter().enumerate() {
        let (block, damage) = (block.as_ref().ok(), block.as_ref().err());
        out.object(&Event::Superblock {
            slot,
            newest: block.is_some() && block == front.newest(),
            epoch: block.map(|block| block.epoch.0),
            durable: block.map(|block| block.durable),
            next_segment: block.map(|block| block.next_segment.0),
            next_run_number: block.map(|block| block.next_run_no.0),
            next_lsn: block.map(|block| block.next_lsn.0),
            flags: block.map(flags_of).unwrap_or_default(),
            damage: damage.copied().map(text_of),
        })?;
    }
    let owner = front.owner.as_ref();
    out.object(&Event::Owner {
        pid: owner.ok().map(|owner| owner.pid),
        host: owner.ok().map(|owner| owner.host.as_str()),
        since: owner.ok().map(|owner| owner.since),
        damage: owner.err().copied().map(text_of),
    })?;
    let (at, manifest) = (front.manifest_at, front.manifest.as_ref());
    out.object(&Event::Manifest {
        offset: at.map(|at| at.offset),
        bytes: at.map(|at| at.len),
        generation: at.map(|at| at.generation),
        records: manifest.ok().map(|manifest| manifest.records),
        snapshot: manifest.ok().map(|manifest| manifest.header.snapshot),
        damage: manifest.err().copied().map(text_of),
    })?;
    Ok(())
}

fn flags_of(block: &Superblock) -> Vec<&'static str> {
    let named = [(FLAG_CLEAN, "clean"), (FLAG_INDEX_OPENING, "index_opening"), (FLAG_COPY, "copy")];
    let set = named.iter().filter(|(flag, _)| block.flags & flag != 0);
    set.map(|(_, name)| *name).collect()
}

fn front_lines(front: &Front, path: &Path, out: &mut Output) -> Result<(), Failure> {
    out.line(format!("file          {}, {}", shown(path), size(front.len)))?;
    out.line(match &front.header {
        Ok(header) => format!(
            "header        store {}, format {}, created {}, extents of {}",
            hex(front.uuid),
            header.version,
            out.time(header.created),
            size(front.size.bytes()),
        ),
        Err(damage) => {
            let from = if front.is_guessed { "headers of segments" } else { "a superblock" };
            let (store, extents) = (hex(front.uuid), size(front.size.bytes()));
            format!(
                "header        damaged: {damage}; by {from}: store {store}, extents of {extents}"
            )
        }
    })?;
    for (slot, block) in front.slots.iter().enumerate() {
        let text = match block {
            Err(damage) => format!("damaged: {damage}"),
            Ok(block) => {
                let newest = if Some(block) == front.newest() { ", the newer one" } else { "" };
                let flags = flags_of(block).join(", ");
                let (epoch, durable) = (block.epoch, block.durable);
                let next = (block.next_segment, block.next_run_no, block.next_lsn);
                format!(
                    "epoch {epoch}{newest}, durable up to {durable}, \
                     next segment {}, run {}, order {}, flags: {}",
                    next.0,
                    next.1,
                    next.2,
                    if flags.is_empty() { "none" } else { &flags },
                )
            }
        };
        out.line(format!("superblock {slot}  {text}"))?;
    }
    out.line(match &front.owner {
        Ok(owner) => format!("owner         last opened by {owner} at {}", out.time(owner.since)),
        Err(damage) => format!("owner         damaged: {damage}"),
    })?;
    let place = front.manifest_at.map(|at| {
        let (place, len) = (area_name(at), size(at.len));
        format!("at {:#x} {place}, {len}, generation {}", at.offset, at.generation)
    });
    let place = place.unwrap_or_else(|| "no superblock says where it is".to_owned());
    out.line(match &front.manifest {
        Ok(manifest) => format!(
            "manifest      {place}, {}, {} of them in the snapshot",
            count(manifest.records, "record"),
            grouped(manifest.header.snapshot.into()),
        ),
        Err(damage) => format!("manifest      damaged: {damage} ({place})"),
    })?;
    Ok(())
}

fn row_of(extent: &Extent) -> ExtentRow {
    let sealed = match extent.used {
        Some(Use::Log { sealed, .. }) => sealed,
        _ => None,
    };
    let header = extent.header.as_ref().ok().filter(|_| extent.state != State::Free);
    ExtentRow {
        extent: extent.number.0,
        offset: extent.at,
        state: extent.state,
        segment: extent.key().filter(|_| extent.state != State::Free).map(|key| key.id.0),
        end: sealed.map(|sealed| sealed.end),
        seal: sealed.map(|sealed| sealed.seal),
        slot: match extent.used {
            Some(Use::Index { slot }) => Some(slot),
            _ => None,
        },
        next_run_number: header.map(|header| header.next_run_no.0),
        next_lsn: header.map(|header| header.next_lsn.0),
        damage: extent.damage.map(text_of),
    }
}

fn extent_cells(extent: &Extent) -> [Cell; 6] {
    let row = row_of(extent);
    let owner = match (row.segment, row.slot, extent.state) {
        (Some(segment), ..) => format!("segment {segment}"),
        (_, Some(slot), _) => format!("index, place {slot}"),
        (.., State::Map) => "manifest".to_owned(),
        _ => "-".to_owned(),
    };
    let style = match extent.state {
        State::Open => Style::Lively,
        _ => Style::Plain,
    };
    [
        extent.number.0.to_string().into(),
        format!("{:#x}", extent.at).into(),
        Cell::styled(extent.state.as_str(), style),
        owner.into(),
        row.end.map_or_else(|| "-".to_owned(), |end| grouped(end.into())).into(),
        Cell::styled(row.damage.unwrap_or_default(), Style::Bad),
    ]
}

/// The header, the directory and the frames of the segment in an extent.
pub(super) fn segment(found: &Found, out: &mut Output) -> Result<Exit, Failure> {
    let Found { extent, segment } = found;
    let directory = segment.directory();
    if out.is_json() {
        out.object(&Event::Extent(row_of(extent)))?;
        directory_objects(segment, directory, out)?;
    } else {
        segment_line(extent, segment, out)?;
        directory_lines(segment, directory, out)?;
    }
    let items = segment.items();
    frames(segment, &items, out)?;
    let damaged = items.iter().filter(|item| item.is_damaged()).count()
        + usize::from(extent.damage.is_some())
        + usize::from(matches!(directory, Some(Err(_))));
    verdict(damaged, out)
}

fn segment_line(extent: &Extent, segment: &Segment, out: &mut Output) -> Result<(), Failure> {
    let end = segment.sealed.map_or(String::new(), |sealed| {
        format!(", its log ends at {:#x}, the directory is at {:#x}", sealed.end, sealed.seal)
    });
    let (id, state, number) = (segment.key.id, extent.state.as_str(), extent.number);
    out.line(format!("segment    {id}, {state}, in extent {number} at {:#x}{end}", extent.at))?;
    out.line(match (&extent.header, &extent.damage) {
        (Ok(header), None) => format!(
            "header     salt {:#018x}, {}, next run {}, next order {}",
            header.key.salt,
            if header.purpose == runlog::format::segments::segment::Purpose::Output {
                "an output of compaction"
            } else {
                "in the order of the log"
            },
            header.next_run_no,
            header.next_lsn,
        ),
        (Err(damage), _) | (Ok(_), Some(damage)) => format!("header     damaged: {damage}"),
    })?;
    Ok(())
}

fn directory_objects(
    segment: &Segment,
    directory: Option<Result<Directory<'_>, Damage>>,
    out: &mut Output,
) -> Result<(), Failure> {
    let Some(found) = directory else { return Ok(()) };
    let directory = found.as_ref().ok();
    out.object(&Event::Directory {
        segment: segment.key.id.0,
        offset: segment.sealed.map(|sealed| sealed.seal),
        runs: directory.map(Directory::run_count),
        evictions: directory.map(Directory::eviction_count),
        first_lsn: directory.map(|directory| directory.first_lsn().0),
        last_lsn: directory.map(|directory| directory.last_lsn().0),
        next_run_number: directory.map(|directory| directory.next_run_no().0),
        damage: found.as_ref().err().copied().map(text_of),
    })?;
    let Some(directory) = directory else { return Ok(()) };
    // It was checked: no run of it fails.
    for entry in (0..directory.run_count()).filter_map(|slot| directory.run(slot).ok()) {
        out.object(&Event::Run(RunRow {
            number: entry.run_no,
            agent: &entry.agent,
            run: &entry.run,
            document: entry.document,
            first_seq: entry.first_seq.map(|seq| seq.0),
            records: entry.records,
            chunks: entry.chunks,
            bytes: entry.bytes,
            stored_bytes: entry.stored,
            started: entry.start.is_some(),
            status: entry.end.map(|end| end.status),
            held: entry.hold.map(|hold| hold.held),
        }))?;
    }
    Ok(())
}

fn directory_lines(
    segment: &Segment,
    directory: Option<Result<Directory<'_>, Damage>>,
    out: &mut Output,
) -> Result<(), Failure> {
    let directory = match directory {
        None => return Ok(out.line("directory  none yet")?),
        Some(Err(damage)) => return Ok(out.line(format!("directory  damaged: {damage}"))?),
        Some(Ok(directory)) => directory,
    };
    let hint = if segment.sealed.is_some() { "" } else { "; the manifest does not list it yet" };
    out.line(format!(
        "directory  {}, {}, orders {} to {}, next run {}{hint}",
        count(directory.run_count().into(), "run"),
        count(directory.eviction_count().into(), "eviction"),
        directory.first_lsn(),
        directory.last_lsn(),
        directory.next_run_no(),
    ))?;
    out.line("")?;
    let columns = [
        Column::right("RUN NO"),
        Column::id("AGENT"),
        Column::id("RUN"),
        Column::right("FROM").optional(0),
        Column::right("RECORDS"),
        Column::right("BYTES"),
        Column::right("STORED").optional(1),
        Column::left("HERE"),
    ];
    let mut rows: Vec<[Cell; 8]> = Vec::new();
    for entry in (0..directory.run_count()).filter_map(|slot| directory.run(slot).ok()) {
        let mut here = Vec::new();
        here.extend(entry.document.then_some("document"));
        here.extend(entry.start.map(|_| "start"));
        here.extend(entry.end.map(|end| end.status.as_str()));
        here.extend(entry.hold.map(|hold| if hold.held { "hold" } else { "release" }));
        here.extend(entry.cold.then_some("cold"));
        rows.push([
            entry.run_no.to_string().into(),
            entry.agent.as_str().into(),
            entry.run.as_str().into(),
            entry.first_seq.map_or_else(|| "-".to_owned(), |seq| seq.to_string()).into(),
            grouped(entry.records.into()).into(),
            size(entry.bytes).into(),
            size(entry.stored).into(),
            here.join(", ").into(),
        ]);
    }
    Ok(table::write(out, &columns, &rows)?)
}

fn frames(segment: &Segment, items: &[Item], out: &mut Output) -> Result<(), Failure> {
    if out.is_json() {
        for item in items {
            match item {
                Item::Frame(framed) => {
                    out.object(&Event::Frame(&FrameRow::new(segment, framed)))?;
                }
                Item::Gap { from, len, is_blank, is_damage } => out.object(&Event::Gap {
                    offset: *from,
                    bytes: *len,
                    blank: *is_blank,
                    damaged: *is_damage,
                })?,
            }
        }
        return Ok(());
    }
    let names = segment.names(items);
    let rows: Vec<_> = items.iter().map(|item| cells(item, &names)).collect();
    out.line("")?;
    Ok(table::write(out, &columns(), &rows)?)
}
