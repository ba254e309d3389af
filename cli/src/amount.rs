//! Sizes and ages as people write them: `1.5 GiB`, `500MB`, `30d`, `1d12h`.
//!
//! Ambiguous text is refused, since limits delete.

use std::fmt;
use std::time::Duration;

/// The text is not an amount of the expected kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unreadable {
    expected: &'static str,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}", self.expected)
    }
}

impl std::error::Error for Unreadable {}

const NO_SIZE: Unreadable =
    Unreadable { expected: "a size such as 1GiB (2^30 bytes), 500MB (500 * 10^6 bytes) or 1024" };
const LARGE_SIZE: Unreadable = Unreadable { expected: "a size below 16 EiB" };
const SMALL_SIZE: Unreadable =
    Unreadable { expected: "a size of at least one byte, or 0 for no limit" };
const NO_AGE: Unreadable = Unreadable {
    expected: "an age such as 30d, 12h, 90m, 45s, 2w or 1d12h, each unit once, the largest first",
};
const LONG_AGE: Unreadable = Unreadable { expected: "an age of at most 292 years" };

/// Powers of 1024, the largest first. A single letter means these too: of the two readings of
/// `10G`, the one that deletes less.
const BINARY: [(&str, &str, u64); 6] = [
    ("EiB", "E", 1 << 60),
    ("PiB", "P", 1 << 50),
    ("TiB", "T", 1 << 40),
    ("GiB", "G", 1 << 30),
    ("MiB", "M", 1 << 20),
    ("KiB", "K", 1 << 10),
];
const DECIMAL: [(&str, u64); 6] = [
    ("EB", 1_000_000_000_000_000_000),
    ("PB", 1_000_000_000_000_000),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
];

/// Seconds, the largest first.
const AGES: [(&str, u64); 5] = [("w", 604_800), ("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];

/// The largest age that the times of a store can express, in seconds.
const LONGEST: u64 = i64::MAX.unsigned_abs() / 1_000_000_000;

/// The most digits of a fraction: as many as any unit can express.
const FRACTION: usize = 18;

/// Reads a number of bytes. A fraction needs a unit; parts of a byte are dropped.
pub(crate) fn parse_size(text: &str) -> Result<u64, Unreadable> {
    let (whole, rest) = digits(text.trim());
    let (fraction, unit) = match rest.strip_prefix('.') {
        Some(rest) => digits(rest),
        None => ("0", rest),
    };
    let factor = unit_of_size(unit.trim_start()).ok_or(NO_SIZE)?;
    let is_split = rest.starts_with('.');
    if whole.is_empty() || !(1..=FRACTION).contains(&fraction.len()) || (is_split && factor == 1) {
        return Err(NO_SIZE);
    }
    let whole: u64 = whole.parse().map_err(|_| LARGE_SIZE)?;
    let (part, is_zero) = part_of(fraction, factor);
    let size = whole.checked_mul(factor).and_then(|size| size.checked_add(part));
    match size.ok_or(LARGE_SIZE)? {
        0 if !is_zero => Err(SMALL_SIZE),
        size => Ok(size),
    }
}

/// `factor` times the fraction with these digits behind its point, rounded down, and whether the
/// fraction is zero.
fn part_of(fraction: &str, factor: u64) -> (u64, bool) {
    let (digits, scale) = fraction.bytes().fold((0_u128, 1_u128), |(digits, scale), digit| {
        (digits * 10 + u128::from(digit - b'0'), scale * 10)
    });
    // The fraction is below one, so the product is below the factor.
    let part = u64::try_from(digits * u128::from(factor) / scale).unwrap_or(u64::MAX);
    (part, digits == 0)
}

fn unit_of_size(unit: &str) -> Option<u64> {
    if unit.is_empty() || unit.eq_ignore_ascii_case("B") {
        return Some(1);
    }
    let is = |name: &str| unit.eq_ignore_ascii_case(name);
    let binary = BINARY.iter().find(|(name, letter, _)| is(name) || is(letter));
    let decimal = || DECIMAL.iter().find(|(name, _)| is(name)).map(|(_, factor)| *factor);
    binary.map(|(_, _, factor)| *factor).or_else(decimal)
}

/// The digits in front, and the rest.
fn digits(text: &str) -> (&str, &str) {
    let len = text.bytes().take_while(u8::is_ascii_digit).count();
    text.split_at(len)
}

/// A number of bytes so that [`parse_size`] reads the same: in the largest unit that divides it.
pub(crate) fn exact_size(bytes: u64) -> String {
    let fits = |(_, _, factor): &&(&str, &str, u64)| bytes != 0 && bytes.is_multiple_of(*factor);
    match BINARY.iter().find(fits) {
        Some((unit, _, factor)) => format!("{}{unit}", bytes / factor),
        None => bytes.to_string(),
    }
}

/// Reads an age. A number without a unit is refused, except for zero.
pub(crate) fn parse_age(text: &str) -> Result<Duration, Unreadable> {
    let mut rest = text.trim();
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    let mut units = AGES.iter();
    let mut seconds = 0_u64;
    loop {
        let (number, after) = digits(rest);
        let len = after.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, after) = after.split_at(len);
        // Skipped units cannot follow: each unit occurs once, the largest first.
        let (_, factor) = units.find(|(name, _)| *name == unit).ok_or(NO_AGE)?;
        if number.is_empty() {
            return Err(NO_AGE);
        }
        let number: u64 = number.parse().map_err(|_| LONG_AGE)?;
        let part = number.checked_mul(*factor).ok_or(LONG_AGE)?;
        seconds = seconds.checked_add(part).ok_or(LONG_AGE)?;
        rest = after.trim_start();
        if rest.is_empty() {
            break;
        }
    }
    if seconds > LONGEST { Err(LONG_AGE) } else { Ok(Duration::from_secs(seconds)) }
}

/// `1w2d`, `90s` as `1m30s`: whole seconds so that [`parse_age`] reads the same.
pub(crate) fn age(age: Duration) -> String {
    let mut rest = age.as_secs();
    let mut text = String::new();
    for (unit, factor) in AGES {
        let count = rest / factor;
        rest %= factor;
        if count != 0 {
            text.push_str(&count.to_string());
            text.push_str(unit);
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDS: [u64; 12] = [
        0,
        1,
        59,
        60,
        1023,
        1024,
        1025,
        1 << 20,
        (1 << 30) + (1 << 29),
        LONGEST,
        u64::MAX - 1023,
        u64::MAX,
    ];

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
            "1y", "1d12", "1 d", "5ms", "1d,2h", "\u{663}d", "forever",
        ] {
            assert_eq!(parse_age(text), Err(NO_AGE), "{text:?}");
        }
    }

    #[test]
    fn ages_that_no_time_reaches_are_refused() {
        assert_eq!(parse_age("9223372036s"), Ok(Duration::from_secs(LONGEST)));
        for text in ["9223372037s", "106752d", "18446744073709551616s", "99999999999999999w"] {
            assert_eq!(parse_age(text), Err(LONG_AGE), "{text:?}");
        }
        let longest = Duration::from_secs(LONGEST);
        assert!(runlog::Retention::new().max_age(longest).check().is_ok());
    }

    #[test]
    fn what_is_written_is_read_back() {
        for value in ENDS.into_iter().chain((0..64).map(|bit| 1 << bit)) {
            assert_eq!(parse_size(&exact_size(value)), Ok(value));
            if value <= LONGEST {
                let written = age(Duration::from_secs(value));
                assert_eq!(parse_age(&written), Ok(Duration::from_secs(value)), "{written}");
            }
        }
        assert_eq!(exact_size(3 << 29), "1536MiB");
        assert_eq!(exact_size(1_000), "1000");
        assert_eq!(age(Duration::from_secs(129_600)), "1d12h");
        assert_eq!(age(Duration::from_secs(90)), "1m30s");
    }

    #[test]
    fn errors_say_what_is_expected() {
        let said = parse_age("30").unwrap_err().to_string();
        assert!(said.starts_with("expected an age such as 30d"), "{said}");
    }
}
