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

/// A second in nanoseconds, and a day in seconds.
const SECOND: i64 = 1_000_000_000;
const DAY: i64 = 86_400;

impl fmt::Display for Timestamp {
    /// Not by the library: lists print hundreds of thousands of times.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(DIGITS).min(DIGITS);
        let (seconds, nanos) = (self.0.div_euclid(SECOND), self.0.rem_euclid(SECOND));
        let (days, seconds) = (seconds.div_euclid(DAY), seconds.rem_euclid(DAY));
        let (year, month, day) = date(days);
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        let mut text = *b"0000-00-00T00:00:00.000000000Z";
        let mut end = text.len();
        let parts = [(nanos, 9), (second, 2), (minute, 2), (hour, 2), (day, 2), (month, 2)];
        for (number, width) in parts.into_iter().chain([(year, 4)]) {
            // Behind each part there is one mark.
            let start = end.saturating_sub(width + 1);
            put(text.get_mut(start..end - 1).unwrap_or_default(), number);
            end = start;
        }
        let kept = text.len() - 1 - (DIGITS - digits) - usize::from(digits == 0);
        if let Some(end) = text.get_mut(kept) {
            *end = b'Z';
        }
        let text = text.get(..=kept).unwrap_or_default();
        f.write_str(core::str::from_utf8(text).map_err(|_| fmt::Error)?)
    }
}

/// Writes the last digits of a number that is not negative.
fn put(place: &mut [u8], number: i64) {
    let mut rest = number.unsigned_abs();
    for byte in place.iter_mut().rev() {
        *byte = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
    }
}

/// Year, month and day in the Gregorian calendar, so many days after 1970-01-01. Years begin in
/// March here, so that the day that some of them lack is the last one.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let year = era * 400 + year + i64::from(month >= 10);
    (year, if month < 10 { month + 3 } else { month - 9 }, day)
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

    fn by_the_library(at: i64, digits: usize) -> String {
        let at = jiff::Timestamp::from_nanosecond(at.into()).unwrap();
        format!("{at:.digits$}")
    }

    #[test]
    fn every_day_prints_as_the_library_prints_it() {
        let last = i64::MAX / SECOND / DAY;
        for day in (-last..=last).step_by(3).chain(-800..=800) {
            let at = day * DAY * SECOND;
            for at in [at, at - 1] {
                assert_eq!(Timestamp(at).to_string(), by_the_library(at, DIGITS));
            }
        }
        for at in [i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX] {
            for digits in 0..=DIGITS {
                let text = format!("{:.digits$}", Timestamp(at));
                assert_eq!(text, by_the_library(at, digits));
            }
        }
    }

    proptest! {
        #[test]
        fn every_time_prints_as_the_library_prints_it(at in any::<i64>(), digits in 0..12_usize) {
            let text = format!("{:.digits$}", Timestamp(at));
            prop_assert_eq!(text, by_the_library(at, digits.min(DIGITS)));
            let text = Timestamp(at).to_string();
            prop_assert_eq!(text.parse(), Ok(Timestamp(at)));
        }
    }
}
