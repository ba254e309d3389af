//! The ids of checkpoints: UUIDs. New ids have version 7.

use core::fmt;
use core::str::FromStr;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use runlog::env::Environment;
use runlog::{Error, IoAction, Result};

/// The bits of an id behind its milliseconds, without the version and variant bits.
const RANDOM_BITS: u32 = 74;

/// The last id that was made in this process, without the version and variant bits.
static LAST: Mutex<u128> = Mutex::new(0);

/// The id of a checkpoint: any UUID. In JSON it is the usual text with hyphens.
///
/// ```
/// use runlog_stores::checkpoints::CheckpointId;
/// let id: CheckpointId = "0195a3c0-7b1e-7a52-8c14-0242ac120002".parse()?;
/// assert_eq!(id.to_string(), "0195a3c0-7b1e-7a52-8c14-0242ac120002");
/// # Ok::<(), runlog::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CheckpointId([u8; 16]);

impl CheckpointId {
    /// A fresh id: a UUID of version 7. It is larger than all ids that this process made before,
    /// also when the clock goes back.
    ///
    /// # Errors
    /// [`Error::Io`] if the system gives no random bytes.
    pub fn generate(environment: &Environment) -> Result<Self> {
        let mut random = [0; 16];
        environment.entropy.fill(&mut random).map_err(|source| Error::Io {
            action: IoAction::Randomness,
            source: Arc::new(source),
        })?;
        let millis = u128::try_from(environment.clock.now().0 / 1_000_000).unwrap_or(0);
        let low = u128::from_be_bytes(random) >> (u128::BITS - RANDOM_BITS);
        let mut last = LAST.lock();
        *last = (millis << RANDOM_BITS | low).max(*last + 1);
        Ok(Self::from_count(*last))
    }

    /// The UUID of version 7 with these 122 bits.
    fn from_count(count: u128) -> Self {
        let (millis, above, below) =
            (count >> RANDOM_BITS, count >> 62 & 0xfff, count & ((1 << 62) - 1));
        Self((millis << 80 | 7 << 76 | above << 64 | 2 << 62 | below).to_be_bytes())
    }

    /// The id with these bytes: any UUID.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes of the UUID.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, byte) in self.0.iter().enumerate() {
            let hyphen = if matches!(place, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{hyphen}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for CheckpointId {
    type Err = Error;

    /// Reads 32 hexadecimal digits, with hyphens in their usual places or without any.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = Error::InvalidArgument { what: "the id of a checkpoint is a UUID" };
        let hyphens: Vec<usize> = text.match_indices('-').map(|(place, _)| place).collect();
        let digits: String = text.chars().filter(|letter| *letter != '-').collect();
        let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        if !is_hex || digits.len() != 32 || !matches!(hyphens[..], [] | [8, 13, 18, 23]) {
            return Err(wrong);
        }
        let number = u128::from_str_radix(&digits, 16).map_err(|_| wrong)?;
        Ok(Self(number.to_be_bytes()))
    }
}

impl TryFrom<String> for CheckpointId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<CheckpointId> for String {
    fn from(id: CheckpointId) -> Self {
        id.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runlog::Timestamp;
    use runlog::env::{Clock, Entropy};

    /// A clock that stands, and randomness that is always the same.
    #[derive(Debug)]
    struct Still(i64);

    impl Clock for Still {
        fn now(&self) -> Timestamp {
            Timestamp(self.0)
        }
    }

    impl Entropy for Still {
        fn fill(&self, out: &mut [u8]) -> std::io::Result<()> {
            out.fill(0xff);
            Ok(())
        }
    }

    fn still(now: i64) -> Environment {
        let mut environment = Environment::system();
        environment.clock = Arc::new(Still(now));
        environment.entropy = Arc::new(Still(0));
        environment
    }

    #[test]
    fn fresh_ids_grow_whatever_the_clock_and_the_randomness_do() {
        let mut last = CheckpointId::generate(&Environment::system()).unwrap();
        for now in [5_000_000, 5_000_000, 1, -7, i64::MIN, 5_000_001] {
            let next = CheckpointId::generate(&still(now)).unwrap();
            assert!(next > last, "{next} after {last}");
            let bytes = next.as_bytes();
            assert_eq!((bytes[6] >> 4, bytes[8] >> 6), (7, 2), "{next} is a version 7");
            assert_eq!(next.to_string().parse::<CheckpointId>().unwrap(), next);
            last = next;
        }
    }

    #[test]
    fn the_bits_of_a_count_keep_their_order() {
        let counts = [0, 1, (1 << 62) - 1, 1 << 62, (1 << 74) - 1, 1 << 74, (1 << 122) - 1];
        let ids: Vec<CheckpointId> = counts.into_iter().map(CheckpointId::from_count).collect();
        assert!(ids.is_sorted() && ids.windows(2).all(|pair| pair[0] != pair[1]), "{ids:?}");
        assert_eq!(ids[0].to_string(), "00000000-0000-7000-8000-000000000000");
        assert_eq!(ids[6].to_string(), "ffffffff-ffff-7fff-bfff-ffffffffffff");
    }

    #[test]
    fn what_is_no_uuid_is_no_id() {
        let simple = "0195A3C07B1E7A528C140242AC120002";
        let id: CheckpointId = simple.parse().unwrap();
        assert_eq!(id.to_string(), "0195a3c0-7b1e-7a52-8c14-0242ac120002");
        for text in ["", "-", "+195A3C07B1E7A528C140242AC120002", &simple[1..], "0195a3c0-7b1e"] {
            assert!(text.parse::<CheckpointId>().is_err(), "{text:?}");
        }
        assert!("01-95a3c07b1e7a528c140242ac120002".parse::<CheckpointId>().is_err());
    }
}
