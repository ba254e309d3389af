//! What `inspect` shows of the whole file, and of one segment.

use runlog::Damage;
use runlog::format::Directory;
use runlog::format::map::manifest::Use;
use runlog::format::map::superblock::{FLAG_CLEAN, FLAG_COPY, FLAG_INDEX_OPENING, Superblock};

use crate::failure::{Exit, Failure};
use crate::fields::{Fields, fields};
use crate::inspect::front::{Extent, Front, LOOKS, State};
use crate::inspect::raw::Raw;
use crate::inspect::{Found, frame};
use crate::output::{Output, count};
use crate::screen::Style;
use crate::table::{self, Column};

const EXTENTS: [Column; 8] = [
    Column::right("extent"),
    Column::right("offset"),
    Column::left("state"),
    Column::right("segment"),
    Column::right("end"),
    Column::right("seal").optional(1),
    Column::right("slot").optional(0),
    Column::text("damage").styled(Style::Bad),
];

const RUNS: [Column; 9] = [
    Column::right("number"),
    Column::id("agent"),
    Column::id("run"),
    Column::right("first_seq").optional(0),
    Column::right("records"),
    Column::right("bytes"),
    Column::right("stored_bytes").optional(1),
    Column::left("started").optional(2),
    Column::left("status"),
];

/// Writes a structure: an object, or a line for people that begins with its name.
fn tell(structure: &Fields, out: &mut Output) -> Result<(), Failure> {
    if out.is_json() {
        return Ok(out.object(structure)?);
    }
    let said = structure.said(out);
    let is_named = |name: &str| matches!(name, "event" | "slot");
    let (names, rest): (Vec<_>, Vec<_>) = said.into_iter().partition(|(name, _)| is_named(name));
    let names: Vec<String> = names.into_iter().map(|(_, text)| text).collect();
    let rest: Vec<String> = rest.iter().map(|(name, text)| format!("{name} {text}")).collect();
    Ok(out.line(format!("{:<13} {}", names.join(" "), rest.join(", ")))?)
}

/// What is said at the end.
fn verdict(damaged: usize, out: &mut Output) -> Result<Exit, Failure> {
    if out.is_json() || damaged > 0 {
        let places = count(damaged as u64, "damaged place");
        out.tell(&fields! { "event": "summary", "damaged": damaged }, places)?;
    }
    Ok(if damaged == 0 { Exit::Fine } else { Exit::Damage })
}

fn damage_of<T>(part: &Result<T, Damage>) -> Option<String> {
    part.as_ref().err().map(ToString::to_string)
}

/// The front of the file, and its extents.
pub(super) fn whole(raw: &Raw, mut front: Front, out: &mut Output) -> Result<Exit, Failure> {
    let mut extents = front.all(raw)?;
    // Where a writer went on in between, the two are of different moments.
    for _ in 1..LOOKS {
        if extents.iter().all(|extent| extent.damage.is_none()) {
            break;
        }
        front = Front::read(raw)?;
        extents = front.all(raw)?;
    }
    for structure in structures(&front) {
        tell(&structure, out)?;
    }
    let rows: Vec<Fields> = extents.iter().map(described).collect();
    table::list(out, &EXTENTS, &rows)?;
    let damaged = extents.iter().filter(|extent| extent.damage.is_some()).count();
    verdict(front.problems() + damaged, out)
}

/// What stands in front of the extents.
fn structures(front: &Front) -> Vec<Fields> {
    let header = front.header.as_ref().ok();
    let mut all = vec![fields! {
        "event": "header",
        "store": format!("{:032x}", u128::from_be_bytes(front.uuid)),
        "version": header.map(|header| header.version),
        "created_at": header.map(|header| header.created),
        "extent_len": front.size.bytes(),
        "guessed": front.is_guessed,
        "damage": damage_of(&front.header),
    }];
    for (slot, found) in front.slots.iter().enumerate() {
        let block = found.as_ref().ok();
        all.push(fields! {
            "event": "superblock",
            "slot": slot,
            "newest": block.is_some() && block == front.newest(),
            "epoch": block.map(|block| block.epoch.0),
            "durable": block.map(|block| block.durable),
            "next_segment": block.map(|block| block.next_segment),
            "next_run_number": block.map(|block| block.next_run_no),
            "next_lsn": block.map(|block| block.next_lsn),
            "flags": block.map(flags_of).unwrap_or_default(),
            "damage": damage_of(found),
        });
    }
    let owner = front.owner.as_ref().ok();
    let (at, manifest) = (front.manifest_at, front.manifest.as_ref().ok());
    all.push(fields! {
        "event": "owner",
        "pid": owner.map(|owner| owner.pid),
        "host": owner.map(|owner| &owner.host),
        "since": owner.map(|owner| owner.since),
        "damage": damage_of(&front.owner),
    });
    all.push(fields! {
        "event": "manifest",
        "offset": at.map(|at| at.offset),
        "bytes": at.map(|at| at.len),
        "generation": at.map(|at| at.generation),
        "records": manifest.map(|manifest| manifest.records),
        "snapshot": manifest.map(|manifest| manifest.header.snapshot),
        "damage": damage_of(&front.manifest),
    });
    all
}

fn flags_of(block: &Superblock) -> Vec<&'static str> {
    let named = [(FLAG_CLEAN, "clean"), (FLAG_INDEX_OPENING, "index_opening"), (FLAG_COPY, "copy")];
    let set = named.iter().filter(|(flag, _)| block.flags & flag != 0);
    set.map(|(_, name)| *name).collect()
}

fn described(extent: &Extent) -> Fields {
    let is_free = extent.state == State::Free;
    let header = extent.header.as_ref().ok().filter(|_| !is_free);
    let (sealed, slot) = match extent.used {
        Some(Use::Log { sealed, .. }) => (sealed, None),
        Some(Use::Index { slot }) => (None, Some(slot)),
        _ => (None, None),
    };
    fields! {
        "event": "extent",
        "extent": extent.number,
        "offset": extent.at,
        "state": extent.state,
        // By the manifest, else by the header.
        "segment": extent.key().filter(|_| !is_free).map(|key| key.id),
        // Where the log of a sealed segment ends, and where its directory is.
        "end": sealed.map(|sealed| sealed.end),
        "seal": sealed.map(|sealed| sealed.seal),
        // The place in the index.
        "slot": slot,
        "next_run_number": header.map(|header| header.next_run_no),
        "next_lsn": header.map(|header| header.next_lsn),
        "damage": extent.damage.map(|damage| damage.to_string()),
    }
}

/// The header, the directory and the frames of the segment in an extent.
pub(super) fn segment(found: &Found, out: &mut Output) -> Result<Exit, Failure> {
    let Found { extent, segment } = found;
    tell(&described(extent), out)?;
    let directory = segment.directory();
    if let Some(found) = &directory {
        let listed = found.as_ref().ok();
        let structure = fields! {
            "event": "directory",
            "segment": segment.key.id,
            "offset": segment.sealed.map(|sealed| sealed.seal),
            "runs": listed.map(Directory::run_count),
            "evictions": listed.map(Directory::eviction_count),
            "first_lsn": listed.map(Directory::first_lsn),
            "last_lsn": listed.map(Directory::last_lsn),
            "next_run_number": listed.map(Directory::next_run_no),
            "damage": damage_of(found),
        };
        tell(&structure, out)?;
        table::list(out, &RUNS, &listed.map(runs).unwrap_or_default())?;
    }
    let items = segment.items();
    frame::list(segment, &items, out)?;
    let damaged = items.iter().filter(|item| item.is_damaged()).count()
        + usize::from(extent.damage.is_some())
        + usize::from(matches!(directory, Some(Err(_))));
    verdict(damaged, out)
}

/// The runs of a directory that was checked, so that no run of it fails.
fn runs(directory: &Directory<'_>) -> Vec<Fields> {
    let entries = (0..directory.run_count()).filter_map(|slot| directory.run(slot).ok());
    let row = |entry: runlog::format::RunEntry| {
        fields! {
            "event": "run",
            "number": entry.run_no,
            "agent": entry.agent,
            "run": entry.run,
            "document": entry.document,
            "first_seq": entry.first_seq,
            "records": entry.records,
            "chunks": entry.chunks,
            "bytes": entry.bytes,
            "stored_bytes": entry.stored,
            "started": entry.start.is_some(),
            "status": entry.end.map(|end| end.status),
            "held": entry.hold.map(|hold| hold.held),
        }
    };
    entries.map(row).collect()
}
