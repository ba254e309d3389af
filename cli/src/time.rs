//! Timestamps as RFC 3339 text, in UTC.

use runlog::Timestamp;

const SECOND: i64 = 1_000_000_000;
const DAY: i64 = 86_400;

/// `2026-11-22T01:11:34.000000005Z`: all nine digits, so that text sorts like time.
pub(crate) fn precise(at: Timestamp) -> String {
    let nanos = at.0.rem_euclid(SECOND);
    format!("{}.{nanos:09}Z", civil(at.0.div_euclid(SECOND)))
}

/// `2026-11-22T01:11:34.123Z`.
pub(crate) fn millis(at: Timestamp) -> String {
    let millis = at.0.rem_euclid(SECOND) / 1_000_000;
    format!("{}.{millis:03}Z", civil(at.0.div_euclid(SECOND)))
}

/// `2026-11-22T01:11:34Z`.
pub(crate) fn seconds(at: Timestamp) -> String {
    format!("{}Z", civil(at.0.div_euclid(SECOND)))
}

/// Reads a date and time with an offset, as RFC 3339 says; nothing for anything else and for times
/// that 64-bit nanoseconds do not reach (before 1677 and after 2262).
pub(crate) fn parse(text: &str) -> Option<Timestamp> {
    let bytes = text.as_bytes();
    let (year, month, day) =
        (number(bytes, 0, 4, b'-')?, number(bytes, 5, 2, b'-')?, number(bytes, 8, 2, b'T')?);
    let (hour, minute) = (number(bytes, 11, 2, b':')?, number(bytes, 14, 2, b':')?);
    let second = digits(bytes.get(17..19)?)?;
    let in_range = (1..=12).contains(&month)
        && (1..=days_in_month(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    if !in_range {
        return None;
    }
    let (nanos, rest) = fraction(bytes.get(19..)?)?;
    let seconds = days_from_civil(year, month, day) * DAY + hour * 3600 + minute * 60 + second
        - offset(rest)?;
    let total = i128::from(seconds) * i128::from(SECOND) + i128::from(nanos);
    i64::try_from(total).ok().map(Timestamp)
}

/// The decimal number of `len` digits at `at`, followed by `mark`. For `T` the forms `t` and a
/// space are as good.
fn number(bytes: &[u8], at: usize, len: usize, mark: u8) -> Option<i64> {
    let found = *bytes.get(at + len)?;
    let fits = found == mark || (mark == b'T' && matches!(found, b't' | b' '));
    if fits { digits(bytes.get(at..at + len)?) } else { None }
}

fn digits(bytes: &[u8]) -> Option<i64> {
    bytes.iter().try_fold(0, |value, byte| {
        byte.is_ascii_digit().then(|| value * 10 + i64::from(byte - b'0'))
    })
}

/// The nanoseconds of a fraction, if there is one, and what follows. Digits after the ninth are
/// dropped.
fn fraction(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let Some(after) = bytes.strip_prefix(b".") else {
        return Some((0, bytes));
    };
    let len = after.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (fraction, rest) = after.split_at(len);
    if fraction.is_empty() {
        return None;
    }
    let kept = fraction.iter().chain(std::iter::repeat(&b'0')).take(9);
    Some((kept.fold(0, |value, byte| value * 10 + i64::from(byte - b'0')), rest))
}

/// Seconds east of UTC.
fn offset(bytes: &[u8]) -> Option<i64> {
    let (sign, rest) = match bytes.split_first()? {
        (b'Z' | b'z', []) => return Some(0),
        (b'+', rest) => (1, rest),
        (b'-', rest) => (-1, rest),
        _ => return None,
    };
    if rest.len() != 5 {
        return None;
    }
    let (hours, minutes) = (number(rest, 0, 2, b':')?, digits(rest.get(3..5)?)?);
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

/// `2026-11-22T01:11:34` of seconds since 1970.
fn civil(seconds: i64) -> String {
    let (year, month, day) = civil_from_days(seconds.div_euclid(DAY));
    let of_day = seconds.rem_euclid(DAY);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 0000-01-01 to the first of January of `year`.
fn days_before_year(year: i64) -> i64 {
    let past = year - 1;
    year * 365 + past.div_euclid(4) - past.div_euclid(100) + past.div_euclid(400) + 1
}

fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let before_month: i64 = (1..month).map(|earlier| days_in_month(year, earlier)).sum();
    days_before_year(year) - days_before_year(1970) + before_month + day - 1
}

fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let since_zero = days + days_before_year(1970);
    // A first guess that is right or one too late, and then exact.
    let mut year = since_zero.div_euclid(365);
    while days_before_year(year) > since_zero {
        year -= 1;
    }
    let mut rest = since_zero - days_before_year(year);
    let mut month = 1;
    while rest >= days_in_month(year, month) {
        rest -= days_in_month(year, month);
        month += 1;
    }
    (year, month, rest + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Option<i64> {
        parse(text).map(|timestamp| timestamp.0)
    }

    #[test]
    fn known_times_are_written() {
        assert_eq!(precise(Timestamp(0)), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(precise(Timestamp(-1)), "1969-12-31T23:59:59.999999999Z");
        assert_eq!(seconds(Timestamp(951_782_400 * SECOND)), "2000-02-29T00:00:00Z");
        assert_eq!(millis(Timestamp(1_763_681_630_805_000_000)), "2025-11-20T23:33:50.805Z");
        assert_eq!(precise(Timestamp(i64::MAX)), "2262-04-11T23:47:16.854775807Z");
        assert_eq!(precise(Timestamp(i64::MIN)), "1677-09-21T00:12:43.145224192Z");
    }

    #[test]
    fn what_is_written_is_read_back() {
        let mut value = i64::MIN;
        while let Some(next) = value.checked_add(86_399_987_654_321_123) {
            assert_eq!(at(&precise(Timestamp(value))), Some(value));
            value = next;
        }
        assert_eq!(at(&precise(Timestamp(i64::MAX))), Some(i64::MAX));
    }

    #[test]
    fn offsets_and_fractions_are_read() {
        assert_eq!(at("1970-01-01T01:00:00+01:00"), Some(0));
        assert_eq!(at("1969-12-31T22:30:00.5-01:30"), Some(SECOND / 2));
        assert_eq!(at("1970-01-01 00:00:00.1234567899z"), Some(123_456_789));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "1970-01-01",
            "1970-01-01T00:00:00",
            "1970-02-29T00:00:00Z",
            "1970-13-01T00:00:00Z",
            "1970-01-01T24:00:00Z",
            "1970-01-01T00:00:00.Z",
            "1970-01-01T00:00:00Zjunk",
            "1970-01-01T00:00:00+1:00",
            "+970-01-01T00:00:00Z",
            "9999-01-01T00:00:00Z",
            "0001-01-01T00:00:00Z",
            "\u{661}970-01-01T00:00:00Z",
        ] {
            assert_eq!(at(text), None, "{text:?}");
        }
    }
}
