//! Values of the public API: what they print and parse, what they become, and what errors say of
//! themselves.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use runlog::storage::MemoryStorage;
use runlog::{Allow, Error, Expected, NewRecord, Options, Outcome, Rule, RunStatus, Timestamp};

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

#[test]
fn errors_say_what_they_are_without_being_taken_apart() {
    type Kind = fn(&Error) -> bool;
    let kinds: [(&str, Kind); 9] = [
        ("corruption", Error::is_corruption),
        ("busy", Error::is_busy),
        ("disk full", Error::is_disk_full),
        ("newer format", Error::is_newer_format),
        ("not found", Error::is_not_found),
        ("closed", Error::is_closed),
        ("conflict", Error::is_conflict),
        ("run ended", Error::is_run_ended),
        ("invalid input", Error::is_invalid_input),
    ];
    let log = Options::new().create_storage(Arc::new(MemoryStorage::new())).unwrap();
    let run = log.start_run("a", "r", ()).unwrap();
    let _ = run.end(&Outcome::completed()).unwrap();
    let _ = log.put("space", "key", &NewRecord::new(b"1")).unwrap();
    let put = log.put_if("space", "key", &NewRecord::new(b"2"), Expected::Absent);
    let again = log.append_to("a", "r", &NewRecord::new(b"late"), Allow::nothing());
    let met = [
        ("not found", log.run("another").unwrap_err()),
        ("conflict", put.unwrap_err()),
        ("run ended", again.unwrap_err()),
        ("invalid input", log.start_run("", "r", ()).unwrap_err()),
    ];
    log.clone().close().unwrap();
    let met =
        met.into_iter().chain([("closed", log.put("s", "k", &NewRecord::new(b"")).unwrap_err())]);
    for (expected, error) in met {
        let said: Vec<&str> =
            kinds.iter().filter(|kind| kind.1(&error)).map(|kind| kind.0).collect();
        assert_eq!(said, [expected], "{error}");
    }
    assert!(Error::Poisoned.is_poisoned() && !Error::Closed.is_poisoned());
}
