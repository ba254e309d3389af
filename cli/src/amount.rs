//! Sizes and ages as people write them: `1.5 GiB`, `500MB`, `30d`, `1d12h`.
//!
//! Ambiguous text is refused, since limits delete.

use std::time::Duration;

use jiff::{Span, SpanRelativeTo};

const NO_SIZE: &str = "expected a size such as 1GiB (2^30 bytes), 500MB (500 * 10^6 bytes) or 1024";
const LARGE_SIZE: &str = "expected a size below 16 EiB";
const SMALL_SIZE: &str = "expected a size of at least one byte, or 0 for no limit";
const NO_AGE: &str = "expected an age such as 30d, 12h, 90m, 45s, 2w or 1d12h, the largest unit \
                      first, of at most 292 years";

/// The largest age that the times of a store can express, in seconds.
const LONGEST: u64 = i64::MAX.unsigned_abs() / 1_000_000_000;

/// The most digits of a fraction: as many as any unit can express.
const FRACTION: usize = 18;

/// Reads a number of bytes. A fraction needs a unit; parts of a byte are dropped.
pub(crate) fn parse_size(text: &str) -> Result<u64, &'static str> {
    let text = text.trim();
    let is_number = |character: char| character.is_ascii_digit() || character == '.';
    let (number, unit) = text.split_at(text.find(|found| !is_number(found)).unwrap_or(text.len()));
    let factor = factor(unit.trim_start()).ok_or(NO_SIZE)?;
    let (whole, fraction) = match number.split_once('.') {
        Some(parts) if factor > 1 => parts,
        Some(_) => return Err(NO_SIZE),
        None => (number, "0"),
    };
    if whole.is_empty() || !(1..=FRACTION).contains(&fraction.len()) || fraction.contains('.') {
        return Err(NO_SIZE);
    }
    let scale = 10_u128.pow(u32::try_from(fraction.len()).map_err(|_| NO_SIZE)?);
    let fraction: u128 = fraction.parse().map_err(|_| NO_SIZE)?;
    let whole: u64 = whole.parse().map_err(|_| LARGE_SIZE)?;
    let size = u128::from(whole) * u128::from(factor) + fraction * u128::from(factor) / scale;
    match u64::try_from(size).map_err(|_| LARGE_SIZE)? {
        0 if fraction > 0 => Err(SMALL_SIZE),
        size => Ok(size),
    }
}

/// How many bytes a unit has. A single letter means a power of 1024: of the two readings of `10G`,
/// the one that deletes less.
fn factor(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_uppercase();
    if matches!(&*unit, "" | "B") {
        return Some(1);
    }
    let (letter, rest) = unit.split_at_checked(1)?;
    let power = u32::try_from("KMGTPE".find(letter)?).ok()? + 1;
    match rest {
        "" | "IB" => 1024_u64.checked_pow(power),
        "B" => 1000_u64.checked_pow(power),
        _ => None,
    }
}

/// Reads an age. A number without a unit is refused, except for zero; and so are months and years,
/// which have no length, and times of the day.
pub(crate) fn parse_age(text: &str) -> Result<Duration, &'static str> {
    let text = text.trim();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let days = SpanRelativeTo::days_are_24_hours();
    let is_read = |first: char| first.is_ascii_digit() && !text.contains(':');
    let span = Some(text).filter(|text| text.starts_with(is_read));
    let span = span.and_then(|text| text.parse::<Span>().ok()).ok_or(NO_AGE)?;
    let age = Duration::try_from(span.to_duration(days).map_err(|_| NO_AGE)?);
    let is_age = |age: &Duration| age.subsec_nanos() == 0 && age.as_secs() <= LONGEST;
    age.ok().filter(is_age).ok_or(NO_AGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_binary_and_decimal_units() {
        for (text, size) in [
            ("0", 0),
            ("1024", 1024),
            ("7B", 7),
            ("7 b", 7),
            ("1KiB", 1024),
            ("1k", 1024),
            ("1 kB", 1000),
            ("500MB", 500_000_000),
            ("500M", 500 << 20),
            ("1GiB", 1 << 30),
            ("1.5 GiB", 3 << 29),
            ("1.50gib", 3 << 29),
            ("0.5KB", 500),
            ("0.0 GiB", 0),
            ("1.0009765625KiB", 1025),
            ("0.001KiB", 1),
            ("15.999999999999999999EiB", u64::MAX - 1),
            (" 2TB ", 2_000_000_000_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text), Ok(size), "{text:?}");
        }
    }

    #[test]
    fn other_sizes_are_refused() {
        for text in [
            "",
            " ",
            "B",
            "GiB",
            "-1",
            "+1",
            "-1GiB",
            ".5GiB",
            "1.GiB",
            "1.5",
            "1.5B",
            "1,5GiB",
            "1_000",
            "1e9",
            "1 2",
            "1GiB 2",
            "1Gib/s",
            "1 XB",
            "0x10",
            "1..5GiB",
            "\u{661}GiB",
            "NaN",
            "inf",
            "1.0000000000000000000GiB",
        ] {
            assert_eq!(parse_size(text), Err(NO_SIZE), "{text:?}");
        }
    }

    #[test]
    fn sizes_that_no_file_has_are_refused() {
        for text in ["18446744073709551616", "16EiB", "18.5EB", "99999999999999999999999KiB"] {
            assert_eq!(parse_size(text), Err(LARGE_SIZE), "{text:?}");
        }
    }

    #[test]
    fn a_size_that_would_round_to_no_limit_is_refused() {
        assert_eq!(parse_size("0.0009KiB"), Err(SMALL_SIZE));
        assert_eq!(parse_size("0.0009KB"), Err(SMALL_SIZE));
    }

    #[test]
    fn ages_are_read_alone_and_in_combination() {
        for (text, seconds) in [
            ("0", 0),
            ("0s", 0),
            ("45s", 45),
            ("90m", 5_400),
            ("12h", 43_200),
            ("30d", 2_592_000),
            ("2w", 1_209_600),
            ("1d12h", 129_600),
            ("1d 12h", 129_600),
            (" 1w2d3h4m5s ", 788_645),
            ("400d", 34_560_000),
        ] {
            assert_eq!(parse_age(text), Ok(Duration::from_secs(seconds)), "{text:?}");
        }
    }

    #[test]
    fn other_ages_are_refused() {
        for text in [
            "", " ", "30", "d", "-1d", "+1d", "1.5d", "1d-2h", "12h1d", "1d1d", "1D", "30M", "1mo",
            "1y", "1d12", "12:30:00", "5ms", "1d,2h", "\u{663}d", "forever",
        ] {
            assert_eq!(parse_age(text), Err(NO_AGE), "{text:?}");
        }
    }

    #[test]
    fn ages_that_no_time_reaches_are_refused() {
        assert_eq!(parse_age("9223372036s"), Ok(Duration::from_secs(LONGEST)));
        for text in ["9223372037s", "106752d", "18446744073709551616s", "99999999999999999w"] {
            assert_eq!(parse_age(text), Err(NO_AGE), "{text:?}");
        }
        let longest = Duration::from_secs(LONGEST);
        assert!(runlog::Retention::new().max_age(longest).check().is_ok());
    }
}
