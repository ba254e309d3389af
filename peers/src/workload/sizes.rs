//! The length of records, and the number of records of a run.

use runlog_sim::SplitMix64;

/// Bytes of the records of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sizes {
    Fixed(usize),
    /// Log-normal, median 350 B, mean 1.05 KB.
    LogNormal,
    /// As in sessions of real coding agents: median 1 KB, mean 3.7 KB, half of the bytes in records
    /// above 16 KiB.
    Real,
}

/// The median of the log-normal sizes.
const MEDIAN: f64 = 350.0;
/// Makes the mean three times the median: the root of twice the logarithm of three.
const SIGMA: f64 = 1.482_303_807_367_511;
/// The least and the greatest length of a record.
const SHORTEST: usize = 40;
const LONGEST: usize = 1 << 20;

/// Bytes of a record in real sessions, by ten thousandths of the records.
const REAL: [(u64, usize); 12] = [
    (0, 120),
    (100, 235),
    (1_000, 579),
    (2_500, 686),
    (5_000, 1_049),
    (7_500, 1_932),
    (8_800, 4_096),
    (9_000, 6_140),
    (9_500, 15_375),
    (9_900, 51_045),
    (9_990, 114_865),
    (10_000, 961_404),
];

/// Records of a run in real sessions, by ten thousandths of the runs.
const RECORDS: [(u64, usize); 8] = [
    (0, 10),
    (2_500, 102),
    (5_000, 237),
    (7_500, 462),
    (9_000, 893),
    (9_500, 1_022),
    (9_900, 1_350),
    (10_000, 2_331),
];

impl Sizes {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Fixed(bytes) => format!("{bytes} B"),
            Self::LogNormal => "log-normal sizes".to_owned(),
            Self::Real => "real sizes".to_owned(),
        }
    }

    /// About as long as a record is on average.
    pub(crate) fn typical(self) -> usize {
        match self {
            Self::Fixed(bytes) => bytes,
            Self::LogNormal => 1_050,
            Self::Real => 3_900,
        }
    }

    /// The length of a record.
    pub(crate) fn next(self, random: &mut SplitMix64) -> usize {
        match self {
            Self::Fixed(bytes) => bytes,
            Self::LogNormal => rounded((SIGMA * normal(random)).exp() * MEDIAN),
            Self::Real => between(&REAL, random),
        }
    }
}

/// How many records a run has.
pub(crate) fn records_of_a_run(random: &mut SplitMix64) -> usize {
    between(&RECORDS, random)
}

/// A number between 0 and 1, never 0.
fn unit(random: &mut SplitMix64) -> f64 {
    let number = u32::try_from(random.next_u64() >> 32).unwrap();
    (f64::from(number) + 0.5) / 4_294_967_296.0
}

/// Normally distributed (Box and Muller).
fn normal(random: &mut SplitMix64) -> f64 {
    let (radius, angle) = (unit(random), unit(random));
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is clamped")]
fn rounded(value: f64) -> usize {
    (value.round() as usize).clamp(SHORTEST, LONGEST)
}

/// Between two quantiles the logarithms are uniformly distributed.
fn between(quantiles: &[(u64, usize)], random: &mut SplitMix64) -> usize {
    let at = random.below(10_000);
    let above = quantiles.iter().position(|(quantile, _)| *quantile > at).unwrap();
    let ((_, low), (_, high)) = (quantiles[above - 1], quantiles[above]);
    let [low, high] = [low, high].map(|value| f64::from(u32::try_from(value).unwrap()).ln());
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is small")]
    let value = (low + (high - low) * unit(random)).exp().round() as usize;
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(sizes: Sizes) -> Vec<usize> {
        let mut random = SplitMix64::new(1);
        let mut all: Vec<usize> = (0..200_000).map(|_| sizes.next(&mut random)).collect();
        all.sort_unstable();
        all
    }

    fn mean(all: &[usize]) -> usize {
        all.iter().sum::<usize>() / all.len()
    }

    #[test]
    fn log_normal_sizes_have_their_median_and_mean() {
        let all = sorted(Sizes::LogNormal);
        assert!((340..360).contains(&all[all.len() / 2]), "{}", all[all.len() / 2]);
        assert!((1_000..1_100).contains(&mean(&all)), "{}", mean(&all));
    }

    /// Against 96,233 records of real sessions: 3,647 bytes on average, 88 % of the records up to
    /// 4 KiB, 53 % of the bytes in records above 16 KiB.
    #[test]
    fn real_sizes_are_those_of_real_sessions() {
        let all = sorted(Sizes::Real);
        let quantile = |part: usize| all[all.len() * part / 1_000];
        assert!((1_000..1_100).contains(&quantile(500)), "{}", quantile(500));
        assert!((5_900..6_400).contains(&quantile(900)), "{}", quantile(900));
        assert!((49_000..53_000).contains(&quantile(990)), "{}", quantile(990));
        assert!((3_400..4_200).contains(&mean(&all)), "{}", mean(&all));
        let small = all.iter().filter(|size| **size <= 4_096).count() * 100 / all.len();
        assert!((87..=89).contains(&small), "{small}");
        let large: usize = all.iter().filter(|size| **size > 16_384).sum();
        let large = large * 100 / all.iter().sum::<usize>();
        assert!((48..=60).contains(&large), "{large}");
    }

    /// Against 274 real sessions: half of the runs have at most 237 records and 907 KB, a tenth
    /// has more than 893 records and 3.42 MB.
    #[test]
    fn runs_are_as_long_as_real_ones() {
        let mut random = SplitMix64::new(2);
        let mut records: Vec<usize> = (0..4_000).map(|_| records_of_a_run(&mut random)).collect();
        let run = |records: &usize| (0..*records).map(|_| Sizes::Real.next(&mut random)).sum();
        let mut bytes: Vec<usize> = records.iter().map(run).collect();
        records.sort_unstable();
        bytes.sort_unstable();
        let (half, tenth) = (records.len() / 2, records.len() * 9 / 10);
        assert!((210..265).contains(&records[half]), "{}", records[half]);
        assert!((800..990).contains(&records[tenth]), "{}", records[tenth]);
        assert!((720_000..1_100_000).contains(&bytes[half]), "{}", bytes[half]);
        assert!((2_900_000..4_000_000).contains(&bytes[tenth]), "{}", bytes[tenth]);
    }
}
