//! What a run counts: operations, hits, errors, latencies.
//!
//! What it never does: allocate while it counts, or mix requests of different kinds in one latency
//! distribution.

use super::link::{ASKS, Ask, Outcome};
use super::wire::REFUSALS;
use hdrhistogram::Histogram;

/// The longest latency that is told from longer ones, in nanoseconds.
const LATENCY_NS_MAX: u64 = 100_000_000_000;
/// Runs that may wait for a judgement; what comes beyond is set aside.
const PENDING_MAX: usize = 1 << 16;
/// Significant decimal digits of a latency.
const LATENCY_DIGITS: u8 = 3;

/// Plain counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Finished keys by [`Ask`]; a `get` of several keys counts each.
    pub(crate) ops: [u64; ASKS.len()],
    /// Keys that were read and found.
    pub(crate) hits: u64,
    /// Keys that were read and not found.
    pub(crate) misses: u64,
    /// Those of them that were written next all the same.
    pub(crate) look_misses: u64,
    /// Items that scans gave.
    pub(crate) scanned: u64,
    /// Bytes of the values that were asked for, found or not.
    pub(crate) read_bytes: u64,
    /// Bytes of those that were not found.
    pub(crate) missed_bytes: u64,
    /// Errors by [`Refusal`](super::wire::Refusal).
    pub(crate) refused: [u64; REFUSALS.len()],
    /// Values that were not what their key's should be.
    pub(crate) corrupt: u64,
}

impl Counts {
    /// All operations of the workload: fills after a miss are not among them, and what is read to
    /// be written is one with what is written.
    pub(crate) fn total_ops(&self) -> u64 {
        self.ops.iter().sum::<u64>() - self.ops[Ask::Fill as usize] - self.ops[Ask::Look as usize]
    }

    /// All errors, wrong values included.
    pub(crate) fn errors(&self) -> u64 {
        self.refused.iter().sum::<u64>() + self.corrupt
    }

    /// Keys found of keys read; `None` where nothing was read.
    pub(crate) fn hit_ratio(&self) -> Option<f64> {
        ratio(self.hits, self.hits + self.misses)
    }

    /// Adds what `other` counted.
    pub(crate) fn add(&mut self, other: &Counts) {
        for (sum, n) in self.ops.iter_mut().zip(other.ops) {
            *sum += n;
        }
        for (sum, n) in self.refused.iter_mut().zip(other.refused) {
            *sum += n;
        }
        self.hits += other.hits;
        self.misses += other.misses;
        self.look_misses += other.look_misses;
        self.scanned += other.scanned;
        self.read_bytes += other.read_bytes;
        self.missed_bytes += other.missed_bytes;
        self.corrupt += other.corrupt;
    }
}

/// What one tenant (or all of them) did.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    /// How often what happened.
    pub(crate) counts: Counts,
    /// Latencies that were set aside.
    pub(crate) aside: u64,
    /// Latencies by class, in nanoseconds: of reads, and of everything else, unless it was made
    /// for other classes.
    latency_ns: Vec<Histogram<u64>>,
    /// A run of equal latencies that is not in the histograms yet: class, nanoseconds, count.
    run: (usize, u64, u64),
    /// Runs of which it is not known yet whether they count, where latencies are sifted.
    pending: Option<Vec<(usize, u64, u64)>>,
}

impl Tally {
    /// Nothing counted, for reads and everything else.
    pub(crate) fn new() -> Tally {
        Tally::of(2)
    }

    /// Nothing counted, for so many classes of latencies.
    pub(crate) fn of(classes: usize) -> Tally {
        let histogram = || {
            Histogram::new_with_bounds(1, LATENCY_NS_MAX, LATENCY_DIGITS)
                .expect("constant bounds that the histogram accepts")
        };
        Tally {
            counts: Counts::default(),
            aside: 0,
            latency_ns: (0..classes).map(|_| histogram()).collect(),
            run: (0, 0, 0),
            pending: None,
        }
    }

    /// The same, with latencies that wait for [`Tally::judge`].
    pub(crate) fn sifted(self) -> Tally {
        Tally {
            pending: Some(Vec::with_capacity(PENDING_MAX)),
            ..self
        }
    }

    /// Counts what became of a key whose value has `value_len` bytes.
    #[inline]
    pub(crate) fn key(&mut self, ask: Ask, value_len: u32, outcome: Outcome<'_>) {
        let counts = &mut self.counts;
        counts.ops[ask as usize] += 1;
        match outcome {
            Outcome::Refused(refusal) => counts.refused[refusal as usize] += 1,
            Outcome::Hit(_) => {
                counts.hits += 1;
                counts.read_bytes += u64::from(value_len);
            }
            Outcome::Miss if ask == Ask::Get => {
                counts.misses += 1;
                counts.read_bytes += u64::from(value_len);
                counts.missed_bytes += u64::from(value_len);
            }
            Outcome::Miss | Outcome::Done => {}
        }
    }

    /// Counts a latency as one of a read, or of something else.
    #[inline]
    pub(crate) fn latency(&mut self, ask: Ask, ns: u64) {
        self.latency_of(usize::from(ask != Ask::Get), ns);
    }

    /// Counts a latency of a class. Runs of one length, as the replies of one batch have it, cost
    /// one record.
    #[inline]
    pub(crate) fn latency_of(&mut self, class: usize, ns: u64) {
        if (class, ns) == (self.run.0, self.run.1) {
            self.run.2 += 1;
        } else {
            self.settle();
            self.run = (class, ns, 1);
        }
    }

    fn settle(&mut self) {
        let (class, ns, count) = self.run;
        if count == 0 {
            return;
        }
        match &mut self.pending {
            None => self.latency_ns[class].saturating_record_n(ns, count),
            Some(pending) if pending.len() < PENDING_MAX => pending.push(self.run),
            Some(_) => self.aside += count,
        }
        self.run.2 = 0;
    }

    /// Adds what `other` counted.
    pub(crate) fn add(&mut self, other: &mut Tally) {
        self.settle();
        other.settle();
        self.counts.add(&other.counts);
        self.aside += other.aside;
        assert_eq!(self.latency_ns.len(), other.latency_ns.len());
        for (sum, part) in self.latency_ns.iter_mut().zip(&other.latency_ns) {
            sum.add(part)
                .expect("all latency histograms have the same bounds");
        }
    }

    /// Moves everything into `sum` and starts again from nothing.
    pub(crate) fn drain_into(&mut self, sum: &mut Tally) {
        sum.add(self);
        self.clear();
    }

    /// Whether the latencies since the last judgement count; what happened stays counted.
    pub(crate) fn judge(&mut self, counts: bool) {
        self.settle();
        for (class, ns, count) in self.pending.iter_mut().flat_map(|runs| runs.drain(..)) {
            match counts {
                true => self.latency_ns[class].saturating_record_n(ns, count),
                false => self.aside += count,
            }
        }
    }

    /// Starts again from nothing.
    pub(crate) fn clear(&mut self) {
        (self.counts, self.aside) = (Counts::default(), 0);
        self.latency_ns.iter_mut().for_each(Histogram::reset);
        self.run.2 = 0;
        self.pending.iter_mut().for_each(Vec::clear);
    }

    /// The latencies of reads; call it when the run is over.
    pub(crate) fn reads(&mut self) -> &Histogram<u64> {
        self.class(0)
    }

    /// The latencies of everything but reads; call it when the run is over.
    pub(crate) fn writes(&mut self) -> &Histogram<u64> {
        self.class(1)
    }

    /// The latencies of a class; call it when the run is over.
    pub(crate) fn class(&mut self, class: usize) -> &Histogram<u64> {
        self.settle();
        &self.latency_ns[class]
    }

    /// The latencies of the first class that has any; call it when the run is over.
    pub(crate) fn foremost(&mut self) -> &Histogram<u64> {
        self.settle();
        let first = self.latency_ns.iter().position(|ns| !ns.is_empty());
        &self.latency_ns[first.unwrap_or(0)]
    }

    /// The latencies of all classes; call it when the run is over.
    pub(crate) fn all(&mut self) -> Histogram<u64> {
        self.settle();
        let mut all = self.latency_ns[0].clone();
        for class in &self.latency_ns[1..] {
            all.add(class)
                .expect("all latency histograms have the same bounds");
        }
        all
    }
}

/// `part` of `whole`; `None` where there is no whole.
pub(crate) fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::wire::Refusal;

    #[test]
    fn a_run_of_equal_latencies_counts_each_and_keeps_the_classes_apart() {
        let mut tally = Tally::new();
        for (ask, ns) in [
            (Ask::Get, 500),
            (Ask::Get, 500),
            (Ask::Set, 500),
            (Ask::Get, 900),
        ] {
            tally.latency(ask, ns);
        }
        assert_eq!((tally.reads().len(), tally.writes().len()), (3, 1));
        assert_eq!((tally.reads().min(), tally.reads().max()), (500, 900));
        let mut sum = Tally::new();
        tally.drain_into(&mut sum);
        assert_eq!((sum.reads().len(), tally.reads().len()), (3, 0));
    }

    #[test]
    fn what_is_set_aside_is_counted_and_has_no_latency() {
        let (mut tally, mut sum) = (Tally::new().sifted(), Tally::new());
        for ask in [Ask::Get, Ask::Get, Ask::Set] {
            tally.key(ask, 100, Outcome::Done);
            tally.latency(ask, 500);
        }
        tally.judge(false);
        tally.latency(Ask::Get, 700);
        tally.judge(true);
        tally.drain_into(&mut sum);
        assert_eq!((sum.aside, sum.counts.total_ops()), (3, 3));
        assert_eq!((sum.reads().len(), sum.reads().max()), (1, 700));
        assert_eq!((sum.writes().len(), tally.aside), (0, 0));
    }

    #[test]
    fn fills_are_no_operations_of_the_workload() {
        let mut tally = Tally::new();
        tally.key(Ask::Get, 100, Outcome::Miss);
        tally.key(Ask::Fill, 100, Outcome::Done);
        tally.key(Ask::Get, 300, Outcome::Hit(None));
        tally.key(Ask::Set, 100, Outcome::Refused(Refusal::Busy));
        let counts = tally.counts;
        assert_eq!((counts.total_ops(), counts.errors()), (3, 1));
        assert_eq!((counts.read_bytes, counts.missed_bytes), (400, 100));
        assert_eq!(counts.hit_ratio(), Some(0.5));
        assert_eq!(Counts::default().hit_ratio(), None);
    }
}
