//! Which finished runs are kept, and the configuration of that.

use core::fmt;
use core::time::Duration;

use serde::Deserialize;

use runlog::Retention;

const SECONDS_A_DAY: u64 = 86_400;

/// How many finished runs of an agent are kept, and for how long.
///
/// Zero means no limit, and so does an age that is negative or above the range of times (292
/// years). In the original, zero deleted every finished run at the next start, and a very large age
/// panicked.
///
/// ```
/// use runlog_stores::run_store::RetentionConfig;
/// let config = RetentionConfig::parse("[runs]\nmax_per_agent = 10\n").unwrap();
/// assert_eq!(config, RetentionConfig { max_per_agent: 10, max_age_days: 30 });
/// assert_eq!(RetentionConfig::parse("").unwrap(), RetentionConfig::default());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionConfig {
    /// How many of the newest finished runs of an agent stay; 0 means all. 50 by default.
    pub max_per_agent: usize,
    /// How many days a run stays after its end; 0 or less means for ever. 30 by default.
    pub max_age_days: i64,
}

impl Default for RetentionConfig {
    fn default() -> Self {
        Self { max_per_agent: 50, max_age_days: 30 }
    }
}

/// The text of a configuration is not TOML, or has values that are not numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The affected bytes of the text, if known.
    pub place: Option<core::ops::Range<usize>>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not TOML with whole numbers under [runs]")?;
        match &self.place {
            Some(place) => write!(f, ", at bytes {} to {}", place.start, place.end),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ConfigError {}

#[derive(Deserialize, Default)]
struct File {
    #[serde(default)]
    runs: Runs,
}

#[derive(Deserialize, Default)]
struct Runs {
    max_per_agent: Option<usize>,
    max_age_days: Option<i64>,
}

impl RetentionConfig {
    /// Reads `[runs] max_per_agent, max_age_days` of a TOML text. Missing values are the defaults.
    ///
    /// # Errors
    /// [`ConfigError`] with the place in the text.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let file: File =
            toml::from_str(text).map_err(|error| ConfigError { place: error.span() })?;
        let defaults = Self::default();
        Ok(Self {
            max_per_agent: file.runs.max_per_agent.unwrap_or(defaults.max_per_agent),
            max_age_days: file.runs.max_age_days.unwrap_or(defaults.max_age_days),
        })
    }

    /// The most runs of an agent that stay.
    pub fn count_cap(&self) -> Option<u64> {
        u64::try_from(self.max_per_agent).ok().filter(|count| *count > 0)
    }

    /// How long runs stay after their end.
    pub fn age_cap(&self) -> Option<Duration> {
        let days = u64::try_from(self.max_age_days).ok().filter(|days| *days > 0)?;
        let age = Duration::from_secs(days.checked_mul(SECONDS_A_DAY)?);
        i64::try_from(age.as_nanos()).is_ok().then_some(age)
    }

    /// The same as a policy of the engine.
    pub fn policy(&self) -> Retention {
        Retention::new().keep_newest(self.count_cap()).max_age(self.age_cap())
    }
}
