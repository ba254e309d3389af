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

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The library supports the years -9999 to 9999, so it supports every timestamp.
        let at = jiff::Timestamp::from_nanosecond(self.0.into()).map_err(|_| fmt::Error)?;
        write!(f, "{at:.*}", f.precision().unwrap_or(DIGITS))
    }
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
