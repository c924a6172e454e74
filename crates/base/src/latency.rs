//! Durations, counted by length: one thread counts, a controller reads and takes differences.
//!
//! Buckets are a sixteenth of an octave wide (6 %), from 16 ns to 8 s; longer counts as longest.
//! What is wanted of a window - mean, quantiles, how many samples - is computed from the difference
//! of two snapshots, so that nothing is ever reset under a writer. Octaves in which nothing was
//! ever counted are neither read, copied nor cleared: a controller looks at a thousand of these.
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

/// A count for each bucket. An octave fills a cache line, and lies in no second one.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Buckets<T>([T; BUCKETS]);

/// Durations as they happen. 2 KiB: for tenants whose latency somebody looks at.
#[derive(Debug)]
pub struct LatencyCounter {
    counts: Box<Buckets<AtomicU32>>,
    /// A bit for each octave in which something was counted.
    octaves: AtomicU32,
    sum_ns: AtomicU64,
}

/// What was counted until some moment, or between two. Wraps as the counters do. Nothing is
/// allocated until there is something to count, and a copy of nothing is nothing.
#[derive(Debug, Default)]
pub struct Latencies {
    /// Zero outside of `octaves`; none where those are none.
    counts: Option<Box<Buckets<u32>>>,
    octaves: u32,
    /// The sum of `counts`, so that whoever asks for no more need not read them.
    count: u64,
    sum_ns: u64,
}

fn no_counts() -> Box<Buckets<u32>> {
    Box::new(Buckets([0; BUCKETS]))
}

/// The octaves of a set, lowest first.
fn octaves_of(mut set: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let octave = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(octave)
    })
}

/// The buckets of an octave.
fn buckets_of(octave: usize) -> std::ops::Range<usize> {
    let each = PER_OCTAVE as usize;
    octave * each..(octave + 1) * each
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
            counts: Box::new(Buckets([const { AtomicU32::new(0) }; BUCKETS])),
            octaves: AtomicU32::new(0),
            sum_ns: AtomicU64::new(0),
        }
    }
}

impl LatencyCounter {
    /// Counts `n` durations of one length. Only the counter's one writer may call this.
    #[inline]
    pub fn add(&self, length: Nanos, n: u32) {
        let bucket = bucket_of(length.0);
        let count = &self.counts.0[bucket];
        count.store(count.load(Relaxed).wrapping_add(n), Relaxed);
        let octaves = self.octaves.load(Relaxed);
        let octave = 1 << (bucket as u64 / PER_OCTAVE);
        if octaves & octave == 0 {
            self.octaves.store(octaves | octave, Relaxed);
        }
        let sum_ns = length.0.wrapping_mul(u64::from(n));
        self.sum_ns
            .store(self.sum_ns.load(Relaxed).wrapping_add(sum_ns), Relaxed);
    }

    /// Adds what was counted so far. A duration that is being counted meanwhile may be in the count
    /// and not yet in the sum, or the other way: a mean is exact but for those.
    pub fn add_to(&self, sum: &mut Latencies) {
        let octaves = self.octaves.load(Relaxed);
        if octaves == 0 {
            return;
        }
        sum.octaves |= octaves;
        let counts = sum.counts.get_or_insert_with(no_counts);
        for octave in octaves_of(octaves) {
            let of = &self.counts.0[buckets_of(octave)];
            for (total, count) in counts.0[buckets_of(octave)].iter_mut().zip(of) {
                let count = count.load(Relaxed);
                *total = total.wrapping_add(count);
                sum.count = sum.count.wrapping_add(u64::from(count));
            }
        }
        sum.sum_ns = sum.sum_ns.wrapping_add(self.sum_ns.load(Relaxed));
    }
}

impl Clone for Latencies {
    fn clone(&self) -> Latencies {
        Latencies {
            // What was cleared keeps its memory for the next count; a copy needs none.
            counts: self.counts.as_ref().filter(|_| self.octaves != 0).cloned(),
            octaves: self.octaves,
            count: self.count,
            sum_ns: self.sum_ns,
        }
    }

    /// Keeps the memory that it has, and copies what there is to copy only.
    fn clone_from(&mut self, source: &Latencies) {
        self.clear();
        self.add(source);
    }
}

impl PartialEq for Latencies {
    fn eq(&self, other: &Latencies) -> bool {
        self.sum_ns == other.sum_ns
            && octaves_of(self.octaves | other.octaves)
                .all(|octave| self.octave(octave) == other.octave(octave))
    }
}

impl Eq for Latencies {}

impl Latencies {
    /// Forgets all.
    pub fn clear(&mut self) {
        if let Some(counts) = &mut self.counts {
            for octave in octaves_of(self.octaves) {
                counts.0[buckets_of(octave)].fill(0);
            }
        }
        self.octaves = 0;
        self.count = 0;
        self.sum_ns = 0;
    }

    /// Adds what was counted elsewhere.
    pub fn add(&mut self, other: &Latencies) {
        for octave in octaves_of(other.octaves) {
            self.add_counts(octave, other.octave(octave));
        }
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
    }

    fn add_counts(&mut self, octave: usize, more: &[u32]) {
        let counts = self.counts.get_or_insert_with(no_counts);
        for (count, more) in counts.0[buckets_of(octave)].iter_mut().zip(more) {
            *count = count.wrapping_add(*more);
            self.count = self.count.wrapping_add(u64::from(*more));
        }
        self.octaves |= 1 << octave;
    }

    /// The counts of one octave.
    fn octave(&self, octave: usize) -> &[u32] {
        const NONE: [u32; PER_OCTAVE as usize] = [0; PER_OCTAVE as usize];
        match &self.counts {
            Some(counts) => &counts.0[buckets_of(octave)],
            None => &NONE,
        }
    }

    /// The buckets in which something may be, shortest first, and how many are in each.
    fn buckets(&self) -> impl Iterator<Item = (usize, u32)> {
        octaves_of(self.octaves)
            .flat_map(|octave| buckets_of(octave).zip(self.octave(octave).iter().copied()))
    }

    /// What was counted since `earlier`. Nothing where a count went back, by more than half of what
    /// a counter holds: the counter was made anew meanwhile, and nothing is known.
    pub fn since(&self, earlier: &Latencies) -> Latencies {
        let octaves = self.octaves | earlier.octaves;
        if octaves == 0 {
            return Latencies::default();
        }
        let (mut counts, mut sum) = (no_counts(), 0);
        for octave in octaves_of(octaves) {
            let both = self.octave(octave).iter().zip(earlier.octave(octave));
            for (count, (now, before)) in counts.0[buckets_of(octave)].iter_mut().zip(both) {
                *count = now.wrapping_sub(*before);
                if *count > u32::MAX / 2 {
                    return Latencies::default();
                }
                sum += u64::from(*count);
            }
        }
        Latencies {
            counts: Some(counts),
            octaves,
            count: sum,
            sum_ns: self.sum_ns.wrapping_sub(earlier.sum_ns),
        }
    }

    /// How many were counted since `earlier`: as of [`Latencies::since`], and nothing is copied.
    pub fn count_since(&self, earlier: &Latencies) -> u64 {
        let mut sum = 0;
        for octave in octaves_of(self.octaves | earlier.octaves) {
            for (now, before) in self.octave(octave).iter().zip(earlier.octave(octave)) {
                match now.wrapping_sub(*before) {
                    count if count <= u32::MAX / 2 => sum += u64::from(count),
                    _ => return 0,
                }
            }
        }
        sum
    }

    /// The octaves in which there are durations: where each begins in nanoseconds, and the counts
    /// of its buckets. With [`Latencies::sum_ns`] it is all that there is, for whoever sends it on.
    pub fn octaves(&self) -> impl Iterator<Item = (u64, &[u32])> {
        octaves_of(self.octaves)
            .map(|octave| (begin_of(octave * PER_OCTAVE as usize), self.octave(octave)))
            .filter(|(_, counts)| counts.iter().any(|&count| count > 0))
    }

    /// Adds an octave, as [`Latencies::octaves`] gave it. False, and nothing is added, where no
    /// octave begins there or the counts are not as many as its buckets.
    #[must_use]
    pub fn add_octave(&mut self, begin_ns: u64, counts: &[u32]) -> bool {
        let at = bucket_of(begin_ns);
        let fits = begin_of(at) == begin_ns
            && (at as u64).is_multiple_of(PER_OCTAVE)
            && counts.len() as u64 == PER_OCTAVE;
        if fits {
            self.add_counts(at / PER_OCTAVE as usize, counts);
        }
        fits
    }

    /// The sum of all durations in nanoseconds; wraps.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// Adds to the sum of all durations, for whoever puts them together from octaves.
    pub fn add_sum_ns(&mut self, sum_ns: u64) {
        self.sum_ns = self.sum_ns.wrapping_add(sum_ns);
    }

    /// How many durations.
    pub fn count(&self) -> u64 {
        self.count
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
            .buckets()
            .filter(|&(_, n)| n > 0)
            .map(|(bucket, n)| {
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
        let (mut below, mut last) = (0.0, None);
        for (bucket, count) in self.buckets().filter(|&(_, count)| count > 0) {
            let count = f64::from(count);
            let (from, to) = (begin_of(bucket) as f64, begin_of(bucket + 1) as f64);
            if below + count >= rank {
                return Some(from + (to - from) * ((rank - below) / count).clamp(0.0, 1.0));
            }
            below += count;
            last = Some(to);
        }
        last
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
    fn octaves_put_together_are_what_they_were_taken_from() {
        let all = of([0, 15, 16, 40, 70_000, u64::MAX].into_iter());
        let mut copy = Latencies::default();
        for (begin_ns, counts) in all.octaves() {
            assert!(copy.add_octave(begin_ns, counts));
        }
        copy.add_sum_ns(all.sum_ns());
        assert_eq!(copy, all);
        let begins: Vec<u64> = all.octaves().map(|(begin_ns, _)| begin_ns).collect();
        assert_eq!(begins, [0, 16, 32, 65_536, 1 << 32]);
    }

    #[test]
    fn what_is_no_octave_is_not_added() {
        let mut none = Latencies::default();
        for (begin_ns, len) in [(17, 16), (24, 16), (1, 16), (32, 15), (1 << 40, 16)] {
            assert!(!none.add_octave(begin_ns, &vec![1; len]), "{begin_ns}");
        }
        assert_eq!(none, Latencies::default());
    }

    #[test]
    fn a_window_is_the_difference_of_two_snapshots() {
        let (early, late) = (of(0..10), of((0..10).chain([5000; 3])));
        let window = late.since(&early);
        assert_eq!((window.count(), window.mean_ns()), (3, Some(5000.0)));
    }

    #[test]
    fn a_counter_that_was_made_anew_makes_an_empty_window() {
        let (early, anew) = (of((0..10).chain([7000; 90])), of(0..12));
        let window = anew.since(&early);
        assert_eq!((window.count(), window.mean_ns()), (0, None));
        assert_eq!(window.quantile_ns(0.99), None);
        assert_eq!(anew.since(&anew).count(), 0);
        assert_eq!(anew.count_since(&early), 0);
    }

    #[test]
    fn counts_are_those_of_the_buckets_however_they_came_there() {
        let (few, many) = (of([3, 90, 90].into_iter()), of((0..5000).map(|at| at * at)));
        let mut reused = many.clone();
        reused.clone_from(&few);
        assert_eq!(reused, few);
        let mut both = reused.clone();
        both.add(&many);
        let since = both.since(&few);
        assert_eq!((since.count(), both.count_since(&few)), (5000, 5000));
        let mut cleared = both.clone();
        cleared.clear();
        let mut sent = Latencies::default();
        for (begin_ns, counts) in many.octaves() {
            assert!(sent.add_octave(begin_ns, counts));
        }
        for one in [&few, &many, &reused, &both, &since, &cleared, &sent] {
            let buckets: u64 = one.buckets().map(|(_, count)| u64::from(count)).sum();
            assert_eq!(one.count(), buckets);
        }
    }

    #[test]
    fn nothing_is_allocated_for_nothing_and_what_was_cleared_is_nothing() {
        let mut all = Latencies::default();
        LatencyCounter::default().add_to(&mut all);
        assert!(all.counts.is_none() && all.since(&Latencies::default()).counts.is_none());
        let mut some = of([3, 3000, 3_000_000_000].into_iter());
        assert_ne!(some, all);
        some.clear();
        assert_eq!(some, all);
        some.clear();
        assert_eq!(some.quantile_ns(0.5), None);
    }
}
