//! Timestamps as RFC 3339 text, in UTC.

use runlog::Timestamp;

/// `2026-11-22T01:11:34.000000005Z`: all nine digits, so that text sorts like time.
pub(crate) fn precise(at: Timestamp) -> String {
    format!("{:.9}", instant(at))
}

/// `2026-11-22T01:11:34.123Z`.
pub(crate) fn millis(at: Timestamp) -> String {
    format!("{:.3}", instant(at))
}

/// `2026-11-22T01:11:34Z`.
pub(crate) fn seconds(at: Timestamp) -> String {
    format!("{:.0}", instant(at))
}

/// Reads a date and time with an offset, as RFC 3339 says; nothing for text without one and for
/// times that 64-bit nanoseconds do not reach (before 1677 and after 2262).
pub(crate) fn parse(text: &str) -> Option<Timestamp> {
    let instant: jiff::Timestamp = text.parse().ok()?;
    i64::try_from(instant.as_nanosecond()).ok().map(Timestamp)
}

fn instant(at: Timestamp) -> jiff::Timestamp {
    // It reaches from the year -9999 to 9999, so all of ours are there.
    jiff::Timestamp::from_nanosecond(at.0.into()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

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
        assert_eq!(at("1970-01-01 00:00:00.123456789z"), Some(123_456_789));
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
