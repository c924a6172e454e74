//! How long a key's value is. A key's value always has the same length, so that a generator knows
//! the length of a reply before it arrives.
//!
//! What it never does: keep state per key: the length is drawn by a hash of the key.

use super::meta::{CACHES, Cache};
use super::{WorkloadError, spread};
use std::fmt;
use std::str::FromStr;

const HINT: &str = "write a number of bytes (100), a range (64-4096) or meta:CACHE";

/// The longest value that may be asked for, in bytes.
pub const VALUE_LEN_MAX: u32 = 64 << 20;

/// The law of values' lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lengths {
    /// All the same number of bytes.
    Fixed(u32),
    /// Every number of bytes from the first to the second alike.
    Uniform(u32, u32),
    /// As measured in one of Meta's caches: an index of the table.
    Meta {
        /// Which of the published caches.
        cache: usize,
    },
}

impl Lengths {
    /// The published lengths of the cache called `name`, if there is one.
    pub(super) fn of_meta(name: &str) -> Option<Lengths> {
        CACHES
            .iter()
            .position(|c| c.name == name)
            .map(|cache| Lengths::Meta { cache })
    }

    /// The length of the value of `key`, in bytes.
    #[inline]
    pub fn of_key(&self, key: u64) -> u32 {
        match *self {
            Lengths::Fixed(len) => len,
            Lengths::Uniform(low, high) => low + (unit(key) * f64::from(high - low + 1)) as u32,
            Lengths::Meta { cache } => quantile(&CACHES[cache], unit(key)),
        }
    }

    /// The longest length that there can be, in bytes.
    pub fn max(&self) -> u32 {
        match *self {
            Lengths::Fixed(len) => len,
            Lengths::Uniform(_, high) => high,
            Lengths::Meta { cache } => quantile(&CACHES[cache], 1.0),
        }
    }

    /// The mean length over many keys, in bytes.
    pub fn mean(&self) -> f64 {
        match *self {
            Lengths::Fixed(len) => f64::from(len),
            Lengths::Uniform(low, high) => (f64::from(low) + f64::from(high)) / 2.0,
            Lengths::Meta { cache } => CACHES[cache]
                .value_len_ppm
                .windows(2)
                .map(|w| f64::from(w[1].0 - w[0].0) / 1e6 * f64::from(w[0].1 + w[1].1) / 2.0)
                .sum(),
        }
    }
}

/// A number in `0.0..1.0` that is a key's own.
fn unit(key: u64) -> f64 {
    (spread(key.wrapping_add(0x9e37_79b9_7f4a_7c15)) >> 11) as f64 / (1u64 << 53) as f64
}

/// The published distribution at `share` of the keys, linear between its points.
fn quantile(cache: &Cache, share: f64) -> u32 {
    let table = cache.value_len_ppm;
    let ppm = share * 1e6;
    let i = table
        .partition_point(|&(p, _)| f64::from(p) <= ppm)
        .clamp(1, table.len() - 1);
    let (from, to) = (table[i - 1], table[i]);
    let within = (ppm - f64::from(from.0)) / f64::from(to.0 - from.0);
    (f64::from(from.1) + within * f64::from(to.1 - from.1)).round() as u32
}

impl FromStr for Lengths {
    type Err = WorkloadError;

    fn from_str(text: &str) -> Result<Lengths, WorkloadError> {
        parse(text).ok_or_else(|| WorkloadError::Syntax {
            what: "value length",
            text: text.to_owned(),
            hint: HINT,
        })
    }
}

fn parse(text: &str) -> Option<Lengths> {
    if let Some(name) = text.strip_prefix("meta:") {
        return Lengths::of_meta(name);
    }
    let number = |text: &str| text.parse().ok().filter(|&n: &u32| n <= VALUE_LEN_MAX);
    match text.split_once('-') {
        None => Some(Lengths::Fixed(number(text)?)),
        Some((low, high)) => {
            let (low, high) = (number(low)?, number(high)?);
            (low <= high).then_some(Lengths::Uniform(low, high))
        }
    }
}

impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Lengths::Fixed(len) => write!(f, "{len}"),
            Lengths::Uniform(low, high) => write!(f, "{low}-{high}"),
            Lengths::Meta { cache } => write!(f, "meta:{}", CACHES[cache].name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_read_print_and_refuse() {
        for text in ["0", "100", "64-4096", "meta:cdn"] {
            assert_eq!(text.parse::<Lengths>().expect(text).to_string(), text);
        }
        for text in ["", "-1", "9-3", "1k", "99999999999", "meta:x"] {
            assert!(text.parse::<Lengths>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_range_is_used_from_end_to_end_and_keys_keep_their_length() {
        let law = Lengths::Uniform(10, 13);
        let mut seen = [0; 4];
        (0..40_000).for_each(|key| seen[law.of_key(key) as usize - 10] += 1);
        assert!(seen.iter().all(|s| (9_500..10_500).contains(s)), "{seen:?}");
        assert_eq!(law.of_key(77), law.of_key(77));
    }

    #[test]
    fn published_lengths_have_their_published_mean() {
        // Means over the published histograms, before they were condensed to the tables.
        for (name, mean) in [
            ("kvcache_reg", 335.0),
            ("cdn", 33_024.0),
            ("kvcache_l2_wc", 92_422.0),
        ] {
            let law = Lengths::of_meta(name).expect(name);
            let keys = 2_000_000;
            let drawn = (0..keys).map(|k| f64::from(law.of_key(k))).sum::<f64>() / keys as f64;
            assert!(
                (drawn / mean - 1.0).abs() < 0.1,
                "{name}: {drawn} B against {mean} B"
            );
            assert!(
                (law.mean() / mean - 1.0).abs() < 0.1,
                "{name}: {} B",
                law.mean()
            );
        }
    }
}
