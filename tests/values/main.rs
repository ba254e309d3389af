//! Values of the public API: what they print and parse, what they become, and what errors say of
//! themselves.

#![allow(clippy::pedantic, reason = "tests count and compare; the strict lints are for what ships")]

mod api_text;
mod damaged;
mod serialized;

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use runlog::storage::MemoryStorage;
use runlog::{
    AgentId, Allow, ContentType, Cursor, Durability, Error, Expected, IdKind, IoAction, LogCursor,
    Metadata, NewRecord, Options, Outcome, Protection, Retention, Rule, RunId, RunNo, RunRef,
    RunStatus, Seq, Timestamp, Version,
};

#[test]
fn a_status_and_a_rule_parse_what_they_print() {
    use RunStatus::{Cancelled, Completed, Failed, InProgress, Interrupted};
    for status in [InProgress, Completed, Failed, Cancelled, Interrupted] {
        assert_eq!(status.to_string().parse(), Ok(status));
    }
    for rule in [Rule::NewestN, Rule::Age, Rule::Bytes, Rule::Deleted, Rule::Erased] {
        assert_eq!(rule.to_string().parse(), Ok(rule));
    }
    for word in ["", "Completed", " completed", "done"] {
        let error = word.parse::<RunStatus>().unwrap_err().to_string();
        assert!(error.contains("interrupted"), "{error}");
        let error = word.parse::<Rule>().unwrap_err().to_string();
        assert!(error.contains("erased"), "{error}");
    }
}

#[test]
fn timestamps_and_system_times_become_one_another() {
    for nanos in [0, 1, -1, 1_500_000_000, -1_500_000_001, i64::MAX, i64::MIN + 1] {
        assert_eq!(Timestamp::from(SystemTime::from(Timestamp(nanos))), Timestamp(nanos));
    }
    let second = Duration::from_secs(1);
    assert_eq!(Timestamp::from(UNIX_EPOCH - second), Timestamp(-1_000_000_000));
    // What 64 bits do not reach.
    let centuries = Duration::from_secs(400 * 365 * 86_400);
    assert_eq!(Timestamp::from(UNIX_EPOCH + centuries), Timestamp(i64::MAX));
    assert_eq!(Timestamp::from(UNIX_EPOCH - centuries), Timestamp(i64::MIN));
}

/// What prints parses to the same.
fn parses_what_it_prints<T>(values: impl IntoIterator<Item = T>)
where
    T: std::fmt::Display + std::str::FromStr + PartialEq + std::fmt::Debug,
    T::Err: std::fmt::Debug + PartialEq,
{
    for value in values {
        assert_eq!(value.to_string().parse(), Ok(value));
    }
}

#[test]
fn words_numbers_and_ids_parse_what_they_print() {
    parses_what_it_prints([Protection::InProgress, Protection::Held, Protection::Newest]);
    parses_what_it_prints([Durability::Process, Durability::Disk]);
    parses_what_it_prints((0..=u8::MAX).map(ContentType::from_code));
    parses_what_it_prints([Seq(0), Seq(u64::MAX)]);
    parses_what_it_prints([RunNo(1), RunNo(u64::MAX)]);
    parses_what_it_prints([Version(7), Version(u64::MAX)]);
    parses_what_it_prints([AgentId::new("planner/\0 \u{e9}").unwrap()]);
    parses_what_it_prints([RunId::new("run 7").unwrap()]);
    assert_eq!("".parse::<RunId>().unwrap_err().kind, IdKind::Run);
    for word in ["JSON", "custom:127", "custom:0200", "custom:256", "unknown:1", "unknown:", ""] {
        let error = word.parse::<ContentType>().unwrap_err().to_string();
        assert!(error.contains("msgpack"), "{error}");
    }
}

#[test]
fn the_cursor_of_a_page_parses_from_what_it_prints() {
    let log = Options::new().create_storage(Arc::new(MemoryStorage::new())).unwrap();
    let before_1970 = Metadata::default().at(Timestamp(-5));
    for run in ["one", "two"] {
        drop(log.start_run("a", run, before_1970).unwrap());
    }
    let cursor = log.list_runs(&runlog::RunQuery::new().agent("a").limit(1)).unwrap().next.unwrap();
    let parsed: Cursor = cursor.to_string().parse().unwrap();
    assert_eq!(parsed, cursor);
    assert_eq!(
        log.list_runs(&runlog::RunQuery::new().agent("a").after(parsed)).unwrap().runs[0].run,
        "one"
    );
}

const SECOND: i64 = 1_000_000_000;

#[test]
fn timestamps_print_as_rfc_3339() {
    for (at, text) in [
        (0, "1970-01-01T00:00:00.000000000Z"),
        (-1, "1969-12-31T23:59:59.999999999Z"),
        (951_782_400 * SECOND, "2000-02-29T00:00:00.000000000Z"),
        (i64::MAX, "2262-04-11T23:47:16.854775807Z"),
        (i64::MIN, "1677-09-21T00:12:43.145224192Z"),
    ] {
        assert_eq!(Timestamp(at).to_string(), text);
    }
    let at = Timestamp(1_763_681_630_805_900_000);
    assert_eq!(format!("{at:.3} {at:.0}"), "2025-11-20T23:33:50.805Z 2025-11-20T23:33:50Z");
}

#[test]
fn timestamps_of_every_year_parse_from_what_they_print() {
    let day_and_a_bit = 86_399_987_654_321_123;
    let values = std::iter::successors(Some(i64::MIN), |at| at.checked_add(day_and_a_bit));
    parses_what_it_prints(values.chain([i64::MAX]).map(Timestamp));
}

#[test]
fn timestamps_parse_from_rfc_3339_with_any_offset() {
    for (text, at) in [
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31T22:30:00.5-01:30", SECOND / 2),
        ("1970-01-01 00:00:00.123456789z", 123_456_789),
    ] {
        assert_eq!(text.parse(), Ok(Timestamp(at)), "{text:?}");
    }
}

#[test]
fn what_is_no_time_is_refused() {
    for text in [
        "",
        "0",
        "1970-01-01",
        "1970-01-01T00:00:00",
        "1970-02-29T00:00:00Z",
        "1970-13-01T00:00:00Z",
        "1970-01-01T24:00:00Z",
        "1970-01-01T00:00:00.Z",
        "1970-01-01T00:00:00Zjunk",
        "1970-01-01T00:00:00+1:00",
        "+970-01-01T00:00:00Z",
        "\u{661}970-01-01T00:00:00Z",
        // What 64 bits of nanoseconds do not reach.
        "9999-01-01T00:00:00Z",
        "0001-01-01T00:00:00Z",
        "1677-09-21T00:12:43.145224191Z",
        "2262-04-11T23:47:16.854775808Z",
    ] {
        let error = text.parse::<Timestamp>().unwrap_err().to_string();
        assert!(error.contains("RFC 3339"), "{text:?}: {error}");
    }
}

#[test]
fn what_the_store_said_of_a_run_names_that_run_and_no_later_one_with_its_ids() {
    let log = Options::new().create_storage(Arc::new(MemoryStorage::new())).unwrap();
    let writer = log.start_run("a", "r", ()).unwrap();
    let _ = writer.append(b"1").unwrap();
    assert!(log.hold(&writer, "to look at").unwrap());
    let held = log.held_runs().unwrap().remove(0);
    assert!(log.release(&held).unwrap());
    let _ = writer.end(&Outcome::completed().at(Timestamp(1))).unwrap();
    let summary = log.run(&writer).unwrap();
    let trace = log.trace(&summary).unwrap();
    let plan = log.gc_plan(&Retention::new().max_age(Duration::from_nanos(1))).unwrap();
    let planned = &plan.evict.iter().next().unwrap();
    assert_eq!((held.number(), planned.number()), (summary.number(), summary.number()));

    let names: [RunRef<'_>; 5] = [
        RunRef::from(&writer),
        RunRef::from(&summary),
        RunRef::from(&trace),
        RunRef::from(&held),
        RunRef::from(planned),
    ];
    for name in names {
        assert_eq!(log.run(name).unwrap(), summary, "{name:?}");
    }
    assert_eq!(log.delete_run(&summary).unwrap().bytes, 1);
    drop(log.start_run("a", "r", ()).unwrap());
    for name in names {
        assert!(log.run(name).unwrap_err().is_not_found(), "{name:?}");
    }
    // By its ids the later one is named.
    let ids = (summary.agent.clone(), summary.run.clone());
    assert_ne!(log.run(&ids).unwrap().number(), summary.number());
}

#[test]
fn errors_say_what_they_are_without_being_taken_apart() {
    type Kind = fn(&Error) -> bool;
    let kinds: [(&str, Kind); 9] = [
        ("corruption", Error::is_corruption),
        ("busy", Error::is_busy),
        ("disk full", Error::is_disk_full),
        ("other format", Error::is_other_format),
        ("not found", Error::is_not_found),
        ("closed", Error::is_closed),
        ("conflict", Error::is_conflict),
        ("run ended", Error::is_run_ended),
        ("invalid input", Error::is_invalid_input),
    ];
    let log = Options::new().create_storage(Arc::new(MemoryStorage::new())).unwrap();
    let run = log.start_run("a", "r", ()).unwrap();
    let _ = run.end(&Outcome::completed()).unwrap();
    let _ = log.docs().put("space", "key", &NewRecord::new(b"1")).unwrap();
    let put = log.docs().put_if("space", "key", &NewRecord::new(b"2"), Expected::Absent);
    let again = log.append_to("a", "r", &NewRecord::new(b"late"), Allow::nothing());
    let met = [
        ("not found", log.run("another").unwrap_err()),
        ("conflict", put.unwrap_err()),
        ("run ended", again.unwrap_err()),
        ("invalid input", log.start_run("", "r", ()).unwrap_err()),
    ];
    log.clone().close().unwrap();
    let met = met
        .into_iter()
        .chain([("closed", log.docs().put("s", "k", &NewRecord::new(b"")).unwrap_err())]);
    for (expected, error) in met {
        let said: Vec<&str> =
            kinds.iter().filter(|kind| kind.1(&error)).map(|kind| kind.0).collect();
        assert_eq!(said, [expected], "{error}");
    }
    assert!(Error::Poisoned.is_poisoned() && !Error::Closed.is_poisoned());
}

#[test]
fn errors_of_files_say_what_they_are() {
    let path = || std::path::PathBuf::from("path");
    let io = |kind: ErrorKind| Error::Io { action: IoAction::Open, source: Arc::new(kind.into()) };
    assert!(Error::AlreadyExists { path: path() }.is_already_exists());
    assert!(Error::NotRegularFile { path: path() }.is_not_a_store());
    assert!(Error::Locked { path: path(), live_views: 1 }.is_busy());
    assert!(Error::Replaced { path: path() }.is_overtaken());
    assert!(Error::NetworkFileSystem { name: "NFS" }.is_unsupported());
    assert!(Error::Exhausted { what: "segments" }.is_exhausted());
    for kind in [ErrorKind::PermissionDenied, ErrorKind::ReadOnlyFilesystem] {
        assert!(io(kind).is_io() && io(kind).is_permission_denied());
    }
    assert!(!io(ErrorKind::Interrupted).is_permission_denied());
    let full = Error::DiskFull { action: IoAction::Open };
    assert!(!full.is_io() && full.io_kind() == Some(ErrorKind::StorageFull));
}

#[test]
fn a_cursor_of_the_log_is_read_as_it_was_printed_and_nothing_else_is_one() {
    for text in ["00000000-0", "00000007-18446744073709551615", "ffffffff-9.3"] {
        assert_eq!(text.parse::<LogCursor>().unwrap().to_string(), text);
    }
    for wrong in [
        "",
        "-",
        "00000001-",
        "1-2",
        "0000000g-2",
        "00000001-2.",
        "00000001-2.x",
        "00000001--2",
        "00000001-+2",
        "00000001-99999999999999999999",
        "00000001-1.2.3",
    ] {
        assert!(wrong.parse::<LogCursor>().is_err(), "{wrong}");
    }
}
