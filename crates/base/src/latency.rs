//! Durations, counted by length: one thread counts, a controller reads and takes differences.
//!
//! Buckets are a sixteenth of an octave wide (6 %), from 16 ns to 8 s; longer counts as longest.
//! What is wanted of a window - mean, quantiles, how many samples - is computed from the difference
//! of two snapshots, so that nothing is ever reset under a writer.
//!
//! *Thread safety*: [`LatencyCounter::add`] has a single writer, as [`crate::Counter`].

use crate::time::Nanos;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Buckets of an octave.
const PER_OCTAVE: u64 = 16;
/// The first octave that is divided begins at this power of two; below it buckets are 1 ns wide.
const FIRST_OCTAVE: u32 = 4;
const OCTAVES: u32 = 29;
const BUCKETS: usize = (PER_OCTAVE * (OCTAVES as u64 + 1)) as usize;

/// Durations as they happen. 2 KiB: for tenants whose latency somebody looks at.
#[derive(Debug)]
pub struct LatencyCounter {
    counts: Box<[AtomicU32; BUCKETS]>,
    sum_ns: AtomicU64,
}

/// What was counted until some moment, or between two. Wraps as the counters do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latencies {
    counts: Box<[u32; BUCKETS]>,
    sum_ns: u64,
}

fn bucket_of(ns: u64) -> usize {
    if ns < PER_OCTAVE {
        return ns as usize;
    }
    let octave = ns.ilog2().min(FIRST_OCTAVE + OCTAVES - 1);
    let within = (ns >> (octave - FIRST_OCTAVE)).min(2 * PER_OCTAVE - 1) - PER_OCTAVE;
    (u64::from(octave - FIRST_OCTAVE + 1) * PER_OCTAVE + within) as usize
}

/// Where a bucket begins, in nanoseconds.
fn begin_of(bucket: usize) -> u64 {
    let (octave, within) = (bucket as u64 / PER_OCTAVE, bucket as u64 % PER_OCTAVE);
    match octave {
        0 => within,
        octave => (PER_OCTAVE + within) << (octave - 1),
    }
}

impl Default for LatencyCounter {
    fn default() -> LatencyCounter {
        LatencyCounter {
            counts: Box::new([const { AtomicU32::new(0) }; BUCKETS]),
            sum_ns: AtomicU64::new(0),
        }
    }
}

impl LatencyCounter {
    /// Counts `n` durations of one length. Only the counter's one writer may call this.
    #[inline]
    pub fn add(&self, length: Nanos, n: u32) {
        let count = &self.counts[bucket_of(length.0)];
        count.store(count.load(Relaxed).wrapping_add(n), Relaxed);
        let sum_ns = length.0.wrapping_mul(u64::from(n));
        self.sum_ns
            .store(self.sum_ns.load(Relaxed).wrapping_add(sum_ns), Relaxed);
    }

    /// Adds what was counted so far. A duration that is being counted meanwhile may be in the count
    /// and not yet in the sum, or the other way: a mean is exact but for those.
    pub fn add_to(&self, sum: &mut Latencies) {
        for (sum, count) in sum.counts.iter_mut().zip(self.counts.iter()) {
            *sum = sum.wrapping_add(count.load(Relaxed));
        }
        sum.sum_ns = sum.sum_ns.wrapping_add(self.sum_ns.load(Relaxed));
    }
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies {
            counts: Box::new([0; BUCKETS]),
            sum_ns: 0,
        }
    }
}

impl Latencies {
    /// Forgets all.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.sum_ns = 0;
    }

    /// Adds what was counted elsewhere.
    pub fn add(&mut self, other: &Latencies) {
        for (count, more) in self.counts.iter_mut().zip(other.counts.iter()) {
            *count = count.wrapping_add(*more);
        }
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
    }

    /// What was counted since `earlier`.
    pub fn since(&self, earlier: &Latencies) -> Latencies {
        let mut counts = self.counts.clone();
        for (count, before) in counts.iter_mut().zip(earlier.counts.iter()) {
            *count = count.wrapping_sub(*before);
        }
        Latencies {
            counts,
            sum_ns: self.sum_ns.wrapping_sub(earlier.sum_ns),
        }
    }

    /// How many durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|&count| u64::from(count)).sum()
    }

    /// Their mean; none where there are none.
    pub fn mean_ns(&self) -> Option<f64> {
        match self.count() {
            0 => None,
            count => Some(self.sum_ns as f64 / count as f64),
        }
    }

    /// How far the mean of so many independent durations may be off: one standard deviation of it,
    /// from the buckets. None where there are fewer than two.
    pub fn standard_error_ns(&self) -> Option<f64> {
        let (count, mean) = (self.count(), self.mean_ns()?);
        if count < 2 {
            return None;
        }
        let squares: f64 = self
            .counts
            .iter()
            .enumerate()
            .filter(|&(_, &n)| n > 0)
            .map(|(bucket, &n)| {
                let middle = (begin_of(bucket) + begin_of(bucket + 1)) as f64 / 2.0;
                f64::from(n) * (middle - mean).powi(2)
            })
            .sum();
        Some((squares / (count - 1) as f64 / count as f64).sqrt())
    }

    /// The duration below which a part `q` (0 to 1) of them lie, to 6 %: interpolated within its
    /// bucket. None where there are none.
    pub fn quantile_ns(&self, q: f64) -> Option<f64> {
        let rank = self.count() as f64 * q.clamp(0.0, 1.0);
        let mut below = 0.0;
        let last = self.counts.iter().rposition(|&count| count > 0)?;
        for (bucket, &count) in self.counts[..=last].iter().enumerate() {
            let count = f64::from(count);
            if below + count >= rank && count > 0.0 {
                let (from, to) = (begin_of(bucket) as f64, begin_of(bucket + 1) as f64);
                return Some(from + (to - from) * ((rank - below) / count).clamp(0.0, 1.0));
            }
            below += count;
        }
        Some(begin_of(last + 1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lengths: impl Iterator<Item = u64>) -> Latencies {
        let counter = LatencyCounter::default();
        lengths.for_each(|ns| counter.add(Nanos(ns), 1));
        let mut all = Latencies::default();
        counter.add_to(&mut all);
        all
    }

    #[test]
    fn every_length_lies_in_its_bucket_and_buckets_are_narrow() {
        for ns in (0..70).chain((0..33).flat_map(|e| [(1u64 << e) - 1, 1 << e, (1 << e) + 1])) {
            let bucket = bucket_of(ns);
            let (from, to) = (begin_of(bucket), begin_of(bucket + 1));
            assert!((from..to).contains(&ns), "{ns} in {from}..{to}");
            assert!(to - from <= 1.max(ns / 16), "{ns}: {from}..{to}");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn mean_and_quantiles_are_those_of_what_was_counted() {
        let all = of((1..=1000).map(|us| us * 1000));
        assert_eq!(all.count(), 1000);
        assert_eq!(all.mean_ns(), Some(500_500.0));
        for q in [0.1, 0.5, 0.9, 0.99] {
            let found = all.quantile_ns(q).expect("there are some");
            assert!((found / (q * 1e6) - 1.0).abs() < 0.04, "{q}: {found}");
        }
        let error = all.standard_error_ns().expect("there are some");
        assert!(
            (error / (288_819.0 / 1000f64.sqrt()) - 1.0).abs() < 0.05,
            "{error}"
        );
        assert_eq!(of(std::iter::empty()).quantile_ns(0.5), None);
        assert_eq!(of(std::iter::empty()).mean_ns(), None);
    }

    #[test]
    fn a_window_is_the_difference_of_two_snapshots() {
        let (early, late) = (of(0..10), of((0..10).chain([5000; 3])));
        let window = late.since(&early);
        assert_eq!((window.count(), window.mean_ns()), (3, Some(5000.0)));
    }
}
