//! Times as people write them: `2026-01-31T12:00:00Z`, `2026-01-31`, `yesterday`, `7d`.

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{Timestamp as At, ToSpan as _, Zoned};
use runlog::Timestamp;

use crate::amount::parse_age;

/// Reads a time: one with an offset, a day or a time of the user's clock, or how long ago it was.
pub(crate) fn parse_time(text: &str) -> Result<Timestamp, &'static str> {
    let found = read(text.trim(), &Zoned::now());
    found.and_then(|at| i64::try_from(at.as_nanosecond()).ok()).map(Timestamp).ok_or(
        "expected a time such as 2026-01-31, 2026-01-31T12:00:00Z, today, yesterday, 7d or 12h",
    )
}

fn read(text: &str, now: &Zoned) -> Option<At> {
    let zone = now.time_zone();
    let of_day = |date: Date| start_of(date, zone);
    match text {
        "now" => return Some(now.timestamp()),
        "today" => return of_day(now.date()),
        "yesterday" => return of_day(now.date().checked_sub(1.day()).ok()?),
        _ => {}
    }
    if let Ok(at) = text.parse::<At>() {
        return Some(at);
    }
    if let Ok(age) = parse_age(text) {
        return now.timestamp().checked_sub(age).ok();
    }
    if text.contains([':', 'T', 't']) {
        let at: DateTime = text.parse().ok()?;
        return Some(at.to_zoned(zone.clone()).ok()?.timestamp());
    }
    of_day(text.parse().ok()?)
}

/// When a day begins.
fn start_of(date: Date, zone: &TimeZone) -> Option<At> {
    Some(date.to_zoned(zone.clone()).ok()?.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_ages_are_those_of_the_users_clock() {
        let zone = TimeZone::fixed(jiff::tz::offset(9));
        let at: At = "2026-01-31T20:30:00Z".parse().expect("a time");
        let now = at.to_zoned(zone);
        for (text, expected) in [
            ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z"),
            ("2026-01-31T12:00:00+02:00", "2026-01-31T10:00:00Z"),
            ("2026-01-31", "2026-01-30T15:00:00Z"),
            ("2026-01-31T12:00", "2026-01-31T03:00:00Z"),
            ("2026-01-31 12:00:30", "2026-01-31T03:00:30Z"),
            ("today", "2026-01-31T15:00:00Z"),
            ("yesterday", "2026-01-30T15:00:00Z"),
            ("now", "2026-01-31T20:30:00Z"),
            ("7d", "2026-01-24T20:30:00Z"),
            ("1d12h", "2026-01-30T08:30:00Z"),
        ] {
            let read = read(text, &now).map(|at| at.to_string());
            assert_eq!(read.as_deref(), Some(expected), "{text}");
        }
        for text in ["", "tomorrow", "7", "2026-13-01", "2026-01", "12:00", "-7d", "1mo"] {
            assert_eq!(read(text, &now), None, "{text:?}");
        }
    }
}
