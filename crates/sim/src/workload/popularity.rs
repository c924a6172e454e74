//! Which key a request is for.
//!
//! Ranks (0 = most popular) are mapped to key indices by a fixed permutation, so that popular keys
//! are not neighbours: a fill in the order of the indices would otherwise put all of them into the
//! same segments and pages.
//!
//! What it never does: keep state per key.

use super::meta::{CACHES, Cache};
use super::zipf::Zipf;
use super::{WorkloadError, spread};
use nyx_base::Rng;
use std::fmt;
use std::str::FromStr;

const HINT: &str = "write uniform, zipf:ALPHA, hotspot:KEYS%:REQUESTS%, scan, latest:ALPHA or \
                    meta:CACHE";

/// The law that keys are drawn by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Popularity {
    /// All keys alike.
    Uniform,
    /// Zipf's law.
    Zipf {
        /// The exponent, 0 or more.
        alpha: f64,
    },
    /// A part of the keys gets a part of the requests; uniform within both parts.
    Hotspot {
        /// How many percent of the keys are hot, above 0.
        keys_pct: f64,
        /// How many percent of the requests go to them, up to 100.
        requests_pct: f64,
    },
    /// One key after the other, over and over.
    Scan,
    /// Reads prefer what was written last, by Zipf's law over the age; writes go through the keys
    /// one after the other (YCSB's workload D).
    Latest {
        /// The exponent, 0 or more.
        alpha: f64,
    },
    /// As measured in one of Meta's caches; fewer keys than there means its most popular ones.
    Meta {
        /// Which of the published caches: an index of the table.
        cache: usize,
    },
}

impl Popularity {
    /// The published popularity of the cache called `name`, if there is one.
    pub(super) fn of_meta(name: &str) -> Option<Popularity> {
        let cache = CACHES.iter().position(|c| c.name == name)?;
        Some(Popularity::Meta { cache })
    }
}

impl FromStr for Popularity {
    type Err = WorkloadError;

    fn from_str(text: &str) -> Result<Popularity, WorkloadError> {
        parse(text).ok_or_else(|| WorkloadError::Syntax {
            what: "popularity",
            text: text.to_owned(),
            hint: HINT,
        })
    }
}

fn parse(text: &str) -> Option<Popularity> {
    let mut parts = text.split(':');
    let name = parts.next()?;
    let alpha = |part: Option<&str>| {
        let alpha: f64 = part?.parse().ok()?;
        (alpha.is_finite() && (0.0..=20.0).contains(&alpha)).then_some(alpha)
    };
    let percent = |part: Option<&str>| {
        let pct: f64 = part?.trim_end_matches('%').parse().ok()?;
        (pct > 0.0 && pct <= 100.0).then_some(pct)
    };
    let law = match name {
        "uniform" => Popularity::Uniform,
        "scan" => Popularity::Scan,
        "zipf" => Popularity::Zipf {
            alpha: alpha(parts.next())?,
        },
        "latest" => Popularity::Latest {
            alpha: alpha(parts.next())?,
        },
        "hotspot" => Popularity::Hotspot {
            keys_pct: percent(parts.next())?,
            requests_pct: percent(parts.next())?,
        },
        "meta" => Popularity::of_meta(parts.next()?)?,
        _ => return None,
    };
    parts.next().is_none().then_some(law)
}

impl fmt::Display for Popularity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Popularity::Uniform => f.write_str("uniform"),
            Popularity::Scan => f.write_str("scan"),
            Popularity::Zipf { alpha } => write!(f, "zipf:{alpha}"),
            Popularity::Latest { alpha } => write!(f, "latest:{alpha}"),
            Popularity::Hotspot {
                keys_pct,
                requests_pct,
            } => {
                write!(f, "hotspot:{keys_pct}%:{requests_pct}%")
            }
            Popularity::Meta { cache } => write!(f, "meta:{}", CACHES[cache].name),
        }
    }
}

/// Draws keys of `0..n` by a law.
#[derive(Clone, Debug)]
pub struct Picker {
    law: Law,
    n: u64,
    scatter: Scatter,
    /// Where the scan stands, or which key was written last.
    cursor: u64,
}

#[derive(Clone, Debug)]
enum Law {
    Uniform,
    Zipf(Zipf),
    Hotspot {
        hot: u64,
        share: f64,
    },
    Scan,
    Latest(Zipf),
    Meta {
        cache: &'static Cache,
        total_ppb: f64,
    },
}

impl Picker {
    /// A picker over `n` keys (1 to 2^32) that starts its scans at key `start % n`.
    pub fn new(law: Popularity, n: u64, start: u64) -> Result<Picker, WorkloadError> {
        if n == 0 || n > 1 << 32 {
            return Err(WorkloadError::Keys { keys: n });
        }
        let law = match law {
            Popularity::Uniform => Law::Uniform,
            Popularity::Zipf { alpha } => Law::Zipf(Zipf::new(n, alpha)),
            Popularity::Hotspot {
                keys_pct,
                requests_pct,
            } => Law::Hotspot {
                hot: ((n as f64 * keys_pct / 100.0).round() as u64).clamp(1, n),
                share: requests_pct / 100.0,
            },
            Popularity::Scan => Law::Scan,
            Popularity::Latest { alpha } => Law::Latest(Zipf::new(n, alpha)),
            Popularity::Meta { cache } => {
                let cache = &CACHES[cache];
                Law::Meta {
                    cache,
                    total_ppb: requests_ppb(cache, n.min(cache.keys)),
                }
            }
        };
        Ok(Picker {
            law,
            n,
            scatter: Scatter::new(n),
            cursor: start % n,
        })
    }

    /// The key of the next request; `writes` tells whether it changes the value.
    #[inline]
    pub fn pick(&mut self, rng: &mut Rng, writes: bool) -> u64 {
        let rank = match &self.law {
            Law::Uniform => return rng.u64(0..self.n),
            Law::Zipf(zipf) => zipf.sample(rng),
            Law::Hotspot { hot, share } => {
                if *hot == self.n || rng.f64() < *share {
                    rng.u64(0..*hot)
                } else {
                    rng.u64(*hot..self.n)
                }
            }
            Law::Scan => return self.advance(),
            Law::Latest(_) if writes => return self.advance(),
            Law::Latest(zipf) => {
                let age = zipf.sample(rng);
                return (self.cursor + self.n - 1 - age) % self.n;
            }
            Law::Meta { cache, total_ppb } => rank_at(cache, rng.f64() * total_ppb).min(self.n - 1),
        };
        self.scatter.index(rank)
    }

    fn advance(&mut self) -> u64 {
        let key = self.cursor;
        self.cursor = (self.cursor + 1) % self.n;
        key
    }
}

/// The permutation from ranks to indices of `0..n`, for `n` up to 2^32: neighbours in popularity
/// are far apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scatter {
    n: u64,
    /// Below 2^32 and coprime with `n`; products with ranks fit a `u64`.
    stride: u64,
}

impl Scatter {
    /// Over `n` indices, at least one.
    pub(super) fn new(n: u64) -> Scatter {
        let mut stride = spread(n) % n;
        while gcd(stride, n) != 1 {
            stride += 1;
        }
        Scatter { n, stride }
    }

    /// The index of a rank below `n`.
    #[inline]
    pub(super) fn index(&self, rank: u64) -> u64 {
        rank.wrapping_mul(self.stride) % self.n
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// How many keys the first `i` entries of a popularity table are for.
fn keys_up_to(cache: &Cache, i: usize) -> u64 {
    (1u64 << i).min(cache.keys)
}

/// The share of the requests, in parts per billion, that the `keys` most popular keys get.
fn requests_ppb(cache: &Cache, keys: u64) -> f64 {
    let table = cache.popularity_ppb;
    let i = (0..table.len())
        .find(|&i| keys_up_to(cache, i) >= keys)
        .unwrap_or(table.len() - 1);
    let (from_keys, from_ppb) = match i {
        0 => (0, 0.0),
        i => (keys_up_to(cache, i - 1), f64::from(table[i - 1])),
    };
    let (to_keys, to_ppb) = (keys_up_to(cache, i), f64::from(table[i]));
    from_ppb + (to_ppb - from_ppb) * (keys - from_keys) as f64 / (to_keys - from_keys) as f64
}

/// The inverse: the rank at which the cumulative share of requests passes `ppb`.
fn rank_at(cache: &Cache, ppb: f64) -> u64 {
    let table = cache.popularity_ppb;
    let i = table
        .partition_point(|&p| f64::from(p) <= ppb)
        .min(table.len() - 1);
    let (from_keys, from_ppb) = match i {
        0 => (0, 0.0),
        i => (keys_up_to(cache, i - 1), f64::from(table[i - 1])),
    };
    let span = f64::from(table[i]) - from_ppb;
    let within = (ppb - from_ppb) / span * (keys_up_to(cache, i) - from_keys) as f64;
    from_keys + (within as u64).min(keys_up_to(cache, i) - from_keys - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(law: &str, n: u64, draws: usize) -> Vec<u32> {
        let law: Popularity = law.parse().expect("a law");
        let mut picker = Picker::new(law, n, 0).expect("enough keys");
        let mut rng = Rng::with_seed(3);
        let mut seen = vec![0; n as usize];
        for _ in 0..draws {
            seen[picker.pick(&mut rng, false) as usize] += 1;
        }
        seen
    }

    #[test]
    fn laws_read_and_print_the_same_text() {
        for text in [
            "uniform",
            "scan",
            "zipf:0.99",
            "latest:1.2",
            "hotspot:1%:90%",
            "meta:kvcache_reg",
        ] {
            assert_eq!(text.parse::<Popularity>().expect(text).to_string(), text);
        }
        for text in [
            "",
            "zipf",
            "zipf:-1",
            "zipf:nan",
            "hotspot:0%:50%",
            "scan:3",
            "meta:none",
        ] {
            let error = text.parse::<Popularity>().expect_err(text).to_string();
            assert!(error.contains("zipf:ALPHA"), "{error}");
        }
    }

    #[test]
    fn the_permutation_reaches_every_key_once() {
        for n in [1, 2, 3, 10, 1000, 1024, 99_991] {
            let scatter = Scatter::new(n);
            let mut seen = vec![false; n as usize];
            (0..n).for_each(|rank| seen[scatter.index(rank) as usize] = true);
            assert!(seen.into_iter().all(|s| s), "n = {n}");
        }
    }

    #[test]
    fn a_hotspot_gets_its_share_and_no_more() {
        let mut seen = draw("hotspot:10%:90%", 100, 100_000);
        seen.sort_unstable_by(|a, b| b.cmp(a));
        let hot: u32 = seen[..10].iter().sum();
        assert!(
            (88_500..91_500).contains(&hot),
            "hot keys got {hot} of 100000"
        );
    }

    #[test]
    fn a_scan_takes_turns_and_latest_prefers_what_was_written_last() {
        assert!(draw("scan", 10, 100).iter().all(|&s| s == 10));
        let mut picker =
            Picker::new(Popularity::Latest { alpha: 2.0 }, 1000, 0).expect("enough keys");
        let mut rng = Rng::with_seed(3);
        let written = (0..500).map(|_| picker.pick(&mut rng, true)).last();
        let newest = (0..1000)
            .filter(|_| Some(picker.pick(&mut rng, false)) == written)
            .count();
        assert!(newest > 500, "the newest key got {newest} of 1000 reads");
    }

    #[test]
    fn published_popularity_comes_back_out() {
        let cache = CACHES
            .iter()
            .find(|c| c.name == "kvcache_reg")
            .expect("in the table");
        let mut rng = Rng::with_seed(5);
        let draws = 200_000;
        let under = |keys: u64, rng: &mut Rng| {
            (0..draws)
                .filter(|_| rank_at(cache, rng.f64() * 1e9) < keys)
                .count() as f64
        };
        for i in [0, 5, 12, 20] {
            let expected = f64::from(cache.popularity_ppb[i]) / 1e9;
            let got = under(keys_up_to(cache, i), &mut rng) / f64::from(draws);
            assert!(
                (got - expected).abs() < 0.01,
                "top 2^{i}: {got} against {expected}"
            );
        }
        let half = requests_ppb(cache, cache.keys);
        assert!(
            (half - 1e9).abs() < 1.0,
            "all keys get all requests, got {half} ppb"
        );
    }
}
