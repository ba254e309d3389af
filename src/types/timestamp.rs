//! Times: [`Timestamp`].

use core::fmt;
use core::str::FromStr;
use core::time::Duration;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::types::as_text::serde_as_text;

/// Nanoseconds since 1970-01-01T00:00:00Z; negative before.
///
/// It converts from and to [`SystemTime`]. 64 bits reach from 1677 to 2262; times outside of
/// that become the first or the last time within it.
///
/// It prints as RFC 3339 in UTC, with nine fractional digits unless the format names another
/// precision (further digits are cut off, not rounded). It parses RFC 3339 with any offset. A time
/// that prints with nine digits parses to the same time, for every value.
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
/// use runlog::Timestamp;
/// let at = UNIX_EPOCH + Duration::from_millis(1_500);
/// assert_eq!(Timestamp::from(at), Timestamp(1_500_000_000));
/// assert_eq!(std::time::SystemTime::from(Timestamp(1_500_000_000)), at);
///
/// assert_eq!(Timestamp::from(at).to_string(), "1970-01-01T00:00:01.500000000Z");
/// assert_eq!(format!("{:.0}", Timestamp::from(at)), "1970-01-01T00:00:01Z");
/// assert_eq!("1970-01-01T02:00:01.5+02:00".parse(), Ok(Timestamp::from(at)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(pub i64);

/// The text is not a time. The caller should write it as RFC 3339 says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct InvalidTimestamp;

impl fmt::Display for InvalidTimestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "not a time; expected RFC 3339 with an offset, such as 2026-11-22T01:11:34.5Z, \
             between the years 1677 and 2262",
        )
    }
}

impl core::error::Error for InvalidTimestamp {}

/// The number of fractional digits that represent a time exactly.
const DIGITS: usize = 9;

/// A time with all of its digits, which are zero.
const SHAPE: [u8; 30] = *b"0000-00-00T00:00:00.000000000Z";

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(DIGITS).min(DIGITS);
        let (seconds, nanos) = (self.0.div_euclid(NANOS), self.0.rem_euclid(NANOS));
        let (days, second) = (seconds.div_euclid(DAY), seconds.rem_euclid(DAY));
        let (year, month, day) = civil(days);
        let mut text = SHAPE;
        for (at, len, number) in [
            (0, 4, year),
            (5, 2, month),
            (8, 2, day),
            (11, 2, second / 3_600),
            (14, 2, second / 60 % 60),
            (17, 2, second % 60),
            (20, DIGITS, nanos),
        ] {
            let mut left = number;
            for place in text.get_mut(at..at + len).unwrap_or_default().iter_mut().rev() {
                *place += u8::try_from(left % 10).unwrap_or_default();
                left /= 10;
            }
        }
        // The point goes with the digits behind it.
        let end = if digits == 0 { 19 } else { 20 + digits };
        if let Some(last) = text.get_mut(end) {
            *last = b'Z';
        }
        let text = text.get(..=end).and_then(|text| core::str::from_utf8(text).ok());
        f.write_str(text.unwrap_or_default())
    }
}

/// Nanoseconds of a second, and seconds of a day.
const NANOS: i64 = 1_000_000_000;
const DAY: i64 = 86_400;

/// Year, month and day of a day since 1970-01-01. Years begin in March here, so that a leap day is
/// the last one of its year: 146,097 days are 400 of them.
fn civil(days: i64) -> (i64, i64, i64) {
    let from_march_of_0 = days + 719_468;
    let (era, day) = (from_march_of_0.div_euclid(146_097), from_march_of_0.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // Five months in a row have 153 days.
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let is_next = month >= 10;
    let month = if is_next { month - 9 } else { month + 3 };
    (era * 400 + year + i64::from(is_next), month, day)
}

impl FromStr for Timestamp {
    type Err = InvalidTimestamp;

    /// Reads a date and time with an offset, as RFC 3339 says.
    fn from_str(text: &str) -> Result<Self, InvalidTimestamp> {
        let at: jiff::Timestamp = text.parse().map_err(|_| InvalidTimestamp)?;
        i64::try_from(at.as_nanosecond()).map(Self).map_err(|_| InvalidTimestamp)
    }
}

serde_as_text!(Timestamp);

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(since) => Self(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)),
            Err(before) => {
                let nanos = i64::try_from(before.duration().as_nanos());
                Self(nanos.map_or(i64::MIN, |nanos| -nanos))
            }
        }
    }
}

impl From<Timestamp> for SystemTime {
    fn from(at: Timestamp) -> Self {
        let distance = Duration::from_nanos(at.0.unsigned_abs());
        if at.0 < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn assert_prints_like_jiff(at: i64) {
        let theirs = jiff::Timestamp::from_nanosecond(at.into()).unwrap();
        for digits in 0..12 {
            assert_eq!(format!("{:.digits$}", Timestamp(at)), format!("{theirs:.digits$}"));
        }
        assert_eq!(Timestamp(at).to_string(), format!("{theirs:.9}"));
        assert_eq!(Timestamp(at).to_string().parse(), Ok(Timestamp(at)));
    }

    #[test]
    fn the_ends_and_the_last_moments_of_days_print_as_they_are() {
        for at in [i64::MIN, i64::MAX, 0, -1, 1, -NANOS, NANOS - 1, DAY * NANOS - 1] {
            assert_prints_like_jiff(at);
        }
    }

    proptest! {
        #[test]
        fn any_time_prints_as_it_is(at: i64) {
            assert_prints_like_jiff(at);
        }
    }
}
